// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <functional>
#include <memory>

#include <tutti/backends/make/elastic.hpp>
#include <tutti/backends/make/strategy_options.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/strategy/any_strategy.hpp>
#ifdef TUTTI_HAS_ZEROMQ
#include <tutti/backends/zeromq/elastic.hpp>
#include <tutti/backends/zeromq/elastic_async.hpp>
#include <tutti/backends/zeromq/job.hpp>

namespace tutti::detail {

inline zeromq::JobOptions ps_options(const StrategyOptions& o) {
  zeromq::JobOptions as;
  as.deadline = o.deadline;
  as.rendezvous_timeout = std::min(as.rendezvous_timeout, o.deadline);
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
  return AnyStrategy::make<zeromq::ElasticServed>(channel_of(o), zeromq::elastic_options(start, as),
                                                  zeromq::ServedGroupFactory(as));
}
inline void serve_ps(const StrategyOptions& o, const LaunchEnvironment& start, const std::function<bool()>& stop) {
  zeromq::JobOptions as = ps_options(o);
  as.weights = nullptr;
  if (start.elastic) return zeromq::serve_elastic_job(start, channel_of(o), as, stop);
  zeromq::serve_job(start, as, stop);
}
inline AnyStrategy make_elastic_ps_async(const StrategyOptions& o, const LaunchEnvironment& start) {
  zeromq::JobOptions as = ps_options(o);
  as.strategy = "ps_async";
  return AnyStrategy::make<zeromq::ElasticAsyncServed>(channel_of(o), zeromq::elastic_options(start, as),
                                                       zeromq::AsyncGroupFactory(as));
}
inline void serve_ps_async(const StrategyOptions& o, const LaunchEnvironment& start,
                           const std::function<bool()>& stop) {
  if (o.weights == nullptr)
    fail<UsageError>(o.where, "the weights that a server of ps_async owns", "no weights",
                     "set StrategyOptions::make_weights, for example to server_weights() (train/server_weights.hpp)");
  zeromq::JobOptions as = ps_options(o);
  as.strategy = "ps_async";
  if (start.elastic) return zeromq::serve_elastic_async_job(start, channel_of(o), as, stop);
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

}  // namespace tutti::detail

#endif
