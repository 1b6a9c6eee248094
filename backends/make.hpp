// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/core/threads.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/job/control_channel.hpp>
#include <tutti/job/job_facts.hpp>
#include <tutti/job/launch_answer.hpp>
#include <tutti/job/launch_environment.hpp>
#include <tutti/job/scripted_job.hpp>
#include <tutti/strategy/any_strategy.hpp>

// Backends and strategies by name: what the program was linked with, tutti::onednn, tutti::mpi and so on. With
// tutti::compiled the file that includes this compiles none of them; with the headers alone it compiles them all, and
// one that wants a single backend names it. The two tables below are the only list of them: a new one is a folder and a
// row.
#if !defined(TUTTI_SEPARATE_COMPILATION) || defined(TUTTI_SOURCE_MAKE)
#define TUTTI_MAKE_DEFINITIONS 1
#else
#define TUTTI_MAKE_DEFINITIONS 0
#endif

namespace tutti {

namespace ps {
class WeightStore;
struct ServerState;
}  // namespace ps

struct BackendOptions {
  int threads = 0;            // of a backend on the processor; 0: this process's share of the host's cores
  bool gpu = true;            // whether "auto" may take one
  std::optional<int> device;  // as nvidia-smi -L counts; nothing: the process of local rank k takes the k-th
  bool tf32 = false, deterministic = false, autotune = false, recompute = false;  // as CudaOptions has them
  bool graph = true;
  std::string fusion = "auto";         // or "on", "off"; see CudaFusion
  std::string where = "make_backend";  // what errors name, such as the option that the word comes from
  // Says why "auto" does without a GPU that is there.
  std::function<void(const std::string&)> warn = [](const std::string& w) { std::fprintf(stderr, "%s\n", w.c_str()); };
};

struct StrategyOptions {
  Backend* backend = nullptr;                                         // whose GPU nccl sums in; outlives the strategy
  std::chrono::milliseconds deadline = usual_deadline;                // of every operation
  bool shared_memory = true, hierarchical = true, bf16_wire = false;  // as MpiOptions has them
  bool ps_plain = false;                                              // nothing is encrypted between hosts
  // Of ps and ps_async: above 0 gradients travel to the servers in two bits, see ps::WorkerOptions.
  float threshold = 0;
  // Of a server of "ps_async": the weights that it owns, and the steps that a worker may be ahead of the slowest one.
  ps::WeightStore* weights = nullptr;
  std::optional<std::int64_t> ps_staleness{};
  // Whether this program goes on from its last checkpoint where its processes are started anew, and ends with 75 after
  // FitResult::changes: without that the processes of mpi cannot come and go.
  bool goes_on_from_checkpoint = false;
  // To the launcher of processes that come and go; otherwise a strategy that needs one opens it.
  std::shared_ptr<ControlChannel> channel{};
  // As ps::ServerOptions has them: who is handed the state that it goes on from if it is started again, and this.
  std::function<void(ps::ServerState&&)> ps_keep{};
  std::chrono::milliseconds ps_keep_every = std::chrono::seconds(60);
  const ps::ServerState* ps_from = nullptr;
  // What all processes must have alike: where they meet over a channel of their launcher, who differs is refused alone.
  JobFacts facts{};
  // How the processes of a job with servers find each other that scripts started one by one; null: tutti-launch did.
  const ScriptedJob* job = nullptr;
  std::string where = "make_strategy";  // what errors name
  std::function<void(const std::string&)> warn = [](const std::string& w) {
    std::fprintf(stderr, "warning: %s\n", w.c_str());
  };
};

// What this program was linked with, fastest first: "cuda", "onednn", "eigen", "reference".
[[nodiscard]] std::vector<std::string> built_backends();
// "solo", "mpi", "nccl", "gloo", "ps", "ps_async".
[[nodiscard]] std::vector<std::string> built_strategies();

// How this process was started, as a worker; UsageError for anything else.
[[nodiscard]] inline LaunchEnvironment launched() {
  LaunchEnvironment e = read_launch_environment();
  require_worker(e);
  return e;
}

// The backend that "auto" stands for here: that of a GPU where there is one that will do, else the fastest on the
// processor.
[[nodiscard]] std::string automatic_backend(const BackendOptions& options = {});
// A backend by name, or "auto". UsageError for one that was not linked.
[[nodiscard]] std::unique_ptr<Backend> make_backend(std::string_view word = "auto", const BackendOptions& options = {});

// The strategy that a word of MXNet's elastic scripts stands for ("local", "device", "dist_sync", "dist_async", ...).
// gpus: the processes have one each. servers: that were started beside them.
[[nodiscard]] std::string strategy_of_kv_store(std::string_view word, int processes, bool gpus, int servers = 0);
// A strategy by name, by a word of those scripts, or "auto": one process trains alone, several over NCCL where each has
// a GPU, else over MPI. It has as many ranks as `start` says were started; UsageError where that does not go together.
// Where tutti-launch only asks how to start the program, the answer is given and the program ends.
[[nodiscard]] AnyStrategy make_strategy(std::string_view word, const StrategyOptions& options,
                                        const LaunchEnvironment& start);
[[nodiscard]] AnyStrategy make_strategy(std::string_view word = "auto", const StrategyOptions& options = {});

// Whether the processes of a strategy may come and go while it trains, as tutti-launch --elastic has it.
[[nodiscard]] bool changes_members(std::string_view strategy);
// Whether a strategy has servers, processes with TUTTI_ROLE=server.
[[nodiscard]] bool has_servers(std::string_view strategy);
// What such a process does: it serves the workers of this strategy until they are done. stop_requested: asked until
// they have come. UsageError for a strategy without servers.
void serve_workers(std::string_view strategy, const StrategyOptions& options, const LaunchEnvironment& start,
                   const std::function<bool()>& stop_requested = {});

// What the scheduler of such a strategy does where scripts start the processes (StrategyOptions::job): it is the
// arbiter of who is in the job, until all have ended.
void schedule_workers(std::string_view strategy, const StrategyOptions& options, const LaunchEnvironment& start,
                      const std::function<bool()>& stop_requested = {});

// The GPUs of this host; 0 for a program without their backend. DeviceError where it has one and there are none.
[[nodiscard]] int count_gpus();
// The GPU of a backend that computes in 16 bits as f16 only, as messages name it; else empty.
[[nodiscard]] std::string gpu_without_bf16(Backend& backend);

namespace detail {

struct BackendRow {
  const char* word;
  const char* packages;                                     // what a build needs to have it
  std::unique_ptr<Backend> (*make)(const BackendOptions&);  // null: not in this program
};
struct StrategyRow {
  const char* word;
  const char* packages;  // what a build needs to have it
  bool over_mpi;         // its ranks find each other only where mpirun starts them
  AnyStrategy (*make)(const StrategyOptions&, const LaunchEnvironment&);
  // Of processes that come and go, which meet over `options.channel` or are started anew; null: they cannot.
  AnyStrategy (*make_elastic)(const StrategyOptions&, const LaunchEnvironment&) = nullptr;
  // Its servers; null: it has none.
  void (*serve)(const StrategyOptions&, const LaunchEnvironment&, const std::function<bool()>&) = nullptr;
  // Their scheduler, where there is one.
  void (*schedule)(const StrategyOptions&, const LaunchEnvironment&, const std::function<bool()>&) = nullptr;
};
[[nodiscard]] std::span<const BackendRow> backend_rows();
[[nodiscard]] std::span<const StrategyRow> strategy_rows();

// "a, b or c", with the last word between the last two.
[[nodiscard]] inline std::string listed(const std::vector<std::string>& words, const char* last = " or ") {
  std::string list;
  for (std::size_t i = 0; i < words.size(); ++i) list += (i == 0 ? "" : i + 1 == words.size() ? last : ", ") + words[i];
  return list;
}

}  // namespace detail
}  // namespace tutti

#if TUTTI_MAKE_DEFINITIONS

#include <tutti/engine/reference/reference.hpp>
#include <tutti/strategy/elastic.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/version.hpp>
#ifdef TUTTI_HAS_CUDA
#include <tutti/backends/cuda/cuda.hpp>
#endif
#ifdef TUTTI_HAS_ONEDNN
#include <tutti/backends/onednn/onednn.hpp>
#endif
#ifdef TUTTI_HAS_EIGEN
#include <tutti/backends/eigen/eigen.hpp>
#endif
#ifdef TUTTI_HAS_MPI
#include <tutti/backends/mpi/mpi.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/started_anew.hpp>
#endif
#ifdef TUTTI_HAS_GLOO
#include <tutti/backends/gloo/elastic.hpp>
#include <tutti/backends/gloo/job.hpp>
#endif
#ifdef TUTTI_HAS_ZEROMQ
#include <tutti/backends/zeromq/elastic.hpp>
#include <tutti/backends/zeromq/elastic_async.hpp>
#include <tutti/backends/zeromq/job.hpp>
#endif
#ifdef TUTTI_HAS_NCCL
#include <tutti/backends/nccl/elastic.hpp>
#include <tutti/backends/nccl/nccl.hpp>
#include <tutti/comm/rendezvous.hpp>
#include <tutti/comm/tcp_rendezvous.hpp>
#include <tutti/job/launched_rendezvous.hpp>
#include <tutti/strategy/all_reduce.hpp>
#endif

namespace tutti {

namespace detail {

// Ranks of one host share its cores.
inline int threads_of(const BackendOptions& o) {
  return o.threads > 0 ? o.threads : std::max(1, usable_cores() / read_launch_environment().local_size);
}
inline int device_of(const BackendOptions& o) { return o.device ? *o.device : read_launch_environment().local_rank; }

TUTTI_CORE_FUNCTION std::span<const BackendRow> backend_rows() {
  using Made = std::unique_ptr<Backend>;
  static constexpr BackendRow rows[] = {
      {"cuda", "the CUDA toolkit with cuDNN",
#ifdef TUTTI_HAS_CUDA
       [](const BackendOptions& o) -> Made {
         CudaOptions c;
         c.device = device_of(o);
         c.tf32 = o.tf32;
         c.autotune = o.autotune;
         c.deterministic = o.deterministic;
         c.fusion = parse_cuda_fusion(o.fusion);
         c.recompute = o.recompute;
         c.graph = o.graph;
         return std::make_unique<CudaBackend>(c);
       }
#else
       nullptr
#endif
      },
      {"onednn", "libdnnl-dev",
#ifdef TUTTI_HAS_ONEDNN
       [](const BackendOptions& o) -> Made { return std::make_unique<OnednnBackend>(CpuOptions{threads_of(o)}); }
#else
       nullptr
#endif
      },
      {"eigen", "libeigen3-dev",
#ifdef TUTTI_HAS_EIGEN
       [](const BackendOptions& o) -> Made { return std::make_unique<EigenBackend>(CpuOptions{threads_of(o)}); }
#else
       nullptr
#endif
      },
      {"reference", "", [](const BackendOptions&) -> Made { return std::make_unique<ReferenceBackend>(); }},
  };
  return rows;
}

#ifdef TUTTI_HAS_MPI
inline MpiOptions mpi_options(const StrategyOptions& o, const LaunchEnvironment& start) {
  // MPI would take each for a job of its own.
  if (!start.mpi) require_launched_size(start, "mpi", 1);
  MpiOptions m;
  m.shared_memory = o.shared_memory;
  m.hierarchical = o.hierarchical;
  m.wire = o.bf16_wire ? MpiOptions::Wire::bf16 : MpiOptions::Wire::same;
  m.deadline = o.deadline;
  return m;
}
inline AnyStrategy make_mpi(const StrategyOptions& o, const LaunchEnvironment& start) {
  return AnyStrategy::make<OwningAllReduce<MpiCommunicator>>(mpi_options(o, start));
}
// One generation: each is an mpirun of its own.
inline AnyStrategy make_elastic_mpi(const StrategyOptions& o, const LaunchEnvironment& start) {
  if (!o.goes_on_from_checkpoint)
    fail<UsageError>(o.where, "a strategy whose processes stay, because this program does not go on from checkpoints",
                     "mpi", "use gloo, or say StrategyOptions::goes_on_from_checkpoint");
  if (!start.mpi || start.generation == 0)
    fail<UsageError>(o.where, "tutti-launch --elastic to start the ranks of mpi, with mpirun", "another launcher");
  AnyStrategy strategy = AnyStrategy::make<StartedAnew<OwningAllReduce<MpiCommunicator>>>(mpi_options(o, start));
  require_launched_size(start, "mpi", strategy.size());
  return strategy;
}
#endif

// Of processes that come and go.
[[nodiscard]] inline std::shared_ptr<ControlChannel> channel_of(const StrategyOptions& o) {
  return o.channel != nullptr ? o.channel : ControlChannel::open();
}
[[nodiscard]] inline ElasticOptions elastic_options(const StrategyOptions& o, const LaunchEnvironment& start) {
  ElasticOptions e;
  e.start = start;
  e.facts.add("tutti", version);
  for (const auto& [name, value] : o.facts.facts()) e.facts.add(name, value);
  return e;
}

#if defined(TUTTI_HAS_NCCL) && defined(TUTTI_HAS_CUDA)
#ifdef TUTTI_HAS_MPI
// Ranks that mpirun started meet over MPI, which also ends them all where one fails.
struct MpiAndNccl {
  MpiAndNccl(const cuda::Device& device, const MpiOptions& options)
      : mpi(options),
        nccl(device, {.rank = mpi.rank(), .size = mpi.size(), .deadline = options.deadline},
             rendezvous_through(mpi, "NCCL's identity")) {}
  MpiCommunicator mpi;
  NcclCommunicator nccl;
};
class NcclUnderMpi : private MpiAndNccl, public AllReduce<NcclCommunicator> {
 public:
  NcclUnderMpi(const cuda::Device& device, const MpiOptions& options)
      : MpiAndNccl(device, options), AllReduce<NcclCommunicator>(MpiAndNccl::nccl) {}
  void abort(const std::string& reason, ExitCode code) noexcept { mpi.abort(reason, code); }
};
#endif

// Whose GPU the ranks sum in.
inline const cuda::Device& device_of(const StrategyOptions& o) {
  auto* const backend = dynamic_cast<CudaBackend*>(o.backend);
  if (backend == nullptr)
    fail<UsageError>(o.where, "the cuda backend beside it, because strategy nccl sums what lies in GPUs",
                     o.backend == nullptr ? "none" : o.backend->name(),
                     "give StrategyOptions::backend what make_backend(\"cuda\") made");
  return backend->device();
}
inline AnyStrategy make_nccl(const StrategyOptions& o, const LaunchEnvironment& start) {
  const cuda::Device& device = device_of(o);
#ifdef TUTTI_HAS_MPI
  if (start.mpi) {
    MpiOptions m;
    m.shared_memory = false;  // MPI carries a few bytes, once
    m.deadline = o.deadline;
    return AnyStrategy::make<NcclUnderMpi>(device, m);
  }
#endif
  RendezvousOptions meeting = rendezvous_of(start);
  meeting.deadline = std::min(meeting.deadline, o.deadline);
  meeting.warn = o.warn;
  TcpRendezvous meet(meeting);
  return AnyStrategy::make<OwningAllReduce<NcclCommunicator>>(
      device, NcclOptions{.rank = meeting.rank, .size = meeting.size, .deadline = o.deadline},
      Rendezvous(std::ref(meet)));
}
inline AnyStrategy make_elastic_nccl(const StrategyOptions& o, const LaunchEnvironment& start) {
  return AnyStrategy::make<ElasticNccl>(channel_of(o), elastic_options(o, start),
                                        FormNccl{&device_of(o), {o.deadline}});
}
#endif

#ifdef TUTTI_HAS_GLOO
inline GlooJobOptions gloo_options(const StrategyOptions& o) {
  GlooJobOptions g;
  g.deadline = o.deadline;
  g.meeting = std::min(g.meeting, o.deadline);
  g.shared_memory = o.shared_memory;
  g.hierarchical = o.hierarchical;
  g.wire = o.bf16_wire ? WireType::bf16 : WireType::same;
  g.facts = o.facts;
  return g;
}
inline AnyStrategy make_gloo(const StrategyOptions& o, const LaunchEnvironment& start) {
  return AnyStrategy::make<GlooAllReduce>(start, gloo_options(o));
}
inline AnyStrategy make_elastic_gloo(const StrategyOptions& o, const LaunchEnvironment& start) {
  return AnyStrategy::make<ElasticGloo>(channel_of(o), elastic_options(o, start), FormGloo{gloo_options(o)});
}
#endif

#ifdef TUTTI_HAS_ZEROMQ
inline zeromq::JobOptions ps_options(const StrategyOptions& o) {
  zeromq::JobOptions as;
  as.deadline = o.deadline;
  as.meeting = std::min(as.meeting, o.deadline);
  as.bf16_wire = o.bf16_wire;
  as.shared_memory = o.shared_memory;
  as.plain = o.ps_plain;
  as.threshold = o.threshold;
  as.log = o.warn;
  as.facts = o.facts;
  as.job = o.job;
  as.weights = o.weights;
  as.staleness = o.ps_staleness;
  as.keep = o.ps_keep;
  as.keep_every = o.ps_keep_every;
  as.from = o.ps_from;
  return as;
}
template <class Strategy>
AnyStrategy make_ps(const StrategyOptions& o, const LaunchEnvironment& start) {
  zeromq::JobOptions as = ps_options(o);
  as.strategy = Strategy::traits.owns_weights ? "ps_async" : "ps";
  return AnyStrategy::make<zeromq::JobStrategy<Strategy>>(start, as);
}
inline AnyStrategy make_elastic_ps(const StrategyOptions& o, const LaunchEnvironment& start) {
  zeromq::JobOptions as = ps_options(o);
  return AnyStrategy::make<zeromq::ElasticServed>(o.channel != nullptr ? o.channel : ControlChannel::open(),
                                                  zeromq::elastic_options(start, as), zeromq::FormServed(as));
}
inline void serve_ps(const StrategyOptions& o, const LaunchEnvironment& start, const std::function<bool()>& stop) {
  zeromq::JobOptions as = ps_options(o);
  as.weights = nullptr;
  if (start.elastic)
    return zeromq::serve_elastic_job(start, o.channel != nullptr ? o.channel : ControlChannel::open(), as, stop);
  zeromq::serve_job(start, as, stop);
}
inline AnyStrategy make_elastic_ps_async(const StrategyOptions& o, const LaunchEnvironment& start) {
  zeromq::JobOptions as = ps_options(o);
  as.strategy = "ps_async";
  return AnyStrategy::make<zeromq::ElasticAsyncServed>(o.channel != nullptr ? o.channel : ControlChannel::open(),
                                                       zeromq::elastic_options(start, as), zeromq::FormAsync(as));
}
inline void serve_ps_async(const StrategyOptions& o, const LaunchEnvironment& start,
                           const std::function<bool()>& stop) {
  if (o.weights == nullptr) fail<UsageError>(o.where, "the weights that a server of ps_async owns", "none");
  zeromq::JobOptions as = ps_options(o);
  as.strategy = "ps_async";
  if (start.elastic)
    return zeromq::serve_elastic_async_job(start, o.channel != nullptr ? o.channel : ControlChannel::open(), as, stop);
  zeromq::serve_job(start, as, stop);
}
inline void schedule_ps(const StrategyOptions& o, const LaunchEnvironment& start, const std::function<bool()>& stop) {
  zeromq::schedule_job(start, ps_options(o), stop);
}
inline void schedule_ps_async(const StrategyOptions& o, const LaunchEnvironment& start,
                              const std::function<bool()>& stop) {
  zeromq::JobOptions as = ps_options(o);
  as.strategy = "ps_async";
  zeromq::schedule_job(start, as, stop);
}
#endif

TUTTI_CORE_FUNCTION std::span<const StrategyRow> strategy_rows() {
  static constexpr StrategyRow rows[] = {
      {"solo", "", false, [](const StrategyOptions&, const LaunchEnvironment&) { return AnyStrategy::make<Solo>(); }},
      {"mpi", "libopenmpi-dev and openmpi-bin", true,
#ifdef TUTTI_HAS_MPI
       make_mpi, make_elastic_mpi
#else
       nullptr
#endif
      },
      {"nccl", "the CUDA toolkit, cuDNN and NCCL (libnccl2 and libnccl-dev)", false,
#if defined(TUTTI_HAS_NCCL) && defined(TUTTI_HAS_CUDA)
       make_nccl, make_elastic_nccl
#else
       nullptr
#endif
      },
      {"gloo", "libgloo-dev", false,
#ifdef TUTTI_HAS_GLOO
       make_gloo, make_elastic_gloo
#else
       nullptr
#endif
      },
      {"ps", "libzmq3-dev", false,
#ifdef TUTTI_HAS_ZEROMQ
       make_ps<ParameterServer<zeromq::WorkerEnd>>, make_elastic_ps, serve_ps, schedule_ps
#else
       nullptr
#endif
      },
      {"ps_async", "libzmq3-dev", false,
#ifdef TUTTI_HAS_ZEROMQ
       make_ps<AsyncParameterServer<zeromq::WorkerEnd>>, make_elastic_ps_async, serve_ps_async, schedule_ps_async
#else
       nullptr
#endif
      },
  };
  return rows;
}

template <class Row>
[[nodiscard]] std::vector<std::string> built(std::span<const Row> rows) {
  std::vector<std::string> words;
  for (const Row& r : rows)
    if (r.make != nullptr) words.emplace_back(r.word);
  return words;
}

// The row of a word whose letters are in any case, with - for _ where one likes; null: there is none.
template <class Row>
[[nodiscard]] const Row* find_row(std::span<const Row> rows, std::string_view word) {
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.word == word; });
  return found != rows.end() ? &*found : nullptr;
}

}  // namespace detail

TUTTI_CORE_FUNCTION std::vector<std::string> built_backends() { return detail::built(detail::backend_rows()); }
TUTTI_CORE_FUNCTION std::vector<std::string> built_strategies() { return detail::built(detail::strategy_rows()); }

TUTTI_CORE_FUNCTION std::string automatic_backend([[maybe_unused]] const BackendOptions& o) {
#ifdef TUTTI_HAS_CUDA
  if (o.gpu) {
    const cuda::GpuCheck gpu = cuda::check_gpu(detail::device_of(o));
    if (gpu.will_do) return "cuda";
    // One that is there and will not do is no silent reason to train on the processor.
    if (!gpu.why.empty() && o.warn && read_launch_environment().local_rank == 0)
      o.warn(o.where + " auto trains on the processor, because the GPU will not do: " + gpu.why);
  }
#endif
  for (const detail::BackendRow& r : detail::backend_rows())
    if (r.make != nullptr && std::string_view(r.word) != "cuda") return r.word;
  return "reference";
}

TUTTI_CORE_FUNCTION std::unique_ptr<Backend> make_backend(std::string_view word, const BackendOptions& o) {
  const std::string name = word == "auto" ? automatic_backend(o) : std::string(word);
  const detail::BackendRow* row = detail::find_row(detail::backend_rows(), name);
  if (row == nullptr || row->make == nullptr)
    fail<UsageError>(o.where, "auto or a backend of this build: " + detail::listed(built_backends(), ", "), name,
                     row == nullptr ? "" : "install " + std::string(row->packages) + " and build again");
  return row->make(o);
}

TUTTI_CORE_FUNCTION std::string strategy_of_kv_store(std::string_view word, int processes, bool gpus, int servers) {
  if (word == "dist_async") return "ps_async";
  if (word == "nccl") return "nccl";
  if (word.starts_with("dist") && servers > 0) return "ps";
  if (word.starts_with("dist")) return gpus ? "nccl" : "mpi";
  return word == "device" && gpus && processes > 1 ? "nccl" : "solo";
}

TUTTI_CORE_FUNCTION AnyStrategy make_strategy(std::string_view word, const StrategyOptions& o,
                                              const LaunchEnvironment& start) {
  static constexpr std::string_view kv_store[] = {
      "local", "device", "dist_sync", "dist_device_sync", "dist_sync_device", "dist_async"};
  const std::vector<std::string> built = built_strategies();
  const bool gpus = o.backend != nullptr && o.backend->name() == "cuda" &&
                    std::find(built.begin(), built.end(), "nccl") != built.end();
  std::string name(word);
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const bool alone = start.size == 1 && start.servers == 0;
  if (name == "auto")
    name = start.servers > 0 ? "ps" : start.elastic ? "gloo" : alone ? "solo" : gpus ? "nccl" : "mpi";
  else if (std::find(std::begin(kv_store), std::end(kv_store), name) != std::end(kv_store))
    name = alone ? "solo" : strategy_of_kv_store(name, start.size, gpus, start.servers);
  const detail::StrategyRow* row = detail::find_row(detail::strategy_rows(), name);
  if (row == nullptr) fail<UsageError>(o.where, detail::listed(built), "'" + std::string(word) + "'");
  if (row->make == nullptr)
    fail<UsageError>(o.where, detail::listed(built) + ", the strategies of this build", "'" + std::string(word) + "'",
                     "install " + std::string(row->packages) + " and build again");
  if (launcher_asks())
    std::exit(answer_launcher({name, row->over_mpi, row->serve != nullptr, false,
                               row->make_elastic != nullptr && (!row->over_mpi || o.goes_on_from_checkpoint),
                               name == "ps_async"}));
  if (start.elastic) {
    if (row->make_elastic == nullptr)
      fail<UsageError>(o.where,
                       "a strategy whose processes may come and go, because tutti-launch --elastic started them", name,
                       "start the job without --elastic");
    return row->make_elastic(o, start);
  }
  AnyStrategy strategy = row->make(o, start);
  require_launched_size(start, name, strategy.size());
  return strategy;
}
TUTTI_CORE_FUNCTION AnyStrategy make_strategy(std::string_view word, const StrategyOptions& o) {
  return make_strategy(word, o, launched());
}

TUTTI_CORE_FUNCTION bool changes_members(std::string_view strategy) {
  const detail::StrategyRow* row = detail::find_row(detail::strategy_rows(), strategy);
  return row != nullptr && row->make_elastic != nullptr;
}
TUTTI_CORE_FUNCTION bool has_servers(std::string_view strategy) {
  const detail::StrategyRow* row = detail::find_row(detail::strategy_rows(), strategy);
  return row != nullptr && row->serve != nullptr;
}
TUTTI_CORE_FUNCTION void serve_workers(std::string_view strategy, const StrategyOptions& o,
                                       const LaunchEnvironment& start, const std::function<bool()>& stop) {
  if (!has_servers(strategy))
    fail<UsageError>(o.where, "a strategy with servers, because this process is one", "'" + std::string(strategy) + "'",
                     "tutti-launch -n N without -s starts workers alone");
  detail::find_row(detail::strategy_rows(), strategy)->serve(o, start, stop);
}

TUTTI_CORE_FUNCTION void schedule_workers(std::string_view strategy, const StrategyOptions& o,
                                          const LaunchEnvironment& start, const std::function<bool()>& stop) {
  const detail::StrategyRow* row = detail::find_row(detail::strategy_rows(), strategy);
  if (row == nullptr || row->schedule == nullptr || o.job == nullptr)
    fail<UsageError>(o.where, "a strategy with servers, because this process is their scheduler",
                     "'" + std::string(strategy) + "'");
  row->schedule(o, start, stop);
}

TUTTI_CORE_FUNCTION int count_gpus() {
#ifdef TUTTI_HAS_CUDA
  return cuda::count_devices();
#else
  return 0;
#endif
}

TUTTI_CORE_FUNCTION std::string gpu_without_bf16([[maybe_unused]] Backend& backend) {
#ifdef TUTTI_HAS_CUDA
  if (auto* const on = dynamic_cast<CudaBackend*>(&backend);
      on != nullptr && !cuda::has_bf16(on->device().architecture()))
    return on->device().name_and_capability();
#endif
  return {};
}

}  // namespace tutti

#endif  // TUTTI_MAKE_DEFINITIONS
