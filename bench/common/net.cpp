// SPDX-License-Identifier: MIT
#include "net.hpp"

#include <algorithm>
#include <utility>

#include <tutti/backends/make.hpp>
#include <tutti/engine/executor.hpp>

#include "cuda_net.hpp"
#include "engine/conformance.hpp"

namespace tutti::bench {

namespace {

class NetOn final : public Net {
 public:
  NetOn(std::unique_ptr<Backend> backend, const Graph& model, DType precision, std::int64_t rows)
      : backend_(std::move(backend)),
        executor_(*backend_, model, {precision}),
        batch_(testing::random_batch(model, rows, 1)),
        plan_(executor_.prepare(rows, true)) {
    testing::randomize(executor_, 1);
    executor_.profile(&profile_);
    step();
  }

  void step() override {
    for (auto& cell : profile_.nodes) cell.fill(0);
    executor_.train(batch_.view(), {1, 1.0 / static_cast<double>(batch_.rows)});
  }
  [[nodiscard]] double seconds(NodeId node) const override {
    const auto i = static_cast<std::size_t>(node);
    double sum = 0;
    for (const Phase p : {Phase::whole, Phase::reduce, Phase::finish, Phase::apply})
      sum += static_cast<double>(profile_.nodes[i][static_cast<std::size_t>(p)]) * 1e-9 / sharers(i, p);
    return sum;
  }
  [[nodiscard]] const Graph& graph() const override { return executor_.graph(); }
  [[nodiscard]] int threads() const override { return backend_->threads(); }

 private:
  // Returns how many threads share a phase of a node.
  [[nodiscard]] int sharers(std::size_t node, Phase p) const {
    const Partition& part = plan_.partitions[node];
    if (p == Phase::finish) return std::min(backend_->threads(), part.tasks);
    const auto shards = static_cast<int>(std::min<std::int64_t>(plan_.shards, plan_.rows));
    return std::max(1, std::min(backend_->threads(), part.division == Division::whole ? part.tasks : shards));
  }

  std::unique_ptr<Backend> backend_;
  Executor executor_;
  testing::Batch batch_;
  const Plan& plan_;
  Executor::Profile profile_;
};

}  // namespace

std::vector<BackendInfo> backends() {
  std::vector<BackendInfo> all;
  if (const std::string gpu = gpu_name(); !gpu.empty()) all.push_back({"cuda", gpu, true});
  BackendOptions one;
  one.threads = 1;
  for (const std::string& word : built_backends()) {
    if (word == "cuda") continue;
    const auto backend = make_backend(word, one);
    all.push_back({word, backend->description(), backend->computes_in(DType::bf16)});
  }
  return all;
}

std::unique_ptr<Net> make_net(const std::string& backend, int threads, const std::string& convolution,
                              const Graph& model, DType precision, std::int64_t rows) {
  if (backend == "cuda") return make_cuda_net(model, precision, rows);
  BackendOptions o;
  o.threads = threads;
  if (backend != "reference") o.convolution = convolution;
  o.where = "bench";
  return std::make_unique<NetOn>(make_backend(backend, o), model, precision, rows);
}

}  // namespace tutti::bench
