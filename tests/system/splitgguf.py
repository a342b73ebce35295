# SPDX-License-Identifier: Apache-2.0
"""Cuts a GGUF file into two parts, as split files are: the first holds all metadata, each its own tensors."""
import struct

SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        self.at += n
        return self.data[self.at - n : self.at]

    def u32(self):
        return struct.unpack("<I", self.take(4))[0]

    def u64(self):
        return struct.unpack("<Q", self.take(8))[0]

    def text(self):
        return self.take(self.u64())

    def value(self, kind):
        start = self.at
        if kind == 8:
            self.text()
        elif kind == 9:
            inner, n = self.u32(), self.u64()
            for _ in range(n):
                self.value(inner)
        else:
            self.take(SCALARS[kind])
        return self.data[start : self.at]


def parse(data):
    r = Reader(data)
    assert r.take(4) == b"GGUF" and r.u32() == 3
    n_tensors, n_kv = r.u64(), r.u64()
    kvs = []
    for _ in range(n_kv):
        key, kind = r.text(), r.u32()
        kvs.append((key, kind, r.value(kind)))
    tensors = []
    for _ in range(n_tensors):
        name, n_dims = r.text(), r.u32()
        dims = [r.u64() for _ in range(n_dims)]
        tensors.append([name, dims, r.u32(), r.u64()])
    base = (r.at + 31) & ~31
    ends = sorted(t[3] for t in tensors)[1:] + [len(data) - base]
    order = sorted(tensors, key=lambda t: t[3])
    for t, end in zip(order, ends):
        t.append(data[base + t[3] : base + end])
    return kvs, order


def build(kvs, tensors):
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(kvs))
    for key, kind, value in kvs:
        out += struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value
    offset, blobs = 0, []
    for name, dims, kind, _, blob in tensors:
        out += struct.pack("<Q", len(name)) + name + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims)
        out += struct.pack("<IQ", kind, offset)
        blob += b"\0" * (-len(blob) % 32)
        blobs.append(blob)
        offset += len(blob)
    out += b"\0" * (-len(out) % 32)
    return out + b"".join(blobs)


def split_in_two(source, directory, name):
    kvs, tensors = parse(source.read_bytes())
    half = len(tensors) // 2
    paths = []
    for i, part in enumerate((tensors[:half], tensors[half:])):
        keys = [(b"split.no", 2, struct.pack("<H", i)), (b"split.count", 2, struct.pack("<H", 2)),
                (b"split.tensors.count", 5, struct.pack("<i", len(tensors)))]
        paths.append(directory / f"{name}-{i + 1:05}-of-00002.gguf")
        paths[-1].write_bytes(build((kvs if i == 0 else []) + keys, part))
    return paths
