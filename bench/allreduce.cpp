// SPDX-License-Identifier: MIT
// All-reduce by size, verified while it is timed. As several processes (tutti-launch -n N, mpirun): MPI_Allreduce in
// place beside tutti's shared window, by turns; with --comm gloo: shared memory and Gloo; alone: ranks that are
// threads; with --comm nccl: a rank a GPU. Every call blocks its thread.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <tutti/comm/thread_communicator.hpp>
#include <tutti/core/clock.hpp>
#include <tutti/core/error.hpp>
#include <tutti/job/launch_answer.hpp>
#include <tutti/job/launch_environment.hpp>
#ifdef TUTTI_HAS_MPI
#include <tutti/backends/mpi/mpi.hpp>
#endif
#ifdef TUTTI_HAS_GLOO
#include <tutti/backends/gloo/job.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/job/channel_store.hpp>
#include <tutti/job/control_channel.hpp>
#endif
#ifdef TUTTI_HAS_NCCL
#include <tutti/backends/cuda/memory.hpp>
#include <tutti/backends/nccl/nccl.hpp>
#include <tutti/comm/tcp_rendezvous.hpp>
#include <tutti/job/launched_rendezvous.hpp>
#include <tutti/tensor/memory.hpp>
#endif

using namespace tutti;

namespace {

struct Args {
  std::size_t min = 4, max = std::size_t{256} << 20, factor = 4, iterations = 0;
  int ranks = 2;
  std::string mode = "all";   // of the ways below
  std::string comm = "auto";  // mpi, threads, gloo or nccl
  bool osu = false;
};

constexpr const char* usage =
    "usage: allreduce [--min BYTES] [--max BYTES] [--factor N] [--iterations N] [--mode mpi|shm|plain|tree|all] "
    "[--ranks N] "
    "[--osu] [--comm gloo|nccl]\n"
    "Under tutti-launch -n N or mpirun: MPI_Allreduce in place (mpi) beside the shared window of tutti (shm); else "
    "--ranks threads.\n"
    "--mode plain: tutti without shared memory; tree: as if the ranks were on two hosts; each beside mpi.\n"
    "--comm gloo, under tutti-launch -n N: shared memory (shm), Gloo without it (plain) and with two pretended hosts\n"
    "(tree), or the one that --mode names.\n"
    "--comm nccl: gradients in the GPUs' memory over NCCL, one rank a GPU: alone one, under tutti-launch -n N as many "
    "as\n"
    "it starts. Each sum is brought to the host and verified, outside of what is timed.\n"
    "--iterations 0 takes fewer for larger sizes. --osu prints the columns of the OSU micro-benchmarks.\n";

Args parse(int argc, char** argv) {
  Args a;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help") {
      std::fputs(usage, stdout);
      std::exit(0);
    }
    if (name == "--osu") {
      a.osu = true;
      continue;
    }
    const char* value = i + 1 < argc ? argv[++i] : "";
    const auto number = [&](unsigned long long low) {
      char* end = nullptr;
      const unsigned long long n = std::strtoull(value, &end, 10);
      if (*value < '0' || *value > '9' || *end != '\0' || n < low || n > (1ULL << 40))
        fail<UsageError>(name, "a number from " + std::to_string(low), std::string("'") + value + "'");
      return static_cast<std::size_t>(n);
    };
    if (name == "--min")
      a.min = number(4);
    else if (name == "--max")
      a.max = number(4);
    else if (name == "--factor")
      a.factor = number(2);
    else if (name == "--iterations")
      a.iterations = number(0);
    else if (name == "--ranks")
      a.ranks = static_cast<int>(std::min<std::size_t>(number(1), 1000));
    else if (name == "--mode")
      a.mode = value;
    else if (name == "--comm")
      a.comm = value;
    else
      fail<UsageError>("allreduce", "an option of --help", "'" + name + "'");
  }
  const auto modes = {"all", "mpi", "shm", "plain", "tree", "threads"};
  if (std::find(modes.begin(), modes.end(), a.mode) == modes.end())
    fail<UsageError>("--mode", "mpi, shm, plain, tree, threads or all", "'" + a.mode + "'");
  if (a.comm != "auto" && a.comm != "gloo" && a.comm != "nccl")
    fail<UsageError>("--comm", "auto, gloo or nccl", "'" + a.comm + "'");
  if (a.comm == "gloo" && (a.mode == "mpi" || a.mode == "threads"))
    fail<UsageError>("--mode", "shm, plain, tree or all with --comm gloo", "'" + a.mode + "'");
  a.max = std::max(a.min, a.max);
  return a;
}

// A way to sum, as one rank has it.
struct Way {
  std::string name;
  std::span<float> data;
  std::function<void(std::span<float>)> all_reduce;
  // Where the sum is not taken in `data` itself: there and back again, not timed.
  std::function<void(std::span<float>)> bring = {}, fetch = {};
};

// One rank's part of the sweep.
struct Rank {
  int rank, size;
  std::vector<Way> ways;
  std::function<void()> barrier;
  // Microseconds of this rank in; on rank 0 those of all ranks out, rank by rank.
  std::function<std::vector<double>(const std::vector<double>&)> collect;
};

// Numbers whose sums float can hold exactly: small, and times the number of ranks with every further sum.
class Values {
 public:
  Values(std::span<float> data, int rank, int size) : data_(data), rank_(rank), size_(size) {}
  // Before a sum.
  void prepare() {
    if (factor_ * 7 * size_ < (1 << 24) && filled_) return;
    for (std::size_t i = 0; i < data_.size(); ++i)
      data_[i] = static_cast<float>((i & 3U) + 1) * (1.F + static_cast<float>(rank_));
    filled_ = true;
    factor_ = 0;
  }
  // After it.
  void check(const std::string& what) {
    factor_ = factor_ == 0 ? size_ * (size_ + 1) / 2 : factor_ * size_;
    const auto f = static_cast<float>(factor_);
    std::uint32_t wrong = 0;
    for (std::size_t i = 0; i < data_.size(); ++i) wrong |= data_[i] == static_cast<float>((i & 3U) + 1) * f ? 0U : 1U;
    if (wrong != 0)
      fail("allreduce", "right sums", "wrong ones from " + what + " at " + std::to_string(data_.size() * 4) + " bytes");
  }

 private:
  std::span<float> data_;
  int rank_, size_;
  int factor_ = 0;
  bool filled_ = false;
};

void header(const Args& a, const Rank& r) {
  if (a.osu) return;
  std::printf("# all-reduce, f32, in place, %d ranks, %u cores; microseconds, each the mean over the ranks\n", r.size,
              std::thread::hardware_concurrency());
  std::printf("%11s %-8s %11s %11s %11s %11s %11s %9s %8s\n", "bytes", "way", "min", "p50", "mean", "p99", "max",
              "bus GB/s", "speedup");
}

// all: of every rank, so many iterations each. Returns the median.
double print(const Args& a, const Rank& r, const Way& w, std::size_t bytes, const std::vector<double>& all,
             double first_median) {
  const std::size_t n = all.size() / static_cast<std::size_t>(r.size);
  std::vector<double> mean(n, 0.);
  std::vector<double> of_rank(static_cast<std::size_t>(r.size), 0.);
  double total = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    mean[i % n] += all[i] / r.size;
    of_rank[i / n] += all[i] / static_cast<double>(n);
    total += all[i] / static_cast<double>(all.size());
  }
  std::sort(mean.begin(), mean.end());
  const auto at = [&](double q) { return mean[static_cast<std::size_t>(q * static_cast<double>(n - 1) + 0.5)]; };
  const double bus = static_cast<double>(bytes) * 2 * (r.size - 1) / r.size / at(0.5) * 1e-3;
  if (a.osu)
    std::printf("%-10zu%18.2f%18.2f%18.2f%12zu\n", bytes, total, *std::min_element(of_rank.begin(), of_rank.end()),
                *std::max_element(of_rank.begin(), of_rank.end()), n);
  else
    std::printf("%11zu %-8s %11.2f %11.2f %11.2f %11.2f %11.2f %9.2f %7.2fx\n", bytes, w.name.c_str(), mean.front(),
                at(0.5), total, at(0.99), mean.back(), bus, first_median > 0 ? first_median / at(0.5) : 1.);
  std::fflush(stdout);
  return at(0.5);
}

// Ways by turns, in blocks, so that what else the machine does meets all of them.
std::vector<std::vector<double>> measure(const Rank& r, std::size_t bytes, std::size_t iterations) {
  constexpr std::size_t blocks = 8;
  const std::size_t block = (iterations + blocks - 1) / blocks;
  // Small ones follow each other as they come; before a large one the ranks meet.
  const bool meet = bytes >= 65536;
  std::vector<std::vector<double>> times(r.ways.size());
  std::vector<Values> values;
  for (const Way& w : r.ways) values.emplace_back(w.data.first(bytes / 4), r.rank, r.size);
  for (std::size_t b = 0; b <= blocks; ++b)
    for (std::size_t w = 0; w < r.ways.size(); ++w)
      for (std::size_t i = 0; i < block; ++i) {
        const auto data = r.ways[w].data.first(bytes / 4);
        values[w].prepare();
        if (r.ways[w].bring) r.ways[w].bring(data);
        if (meet || i == 0) r.barrier();
        const Stopwatch watch;
        r.ways[w].all_reduce(data);
        const double us = watch.seconds() * 1e6;
        if (r.ways[w].fetch) r.ways[w].fetch(data);
        values[w].check(r.ways[w].name);
        if (b > 0) times[w].push_back(us);  // block 0 warms up
      }
  return times;
}

void sweep(const Args& a, const Rank& r) {
  std::vector<std::size_t> sizes;
  for (std::size_t s = a.min / 4 * 4;; s = s > a.max / a.factor ? a.max + 4 : s * a.factor) {
    if (s > a.max) break;
    sizes.push_back(s / 4 * 4);
  }
  if (r.rank == 0) header(a, r);
  std::vector<std::vector<std::vector<double>>> kept(r.ways.size());
  for (const std::size_t bytes : sizes) {
    const std::size_t n =
        a.iterations > 0 ? a.iterations : std::clamp<std::size_t>((std::size_t{1} << 30) / bytes, 16, 4000);
    const auto times = measure(r, bytes, n);
    double first = 0;
    for (std::size_t w = 0; w < r.ways.size(); ++w) {
      auto all = r.collect(times[w]);
      if (r.rank == 0 && !a.osu) {
        const double median = print(a, r, r.ways[w], bytes, all, first);
        if (first == 0) first = median;
      }
      kept[w].push_back(std::move(all));
    }
  }
  for (std::size_t w = 0; a.osu && r.rank == 0 && w < r.ways.size(); ++w) {
    std::printf(
        "\n# OSU MPI Allreduce Latency Test, in tutti's words: %s\n# Size       Avg Latency(us)   Min Latency(us)   "
        "Max Latency(us)  Iterations\n",
        r.ways[w].name.c_str());
    for (std::size_t s = 0; s < sizes.size(); ++s) print(a, r, r.ways[w], sizes[s], kept[w][s], 0);
  }
}

Deadline in_time() { return std::chrono::steady_clock::now() + std::chrono::seconds(120); }

// Page aligned and touched.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(bytes), p_(::operator new(bytes, alignment)) {
    std::memset(p_, 0, bytes);
  }
  ~Memory() { ::operator delete(p_, alignment); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  [[nodiscard]] std::span<float> floats() const { return {static_cast<float*>(p_), bytes_ / 4}; }

 private:
  static constexpr std::align_val_t alignment{4096};
  std::size_t bytes_;
  void* p_;
};

int threads(const Args& a) {
  ThreadGroup group(a.ranks);
  std::vector<double> shared;
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(a.ranks));
  const auto body = [&](int rank) {
    ThreadEngine e(group, rank);
    const Memory memory(a.max);
    const auto barrier = [&] { e.barrier(in_time(), "barrier"); };
    const auto collect = [&](const std::vector<double>& mine) {
      if (rank == 0) shared.resize(mine.size() * static_cast<std::size_t>(a.ranks));
      barrier();
      std::copy(mine.begin(), mine.end(), shared.begin() + static_cast<std::ptrdiff_t>(mine.size()) * rank);
      barrier();
      return shared;
    };
    try {
      sweep(a, {rank,
                a.ranks,
                {{"threads", memory.floats(),
                  [&](std::span<float> d) {
                    e.all_reduce(DType::f32, std::as_writable_bytes(d), ReduceOp::sum, in_time(), "all_reduce");
                  }}},
                barrier,
                collect});
    } catch (...) {
      errors[static_cast<std::size_t>(rank)] = std::current_exception();
      e.abort("", ExitCode::internal);
    }
  };
  std::vector<std::thread> ranks;
  for (int r = 1; r < a.ranks; ++r) ranks.emplace_back(body, r);
  body(0);
  for (auto& t : ranks) t.join();
  for (const auto& e : errors)
    if (e) std::rethrow_exception(e);
  return 0;
}

#ifdef TUTTI_HAS_MPI
int processes(const Args& a) {
  const auto session = MpiSession::open();
  int ranks = 0;
  mpi_check(MPI_Comm_size(MPI_COMM_WORLD, &ranks), "MPI_Comm_size");
  MpiEngine e(MpiOptions{.shared_memory = a.mode != "plain",
                         .deadline = std::chrono::seconds(120),
                         .ranks_per_host = a.mode == "tree" ? (ranks + 1) / 2 : 0},
              session);
  try {
    const Memory plain(a.max), own(a.max);
    std::vector<Way> ways;
    if (a.mode != "shm")
      ways.push_back({"mpi", plain.floats(), [](std::span<float> d) {
                        mpi_check(MPI_Allreduce(MPI_IN_PLACE, d.data(), static_cast<int>(d.size()), MPI_FLOAT, MPI_SUM,
                                                MPI_COMM_WORLD),
                                  "MPI_Allreduce");
                      }});
    if (a.mode != "mpi") {
      auto window = e.allocate(a.max, in_time());
      if (e.rank() == 0) std::printf("# %s%s\n", e.name().c_str(), window.empty() ? ", no shared window" : "");
      const std::span<float> data =
          window.empty() ? own.floats() : std::span<float>(reinterpret_cast<float*>(window.data()), a.max / 4);
      ways.push_back({a.mode == "all" ? "shm" : a.mode, data, [&](std::span<float> d) {
                        e.all_reduce(DType::f32, std::as_writable_bytes(d), ReduceOp::sum, in_time(), "all_reduce");
                      }});
    }
    const auto collect = [&](const std::vector<double>& mine) {
      std::vector<double> all(mine.size() * static_cast<std::size_t>(e.size()));
      e.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), in_time(), "times");
      return all;
    };
    sweep(a, {e.rank(), e.size(), ways, [&] { e.barrier(in_time(), "barrier"); }, collect});
  } catch (const Error& error) {
    e.abort(error.what(), static_cast<ExitCode>(error.exit_code()));
    throw;
  }
  return 0;
}
#endif

int over_gloo([[maybe_unused]] const Args& a, [[maybe_unused]] const LaunchEnvironment& start) {
#ifdef TUTTI_HAS_GLOO
  const auto channel = ControlChannel::open();
  if (channel == nullptr)
    fail<UsageError>("--comm gloo", "tutti-launch, over whose channel the processes meet", "another way to start",
                     "tutti-launch -n 4 allreduce --comm gloo");
  ChannelStore store(*channel);
  std::deque<InterruptFlag> flags;  // a group has one of its own
  GlooJobOptions usual;
  usual.deadline = std::chrono::seconds(120);
  const GlooOptions job = gloo_options(channel->enrol(start, JobFacts{}, std::chrono::seconds(60)), usual);
  std::vector<std::unique_ptr<GlooEngine>> engines;
  const Memory own(a.max);
  std::vector<Way> ways;
  for (const std::string mode : {"shm", "plain", "tree"}) {
    if (a.mode != "all" && a.mode != mode) continue;
    GlooOptions o = job;
    o.prefix += "/" + mode;
    o.shared_memory = mode != "plain";
    for (std::size_t r = 0; mode == "tree" && r < o.hosts.size(); ++r) o.hosts[r] += r < o.hosts.size() / 2 ? "a" : "b";
    GlooEngine& e = *engines.emplace_back(std::make_unique<GlooEngine>(o, store, flags.emplace_back()));
    if (e.rank() == 0) std::printf("# %s: %s\n", mode.c_str(), e.name().c_str());
    const auto window = e.allocate(a.max, in_time());
    const std::span<float> data =
        window.empty() ? own.floats() : std::span<float>(reinterpret_cast<float*>(window.data()), a.max / 4);
    ways.push_back({mode, data, [&e](std::span<float> d) {
                      e.all_reduce(DType::f32, std::as_writable_bytes(d), ReduceOp::sum, in_time(), "all_reduce");
                    }});
  }
  GlooEngine& e = *engines.front();
  const auto collect = [&](const std::vector<double>& mine) {
    std::vector<double> all(mine.size() * static_cast<std::size_t>(e.size()));
    e.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), in_time(), "times");
    return all;
  };
  sweep(a, {e.rank(), e.size(), ways, [&] { e.barrier(in_time(), "barrier"); }, collect});
  return 0;
#else
  fail<UsageError>("--comm", "a build with Gloo", "one without", "install libgloo-dev and build again");
#endif
}

int gpus([[maybe_unused]] const Args& a, [[maybe_unused]] const LaunchEnvironment& e) {
#ifdef TUTTI_HAS_NCCL
  if (const int there = cuda::count_devices(); e.local_size > there)
    fail<DeviceError>("--comm nccl",
                      "a GPU for each of the " + std::to_string(e.local_size) + " processes on this host",
                      std::to_string(there), "see nvidia-smi -L and CUDA_VISIBLE_DEVICES");
  cuda::DeviceMemory memory(e.local_rank);
  RendezvousOptions meeting = rendezvous_of(e);
  meeting.warn = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
  TcpRendezvous meet(meeting);
  NcclCommunicator c(memory.device(), {.rank = e.rank, .size = e.size, .deadline = std::chrono::seconds(120)},
                     std::ref(meet));
  const Buffer buffer(memory, a.max);
  const std::shared_ptr<void> pinned = cuda::allocate_pinned(a.max);
  const auto on_gpu = [&](std::span<float> d) { return std::span(buffer.at(0), d.size_bytes()); };
  const auto collect = [&](const std::vector<double>& mine) {
    std::vector<double> all(mine.size() * static_cast<std::size_t>(c.size()));
    c.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), "times").wait();
    return all;
  };
  const Way way{"nccl",
                {static_cast<float*>(pinned.get()), a.max / 4},
                [&](std::span<float> d) { c.all_reduce(DType::f32, on_gpu(d), ReduceOp::sum, "all_reduce").wait(); },
                [&](std::span<float> d) {
                  memory.copy_in(buffer.data(), d.data(), d.size_bytes());
                  memory.synchronise();
                },
                [&](std::span<float> d) { memory.copy_out(d.data(), buffer.data(), d.size_bytes()); }};
  if (c.rank() == 0) std::printf("# nccl on %s\n", memory.device().name().c_str());
  sweep(a, {c.rank(), c.size(), {way}, [&] { c.barrier(std::chrono::seconds(120)); }, collect});
  return 0;
#else
  fail<UsageError>("--comm", "a build with NCCL", "one without",
                   "install the CUDA toolkit, cuDNN and libnccl-dev and build again");
#endif
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Args a = parse(argc, argv);
    const LaunchEnvironment start = read_launch_environment();
    bool over_mpi = false;
#ifdef TUTTI_HAS_MPI
    over_mpi = a.comm == "auto" && a.mode != "threads";
#endif
    if (launcher_asks()) return answer_launcher({a.comm != "auto" ? a.comm : over_mpi ? "mpi" : "threads", over_mpi});
    require_worker(start);
    if (a.comm == "gloo") return over_gloo(a, start);
    if (a.comm == "nccl") return gpus(a, start);
#ifdef TUTTI_HAS_MPI
    if (start.mpi && over_mpi) return processes(a);
#endif
    require_launched_size(start, over_mpi ? "mpi" : "threads", 1);
    if (a.mode != "all" && a.mode != "threads")
      fail<UsageError>("--mode", "threads, or a program with MPI that mpirun started", a.mode);
    return threads(a);
  } catch (const Error& e) {
    std::fprintf(stderr, "allreduce: %s\n", e.what());
    return e.exit_code();
  }
}
