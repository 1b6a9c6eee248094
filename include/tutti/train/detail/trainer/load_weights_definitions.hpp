// SPDX-License-Identifier: MIT
#pragma once

// Definitions of load_weights.hpp.

#include <string>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>
#include <tutti/interchange/find_weights.hpp>
#include <tutti/interchange/weight_match.hpp>
#include <tutti/io/safetensors/safetensors.hpp>
#include <tutti/strategy/strategy.hpp>
#include <tutti/train/load_weights.hpp>

namespace tutti {

TUTTI_CORE_FUNCTION LoadedWeights load_weights(Trainer& trainer, const std::string& where,
                                               const LoadWeightsOptions& o) {
  const io::Path path = interchange::find_weights(where).file;
  const auto file = io::Safetensors::open(path);
  trainer.commit();
  const std::vector<StateSpan> model = trainer.committed_tensors(false);
  std::vector<StateSpan> averages = trainer.committed_tensors(true);
  const detail::WeightMatch match(file, model, o);
  if (const std::string complaints = match.complaints(); !complaints.empty())
    fail<DataError>({"weights ", path.native()}, "the tensors of the net", complaints,
                    "use the same net with the same number of classes; fine-tuning may omit the classifier");
  const auto put = [](const StateSpan& to, const io::SafetensorsEntry& from) {
    if (to.dtype == DType::f64)
      detail::convert_values<double>(to.bytes, from);
    else
      detail::convert_values<float>(to.bytes, from);
  };
  for (const auto& [to, from] : match.pairs) {
    put(*to, *from);
    for (const StateSpan& s : averages)
      if (s.name == average_prefix + to->name || s.name == lookahead_prefix + to->name) put(s, *from);
  }
  trainer.restore();
  if (match.batches > 0) trainer.counters().batches = match.batches;
  return {match.pairs.size(), match.skipped};
}

}  // namespace tutti
