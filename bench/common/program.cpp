// SPDX-License-Identifier: MIT
#include "program.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/isa.hpp>
#include <tutti/core/threads/threads.hpp>
#include <tutti/engine/cpu/winograd/shapes.hpp>

#include "machine.hpp"
#include "net.hpp"

namespace tutti::bench {

namespace {

bool failed = false;
constexpr int least_steps = 5;
constexpr double most_seconds = 0.3;

int parse_threads(std::string_view text) {
  int n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < 1 || n > 1024)
    fail<UsageError>("--threads", "1 to 1024", std::string(text));
  return n;
}

// Removes the options of this program from the arguments and returns them.
Options take_options(std::vector<char*>& args) {
  Options o;
  const auto take = [&args](std::string_view flag, auto&& set) {
    for (std::size_t i = 1; i < args.size();) {
      const std::string_view a = args[i];
      std::size_t used = 0;
      if (a == flag) {
        if (i + 1 == args.size()) fail<UsageError>(std::string(flag), "a value", "no value");
        set(std::string_view(args[i + 1]));
        used = 2;
      } else if (a.starts_with(flag) && a.substr(flag.size()).starts_with('=')) {
        set(a.substr(flag.size() + 1));
        used = 1;
      }
      const auto at = args.begin() + static_cast<std::ptrdiff_t>(i);
      args.erase(at, at + static_cast<std::ptrdiff_t>(used));
      if (used == 0) ++i;
    }
  };
  take("--threads", [&](std::string_view v) { o.threads = parse_threads(v); });
  take("--convolution", [&](std::string_view v) {
    static_cast<void>(cpu::parse_convolution_algorithm(v));
    o.convolution = v;
  });
  if (o.threads == 0) o.threads = usable_cores();
  return o;
}

void add_context(const Options& o, Limit limit) {
  std::string names;
  for (const BackendInfo& b : backends()) names += (names.empty() ? "" : "; ") + b.name + " (" + b.description + ")";
  const auto whole = [](double v) { return std::to_string(std::lround(v)); };
  benchmark::AddCustomContext("backend", names);
  benchmark::AddCustomContext("isa", std::string(cpu::name_of(cpu::detect_isa())));
  benchmark::AddCustomContext("threads", std::to_string(o.threads));
  benchmark::AddCustomContext("convolution", o.convolution);
  if (limit == Limit::multiply_adds) {
    benchmark::AddCustomContext("peak_gflops_f32", whole(peak(DType::f32, o.threads)));
    benchmark::AddCustomContext("peak_gflops_bf16", whole(peak(DType::bf16, o.threads)));
  } else if (limit == Limit::memory) {
    benchmark::AddCustomContext("memory_gbytes_per_s", whole(memory_bandwidth(o.threads)));
  }
}

// Returns the net of the last benchmark if the key is the same: the passes of one op run one after the other and share
// the net.
Net& net_of(const std::string& key, const std::function<std::unique_ptr<Net>()>& make) {
  static std::string last;
  static std::unique_ptr<Net> net;
  if (!net || key != last) {
    net.reset();
    net = make();
    last = key;
  }
  return *net;
}

void time_pass(benchmark::State& state, const OpBenchmark& op, const Pass& pass, DType precision,
               const std::string& backend, const Options& options) {
  const std::string name = op.name + "/" + std::string(name_of(precision)) + "/" + backend;
  try {
    Net& net = net_of(
        name, [&] { return make_net(backend, options.threads, options.convolution, op.model(), precision, op.rows); });
    const NodeId node = pass.node(net.graph());
    // Google Benchmark counts only the time of the op, so a short op would make its net run thousands of steps. A run
    // stops after most_seconds of wall clock, and counts the mean of its steps for the remaining iterations.
    const Stopwatch wall;
    int steps = 0;
    double seconds = 0;
    for (auto _ : state) {
      if (steps >= least_steps && wall.seconds() > most_seconds) {
        state.SetIterationTime(seconds / steps);
        continue;
      }
      net.step();
      const double s = net.seconds(node);
      state.SetIterationTime(s);
      seconds += s;
      ++steps;
    }
    state.counters["steps"] = steps;
    const double rate = steps / seconds * 1e-9;
    if (pass.flops > 0) {
      state.counters["GFLOP/s"] = pass.flops * rate;
      if (net.on_processor()) state.counters["%peak"] = 100 * pass.flops * rate / peak(precision, net.threads());
    }
    if (pass.elements > 0) {
      double bytes = 0, least = 0;  // of a step, and the seconds x 1e9 that the same traffic takes
      for (const Traffic& t : pass.loops) {
        const double some = (t.reads + t.writes) * pass.elements * static_cast<double>(size_of(precision));
        bytes += some;
        if (net.on_processor()) least += some / memory_bandwidth(net.threads(), t);
      }
      state.counters["GB/s"] = bytes * rate;
      if (net.on_processor()) state.counters["%bandwidth"] = 100 * least * rate;
    }
  } catch (const std::exception& e) {
    report_failure(name, e.what());
    state.SkipWithError(e.what());
  }
}

}  // namespace

void report_failure(const std::string& name, const char* what) {
  std::fprintf(stderr, "%s: %s\n", name.c_str(), what);
  failed = true;
}

void add_op(const OpBenchmark& op, const Options& options) {
  // The reference loops reach about 1 GFLOP/s or 1 GB/s.
  const bool small = std::all_of(op.passes.begin(), op.passes.end(),
                                 [](const Pass& p) { return p.flops <= 5e7 && p.elements <= 1e6; });
  for (const DType precision : {DType::f32, DType::bf16})
    for (const BackendInfo& b : backends()) {
      if (precision == DType::bf16 && !b.bf16) continue;
      if (b.name == "reference" && !small) continue;
      for (const Pass& pass : op.passes) {
        const std::string name =
            op.name + "/" + std::string(name_of(precision)) + "/" + b.name + "/" + std::string(pass.direction);
        const auto time = [op, pass, precision, backend = b.name, options](benchmark::State& state) {
          time_pass(state, op, pass, precision, backend, options);
        };
        benchmark::RegisterBenchmark(name.c_str(), time)->UseManualTime()->Unit(benchmark::kMicrosecond);
      }
    }
}

int run(int argc, char** argv, Limit limit, const std::function<void(const Options&)>& add) try {
  std::vector<char*> args(argv, argv + argc);
  const Options o = take_options(args);
  // Google Benchmark's default of 0.5 s for each op is too long for hundreds of ops.
  std::string min_time = "--benchmark_min_time=0.02";
  args.insert(args.begin() + 1, min_time.data());
  int count = static_cast<int>(args.size());
  args.push_back(nullptr);
  benchmark::Initialize(&count, args.data());
  if (benchmark::ReportUnrecognizedArguments(count, args.data())) return static_cast<int>(ExitCode::usage);
  // Does not print the context before a list of names.
  const bool list = std::any_of(argv, argv + argc, [](const char* a) {
    return std::string_view(a) == "--benchmark_list_tests" || std::string_view(a) == "--benchmark_list_tests=true";
  });
  if (!list) add_context(o, limit);
  add(o);
  const std::size_t matched = benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  if (matched == 0) return static_cast<int>(ExitCode::usage);
  return failed ? static_cast<int>(ExitCode::internal) : 0;
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return e.exit_code();
}

}  // namespace tutti::bench
