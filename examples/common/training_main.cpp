// SPDX-License-Identifier: MIT
#include "training_main.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <tutti/core/threads.hpp>
#ifdef TUTTI_HAS_CUDA
#include <tutti/backends/cuda/cuda.hpp>
#endif
#ifdef TUTTI_HAS_ONEDNN
#include <tutti/backends/onednn/onednn.hpp>
#endif
#ifdef TUTTI_HAS_EIGEN
#include <tutti/backends/eigen/eigen.hpp>
#endif

#include "check.hpp"
#include "cli.hpp"
#include "program.hpp"
#include "strategies.hpp"

namespace tutti::examples {

namespace {

// What went wrong on this rank ends the others too.
template <class F>
int with_strategy(const RunOptions& o, const cuda::Device* device, F&& f) {
  AnyStrategy strategy = make_strategy(o, device);
  try {
    return f(strategy);
  } catch (const Error& e) {
    if (strategy.size() > 1) {
      strategy.abort(e.what(), static_cast<ExitCode>(e.exit_code()));
      return e.exit_code();
    }
    throw;
  }
}

#ifdef TUTTI_HAS_CUDA
// The GPU of this process: the ranks of a host have one each.
int gpu_of(const RunOptions& o, const Launched& start) {
  const std::vector<int> chosen = detail::gpu_numbers(o.gpus);
  const auto here = static_cast<std::size_t>(start.on_this_host);
  if (chosen.empty()) return start.local_rank;
  if (chosen.size() != here)
    fail<UsageError>("--gpus", here == 1 ? "one GPU" : std::to_string(here) + " GPUs", o.gpus,
                     "a process has one: tutti-launch -n " + std::to_string(chosen.size()) + " starts as many");
  return chosen[static_cast<std::size_t>(start.local_rank)];
}

// Whether --backend auto takes it.
bool has_gpu(const RunOptions& o, const Launched& start) {
  try {
    const cuda::Device device(gpu_of(o, start));
    return true;
  } catch (const DeviceError&) {
    return false;
  }
}

int run_on_gpu(RunOptions& o, const Task& task, const Launched& start) {
  const int there = cuda::count_devices();
  if (o.strategy == "nccl" && start.on_this_host > there)
    fail<DeviceError>(
        "--strategy nccl", "a GPU for each of the " + std::to_string(start.on_this_host) + " processes on this host",
        std::to_string(there),
        "start fewer (slots= in the hosts file); nvidia-smi -L and CUDA_VISIBLE_DEVICES say which there are");
  CudaOptions as;
  as.device = gpu_of(o, start);
  as.tf32 = o.tf32;
  as.autotune = o.autotune;
  as.deterministic = o.deterministic;
  as.fusion = parse_cuda_fusion(o.cuda_fusion);
  as.recompute = o.recompute;
  as.graph = o.cuda_graph;
  Cuda backend(as);
  return with_strategy(o, &backend.device(), [&](AnyStrategy& strategy) { return run(backend, strategy, o, task); });
}
#endif

// The backends of this build on the processor, fastest first.
int run_on_processor(AnyStrategy& strategy, RunOptions& o, const Task& task) {
  const int threads = static_cast<int>(o.threads);
  std::string built;
  const auto wanted = [&](const char* name, bool automatic) {
    built += (built.empty() ? "" : ", ") + std::string(name);
    return o.backend == name || (automatic && o.backend == "auto");
  };
#ifdef TUTTI_HAS_CUDA
  built = "cuda";
#endif
#ifdef TUTTI_HAS_ONEDNN
  if (wanted("onednn", true)) {
    Onednn backend({threads});
    return run(backend, strategy, o, task);
  }
#endif
#ifdef TUTTI_HAS_EIGEN
  if (wanted("eigen", true)) {
    EigenBackend backend({threads});
    return run(backend, strategy, o, task);
  }
#endif
#if defined(TUTTI_HAS_ONEDNN) || defined(TUTTI_HAS_EIGEN)
  if (wanted("reference", false)) {
#else
  if (wanted("reference", true)) {
#endif
    Reference backend;
    return run(backend, strategy, o, task);
  }
  fail<UsageError>("--backend", "auto or a backend of this build: " + built, o.backend,
                   o.backend == "cuda"     ? "install the CUDA toolkit with cuDNN and build again"
                   : o.backend == "onednn" ? "install libdnnl-dev and build again"
                                           : "install libeigen3-dev and build again");
}

int train(RunOptions& o, const Task& task) {
  const Launched start = launched();
  bool gpu = false;
  detail::check_backend(o);
#ifdef TUTTI_HAS_CUDA
  gpu = o.backend == "auto" && has_gpu(o, start);
#endif
  check(o, start.processes, built_strategies(), gpu);
  // Ranks of one host share its cores.
  if (o.threads == 0) o.threads = std::max(1, usable_cores() / start.on_this_host);
#ifdef TUTTI_HAS_CUDA
  if (o.backend == "cuda") return run_on_gpu(o, task, start);
#endif
  return with_strategy(o, nullptr, [&](AnyStrategy& strategy) { return run_on_processor(strategy, o, task); });
}

}  // namespace

int training_main(int argc, char** argv, Program program, const Task& task) {
  try {
    auto options = parse_command_line(argc, argv, program);
    if (!options) return 0;
    return train(*options, task);
  } catch (const Error& e) {
    std::fprintf(stderr, "%s: %s\n", name_of(program), e.what());
    return e.exit_code();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: [internal] %s\n", name_of(program), e.what());
    return static_cast<int>(ExitCode::internal);
  }
}

}  // namespace tutti::examples
