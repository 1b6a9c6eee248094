// SPDX-License-Identifier: MIT
// Steps with SAM, and a cycle of the momentum, against PyTorch's numbers: README.md describes the file.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <tutti/comm/thread_communicator.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/graph/parameter_groups.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/optim/schedule.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/train/trainer.hpp>

#include "comm/thread_ranks.hpp"
#include "resnet8.hpp"

using namespace tutti;
using namespace tutti::golden;

namespace {

const Golden& file() {
  static const Golden g("optimizers.safetensors");
  return g;
}

Graph net(bool frozen) {
  Builder b(3, 6, 6);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = nn::batch_norm(b, "bn1", nn::conv(b, "conv1", x, {.out = 4}), {.relu = true});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::he_uniform, 1}));
  Graph g = std::move(b).take();
  if (frozen) freeze(g, "conv1.weight");
  return g;
}

// Visits the parameters and statistics in the order of the file: f(name, values, count).
template <class T, class F>
void each(Trainer& t, F&& f) {
  auto& e = t.executor();
  for (const char* name : {"conv1.weight", "bn1.weight", "bn1.bias", "fc.weight", "fc.bias"}) {
    const Slice& s = *e.parameters().find(name);
    f(name, static_cast<T*>(e.parameter_data()) + s.offset, s.count);
  }
  for (const char* name : {"bn1.running_mean", "bn1.running_var"}) {
    const Slice& s = *e.states().find(name);
    f(name, static_cast<T*>(e.state_data()) + s.offset, s.count);
  }
}

// Runs the steps of a case on one rank of a job, and returns weights and statistics after each.
template <class T>
Doubles run(Backend& backend, AnyStrategy strategy, std::int64_t every, bool frozen) {
  const int rank = strategy.rank(), world = strategy.size();
  Trainer t(backend, strategy, net(frozen),
            {.compute = sizeof(T) == 8 ? DType::f64 : DType::f32,
             .optimizer = Sgd{0.9, true},
             .weight_decay = file().number("decay"),
             .sam = {.rho = 0.5, .every = every}});
  each<T>(t, [&](const std::string& name, T* to, std::size_t) {
    if (name.find("running") != std::string::npos) return;
    for (const double v : file().plain("sam." + name)) *to++ = static_cast<T>(v);
  });
  t.executor().parameters_changed();
  const Doubles pixels = file().plain("sam.images"), numbers = file().plain("sam.labels");
  const std::vector<std::uint8_t> images(pixels.begin(), pixels.end());  // [steps, 8, 6, 6, 3]
  const std::vector<std::int32_t> labels(numbers.begin(), numbers.end());
  Doubles history;
  const std::size_t rows = 8 / static_cast<std::size_t>(world), image = 6 * 6 * 3;
  for (std::size_t step = 0; step < labels.size() / 8; ++step) {
    const std::size_t row = 8 * step + static_cast<std::size_t>(rank) * rows;
    const BatchView mine{images.data() + row * image, labels.data() + row, static_cast<std::int64_t>(rows)};
    t.step(mine, 8, 0.1).wait();
    each<T>(t,
            [&](const std::string&, const T* from, std::size_t n) { history.insert(history.end(), from, from + n); });
  }
  return history;
}

void check(const std::string& name, std::int64_t every, bool frozen = false) {
  ReferenceBackend reference;
  CpuBackend cpu({1});
  Solo solo;
  const Doubles expected = file().plain("sam." + name);
  compare(name + ", f64", run<double>(reference, AnyStrategy::refer(solo), every, frozen), expected, 1e-10);
  compare(name + ", f32", run<float>(cpu, AnyStrategy::refer(solo), every, frozen), expected, 1e-5);
}

}  // namespace

TEST_CASE("SAM equals Composer's: every step, every second one, and with frozen parameters") {
  check("every_1", 1);
  check("every_2", 2);
  check("frozen", 1, true);
}

TEST_CASE("each of two ranks perturbs the weights by the gradient of its own images") {
  const Doubles expected = file().plain("sam.ranks");
  run_ranks(2, [&](ThreadCommunicator& c) {
    AllReduce strategy(c);
    ReferenceBackend backend;
    const Doubles got = run<double>(backend, AnyStrategy::refer(strategy), 2, false);
    if (c.rank() == 0) compare("two ranks, f64", got, expected, 1e-10);
  });
}
