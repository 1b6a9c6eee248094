// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <tutti/interchange/model_file.hpp>
#include <tutti/interchange/named_net.hpp>

#include "tools/command_line/command_line.hpp"

// The options for a net and its weights, which tutti-predict and tutti-export have in common.
namespace tutti::predict_tool {

struct ModelOptions {
  std::string model;  // MODEL
  interchange::NamedNet net;
  std::string averaged = "auto", classes;
};

// The last paragraphs of the help of both programs.
inline constexpr const char* model_notes =
    R"(MODEL: a run's folder (--run-dir), of which the best checkpoint is used, else the newest one; a checkpoint's folder; or
a safetensors file. Files that tutti's training has written name their net, the preparation of its images and its classes.
Those of torchvision and timm do not: give --model.
)";

[[nodiscard]] std::vector<command_line::Option> model_option_table(ModelOptions& o);

// Returns the name of a model file or an image for printing on a terminal. Control characters become '?', because the
// name may come from another person.
[[nodiscard]] std::string shown(std::string name);

struct OpenedModel {
  interchange::ModelFile file;
  interchange::ModelCard card;
  interchange::LoadedModel loaded;

  [[nodiscard]] std::int64_t classes() const { return card.graph->operator[](card.graph->logits).shape[1]; }
  [[nodiscard]] std::string class_name(std::size_t k) const {
    return k < card.classes.size() ? card.classes[k] : std::to_string(k);
  }
};

[[nodiscard]] OpenedModel open_model(const ModelOptions& o);

// Returns e.g. "the weights of step 240", or "the averaged weights of step 240", or "the weights" without a checkpoint.
[[nodiscard]] std::string weights_of(const OpenedModel& m);

}  // namespace tutti::predict_tool
