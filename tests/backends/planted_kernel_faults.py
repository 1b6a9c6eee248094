# SPDX-License-Identifier: MIT
"""The faults that planted_kernels.py plants in the kernels of backends/cuda/kernels.

A fault is: name, file, text that occurs once in it, text with the fault, tests that should find it. A test is a program of
tests/backends and the beginning of a case.
"""

EMULATED, STEP = "test_cuda_emulated", "test_cuda_step"
OPS = [(EMULATED, "all ops except convolutions give the expected results in f32")]
OPS_BF16 = [(EMULATED, "all ops except convolutions give the expected results in bf16")]
OPS_F16 = [(EMULATED, "all ops except convolutions give the expected results in f16")]
ONCE = [("test_cuda_norms", "a batch norm in one kernel gives")]
TOGETHER = [("test_shortcut_norms", "two batch norms together have the bits of two separate norms in bf16")]
LOSS = [(EMULATED, "the loss has the expected values")]
UPDATES = [(EMULATED, "weight updates, norms, averages")]
STEPS = [(STEP, "a steady step"), (STEP, "steps that the device ends equal")]
INTEGERS = [(EMULATED, "the conversions of sums of logical ranks give")]
INPUT = [("test_cuda_input", "images that the device crops")]
SECTORS = [("test_ptx_sectors", "the kernels of a training step in bf16")]
GRADIENTS = [("test_cuda_weight_gradients", "one kernel launch converts")]

BARRIERS = [
    ("partial-sums-without-barrier", "norm.hpp", "    __syncthreads();\n    if (t.row < h) {\n      #pragma unroll",
     "    if (t.row < h) {\n      #pragma unroll", OPS),
    ("statistics-without-barrier", "norm.hpp", "    __syncthreads();\n    if (t.row < h) {\n      const int other",
     "    if (t.row < h) {\n      const int other", OPS),
    ("chunk-sums-read-early", "norm.hpp", "  sums[threadIdx.x] = sum;\n  __syncthreads();", "  sums[threadIdx.x] = sum;", OPS),
    ("sums-finished-early", "norm_kernels.hpp", "  wait_for_blocks(arrived);\n  each_finish(channels, [&](int k) {", "  each_finish(channels, [&](int k) {", ONCE),
    ("statistics-read-early", "norm_kernels.hpp", "  wait_for_blocks(arrived);\n  each_chunk_from_last(chunks, [&](int k) {\n    apply_to",
     "  each_chunk_from_last(chunks, [&](int k) {\n    apply_to", ONCE),
    ("blocks-arrive-without-release", "norm_kernels.hpp", "atom.add.release.gpu.global.u32", "atom.add.relaxed.gpu.global.u32", ONCE),
    ("blocks-arrive-before-their-threads", "norm_kernels.hpp", "inline void wait_for_blocks(unsigned* arrived) {\n  __syncthreads();",
     "inline void wait_for_blocks(unsigned* arrived) {", ONCE),
    ("maximum-without-barrier", "loss.hpp", "    __syncthreads();\n    if (threadIdx.x < h) room[threadIdx.x] = fmaxf",
     "    if (threadIdx.x < h) room[threadIdx.x] = fmaxf", LOSS),
    ("sum-without-barrier", "loss.hpp", "    __syncthreads();\n    if (threadIdx.x < h) room[threadIdx.x] +=",
     "    if (threadIdx.x < h) room[threadIdx.x] +=", LOSS),
    ("sum-over-stale-sum", "loss.hpp", "inline N block_sum(N v, N* room) {\n  __syncthreads();", "inline N block_sum(N v, N* room) {", LOSS),
    ("invalid-label-read-early", "loss.hpp", "  bad[threadIdx.x] = first;\n  __syncthreads();", "  bad[threadIdx.x] = first;", LOSS),
    ("two-sums-without-barrier", "update.hpp", "    __syncthreads();\n    if (threadIdx.x < h) {\n      first[threadIdx.x] +=",
     "    if (threadIdx.x < h) {\n      first[threadIdx.x] +=", UPDATES),
    ("block-sums-without-barrier", "step.hpp", "    __syncthreads();\n    if (threadIdx.x < h)\n      for (int k = 0; k < N; ++k) room",
     "    if (threadIdx.x < h)\n      for (int k = 0; k < N; ++k) room", STEPS),
    ("block-sums-read-early", "step.hpp", "  __syncthreads();\n  for (int k = 0; k < N; ++k) v[k]", "  for (int k = 0; k < N; ++k) v[k]", STEPS),
    ("scale-read-early", "step.hpp", "  if (!rules.trust) return;\n  __syncthreads();", "  if (!rules.trust) return;", STEPS),
    ("product-over-stale-tile", "muon.hpp", "sum = fmaf(left[row][t], right[t][col], sum);\n    __syncthreads();",
     "sum = fmaf(left[row][t], right[t][col], sum);", UPDATES + STEPS),
    ("greatest-without-barrier", "integers.hpp", "    __syncthreads();\n    if (threadIdx.x < h && greatest",
     "    if (threadIdx.x < h && greatest", INTEGERS),
]
INDICES = [
    ("statistics-of-the-wrong-lane", "norm.hpp", "const int other = me + h * t.lanes;", "const int other = me + h;", OPS),
    ("rows-counted-twice", "norm.hpp", "row = threadIdx.x >> lw;", "row = threadIdx.x >> (lw + 1);", OPS),
    ("one-row-too-far", "norm.hpp", "(begin + row + (i64)(mine - 1) * rows)", "(begin + row + (i64)mine * rows)", OPS),
    ("chunk-past-the-end", "norm.hpp", "end = begin + chunk < all ? begin + chunk : all;", "end = begin + chunk;", OPS),
    ("channels-past-the-end", "norm.hpp", "  if (t.channel >= channels) return;\n  float mu[V], scale[V], shift[V], mean_g[V], slope[V];",
     "  float mu[V], scale[V], shift[V], mean_g[V], slope[V];", OPS),
    ("all-lanes-write-the-statistics", "norm.hpp", "if (!there || threadIdx.x >= finish_lanes) return;\n  const double var",
     "if (!there) return;\n  const double var", OPS),
    ("mask-of-the-wrong-byte", "norm.hpp", "mask[at >> 3] = mask_of<T>(v);", "mask[(at >> 3) ^ 1] = mask_of<T>(v);", OPS_BF16),
    ("mask-has-zeros", "norm.hpp", "(to_float(y.v[j]) > 0 ? 1u : 0u) << j", "(to_float(y.v[j]) >= 0 ? 1u : 0u) << j", OPS_BF16),
    ("mask-bits-reversed", "norm.hpp", "g = r.bits >> j & 1 ? g : 0.0f;", "g = r.bits >> (7 - j) & 1 ? g : 0.0f;", OPS_BF16),
    ("one-value-too-many", "elementwise.hpp", "i < n; i += index_step()) y[i] = from_float<T>(f(to_float(x[i])));",
     "i <= n; i += index_step()) y[i] = from_float<T>(f(to_float(x[i])));", OPS),
    ("bias-of-the-first-lane", "elementwise.hpp", "f[j] += bias[j];", "f[j] += bias[0];", OPS),
    ("pieces-overlap", "elementwise.hpp", "(i64)(blockIdx.x - j.first_block) * 2048", "(i64)(blockIdx.x - j.first_block) * 2047", GRADIENTS),
    ("every-thread-does-the-rest", "update.hpp", "if (first_index() == 0 && n % V != 0)", "if (n % V != 0)", UPDATES),
    ("partial-norms-overlap", "update.hpp", "two_sums(weights, gradients, partial + 2 * blockIdx.x);",
     "two_sums(weights, gradients, partial + blockIdx.x);", UPDATES),
    ("image-past-the-end", "input.hpp", "i < bytes; i += step)", "i <= bytes; i += step)", INPUT),
]
ALIGNMENTS = [
    ("pool-reads-one-channel-off", "pool.hpp", "(image * pixels + i) * channels + c, f)", "(image * pixels + i) * channels + c + 1, f)", OPS_BF16),
    ("step-begins-one-value-off", "step.hpp", "f(c.begin + i, r);", "f(c.begin + i + 1, r);", STEPS),
]
NANS = [
    ("relu-drops-nan", "common.hpp", "return x < 0 ? 0.0f : x;", "return fmaxf(x, 0.0f);", [(EMULATED, "a NaN in the weights"), *OPS]),
    ("gelu-drops-nan", "elementwise.hpp", "a = fabsf(x) > 15.0f ? 15.0f : fabsf(x);", "a = fminf(fabsf(x), 15.0f);",
     [(EMULATED, "gelu is right at known values")]),
    ("nan-ranks-last", "loss.hpp", "(!(v < zt) && (v != zt || k < label))", "(v > zt || (v == zt && k < label))", LOSS),
    ("max-pool-drops-nan", "pool.hpp", " || f[j] != f[j]) {", ") {", [(EMULATED, "a NaN in the weights")]),
]
# Inline assembly whose operands are not of the instruction's type, which NVRTC does not check.
OPERANDS = [
    ("half-in-a-float-register", "common.hpp", '"=f"(f) : "h"(x.bits)', '"=f"(f) : "f"(__uint_as_float(x.bits))', OPS_F16),
    ("bf16-to-a-wide-register", "common.hpp", 'asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(f));',
     'unsigned wide; asm("cvt.rn.bf16.f32 %0, %1;" : "=r"(wide) : "f"(f)); r.bits = (unsigned short)wide;', OPS_BF16),
    ("arrival-of-a-wide-value", "norm_kernels.hpp", '"l"(p), "r"(v) : "memory"', '"l"(p), "l"((unsigned long long)v) : "memory"', ONCE),
    ("wide-read-of-the-arrivals", "norm_kernels.hpp", "ld.acquire.gpu.global.u32", "ld.acquire.gpu.global.u64", ONCE),
]
# Kernels that start before the kernel before them has ended.
EARLY = [
    ("reads-before-the-wait", "norm_kernels.hpp", "  wait_for_earlier_kernels();\n  finish_statistics(", "  if (partial[0] < -1e30f) return;\n  wait_for_earlier_kernels();\n  finish_statistics(", OPS),
    ("gradients-without-wait", "norm_kernels.hpp", "  wait_for_earlier_kernels();\n  gradient_to<", "  gradient_to<", OPS),
    ("one-thread-waits", "step.hpp", "  wait_for_earlier_kernels();\n  __shared__ double room[256];\n  __shared__ double scales[1];",
     "  if (threadIdx.x == 0) wait_for_earlier_kernels();\n  __shared__ double room[256];\n  __shared__ double scales[1];", STEPS),
]
# Two batch norms at once (norm_shortcut.hpp).
SHORTCUTS = [
    ("shortcut-with-the-statistics-of-the-sum", "norm_shortcut.hpp", "of_s(s_mean, s_inv_std, s_gamma, s_beta, t.channel)",
     "of_s(mean, s_inv_std, s_gamma, s_beta, t.channel)", TOGETHER),
    ("shortcut-not-rounded", "norm_shortcut.hpp", "rounded<T>(of_s.of(to_float(r.s.v[j]), j))", "of_s.of(to_float(r.s.v[j]), j)", TOGETHER),
    ("shortcut-mask-not-written", "norm_shortcut.hpp", "        mask[at >> 3] = mask_of<T>(v);\n", "", TOGETHER),
    ("shortcut-sums-not-masked", "norm_shortcut.hpp", "gradient_of<T, V>(r.in, j, off, 0.0f, 0.0f, FORM);\n            sum",
     "gradient_of<T, V>(r.in, j, off, 0.0f, 0.0f, FORM & form_second);\n            sum", TOGETHER),
    ("shortcut-sums-not-rounded", "norm_shortcut.hpp", "if (FORM & form_second) g[j] = rounded<T>(g[j]);", "", TOGETHER),
    ("shortcut-sums-of-the-wrong-input", "norm_shortcut.hpp", "to_float(r.s.v[j]) - s_mu[j], s_dot", "to_float(r.in.x.v[j]) - s_mu[j], s_dot", TOGETHER),
    ("shortcut-sums-without-barrier", "norm_shortcut.hpp", "  __syncthreads();  // the second call writes", "  // the second call writes", TOGETHER),
    ("shortcut-gradient-not-masked", "norm_shortcut.hpp", "of_s.of(gradient_of<T, V>(r.in, j, 0.0f, 0.0f, 0.0f, FORM)",
     "of_s.of(gradient_of<T, V>(r.in, j, 0.0f, 0.0f, 0.0f, 0)", TOGETHER),
    ("shortcut-gradient-with-the-sums-of-the-sum", "norm_shortcut.hpp", "of_s(s_mean, s_inv_std, s_gamma, means + 2 * channels,",
     "of_s(s_mean, s_inv_std, s_gamma, means,", TOGETHER),
    ("shortcut-finished-with-the-sums-of-the-sum", "norm_shortcut.hpp", "(of_s ? (i64)chunks * 2 * channels : 0)", "0", TOGETHER),
    ("shortcut-gradients-without-wait", "norm_shortcut.hpp",
     "  wait_for_earlier_kernels();\n  const Tile t(lw, V, all, chunk, from_last());\n  if (t.channel >= channels) return;\n  const Gradient",
     "  const Tile t(lw, V, all, chunk, from_last());\n  if (t.channel >= channels) return;\n  const Gradient", TOGETHER),
    ("shortcut-channels-past-the-end", "norm_shortcut.hpp", "  if (t.channel >= channels) return;\n  const ChannelsOf", "  const ChannelsOf", TOGETHER),
    ("shortcut-neighbours-strided", "norm_shortcut.hpp", "r.s = load<T, V>(s + at);\n        return r;\n      },\n      [&](i64 at, const Row& r) {\n        Vec<T, V> v;",
     "for (int j = 0; j < V; ++j) r.s.v[j].bits = ((const volatile T*)s)[at + j].bits;\n        return r;\n      },\n      [&](i64 at, const Row& r) {\n        Vec<T, V> v;", SECTORS),
]
# Kernels with right results whose warps ask for more memory than they need.
STRIDES = [
    ("neighbours-two-vectors-apart", "elementwise.hpp",
     "for (i64 k = first_index(); k < n / V; k += index_step()) {\n    float a[V];\n    load_floats<T, V>(x + k * V, a);",
     "for (i64 m = first_index(), half = n / V / 2; m < n / V; m += index_step()) {\n    float a[V];\n"
     "    const i64 k = m < 2 * half ? m % half * 2 + m / half : m;\n    load_floats<T, V>(x + k * V, a);", SECTORS),
    ("numbers-of-channels-one-at-a-time", "common.hpp", "  constexpr int n = V % 4 == 0 ? 4 : 1;\n  #pragma unroll\n  for (int k = 0; k < V; k += n) {\n    const Vec",
     "  constexpr int n = 1;\n  #pragma unroll\n  for (int k = 0; k < V; k += n) {\n    const Vec", SECTORS),
    ("partial-sums-one-at-a-time", "norm.hpp", "    store_channels(to, s1);\n    store_channels(to + channels, s2);",
     "    for (int j = 0; j < V; ++j) ((volatile float*)to)[j] = s1[j], ((volatile float*)to)[channels + j] = s2[j];", SECTORS),
]
FAULTS = BARRIERS + INDICES + ALIGNMENTS + NANS + OPERANDS + EARLY + SHORTCUTS + STRIDES
