// SPDX-License-Identifier: MIT
// Reads any bytes as the model card in a file of weights. The result is either DataError, or a net, images and classes
// that are the same after writing and reading them again. Also reads any bytes as a header with names and shapes of
// tensors, which may fit a ResNet of torchvision or timm.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/interchange/image_preparation.hpp>
#include <tutti/interchange/model_card.hpp>
#include <tutti/interchange/model_file.hpp>
#include <tutti/interchange/named_net.hpp>
#include <tutti/interchange/net_json.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/io/safetensors/safetensors.hpp>

namespace fuzz::model_card {

using namespace tutti;
using namespace tutti::interchange;

void read_card(const std::string& text) {
  std::optional<ModelCard> card;
  try {
    card = read_model_card({{"format", "pt"}, {std::string(ModelCard::key), text}}, "fuzz");
    if (!card) std::abort();
    if (card->graph)
      if (const std::int64_t channels = (*card->graph)[card->graph->images].shape[1]; channels == 3 || channels == 1)
        (void)ImagePreparer(card->image, channels);
  } catch (const DataError&) {
    return;
  }
  const io::Json image = json_of(card->image);
  if (json_of(image_preparation_of(image, "again")) != image) std::abort();
  if (!card->graph) return;
  const auto net = net_to_json(*card->graph);
  // A card cannot express a value that no node reads, or a node if a later node has the same name.
  if (!net) return;
  const auto again = net_to_json(net_of_json(*net, "again"));
  if (!again || *again != *net) std::abort();
}

// Returns the number of bytes of all values in such a header, if it is small.
std::size_t bytes_of_values(std::string_view header) {
  const io::Json json = io::parse_json(header);
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : json.as_object())
    if (const io::Json* const offsets = tensor.find("data_offsets"))
      for (const io::Json& at : offsets->as_array()) bytes = std::max(bytes, at.as_integer());
  return bytes <= 65536 ? static_cast<std::size_t>(bytes) : 0;
}

// header: the header of a safetensors file.
void read_names(std::string_view header) {
  try {
    std::vector<std::byte> bytes(8 + header.size() + bytes_of_values(header));
    const std::uint64_t length = header.size();
    std::memcpy(bytes.data(), &length, 8);
    std::memcpy(bytes.data() + 8, header.data(), header.size());
    ModelFile m{"fuzz", {}, io::Safetensors::view(bytes, "fuzz"), {}};
    m.card = read_model_card(m.file->metadata(), "fuzz");
    const ModelCard card = m.card && m.card->graph ? *m.card : card_of({"resnet18"}, m);
    const LoadedModel loaded = load_model(m, *card.graph, Averaged::automatic);
    if (loaded.averaged || loaded.net.values.size() != loaded.net.graph.values.size()) std::abort();
    for (std::size_t v = 0; v < loaded.net.values.size(); ++v)
      if (const Value& value = loaded.net.graph.values[v];
          (value.storage == Storage::parameter || value.storage == Storage::state) &&
          static_cast<std::int64_t>(loaded.net.values[v].size()) != value.shape.numel())
        std::abort();
  } catch (const DataError&) {
  }
}

int run(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  read_card(text);
  read_names(text);
  return 0;
}

}  // namespace fuzz::model_card
