# SPDX-License-Identifier: Apache-2.0
"""A new calibration changes no answer: greedy and sampled tokens and the bits of their probabilities, alone and beside others, without a
card profile, with one that launches everything another way, with the next one, and on a card with one that was measured just now."""
import json
import subprocess

from faultlib import *

TYPES = ["Q4_0", "MXFP4", "Q8_0"]
# The names of the launches that there are besides the plain one (kernels/cuda/tune.cu, kernels/cpu/linear.c), by the bucket of rows; one that
# is not there makes the worker refuse the profile.
WIDE = ["2 row groups", "4 row groups", "even rounds", "a block a unit", "2 x 8 columns"]
NAMES = {
    "product": {1: ["1 block", "1 deep block", "2 row groups", "4 row groups", "even rounds", "a block a unit"],
                4: ["1 block", *WIDE[:4], "8 columns", "2 x 8 columns"], 8: ["1 block", *WIDE[:4], "8 columns", "2 x 8 columns"],
                16: ["1 row group", *WIDE], 32: ["1 row group", *WIDE]},
    "experts": {1: ["down by expert"], 4: ["up by row", "down by expert", "up row down expert"], 8: ["up by row", "down by row", "both by row"],
                16: ["up by row", "down by row", "both by row"], 32: ["up by row", "down by row", "both by row"]},
} if CUDA else {"product": {n: ["2 tasks", "4 tasks", "16 tasks"] for n in (1, 4, 8, 16, 32)}}
PROMPTS = ["the cat", "a dog", "he", "an apple", "the man and the cat " * 12, "x", "late"]


def calibrate(where, *options):
    """As hearth calibrate runs it; the profile's path."""
    subprocess.run([str(pathlib.Path(HEARTHD).parent / "hearth-worker"), "--calibrate", "--threads", "2", "--backend", "cuda" if CUDA else "cpu", *options,
                    str(where)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=200)
    return where / ("card-profile-%s.json" % ("cuda" if CUDA else "cpu"))


def launched_another_way(path, turn):
    """The profile chooses the turn-th of each kind for every shape of the small models (those within a factor of two are meant, too)."""
    profile = json.loads(path.read_text())
    profile["quick"] = False
    profile["choices"] = [
        {"family": family, "type": t, "rows": rows, "cols": cols, "batch": batch, "variant": names[turn % len(names)], "left_out": "", "plain_s": 2e-6, "chosen_s": 1e-6}
        for family, of in NAMES.items() for t in TYPES for rows in (96, 384) for cols in (96, 384) for batch, names in of.items()]
    path.write_text(json.dumps(profile))


def answers(c):
    """Bits of each prompt's answer, alone and with all of them at once."""
    got = []
    for model in ("tiny", "experts"):
        for temperature in (0.0, 1.0):
            ask = dict(model=model, max_tokens=40, temperature=temperature, seed=3, logprobs=2, exact=True, **NO_END)
            alone = [rest(c, c.start("generate", dict(ask, prompt=p)), [])[0] for p in PROMPTS]
            running = [c.start("generate", dict(ask, prompt=p)) for p in PROMPTS]
            beside = [rest(c, i, [])[0] for i in running]
            assert alone == beside and all(len(a) == 40 for a in alone), (model, temperature, "company changes an answer")
            got.append(alone)
    return got


def a_calibration_changes_no_answer():
    with private_dir() as where:
        profiles = pathlib.Path(where)
        with daemon(config=f"[worker]\nprofile_dir = {profiles}\nthreads = 2\n[models]\nslots = {len(PROMPTS)}\n") as d, Client(d.path) as c:
            shutil.copy(MODELS / "gpt-oss-mxfp4.gguf", d.models / "experts.gguf")

            def next_worker(used):
                pid = c.call("status")["worker_pid"]
                os.kill(pid, 9)
                until("another worker serves", lambda: (s := c.call("status"))["worker"] == "ready" and s["worker_pid"] not in (0, pid))
                until("it says whether it takes the profile", lambda: d.messages().count("holds for this device") == used or "is not used" in d.messages())
                assert "is not used" not in d.messages()

            want = answers(c)
            path = calibrate(profiles, "--quick", "--types", ",".join(TYPES))
            turns = max(len(names) for of in NAMES.values() for names in of.values())
            for turn in range(turns):
                launched_another_way(path, turn)
                next_worker(turn + 1)
                assert answers(c) == want, f"profile {turn}: other bits"
            if CUDA:
                calibrate(profiles, "--types", "Q4_0")
                next_worker(turns + 1)
                assert answers(c) == want, "a measured profile: other bits"
            print(f"      {turns} profiles that launch everything another way{', and a measured one' if CUDA else ''}: the same bits of {sum(map(len, want))} answers, alone and together")


sys.exit(run_tests([a_calibration_changes_no_answer]))
