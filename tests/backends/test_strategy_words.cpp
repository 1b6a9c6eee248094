// SPDX-License-Identifier: MIT
// Tests which strategy and backend a command line selects, for each number of processes and GPUs.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/make.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/core/error.hpp>

#include "tools/trainer/check.hpp"
#include "tools/trainer/check_batch.hpp"

using namespace tutti;
using trainer::RunOptions;

namespace {

struct Machine {
  int processes = 1;
  bool gpu = false;
  std::vector<std::string> built{"solo", "mpi", "nccl"};
};

// Returns "strategy on backend", or the error.
std::string meant(RunOptions o, const Machine& m) {
  try {
    check(o, {m.processes, m.built, m.gpu});
  } catch (const UsageError& e) {
    return e.what();
  }
  return o.strategy + " on " + o.backend;
}
std::string meant(const std::string& strategy, const std::string& kv_store, const std::string& backend,
                  const Machine& m) {
  RunOptions o;
  o.strategy = strategy;
  o.kv_store = kv_store;
  o.backend = backend;
  return meant(o, m);
}

}  // namespace

TEST_CASE("the strategy follows from the number of processes and the backend") {
  const Machine alone, alone_gpu{1, true}, four{4}, four_gpu{4, true}, no_nccl{4, true, {"solo", "mpi"}};
  CHECK(meant("auto", "", "auto", alone) == "solo on auto");
  CHECK(meant("auto", "", "auto", alone_gpu) == "solo on cuda");
  CHECK(meant("auto", "", "eigen", alone_gpu) == "solo on eigen");
  CHECK(meant("auto", "", "auto", four) == "mpi on auto");
  CHECK(meant("auto", "", "auto", four_gpu) == "nccl on cuda");
  CHECK(meant("auto", "", "onednn", four_gpu) == "mpi on onednn");
  // Without NCCL the GPUs could not work together, so the CPU is used.
  CHECK(meant("auto", "", "auto", no_nccl) == "mpi on auto");
  CHECK(meant("mpi", "", "auto", four_gpu) == "mpi on auto");
  CHECK(meant("mpi", "", "auto", alone_gpu) == "mpi on cuda");
  CHECK(meant("nccl", "", "auto", alone) == "nccl on cuda");
  CHECK(meant("NCCL", "", "CUDA", four) == "nccl on cuda");
}

TEST_CASE("auto uses a GPU also with servers, or a note says why it does not") {
  const auto checked = [](const std::string& line, const trainer::StartedJob& job) {
    RunOptions o;
    o.strategy = line;
    check(o, job);
    return o;
  };
  const std::vector<std::string> all{"solo", "mpi", "nccl", "gloo", "ps", "ps_async"},
      no_nccl{"solo", "mpi", "ps", "ps_async"};
  const bool servers = has_servers("ps");  // a build without ZeroMQ has no servers
  for (const char* word : {"auto", "ps", "ps_async"})
    for (const int workers : {1, 4})
      for (const auto& built : {all, no_nccl}) {
        CAPTURE(word);
        if (!servers) continue;
        const RunOptions o = checked(word, {.processes = workers, .built = built, .gpu = true, .servers = 1});
        CHECK(o.backend == "cuda");
        CHECK(o.warnings.empty());
      }
  // A note names a GPU that is not used, and gives a hint.
  const auto said = [](const RunOptions& o) { return o.warnings.size() == 1 ? o.warnings[0] : "nothing"; };
  CHECK(said(checked("auto", {.processes = 4, .built = no_nccl, .gpu = true}))
            .find("strategy mpi sums gradients in the host's memory. "
                  "hint: strategy nccl uses the GPUs (install") != std::string::npos);
  CHECK(said(checked("mpi", {.processes = 4, .built = all, .gpu = true}))
            .find("hint: --strategy nccl uses the GPUs; --gpus ''") != std::string::npos);
  // There is no warning without a GPU, if the user selected no GPU, or if the job uses the GPUs.
  CHECK(checked("mpi", {.processes = 4, .built = all}).warnings.empty());
  RunOptions processor;
  processor.gpus = "";
  check(processor, {.processes = 4, .built = no_nccl, .gpu = true});
  CHECK(processor.warnings.empty());
  CHECK(checked("auto", {.processes = 4, .built = all, .gpu = true}).warnings.empty());
  // Workers with a GPU and servers without a GPU have the same facts of the job.
  const auto fact = [](const RunOptions& o, const char* name) {
    return std::find(o.derived.begin(), o.derived.end(), name) != o.derived.end();
  };
  CHECK(fact(checked("ps", {.processes = 2, .built = all, .gpu = true, .servers = 1}), "backend"));
  CHECK(fact(checked("ps", {.processes = 2, .built = all, .servers = 1}), "backend"));
}

TEST_CASE("the options of the elastic MXNet scripts select a strategy") {
  const Machine alone_gpu{1, true}, four{4}, four_gpu{4, true};
  for (const char* word : {"dist_sync", "dist_device_sync", "dist_sync_device"}) {
    CAPTURE(word);
    CHECK(meant("auto", word, "auto", four) == "mpi on auto");
    CHECK(meant("auto", word, "auto", four_gpu) == "nccl on cuda");
    CHECK(meant("auto", word, "cuda", four) == "nccl on cuda");
    CHECK(meant("auto", word, "eigen", four_gpu) == "mpi on eigen");
    CHECK(meant("auto", word, "auto", alone_gpu) == "solo on cuda");
  }
  CHECK(meant("auto", "device", "auto", four_gpu) == "nccl on cuda");
  CHECK(meant("auto", "device", "auto", alone_gpu) == "solo on cuda");
  CHECK(meant("auto", "nccl", "auto", alone_gpu) == "nccl on cuda");
  CHECK(meant("auto", "nccl", "auto", four_gpu) == "nccl on cuda");
  CHECK(meant("auto", "local", "auto", alone_gpu) == "solo on cuda");
}

TEST_CASE("options that do not fit together give an error of one line") {
  const Machine alone, four{4}, four_gpu{4, true}, no_nccl{4, true, {"solo", "mpi"}};
  const auto says = [](const std::string& text, const std::string& part) {
    CHECK_MESSAGE(text.find(part) != std::string::npos, text);
    CHECK(text.find('\n') == std::string::npos);
  };
  says(meant("nccl", "", "eigen", alone), "[--backend] expected cuda, because strategy nccl");
  says(meant("mpi", "", "cuda", four), "[--strategy] expected nccl, ps or ps_async with --backend cuda");
  says(meant("auto", "device", "auto", four), "[--kv-store] expected dist_sync for the 4 processes");
  says(meant("solo", "", "auto", four),
       "[--strategy] expected mpi, gloo, nccl or ps for the 4 processes that were started, got solo");
  says(meant("nccl", "", "cuda", no_nccl), "install the CUDA toolkit, cuDNN and NCCL (libnccl2 and libnccl-dev)");
  says(meant("auto", "", "cuda", no_nccl),
       "[--strategy] expected solo or mpi, the strategies of this build, got '4 that");
  says(meant("auto", "nccl", "auto", no_nccl), "[--kv-store]");
}

TEST_CASE("--gpus selects GPUs by their numbers") {
  CHECK(trainer::detail::gpu_numbers("").empty());
  CHECK(trainer::detail::gpu_numbers("3") == std::vector<int>{3});
  CHECK(trainer::detail::gpu_numbers("2,0,11") == std::vector<int>{2, 0, 11});
  for (const char* bad : {",", "0,", ",0", "0,0", "-1", "a", "0 1", "0,1x", "1024", "99999999999"}) {
    CAPTURE(bad);
    CHECK_THROWS_WITH_AS((void)trainer::detail::gpu_numbers(bad), doctest::Contains("[--gpus]"), UsageError);
  }
  RunOptions o;
  o.gpus = "0,1";
  CHECK(meant(o, {}).find("[--gpus] expected no GPUs, because the cuda backend was not chosen") == 0);
  o.backend = "cuda";
  CHECK(meant(o, {}) == "solo on cuda");
}

TEST_CASE("ranks of mpirun read the address for a rendezvous without MPI from the environment") {
  const std::map<std::string, std::string> variables{{"OMPI_COMM_WORLD_RANK", "1"},
                                                     {"OMPI_COMM_WORLD_SIZE", "3"},
                                                     {"TUTTI_ROOT", "a:4711"},
                                                     {"TUTTI_JOB", "0123456789abcdef"}};
  const LaunchEnvironment e = read_launch_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
  CHECK(e.rank == 1);
  CHECK(e.root == "a:4711");
  CHECK(e.job == "0123456789abcdef");
}
