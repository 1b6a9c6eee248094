# SPDX-License-Identifier: MIT
"""The forms of PTX's instructions that the translator accepts: the modifiers in their order, and the types of the operands (PTX ISA,
sections 9.4 and 9.7). check() refuses each other instruction: an operand of another type or size, a constant of another kind, an
operand too many or too few, a modifier in another place. test_ptx_forms.py compares it with ptxas.

An operand of a form is a letter and a type. d: a register for the result; s: a register or a constant. D and S: the register may
also be wider than the type. r: a register, which "!" may negate; n: a register; i: a constant from 0 to a number; b: a register or a
constant from 0 to 255; p: an address; a: an address without brackets; l: a label; v: before D or S, as many operands in braces as
the instruction says. Types: t: that of the instruction; w: the one of twice the size; of: the last but one, for cvt. "d:pred|": two
results, of which the second may be missing."""
import re

from ptx_operands import SPECIAL
from ptx_parse import BYTES

_R, _OPERATION = "(rn|rz|rm|rp)", "(and|or|xor)"
_INT, _BITS = "[us](16|32|64)", "b(16|32|64)"
_ALL8 = "[us](8|16|32|64)"
_SCOPE = r"(cta|cluster|gpu|sys)\."
_PLACE = r"((global|shared(::cta)?|local)\.)?"
_ORDERED = rf"(relaxed|{{}})\.{_SCOPE}((global|shared(::cta)?)\.)?"
_WIDTH = r"((v2\.)?([bus](8|16|32|64)|f32|f64)|v4\.([bus](8|16|32)|f32))"
_WIDEST = r"(v8\.([bus]32|f32)|v4\.([bus]64|f64))"  # 32 bytes, in global memory
_ATOMIC = r"((relaxed|acquire|release|acq_rel)\.)?((cta|cluster|gpu|sys)\.)?((global|shared(::cta)?)\.)?"
_REDUCED = r"((and|or|xor)\.b(32|64)|add\.(u32|s32|u64|f32|f64)|(inc|dec)\.u32|(min|max)\.[us](32|64))"

# names, modifiers and types, operands
_FORMS = [
    ("add sub div rem min max", _INT, "d:t s:t s:t"),
    ("mul", f"(lo|hi).{_INT}", "d:t s:t s:t"),
    ("mul", "wide.[us](16|32)", "d:w s:t s:t"),
    ("mad", f"(lo|hi).{_INT}", "d:t s:t s:t s:t"),
    ("mad", "wide.[us](16|32)", "d:w s:t s:t s:w"),
    ("abs neg", "s(16|32|64)|(ftz.)?f32|f64", "d:t s:t"),
    ("add sub mul", f"({_R}.)?((ftz.)?(sat.)?f32|f64)", "d:t s:t s:t"),
    ("fma mad", f"{_R}.((ftz.)?(sat.)?f32|f64)", "d:t s:t s:t s:t"),
    ("div", f"{_R}.((ftz.)?f32|f64)|(approx|full).(ftz.)?f32", "d:t s:t s:t"),
    ("min max", "(ftz.)?(NaN.)?f32|f64", "d:t s:t s:t"),
    ("copysign", "f32|f64", "d:t s:t s:t"),
    ("rcp sqrt", f"(approx|{_R}).(ftz.)?f32|{_R}.f64", "d:t s:t"),
    ("rcp", "approx.ftz.f64", "d:t s:t"),
    ("rsqrt", "approx.(ftz.)?(f32|f64)", "d:t s:t"),
    ("sin cos lg2 ex2", "approx.(ftz.)?f32", "d:t s:t"),
    ("tanh", "approx.f32", "d:t s:t"),
    ("and or xor", f"{_BITS}|pred", "d:t s:t s:t"),
    ("not", f"{_BITS}|pred", "d:t s:t"),
    ("cnot", _BITS, "d:t s:t"),
    ("shl", _BITS, "d:t s:t s:u32"),
    ("shr", f"{_BITS}|{_INT}", "d:t s:t s:u32"),
    ("shf", "(l|r).(wrap|clamp).b32", "d:t s:t s:t s:u32"),
    ("lop3", "b32", "d:t s:t s:t s:t i:255"),
    ("prmt", "b32", "d:t s:t s:t s:t"),
    ("bfi", "b(32|64)", "d:t s:t s:t b:u32 b:u32"),
    ("bfe", "[us](32|64)", "d:t s:t b:u32 b:u32"),
    ("popc clz", "b(32|64)", "d:u32 s:t"),
    ("brev", "b(32|64)", "d:t s:t"),
    # Conversions. A number in 16 bits has a register of its size.
    ("cvt", f"{_ALL8}.{_ALL8}|sat.([us]8.[us](16|32|64)|[us]16.[us](32|64)|[us]32.[us]64)", "D:of S:t"),
    ("cvt", f"(rni|rzi|rmi|rpi).((ftz.)?(sat.)?{_ALL8}.f32|(sat.)?{_ALL8}.f64)", "D:of s:t"),
    ("cvt", f"(rni|rzi|rmi|rpi).(sat.)?{_ALL8}.f16", "D:of s:t"),
    ("cvt", f"{_R}.(sat.)?(f32|f64).{_ALL8}", "d:of S:t"),
    ("cvt", f"((rni|rzi|rmi|rpi).)?((ftz.)?(sat.)?f32.f32|(sat.)?f64.f64)|{_R}.(ftz.)?(sat.)?f32.f64|(ftz.)?(sat.)?f64.f32", "d:of s:t"),
    ("cvt", "(ftz.)?(sat.)?f32.f16|f64.f16|f32.bf16|rn.(ftz.)?f16.f32|rn.bf16.f32", "d:of s:t"),
    ("cvt", "rn.(f16x2|bf16x2).f32", "d:of s:t s:t"),
    # Comparisons. "!" may negate the predicate that a comparison is joined with.
    ("setp", f"(eq|ne).{_BITS}|(eq|ne|lt|le|gt|ge).{_INT}|(lo|ls|hi|hs).u(16|32|64)", "d:pred| s:t s:t"),
    ("setp", f"(eq|ne).{_OPERATION}.{_BITS}|(eq|ne|lt|le|gt|ge).{_OPERATION}.{_INT}|(lo|ls|hi|hs).{_OPERATION}.u(16|32|64)",
     "d:pred| s:t s:t r:pred"),
    ("setp", "((eq|ne|lt|le|gt|ge)u?|num|nan).((ftz.)?f32|f64)", "d:pred| s:t s:t"),
    ("setp", f"((eq|ne|lt|le|gt|ge)u?|num|nan).{_OPERATION}.((ftz.)?f32|f64)", "d:pred| s:t s:t r:pred"),
    ("selp", f"{_BITS}|{_INT}|f32|f64", "d:t s:t s:t n:pred"),
    # Moves, and memory. ptx_emit.py reads the vectors.
    ("mov", f"{_BITS}|{_INT}|f32|f64|pred", "mov"),
    ("ld", f"(weak.)?((param(::entry)?.)|{_PLACE}((ca|cg|cs|lu|cv).)?){_WIDTH}", "vD:t p"),
    ("ld", f"(volatile.{_PLACE}|{_ORDERED.format('acquire')}){_WIDTH}", "vD:t p"),
    ("ld", f"global.(((ca|cg|cs).)?nc.{_WIDTH}|(nc.)?{_WIDEST})", "vD:t p"),
    ("ldu", f"(global.)?{_WIDTH}", "vD:t p"),
    ("st", f"(weak.)?{_PLACE}((wb|cg|cs|wt).)?{_WIDTH}", "p vS:t"),
    ("st", f"(volatile.{_PLACE}|{_ORDERED.format('release')}){_WIDTH}", "p vS:t"),
    ("st", f"global.{_WIDEST}", "p vS:t"),
    ("atom", f"{_ATOMIC}({_REDUCED}|exch.b(32|64))", "d:t p s:t"),
    ("atom", f"{_ATOMIC}cas.b(32|64)", "d:t p s:t s:t"),
    # ptxas also takes the operation before the rest, as the kernels write it.
    ("atom", rf"add\.{_ATOMIC}(u32|s32|u64|f32|f64)", "d:t p s:t"),
    ("red", f"((relaxed|release).)?((cta|cluster|gpu|sys).)?((global|shared(::cta)?).)?{_REDUCED}", "p s:t"),
    ("cvta", "to.(global|shared(::cta)?|local).u64", "d:t s:t"),
    ("cvta", "(global|shared(::cta)?|local).u64", "d:t a:t"),
    # Control, warps.
    ("bra", "(uni)?", "l"),
    ("ret", "(uni)?", ""),
    ("exit trap", "", ""),
    ("bar", "(cta.)?sync", "i:15"),
    ("barrier", "(cta.)?sync(.aligned)?", "i:15"),
    ("bar", "warp.sync", "s:u32"),
    ("membar", "cta|gl|sys", ""),
    ("fence", f"(sc|acq_rel).{_SCOPE[:-2]}", ""),
    ("griddepcontrol", "launch_dependents|wait", ""),
    ("shfl", "sync.(up|down|bfly|idx).b32", "d:t| s:t s:u32 s:u32 s:u32"),
    ("vote", "sync.(all|any|uni).pred", "d:t r:t s:u32"),
    ("vote", "sync.ballot.b32", "d:t r:pred s:u32"),
]
FORMS = {}
for _names, _pattern, _operands in _FORMS:
    # A "." of a pattern is one of the text.
    _compiled = re.compile(re.sub(r"(?<!\\)\.", r"\.", _pattern))
    for _name in _names.split():
        FORMS.setdefault(_name, []).append((_compiled, _operands.split()))


class Checker:
    """Checks the instructions of an entry."""

    def __init__(self, entry):
        self.registers = entry.registers
        self.spaces = {**dict.fromkeys((p.name for p in entry.parameters), "param"), **dict.fromkeys((v.name for v in entry.shared), "shared"),
                       **dict.fromkeys((v.name for v in entry.local), "local")}
        self.labels = {s for s in entry.body if isinstance(s, str)}
        self.at = None

    def check(self, i):
        """Raises a PtxError if the instruction has no form that fits."""
        self.at = i
        if i.guard:
            self.register(i.guard.removeprefix("!"), "pred", False)
        if i.name not in FORMS:
            raise i.error("an instruction that the translator does not know")
        modifiers = ".".join(i.parts)
        operands = next((o for pattern, o in FORMS[i.name] if pattern.fullmatch(modifiers)), None)
        if operands is None:
            raise i.error(f"a modifier or a type that the translator does not know: {modifiers or 'none'}")
        self.types = {"t": i.type, "of": (i.parts[-2:] or [""])[0], "w": f"{i.type[:1]}{16 * BYTES.get(i.type, 0)}"}
        if operands == ["mov"]:
            return self.move(i)
        if len(operands) != len(i.operands):
            raise i.error(f"expected {len(operands)} operands, got {len(i.operands)}")
        for form, text in zip(operands, i.operands):
            self.operand(form, text)

    def operand(self, form, text):
        letter, _, name = form.partition(":")
        kind = self.types.get(name.rstrip("|"), name.rstrip("|"))
        if letter.startswith("v"):
            count = next((int(m[1:]) for m in self.at.parts if re.fullmatch(r"v\d", m)), 0)
            for part in self.vector(text, count) if count else [text]:
                if not (count and part == "_" and letter == "vD"):
                    self.operand(f"{letter[1:]}:{kind}", part)
        elif letter in "dD":
            names = [n.strip() for n in text.split("|")] if name.endswith("|") else [text]
            if len(names) > 2:
                raise self.at.error(f"expected 1 or 2 results, got {len(names)}")
            self.register(names[0], kind, letter == "D")
            for second in names[1:]:
                self.register(second, "pred", False)
        elif letter == "i" or (letter == "b" and text not in self.registers):
            if not re.fullmatch(r"0|[1-9]\d*|0[xX][0-9a-fA-F]+", text) or int(text, 0) > (255 if letter == "b" else int(name)):
                raise self.at.error(f"a constant that the translator does not know: {text}")
        elif letter in "sS" and text not in self.registers:
            self.constant(text, kind)
        elif letter in "sSrnb":
            self.register(text.removeprefix("!") if letter == "r" else text, kind, letter == "S")
        elif letter == "l":
            if text not in self.labels:
                raise self.at.error(f"a branch that the translator does not know: {text}")
        elif letter == "a":
            if text not in self.spaces:
                self.operand(f"s:{kind}", text)
            elif self.spaces[text] != self.space():
                raise self.at.error("an address of another space than the instruction's")
        elif letter == "p":
            self.address(text)

    def register(self, text, kind, wider):
        """kind: the type that the instruction wants. wider: ld, st and cvt take a register that is wider."""
        own = self.registers.get(text)
        if own is None:
            raise self.at.error(f"an operand that the translator does not know: {text}")
        real, bits = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2"), own.startswith("b") and not own.startswith("bf")
        if "pred" in (own, kind):
            fits = own == kind
        elif kind in real or own in real:
            bits = bits or (kind.startswith("b") and kind not in real)
            fits = (own == kind or bits) and BYTES[own] == BYTES[kind]
        else:
            fits = BYTES[own] == BYTES[kind] or (wider and BYTES[own] > BYTES[kind])
        if not fits:
            raise self.at.error(f"{text} has the type .{own}, the instruction takes .{kind}")

    def constant(self, text, kind):
        size = BYTES.get(kind, 0)
        if m := re.fullmatch(r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}", text):
            fits = kind in (("f32", "b32") if len(m[0]) == 10 else ("f64", "b64"))
        elif re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|0|[1-9]\d*)U?", text):
            fits = kind[0] in "bus" and kind not in ("bf16", "bf16x2") and -(1 << 8 * size - 1) <= int(text.rstrip("U"), 0) < 1 << 8 * size
        else:
            raise self.at.error(f"an operand that the translator does not know: {text}")
        if not fits:
            raise self.at.error(f"the constant {text} is none of the type .{kind}")

    def vector(self, text, count):
        parts = [t.strip() for t in text[1:-1].split(",")] if text.startswith("{") and text.endswith("}") else [text]
        if len(parts) != count:
            raise self.at.error(f"expected {count} values in braces, got {text}")
        return parts

    def move(self, i):
        if len(i.operands) != 2:
            raise i.error(f"expected 2 operands, got {len(i.operands)}")
        (to, source), kind = i.operands, i.type
        for text, other in ((to, source), (source, to)):
            if text.startswith("{"):
                parts = [t.strip() for t in text.strip("{} ").split(",")]
                if kind not in ("b32", "b64") or len(parts) not in (2, 4) or (kind, len(parts)) == ("b32", 4):
                    raise i.error(f"a vector that the translator does not know: {text}")
                for part in self.vector(text, len(parts)):
                    if text is not to or part != "_":
                        self.register(part, f"b{8 * BYTES[kind] // len(parts)}", False)
                return self.register(other, kind, False)
        self.register(to, kind, False)
        if source in SPECIAL:
            if kind not in ("u32", "s32", "b32"):
                raise i.error(f"{source} has 32 bits, the instruction takes .{kind}")
        elif source in self.spaces:
            if kind not in ("u64", "s64", "b64", "u32", "s32", "b32") or (BYTES[kind] == 4 and self.spaces[source] != "shared"):
                raise i.error(f"the address of {source}, the instruction takes .{kind}")
        elif kind == "pred" and source not in self.registers:
            self.constant(source, "s8")
        else:
            self.operand(f"s:{kind}", source)

    def space(self):
        return next((p.split("::")[0] for p in self.at.parts if p.split("::")[0] in ("param", "global", "shared", "local")), "generic")

    def address(self, text):
        m = re.fullmatch(r"\[\s*([%\w$]+)\s*(?:\+\s*-?\d+\s*)?\]", text)
        if m is None:
            raise self.at.error(f"an address that the translator does not know: {text}")
        space = self.space()
        if m[1] in self.spaces:
            if self.spaces[m[1]] != space:
                raise self.at.error("an address of another space than the instruction's")
            return
        own = self.registers.get(m[1], "pred")
        if own[0] not in "bus" or own in ("bf16", "bf16x2") or BYTES[own] not in ((4, 8) if space == "shared" else (8,)):
            raise self.at.error(f"{m[1]} has the type .{own}, which is no address in the space {space}")
