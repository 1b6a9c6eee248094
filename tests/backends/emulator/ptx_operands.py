# SPDX-License-Identifier: MIT
"""PTX's types and special registers, and their C++ in ptx_runtime.hpp."""

# The type of a value. f16 and bf16 are bits.
C_TYPE = {"pred": "bool", "b8": "u8", "u8": "u8", "s8": "s8", "b16": "u16", "u16": "u16", "s16": "s16", "f16": "u16", "bf16": "u16",
          "b32": "u32", "u32": "u32", "s32": "s32", "f32": "float", "f16x2": "u32", "bf16x2": "u32", "b64": "u64", "u64": "u64",
          "s64": "s64", "f64": "double"}
# Special registers, which have 32 bits.
SPECIAL = {f"%{ptx}.{axis}": f"M->{field}.{axis}"
           for ptx, field in (("tid", "thread"), ("ctaid", "block"), ("ntid", "threads"), ("nctaid", "blocks")) for axis in "xyz"}
SPECIAL |= {"%laneid": "lane()", "%lanemask_lt": "(1u << lane()) - 1", "WARP_SZ": "32u"}


def register_type(ptx):
    """Returns the type of a register's variable: bits without a sign, or bool."""
    return {"bool": "bool", "u8": "u8", "s8": "u8", "u16": "u16", "s16": "u16", "u32": "u32", "s32": "u32", "float": "u32", "u64": "u64",
            "s64": "u64", "double": "u64"}[C_TYPE[ptx]]
