// SPDX-License-Identifier: MIT
#include "training_main.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>

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

#ifdef TUTTI_HAS_CUDA
bool has_gpu(int id) {
  try {
    cuda::require_device(id);
    return true;
  } catch (const DeviceError&) {
    return false;
  }
}
#endif

// The backends of this build, fastest first.
int run_on_backend(AnyStrategy& strategy, RunOptions& o, const Task& task) {
  // Ranks of one host share its cores.
  if (o.threads == 0) o.threads = std::max(1, usable_cores() / launched().on_this_host);
  const int threads = static_cast<int>(o.threads);
  std::string built;
  const auto wanted = [&](const char* name, bool automatic) {
    built += (built.empty() ? "" : ", ") + std::string(name);
    return o.backend == name || (automatic && o.backend == "auto");
  };
#ifdef TUTTI_HAS_CUDA
  // The ranks of a host have a GPU each.
  if (wanted("cuda", has_gpu(launched().local_rank))) {
    CudaOptions as;
    as.device = launched().local_rank;
    as.tf32 = o.tf32;
    as.autotune = o.autotune;
    as.deterministic = o.deterministic;
    as.graph = o.cuda_graph;
    Cuda backend(as);
    return run(backend, strategy, o, task);
  }
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

// What went wrong on this rank ends the others too.
int run_with_strategy(RunOptions& o, const Task& task) {
  AnyStrategy strategy = make_strategy(o);
  try {
    return run_on_backend(strategy, o, task);
  } catch (const Error& e) {
    if (strategy.size() > 1) {
      strategy.abort(e.what(), static_cast<ExitCode>(e.exit_code()));
      return e.exit_code();
    }
    throw;
  }
}

}  // namespace

int training_main(int argc, char** argv, Program program, const Task& task) {
  try {
    auto options = parse_command_line(argc, argv, program);
    if (!options) return 0;
    check(*options, launched().processes, built_strategies());
    return run_with_strategy(*options, task);
  } catch (const Error& e) {
    std::fprintf(stderr, "%s: %s\n", name_of(program), e.what());
    return e.exit_code();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: [internal] %s\n", name_of(program), e.what());
    return static_cast<int>(ExitCode::internal);
  }
}

}  // namespace tutti::examples
