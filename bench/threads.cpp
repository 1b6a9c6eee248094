// SPDX-License-Identifier: MIT
// Predicts from the plan how evenly a step spreads over many threads, and how much memory it takes. It needs no machine
// with so many threads and runs no step. Each task of the plan has a cost: its multiply-adds at the peak of a core, or
// the bytes that it moves at a core's share of the memory bandwidth, whichever takes longer. Each loop gives its next
// task to the thread that is free first, as the thread pool does. Winograd's convolutions count by their products, in
// f32, without the transforms. Prints a table in Markdown.
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/make.hpp>
#include <tutti/engine/cpu/winograd/winograd_ops.hpp>
#include <tutti/engine/executor.hpp>
#include <tutti/engine/plan/prepared_plan.hpp>
#include <tutti/graph/summary.hpp>

#include "common/models.hpp"

using namespace tutti;

namespace {

constexpr const char* help_text =
    "usage: threads [--model resnet50] [--batch 256] [--precision f32|bf16] [--backend auto]\n"
    "               [--convolution auto|direct|winograd] [--threads 2,16,32,64] [--gflops 250] [--gbytes 10] "
    "[--loops]\n"
    "--gflops, --gbytes: per core and second. --gflops is 250 by default, and 500 in bf16. Memory is compared with "
    "the\n"
    "first number of threads. --loops prints, for the last number of threads, the loops of a step that lose the most\n"
    "time, in milliseconds of the wall clock, and the parts of the memory.\n";

struct Args {
  std::string model = "resnet50", precision = "f32", backend = "auto", convolution = "auto";
  std::int64_t batch = 256;
  std::vector<int> threads{2, 16, 32, 64};
  double gflops = 0, gbytes = 10;
  bool loops = false;
};

// The cost of a loop with a number of threads, in seconds.
struct Loop {
  double longest = 0, all = 0;
};
Loop hand_out(const std::vector<double>& tasks, int threads) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free;
  for (int t = 0; t < threads; ++t) free.push(0);
  Loop l;
  for (const double seconds : tasks) {
    const double end = free.top() + seconds;
    free.pop();
    free.push(end);
    l.longest = std::max(l.longest, end);
    l.all += seconds;
  }
  return l;
}

class Count {
 public:
  Count(const Args& a, const PreparedPlan& p) : a_(a), g_(*p.graph), p_(p.plan), kernels_(p.kernels) {}

  // Calls f(name, costs of the tasks) for each loop of a step. The update is the last one.
  template <class F>
  void loops(std::size_t parameters, F&& f) const {
    std::vector<double> packs;
    for (const Pack& k : p_.packs)
      packs.push_back(
          cost(0, static_cast<double>(k.bytes + static_cast<std::size_t>(g_[k.parameter].shape.numel()) * 4)));
    f("packing of weights", packs);
    for (const Segment& seg : p_.segments) {
      const std::string name = g_.nodes[static_cast<std::size_t>(seg.steps[0].node)].name;
      if (seg.whole) {
        const NodeId n = seg.steps[0].node;
        const int tasks = partition(n).tasks;
        f(name + ", parts", std::vector<double>(static_cast<std::size_t>(tasks),
                                                cost(products(n), bytes(n)) / tasks * static_cast<double>(p_.rows)));
        continue;
      }
      double row = 0;
      for (const Step& s : seg.steps) {
        const bool late = late_products(s.node), sums = s.phase == Phase::reduce && two_pass(s.node);
        // The bytes for each row that the op writes of a partial result as large as the batch.
        const double partial =
            late ? static_cast<double>(partition(s.node).partial_bytes) * p_.shards / static_cast<double>(p_.rows) : 0;
        row += cost(late || sums ? 0 : products(s.node), bytes(s.node) + partial);
      }
      std::vector<double> shards, finishes;
      for (int s = 0; s < p_.shards; ++s)
        shards.push_back(row * static_cast<double>(p_.shard_begin(s + 1) - p_.shard_begin(s)));
      f(name + " to " + g_.nodes[static_cast<std::size_t>(seg.steps.back().node)].name, shards);
      for (const NodeId n : seg.finishes) {
        const Partition& part = partition(n);
        const double work = cost(late_products(n) ? products(n) * static_cast<double>(p_.rows) : 0,
                                 static_cast<double>(part.partial_bytes) * p_.shards);
        finishes.insert(finishes.end(), static_cast<std::size_t>(part.tasks), work / part.tasks);
      }
      if (!finishes.empty()) f(name + ", sums of shards", finishes);
    }
    // The chunks of CpuOps. They read weights, gradients and momentum, and write two of them.
    constexpr std::size_t block = 16 * 1024;
    f("update", std::vector<double>((parameters + block - 1) / block, cost(0, 5.0 * 4 * block)));
  }

 private:
  static bool is_weight_gradient(const Op& op) {
    return std::holds_alternative<op::Conv2dBackwardWeights>(op) ||
           std::holds_alternative<op::LinearBackwardWeights>(op);
  }
  [[nodiscard]] double cost(double products, double bytes) const {
    return std::max(products, bytes / (a_.gbytes * 1e9));
  }
  [[nodiscard]] const Partition& partition(NodeId n) const { return p_.partitions[static_cast<std::size_t>(n)]; }
  [[nodiscard]] bool two_pass(NodeId n) const { return partition(n).division == Division::two_pass; }
  // Returns true if the finish phase computes the products from data that the shards have prepared.
  [[nodiscard]] bool late_products(NodeId n) const {
    const auto* const gradient = kernel<cpu::winograd::Conv2dBackwardWeights>(n);
    return partition(n).late_rows || (gradient != nullptr && gradient->whole_batch());
  }
  template <class K>
  [[nodiscard]] const K* kernel(NodeId n) const {
    return dynamic_cast<const K*>(kernels_[static_cast<std::size_t>(n)].get());
  }
  // Returns the seconds that a core needs for the products of one row.
  [[nodiscard]] double products(NodeId n) const {
    using namespace cpu::winograd;
    const double peak = a_.gflops * 1e9;
    if (kernel<Convolution>(n) == nullptr && kernel<cpu::winograd::Conv2dBackwardWeights>(n) == nullptr)
      return flops(n) / peak;
    const Node& node = g_.nodes[static_cast<std::size_t>(n)];
    NodeDesc d;
    for (const ValueId v : node.inputs) d.in.push_back(p_.desc(v));
    for (const ValueId v : node.outputs) d.out.push_back(p_.desc(v));
    const Problem p = *problem_of(node.op, d);
    const auto tiles = [](std::int64_t extent) { return (extent + tile - 1) / tile; };
    const std::int64_t count = tiles(p.window.out_h(p.h)) * tiles(p.window.out_w(p.w)) *
                               order_of(p.window.stride == 2).count * p.channels * p.outputs;
    return 2.0 * static_cast<double>(count) / (p.bf16 ? peak / 2 : peak);
  }
  // Returns the FLOPs of one row.
  [[nodiscard]] double flops(NodeId n) const {
    const Node& node = g_.nodes[static_cast<std::size_t>(n)];
    const auto of = [&](ValueId w, ValueId y) {
      const Shape& s = g_[y].shape;
      return 2.0 * static_cast<double>(g_[w].shape.numel()) * static_cast<double>(s.rank() == 4 ? s[2] * s[3] : 1);
    };
    if (is_weight_gradient(node.op)) return of(node.outputs[0], node.inputs[1]);
    if (std::holds_alternative<op::Conv2dBackwardData>(node.op) ||
        std::holds_alternative<op::LinearBackwardData>(node.op))
      return of(node.inputs[1], node.inputs[0]);
    return static_cast<double>(forward_flops(g_, node));
  }
  [[nodiscard]] double bytes(NodeId n) const {
    const Node& node = g_.nodes[static_cast<std::size_t>(n)];
    double sum = 0;
    for (const auto* list : {&node.inputs, &node.outputs})
      for (const ValueId v : *list)
        if (g_[v].per_row && p_.values[static_cast<std::size_t>(v)].where != ValueStorage::scratch)
          sum += static_cast<double>(p_.desc(v).row_bytes());
    return sum;
  }

  const Args& a_;
  const Graph& g_;
  const Plan& p_;
  const std::vector<std::unique_ptr<Kernel>>& kernels_;
};

// Returns the bytes of address space in use. malloc has one arena (see main), because otherwise each thread would
// reserve its own arena at an unpredictable time.
double address_space() {
  std::ifstream status("/proc/self/statm");
  double pages = 0;
  status >> pages;
  return pages * 4096;
}

// Prints a row, and the loops if an option requests them. Returns the bytes of memory.
double print_row(const Args& a, int threads, double first) {
  const Builder model = bench::make_model(a.model);
  BackendOptions o;
  o.gpu = false;
  o.threads = threads;
  o.convolution = a.convolution;
  o.where = "--backend";
  const auto backend = make_backend(a.backend, o);
  Executor e(*backend, model.graph(), {a.precision == "bf16" ? DType::bf16 : DType::f32});
  PreparedPlan p;
  p.graph = &e.graph();
  PlanOptions plan;
  plan.rows = a.batch;
  plan.compute = e.compute();
  plan.master = e.parameters().dtype;
  plan.shards = backend->shards();
  plan.chunk_bytes = backend->chunk_bytes();
  p.plan = make_plan(e.graph(), plan, plan_queries(*backend, p), e.parameters(), e.states());
  const double before = address_space();
  prepare_kernels(*backend, p);
  const double rooms = address_space() - before;

  double longest = 0, all = 0, serial = 0;
  std::vector<std::pair<double, std::string>> lost;
  Count(a, p).loops(e.parameters().count, [&](const std::string& name, const std::vector<double>& tasks) {
    const Loop l = hand_out(tasks, threads);
    longest += l.longest;
    all += l.all;
    if (tasks.size() == 1) serial += l.longest;
    lost.emplace_back(l.longest - l.all / threads, name + ", " + std::to_string(tasks.size()) + " tasks");
  });
  const double even = all / threads;
  const double memory = static_cast<double>(p.plan.activation_bytes + p.plan.packed_bytes +
                                            p.plan.scratch_bytes * static_cast<std::size_t>(threads) +
                                            3 * e.parameters().bytes() + e.states().bytes()) +
                        rooms;
  std::printf("| %7d | %6d | %14.3f | %10.1f %% | %11.0f | %+11.1f %% |\n", threads, p.plan.shards, longest / even,
              100 * serial / longest, memory / 1048576, first > 0 ? 100 * (memory / first - 1) : 0.0);
  if (a.loops && threads == a.threads.back()) {
    std::printf("\nMiB: activations and partial sums %.0f, packed weights %.0f, scratch %.0f, memory of kernels %.0f\n",
                static_cast<double>(p.plan.activation_bytes) / 1048576,
                static_cast<double>(p.plan.packed_bytes) / 1048576,
                static_cast<double>(p.plan.scratch_bytes) * threads / 1048576, rooms / 1048576);
    std::printf("\n%.1f ms if all tasks were even; lost:\n", 1e3 * even);
    std::sort(lost.rbegin(), lost.rend());
    for (std::size_t i = 0; i < std::min<std::size_t>(16, lost.size()); ++i)
      std::printf("%8.3f ms  %s\n", 1e3 * lost[i].first, lost[i].second.c_str());
  }
  return memory;
}

// Prints the whole table and returns an exit code.
int print(const Args& a) {
  std::printf("%s, batch %lld, %s, %.0f GFLOP/s and %.0f GB/s per core\n\n", a.model.c_str(),
              static_cast<long long>(a.batch), a.precision.c_str(), a.gflops, a.gbytes);
  std::printf("| threads | shards | longest / even | serial part | memory, MiB | to %d threads |\n", a.threads[0]);
  std::printf("|--------:|-------:|---------------:|-------------:|------------:|-------------:|\n");
  double first = 0;
  for (const int threads : a.threads) {
    // Each row runs in a separate process, so that it does not reuse memory of another row.
    std::fflush(stdout);
    int ends[2];
    if (pipe(ends) != 0) fail<DeviceError>("threads", "a pipe", std::strerror(errno));
    const pid_t child = fork();
    if (child < 0) fail<DeviceError>("threads", "a process", std::strerror(errno));
    if (child == 0) {
      int code = 0;
      try {
        const double memory = print_row(a, threads, first);
        if (write(ends[1], &memory, sizeof memory) != sizeof memory) code = 1;
      } catch (const Error& e) {
        std::fprintf(stderr, "threads: %s\n", e.what());
        code = e.exit_code();
      }
      std::fflush(stdout);
      _exit(code);
    }
    close(ends[1]);
    double memory = 0;
    const bool whole = read(ends[0], &memory, sizeof memory) == sizeof memory;
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    if (!whole || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
      return WIFEXITED(status) && WEXITSTATUS(status) != 0 ? WEXITSTATUS(status) : 1;
    if (first == 0) first = memory;
  }
  return 0;
}

double number(const std::string& flag, const std::string& text, double least, double most) {
  char* end = nullptr;
  const double v = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(v >= least && v <= most))
    fail<UsageError>(flag, "a number from " + std::to_string(static_cast<int>(least)), "'" + text + "'");
  return v;
}

Args parse(int argc, char** argv) {
  Args a;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help") {
      std::fputs(help_text, stdout);
      std::exit(0);
    }
    if (flag == "--loops") {
      a.loops = true;
      continue;
    }
    if (i + 1 == argc) fail<UsageError>("threads", "an option of --help, or a value after it", "'" + flag + "'");
    const std::string value = argv[++i];
    if (flag == "--model") {
      a.model = value;
    } else if (flag == "--backend") {
      a.backend = value;
    } else if (flag == "--convolution") {
      if (value != "auto" && value != "direct" && value != "winograd")
        fail<UsageError>(flag, "auto, direct or winograd", value,
                         "this program runs no kernel, so it cannot measure for tune");
      a.convolution = value;
    } else if (flag == "--precision") {
      if (value != "f32" && value != "bf16") fail<UsageError>(flag, "f32 or bf16", value);
      a.precision = value;
    } else if (flag == "--batch") {
      a.batch = static_cast<std::int64_t>(number(flag, value, 1, 1e6));
    } else if (flag == "--gflops") {
      a.gflops = number(flag, value, 1, 1e6);
    } else if (flag == "--gbytes") {
      a.gbytes = number(flag, value, 1, 1e6);
    } else if (flag == "--threads") {
      a.threads.clear();
      for (std::size_t at = 0; at <= value.size();) {
        const auto end = std::min(value.find(',', at), value.size());
        a.threads.push_back(static_cast<int>(number(flag, value.substr(at, end - at), 1, 1024)));
        at = end + 1;
      }
    } else {
      fail<UsageError>("threads", "an option of --help", "'" + flag + "'");
    }
  }
  if (a.gflops == 0) a.gflops = a.precision == "bf16" ? 500 : 250;
  return a;
}

}  // namespace

int main(int argc, char** argv) try {
  mallopt(M_ARENA_MAX, 1);
  return print(parse(argc, argv));
} catch (const Error& e) {
  std::fprintf(stderr, "threads: %s\n", e.what());
  return e.exit_code();
}
