// SPDX-License-Identifier: MIT
// Whole training steps on synthetic data: images per second, peak memory, and with --profile the time of each kind of
// op.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/graph/initialize.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/resnet_cifar.hpp>
#include <tutti/train/executor.hpp>
#include <tutti/version.hpp>
#ifdef TUTTI_HAS_ONEDNN
#include <tutti/backends/onednn/onednn.hpp>
#endif
#ifdef TUTTI_HAS_EIGEN
#include <tutti/backends/eigen/eigen.hpp>
#endif

using namespace tutti;

namespace {

struct Args {
  std::string model = "resnet20", precision = "f32", backend = "auto";
  int batch = 128, threads = 0;
  double seconds = 5;
  bool profile = false;
};

Builder build(const std::string& model) {
  const bool large = model == "resnet50";
  Builder b(3, large ? 224 : 32, large ? 224 : 32);
  const ValueId x = b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F});
  if (model == "resnet20")
    models::resnet_cifar(b, x, {.depth = 20});
  else if (model == "resnet18")
    models::resnet(b, x, {.depth = 18, .classes = 10, .cifar_stem = true});
  else if (large)
    models::resnet(b, x, {.depth = 50});
  else
    fail<UsageError>("step", "--model resnet20, resnet18 or resnet50", model);
  return b;
}

template <Backend B>
void fill_weights(Executor<B>& e) {
  for (const Value& v : e.graph().values) {
    if (v.storage != Storage::parameter && v.storage != Storage::state) continue;
    const bool state = v.storage == Storage::state;
    const Slice& s = *(state ? e.states() : e.parameters()).find(v.name);
    initialize(static_cast<float*>(state ? e.state_data() : e.parameter_data()) + s.offset, s.shape, v.init, 1, s.name);
  }
  e.parameters_changed();
}

template <Backend B>
void print_profile(const Executor<B>& e, const typename Executor<B>::Profile& p, double steps, double cpu_seconds,
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

template <Backend B>
void measure(B& backend, const Args& a) {
  const Builder b = build(a.model);
  Executor<B> e(backend, b.graph(), {a.precision == "bf16" ? DType::bf16 : DType::f32});
  fill_weights(e);
  const Shape s = b.shape(b.images());
  std::vector<std::uint8_t> images(static_cast<std::size_t>(a.batch * s.row_numel()));
  std::vector<std::int32_t> labels(static_cast<std::size_t>(a.batch));
  Rng rng(1, Purpose::synthetic);
  for (auto& v : images) v = static_cast<std::uint8_t>(rng.next());
  for (auto& v : labels) v = static_cast<std::int32_t>(rng.below(10));
  std::vector<float> momentum(e.parameters().count);
  const StepScalars scalars{1, 1.0 / a.batch};
  const auto cpu_seconds = [] {
    rusage u{};
    getrusage(RUSAGE_SELF, &u);
    return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
  };
  double update_seconds = 0;
  const auto step = [&] {
    e.train({images.data(), labels.data(), a.batch}, scalars);
    UpdateCall u;
    u.weights = e.parameter_data();
    u.gradients = e.gradient_data();
    u.slots[0] = momentum.data();
    u.count = e.parameters().count;
    u.lr = 0.01;
    u.weight_decay = 1e-4;
    const double before = cpu_seconds();
    backend.update(op::SgdUpdate{0.9, false}, u);
    update_seconds += cpu_seconds() - before;
    e.parameters_changed();
  };
  for (int i = 0; i < 3; ++i) step();
  typename Executor<B>::Profile profile;
  if (a.profile) e.profile(&profile);
  std::vector<double> windows;
  double steps = 0;
  update_seconds = 0;
  const double cpu_before = cpu_seconds();
  for (Stopwatch all; all.seconds() < a.seconds || windows.empty();) {
    Stopwatch w;
    int n = 0;
    for (; n == 0 || w.seconds() < std::min(0.5, a.seconds / 5); ++n) step();
    windows.push_back(n * a.batch / w.seconds());
    steps += n;
  }
  std::nth_element(windows.begin(), windows.begin() + static_cast<std::ptrdiff_t>(windows.size() / 2), windows.end());
  const double cpu_used = cpu_seconds() - cpu_before, per_cpu_second = steps * a.batch / cpu_used;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  if (a.profile) print_profile(e, profile, steps, cpu_used, update_seconds);
  const auto m = e.memory();
  std::fprintf(stderr, "%s: %s, %d threads; MiB: activations %.1f, scratch %.1f, packed %.1f, parameters %.1f\n",
               backend.name().c_str(), backend.description().c_str(), backend.threads(),
               static_cast<double>(m.activations) / 1048576, static_cast<double>(m.scratch) / 1048576,
               static_cast<double>(m.packed) / 1048576, static_cast<double>(m.parameters) / 1048576);
  std::printf(
      "{\"system\":\"tutti %s %s\",\"model\":\"%s\",\"precision\":\"%s\",\"batch\":%d,\"threads\":%d,"
      "\"images_per_second\":%.1f,\"images_per_cpu_second\":%.1f,\"peak_rss_mib\":%.1f}\n",
      version, backend.name().c_str(), a.model.c_str(), a.precision.c_str(), a.batch, backend.threads(),
      windows[windows.size() / 2], per_cpu_second, static_cast<double>(usage.ru_maxrss) / 1024);
}

Args parse(int argc, char** argv) {
  Args a;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--profile") {
      a.profile = true;
      continue;
    }
    if (i + 1 == argc) fail<UsageError>("step", "a value after " + flag, "none");
    const std::string value = argv[++i];
    if (flag == "--model")
      a.model = value;
    else if (flag == "--precision")
      a.precision = value;
    else if (flag == "--backend")
      a.backend = value;
    else if (flag == "--batch")
      a.batch = std::stoi(value);
    else if (flag == "--threads")
      a.threads = std::stoi(value);
    else if (flag == "--seconds")
      a.seconds = std::stod(value);
    else
      fail<UsageError>("step", "--model --batch --precision --threads --seconds --backend --profile", flag);
  }
  return a;
}

}  // namespace

int main(int argc, char** argv) try {
  const Args a = parse(argc, argv);
#ifdef TUTTI_HAS_ONEDNN
  if (a.backend == "auto" || a.backend == "onednn") {
    Onednn b({a.threads});
    measure(b, a);
    return 0;
  }
#endif
#ifdef TUTTI_HAS_EIGEN
  if (a.backend == "auto" || a.backend == "eigen") {
    EigenBackend b({a.threads});
    measure(b, a);
    return 0;
  }
#endif
  fail<UsageError>("step", "a backend that was built", a.backend);
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return e.exit_code();
}
