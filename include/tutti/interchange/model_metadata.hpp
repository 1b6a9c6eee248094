// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/data/images/image_preparation.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/interchange/net_to_json.hpp>
#include <tutti/interchange/preparation_json.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/io/utf8.hpp>

// The metadata about a net in a file of weights; model_card.hpp reads it.
namespace tutti::interchange {

// A file's description of its weights, which is enough to predict: the net, the preparation of its images and the names
// of its classes. It is JSON under the key "tutti" in the metadata of a safetensors file.
struct ModelCard {
  static constexpr std::string_view key = "tutti";
  static constexpr std::int64_t version = 1;

  std::string name;            // for display, such as "resnet_imagenet-50"
  std::optional<Graph> graph;  // without a loss; no value for a net with an op that a file cannot describe
  ImagePreparation image;
  std::vector<std::string> classes;  // one name per class, or empty
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

// Returns the metadata of a model as recorded by a Builder. Readers of Hugging Face require "format".
[[nodiscard]] inline Metadata model_metadata(const std::string& name, const Graph& model, const ImagePreparation& image,
                                             const std::vector<std::string>& classes) {
  io::Json::Array names;
  for (const std::string& c : classes) names.emplace_back(utf8_text(c));
  const auto net = net_to_json(model);
  return {{"format", "pt"},
          {std::string(ModelCard::key), io::write_json(io::Json::object({{"version", ModelCard::version},
                                                                         {"name", name},
                                                                         {"net", net ? *net : io::Json()},
                                                                         {"image", json_of(image)},
                                                                         {"classes", std::move(names)}}))}};
}

}  // namespace tutti::interchange
