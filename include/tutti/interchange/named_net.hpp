// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/text_part.hpp>
#include <tutti/graph/builder.hpp>
#include <tutti/interchange/model_card.hpp>
#include <tutti/interchange/model_file.hpp>
#include <tutti/models/imagenet_net.hpp>

namespace tutti::interchange {

// Describes the net of a file that does not describe it.
struct NamedNet {
  std::string name;                     // a name of torchvision or timm, one of models::imagenet_nets
  std::int64_t image_size = 0;          // size of the net's input; 0: 224
  std::int64_t short_side = 0;          // images are scaled to this short side; 0: 8/7 of image_size, or 256 for 224
  std::vector<float> mean{}, stddev{};  // for pixels from 0 to 255; empty: ImageNet's, as torchvision has them
};

// Returns a card with the net of that name, with as many classes as the classifier in the file, and with torchvision's
// evaluation for ImageNet. Throws UsageError for an unknown name, and DataError if the file has no classifier.
[[nodiscard]] inline ModelCard card_of(const NamedNet& n, const ModelFile& m) {
  models::ResnetOptions o;
  if (std::ranges::find(models::imagenet_nets, n.name) == std::end(models::imagenet_nets)) {
    std::string all;
    for (const std::string_view name : models::imagenet_nets) all += concat({all.empty() ? "" : ", ", name});
    fail<UsageError>("--model", {"one of ", all}, n.name,
                     "files written by tutti's training contain their net and need no --model");
  }
  const std::string classifier = concat({models::classifier_of(n.name), ".weight"});
  const io::SafetensorsEntry* const fc = m.file->find(classifier);
  if (fc == nullptr || fc->shape.size() != 2 || fc->shape[0] < 1 || fc->shape[0] > (1 << 24))
    fail<DataError>({"model ", m.path.native()}, {"a tensor ", classifier, " [classes, channels]"},
                    fc == nullptr ? "no such tensor" : "another shape",
                    {"use the state dictionary of ", n.name, ", or name its net"});
  o.classes = static_cast<int>(fc->shape[0]);
  ModelCard card;
  card.name = n.name;
  card.image.scale = ImageAugment::torchvision(Split::test);
  ImageAugment& scale = card.image.scale;
  if (n.image_size > 0) scale.height = scale.width = n.image_size;
  scale.short_side = static_cast<int>(n.short_side > 0 ? n.short_side : (scale.height * 8 + 6) / 7);
  if (!n.mean.empty()) scale.mean = n.mean;
  if (!n.stddev.empty()) scale.stddev = n.stddev;
  card.image.height = scale.height;
  card.image.width = scale.width;
  Builder b(3, scale.height, scale.width);
  std::vector<float> inverse;
  for (const float s : scale.stddev) inverse.push_back(1 / s);
  models::imagenet_net(b, b.normalize(scale.mean, inverse), n.name, o);
  card.graph = std::move(b).take();
  return card;
}

}  // namespace tutti::interchange
