#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Converts weights between PyTorch's files (.pth, .pt) and safetensors, which tutti reads and writes.

    pytorch_weights.py resnet50.pth resnet50.safetensors
    pytorch_weights.py RUN/checkpoints/step-000001000/model.safetensors resnet50.pth

The names stay: tutti's are torchvision's. Needs PyTorch (Debian: python3-torch). A .pth file may hold a state
dictionary, or a checkpoint with one under "state_dict", "model" or "model_state_dict"; the prefix "module." that
DataParallel puts before every name is removed.
"""
import argparse
import contextlib
import json
import operator
import os
import struct
import sys

TYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
         "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"}
PLAIN = {"float16": "float32"}  # types that tutti does not have, and a type that represents their values exactly


def fail(where, expected, got, hint=""):
    sys.exit(f"[{where}] expected {expected}, got {got}." + (f" hint: {hint}" if hint else ""))


def raw(torch, tensor):
    """Returns the tensor's bytes, little-endian, in row-major order."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


def read_pth(torch, path):
    if not has_weights_only(torch):
        fail("pytorch_weights", "PyTorch 1.13 or later, which can read tensors without running code of the file", torch.__version__)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch may raise any exception for a bad file
        why = str(error).strip().splitlines() or [""]
        fail(path, "a complete file with tensors only", f"{type(error).__name__}: {why[0]}",
             "is it truncated? If it has more than tensors, save it again with torch.save(model.state_dict(), ...)")
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not state:
        fail(path, "a state dictionary", type(state).__name__, "save model.state_dict()")
    others = [name for name, value in state.items() if not isinstance(name, str) or not torch.is_tensor(value)]
    if others:
        fail(path, "tensors only", f"others under {', '.join(map(str, others[:5]))}", "save model.state_dict()")
    if all(name.startswith("module.") for name in state):
        state = {name[len("module."):]: value for name, value in state.items()}
    return state


def has_weights_only(torch):
    """Returns whether torch.load can refuse to run code of the file, as from 1.13 on."""
    return tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (1, 13)


def write_safetensors(torch, path, state):
    """Writes 8 bytes with the header's length, the header in JSON, and the tensors. Wide types come first, so that all are aligned."""
    header, offset, body = {"__metadata__": {"format": "pt"}}, 0, []
    for name, tensor in sorted(state.items(), key=lambda item: -item[1].element_size()):
        kind = str(tensor.dtype).split(".")[-1]
        if kind in PLAIN:
            kind = PLAIN[kind]
            tensor = tensor.to(getattr(torch, kind))
        if kind not in TYPES:
            fail(f"{path} {name}", "a type of the format", kind)
        data = raw(torch, tensor)
        header[name] = {"dtype": TYPES[kind], "shape": list(tensor.shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        body.append(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(body)


def read_safetensors(torch, path):
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8]) if len(data) >= 8 else (0,)
    if not 0 < length <= len(data) - 8:
        fail(path, "a safetensors file", f"{len(data)} bytes of another format", "is it truncated?")
    try:
        header = json.loads(data[8:8 + length])
    except ValueError as error:
        fail(path, "a header in JSON", error)
    if not isinstance(header, dict):
        fail(path, "a header that is an object", type(header).__name__)
    types = {tag: getattr(torch, name) for name, tag in TYPES.items()}
    state = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            begin, end = (8 + length + operator.index(at) for at in entry["data_offsets"])
            tag, shape, count = entry["dtype"], [operator.index(extent) for extent in entry["shape"]], 1
        except (KeyError, TypeError, ValueError) as error:
            fail(f"{path} {name}", "dtype, shape and two data_offsets", repr(error))
        kind = types.get(tag) if isinstance(tag, str) else None
        if kind is None:
            fail(f"{path} {name}", "a type of the format", tag)
        if min(shape, default=0) < 0:
            fail(f"{path} {name}", "a shape without negative extents", shape)
        for extent in shape:
            count *= extent
        if not 8 + length <= begin <= end <= len(data) or end - begin != count * torch.empty(0, dtype=kind).element_size():
            fail(f"{path} {name}", "as many bytes as its shape needs", f"{begin} to {end} of {len(data)}", "is it truncated?")
        flat = torch.frombuffer(bytearray(data[begin:end]), dtype=kind) if count else torch.empty(0, dtype=kind)
        state[name] = flat.reshape(shape)
    return state


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="FROM", help="FILE.pth, FILE.pt or FILE.safetensors")
    parser.add_argument("target", metavar="TO", help="the other kind")
    arguments = parser.parse_args()
    source, target = arguments.source, arguments.target
    reads, writes = source.endswith(".safetensors"), target.endswith(".safetensors")
    if reads == writes:
        parser.error("one of the two must end in .safetensors, and the other must not")
    if not os.path.isfile(source):
        fail(source, "a file", "none")
    try:
        import torch
    except ImportError as missing:
        fail("pytorch_weights", "PyTorch", missing, "Debian: apt-get install python3-torch, then /usr/bin/python3")
    state = read_safetensors(torch, source) if reads else read_pth(torch, source)
    # Writes another file and renames it, so that the target is complete or not changed.
    aside = target + ".part"
    try:
        if writes:
            write_safetensors(torch, aside, state)
        else:
            torch.save(state, aside)
        os.replace(aside, target)
    except (OSError, RuntimeError) as error:  # torch raises RuntimeError for a missing folder
        with contextlib.suppress(OSError):
            os.remove(aside)
        fail(target, "a file that can be written", error)
    print(f"{target}: {len(state)} tensors")


if __name__ == "__main__":
    main()
