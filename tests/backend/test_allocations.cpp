// SPDX-License-Identifier: MIT
// A steady step allocates nothing. Counted are all calls of malloc and its kin in this program, so operator new and
// Eigen's own aligned allocation too (operator new alone under a sanitizer, which has a malloc of its own). oneDNN
// allocates inside its primitives' execution, where we cannot help it; for it the arenas are checked to stay where they
// are.
#include <tutti/backend/cpu/cpu.hpp>
#if defined(TUTTI_HAS_EIGEN)
#include <tutti/backends/eigen/eigen.hpp>
#endif
#if defined(TUTTI_HAS_ONEDNN)
#include <tutti/backends/onednn/onednn.hpp>
#endif

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>

#include "backend/suite.hpp"

namespace {

std::atomic<bool> counting{false};
std::atomic<long> allocations{0};

void count() noexcept {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t n) {
  count();
  return __libc_malloc(n);
}
void* calloc(std::size_t n, std::size_t size) {
  count();
  return __libc_calloc(n, size);
}
void* realloc(void* p, std::size_t n) {
  count();
  return __libc_realloc(p, n);
}
void* memalign(std::size_t align, std::size_t n) {
  count();
  return __libc_memalign(align, n);
}
void* aligned_alloc(std::size_t align, std::size_t n) {
  count();
  return __libc_memalign(align, n);
}
int posix_memalign(void** p, std::size_t align, std::size_t n) {
  count();
  *p = __libc_memalign(align, n);
  return *p != nullptr ? 0 : ENOMEM;
}
}
#else
void* operator new(std::size_t n) {
  count();
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
void* operator new[](std::size_t n) { return operator new(n); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  count();
  return std::malloc(n ? n : 1);
}
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return operator new(n, std::nothrow); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
#endif

using namespace tutti;

namespace {

// Allocations of four steps (training, update, evaluation) after two to warm up.
template <Backend B>
long steady_allocations(B& backend, DType precision, bool preactivation) {
  const Graph model = testing::small_resnet(preactivation, 4, 12);
  Executor<B> e(backend, model, {precision});
  testing::randomize(e, 1);
  const testing::Batch batch = testing::random_batch(model, 11, 1);
  std::vector<double> slots(2 * e.parameters().count);
  std::size_t ready = 0;
  const typename Executor<B>::OnReady on_ready = [&ready](std::size_t slices) { ready = slices; };
  const auto step = [&] {
    e.train(batch.view(), {1, 1.0 / 11}, on_ready);
    UpdateCall u;
    u.dtype = e.parameters().dtype;
    u.weights = e.parameter_data();
    u.gradients = e.gradient_data();
    u.slots = {slots.data(), slots.data() + e.parameters().count};
    u.count = e.parameters().count;
    u.lr = 0.01;
    const SquaredNorms n = backend.squared_norms(u);
    u.gradient_scale = n.gradients > 1 ? 0.5 : 1;
    backend.update(op::SgdUpdate{}, u);
    backend.update(op::AdamwUpdate{}, u);
    backend.average(u.dtype, slots.data(), e.parameter_data(), u.count, 0.9);
    backend.accumulate(u.dtype, slots.data(), e.gradient_data(), u.count);
    e.parameters_changed();
    e.evaluate(batch.view());
  };
  step();
  step();
  const auto before = e.memory();
  const void* parameters = e.parameter_data();
  allocations = 0;
  counting = true;
  for (int i = 0; i < 4; ++i) step();
  counting = false;
  const auto after = e.memory();
  CHECK(after.activations == before.activations);
  CHECK(after.scratch == before.scratch);
  CHECK(after.packed == before.packed);
  CHECK(e.parameter_data() == parameters);
  CHECK(ready > 0);
  return allocations;
}

}  // namespace

TEST_CASE("the counter counts") {
  counting = true;
  std::vector<int> v(100);
  v[7] = 1;
  counting = false;
  CHECK(v[7] == 1);
  CHECK(allocations > 0);
}
TEST_CASE("Reference") {
  Reference backend;
  for (DType t : {DType::f64, DType::f32, DType::bf16})
    for (bool preactivation : {false, true}) CHECK(steady_allocations(backend, t, preactivation) == 0);
}
TEST_CASE("our own kernels") {
  Cpu backend({2});
  for (DType t : {DType::f32, DType::bf16})
    for (bool preactivation : {false, true}) CHECK(steady_allocations(backend, t, preactivation) == 0);
}
#if defined(TUTTI_HAS_EIGEN)
TEST_CASE("eigen") {
  EigenBackend backend({2});
  for (DType t : {DType::f32, DType::bf16})
    for (bool preactivation : {false, true}) CHECK(steady_allocations(backend, t, preactivation) == 0);
}
#endif
#if defined(TUTTI_HAS_ONEDNN)
TEST_CASE("onednn: the arenas stay") {
  Onednn backend({2});
  for (DType t : {DType::f32, DType::bf16}) {
    const long n = steady_allocations(backend, t, false);
    MESSAGE("oneDNN's own allocations in four steps: " << n);
  }
}
#endif
