#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares the forms of PTX's instructions that the translator accepts (emulator/ptx_forms.py) with NVIDIA's assembler, which is in
libnvJitLink and needs no GPU: for each form, instructions with right and wrong operands. ptxas must take each instruction that the
translator takes. So a kernel that the emulator runs is one that the assembler takes, and a fault in it is not hidden by a conversion
that no GPU makes. With TUTTI_CHECK_ALL five times as many modifiers of each form are tried."""
import ctypes
import itertools
import os
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "emulator"))
import ptx_forms  # noqa: E402
from ptx_parse import PtxError, read_instruction, read_module  # noqa: E402

try:
    import re._parser as sre
except ImportError:  # before Python 3.11
    import sre_parse as sre

ALL = bool(os.environ.get("TUTTI_CHECK_ALL"))
HEAD = """.version 8.8
.target sm_100
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out)
{
.reg .pred %p<9>;
.reg .b16 %rs<9>;
.reg .b32 %r<9>;
.reg .f32 %f<9>;
.reg .b64 %rd<9>;
.reg .f64 %fd<9>;
.shared .align 16 .b8 room[64];
.local .align 16 .b8 own[64];
"""
# What stands in for each operand: registers of each class, constants, a result that is not wanted, addresses, names.
OPERANDS = ("%p1", "!%p1", "%rs1", "%r1", "%f1", "%rd1", "%fd1", "1", "-1", "70000", "0f3F800000", "0d3FF0000000000000", "_", "[%rd1]", "[%r1]",
            "[%f1]", "[room]", "[own+4]", "[in]", "room", "own", "in", "%tid.x", "WARP_SZ", "$L", "%r1|%p1", "%p1|%p2", "%p1|_", "_|%p1",
            "{%r1, %r2}", "{%rs1, %rs2}", "{%f1, %f2}", "{%r1, _}", "{%r1, 1}", "{%r1, %r2, %r3, %r4}", "{%rs1, %rs2, %rs3, %rs4}")


def texts(tree):
    """Returns the texts that a parsed pattern without repetitions matches."""
    parts = [[""]]
    for kind, value in tree:
        name = str(kind)
        if name == "LITERAL":
            parts.append([chr(value)])
        elif name == "IN":
            parts.append([chr(v) for _, v in value])
        elif name == "SUBPATTERN":
            parts.append(texts(value[-1]))
        elif name == "BRANCH":
            parts.append([t for branch in value[1] for t in texts(branch)])
        else:
            assert name == "MAX_REPEAT" and value[:2] == (0, 1), (name, value)
            parts.append(["", *texts(value[2])])
    return ["".join(p) for p in itertools.product(*parts)]


class Assembler:
    """ptxas, in NVIDIA's library for linking at run time."""

    def __init__(self):
        for place in ("libnvJitLink.so.13", "libnvJitLink.so.12", "/usr/local/cuda/lib64/libnvJitLink.so"):
            try:
                self.library = ctypes.CDLL(place)
                return
            except OSError:
                continue
        print("SKIP: no libnvJitLink")
        sys.exit(77)

    def log(self, text):
        """Returns what the assembler says about a module, or an empty text if it takes the module."""
        handle, size = ctypes.c_void_p(), ctypes.c_size_t()
        options = (ctypes.c_char_p * 1)(b"-arch=sm_100")
        if self.library.nvJitLinkCreate(ctypes.byref(handle), 1, options) != 0:
            print("SKIP: this libnvJitLink does not know sm_100")
            sys.exit(77)
        data, ptx = text.encode(), 2  # NVJITLINK_INPUT_PTX
        refused = self.library.nvJitLinkAddData(handle, ptx, data, len(data) + 1, b"k") != 0 or self.library.nvJitLinkComplete(handle) != 0
        self.library.nvJitLinkGetErrorLogSize(handle, ctypes.byref(size))
        said = ctypes.create_string_buffer(size.value + 1)
        self.library.nvJitLinkGetErrorLog(handle, said)
        self.library.nvJitLinkDestroy(ctypes.byref(handle))
        return said.value.decode() or "refused" if refused else ""

    def refused(self, lines):
        """Returns the numbers of the lines that it does not take, and what it says."""
        out, first = {}, HEAD.count("\n") + 1
        while True:
            log = self.log(HEAD + "".join("\n" if k in out else f"{line};\n" for k, line in enumerate(lines)) + "$L:\nret;\n}\n")
            found = {int(n) - first: what for n, what in re.findall(r"line (\d+); (?:error|fatal)\s*: (.*)", log)}
            if not log:
                return out
            if not found.keys() - out.keys():
                sys.exit(f"no line in what ptxas says: {log}")
            out |= found


def right(form, modifiers, types):
    """Returns an operand that is one of the form."""
    letter, _, name = form.partition(":")
    kind = types.get(name.rstrip("|"), name.rstrip("|"))
    register = {"pred": "%p1", "8": "%rs1", "16": "%rs1", "32": "%r1", "64": "%rd1"}
    if letter == "p":
        space = re.search(r"param|shared|local", modifiers)
        return {"param": "[in]", "shared": "[room]", "local": "[own]"}[space[0]] if space else "[%rd1]"
    if letter in ("l", "i"):
        return {"l": "$L", "i": "0"}[letter]
    size = kind if kind == "pred" else "32" if kind.endswith("x2") else re.search(r"\d+", kind)[0]
    one = {"f32": "%f1", "f64": "%fd1"}.get(kind) or register[size]
    if letter.startswith("v") and (m := re.search(r"\bv(\d)\b", modifiers)):
        return "{" + ", ".join(one[:-1] + str(k) for k in range(1, int(m[1]) + 1)) + "}"
    return one


def instructions(name, pattern, forms):
    """Yields instructions with the right operands, then each operand replaced, and one too many and too few."""
    all_modifiers = sorted(set(texts(sre.parse(pattern.pattern))))
    step = max(1, len(all_modifiers) // (30 if ALL else 6))
    for modifiers in all_modifiers[len(name) % step::step]:
        parts = modifiers.split(".")
        types = {"t": parts[-1], "of": (parts[-2:] or [""])[0]}
        types["w"] = f"{types['t'][:1]}{2 * int((re.search(r'[0-9]+', types['t']) or ['0'])[0])}"
        head = name + ("." + modifiers if modifiers else "") + " "
        good = [right(f, modifiers, types) for f in (["d:t", "s:t"] if forms == ["mov"] else forms)]
        yield head + ", ".join(good)
        for k in range(len(good)):
            yield from (head + ", ".join([*good[:k], o, *good[k + 1:]]) for o in OPERANDS)
        if forms == ["mov"]:
            yield from (f"{head}{a}, {b}" for a in OPERANDS for b in OPERANDS)
        yield head + ", ".join(good[:-1])
        yield head + ", ".join([*good, "%r1"])
        yield head.replace(".", ".frobnicate.", 1) + ", ".join(good)


def accepted(checker, lines):
    """Returns the lines that the translator takes."""
    out = []
    for line in lines:
        try:
            checker.check(read_instruction(line, 1))
            out.append(line)
        except PtxError:
            pass
    return out


def main():
    assembler, faults, count = Assembler(), 0, 0
    checker = ptx_forms.Checker(read_module(HEAD + "$L:\nret;\n}\n")[0])
    taken, others = [], []
    for name, forms in ptx_forms.FORMS.items():
        for pattern, operands in forms:
            lines = list(dict.fromkeys(instructions(name, pattern, operands)))
            ours = accepted(checker, lines)
            count += len(lines)
            taken += ours
            others += sorted(set(lines) - set(ours)) if "--narrower" in sys.argv else []
            if lines[0] not in ours:
                print(f"FAIL: an instruction of the form is not taken: {lines[0]}")
                faults += 1
    taken = list(dict.fromkeys(taken))
    for k, what in assembler.refused(taken).items():
        print(f"FAIL: ptxas does not take `{taken[k]}`: {what}")
        faults += 1
    print(f"{count} instructions of {sum(map(len, ptx_forms.FORMS.values()))} forms, {len(taken)} taken")
    if others:
        refused = assembler.refused(others)
        print("ptxas alone takes:", *(line for k, line in enumerate(others) if k not in refused), sep="\n")
    sys.exit(1 if faults else 0)


main()
