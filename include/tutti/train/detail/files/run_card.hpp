// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/data/dataset.hpp>
#include <tutti/data/images/image_preparation.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/graph/ops.hpp>
#include <tutti/interchange/model_metadata.hpp>
#include <tutti/train/trainer.hpp>

// The card that Checkpoints writes to model.safetensors: the trainer's model, and facts about images from its batches.
namespace tutti::detail {

// Returns a name such as "net-8", for a net with eight convolutions and fully connected layers. The name does not
// depend on the run, so that the same weights make the same bytes.
[[nodiscard]] inline std::string name_of_net(const Graph& model) {
  int layers = 0;
  for (const Node& n : model.nodes)
    if (std::holds_alternative<op::Conv2d>(n.op) || std::holds_alternative<op::Linear>(n.op)) ++layers;
  return "net-" + std::to_string(layers);
}

// Returns the preparation of images for this net: the preparation of the test set or, if its images do not have the
// net's size, of the training set. If neither has this size, images are scaled to it.
[[nodiscard]] inline ImagePreparation preparation_for(const Shape& input, const Schema* test, const Schema* training) {
  for (const Schema* s : {test, training}) {
    if (s == nullptr || s->preparation == nullptr) continue;
    if (s->preparation->height == input[2] && s->preparation->width == input[3]) return *s->preparation;
  }
  return preparation_of_stored(input[2], input[3]);
}

// Returns `given`, completed with the entries of a model's card that it lacks.
[[nodiscard]] inline interchange::Metadata with_card(interchange::Metadata given, const Trainer& trainer) {
  for (const auto& [key, text] : given)
    if (key == interchange::ModelCard::key) return given;
  const Graph& model = trainer.model();
  const Schema *const test = trainer.test_images().get(), *const training = trainer.training_images().get();
  std::vector<std::string> names;
  for (const Schema* s : {training, test})
    if (s != nullptr && names.empty() &&
        static_cast<std::int64_t>(s->class_names.size()) == model[model.logits].shape[1])
      names = s->class_names;
  const ImagePreparation image = preparation_for(model[model.images].shape, test, training);
  for (auto& entry : interchange::model_metadata(name_of_net(model), model, image, names)) {
    bool there = false;
    for (const auto& [key, text] : given) there = there || key == entry.first;
    if (!there) given.push_back(std::move(entry));
  }
  return given;
}

}  // namespace tutti::detail
