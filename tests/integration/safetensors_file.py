"""Writes and reads safetensors files without any library: made-up checkpoints of any size, and where their tensors are."""

import json
import struct


def write(path, tensors, dtype="BF16", width=2):
    """`tensors`: {name: bytes}, written in order."""
    header, at = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": dtype, "shape": [len(data) // width], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for data in tensors.values():
            file.write(data)


def places(path):
    """{name: (offset in the file, length)}"""
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(length))
    return {name: (8 + length + entry["data_offsets"][0], entry["data_offsets"][1] - entry["data_offsets"][0])
            for name, entry in header.items() if name != "__metadata__"}
