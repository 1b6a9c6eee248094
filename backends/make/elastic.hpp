// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

#include <tutti/backends/make/strategy_options.hpp>
#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/strategy/elastic.hpp>
#include <tutti/version.hpp>

namespace tutti::detail {

// The control channel and the options of elastic strategies.
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

}  // namespace tutti::detail
