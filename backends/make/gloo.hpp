// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include <tutti/backends/make/elastic.hpp>
#include <tutti/backends/make/encryption.hpp>
#include <tutti/backends/make/strategy_options.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/strategy/any_strategy.hpp>
#ifdef TUTTI_HAS_GLOO
#include <tutti/backends/gloo/elastic.hpp>
#include <tutti/backends/gloo/job.hpp>

namespace tutti::detail {

inline GlooJobOptions gloo_options(const StrategyOptions& o) {
  GlooJobOptions g;
  g.deadline = o.deadline;
  g.rendezvous_timeout = std::min(g.rendezvous_timeout, o.deadline);
  g.shared_memory = o.shared_memory;
  g.hierarchical = o.hierarchical;
  g.wire = o.bf16_wire ? WireType::bf16 : WireType::same;
  g.facts = o.facts;
  g.streams = secure_streams(o);
  return g;
}
inline AnyStrategy make_gloo(const StrategyOptions& o, const LaunchEnvironment& start) {
  return AnyStrategy::make<GlooAllReduce>(start, gloo_options(with_encryption_fact(o)));
}
inline AnyStrategy make_elastic_gloo(const StrategyOptions& options, const LaunchEnvironment& start) {
  const StrategyOptions o = with_encryption_fact(options);
  return AnyStrategy::make<ElasticGloo>(channel_of(o), elastic_options(o, start), GlooGroupFactory{gloo_options(o)});
}

}  // namespace tutti::detail

#endif
