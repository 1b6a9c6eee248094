// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/graph/weighted_graph.hpp>
#include <tutti/interchange/model_card.hpp>
#include <tutti/interchange/weight_match.hpp>
#include <tutti/io/checkpoint.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/safetensors.hpp>
#include <tutti/strategy/strategy.hpp>

namespace tutti::interchange {

// Which of a checkpoint's weights: those of the last step, their average, or the average where there is one.
enum class Averaged : std::uint8_t { automatic, yes, no };

// A file of weights as it was found.
struct ModelFile {
  io::Path path;                        // the safetensors file
  io::Path checkpoint;                  // the folder that it stands in; empty: it stands alone
  std::optional<io::Safetensors> file;  // always there
  std::optional<ModelCard> card;        // where it says what it is
};

namespace detail {

[[nodiscard]] inline bool is_folder(const io::Path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

// The checkpoint of a run that is marked as its best, else the newest that is whole.
[[nodiscard]] inline io::Path checkpoint_of_run(const io::Path& run) {
  const io::CheckpointStore store(run);
  if (const auto best = store.load_best()) return best->path();
  std::vector<std::string> complaints;
  if (const auto newest = store.load_newest_valid(&complaints)) return newest->path();
  fail<DataError>("model " + run.string(), "a whole checkpoint in " + store.folder().string(),
                  complaints.empty() ? "none" : complaints.front());
}

// What torch.save() writes: a ZIP archive or, in former times, a pickle. A safetensors file may begin with the same
// bytes, which are its header's length; the header begins with a brace.
[[nodiscard]] inline bool is_of_torch(const io::Path& path) {
  const io::MappedFile file(path);
  const auto bytes = file.bytes().first(std::min<std::size_t>(file.bytes().size(), 9));
  const std::string_view begin(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return (begin.starts_with("PK") || begin.starts_with("\x80")) && !begin.ends_with('{');
}

}  // namespace detail

// Where weights lie: the safetensors file, and the checkpoint's folder that it is in; empty: it is in none.
struct WeightsPlace {
  io::Path file, checkpoint;
};

// what: a safetensors file; a checkpoint's folder, which is read back whole; or a run's folder, of which the best
// checkpoint is taken, else the newest. DataError for what is none of them or damaged.
[[nodiscard]] inline WeightsPlace find_weights(const std::string& what) {
  const std::string where = "model " + what;
  io::Path path = what;
  while (path.has_parent_path() && path.filename().empty()) path = path.parent_path();  // a '/' at the end
  if (!io::path_exists(path)) fail<DataError>(where, "a checkpoint, a run or a safetensors file", "nothing there");
  WeightsPlace found;
  if (detail::is_folder(path)) {
    if (!io::path_exists(path / "model.safetensors") && io::path_exists(path / "checkpoints"))
      path = detail::checkpoint_of_run(path);
    if (!io::path_exists(path / "model.safetensors"))
      fail<DataError>(where, "model.safetensors, as a checkpoint has, or checkpoints, as a run has",
                      "a folder without them");
    if (io::path_exists(path / "manifest.json")) found.checkpoint = io::load_checkpoint(path).path();
    path /= "model.safetensors";
  } else if (detail::is_of_torch(path)) {
    fail<DataError>(where, "a safetensors file", "one of torch.save()",
                    "pytorch_weights.py FILE.pth FILE.safetensors converts it");
  }
  found.file = path;
  return found;
}

// The same, opened.
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

// The weights of a net (recorded by a Builder) out of a file. The file must have all of its tensors and no other;
// DataError names the first that differs. Averages lie in the checkpoint beside the file.
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
    fail<DataError>(where, "the tensors of the net", match.first_difference(), "is it the same net?");
  std::optional<io::Safetensors> averages;
  const io::Path beside = m.checkpoint / "optimizer.safetensors";
  if (averaged != Averaged::no && !m.checkpoint.empty()) {
    averages = io::Safetensors::open(beside);
    r.averaged = averages->find("ema." + spans.front().name) != nullptr;
  }
  if (averaged == Averaged::yes && !r.averaged)
    fail<DataError>(where, "averaged weights, of a checkpoint of a run that was told --ema-decay", "none");
  r.net.values.resize(g.values.size());
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const io::SafetensorsEntry* from = m.file->find(spans[i].name);
    if (r.averaged) {
      const auto* const average = averages->find("ema." + spans[i].name);
      if (average == nullptr || average->shape != from->shape)
        fail<DataError>("model " + beside.string(), "a tensor ema." + spans[i].name + " " + to_string(spans[i].shape),
                        average == nullptr ? "none" : "one of another shape");
      from = average;
    }
    auto& values = r.net.of(ids[i]);
    values.resize(static_cast<std::size_t>(spans[i].shape.numel()));
    tutti::detail::convert_values<float>(std::as_writable_bytes(std::span(values)), *from);
  }
  return r;
}

}  // namespace tutti::interchange
