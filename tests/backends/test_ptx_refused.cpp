// SPDX-License-Identifier: MIT
// Tests that the translator from PTX to C++ (emulator/ptx_forms.py) refuses instructions that it does not know, and
// operands that an instruction does not take. test_ptx_forms.py compares it with NVIDIA's assembler.
#include <algorithm>
#include <string>
#include <vector>

#include "backends/ptx_kernels.hpp"

using namespace tutti;

TEST_CASE("PTX that the translator does not know is refused, and the message gives the line") {
  struct Refused {
    const char *line, *why;
  };
  const std::vector<Refused> list{
      {"frobnicate.f32 %f1, %f2;", "an instruction that the translator does not know"},
      {"add.rn.relu.f32 %f1, %f2, %f3;", "a modifier or a type that the translator does not know: rn.relu.f32"},
      {"add.f16 %rs1, %rs2, %rs3;", "a modifier or a type that the translator does not know: f16"},
      {"ld.global.L3::hint.u32 %r1, [%rd20];",
       "a modifier or a type that the translator does not know: global.L3::hint"},
      {"setp.like.f32 %p1, %f1, %f2;", "a modifier or a type that the translator does not know: like.f32"},
      {"cvt.s32.f32 %r1, %f1;", "a modifier or a type that the translator does not know: s32.f32"},
      {"bar.sync 1, 64;", "expected 1 operands, got 2"},
      {"bar.sync 1;", "a barrier that the translator does not know"},
      {"mov.u32 %r1, %clock;", "an operand that the translator does not know: %clock"},
      {"bra $L__nowhere;", "a branch that the translator does not know: $L__nowhere"},
      {"add.u32 %r1, %r2, %r99;", "an operand that the translator does not know: %r99"},
      {".align 4;", "a statement that the translator does not know"},
      {"st.const.u32 [%rd20], %r1;", "a modifier or a type that the translator does not know: const.u32"},
      // Modifiers in another place or together, as no instruction has them.
      {"mul.lo.hi.u32 %r1, %r2, %r3;", "a modifier or a type that the translator does not know: lo.hi.u32"},
      {"fma.f32 %f1, %f2, %f3, %f4;", "a modifier or a type that the translator does not know: f32"},
      {"min.NaN.f64 %fd1, %fd2, %fd3;", "a modifier or a type that the translator does not know: NaN.f64"},
      {"cvt.sat.u64.u8 %rd1, %rs1;", "a modifier or a type that the translator does not know: sat.u64.u8"},
      {"setp.lt.b32 %p1, %r1, %r2;", "a modifier or a type that the translator does not know: lt.b32"},
      // Operands of another type or size.
      {"add.u32 %r1, %r2, %rd3;", "%rd3 has the type .b64, the instruction takes .u32"},
      {"add.f32 %f1, %f2, %rd3;", "%rd3 has the type .b64, the instruction takes .f32"},
      {"add.s32 %r1, %r2, %f3;", "%f3 has the type .f32, the instruction takes .s32"},
      {"mul.wide.s32 %r1, %r2, %r3;", "%r1 has the type .b32, the instruction takes .s64"},
      {"shl.b64 %rd1, %rd2, %rd3;", "%rd3 has the type .b64, the instruction takes .u32"},
      {"popc.b64 %rd1, %rd2;", "%rd1 has the type .b64, the instruction takes .u32"},
      {"setp.eq.s32 %r1, %r2, %r3;", "%r1 has the type .b32, the instruction takes .pred"},
      {"selp.b32 %r1, %r2, %r3, %r4;", "%r4 has the type .b32, the instruction takes .pred"},
      {"@%r1 mov.u32 %r2, 7;", "%r1 has the type .b32, the instruction takes .pred"},
      {"cvt.rn.bf16.f32 %r1, %f1;", "%r1 has the type .b32, the instruction takes .bf16"},
      {"cvt.f32.f16 %f1, %f2;", "%f2 has the type .f32, the instruction takes .f16"},
      {"cvt.u64.u32 %rd1, %rs1;", "%rs1 has the type .b16, the instruction takes .u32"},
      {"ld.global.u64 %r1, [%rd20];", "%r1 has the type .b32, the instruction takes .u64"},
      {"ld.global.f32 %rd1, [%rd20];", "%rd1 has the type .b64, the instruction takes .f32"},
      {"ld.global.v2.u32 {%r1, %r2, %r3}, [%rd20];", "expected 2 values in braces"},
      {"ld.global.v4.f64 {%fd1, %fd2, %fd3}, [%rd20];", "expected 4 values in braces"},
      {"ld.global.u32 %r1, [%f1];", "%f1 has the type .f32, which is no address"},
      {"ld.global.u32 %r1, [%r2];", "%r2 has the type .b32, which is no address"},
      {"atom.global.add.u32 %r1, [%rd20], %rd1;", "%rd1 has the type .b64, the instruction takes .u32"},
      {"mov.b64 {%r1, %rs1}, %rd1;", "%rs1 has the type .b16, the instruction takes .b32"},
      {"mov.u64 %rd1, %tid.x;", "%tid.x has 32 bits, the instruction takes .u64"},
      {"add.u32 %r1, %r2, %tid.x;", "an operand that the translator does not know: %tid.x"},
      {"add.f32 %f1, %f2, 1;", "the constant 1 is none of the type .f32"},
      {"add.f64 %fd1, %fd2, 0f3F800000;", "the constant 0f3F800000 is none of the type .f64"},
      {"add.s32 %r1, %r2, 0x100000000;", "the constant 0x100000000 is none of the type .s32"},
      {"add.u32 _, %r1, %r2;", "an operand that the translator does not know: _"},
      {"add.u32 %r1, %r2;", "expected 3 operands, got 2"},
      {"ret 1;", "expected 0 operands, got 1"}};
  for (const auto& refused : list) {
    std::vector<char> code;
    const std::string module = testing::entry(std::string("mov.u32 %r1, 0;\n") + refused.line);
    const std::string log = testing::log_of(module, code);
    const auto before = module.substr(0, module.find(refused.line));
    const std::string line = "line " + std::to_string(1 + std::count(before.begin(), before.end(), '\n')) + ": ";
    CHECK_MESSAGE(log.find(line) != std::string::npos, std::string(refused.line) << ": " << log);
    CHECK_MESSAGE(log.find(refused.why) != std::string::npos, std::string(refused.line) << ": " << log);
  }
}
