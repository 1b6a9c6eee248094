// SPDX-License-Identifier: MIT
#include "training_main.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/threads.hpp>
#include <tutti/dist/launch_answer.hpp>
#include <tutti/dist/launch_environment.hpp>
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
#include "environment.hpp"
#include "program.hpp"
#include "strategies.hpp"

namespace tutti::examples {

namespace {

// What went wrong on this rank ends the others too.
template <class F>
int with_strategy(const RunOptions& o, const LaunchEnvironment& start, const cuda::Device* device, F&& f) {
  AnyStrategy strategy = make_strategy(o, start, device);
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
int gpu_of(const RunOptions& o, const LaunchEnvironment& start) {
  const std::vector<int> chosen = detail::gpu_numbers(o.gpus.value_or(""));
  const auto here = static_cast<std::size_t>(start.local_size);
  if (chosen.empty()) return start.local_rank;
  if (chosen.size() != here)
    fail<UsageError>("--gpus", here == 1 ? "one GPU" : std::to_string(here) + " GPUs", *o.gpus,
                     "a process has one: tutti-launch starts one for each, and -n counts hosts then");
  return chosen[static_cast<std::size_t>(start.local_rank)];
}

// Whether --backend auto takes it. One that is there and will not do is no silent reason to train on the processor.
bool has_gpu(const RunOptions& o, const LaunchEnvironment& start) {
  const cuda::GpuCheck gpu = cuda::check_gpu(gpu_of(o, start));
  if (!gpu.why.empty() && start.local_rank == 0)
    std::fprintf(stderr, "--backend auto trains on the processor, because the GPU will not do: %s\n", gpu.why.c_str());
  return gpu.will_do;
}

int run_on_gpu(RunOptions& o, const Task& task, const LaunchEnvironment& start) {
  const int there = cuda::count_devices();
  if (o.strategy == "nccl" && start.local_size > there)
    fail<DeviceError>(
        "--strategy nccl", "a GPU for each of the " + std::to_string(start.local_size) + " processes on this host",
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
  const cuda::Device& device = backend.device();
  if (o.precision == "bf16" && !cuda::has_bf16(device.architecture())) {
    if (!o.any_half)
      fail<UsageError>("--precision", "f16 or f32 on " + device.name_and_capability() + ", which has no bf16", "bf16",
                       "use --precision f16");
    o.precision = "f16";
    if (o.loss_scale == "1") o.loss_scale = "dynamic";
    o.notes.push_back("--precision f16: " + device.name_and_capability() + " has no bf16");
  }
  return with_strategy(o, start, &backend.device(),
                       [&](AnyStrategy& strategy) { return run(backend, strategy, o, task); });
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

// Those of the environment, without HOROVOD_, in alphabetical order.
std::vector<std::pair<std::string, std::string>> horovod_variables() {
  constexpr std::string_view begin = "HOROVOD_";
  std::vector<std::pair<std::string, std::string>> found;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view entry(*e);
    const std::size_t equals = entry.find('=');
    if (entry.starts_with(begin) && equals != entry.npos)
      found.emplace_back(entry.substr(begin.size(), equals - begin.size()), entry.substr(equals + 1));
  }
  std::sort(found.begin(), found.end());
  return found;
}

int train(RunOptions& o, const Task& task) {
  const LaunchEnvironment start = launched();
  bool gpu = false;
  detail::check_backend(o);
#ifdef TUTTI_HAS_CUDA
  gpu = o.backend == "auto" && !detail::wants_no_gpu(o) && has_gpu(o, start);
#endif
  naming_variables(o, [&] { check(o, start.size, built_strategies(), gpu); });
  if (launcher_asks()) return answer_launcher({o.strategy, o.strategy == "mpi"});
  apply_horovod_variables(o, horovod_variables(), start.size);
  // Ranks of one host share its cores.
  if (o.threads == 0) o.threads = std::max(1, usable_cores() / start.local_size);
#ifdef TUTTI_HAS_CUDA
  if (o.backend == "cuda") return run_on_gpu(o, task, start);
#endif
  return with_strategy(o, start, nullptr, [&](AnyStrategy& strategy) { return run_on_processor(strategy, o, task); });
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
