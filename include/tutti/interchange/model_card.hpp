// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/interchange/image_preparation.hpp>
#include <tutti/interchange/model_metadata.hpp>
#include <tutti/interchange/net_json.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/io/utf8.hpp>

namespace tutti::interchange {

// Returns the card in the metadata of a file of weights, or no value without a card. Throws DataError that says what
// is wrong. where: names the file.
[[nodiscard]] inline std::optional<ModelCard> read_model_card(const Metadata& metadata, const std::string& where) {
  for (const auto& [key, text] : metadata) {
    if (key != ModelCard::key) continue;
    const std::string at = where + " model";
    const io::Json json = io::parse_json(text, at);
    if (const std::int64_t v = json.at("version", at).as_integer(at); v != ModelCard::version)
      fail<DataError>(at, {"version ", ModelCard::version}, v, "another version of tutti wrote this file");
    ModelCard card;
    card.name = json.at("name", at).as_string(at);
    if (const io::Json& net = json.at("net", at); !net.is_null()) card.graph = net_of_json(net, at + " net");
    card.image = image_preparation_of(json.at("image", at), at + " image");
    for (const io::Json& c : json.at("classes", at).as_array(at + " classes"))
      card.classes.push_back(c.as_string(at + " classes"));
    if (card.graph) {
      const Shape &image = (*card.graph)[card.graph->images].shape, &logits = (*card.graph)[card.graph->logits].shape;
      if (image[2] != card.image.height || image[3] != card.image.width)
        fail<DataError>({at, " image"}, {"images of the net's input ", to_string(image)},
                        {card.image.height, "x", card.image.width});
      if (image[1] == 3 || image[1] == 1) try {
          (void)ImagePreparer(card.image, image[1]);
        } catch (const UsageError& e) {
          throw DataError(error_message(at + " image", "images that can be prepared for the net", e.what()));
        }
      if (!card.classes.empty() && static_cast<std::int64_t>(card.classes.size()) != logits[1])
        fail<DataError>({at, " classes"}, {"a name for each of ", logits[1], " classes"}, card.classes.size());
    }
    return card;
  }
  return std::nullopt;
}

}  // namespace tutti::interchange
