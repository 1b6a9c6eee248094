# SPDX-License-Identifier: MIT
"""C++ expressions for PTX's arithmetic, logic and conversions (PTX ISA, sections 9.7.1 to 9.7.9), over ptx_runtime.hpp. ptx_forms.py
has checked the modifiers, the types and the operands."""
from ptx_operands import C_TYPE

FLOATS = ("f32", "f64")
ROUNDING = {"rn": "FE_TONEAREST", "rz": "FE_TOWARDZERO", "rm": "FE_DOWNWARD", "rp": "FE_UPWARD"}


def _operands(f, i, kind=None):
    return [f.value(o, kind or i.type) for o in i.operands[1:]]


def _unsigned(kind):
    """Returns the type in which sums and products of this type wrap around."""
    return "u" + kind[1:]


def _finish(i, text):
    """Applies .ftz and .sat to a result in f32."""
    if "ftz" in i.parts:
        text = f"flush({text})"
    return f"saturate({text})" if "sat" in i.parts else text


def _inputs(i, values):
    return [f"flush({v})" for v in values] if "ftz" in i.parts else values


def _rounded(f, i, operation):
    """A sum, product, quotient or fma in floating point, which rounds as the instruction says."""
    values = ", ".join(_inputs(i, _operands(f, i)))
    mode = next((ROUNDING[m] for m in i.parts if m in ROUNDING), "FE_TONEAREST")
    text = f"{operation}({values})" if mode == "FE_TONEAREST" else f"in_mode<{mode}>({operation}<{C_TYPE[i.type]}>, {values})"
    return _finish(i, text)


def _sum(name, sign):
    def write(f, i):
        if i.type in FLOATS:
            return _rounded(f, i, name)
        a, b = _operands(f, i, _unsigned(i.type))
        return f"({C_TYPE[_unsigned(i.type)]})({a} {sign} {b})"
    return write


def _product(f, i, values):
    """Returns the product of two integers, and its type: low or high half, or both."""
    kind = i.type
    double = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}.get(kind)
    a, b = values
    if "lo" in i.parts:
        u = _unsigned(kind)
        return f"({u})((u64){f.value(i.operands[1], u)} * {f.value(i.operands[2], u)})", u
    if "wide" in i.parts:
        return f"({double})(({double}){a} * ({double}){b})", double
    return f"high<{C_TYPE[kind]}>({a}, {b})", kind


def multiply(f, i):
    if i.type in FLOATS:
        return _rounded(f, i, "mul")
    return _product(f, i, _operands(f, i))[0]


def multiply_add(f, i):
    if i.type in FLOATS:
        return fused(f, i)
    text, kind = _product(f, i, [f.value(o, i.type) for o in i.operands[1:3]])
    u = _unsigned(kind)
    return f"({u})((u64)({u}){text} + {f.value(i.operands[3], u)})"


def fused(f, i):
    return _rounded(f, i, "fma")


def divide(f, i):
    if i.type not in FLOATS:
        return f"quotient<{C_TYPE[i.type]}>({', '.join(_operands(f, i))})"
    if "approx" in i.parts or "full" in i.parts:
        how = "div_approx" if "approx" in i.parts else "div_full"
        return _finish(i, f"{how}({', '.join(_inputs(i, _operands(f, i)))})")
    return _rounded(f, i, "div")


def remainder(f, i):
    return f"remainder<{C_TYPE[i.type]}>({', '.join(_operands(f, i))})"


def _extreme(name):
    def write(f, i):
        if i.type in FLOATS:
            values = _inputs(i, _operands(f, i))
            text = f"{name}_number({', '.join(values)}, {'true' if 'NaN' in i.parts else 'false'})"
            return _finish(i, text)
        a, b = _operands(f, i)
        return f"({a} {'<' if name == 'min' else '>'} {b} ? {a} : {b})"
    return write


def _sign(name):
    def write(f, i):
        return _finish(i, f"{name}({_inputs(i, _operands(f, i))[0]})")
    return write


def _logic(sign):
    def write(f, i):
        a, b = _operands(f, i)
        return f"({C_TYPE[i.type]})({a} {sign} {b})"
    return write


def invert(f, i):
    return f"!{_operands(f, i)[0]}" if i.type == "pred" else f"({C_TYPE[i.type]})~{_operands(f, i)[0]}"


def is_zero(f, i):
    return f"({C_TYPE[i.type]})({_operands(f, i)[0]} == 0)"


def _shift(name):
    def write(f, i):
        return f"{name}<{C_TYPE[i.type]}>({f.value(i.operands[1], i.type)}, {f.value(i.operands[2], 'u32')})"
    return write


def funnel_shift(f, i):
    return f"funnel_{i.parts[0]}({', '.join(_operands(f, i, 'u32'))}, {'true' if i.parts[1] == 'wrap' else 'false'})"


def _function(name, kinds=None):
    """A function of ptx_runtime.hpp. kinds: the types of the operands if they are not the instruction's."""
    def write(f, i):
        values = [f.value(o, (kinds or {}).get(k, i.type)) for k, o in enumerate(i.operands[1:])]
        return f"{name}<{C_TYPE[i.type]}>({', '.join(values)})"
    return write


def _approximate(name):
    def write(f, i):
        return _finish(i, f"{name}({_inputs(i, _operands(f, i))[0]})")
    return write


def reciprocal(f, i):
    if "approx" in i.parts:
        if i.type == "f64":
            return f"rcp_gross({_operands(f, i)[0]})"
        return _approximate("rcp_approx")(f, i)
    value = _inputs(i, _operands(f, i))[0]
    mode = next((ROUNDING[m] for m in i.parts if m in ROUNDING), "FE_TONEAREST")
    to = C_TYPE[i.type]
    return _finish(i, f"div(({to})1, {value})" if mode == "FE_TONEAREST" else f"in_mode<{mode}>(div<{to}>, ({to})1, {value})")


def reciprocal_root(f, i):
    if i.type != "f64":
        return _approximate("rsqrt_approx")(f, i)
    return f"{'rsqrt_gross' if 'ftz' in i.parts else 'rsqrt_f64'}({_operands(f, i)[0]})"


def square_root(f, i):
    if "approx" in i.parts:
        return _approximate("sqrt_approx")(f, i)
    return _rounded(f, i, "square_root")


def convert(f, i):
    """cvt: between integers and floats of any size."""
    to, source = i.parts[-2:]
    modifiers = i.parts[:-2]
    if to in ("f16x2", "bf16x2"):
        high, low = _operands(f, i, "f32")
        one = "to_f16" if to == "f16x2" else "to_bf16"
        return f"(u32)((u32){one}({high}) << 16 | {one}({low}))"
    value = f.value(i.operands[1], source)
    mode = next((m for m in modifiers if m not in ("ftz", "sat")), "")
    if source in ("f16", "bf16"):
        value, source = f"from_{source}({value})", "f32"
    elif "ftz" in modifiers and source == "f32":
        value = f"flush({value})"
    real, from_real = to in ("f16", "bf16", *FLOATS), source in FLOATS
    if not real:
        if not from_real:
            return f"saturated<{C_TYPE[to]}>({value})" if "sat" in modifiers else f"({C_TYPE[to]})({value})"
        return f"to_integer<{C_TYPE[to]}, {ROUNDING[mode[:-1]]}>({value})"
    return _convert_to_real(to, source, value, mode, modifiers)


def _convert_to_real(to, source, value, mode, modifiers):
    if mode.endswith("i"):
        text = f"to_whole<{ROUNDING[mode[:-1]]}>({value})"
    elif to in ("f16", "bf16"):
        return f"to_{to}({value})"
    elif mode in ("", "rn"):
        text = f"({C_TYPE[to]})({value})"
    else:
        text = f"in_mode<{ROUNDING[mode]}>(cast<{C_TYPE[to]}, {C_TYPE[source]}>, {value})"
    if "ftz" in modifiers and to == "f32":
        text = f"flush({text})"
    return f"saturate({text})" if "sat" in modifiers else text


ARITHMETIC = {
    "add": _sum("add", "+"), "sub": _sum("sub", "-"), "mul": multiply, "mad": multiply_add, "fma": fused, "div": divide,
    "rem": remainder, "min": _extreme("min"), "max": _extreme("max"), "abs": _sign("absolute"), "neg": _sign("negative"),
    "and": _logic("&"), "or": _logic("|"), "xor": _logic("^"), "not": invert, "cnot": is_zero,
    "shl": _shift("shift_left"), "shr": _shift("shift_right"), "shf": funnel_shift,
    "prmt": _function("permute"), "bfi": _function("insert_bits", {2: "u32", 3: "u32"}),
    "bfe": _function("extract_bits", {1: "u32", 2: "u32"}), "lop3": _function("logic_of_three"),
    "popc": _function("count_ones"), "clz": _function("leading_zeros"),
    "brev": _function("reversed_bits"), "copysign": _function("with_sign_of"),
    "rcp": reciprocal, "sqrt": square_root, "rsqrt": reciprocal_root, "ex2": _approximate("ex2_approx"),
    "lg2": _approximate("lg2_approx"), "sin": _approximate("sin_approx"), "cos": _approximate("cos_approx"),
    "tanh": _approximate("tanh_approx"), "cvt": convert,
}
