// SPDX-License-Identifier: MIT
// Tests the translator from PTX to C++ (emulator/ptx.py): the result of each instruction, against values worked out by
// hand from NVIDIA's "PTX ISA". The instructions are PTX, so the test needs no NVRTC.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/emulator/block.hpp"
#include "backends/ptx_kernels.hpp"

using namespace tutti;

namespace {

using testing::DeviceArray;
using testing::PtxKernel;

// A line of PTX. Its inputs are in registers 1, 2 and 3 of each class; its result is in register 9.
struct Row {
  const char* text;
  std::uint64_t a, b, c, expected;
};

constexpr std::uint64_t nan = 0x7fc00000, canonical = 0x7fffffff, one = 0x3f800000, inf = 0x7f800000;

const std::vector<Row> rows{
    // Integers.
    {"add.u32 %r9, %r1, %r2;", 0xffffffff, 2, 0, 1},
    {"sub.s64 %rd9, %rd1, %rd2;", 0, 1, 0, ~0ULL},
    {"mul.lo.s32 %r9, %r1, %r2;", 0x10001, 0x10001, 0, 0x20001},
    {"mul.hi.u32 %r9, %r1, %r2;", 0xffffffff, 0xffffffff, 0, 0xfffffffe},
    {"mul.hi.s32 %r9, %r1, %r2;", 0xffffffff, 2, 0, 0xffffffff},
    {"mul.hi.u64 %rd9, %rd1, %rd2;", ~0ULL, ~0ULL, 0, ~1ULL},
    {"mul.wide.s32 %rd9, %r1, %r2;", 0xfffffffe, 3, 0, 0xfffffffffffffffa},
    {"mul.wide.u16 %r9, %rs1, %rs2;", 0xffff, 0xffff, 0, 0xfffe0001},
    {"mad.lo.s32 %r9, %r1, %r2, %r3;", 3, 4, 5, 17},
    {"mad.wide.u32 %rd9, %r1, %r2, %rd3;", 0xffffffff, 2, 1, 0x1ffffffff},
    {"div.s32 %r9, %r1, %r2;", 0xfffffff9, 2, 0, 0xfffffffd},
    {"rem.s32 %r9, %r1, %r2;", 0xfffffff9, 2, 0, 0xffffffff},
    {"div.s32 %r9, %r1, %r2;", 0x80000000, 0xffffffff, 0, 0x80000000},
    {"rem.u64 %rd9, %rd1, %rd2;", ~0ULL, 10, 0, 5},
    {"min.s32 %r9, %r1, %r2;", 0xffffffff, 1, 0, 0xffffffff},
    {"min.u32 %r9, %r1, %r2;", 0xffffffff, 1, 0, 1},
    {"abs.s32 %r9, %r1;", 0xfffffffb, 0, 0, 5},
    {"neg.s64 %rd9, %rd1;", 5, 0, 0, 0xfffffffffffffffb},
    // Bits. A shift by more than the width counts as one by the width.
    {"and.b32 %r9, %r1, %r2;", 0xff00ff00, 0x0ff00ff0, 0, 0x0f000f00},
    {"xor.b64 %rd9, %rd1, %rd2;", ~0ULL, 1, 0, ~1ULL},
    {"not.b16 %rs9, %rs1;", 0x00ff, 0, 0, 0xff00},
    {"and.pred %p9, %p1, %p2;", 1, 0, 0, 0},
    {"or.pred %p9, %p1, %p2;", 1, 0, 0, 1},
    {"not.pred %p9, %p1;", 1, 0, 0, 0},
    {"shl.b32 %r9, %r1, %r2;", 1, 31, 0, 0x80000000},
    {"shl.b32 %r9, %r1, %r2;", 1, 32, 0, 0},
    {"shl.b32 %r9, %r1, %r2;", 1, 0x80000000, 0, 0},
    {"shr.u32 %r9, %r1, %r2;", 0x80000000, 40, 0, 0},
    {"shr.s32 %r9, %r1, %r2;", 0x80000000, 40, 0, 0xffffffff},
    {"shr.s16 %rs9, %rs1, %r2;", 0x8000, 4, 0, 0xf800},
    {"shr.b64 %rd9, %rd1, 63;", 0x8000000000000000, 0, 0, 1},
    {"shf.l.wrap.b32 %r9, %r1, %r2, %r3;", 0x80000000, 1, 33, 3},
    {"shf.l.clamp.b32 %r9, %r1, %r2, %r3;", 0x80000000, 1, 33, 0x80000000},
    {"shf.r.wrap.b32 %r9, %r1, %r2, %r3;", 0x80000000, 1, 1, 0xc0000000},
    {"prmt.b32 %r9, %r1, %r2, 0x7610;", 0x33221100, 0x77665544, 0, 0x77661100},
    {"prmt.b32 %r9, %r1, %r2, 0x0008;", 0x80, 0, 0, 0x808080ff},
    {"bfi.b32 %r9, %r1, %r2, 8, 4;", 0xff, 0, 0, 0xf00},
    {"bfe.s32 %r9, %r1, 4, 4;", 0xf0, 0, 0, 0xffffffff},
    {"bfe.u32 %r9, %r1, 4, 4;", 0xf0, 0, 0, 0xf},
    {"popc.b32 %r9, %r1;", 0xf0f0, 0, 0, 8},
    {"clz.b32 %r9, %r1;", 0, 0, 0, 32},
    {"clz.b64 %r9, %rd1;", 1, 0, 0, 63},
    {"brev.b32 %r9, %r1;", 1, 0, 0, 0x80000000},
    {"lop3.b32 %r9, %r1, %r2, %r3, 0xe8;", 0x0f, 0x33, 0x55, 0x17},
    // Predicates.
    {"setp.lt.s32 %p9, %r1, %r2;", 0xffffffff, 1, 0, 1},
    {"setp.lt.u32 %p9, %r1, %r2;", 0xffffffff, 1, 0, 0},
    {"setp.hs.u32 %p9, %r1, %r2;", 0xffffffff, 1, 0, 1},
    {"setp.gt.and.s32 %p9, %r1, %r2, %p3;", 2, 1, 0, 0},
    {"setp.gt.or.s32 %p9, %r1, %r2, !%p3;", 0, 1, 0, 1},
    {"setp.eq.s32 %p8|%p9, %r1, %r2;", 1, 2, 0, 1},
    {"setp.lt.f32 %p9, %f1, %f2;", nan, one, 0, 0},
    {"setp.ltu.f32 %p9, %f1, %f2;", nan, one, 0, 1},
    {"setp.ne.f32 %p9, %f1, %f2;", nan, one, 0, 0},
    {"setp.neu.f32 %p9, %f1, %f2;", nan, one, 0, 1},
    {"setp.num.f32 %p9, %f1, %f2;", nan, one, 0, 0},
    {"setp.nan.f32 %p9, %f1, %f2;", nan, one, 0, 1},
    {"setp.eq.ftz.f32 %p9, %f1, %f2;", 1, 0, 0, 1},
    {"selp.b32 %r9, %r1, %r2, %p3;", 7, 8, 1, 7},
    {"selp.f64 %fd9, %fd1, %fd2, %p3;", 7, 8, 0, 8},
    {"@%p3 mov.u32 %r9, 7;", 0, 0, 1, 7},
    {"@!%p3 mov.u32 %r9, 7;", 0, 0, 1, 0},
    // Floating point: NaNs have NVIDIA's bits, min and max drop one NaN, and -0 is below 0.
    {"add.f32 %f9, %f1, %f2;", inf, 0xff800000, 0, canonical},
    {"min.f32 %f9, %f1, %f2;", nan, one, 0, one},
    {"max.f32 %f9, %f1, %f2;", one, nan, 0, one},
    {"max.f32 %f9, %f1, %f2;", nan, nan, 0, canonical},
    {"min.NaN.f32 %f9, %f1, %f2;", one, nan, 0, canonical},
    {"min.f32 %f9, %f1, %f2;", 0, 0x80000000, 0, 0x80000000},
    {"max.f32 %f9, %f1, %f2;", 0x80000000, 0, 0, 0},
    {"abs.f32 %f9, %f1;", 0xbf800000, 0, 0, one},
    {"neg.f32 %f9, %f1;", 0, 0, 0, 0x80000000},
    {"copysign.f32 %f9, %f1, %f2;", 0x80000000, one, 0, 0xbf800000},
    // One rounding of a product and a sum, or two: (1 + 2^-12)^2 - (1 + 2^-11).
    {"fma.rn.f32 %f9, %f1, %f2, %f3;", 0x3f800800, 0x3f800800, 0xbf801000, 0x33800000},
    {"mul.rn.f32 %f8, %f1, %f2;\nadd.rn.f32 %f9, %f8, %f3;", 0x3f800800, 0x3f800800, 0xbf801000, 0},
    {"fma.rm.f32 %f9, %f1, %f2, %f3;", one, one, 0x30800000, one},
    {"fma.rp.f32 %f9, %f1, %f2, %f3;", one, one, 0x30800000, one + 1},
    {"add.rn.f32 %f9, %f1, %f2;", one, 0x33c00000, 0, one + 1},
    {"add.rz.f32 %f9, %f1, %f2;", one, 0x33c00000, 0, one},
    {"div.rn.f32 %f9, %f1, %f2;", one, 0x40400000, 0, 0x3eaaaaab},
    {"rcp.rn.f32 %f9, %f1;", 0x40400000, 0, 0, 0x3eaaaaab},
    {"sqrt.rn.f32 %f9, %f1;", 0x40000000, 0, 0, 0x3fb504f3},
    {"add.ftz.f32 %f9, %f1, %f2;", 1, 0x80000000, 0, 0},
    {"mul.sat.f32 %f9, %f1, %f2;", 0x40000000, one, 0, one},
    {"add.sat.f32 %f9, %f1, %f2;", nan, one, 0, 0},
    {"fma.rn.f64 %fd9, %fd1, %fd2, %fd3;", 0x4000000000000000, 0x4000000000000000, 0x3ff0000000000000,
     0x4014000000000000},
    {"add.f32 %f9, %f1, 0f3F800000;", one, 0, 0, 0x40000000},
    // Conversions.
    {"cvt.rni.s32.f32 %r9, %f1;", 0x40200000, 0, 0, 2},
    {"cvt.rzi.s32.f32 %r9, %f1;", 0xc0200000, 0, 0, 0xfffffffe},
    {"cvt.rmi.s32.f32 %r9, %f1;", 0xc0200000, 0, 0, 0xfffffffd},
    {"cvt.rpi.s32.f32 %r9, %f1;", 0x40066666, 0, 0, 3},
    {"cvt.rzi.s32.f32 %r9, %f1;", 0x4f32d05e, 0, 0, 0x7fffffff},
    {"cvt.rzi.u32.f32 %r9, %f1;", 0xbf800000, 0, 0, 0},
    {"cvt.rzi.s32.f32 %r9, %f1;", nan, 0, 0, 0},
    {"cvt.rzi.s64.f32 %rd9, %f1;", nan, 0, 0, 0x8000000000000000},
    {"cvt.rzi.u16.f32 %rs9, %f1;", 0x4788b800, 0, 0, 0xffff},
    {"cvt.s32.s16 %r9, %rs1;", 0x8000, 0, 0, 0xffff8000},
    {"cvt.u32.u16 %r9, %rs1;", 0x8000, 0, 0, 0x8000},
    {"cvt.s32.s8 %r9, %r1;", 0x80, 0, 0, 0xffffff80},
    {"cvt.s64.s32 %rd9, %r1;", 0xffffffff, 0, 0, ~0ULL},
    {"cvt.u64.u32 %rd9, %r1;", 0xffffffff, 0, 0, 0xffffffff},
    {"cvt.sat.u8.s32 %r9, %r1;", 300, 0, 0, 255},
    {"cvt.rn.f32.s32 %f9, %r1;", 16777217, 0, 0, 0x4b800000},
    {"cvt.rp.f32.s32 %f9, %r1;", 16777217, 0, 0, 0x4b800001},
    {"cvt.rn.f32.f64 %f9, %fd1;", 0x3ff0000018000000, 0, 0, one + 1},
    {"cvt.rz.f32.f64 %f9, %fd1;", 0x3ff0000018000000, 0, 0, one},
    {"cvt.f64.f32 %fd9, %f1;", one, 0, 0, 0x3ff0000000000000},
    {"cvt.rni.f32.f32 %f9, %f1;", 0x40200000, 0, 0, 0x40000000},
    {"cvt.sat.f32.f32 %f9, %f1;", nan, 0, 0, 0},
    {"cvt.rn.bf16.f32 %rs9, %f1;", 0x3f808000, 0, 0, 0x3f80},
    {"cvt.rn.bf16.f32 %rs9, %f1;", 0x3f818000, 0, 0, 0x3f82},
    {"cvt.rn.bf16.f32 %rs9, %f1;", nan, 0, 0, 0x7fff},
    {"cvt.rn.bf16x2.f32 %r9, %f1, %f2;", one, 0x40000000, 0, 0x3f804000},
    {"cvt.rn.f16.f32 %rs9, %f1;", one, 0, 0, 0x3c00},
    {"cvt.rn.f16.f32 %rs9, %f1;", 0x477ff000, 0, 0, 0x7c00},
    {"cvt.rn.f16.f32 %rs9, %f1;", nan, 0, 0, 0x7fff},
    {"cvt.f32.f16 %f9, %rs1;", 0x3c00, 0, 0, one},
    {"cvt.f32.bf16 %f9, %rs1;", 0x3f80, 0, 0, one},
    // Approximate instructions: the tables of their sections for zeros, infinities and NaNs.
    {"ex2.approx.ftz.f32 %f9, %f1;", 0, 0, 0, one},
    {"ex2.approx.ftz.f32 %f9, %f1;", 0xff800000, 0, 0, 0},
    {"ex2.approx.ftz.f32 %f9, %f1;", 0xc30c0000, 0, 0, 0},
    {"rcp.approx.ftz.f32 %f9, %f1;", 0x80000001, 0, 0, 0xff800000},
    {"rcp.approx.f32 %f9, %f1;", 0xff800000, 0, 0, 0x80000000},
    {"div.approx.f32 %f9, %f1, %f2;", one, 0x7f000000, 0, 0},
    {"div.approx.f32 %f9, %f1, %f2;", one, 0xff000000, 0, 0x80000000},
    {"div.approx.f32 %f9, %f1, %f2;", inf, 0x7f000000, 0, canonical},
    {"div.approx.f32 %f9, %f1, %f2;", one, 1, 0, inf},
    {"div.full.f32 %f9, %f1, %f2;", one, 0, 0, inf},
    {"lg2.approx.f32 %f9, %f1;", 0x80000000, 0, 0, 0xff800000},
    {"sqrt.approx.f32 %f9, %f1;", 0xbf800000, 0, 0, canonical},
    {"sqrt.approx.f32 %f9, %f1;", 0x80000000, 0, 0, 0x80000000},
    {"rsqrt.approx.f32 %f9, %f1;", 0x80000000, 0, 0, 0xff800000},
    {"sin.approx.f32 %f9, %f1;", 0x80000000, 0, 0, 0x80000000},
    {"sin.approx.f32 %f9, %f1;", inf, 0, 0, canonical},
    {"cos.approx.f32 %f9, %f1;", 0x80000000, 0, 0, one},
    {"tanh.approx.f32 %f9, %f1;", inf, 0, 0, one},
    {"tanh.approx.f32 %f9, %f1;", 0x80000001, 0, 0, 0x80000001},
    {"rcp.approx.ftz.f64 %fd9, %fd1;", 1, 0, 0, 0x7ff0000000000000},
    {"rcp.approx.ftz.f64 %fd9, %fd1;", 0x7ff8000000000000, 0, 0, 0x7fffffff00000000},
    {"rcp.approx.ftz.f64 %fd9, %fd1;", 0x40080000ffffffff, 0, 0, 0x3fd5555500000000},
    {"rsqrt.approx.ftz.f64 %fd9, %fd1;", 0x8000000000000001, 0, 0, 0xfff0000000000000},
    {"rsqrt.approx.f64 %fd9, %fd1;", 0x4010000000000000, 0, 0, 0x3fe0000000000000},
    // Moves.
    {"mov.b64 {%r8, %r9}, %rd1;", 0x1122334455667788, 0, 0, 0x11223344},
    {"mov.b64 {%r9, _}, %rd1;", 0x1122334455667788, 0, 0, 0x55667788},
    {"mov.b64 %rd9, {%r1, %r2};", 1, 2, 0, 0x200000001},
    {"mov.b32 {%rs8, %rs9}, %r1;", 0x11223344, 0, 0, 0x1122},
    {"mov.b32 %r9, {%rs1, %rs2};", 1, 2, 0, 0x20001},
    // Memory: the first row's first input, and atomic operations on one value that is 0 before.
    {"ld.global.v2.u32 {%r8, %r9}, [%rd20];", 0, 0, 0, 0},
    {"ld.global.s8 %r9, [%rd20];", 0, 0, 0, 0xffffffff},
    {"ld.global.nc.u16 %rs9, [%rd20+2];", 0, 0, 0, 0xffff},
    {"ld.u8 %r9, [%rd20+4];", 0, 0, 0, 0},
    {"atom.global.add.u32 %r9, [%rd22], %r1;", 5, 0, 0, 0},
    {"atom.global.add.u32 %r9, [%rd22], %r1;", 1, 0, 0, 5},
    {"atom.global.max.s32 %r9, [%rd22], %r1;", 9, 0, 0, 6},
    {"atom.global.cas.b32 %r9, [%rd22], %r1, %r2;", 9, 3, 0, 9},
    {"atom.global.cas.b32 %r9, [%rd22], %r1, %r2;", 9, 4, 0, 3},
    {"atom.global.inc.u32 %r9, [%rd22], %r1;", 3, 0, 0, 3},
    {"red.global.add.u32 [%rd22], %r1;\nld.global.u32 %r9, [%rd22];", 8, 0, 0, 8},
    {"atom.global.exch.b32 %r9, [%rd22], %r1;", 1, 0, 0, 8},
};

// Returns PTX that computes all rows. Registers 9 are zero before each.
std::string module_of_rows() {
  std::string text;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (int k = 1; k <= 3; ++k) {
      const std::string n = std::to_string(k);
      text += "ld.global.u64 %rd" + n + ", [%rd20+" + std::to_string(24 * i + 8 * static_cast<std::size_t>(k - 1)) +
              "];\n" + "cvt.u32.u64 %r" + n + ", %rd" + n + ";\ncvt.u16.u64 %rs" + n + ", %rd" + n + ";\nmov.b64 %fd" +
              n + ", %rd" + n + ";\nmov.b32 %f" + n + ", %r" + n + ";\nsetp.ne.u64 %p" + n + ", %rd" + n + ", 0;\n";
    }
    text += "mov.u64 %rd9, 0;\nmov.u32 %r9, 0;\nmov.u16 %rs9, 0;\nsetp.ne.u32 %p9, %r9, 0;\n";
    const std::string row = rows[i].text, to = "st.global.u64 [%rd21+" + std::to_string(8 * i) + "], ";
    text += row + "\n";
    const auto has = [&](const char* name) { return row.find(name) != std::string::npos; };
    if (has("%rd9"))
      text += to + "%rd9;\n";
    else if (has("%fd9"))
      text += "mov.b64 %rd9, %fd9;\n" + to + "%rd9;\n";
    else if (has("%f9"))
      text += "mov.b32 %r9, %f9;\ncvt.u64.u32 %rd9, %r9;\n" + to + "%rd9;\n";
    else if (has("%rs9"))
      text += "cvt.u64.u16 %rd9, %rs9;\n" + to + "%rd9;\n";
    else if (has("%p9"))
      text += "selp.u64 %rd9, 1, 0, %p9;\n" + to + "%rd9;\n";
    else
      text += "cvt.u64.u32 %rd9, %r9;\n" + to + "%rd9;\n";
  }
  return testing::entry(text);
}

}  // namespace

TEST_CASE("each PTX instruction gives the value that NVIDIA's description gives") {
  PtxKernel kernel(module_of_rows());
  DeviceArray<std::uint64_t> in(3 * rows.size()), out(rows.size()), room(1);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    in[3 * i] = rows[i].a;
    in[3 * i + 1] = rows[i].b;
    in[3 * i + 2] = rows[i].c;
  }
  room[0] = 0;
  kernel.run(1, 1, in.data(), out.data(), room.data());
  for (std::size_t i = 0; i < rows.size(); ++i) CHECK_MESSAGE(out[i] == rows[i].expected, std::string(rows[i].text));
}

TEST_CASE("approximate instructions have the largest error that is allowed, in the direction that a test chooses") {
  // ulp: units in the last place from the correctly rounded result; otherwise a share of the exact result, or a
  // distance from it if `absolute`.
  enum Unit { ulp, share, absolute };
  struct Approximation {
    const char* text;
    double (*exact)(double);
    Unit unit;
    double bound;
  };
  const std::vector<Approximation> list{
      {"ex2.approx.f32 %f9, %f1;", [](double x) { return std::exp2(x); }, ulp, 2},
      {"rcp.approx.f32 %f9, %f1;", [](double x) { return 1 / x; }, ulp, 1},
      {"div.full.f32 %f9, 0f3F800000, %f1;", [](double x) { return 1 / x; }, ulp, 2},
      {"div.approx.f32 %f9, 0f3F800000, %f1;", [](double x) { return 1 / x; }, ulp, 2},
      {"sqrt.approx.f32 %f9, %f1;", [](double x) { return std::sqrt(x); }, share, 0x1p-23},
      {"rsqrt.approx.f32 %f9, %f1;", [](double x) { return 1 / std::sqrt(x); }, share, std::exp2(-22.9)},
      {"lg2.approx.f32 %f9, %f1;", [](double x) { return std::log2(x); }, share, 0x1p-22},
      {"tanh.approx.f32 %f9, %f1;", [](double x) { return std::tanh(x); }, share, 0x1p-11},
      {"mul.f32 %f8, %f1, 0f3D800000;\nlg2.approx.f32 %f9, %f8;", [](double x) { return std::log2(x / 16); }, absolute,
       0x1p-22},
      {"mul.f32 %f8, %f1, 0f3E000000;\nsin.approx.f32 %f9, %f8;", [](double x) { return std::sin(x / 8); }, absolute,
       std::exp2(-20.5)},
      {"mul.f32 %f8, %f1, 0fC1000000;\ncos.approx.f32 %f9, %f8;", [](double x) { return std::cos(8 * x); }, absolute,
       std::exp2(-14.7)}};
  std::string text = "mul.wide.u32 %rd1, %r20, 4;\nadd.u64 %rd1, %rd20, %rd1;\nld.global.f32 %f1, [%rd1];\n";
  for (std::size_t i = 0; i < list.size(); ++i)
    text += std::string(list[i].text) + "\nmul.wide.u32 %rd2, %r20, " + std::to_string(4 * list.size()) +
            ";\nadd.u64 %rd2, %rd21, %rd2;\nst.global.f32 [%rd2+" + std::to_string(4 * i) + "], %f9;\n";
  PtxKernel kernel(testing::entry(text));
  constexpr std::size_t n = 64;
  DeviceArray<float> in(n), out(n * list.size());
  for (std::size_t k = 0; k < n; ++k) in[k] = 8.1F + 0.37F * static_cast<float>(k);
  unsigned& errors = emulator::Block::instance().machine.errors;
  kernel.run(1, n, in.data(), out.data());  // the first launch of a process sets the errors that its environment names
  for (const unsigned direction : {0U, 1U, 2U, 3U}) {
    errors = direction;
    kernel.run(1, n, in.data(), out.data());
    for (std::size_t i = 0; i < list.size(); ++i) {
      int above = 0, below = 0;
      double largest = 0;
      for (std::size_t k = 0; k < n; ++k) {
        const float got = out[k * list.size() + i];
        const double exact = list[i].exact(in[k]);
        const float nearest = static_cast<float>(exact);
        above += got > nearest;
        below += got < nearest;
        const double from = list[i].unit == ulp ? nearest : exact, off = std::fabs(got - from);
        largest = std::max(largest, list[i].unit == ulp     ? off / std::ldexp(1, std::ilogb(nearest) - 23)
                                    : list[i].unit == share ? off / std::fabs(exact)
                                                            : off);
      }
      CAPTURE(std::string(list[i].text));
      CAPTURE(direction);
      CHECK(largest <= list[i].bound);
      if (direction == 0) CHECK(above + below == 0);
      if (direction != 0) CHECK(largest > list[i].bound * 0.7);
      if (direction == 1) CHECK(below == 0);
      if (direction == 2) CHECK(above == 0);
      if (direction == 3) CHECK((above > 4 && below > 4));
    }
  }
  errors = 3;
}

TEST_CASE("a sine of an angle for which no error is specified is refused") {
  PtxKernel kernel(testing::entry("ld.global.f32 %f1, [%rd20];\nsin.approx.f32 %f9, %f1;\n"));
  DeviceArray<float> in(1);
  const auto said = [&](float angle) {
    in[0] = angle;
    return testing::end_of([&] { kernel.run(1, 1, in.data(), in.data()); });
  };
  CHECK(said(-314) == "no signal: ");
  CHECK(said(315).find("emulator: a sine or cosine of unknown error: an angle in kernel k") != std::string::npos);
}

TEST_CASE("lanes of a warp exchange values, vote and wait for each other") {
  struct Exchange {
    const char* text;
    std::uint32_t (*expected)(std::uint32_t lane);
  };
  // %r1: 100 + the lane. The second result is 1 if the lane got another lane's value.
  const std::vector<Exchange> list{
      {"shfl.sync.up.b32 %r9|%p9, %r1, 3, 0, 0xffffffff;", [](std::uint32_t l) { return l < 3 ? 100 + l : 1097 + l; }},
      {"shfl.sync.down.b32 %r9|%p9, %r1, 3, 31, 0xffffffff;",
       [](std::uint32_t l) { return l > 28 ? 100 + l : 1103 + l; }},
      {"shfl.sync.bfly.b32 %r9|%p9, %r1, 16, 31, 0xffffffff;", [](std::uint32_t l) { return 1100 + (l ^ 16U); }},
      {"shfl.sync.idx.b32 %r9|%p9, %r1, 5, 31, 0xffffffff;", [](std::uint32_t) { return 1105U; }},
      // Segments of 8 lanes.
      {"shfl.sync.idx.b32 %r9|%p9, %r1, 2, 0x181f, 0xffffffff;", [](std::uint32_t l) { return 1102 + (l & 24U); }},
      {"setp.lt.u32 %p8, %r2, 4;\nvote.sync.ballot.b32 %r9, %p8, 0xffffffff;\nsetp.ne.u32 %p9, 0, 0;",
       [](std::uint32_t) { return 15U; }},
      {"setp.lt.u32 %p8, %r2, 4;\nvote.sync.any.pred %p9, %p8, 0xffffffff;\nmov.u32 %r9, 0;",
       [](std::uint32_t) { return 1000U; }},
      {"setp.lt.u32 %p8, %r2, 4;\nvote.sync.all.pred %p9, %p8, 0xffffffff;\nmov.u32 %r9, 0;",
       [](std::uint32_t) { return 0U; }}};
  std::string text = "mov.u32 %r2, %laneid;\nadd.u32 %r1, %r2, 100;\nmul.wide.u32 %rd1, %r20, " +
                     std::to_string(4 * list.size()) + ";\nadd.u64 %rd1, %rd21, %rd1;\n";
  for (std::size_t i = 0; i < list.size(); ++i)
    text += std::string(list[i].text) + "\nselp.u32 %r8, 1000, 0, %p9;\nadd.u32 %r9, %r9, %r8;\nst.global.u32 [%rd1+" +
            std::to_string(4 * i) + "], %r9;\nbar.warp.sync 0xffffffff;\n";
  PtxKernel kernel(testing::entry(text));
  DeviceArray<std::uint32_t> out(3 * 64 * list.size());
  kernel.run(1, 64, out.data(), out.data());
  for (std::uint32_t t = 0; t < 64; ++t)
    for (std::size_t i = 0; i < list.size(); ++i)
      CHECK_MESSAGE(out[t * list.size() + i] == list[i].expected(t % 32), std::string(list[i].text) << " lane " << t);
}
