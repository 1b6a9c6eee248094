// SPDX-License-Identifier: MIT
// Tests that a training step, an update and an evaluation allocate no memory after the first two steps. This program
// counts all calls of malloc and its variants, which include operator new and Eigen's own aligned allocation. Under a
// sanitizer, which has its own malloc, it counts only operator new. oneDNN itself allocates each time it executes a
// primitive (about five times in version 2.6), and tutti cannot change that. For oneDNN the test therefore
// distinguishes allocations inside oneDNN's library from allocations of this program, which include those of oneDNN's
// headers.
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/trainer.hpp>
#if defined(TUTTI_HAS_EIGEN)
#include <tutti/backends/eigen/eigen.hpp>
#endif
#if defined(TUTTI_HAS_ONEDNN)
#include <tutti/backends/onednn/onednn.hpp>
#include <tutti/backends/onednn/shim.hpp>
#endif

#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>

#include "core/sanitizers.hpp"
#include "engine/suite.hpp"

namespace {

std::atomic<bool> counting{false};
std::atomic<long> allocations{0};

// The number of allocations that this program made itself or through libraries other than the one at `apart`.
std::atomic<long> ours{0};
// The base address of the library with separately counted allocations; null: all allocations are counted together.
std::atomic<void*> apart{nullptr};

void* module_of(const void* address) noexcept {
  Dl_info info;
  return dladdr(address, &info) != 0 ? info.dli_fbase : nullptr;
}

// caller: the return address of the allocating function.
void count(const void* caller) noexcept {
  // The first call of backtrace() loads a library, and loading allocates.
  thread_local bool inside = false;
  if (inside || !counting.load(std::memory_order_relaxed)) return;
  const struct Inside {
    Inside() noexcept { inside = true; }
    ~Inside() { inside = false; }
  } guard;
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* const library = apart.load(std::memory_order_relaxed);
  if (library == nullptr) return;
  static void* const program = module_of(reinterpret_cast<const void*>(&module_of));
  std::array<void*, 64> frames;
  const int n = backtrace(frames.data(), static_cast<int>(frames.size()));
  int i = 0;
  while (i < n && frames[static_cast<std::size_t>(i)] != caller) ++i;
  for (; i < n; ++i) {
    const void* const module = module_of(frames[static_cast<std::size_t>(i)]);
    if (module == library) return;
    if (module == program) break;
  }
  ours.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

#if defined(__GLIBC__) && !defined(TUTTI_TEST_ASAN) && !defined(TUTTI_TEST_TSAN)
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t n) {
  count(__builtin_return_address(0));
  return __libc_malloc(n);
}
void* calloc(std::size_t n, std::size_t size) {
  count(__builtin_return_address(0));
  return __libc_calloc(n, size);
}
void* realloc(void* p, std::size_t n) {
  count(__builtin_return_address(0));
  return __libc_realloc(p, n);
}
void* memalign(std::size_t align, std::size_t n) {
  count(__builtin_return_address(0));
  return __libc_memalign(align, n);
}
void* aligned_alloc(std::size_t align, std::size_t n) {
  count(__builtin_return_address(0));
  return __libc_memalign(align, n);
}
int posix_memalign(void** p, std::size_t align, std::size_t n) {
  count(__builtin_return_address(0));
  *p = __libc_memalign(align, n);
  return *p != nullptr ? 0 : ENOMEM;
}
}
#else
// If operator new were inlined, the compiler would warn about a pair of malloc and operator delete, and the return
// address would be that of another function.
[[gnu::noinline]] void* operator new(std::size_t n) {
  count(__builtin_return_address(0));
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new[](std::size_t n) {
  count(__builtin_return_address(0));
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  count(__builtin_return_address(0));
  return std::malloc(n ? n : 1);
}
[[gnu::noinline]] void* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
  count(__builtin_return_address(0));
  return std::malloc(n ? n : 1);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
#endif

using namespace tutti;

namespace {

// Returns the number of allocations in four steps (training, update, evaluation) after two warm-up steps.
inline long steady_allocations(Backend& backend, DType precision, bool preactivation) {
  const Graph model = testing::small_resnet(preactivation, 4, 12);
  Executor e(backend, model, {precision});
  testing::randomize(e, 1);
  const testing::Batch batch = testing::random_batch(model, 11, 1);
  std::vector<double> slots(2 * e.parameters().count);
  std::size_t ready = 0;
  const Executor::OnReady on_ready = [&ready](std::size_t slices) { ready = slices; };
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
    backend.update(SgdUpdate{}, u);
    backend.update(AdamwUpdate{}, u);
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

TEST_CASE("the counter counts allocations") {
  counting = true;
  std::vector<int> v(100);
  v[7] = 1;
  counting = false;
  CHECK(v[7] == 1);
  CHECK(allocations > 0);
}
TEST_CASE("the reference backend allocates no memory in a steady step") {
  ReferenceBackend backend;
  for (DType t : {DType::f64, DType::f32, DType::bf16})
    for (bool preactivation : {false, true}) CHECK(steady_allocations(backend, t, preactivation) == 0);
}
TEST_CASE("tutti's own kernels allocate no memory in a steady step") {
  CpuBackend backend({2});
  for (DType t : {DType::f32, DType::bf16})
    for (bool preactivation : {false, true}) CHECK(steady_allocations(backend, t, preactivation) == 0);
}
TEST_CASE("a steady step of a trainer allocates no memory, with logical ranks and without") {
  for (const int logical_ranks : {0, 1, 3}) {
    CAPTURE(logical_ranks);
    CpuBackend backend({2});
    Solo solo;
    const Graph model = testing::small_resnet(false, 4, 12);
    TrainerOptions o;
    o.logical_ranks = logical_ranks;
    o.clip_norm = 1;
    Trainer t(backend, solo, model, o);
    const testing::Batch given = testing::random_batch(model, 11, 1);
    Batch batch;
    batch.images = given.images;
    batch.labels = given.labels;
    batch.count = batch.global_count = 11;
    for (int i = 0; i < 3; ++i) t.step(batch, 0.01).wait();
    allocations = 0;
    counting = true;
    for (int i = 0; i < 4; ++i) t.step(batch, 0.01).wait();
    counting = false;
    CHECK(allocations == 0);
  }
}
#if defined(TUTTI_HAS_EIGEN)
TEST_CASE("eigen allocates no memory in a steady step") {
  EigenBackend backend({2});
  for (DType t : {DType::f32, DType::bf16})
    for (bool preactivation : {false, true}) CHECK(steady_allocations(backend, t, preactivation) == 0);
}
#endif
#if defined(TUTTI_HAS_ONEDNN)
namespace {

// Returns the base address of oneDNN's library; null if oneDNN is linked into this program.
void* onednn_library() {
  void* const library = module_of(dlsym(RTLD_DEFAULT, "dnnl_primitive_execute"));
  return library != module_of(reinterpret_cast<const void*>(&module_of)) ? library : nullptr;
}

}  // namespace

TEST_CASE("a steady step of the oneDNN backend allocates memory only inside the library") {
  if (!OnednnBackend::has_kernels()) {
    std::puts("SKIP: oneDNN has no kernels for this processor");
    return;
  }
  void* const library = onednn_library();
  if (library == nullptr) {
    std::puts("SKIP: oneDNN is linked statically, so that its allocations cannot be told apart");
    return;
  }
  std::array<void*, 1> frame;
  backtrace(frame.data(), 1);  // loads the libraries that backtrace() needs
  OnednnBackend backend({2});
  for (DType t : {DType::f32, DType::bf16})
    for (bool preactivation : {false, true}) {
      if (!backend.computes_in(t)) continue;
      apart = library;
      ours = 0;
      const long all = steady_allocations(backend, t, preactivation);
      apart = nullptr;
      CHECK(ours.load() == 0);
      MESSAGE("allocations inside oneDNN in four steps: " << all - ours);
    }
}

TEST_CASE("each allocation is attributed to the library or to the program") {
  void* const library = onednn_library();
  if (library == nullptr) {
    std::puts("SKIP: oneDNN is linked statically, so that its allocations cannot be told apart");
    return;
  }
  const auto ours_of = [&](auto&& f) {
    allocations = ours = 0;
    apart = library;
    counting = true;
    f();
    counting = false;
    apart = nullptr;
    return ours.load();
  };
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const dnnl::memory::desc layout({64}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::a);
  // The library allocates, and so does the shared_ptr in oneDNN's C++ header, which is compiled into this program.
  const long header = ours_of([&] { const dnnl::reorder made({engine, layout, engine, layout}); });
  CHECK(header > 0);
  CHECK(allocations.load() > header);
  CHECK(ours_of([] { std::string(100, 'x').push_back('y'); }) == 2);  // inside the C++ standard library
}
#endif
