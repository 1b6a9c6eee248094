// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <tutti/backends/eigen/eigen.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/engine/reference/reference.hpp>

// Tests the eigen backend's own loops over bands, blocks and slices. The shapes are not multiples of these.
namespace {

using namespace tutti;

struct Case {
  std::int64_t n, c, h, w, o;
  op::Window window;
};

struct Tensor {
  TensorDesc desc;
  std::vector<std::byte> bytes;

  Tensor(Shape s, DType t) : desc{s, t}, bytes(desc.bytes() + 1) {}
  TensorRef ref(std::int64_t row = 0, std::int64_t rows = -1) {
    return {bytes.data() + static_cast<std::size_t>(row) * desc.row_bytes(), desc.dtype,
            rows < 0 ? desc.shape : desc.shape.with_rows(rows)};
  }
  [[nodiscard]] double operator[](std::int64_t i) const {
    const void* p = bytes.data();
    return desc.dtype == DType::bf16 ? static_cast<double>(static_cast<const bf16*>(p)[i])
                                     : static_cast<double>(static_cast<const float*>(p)[i]);
  }
};

Tensor random(Shape s, DType t, std::uint64_t seed) {
  Tensor r(s, t);
  Rng rng(seed, Purpose::synthetic);
  for (std::int64_t i = 0; i < s.numel(); ++i) {
    const float v = static_cast<float>(rng.below(2000)) / 1000 - 1;
    if (t == DType::bf16)
      reinterpret_cast<bf16*>(r.bytes.data())[i] = bf16(v);
    else
      reinterpret_cast<float*>(r.bytes.data())[i] = v;
  }
  return r;
}

// Returns a tensor of NaNs, which show unwritten values.
Tensor unset(Shape s, DType t) {
  Tensor r(s, t);
  std::memset(r.bytes.data(), 0xff, r.bytes.size());
  return r;
}

// Returns the largest difference of two tensors. It is relative to a sum of `terms` products of numbers below 1.
double difference(const Tensor& a, const Tensor& b, std::int64_t terms) {
  double most = 0;
  for (std::int64_t i = 0; i < a.desc.shape.numel(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    if (!(d <= most)) most = std::isnan(d) ? 1e9 : d;
  }
  return most / std::sqrt(static_cast<double>(terms));
}

constexpr double tolerance(DType t) { return t == DType::bf16 ? 1.5e-2 : 1e-5; }

void rows_op(EigenBackend& b, const Op& o, Tensor& x, Tensor& w, Tensor& y, std::int64_t chunk) {
  const DType t = y.desc.dtype;
  const std::int64_t n = y.desc.shape[0];
  PrepareInfo info;
  info.desc = {{x.desc, w.desc}, {y.desc}, t, n, 1};
  for (std::int64_t r = 0; r < n; r += chunk) info.chunk_rows.push_back(std::min(chunk, n - r));
  const auto kernel = b.kernel(o, info.desc);
  Tensor packed({static_cast<std::int64_t>(kernel->packed_bytes())}, DType::u8);
  kernel->prepare(info);
  kernel->pack(w.ref(), packed.bytes.data());
  for (std::int64_t r = 0; r < n; r += chunk) {
    const std::int64_t rows = std::min(chunk, n - r);
    Call c;
    c.in[0] = x.ref(r, rows);
    c.in[1] = {packed.bytes.data(), t, w.desc.shape};
    c.out[0] = y.ref(r, rows);
    kernel->run(c);
  }
}

void whole_op(const Op& o, Tensor& x, Tensor& w, Tensor& y) {
  const auto kernel = ReferenceBackend().kernel(o, {{x.desc, w.desc}, {y.desc}, y.desc.dtype, 1, 1});
  Tensor packed(w.desc.shape, y.desc.dtype);
  kernel->pack(w.ref(), packed.bytes.data());
  Call c;
  c.in[0] = x.ref();
  c.in[1] = packed.ref();
  c.out[0] = y.ref();
  kernel->run(c);
}

void weight_gradient(EigenBackend& b, const Op& o, Tensor& x, Tensor& dy, Tensor& dw, std::int64_t chunk) {
  const std::int64_t n = x.desc.shape[0];
  const int shards = n > 1 ? 2 : 1;
  PrepareInfo info;
  info.desc = {{x.desc, dy.desc}, {dw.desc}, x.desc.dtype, n, shards};
  info.chunk_rows = {chunk, 1};
  const auto kernel = b.kernel(o, info.desc);
  info.partition = kernel->cut();
  if (info.partition.division == Division::whole) info.chunk_rows = {n};
  std::vector<float> partial(static_cast<std::size_t>(shards) * info.partition.partial_bytes / sizeof(float),
                             std::nanf(""));
  kernel->prepare(info);
  Call c;
  c.shards = shards;
  c.partial_stride = info.partition.partial_bytes;
  c.out[0] = dw.ref();
  if (info.partition.division == Division::whole) {
    c.in[0] = x.ref();
    c.in[1] = dy.ref();
    for (c.task = 0; c.task < info.partition.tasks; ++c.task) kernel->run(c);
    return;
  }
  auto* first = reinterpret_cast<std::byte*>(partial.data());
  for (int shard = 0; shard < shards; ++shard) {
    const std::int64_t begin = n * shard / shards, end = n * (shard + 1) / shards;
    for (std::int64_t r = begin, rows = 0; r < end; r += rows) {
      rows = r + chunk <= end ? chunk : 1;
      c.in[0] = x.ref(r, rows);
      c.in[1] = dy.ref(r, rows);
      c.phase = Phase::reduce;
      c.shard = shard;
      c.first_chunk = r == begin;
      c.partial = first + static_cast<std::size_t>(shard) * c.partial_stride;
      kernel->run(c);
    }
  }
  c.phase = Phase::finish;
  c.partial = first;
  kernel->run(c);
}

void check(EigenBackend& b, const Case& k, DType t) {
  const op::Window& o = k.window;
  const std::int64_t p = o.out_h(k.h), q = o.out_w(k.w);
  if (k.h + 2 * o.padding < o.kernel_h || k.w + 2 * o.padding < o.kernel_w) return;
  const Shape xs{k.n, k.c, k.h, k.w}, ys{k.n, k.o, p, q}, ws{k.o, k.c, o.kernel_h, o.kernel_w};
  INFO(std::string(name_of(t)), " x ", to_string(xs), ", w ", to_string(ws), ", stride ", o.stride, ", padding ",
       o.padding);
  Tensor x = random(xs, t, 1), w = random(ws, DType::f32, 2), dy = random(ys, t, 3);
  const std::int64_t chunk = (k.n + 1) / 2, taps = std::int64_t{o.kernel_h} * o.kernel_w;
  {
    Tensor y = unset(ys, t), expected = unset(ys, t);
    rows_op(b, op::Conv2d{o}, x, w, y, chunk);
    whole_op(op::Conv2d{o}, x, w, expected);
    CHECK(difference(y, expected, taps * k.c) < tolerance(t));
  }
  {
    Tensor dx = unset(xs, t), expected = unset(xs, t);
    rows_op(b, op::Conv2dBackwardData{o}, dy, w, dx, chunk);
    whole_op(op::Conv2dBackwardData{o}, dy, w, expected);
    CHECK(difference(dx, expected, taps * k.o) < tolerance(t));
  }
  {
    Tensor dw = unset(ws, DType::f32), expected = unset(ws, DType::f32);
    weight_gradient(b, op::Conv2dBackwardWeights{o}, x, dy, dw, std::max<std::int64_t>(chunk / 2, 1));
    Call c;
    c.in[0] = x.ref();
    c.in[1] = dy.ref();
    c.out[0] = expected.ref();
    ReferenceBackend().kernel(op::Conv2dBackwardWeights{o}, {})->run(c);
    CHECK(difference(dw, expected, k.n * p * q) < tolerance(DType::f32));
  }
}

// Uses Eigen's own loops instead of Winograd's algorithm, and of the tiles of AMX, which TUTTI_ISA switches off.
class OwnLoops {
 public:
  OwnLoops() : backend_({.threads = 1, .convolution = cpu::ConvolutionAlgorithm::direct}) {}
  OwnLoops(const OwnLoops&) = delete;
  OwnLoops& operator=(const OwnLoops&) = delete;
  ~OwnLoops() {
    if (unset_) ::unsetenv("TUTTI_ISA");
  }
  EigenBackend& operator*() { return backend_; }

 private:
  // 0: it does not replace a value.
  bool unset_ = std::getenv("TUTTI_ISA") == nullptr &&
                ::setenv("TUTTI_ISA", std::string(cpu::name_of(cpu::detect_isa())).c_str(), 0) == 0;
  EigenBackend backend_;
};
constexpr DType types[] = {DType::f32, DType::bf16};

}  // namespace

TEST_CASE("eigen convolutions agree with the reference on odd shapes") {
  OwnLoops loops;
  EigenBackend& b = *loops;
  std::int64_t turn = 0;
  for (DType t : types)
    for (std::int64_t channels : {1, 3, 5, 16, 17, 33})
      for (int kernel : {1, 3, 5, 7})
        for (int stride : {1, 2, 3})
          for (int padding : {0, 1, 2, 3}) {
            const std::int64_t outs[] = {4, 1, 16, 35, 3}, sizes[] = {7, 4, 9, 3, 8, 5};
            const std::int64_t h = sizes[turn % 6], w = sizes[(turn / 2 + 1) % 6];
            check(b, {1 + turn % 4, channels, h, w, outs[turn % 5], {kernel, kernel, stride, padding}}, t);
            ++turn;
          }
}

TEST_CASE("eigen convolutions agree with the reference if rows, channels and weights are divided into parts") {
  OwnLoops loops;
  EigenBackend& b = *loops;
  for (DType t : types) {
    check(b, {3, 16, 32, 32, 16, {3, 3, 1, 1}}, t);  // several bands of rows
    check(b, {2, 40, 30, 30, 20, {3, 3, 2, 1}}, t);  // with a stride
    check(b, {4, 96, 6, 6, 80, {3, 3, 1, 1}}, t);    // slices of input channels
    check(b, {2, 240, 5, 5, 70, {3, 3, 1, 1}}, t);   // weights in several slabs, rows that are not multiples of groups
    check(b, {2, 70, 5, 4, 240, {3, 3, 2, 1}}, t);   // several slabs in the backward pass
    check(b, {2, 2100, 2, 4, 20, {1, 1, 1, 0}}, t);  // a kernel's row in several slabs
    check(b, {2, 2100, 3, 3, 36, {1, 1, 2, 0}}, t);  // the same with a stride
    check(b, {3, 450, 3, 4, 300, {3, 3, 1, 1}}, t);  // weight gradients in parts
    check(b, {5, 64, 7, 7, 96, {1, 1, 1, 0}}, t);    // pixels in one long row
    check(b, {2, 24, 9, 11, 40, {2, 3, 1, 1}}, t);   // a kernel that is not square
    check(b, {1, 3, 50, 41, 18, {7, 7, 2, 3}}, t);   // the stem of an ImageNet net
  }
}

TEST_CASE("eigen linear layers agree with the reference") {
  EigenBackend b({1});
  for (DType t : types)
    for (std::int64_t n : {1, 3, 9})
      for (std::int64_t in : {1, 30, 64})
        for (std::int64_t out : {1, 10, 100}) {
          INFO(std::string(name_of(t)), " x [", n, ", ", in, "], y [", n, ", ", out, "]");
          Tensor x = random({n, in}, t, 1), w = random({out, in}, DType::f32, 2), bias = random({out}, DType::f32, 3);
          Tensor packed({in * (out + 64)}, DType::f32), plain({out, in}, t), y = unset({n, out}, t), expected = y;
          const PrepareInfo info{{{x.desc, w.desc, bias.desc}, {y.desc}, t, n, 1}, {}, {n}, 1};
          const Op o = op::Linear{};
          const auto kernel = b.kernel(o, info.desc), expected_by = ReferenceBackend().kernel(o, info.desc);
          REQUIRE(kernel->packed_bytes() <= packed.bytes.size());
          kernel->pack(w.ref(), packed.bytes.data());
          kernel->prepare(info);
          Call c;
          c.in = {x.ref(), {packed.bytes.data(), t, w.desc.shape}, bias.ref()};
          c.out[0] = y.ref();
          kernel->run(c);
          expected_by->pack(w.ref(), plain.bytes.data());
          c.in[1] = plain.ref();
          c.out[0] = expected.ref();
          expected_by->run(c);
          CHECK(difference(y, expected, in) < tolerance(t));

          Tensor dy = random({n, out}, t, 4), dx = unset({n, in}, t), dx_expected = dx;
          rows_op(b, op::LinearBackwardData{}, dy, w, dx, (n + 1) / 2);
          whole_op(op::LinearBackwardData{}, dy, w, dx_expected);
          CHECK(difference(dx, dx_expected, out) < tolerance(t));
        }
}
