# SPDX-License-Identifier: Apache-2.0
"""A daemon whose worker fails when it is told to (tests/fault/worker_fault.c), and a clock on how fast status answers meanwhile."""
import ctypes
import mmap
import pathlib
import threading

from daemonlib import *

# The faults are on purpose: a worker built with AddressSanitizer is to end by them, not to report them.
os.environ["ASAN_OPTIONS"] = ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), "handle_segv=0:handle_sigbus=0:handle_abort=0:handle_sigill=0"]))

CUDA = BACKEND == "cuda"
SHARED = os.environ.get("HEARTH_TEST_SHARED")  # others take and give memory of the card meanwhile
FAULTS = ["address", "trap", "endless"]
MOMENTS = ["never", "loading", "prefill", "decode", "idle"]
# That a worker is heard of again: several times what a step of a tiny model takes, on a device what making its graphs takes.
HANG_S = 6.0 if SANITIZED else 2.5
ENDLESS_S = 30  # then a kernel ends by itself, whatever became of its process
MIB = 1 << 20


class Page:
    """What the worker is to do, shared with it."""

    def __init__(self, home):
        self.path = pathlib.Path(home) / "fault-page"
        with open(self.path, "w+b") as f:
            f.truncate(4096)
            self.map = mmap.mmap(f.fileno(), 4096)

    def arm(self, fault, moment, nth=1, times=1, n_ctx=0):
        struct.pack_into("<I", self.map, 0, 0)
        struct.pack_into("<IIIIII", self.map, 4, FAULTS.index(fault), times, nth, n_ctx, ENDLESS_S, 0)
        struct.pack_into("<I", self.map, 0, MOMENTS.index(moment))

    def disarm(self):
        struct.pack_into("<I", self.map, 0, 0)

    def fired(self):
        return struct.unpack_from("<I", self.map, 28)[0]


class StatusClock:
    """Asks for status all the time; says how long the answers took. Nothing is judged: the machine may be busy."""

    def __init__(self, path):
        self.client, self.times, self.over = Client(path), [], threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.over.wait(0.001):
            t0 = time.monotonic()
            self.client.call("status")
            self.times.append(time.monotonic() - t0)

    def stop(self):
        self.over.set()
        self.thread.join(60)
        self.client.close()
        t = sorted(self.times)
        assert t, "status never answered"
        return f"status {len(t)} times: half within {t[len(t) // 2] * 1e3:.2f} ms, 99% within {t[len(t) * 99 // 100] * 1e3:.2f} ms, all within {t[-1] * 1e3:.1f} ms"


@contextlib.contextmanager
def failing(worker, config="", models=("tiny",), clock=True, hang=60.0):
    """A daemon with that worker, its page and the clock."""
    with private_dir() as home:
        page = Page(home)
        with daemon("--worker", worker, config=f"[worker]\nhang_timeout = {int(hang * 1000)}ms\n{config}", models=models,
                    env={"FAULT_PAGE": str(page.path)}) as d:
            d.page = page
            watch = StatusClock(d.path) if clock else None
            try:
                yield d
            finally:
                if watch:
                    print("      " + watch.stop())


def bits(f):
    """What decides a token: its id, its probability and the likeliest others', bit for bit."""
    return f["ids"], f["logprobs"], f["top"][0]["logprobs"]


def rest(c, i, got):
    """The rest of a stream behind 'got': (all of it, what else came)."""
    notes = []
    for _, m, f in c.events(i, timeout=180):
        if m == "tokens":
            if f.get("ids"):
                got.append(bits(f))
        else:
            notes.append(m)
    return got, notes


def resident(c):
    return {m["name"] for m in c.call("models")["models"] if m["where"] in ("memory", "vram")}


def vram_used():
    """Bytes taken of the card, by whomever; None where that says nothing."""
    if not CUDA or SHARED:
        return None
    nvml, dev = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
    mem = (ctypes.c_ulonglong * 3)()  # nvmlMemory_t: total, free, used
    assert nvml.nvmlInit_v2() == 0
    try:
        one = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"  # NVML counts all cards
        get, which = (nvml.nvmlDeviceGetHandleByIndex_v2, int(one)) if one.isdigit() else (nvml.nvmlDeviceGetHandleByUUID, one.encode())
        assert get(which, ctypes.byref(dev)) == 0, one
        assert nvml.nvmlDeviceGetMemoryInfo(dev, ctypes.byref(mem)) == 0
    finally:
        nvml.nvmlShutdown()
    return mem[2]
