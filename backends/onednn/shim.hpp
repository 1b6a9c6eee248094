// SPDX-License-Identifier: MIT
#pragma once

#include <dlfcn.h>
#include <unistd.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

// The code that depends on the version of oneDNN: version 2 has operation descriptors, version 3 does not.
namespace tutti::onednn {

struct Geometry {
  dnnl::memory::dims strides, padding_l, padding_r;
};

inline dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr a;
  a.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return a;
}

using Desc = dnnl::memory::desc;

// What a convolution computes at its end: a bias for each output channel, whose layout is `bias`; then the sum with
// what its output held before, if `adds`. No relu, because oneDNN's gives 0 for a NaN.
struct End {
  Desc bias;
  bool adds = false;
};

inline dnnl::primitive_attr attributes_of(const End& end) {
  dnnl::primitive_attr a = user_scratchpad();
  dnnl::post_ops ops;
  if (end.adds) ops.append_sum(1);
  a.set_post_ops(ops);
  return a;
}

#if DNNL_VERSION_MAJOR >= 3

inline auto forward_desc(const dnnl::engine& e, const Desc& src, const Desc& w, const Desc& dst, const Geometry& g) {
  return dnnl::convolution_forward::primitive_desc(e, dnnl::prop_kind::forward_training,
                                                   dnnl::algorithm::convolution_direct, src, w, dst, g.strides,
                                                   g.padding_l, g.padding_r, user_scratchpad(), true);
}
inline auto forward_desc(const dnnl::engine& e, const Desc& src, const Desc& w, const Desc& dst, const Geometry& g,
                         const End& end) {
  return dnnl::convolution_forward::primitive_desc(e, dnnl::prop_kind::forward_inference,
                                                   dnnl::algorithm::convolution_direct, src, w, end.bias, dst,
                                                   g.strides, g.padding_l, g.padding_r, attributes_of(end), true);
}
inline auto backward_data_desc(const dnnl::engine& e, const Desc& dsrc, const Desc& w, const Desc& ddst,
                               const Geometry& g, const dnnl::convolution_forward::primitive_desc& hint) {
  return dnnl::convolution_backward_data::primitive_desc(e, dnnl::algorithm::convolution_direct, dsrc, w, ddst,
                                                         g.strides, g.padding_l, g.padding_r, hint, user_scratchpad(),
                                                         true);
}
inline auto backward_weights_desc(const dnnl::engine& e, const Desc& src, const Desc& dw, const Desc& ddst,
                                  const Geometry& g, const dnnl::convolution_forward::primitive_desc& hint) {
  return dnnl::convolution_backward_weights::primitive_desc(e, dnnl::algorithm::convolution_direct, src, dw, ddst,
                                                            g.strides, g.padding_l, g.padding_r, hint,
                                                            user_scratchpad(), true);
}
inline auto matmul_desc(const dnnl::engine& e, const Desc& a, const Desc& b, const Desc& c,
                        const Desc* bias = nullptr) {
  return bias != nullptr ? dnnl::matmul::primitive_desc(e, a, b, *bias, c, user_scratchpad())
                         : dnnl::matmul::primitive_desc(e, a, b, c, user_scratchpad());
}

#else

inline auto forward_desc(const dnnl::engine& e, const Desc& src, const Desc& w, const Desc& dst, const Geometry& g) {
  const dnnl::convolution_forward::desc d(dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct, src,
                                          w, dst, g.strides, g.padding_l, g.padding_r);
  return dnnl::convolution_forward::primitive_desc(d, user_scratchpad(), e, true);
}
inline auto forward_desc(const dnnl::engine& e, const Desc& src, const Desc& w, const Desc& dst, const Geometry& g,
                         const End& end) {
  const dnnl::convolution_forward::desc d(dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_direct, src,
                                          w, end.bias, dst, g.strides, g.padding_l, g.padding_r);
  return dnnl::convolution_forward::primitive_desc(d, attributes_of(end), e, true);
}
inline auto backward_data_desc(const dnnl::engine& e, const Desc& dsrc, const Desc& w, const Desc& ddst,
                               const Geometry& g, const dnnl::convolution_forward::primitive_desc& hint) {
  const dnnl::convolution_backward_data::desc d(dnnl::algorithm::convolution_direct, dsrc, w, ddst, g.strides,
                                                g.padding_l, g.padding_r);
  return dnnl::convolution_backward_data::primitive_desc(d, user_scratchpad(), e, hint, true);
}
inline auto backward_weights_desc(const dnnl::engine& e, const Desc& src, const Desc& dw, const Desc& ddst,
                                  const Geometry& g, const dnnl::convolution_forward::primitive_desc& hint) {
  const dnnl::convolution_backward_weights::desc d(dnnl::algorithm::convolution_direct, src, dw, ddst, g.strides,
                                                   g.padding_l, g.padding_r);
  return dnnl::convolution_backward_weights::primitive_desc(d, user_scratchpad(), e, hint, true);
}
inline auto matmul_desc(const dnnl::engine& e, const Desc& a, const Desc& b, const Desc& c,
                        const Desc* bias = nullptr) {
  const auto d = bias != nullptr ? dnnl::matmul::desc(a, b, *bias, c) : dnnl::matmul::desc(a, b, c);
  return dnnl::matmul::primitive_desc(d, user_scratchpad(), e);
}

#endif

// Packed weights [outputs, ...] of some outputs, within those of all.
struct SomeWeights {
  Desc desc;                // empty if they are not one piece of memory
  std::int64_t before = 0;  // elements before them
};
inline SomeWeights some_weights(const Desc& all, std::int64_t first, std::int64_t outputs) {
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::memory::dims dims = all.get_dims(), strides = all.get_strides(), blocks = all.get_inner_blks(),
                           of = all.get_inner_idxs();
  std::int64_t block = 1;
  for (std::size_t i = 0; i < of.size(); ++i)
    if (of[i] == 0) block *= blocks[i];
  if (first % block != 0 || outputs % block != 0 || dims[0] % block != 0) return {};
  if (strides.empty() || *std::max_element(strides.begin(), strides.end()) != strides[0]) return {};
  dnnl::memory::dims part = dims, offsets(dims.size(), 0);
  part[0] = outputs;
  return {all.submemory_desc(part, offsets, true), first / block * strides[0]};
#else
  if (all.data.format_kind != dnnl_blocked) return {};
  const auto& layout = all.data.format_desc.blocking;
  std::int64_t block = 1;
  for (int i = 0; i < layout.inner_nblks; ++i)
    if (layout.inner_idxs[i] == 0) block *= layout.inner_blks[i];
  if (first % block != 0 || outputs % block != 0 || all.data.dims[0] % block != 0) return {};
  for (int i = 1; i < all.data.ndims; ++i)
    if (layout.strides[i] > layout.strides[0]) return {};
  SomeWeights some{all, first / block * layout.strides[0]};
  some.desc.data.dims[0] = some.desc.data.padded_dims[0] = outputs;
  return some;
#endif
}

// Returns true if oneDNN's kernels accept channels in blocks of 16. If its kernels use blocks of 8, oneDNN runs a
// scalar kernel for blocks of 16.
inline bool has_blocks_of_16() {
  static const bool has = (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
  return has;
}

inline std::string version() {
  const dnnl_version_t* v = dnnl_version();
  return std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch);
}

// Returns the sizes of the caches in bytes, as the system reports them: "32768 1048576 33554432".
inline std::string caches() {
  std::string sizes;
#if defined(_SC_LEVEL1_DCACHE_SIZE)
  for (const int level : {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE}) {
    if (!sizes.empty()) sizes += ' ';
    sizes += std::to_string(::sysconf(level));
  }
#endif
  return sizes;
}

// Limits OpenMP to one thread: Debian's oneDNN runs primitives on OpenMP teams, but tutti distributes work itself.
// Finds OpenMP's functions by name at run time, because a oneDNN that was built for another runtime lacks them.
class OneOmpThread {
 public:
  OneOmpThread() : before_(get() != nullptr ? get()() : 0) {
    if (set() != nullptr) set()(1);
  }
  ~OneOmpThread() {
    if (set() != nullptr && before_ > 0) set()(before_);
  }
  OneOmpThread(const OneOmpThread&) = delete;
  OneOmpThread& operator=(const OneOmpThread&) = delete;

  static void for_this_thread() {
    if (set() != nullptr) set()(1);
  }

 private:
  using Get = int (*)();
  using Set = void (*)(int);
  static Get get() {
    static const auto f = reinterpret_cast<Get>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
    return f;
  }
  static Set set() {
    static const auto f = reinterpret_cast<Set>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    return f;
  }
  int before_;
};

}  // namespace tutti::onednn
