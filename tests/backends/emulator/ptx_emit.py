# SPDX-License-Identifier: MIT
"""Writes a PTX entry as a C++ function over ptx_runtime.hpp. ptx_forms.py checks each instruction first: one without a form that fits
is an error with its line."""
import re

from ptx_arithmetic import ARITHMETIC
from ptx_forms import Checker
from ptx_operands import C_TYPE, SPECIAL, register_type
from ptx_parse import BYTES, Entry, Instruction

SPACES = ("param", "global", "shared", "local")

class Function:
    """One entry. Its methods return the C++ text of operands and statements."""

    GAP = 64  # bytes between shared variables; an access to them is out of bounds

    def __init__(self, entry: Entry):
        self.entry = entry
        self.parameters = {p.name: i for i, p in enumerate(entry.parameters)}
        self.shared, self.layout, top = {}, [], 0
        for v in entry.shared:
            top = -(-top // v.align) * v.align
            self.shared[v.name] = top
            self.layout.append((top, v.bytes))
            top += v.bytes + self.GAP
        self.shared_bytes = top
        self.local = {v.name: v for v in entry.local}
        self.checker = Checker(entry)
        self.at = None  # the current instruction
        self.place = 0  # its number in the entry

    # Operands.
    def register(self, text):
        if text not in self.entry.registers:
            raise self.at.error(f"{text} is no register of the entry")
        return "R_" + re.sub(r"\W", "_", text.lstrip("%"))

    def value(self, text, kind):
        """Returns an operand as a value of the PTX type `kind`."""
        to = C_TYPE.get(kind)
        if to is None:
            raise self.at.error(f"a type that the translator does not know: {kind}")
        if text in self.entry.registers:
            return f"as<{to}>({self.register(text)})"
        if text.startswith("!") and kind == "pred":
            return f"!{self.register(text[1:])}"
        if text in SPECIAL:
            return f"as<{to}>((u32)({SPECIAL[text]}))"
        if m := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", text):
            return f"as<{to}>(0x{m[1]}u)"
        if m := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", text):
            return f"as<{to}>(0x{m[1]}ull)"
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", text):
            number = int(text.rstrip("U"), 0) & (1 << 64) - 1
            return f"(0x{number:x}ull != 0)" if kind == "pred" else f"as<{to}>(0x{number:x}ull)"
        if text in self.shared:
            return f"as<{to}>((u64){self.shared[text]})"
        if text in self.local:
            return f"as<{to}>((u64)L_{text.strip('_$')})"
        if text in self.parameters:
            return f"as<{to}>((u64){self.parameters[text] + 1} << 32)"  # parameter_at() reads such an address
        raise self.at.error(f"an operand that the translator does not know: {text}")

    def put(self, text, expression):
        """Returns an assignment to a register, which may be wider than the value. "_" takes nothing."""
        if text == "_":
            return f"(void)({expression});"
        return f"{self.register(text)} = wide<{register_type(self.entry.registers[text])}>({expression});"

    def values(self, text, kind):
        """Returns the parts of a vector operand."""
        return [self.value(t.strip(), kind) for t in text.strip("{} ").split(",")]

    def address(self, text):
        """Returns the space that the address names, "" if it does not, and the address."""
        m = re.fullmatch(r"\[\s*([%\w$]+)\s*(?:\+\s*)?(-?\d+)?\s*\]", text)
        if m is None:
            raise self.at.error(f"an address that the translator does not know: {text}")
        base, offset = m[1], int(m[2] or 0)
        if base in self.parameters:
            return "param", (self.parameters[base], offset)
        if base in self.shared:
            return "shared", f"(u64){self.shared[base] + offset}"
        return "", f"{self.value(base, 'u64')} + (s64){offset}"

    # Statements.
    def statement(self, i: Instruction):
        self.at = i
        self.checker.check(i)
        text = STATEMENTS[i.name](self, i)
        if not i.guard:
            return text
        negative = i.guard.startswith("!")
        return f"if ({'!' if negative else ''}{self.register(i.guard.lstrip('!'))}) {text}"

    def text(self, name):
        registers = [f"  {register_type(t)} {self._name(r)} = 0;\n" for r, t in self.entry.registers.items()]
        local = [f"  alignas({v.align}) u8 L_{v.name.strip('_$')}[{v.bytes}];\n" for v in self.entry.local]
        body = []
        for self.place, s in enumerate(self.entry.body):
            body.append(f"L_{s.replace('$', 'L')}:;\n" if isinstance(s, str) else f"  {self.statement(s)}\n")
        sizes = ", ".join(str(p.bytes) for p in self.entry.parameters)
        local.append(f"  static const u32 sizes[] = {{{sizes}{', ' if sizes else ''}0}};\n")
        return f"static void {name}(void** a) {{\n{''.join(registers)}{''.join(local)}{''.join(body)}}}\n"

    @staticmethod
    def _name(r):
        return "R_" + re.sub(r"\W", "_", r.lstrip("%"))


STRONG = {"volatile", "relaxed", "acquire", "release"}  # no race with other accesses of this kind or with atomics


def _access(f, i, operand):
    """Returns space, address, type, its bytes, the number of values, and the beginning of the access's name."""
    modifiers = i.parts[:-1]
    count = next((int(m[1]) for m in modifiers if re.fullmatch(r"v\d", m)), 1)
    space = next((m.split("::")[0] for m in modifiers if m.split("::")[0] in SPACES), "generic")
    _, address = f.address(operand)
    how = "acquire_" if "acquire" in modifiers and {"gpu", "sys"} & set(modifiers) else "strong_" if STRONG & set(modifiers) else ""
    return space, address, C_TYPE[i.type], BYTES[i.type], count, how


def _marked(f, space):
    """Returns the statement before an access that may be to global memory: it tells the emulator which instruction makes it."""
    return f"M->instruction = {f.place}u; " if space in ("global", "generic") else ""


def _parts(text):
    return [t.strip() for t in text.strip("{} ").split(",")]


def load(f, i):
    space, address, to, size, count, how = _access(f, i, i.operands[1])
    names = _parts(i.operands[0])
    if space == "param" and isinstance(address, str):
        lines = " ".join(f.put(n, f"at<{to}>(p, {k})") for k, n in enumerate(names))
        return f"{{ const u8* p = parameter_at(a, sizes, {address}, {size}, {count}); {lines} }}"
    if space == "param":
        number, offset = address
        return "{ " + " ".join(f.put(n, f"parameter<{to}>(a[{number}], {offset + k * size})") for k, n in enumerate(names)) + " }"
    lines = " ".join(f.put(n, f"at<{to}>(p, {k})") for k, n in enumerate(names))
    # A thread that reads so may wait for what another block does.
    others = "M->yield(); " if how == "acquire_" else ""
    return f"{{ {others}{_marked(f, space)}const u8* p = {space}({address}, {size}, {count}, {how}reads); {lines} }}"


def store(f, i):
    space, address, to, size, count, how = _access(f, i, i.operands[0])
    lines = " ".join(f"set<{to}>(p, {k}, {f.value(n, i.type)});" for k, n in enumerate(_parts(i.operands[1])))
    return f"{{ {_marked(f, space)}u8* p = {space}({address}, {size}, {count}, {how}writes); {lines} }}"


ATOMICS = {"add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"}


def atomic(f, i):
    """atom and red: another thread never runs between the load and the store."""
    modifiers = i.parts[:-1]
    operation = next(m for m in modifiers if m in ATOMICS)
    space = next((m.split("::")[0] for m in modifiers if m.split("::")[0] in ("global", "shared")), "generic")
    operands = (["_"] if i.name == "red" else []) + i.operands
    to, (_, address) = C_TYPE[i.type], f.address(operands[1])
    values = ", ".join(f.value(o, i.type) for o in operands[2:])
    text = f.put(operands[0], "before")
    how = "release_updates" if "release" in modifiers and {"gpu", "sys"} & set(modifiers) else "updates"
    return (f"{{ {_marked(f, space)}u8* p = {space}({address}, {BYTES[i.type]}, 1, {how}); const {to} before = at<{to}>(p, 0); "
            f"set<{to}>(p, 0, atomic_{operation}<{to}>(before, {values})); {text} }}")


def move(f, i):
    to, source = i.operands
    size = 8 * BYTES.get(i.type, 0)
    if to.startswith("{"):
        names = [n.strip() for n in to.strip("{} ").split(",")]
        part = size // len(names)
        pieces = " ".join(f.put(n, f"(u{part})(v >> {part * k})") for k, n in enumerate(names))
        return f"{{ const u64 v = {f.value(source, f'u{size}')}; {pieces} }}"
    if source.startswith("{"):
        names = source.strip("{} ").split(",")
        part = size // len(names)
        return f.put(to, f"(u{size})(" + " | ".join(f"(u64){f.value(n.strip(), f'u{part}')} << {part * k}"
                                                    for k, n in enumerate(names)) + ")")
    return f.put(to, f.value(source, i.type))


def to_generic(f, i):
    """cvta: the generic address of a global address is the address; shared memory has a window (ptx_runtime.hpp)."""
    value = f.value(i.operands[1], "u64")
    if "shared" in (p.split("::")[0] for p in i.parts):
        value = f"{value} - shared_window" if "to" in i.parts else f"{value} + shared_window"
    return f.put(i.operands[0], value)


def branch(f, i):
    return f"goto L_{i.operands[0].replace('$', 'L')};"


def leave(f, i):
    return "return;"


def trap(f, i):
    return 'M->fault("a trap", 0);'


def barrier(f, i):
    """bar.sync 0 and bar.warp.sync. A barrier for a part of the block is an error."""
    if i.parts == ["warp", "sync"]:
        return f"M->warp_sync({f.value(i.operands[0], 'u32')});"
    if i.operands != ["0"]:
        raise i.error("a barrier that the translator does not know")
    return "M->sync();"


def order_memory(f, i):
    """Fences order memory and wait for no thread. The emulator runs the threads in an order, so they do nothing here, and the
    race detector ignores them."""
    return "{ }"


def dependency(f, i):
    """griddepcontrol: the emulator checks that a kernel which starts early waits before it accesses global memory."""
    return f"M->dependency({'true' if i.parts == ['wait'] else 'false'});"


def shuffle(f, i):
    to, _, predicate = i.operands[0].partition("|")
    a, b, c, mask = (f.value(o, "u32") for o in i.operands[1:])
    text = f"const Shuffled r = shuffle_{i.parts[1]}({a}, {b}, {c}, {mask}); {f.put(to.strip(), 'r.value')}"
    return "{ " + text + (" " + f.put(predicate.strip(), "r.valid") if predicate else "") + " }"


def vote(f, i):
    return f.put(i.operands[0], f"vote_{i.parts[1]}({f.value(i.operands[1], 'pred')}, {f.value(i.operands[2], 'u32')})")


COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}


def comparison(i, a, b):
    """Returns the text of a comparison: with a NaN, the plain ones are false and those with the letter u are true."""
    how, real = i.parts[0], i.type[0] == "f"
    if real and how in ("num", "nan"):
        return f"{'!' if how == 'num' else ''}(is_nan({a}) || is_nan({b}))"
    if real and how.endswith("u") and how[:-1] in COMPARE:
        return f"(is_nan({a}) || is_nan({b}) || {a} {COMPARE[how[:-1]]} {b})"
    return f"({a} < {b} || {a} > {b})" if real and how == "ne" else f"({a} {COMPARE[how]} {b})"


def set_predicate(f, i):
    combine = {"and": "&&", "or": "||", "xor": "!="}
    logic = next((m for m in i.parts[1:-1] if m in combine), None)
    a, b = f.value(i.operands[1], i.type), f.value(i.operands[2], i.type)
    if "ftz" in i.parts:
        a, b = f"flush({a})", f"flush({b})"
    text = comparison(i, a, b)
    negative = f"!{text}"
    if logic:
        other = f.value(i.operands[3], "pred")
        text, negative = f"({text} {combine[logic]} {other})", f"({negative} {combine[logic]} {other})"
    names = i.operands[0].split("|")
    second = f" {f.put(names[1].strip(), 'q')}" if len(names) > 1 else ""
    return f"{{ const bool p = {text}, q = {negative}; {f.put(names[0].strip(), 'p')}{second} }}"


def select(f, i):
    a, b = f.value(i.operands[1], i.type), f.value(i.operands[2], i.type)
    return f.put(i.operands[0], f"{f.value(i.operands[3], 'pred')} ? {a} : {b}")


def arithmetic(f, i):
    return f.put(i.operands[0], ARITHMETIC[i.name](f, i))


STATEMENTS = {
    "ld": load, "ldu": load, "st": store, "atom": atomic, "red": atomic, "mov": move, "cvta": to_generic, "bra": branch,
    "ret": leave, "exit": leave, "trap": trap, "bar": barrier, "barrier": barrier, "membar": order_memory, "fence": order_memory,
    "griddepcontrol": dependency, "shfl": shuffle, "vote": vote, "setp": set_predicate, "selp": select,
    **dict.fromkeys(ARITHMETIC, arithmetic),
}
