// SPDX-License-Identifier: MIT
// Tests the start of the CUDA backend on an emulated GPU (cuda_emulator.hpp), with stand-ins for the libraries'
// handles: slow preparations run concurrently, the code that needs a result gets the error, and the backend starts no
// preparation that it does not need.
#define TUTTI_CUDA_LINK_LIBRARIES
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <stdexcept>
#include <string>

#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/engine/executor.hpp>
#include <tutti/nn/layers.hpp>

#include "backends/emulated_cuda.hpp"
#include "engine/conformance.hpp"

using namespace tutti;

namespace {

// Every preparation that runs on its own thread calls enter().
class Makers {
 public:
  // Blocks until `together` threads have entered and `held` does not contain `name`. Returns whether it shall succeed.
  bool enter(const std::string& name) {
    std::unique_lock lock(mutex_);
    ++begun[name];
    ++count_;
    changed_.notify_all();
    const auto may_go = [&] { return alone || (count_ >= together && held.count(name) == 0); };
    if (!changed_.wait_for(lock, std::chrono::seconds(60), may_go)) {
      alone = true;
      changed_.notify_all();
    }
    ++ended[name];
    return failing.count(name) == 0;
  }
  // Returns how often threads have begun `name`. Waits until the first thread has begun, because it may start late.
  int begins(const std::string& name) {
    std::unique_lock lock(mutex_);
    (void)changed_.wait_for(lock, std::chrono::seconds(60), [&] { return begun.count(name) != 0; });
    return begun[name];
  }
  // All preparations that begin after this call succeed, and no preparation is held.
  void release() {
    const std::lock_guard lock(mutex_);
    held.clear();
    failing.clear();
    changed_.notify_all();
  }
  void reset() {
    begun.clear(), ended.clear(), failing.clear(), held.clear();
    together = count_ = 0;
    alone = false;
  }
  std::map<std::string, int> begun, ended;
  std::set<std::string> failing, held;
  int together = 0;
  bool alone = false;  // a thread has waited in vain for the other threads

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
} makers;

}  // namespace

std::size_t cudnn_version = 91900;

extern "C" {
std::size_t cudnnGetVersion() { return cudnn_version; }
cudnnStatus_t cudnnCreate(cudnnHandle_t* h) {
  *h = nullptr;
  if (!makers.enter("cudnn")) return CUDNN_STATUS_NOT_INITIALIZED;
  *h = reinterpret_cast<cudnnHandle_t>(1);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t) { return CUDNN_STATUS_SUCCESS; }
void cudnnGetLastErrorString(char* text, std::size_t) { *text = '\0'; }
const char* cudnnGetErrorString(cudnnStatus_t) { return "CUDNN_STATUS_NOT_INITIALIZED"; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* h) {
  *h = reinterpret_cast<cublasLtHandle_t>(1);
  return makers.enter("cublaslt") ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
const char* cublasLtGetStatusName(cublasStatus_t) { return "CUBLAS_STATUS_NOT_INITIALIZED"; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "not initialised"; }
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t) { return CUBLAS_STATUS_SUCCESS; }
}

namespace {

bool skipped() { return testing::no_emulator(); }

// Replaces convolutions by loops, but opens the library's own handle.
class Convolutions : public testing::LoopConvolutions {
 public:
  Convolutions(cuda::Device& d, const cuda::ConvolutionOptions& o) : LoopConvolutions(d, o), handle_(d) {}
  void begin() { handle_.begin(); }
  [[nodiscard]] std::size_t workspace_bytes(cuda::ConvPass pass, const cuda::ConvProblem& p) {
    (void)handle_.get();
    return LoopConvolutions::workspace_bytes(pass, p);
  }

 private:
  cuda::cudnn::Handle handle_;
};
class Gemms : public testing::LoopGemms {
 public:
  Gemms(cuda::Device& d, const cuda::GemmOptions& o) : LoopGemms(d, o), real_(d, o) {}
  void begin() { real_.begin(); }

 private:
  cuda::Gemms real_;
};
using Started = cuda::BasicCudaBackend<Convolutions, Gemms>;
static_assert(cuda::HasAsyncBegin<cuda::Convolutions> && cuda::HasAsyncBegin<cuda::Gemms>);

Graph net(bool linear) {
  Builder b(3, 8, 8);
  ValueId x = b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F});
  x = b.global_avg_pool("pool", nn::conv_bn(b, "conv1", "bn1", x, {.out = 8}, {.relu = true}));
  if (linear) {
    x = nn::linear(b, "fc", x, 4, {});
  } else {
    auto flat = std::make_shared<CustomOp>();
    flat->name = "flat";
    flat->shape = [](const CustomOp::Shapes& s) { return CustomOp::Shapes{{s.at(0)[0], s.at(0)[1]}}; };
    flat->forward["cuda"] = flat->backward["cuda"] = [](std::span<const TensorRef> in, std::span<const TensorRef> out) {
      const std::size_t bytes = static_cast<std::size_t>(out[0].shape.numel()) * size_of(out[0].dtype);
      emulator::Device::instance().submit(
          [to = out[0].data, from = in[0].data, bytes] { std::memcpy(to, from, bytes); });
    };
    x = b.custom("flat", flat, {x}).at(0);
  }
  b.softmax_cross_entropy(x);
  return std::move(b).take();
}

// Returns options with an empty folder for compiled programs.
CudaOptions options() {
  static int folders = 0;
  CudaOptions o = testing::emulated_options();
  o.kernel_folder = emulator::folder() / ("start" + std::to_string(folders++));
  emulator::Device::instance().compiles = [](const std::string& program) { return makers.enter(program); };
  makers.reset();
  return o;
}
struct End {
  ~End() {
    makers.release();
    emulator::Device::instance().compiles = {};
  }
};

}  // namespace

TEST_CASE("get() returns the object that was constructed in advance, or throws its error") {
  cuda::AsyncInit<int> a;
  CHECK_FALSE(a.begun());
  a.begin([] { return std::make_unique<int>(7); });
  CHECK(a.begun());
  a.begin([]() -> std::unique_ptr<int> { throw std::runtime_error("begun twice"); });
  CHECK(a.get() == 7);
  CHECK(&a.get() == &a.made());
  cuda::AsyncInit<int> bad;
  bad.begin([]() -> std::unique_ptr<int> { throw std::runtime_error("none"); });
  CHECK_THROWS_WITH_AS((void)bad.get(), "none", std::runtime_error);
  CHECK_FALSE(bad.begun());
  bad.begin([] { return std::make_unique<int>(8); });
  CHECK(bad.get() == 8);
  // The destructor waits until the construction has ended.
  bool done = false;
  std::mutex m;
  {
    std::unique_lock lock(m);
    cuda::AsyncInit<int> slow;
    slow.begin([&] {
      const std::lock_guard waits(m);
      done = true;
      return std::make_unique<int>(9);
    });
    lock.unlock();
  }
  CHECK(done);
}

TEST_CASE("the handles of cuDNN and cuBLASLt and the compiled programs are prepared concurrently") {
  if (skipped()) return;
  const End end;
  const CudaOptions o = options();
  makers.together = 4;
  const Graph graph = net(true);
  Started backend(o);
  Executor e(backend, graph);
  testing::randomize(e, 1);
  CHECK(e.train(testing::random_batch(graph, 4, 1).view(), {1, 0.25}).rows == 4);
  CHECK_FALSE(makers.alone);
  const std::map<std::string, int> once{{"cudnn", 1}, {"cublaslt", 1}, {"ops-f32.cu", 1}, {"updates.cu", 1}};
  CHECK(makers.begun == once);
  CHECK(makers.ended == once);
}

TEST_CASE("if one preparation fails, the code that needs its result gets the error, and the others complete") {
  if (skipped()) return;
  const End end;
  const Graph graph = net(true);
  const auto batch = testing::random_batch(graph, 4, 1);
  {
    const CudaOptions o = options();
    makers.failing = {"cudnn"};
    makers.held = {"ops-f32.cu"};
    makers.together = 4;
    {
      Started backend(o);
      Executor e(backend, graph);
      CHECK_THROWS_WITH_AS(e.prepare(4, true), doctest::Contains("[cudnn handle] expected a handle of emulated GPU"),
                           DeviceError);
      makers.release();
    }
    CHECK(makers.ended == makers.begun);
    CHECK(makers.begun.size() == 4);
    CHECK_FALSE(makers.alone);
  }
  for (const std::string program : {"ops-f32", "updates"}) {
    const CudaOptions o = options();
    makers.failing = {program + ".cu"};
    Started backend(o);
    Executor e(backend, graph);
    testing::randomize(e, 1);
    e.prepare(4, true);
    CHECK_THROWS_WITH_AS(e.train(batch.view(), {1, 0.25}),
                         doctest::Contains(("[nvrtc] expected " + program + " compiled for sm_90").c_str()),
                         DeviceError);
    // The next call succeeds.
    makers.release();
    CHECK(e.train(batch.view(), {1, 0.25}).rows == 4);
    CHECK(makers.begun[program + ".cu"] == 2);
  }
}

TEST_CASE("a cuDNN that does not support the GPU is refused, and the error gives the versions that do") {
  if (skipped()) return;
  const End end;
  const Graph graph = net(false);
  auto& device = emulator::Device::instance();
  // Returns the error of the step's preparation, or an empty text without an error.
  const auto message = [&](int major, int minor, std::size_t version) {
    const CudaOptions o = options();
    device.major = major;
    device.minor = minor;
    device.runtime = 12090;
    cudnn_version = version;
    std::string said;
    try {
      Started backend(o);
      Executor e(backend, graph);
      e.prepare(4, true);
    } catch (const DeviceError& e) {
      said = e.what();
    }
    device.major = 9;
    device.minor = 0;
    device.runtime = CUDART_VERSION;
    cudnn_version = 91900;
    return said;
  };
  for (const std::size_t version : {std::size_t{90800}, std::size_t{91002}}) CHECK(message(7, 0, version).empty());
  for (const std::size_t version : {std::size_t{90701}, std::size_t{91100}, std::size_t{91900}}) {
    const std::string said = message(7, 0, version);
    CAPTURE(said);
    CHECK(said.starts_with("[cudnn] expected cuDNN 9.8 to 9.10 for emulated GPU of compute capability 7.0, got 9."));
    CHECK(said.find("hint: install cuDNN 9.10 (pip's nvidia-cudnn-cu12==9.10.2.21)") != std::string::npos);
  }
  CHECK(message(7, 5, 91900).empty());
  CHECK(message(9, 0, 91100).empty());
  CHECK(message(9, 0, 90701).starts_with("[cudnn] expected cuDNN 9.8 or newer, got 9.7.1"));
}

TEST_CASE("cuBLASLt is opened only for nets with a fully connected layer") {
  if (skipped()) return;
  const End end;
  const CudaOptions o = options();
  Started backend(o);
  {
    const Graph graph = net(false);
    Executor e(backend, graph);
    testing::randomize(e, 1);
    e.train(testing::random_batch(graph, 4, 1).view(), {1, 0.25});
  }
  CHECK(makers.begun.count("cublaslt") == 0);
  CHECK(makers.begun["cudnn"] == 1);
  for (int i = 0; i < 2; ++i) {
    const Graph graph = net(true);
    Executor e(backend, graph);
    testing::randomize(e, 1);
    e.train(testing::random_batch(graph, 4, 1).view(), {1, 0.25});
  }
  CHECK(makers.begins("cublaslt") == 1);
  CHECK(makers.begins("cudnn") == 1);
}
