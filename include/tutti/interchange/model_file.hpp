// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/graph/weighted_graph.hpp>
#include <tutti/interchange/find_weights.hpp>
#include <tutti/interchange/model_card.hpp>
#include <tutti/interchange/weight_match.hpp>
#include <tutti/io/checkpoint/checkpoint.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/safetensors/safetensors.hpp>
#include <tutti/strategy/strategy.hpp>

namespace tutti::interchange {

// Which weights of a checkpoint to use. yes: the averaged ones; no: those of the last step; automatic: the averaged
// ones if the checkpoint has them.
enum class Averaged : std::uint8_t { automatic, yes, no };

// A file of weights, and the checkpoint and card that belong to it.
struct ModelFile {
  io::Path path;        // the safetensors file
  io::Path checkpoint;  // the folder of the checkpoint that contains the file; empty if no checkpoint contains it
  std::optional<io::Safetensors> file;  // always set
  std::optional<ModelCard> card;        // set if the file describes its net
};

// Opens any path that find_weights() accepts.
[[nodiscard]] inline ModelFile open_model(const std::string& what) {
  const WeightsPlace found = find_weights(what);
  ModelFile m;
  m.path = found.file;
  m.checkpoint = found.checkpoint;
  m.file = io::Safetensors::open(m.path);
  m.card = read_model_card(m.file->metadata(), m.path.string());
  return m;
}

// A net with its weights, ready to predict.
struct LoadedModel {
  WeightedGraph net;  // an inference_graph()
  bool averaged = false;
};

// Returns a net (recorded by a Builder) with the weights of a file. The file must have exactly the tensors of the net:
// DataError names the first difference. Averaged weights are in the checkpoint next to the file.
[[nodiscard]] inline LoadedModel load_model(const ModelFile& m, const Graph& net, Averaged averaged) {
  LoadedModel r{{inference_graph(net), {}}, false};
  const Graph& g = r.net.graph;
  std::vector<StateSpan> spans;
  std::vector<ValueId> ids;
  for (std::size_t v = 0; v < g.values.size(); ++v) {
    const Value& value = g.values[v];
    if (value.storage != Storage::parameter && value.storage != Storage::state) continue;
    spans.push_back({value.name, DType::f32, value.shape, {}});
    ids.push_back(static_cast<ValueId>(v));
  }
  const std::string where = "model " + m.path.string();
  const tutti::detail::WeightMatch match(*m.file, spans, {});
  if (!match.first_difference().empty())
    fail<DataError>(where, "the tensors of the net", match.first_difference(), "use the net that wrote this file");
  std::optional<io::Safetensors> averages;
  const io::Path beside = m.checkpoint / "optimizer.safetensors";
  if (averaged != Averaged::no && !m.checkpoint.empty()) {
    averages = io::Safetensors::open(beside);
    r.averaged = averages->find("ema." + spans.front().name) != nullptr;
  }
  if (averaged == Averaged::yes && !r.averaged)
    fail<DataError>(where, "averaged weights, from a checkpoint of a run with --ema-decay", "no averaged weights");
  r.net.values.resize(g.values.size());
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const io::SafetensorsEntry* from = m.file->find(spans[i].name);
    if (r.averaged) {
      const auto* const average = averages->find("ema." + spans[i].name);
      if (average == nullptr || average->shape != from->shape)
        fail<DataError>({"model ", beside.native()}, {"a tensor ema.", spans[i].name, " ", to_string(spans[i].shape)},
                        average == nullptr ? "no such tensor" : "a tensor of another shape");
      from = average;
    }
    auto& values = r.net.of(ids[i]);
    values.resize(static_cast<std::size_t>(spans[i].shape.numel()));
    tutti::detail::convert_values<float>(std::as_writable_bytes(std::span(values)), *from);
  }
  return r;
}

}  // namespace tutti::interchange
