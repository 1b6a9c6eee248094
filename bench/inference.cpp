// SPDX-License-Identifier: MIT
// Measures the forward pass of a net without training, on images in memory. Prints one line of JSON: milliseconds of a
// batch, images per second, peak memory, and with --profile the time of each op.
#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/make.hpp>
#include <tutti/core/clock.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/engine/inference.hpp>
#include <tutti/graph/initialize.hpp>
#include <tutti/graph/summary.hpp>
#include <tutti/version.hpp>

#include "common/models.hpp"

using namespace tutti;

namespace {

constexpr const char* help_text =
    "usage: inference [--model resnet50] [--batch 1] [--precision f32|bf16] [--threads 0] [--seconds 3]\n"
    "                 [--backend auto] [--no-fold] [--profile]\n"
    "Measures the forward pass of a net on images in memory. --no-fold keeps the batch norms. --profile prints the\n"
    "processor time of each op. Models: those of tutti_step.\n";

struct Args {
  std::string model = "resnet50", precision = "f32", backend = "auto";
  int batch = 1, threads = 0;
  double seconds = 3;
  bool fold = true, profile = false;
};

Args parse(int argc, char** argv) {
  Args a;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help") {
      std::fputs(help_text, stdout);
      std::exit(0);
    }
    if (flag == "--no-fold") {
      a.fold = false;
      continue;
    }
    if (flag == "--profile") {
      a.profile = true;
      continue;
    }
    if (i + 1 == argc) fail<UsageError>(flag, "a known option with its value", "none", "see --help");
    const std::string value = argv[++i];
    const auto number = [&](double least) {
      char* end = nullptr;
      const double v = std::strtod(value.c_str(), &end);
      if (value.empty() || *end != '\0' || !(v >= least && v <= 1e6)) fail<UsageError>(flag, "a number", value);
      return v;
    };
    if (flag == "--model")
      a.model = value;
    else if (flag == "--precision")
      a.precision = value;
    else if (flag == "--backend")
      a.backend = value;
    else if (flag == "--batch")
      a.batch = static_cast<int>(number(1));
    else if (flag == "--threads")
      a.threads = static_cast<int>(number(0));
    else if (flag == "--seconds")
      a.seconds = number(0.01);
    else
      fail<UsageError>(flag, "a known option", "none", "see --help");
  }
  if (a.precision != "f32" && a.precision != "bf16") fail<UsageError>("--precision", "f32 or bf16", a.precision);
  return a;
}

// Returns the net with its initial weights.
WeightedGraph random_net(const Graph& forward) {
  WeightedGraph net{inference_graph(forward), {}};
  for (const Value& v : net.graph.values) {
    std::vector<float>& to = net.values.emplace_back();
    if (v.storage != Storage::parameter && v.storage != Storage::state) continue;
    to.resize(static_cast<std::size_t>(v.shape.numel()));
    initialize(to.data(), v.shape, v.init, 1, v.name);
  }
  return net;
}

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

double cpu_seconds() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  const auto of = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return of(u.ru_utime) + of(u.ru_stime);
}

void print_profile(const Inference& net, const PlanWalk::Profile& p, double runs) {
  std::vector<std::pair<double, std::string>> rows;
  double all = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const Node& n = net.graph().nodes[i];
    double ms = 0;
    for (const std::int64_t ns : p[i]) ms += static_cast<double>(ns) / 1e6 / runs;
    rows.emplace_back(ms, std::string(name_of(n.op)) + " " + n.name + " " + to_string(net.graph()[n.inputs[0]]) +
                              " -> " + to_string(net.graph()[n.outputs[0]]));
    all += ms;
  }
  for (const auto& [ms, name] : rows)
    std::fprintf(stderr, "%9.4f ms  %4.1f %%  %s\n", ms, 100 * ms / all, name.c_str());
  std::fprintf(stderr, "%9.4f ms of thread time in ops\n", all);
}

int run(const Args& a) {
  BackendOptions o;
  o.gpu = false;
  o.threads = a.threads;
  o.bf16 = a.precision == "bf16";
  o.where = "--backend";
  const auto backend = make_backend(a.backend, o);
  const Builder model = bench::make_model(a.model);
  const DType compute = a.precision == "bf16" ? DType::bf16 : DType::f32;
  Inference net(*backend, random_net(model.graph()), {compute, a.fold});
  std::vector<std::uint8_t> images(static_cast<std::size_t>(a.batch) * net.image_bytes());
  Rng rng(1, Purpose::synthetic);
  for (std::uint8_t& p : images) p = static_cast<std::uint8_t>(rng.next());
  for (int i = 0; i < 3; ++i) (void)net.logits(images);
  PlanWalk::Profile profile;
  if (a.profile) net.profile(&profile);
  std::vector<double> times;
  const double cpu = cpu_seconds();
  const Stopwatch all;
  while (all.seconds() < a.seconds || times.empty()) {
    const Stopwatch one;
    (void)net.logits(images);
    times.push_back(1e3 * one.seconds());
  }
  const double used = cpu_seconds() - cpu;
  if (a.profile) print_profile(net, profile, static_cast<double>(times.size()));
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  const double ms = median(times);
  std::printf(
      "{\"system\":\"tutti %s %s\",\"how\":\"%s\",\"model\":\"%s\",\"precision\":\"%s\",\"batch\":%d,\"threads\":%d,"
      "\"flop_per_image\":%lld,\"batch_ms\":%.4f,\"images_per_second\":%.2f,\"images_per_cpu_second\":%.2f,"
      "\"peak_rss_mib\":%.1f}\n",
      version, backend->name().c_str(), backend->description().c_str(), a.model.c_str(), a.precision.c_str(), a.batch,
      backend->threads(), static_cast<long long>(forward_flops(model.graph())), ms, 1e3 * a.batch / ms,
      static_cast<double>(times.size()) * a.batch / used, static_cast<double>(u.ru_maxrss) / 1024);
  return 0;
}

}  // namespace

int main(int argc, char** argv) try { return run(parse(argc, argv)); } catch (const Error& e) {
  std::fprintf(stderr, "inference: %s\n", e.what());
  return e.exit_code();
}
