// SPDX-License-Identifier: MIT
#include "cuda_net.hpp"

#ifdef TUTTI_HAS_CUDA
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/engine/executor.hpp>

#include "engine/conformance.hpp"
#endif

namespace tutti::bench {

#ifdef TUTTI_HAS_CUDA

namespace {

// Returns options with which each op is launched separately.
CudaOptions unfused() {
  CudaOptions o;
  o.fusion = CudaFusion::off;
  return o;
}

// A backend that records an event before and after each op.
class TimedCuda : public CudaBackend {
 public:
  TimedCuda() : CudaBackend(unfused()) {}

  [[nodiscard]] std::unique_ptr<Kernel> kernel(const Op& op, const NodeDesc& desc) override {
    return std::make_unique<Timed>(*this, op.index(), CudaBackend::kernel(op, desc));
  }
  void begin_step() { ++step_; }
  // Returns the seconds of node `n` in the last step, which has ended.
  [[nodiscard]] double seconds(const Node& n) const {
    const auto found = spans_.find({n.name, n.op.index()});
    if (found == spans_.end() || found->second.step != step_)
      fail<UsageError>("bench", "a separate op in layer '" + n.name + "'", "a fused op");
    found->second.end->wait();
    return found->second.end->seconds_since(*found->second.begin);
  }

 private:
  struct Span {
    std::optional<cuda::Event> begin, end;
    std::int64_t step = -1;
  };
  // A kernel that records an event before and after another kernel.
  class Timed final : public Kernel {
   public:
    Timed(TimedCuda& b, std::size_t kind, std::unique_ptr<Kernel> kernel)
        : b_(b), kind_(kind), kernel_(std::move(kernel)) {}
    [[nodiscard]] Partition cut() override { return kernel_->cut(); }
    [[nodiscard]] std::size_t packed_bytes() override { return kernel_->packed_bytes(); }
    void pack(const TensorRef& weights, void* to) override { kernel_->pack(weights, to); }
    void prepare(const PrepareInfo& info) override { kernel_->prepare(info); }
    void run(Call& c) override {
      Span& s = b_.spans_[{std::string(c.node), kind_}];
      if (!s.begin) {
        s.begin.emplace(b_.device(), true);
        s.end.emplace(b_.device(), true);
      }
      if (s.step != b_.step_) s.begin->record(b_.device().stream());
      s.step = b_.step_;
      kernel_->run(c);
      s.end->record(b_.device().stream());
    }

   private:
    TimedCuda& b_;
    std::size_t kind_;
    std::unique_ptr<Kernel> kernel_;
  };
  std::map<std::pair<std::string, std::size_t>, Span> spans_;
  std::int64_t step_ = 0;
};

class CudaNet final : public Net {
 public:
  CudaNet(const Graph& model, DType precision, std::int64_t rows)
      : executor_(backend_, model, {precision}), batch_(testing::random_batch(model, rows, 1)) {
    testing::randomize(executor_, 1);
    step();
  }
  void step() override {
    backend_.begin_step();
    executor_.train(batch_.view(), {1, 1.0 / static_cast<double>(batch_.rows)});
    backend_.synchronise();
  }
  [[nodiscard]] double seconds(NodeId node) const override {
    return backend_.seconds(executor_.graph().nodes[static_cast<std::size_t>(node)]);
  }
  [[nodiscard]] const Graph& graph() const override { return executor_.graph(); }
  [[nodiscard]] int threads() const override { return 1; }
  [[nodiscard]] bool on_processor() const override { return false; }

 private:
  TimedCuda backend_;
  Executor executor_;
  testing::Batch batch_;
};

}  // namespace

std::string gpu_name() {
  static const std::string name = [] {
    try {
      const cuda::Device device(0);
      return device.name();
    } catch (const DeviceError&) {
      return std::string();
    }
  }();
  return name;
}

std::unique_ptr<Net> make_cuda_net(const Graph& model, DType precision, std::int64_t rows) {
  return std::make_unique<CudaNet>(model, precision, rows);
}

#else

std::string gpu_name() { return ""; }

std::unique_ptr<Net> make_cuda_net(const Graph&, DType, std::int64_t) {
  fail<UsageError>("bench", "a backend that was built", "cuda");
}

#endif

}  // namespace tutti::bench
