// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <span>

#include <tutti/backends/make/gloo.hpp>
#include <tutti/backends/make/mpi.hpp>
#include <tutti/backends/make/nccl.hpp>
#include <tutti/backends/make/ps.hpp>
#include <tutti/backends/make/strategy_options.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/strategy/any_strategy.hpp>
#include <tutti/strategy/solo.hpp>

// The list of all strategies. Only the unit that defines make_strategy() includes this file.
namespace tutti::detail {

struct StrategyRow {
  const char* word;
  const char* packages;  // packages that a build needs for it
  bool over_mpi;         // its ranks need mpirun to find each other
  AnyStrategy (*make)(const StrategyOptions&, const LaunchEnvironment&);
  // For processes that join and leave: they connect over `options.channel` or are restarted. Null if not supported.
  AnyStrategy (*make_elastic)(const StrategyOptions&, const LaunchEnvironment&) = nullptr;
  // Runs a server of the strategy. Null if it has no servers.
  void (*serve)(const StrategyOptions&, const LaunchEnvironment&, const std::function<bool()>&) = nullptr;
  // Runs a scheduler of the strategy. Null if it has no scheduler.
  void (*schedule)(const StrategyOptions&, const LaunchEnvironment&, const std::function<bool()>&) = nullptr;
};

inline std::span<const StrategyRow> strategy_rows() {
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

}  // namespace tutti::detail
