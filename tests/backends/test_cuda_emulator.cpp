// SPDX-License-Identifier: MIT
// Tests the emulated GPU itself (cuda_emulator.hpp): the calls that it refuses, and faults that a processor would
// ignore.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <nvrtc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "backends/cuda_emulator.hpp"
#include "backends/emulator/ptx.hpp"

using namespace tutti;

// tutti_add_program() links the components of included headers. This test needs only the backend's CUDA headers.
#include <tutti/backends/cuda/error.hpp>

namespace {

emulator::Device& device() { return emulator::Device::instance(); }

struct Streams {
  cudaStream_t own = nullptr, side = nullptr;
  cudaEvent_t first = nullptr, second = nullptr;
  Streams() {
    cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
    cudaStreamCreateWithPriority(&side, cudaStreamNonBlocking, 0);
    cudaEventCreateWithFlags(&first, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&second, cudaEventDisableTiming);
  }
  ~Streams() {
    cudaStreamDestroy(side);
    cudaEventDestroy(first);
    cudaEventDestroy(second);
  }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
};

// Calls f during a capture, and returns the result of the capture's end.
cudaError_t captured(cudaStream_t s, const std::function<void()>& f) {
  REQUIRE(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  f();
  cudaGraph_t graph = nullptr;
  const cudaError_t e = cudaStreamEndCapture(s, &graph);
  CHECK((graph != nullptr) == (e == cudaSuccess));
  if (graph != nullptr) cudaGraphDestroy(graph);
  return e;
}

// Calls f in a child process. Returns the signal that ends the process, and its last output.
std::string end_of(const std::function<void()>& f) {
  std::array<int, 2> pipe{};
  REQUIRE(::pipe(pipe.data()) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    for (const int s : {SIGABRT, SIGSEGV, SIGILL}) ::signal(s, SIG_DFL);
    ::dup2(pipe[1], 2);
    f();
    ::_exit(0);
  }
  ::close(pipe[1]);
  std::string text;
  std::array<char, 1000> part{};
  for (ssize_t n = 0; (n = ::read(pipe[0], part.data(), part.size())) > 0;)
    text.append(part.data(), static_cast<std::size_t>(n));
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return (WIFSIGNALED(status) ? "signal: " : "no signal: ") + text;
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Kernels of this file, by name.
class Kernels {
 public:
  Kernels(const char* source, const std::vector<const char*>& names) {
    nvrtcProgram p = nullptr;
    nvrtcCreateProgram(&p, source, "test.cu", 0, nullptr, nullptr);
    for (const char* n : names) nvrtcAddNameExpression(p, n);
    REQUIRE(nvrtcCompileProgram(p, 0, nullptr) == NVRTC_SUCCESS);
    std::size_t size = 0;
    nvrtcGetCUBINSize(p, &size);
    std::vector<char> code(size);
    nvrtcGetCUBIN(p, code.data());
    cudaLibraryLoadData(&library_, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
    for (const char* n : names) {
      const char* symbol = nullptr;
      nvrtcGetLoweredName(p, n, &symbol);
      REQUIRE(cudaLibraryGetKernel(&list_.emplace_back(), library_, symbol) == cudaSuccess);
    }
    nvrtcDestroyProgram(&p);
  }
  ~Kernels() { cudaLibraryUnload(library_); }
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;
  template <class... A>
  void run(std::size_t k, unsigned blocks, unsigned threads, A... a) {
    std::array<void*, sizeof...(A)> p{static_cast<void*>(&a)...};
    REQUIRE(cudaLaunchKernel(reinterpret_cast<const void*>(list_[k]), dim3(blocks), dim3(threads), p.data(), 0,
                             nullptr) == cudaSuccess);
    device().finish();
  }

 private:
  cudaLibrary_t library_ = nullptr;
  std::vector<cudaKernel_t> list_;
};

constexpr char source[] = R"(
__global__ void shared_sum(float* out) {
  __shared__ float room[4];
  if (threadIdx.x < 3) room[threadIdx.x] = 1.0f;
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = room[0] + room[1] + room[2] + room[3];
}
__global__ void last_thread(int* out) { out[blockIdx.x] = threadIdx.x; }
__global__ void write_at(float* out, int i) { out[i] = 1.0f; }
struct __attribute__((aligned(16))) Four { float v[4]; };
__global__ void write_four(float* out, int i) { *(Four*)(out + i) = Four(); }
__global__ void index(float* out, int i) {
  __shared__ float room[8];
  room[i] = 1.0f;
  out[0] = room[i];
}
template <int N>
__global__ void multiply_add(float* out, float a, float b, float c) { out[0] = a * b + c; }
__global__ void rounded(float* out, float a, float b, float c) { out[0] = __fadd_rn(__fmul_rn(a, b), c); }
)";
const std::vector<const char*> names{"shared_sum",      "last_thread",     "write_at",        "write_four",
                                     "index",           "multiply_add<0>", "multiply_add<1>", "multiply_add<2>",
                                     "multiply_add<3>", "rounded"};

}  // namespace

TEST_CASE("a CUDA call that is not allowed during a capture invalidates the capture") {
  const Streams s;
  std::array<char, 16> pageable{};
  void *memory = nullptr, *pinned = nullptr;
  cudaMalloc(&memory, 16);
  cudaHostAlloc(&pinned, 16, cudaHostAllocPortable);
  cudaEventRecord(s.first, s.own);
  void* p = nullptr;
  const std::vector<std::function<cudaError_t()>> calls{
      [&] { return cudaMalloc(&p, 8); },
      [&] { return cudaFree(memory); },
      [&] { return cudaHostAlloc(&p, 8, cudaHostAllocPortable); },
      [&] { return cudaFreeHost(pinned); },
      [&] { return cudaEventQuery(s.first); },
      [&] { return cudaEventSynchronize(s.first); },
      [&] { return cudaStreamSynchronize(s.own); },
      [&] { return cudaStreamSynchronize(s.side); },
      [&] { return cudaMemcpyAsync(memory, pageable.data(), 16, cudaMemcpyHostToDevice, s.own); },
      [&] { return cudaMemcpyAsync(pageable.data(), memory, 16, cudaMemcpyDeviceToHost, s.own); }};
  for (const auto& call : calls) {
    cudaError_t said = cudaSuccess;
    CHECK(captured(s.own, [&] { said = call(); }) == cudaErrorStreamCaptureInvalidated);
    CHECK(said == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaGetLastError() != cudaSuccess);
  }
  CHECK(captured(s.own, [&] {
          CHECK(cudaMemcpyAsync(memory, pinned, 16, cudaMemcpyHostToDevice, s.own) == cudaSuccess);
        }) == cudaSuccess);
  // A stream that captures cannot wait for work that is not part of the graph.
  CHECK(captured(s.own, [&] { CHECK(cudaStreamWaitEvent(s.own, s.first, 0) == cudaErrorStreamCaptureIsolation); }) ==
        cudaErrorStreamCaptureInvalidated);
  CHECK(cudaFree(memory) == cudaSuccess);
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
}

TEST_CASE("a stream that a capture forks must join again, and its event must not be queried") {
  const Streams s;
  const auto fork = [&] {
    cudaEventRecord(s.first, s.own);
    cudaStreamWaitEvent(s.side, s.first, 0);
    device().submit(s.side, [] {});
  };
  CHECK(captured(s.own, fork) == cudaErrorStreamCaptureUnjoined);
  CHECK(cudaEventQuery(s.first) == cudaErrorCapturedEvent);
  CHECK(cudaEventSynchronize(s.first) == cudaErrorCapturedEvent);
  CHECK(captured(s.own, [&] {
          fork();
          cudaEventRecord(s.second, s.side);
          device().submit(s.side, [] {});
          cudaStreamWaitEvent(s.own, s.second, 0);
        }) == cudaErrorStreamCaptureUnjoined);
  CHECK(captured(s.own, [&] {
          fork();
          cudaEventRecord(s.second, s.side);
          cudaStreamWaitEvent(s.own, s.second, 0);
        }) == cudaSuccess);
  cudaEventRecord(s.first, s.own);
  CHECK(cudaEventSynchronize(s.first) == cudaSuccess);
}

TEST_CASE("the emulator runs work on side streams early in one replay and late in the next") {
  const Streams s;
  std::string order;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cudaStreamBeginCapture(s.own, cudaStreamCaptureModeThreadLocal);
  device().submit(s.own, [&] { order += 'a'; });
  cudaEventRecord(s.first, s.own);
  cudaStreamWaitEvent(s.side, s.first, 0);
  device().submit(s.side, [&] { order += 'X'; });
  cudaEventRecord(s.second, s.side);
  device().submit(s.own, [&] { order += 'b'; });
  cudaStreamWaitEvent(s.own, s.second, 0);
  device().submit(s.own, [&] { order += 'c'; });
  REQUIRE(cudaStreamEndCapture(s.own, &graph) == cudaSuccess);
  cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphLaunch(executable, s.own);
  cudaGraphLaunch(executable, s.own);
  device().finish();
  CHECK(order == "abXcaXbc");
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST_CASE("a copy into pageable memory waits, a copy into pinned memory does not") {
  const Streams s;
  void *memory = nullptr, *pinned = nullptr;
  cudaMalloc(&memory, 16);
  cudaHostAlloc(&pinned, 16, cudaHostAllocPortable);
  std::array<char, 16> pageable{};
  int work = 0;
  device().submit(s.side, [&] { ++work; });
  cudaMemcpyAsync(pinned, memory, 16, cudaMemcpyDeviceToHost, s.side);
  CHECK(work == 0);
  cudaMemcpyAsync(pageable.data(), memory, 16, cudaMemcpyDeviceToHost, s.side);
  CHECK(work == 1);
  const std::string said = end_of([&] {
    device().patience = 0;
    device().submit(
        s.side, [] {}, nullptr, [] { return false; });
    cudaMemcpyAsync(pageable.data(), memory, 16, cudaMemcpyDeviceToHost, s.side);
  });
  CHECK_MESSAGE(contains(said, "signal: emulator: the host waits without a deadline for what never ends"), said);
  cudaFree(memory);
  cudaFreeHost(pinned);
}

TEST_CASE("kernels start with NaNs in shared memory, run their threads in three orders, and errors name their faults") {
  Kernels k(source, names);
  void* memory = nullptr;
  cudaMalloc(&memory, 64 * sizeof(float));
  auto* const f = static_cast<float*>(memory);
  auto* const n = static_cast<int*>(memory);
  if (emulator::from_ptx()) {
    // Kernels from PTX are checked: these two read what no thread wrote, and write one place from all threads.
    CHECK(contains(end_of([&] { k.run(0, 3, 32, f); }), "a read of shared memory that was not written"));
    CHECK(contains(end_of([&] { k.run(1, 3, 32, n); }), "a race in global memory: write after a write"));
  } else {
    k.run(0, 3, 32, f);
    for (int i = 0; i < 3; ++i) CHECK(f[i] != f[i]);
    k.run(1, 3, 32, n);
    CHECK(n[0] == 31);
    CHECK(n[1] == 0);
    CHECK(n[2] != 31);
    CHECK(n[2] != 0);
  }
  k.run(2, 1, 1, f, 63);
  std::string said = end_of([&] { k.run(2, 1, 1, f, 64); });
  CHECK_MESSAGE(contains(said, "signal: emulator: memory that is not allocated in kernel write_at, block 0,0"), said);
  said = end_of([&] { k.run(2, 1, 1, f, -1024); });
  CHECK_MESSAGE(contains(said, "memory that is not allocated"), said);
  k.run(3, 1, 1, f, 4);
  said = end_of([&] { k.run(3, 1, 1, f, 5); });
  CHECK_MESSAGE(contains(said, "signal: emulator: data that is not aligned"), said);
  said = end_of([&] { k.run(4, 1, 1, f, 8); });
  CHECK_MESSAGE(contains(said, "an index out of bounds in kernel index"), said);
  cudaFree(memory);
  // The inaccessible pages do not catch an access less than a page after the data. release() detects it.
  void* odd = nullptr;
  cudaMalloc(&odd, 4);
  said = end_of([&] {
    k.run(2, 1, 1, static_cast<float*>(odd), 1);
    cudaFree(odd);
  });
  // With kernels from PTX (emulator/ptx.hpp), the store itself is checked.
  const bool early = contains(said, "signal: emulator: memory that is not allocated in kernel write_at");
  CHECK_MESSAGE((early || contains(said, "signal: emulator: memory was written behind an allocation")), said);
  cudaFree(odd);

  // (1 + 2^-12)^2 minus its rounded value: 2^-24 if the compiler contracts the product and the sum to an FMA.
  if (emulator::contracts()) {
    float* out = nullptr;
    cudaMalloc(reinterpret_cast<void**>(&out), 4);
    const float a = 1 + 0x1p-12F, c = -(1 + 0x1p-11F);
    const auto left = [&](std::size_t kernel) {
      k.run(kernel, 1, 1, out, a, a, c);
      return *out;
    };
    device().contraction = emulator::Contraction::none;
    CHECK(left(5) == 0);
    device().contraction = emulator::Contraction::all;
    CHECK(left(5) == 0x1p-24F);
    CHECK(left(9) == 0);
    device().contraction = emulator::Contraction::some;
    int contracted = 0;
    for (device().seed = 0; device().seed < 4; ++device().seed)
      for (std::size_t i = 5; i < 9; ++i) contracted += left(i) != 0;
    CHECK(contracted > 0);
    CHECK(contracted < 16);
    device().seed = 0;
    cudaFree(out);
  }
}
