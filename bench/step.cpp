// SPDX-License-Identifier: MIT
// Measures whole training steps on synthetic data. Prints one line of JSON: images per second, peak memory, and with
// --profile the time of each kind of op.
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <tutti/backends/make.hpp>
#include <tutti/core/clock.hpp>
#include <tutti/engine/executor.hpp>
#include <tutti/graph/initialize.hpp>
#include <tutti/graph/summary.hpp>
#include <tutti/io/safetensors/safetensors_write.hpp>
#include <tutti/tensor/memory.hpp>
#include <tutti/version.hpp>
#ifdef TUTTI_HAS_CUDA
#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/trainer.hpp>
#endif
#ifdef TUTTI_HAS_NCCL
#include <tutti/backends/nccl/nccl.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/strategy.hpp>
#endif

#include "common/models.hpp"
#include "step/options.hpp"

using namespace tutti;
using namespace tutti::bench;

namespace {

// Fills a batch with random images and labels.
void fill_batch(std::uint8_t* images, std::int32_t* labels, std::int64_t rows, std::int64_t row_numel) {
  Rng rng(1, Purpose::synthetic);
  for (std::int64_t i = 0; i < rows * row_numel; ++i) images[i] = static_cast<std::uint8_t>(rng.next());
  for (std::int64_t i = 0; i < rows; ++i) labels[i] = static_cast<std::int32_t>(rng.below(10));
}

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

inline void fill_weights(Executor& e) {
  for (const Value& v : e.graph().values) {
    if (v.storage != Storage::parameter && v.storage != Storage::state) continue;
    const bool state = v.storage == Storage::state;
    const Slice& s = *(state ? e.states() : e.parameters()).find(v.name);
    initialize(static_cast<float*>(state ? e.state_data() : e.parameter_data()) + s.offset, s.shape, v.init, 1, s.name);
  }
  e.parameters_changed();
}

inline void print_profile(const Executor& e, const Executor::Profile& p, double steps, double cpu_seconds,
                          double update_seconds) {
  std::map<std::string, double> by_op;
  double all = 0;
  for (std::size_t i = 0; i < p.nodes.size(); ++i)
    for (std::size_t k = 0; k < 4; ++k) {
      static constexpr const char* phases[] = {"", " reduce", " finish", " apply"};
      const double ms = static_cast<double>(p.nodes[i][k]) / 1e6 / steps;
      if (ms == 0) continue;
      const Node& n = e.graph().nodes[i];
      std::string key = std::string(name_of(n.op)) + phases[k];
      if (key.find("conv") == 0)
        key.append(" ")
            .append(to_string(e.graph()[n.inputs[0]]))
            .append(" -> ")
            .append(to_string(e.graph()[n.outputs[0]]));
      by_op[key] += ms;
      all += ms;
    }
  std::vector<std::pair<double, std::string>> rows;
  for (const auto& [k, v] : by_op) rows.emplace_back(v, k);
  std::sort(rows.rbegin(), rows.rend());
  for (const auto& [ms, name] : rows)
    std::fprintf(stderr, "%9.3f ms  %4.1f %%  %s\n", ms, 100 * ms / all, name.c_str());
  std::fprintf(stderr,
               "%9.3f ms  of thread time a step in ops; %.3f ms in the update, %.3f ms in packing and waiting\n", all,
               1e3 * update_seconds / steps, 1e3 * (cpu_seconds - update_seconds) / steps - all);
}

// A net with its batch. It runs training steps with the update.
class Steps {
 public:
  Steps(Backend& backend, const Args& a)
      : backend_(backend),
        rows_(a.batch),
        model_(bench::make_model(a.model)),
        e_(backend, model_.graph(), {dtype_of_words(a.precision)}) {
    fill_weights(e_);
    const Shape s = model_.shape(model_.images());
    images_.resize(static_cast<std::size_t>(rows_ * s.row_numel()));
    labels_.resize(static_cast<std::size_t>(rows_));
    fill_batch(images_.data(), labels_.data(), rows_, s.row_numel());
    momentum_ = Buffer(backend.memory(), e_.parameters().bytes());
  }

  Metrics operator()() {
    const Metrics m = e_.train({images_.data(), labels_.data(), rows_}, {1, 1.0 / static_cast<double>(rows_)});
    UpdateCall u;
    u.weights = e_.parameter_data();
    u.gradients = e_.gradient_data();
    u.slots[0] = momentum_.data();
    u.count = e_.parameters().count;
    u.lr = 0.01;
    u.weight_decay = 1e-4;
    const double cpu = cpu_seconds();
    const Stopwatch wall;
    backend_.update(SgdUpdate{0.9, false}, u);
    update_seconds_ += wall.seconds();
    update_cpu_seconds_ += cpu_seconds() - cpu;
    e_.parameters_changed();
    return m;
  }
  void forget_updates() { update_seconds_ = update_cpu_seconds_ = 0; }

  [[nodiscard]] Executor& executor() { return e_; }
  [[nodiscard]] Shape images_shape() const { return model_.shape(model_.images()).with_rows(rows_); }
  [[nodiscard]] const std::vector<std::uint8_t>& images() const { return images_; }
  [[nodiscard]] const std::vector<std::int32_t>& labels() const { return labels_; }
  // The seconds of the update, by the wall clock and as CPU time of all threads.
  [[nodiscard]] double update_seconds() const { return update_seconds_; }
  [[nodiscard]] double update_cpu_seconds() const { return update_cpu_seconds_; }

  static double cpu_seconds() {
    rusage u{};
    getrusage(RUSAGE_SELF, &u);
    return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
  }

 private:
  Backend& backend_;
  std::int64_t rows_;
  Builder model_;
  Executor e_;
  std::vector<std::uint8_t> images_;
  std::vector<std::int32_t> labels_;
  Buffer momentum_;  // allocated as in the trainer, in huge pages if the system has them
  double update_seconds_ = 0, update_cpu_seconds_ = 0;
};

// Returns the peak of resident memory since reset_peak(), or since the process began, in MiB.
double peak_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0) return std::strtod(line.c_str() + 6, nullptr) / 1024;
  fail<UsageError>("/proc/self/status", "a line VmHWM", "no such line");
}
void reset_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

// Adds records of the current weights with `prefix` before their names, and copies of their values.
void add_weights(Executor& e, const std::string& prefix, std::vector<std::vector<float>>& kept,
                 std::vector<io::TensorRecord>& records) {
  for (const bool state : {false, true})
    for (const Slice& s : (state ? e.states() : e.parameters()).slices) {
      const auto* from = static_cast<const float*>(state ? e.state_data() : e.parameter_data()) + s.offset;
      const auto& copy = kept.emplace_back(from, from + s.shape.numel());
      records.push_back({prefix + s.name, DType::f32, s.shape, std::as_bytes(std::span(copy))});
    }
}

void dump(Backend& backend, const Args& a) {
  if (a.precision != "f32") fail<UsageError>("--dump", "--precision f32", a.precision);
  Steps steps(backend, a);
  std::vector<std::vector<float>> kept;
  std::vector<io::TensorRecord> records;
  add_weights(steps.executor(), "before.", kept, records);
  const Shape s = steps.images_shape();
  records.push_back({"images", DType::u8, Shape{s[0], s[2], s[3], s[1]}, std::as_bytes(std::span(steps.images()))});
  records.push_back({"labels", DType::i32, Shape{s[0]}, std::as_bytes(std::span(steps.labels()))});
  const auto loss = static_cast<float>(steps().mean_loss());
  const TensorRef logits = steps.executor().value(steps.executor().graph().logits);
  records.push_back({"logits",
                     DType::f32,
                     logits.shape,
                     {static_cast<const std::byte*>(logits.data), static_cast<std::size_t>(logits.shape.numel()) * 4}});
  records.push_back({"loss", DType::f32, Shape{1}, std::as_bytes(std::span(&loss, 1))});
  add_weights(steps.executor(), "after.", kept, records);
  for (const Slice& sl : steps.executor().parameters().slices) {
    const auto* g = static_cast<const float*>(steps.executor().gradient_data()) + sl.offset;
    records.push_back({"gradient." + sl.name, DType::f32, sl.shape,
                       std::as_bytes(std::span(g, static_cast<std::size_t>(sl.shape.numel())))});
  }
  io::save_safetensors(a.dump, records);
}

inline void measure(Backend& backend, const Args& a) {
  Steps step(backend, a);
  Executor& e = step.executor();
  for (int i = 0; i < 3; ++i) step();
  reset_peak();
  Executor::Profile profile;
  if (a.profile) e.profile(&profile);
  std::vector<double> windows;
  double steps = 0;
  step.forget_updates();
  const double cpu_before = Steps::cpu_seconds();
  const Stopwatch all;
  while (all.seconds() < a.seconds || windows.empty()) {
    Stopwatch w;
    int n = 0;
    for (; n == 0 || w.seconds() < std::min(0.5, a.seconds / 5); ++n) step();
    windows.push_back(n * a.batch / w.seconds());
    steps += n;
  }
  const double cpu_used = Steps::cpu_seconds() - cpu_before, wall_used = all.seconds();
  if (a.profile) print_profile(e, profile, steps, cpu_used, step.update_cpu_seconds());
  const auto m = e.memory();
  std::fprintf(stderr, "%s: %s, %d threads; MiB: activations %.1f, scratch %.1f, packed %.1f, parameters %.1f\n",
               backend.name().c_str(), backend.description().c_str(), backend.threads(),
               static_cast<double>(m.activations) / 1048576, static_cast<double>(m.scratch) / 1048576,
               static_cast<double>(m.packed) / 1048576, static_cast<double>(m.parameters) / 1048576);
  // FLOPs of a trained image: those of the forward pass, and twice as many for the backward pass. The update takes the
  // same time for each step, whatever the batch.
  std::printf(
      "{\"system\":\"tutti %s %s\",\"how\":\"%s\",\"model\":\"%s\",\"precision\":\"%s\",\"batch\":%d,\"threads\":%d,"
      "\"parameters\":%lld,\"flop_per_image\":%lld,\"images_per_second\":%.2f,\"images_per_cpu_second\":%.2f,"
      "\"step_ms\":%.4f,\"update_ms\":%.4f,\"step_cpu_ms\":%.4f,\"update_cpu_ms\":%.4f,\"peak_rss_mib\":%.1f}\n",
      version, backend.name().c_str(), backend.description().c_str(), a.model.c_str(), a.precision.c_str(), a.batch,
      backend.threads(), static_cast<long long>(parameter_count(e.graph())),
      static_cast<long long>(3 * forward_flops(e.graph())), median(windows), steps * a.batch / cpu_used,
      1e3 * wall_used / steps, 1e3 * step.update_seconds() / steps, 1e3 * cpu_used / steps,
      1e3 * step.update_cpu_seconds() / steps, peak_mib());
}

#ifdef TUTTI_HAS_CUDA
// On a GPU, the trainer runs the whole step with its update, on images in pinned memory.
template <DistributedStrategy S>
void measure_on_gpu(CudaBackend& backend, S& strategy, const Args& a) {
  const Builder b = bench::make_model(a.model);
  TrainerOptions o;
  o.compute = dtype_of_words(a.precision);
  o.optimizer = Sgd{0.9, false};
  o.dynamic_loss_scale = o.compute == DType::f16;
  Trainer trainer(backend, strategy, b.graph(), o);
  const std::int64_t row = b.shape(b.images()).row_numel();
  const auto images = cuda::allocate_pinned(static_cast<std::size_t>(a.batch * row));
  const auto labels = cuda::allocate_pinned(static_cast<std::size_t>(a.batch) * sizeof(std::int32_t));
  const BatchView batch{static_cast<std::uint8_t*>(images.get()), static_cast<std::int32_t*>(labels.get()), a.batch};
  fill_batch(static_cast<std::uint8_t*>(images.get()), static_cast<std::int32_t*>(labels.get()), a.batch, row);
  const auto step = [&] { trainer.step(std::span(&batch, 1), a.batch * strategy.size(), 0.01); };
  // First the libraries load their kernels. Then the step is captured.
  for (int i = 0; i < 5; ++i) step();
  trainer.take_metrics();
  std::vector<double> windows;
  for (Stopwatch all; all.seconds() < a.seconds || windows.empty();) {
    const Stopwatch w;
    int n = 0;
    for (; n == 0 || w.seconds() < std::min(0.5, a.seconds / 5); ++n) step();
    trainer.take_metrics();  // waits
    windows.push_back(n * a.batch / w.seconds());
  }
  const auto m = trainer.executor().memory();
  const auto mib = [](std::size_t n) { return static_cast<double>(n) / 1048576; };
  std::fprintf(stderr, "%s: %s; MiB: activations %.1f, packed %.1f, parameters %.1f, free on the GPU %.1f\n",
               backend.name().c_str(), backend.description().c_str(), mib(m.activations), mib(m.packed),
               mib(m.parameters), mib(backend.free_bytes()));
  std::printf(
      "{\"system\":\"tutti %s %s\",\"model\":\"%s\",\"precision\":\"%s\",\"batch\":%d,\"strategy\":\"%s\","
      "\"images_per_second\":%.1f}\n",
      version, backend.name().c_str(), a.model.c_str(), a.precision.c_str(), a.batch, strategy.name().c_str(),
      median(windows));
}

#ifdef TUTTI_HAS_NCCL
// A single rank that still reduces its gradients. The trainer skips work that a strategy of one rank does not need, so
// this class reports a second rank, which adds only zeros.
class OneRank : public AllReduce<NcclCommunicator> {
 public:
  using AllReduce::AllReduce;
  [[nodiscard]] Membership membership() const { return {0, 2, 0}; }
};
#endif

int run_on_gpu(const Args& a) {
  CudaOptions o;
  o.device = a.device;
  o.tf32 = a.tf32;
  o.autotune = a.autotune;
  o.fusion = parse_cuda_fusion(a.fusion);
  o.recompute = a.recompute;
  o.graph = a.graph;
  CudaBackend backend(o);
  if (a.nccl) {
#ifdef TUTTI_HAS_NCCL
    NcclCommunicator one(backend.device());
    OneRank strategy(one);
    measure_on_gpu(backend, strategy, a);
    return 0;
#else
    fail<UsageError>("--nccl", "a build with NCCL", "a build without it", "install libnccl-dev and build again");
#endif
  }
  Solo strategy;
  measure_on_gpu(backend, strategy, a);
  const auto [as_one, in_steps] = backend.fusions();
  std::fprintf(stderr, "fused convolutions of the plans: %d by cuDNN, %d step by step\n", as_one, in_steps);
  return 0;
}
#endif

}  // namespace

int main(int argc, char** argv) try {
  const Args a = parse(argc, argv);
#ifdef TUTTI_HAS_CUDA
  if (a.backend == "cuda") return run_on_gpu(a);
#endif
  BackendOptions o;
  o.gpu = false;
  o.threads = a.threads;
  o.bf16 = a.precision == "bf16";
  o.convolution = a.convolution;
  o.where = "--backend";
  const auto backend = make_backend(a.backend, o);
  if (a.reuse_weights) backend->reuse_weights();
  if (a.dump.empty())
    measure(*backend, a);
  else
    dump(*backend, a);
  return 0;
} catch (const Error& e) {
  std::fprintf(stderr, "tutti_step: %s\n", e.what());
  return e.exit_code();
}
