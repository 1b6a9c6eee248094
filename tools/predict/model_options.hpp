// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <tutti/interchange/model_file.hpp>
#include <tutti/interchange/named_net.hpp>

#include "tools/predict/words.hpp"

// Which net with which weights: what tutti-predict and tutti-export have in common.
namespace tutti::predict_tool {

struct ModelOptions {
  std::string model;  // MODEL
  interchange::NamedNet net;
  std::string averaged = "auto", classes;
};

inline constexpr const char* model_help = R"(
MODEL: a run's folder (--run-dir), of which the best checkpoint is taken, else the newest; a checkpoint's folder; or a
safetensors file. Files that tutti's training has written say which net they are of, how its images are made ready and
what its classes are called. Those of torchvision and timm do not: --model says it.
  --averaged WORD      the average of a checkpoint's weights: yes, no, or auto, where there is one (--ema-decay)  [auto]
  --classes FILE       names of the classes, one a line  [those of the file, else numbers]
  --model NAME         resnet18, resnet34, resnet50, resnet101 or resnet152, of a file that does not say its net; images
                       are made ready as torchvision evaluates ImageNet, unless these say otherwise:
  --image-size N       side of the net's input  [224]
  --short-side N       the short side is scaled to it, and the middle cut out  [8/7 of --image-size: 256]
  --rgb-mean M,M,M     of the pixels, 0 to 255  [123.675,116.28,103.53]
  --rgb-std S,S,S      their standard deviation  [58.395,57.12,57.375]
)";

[[nodiscard]] std::vector<Option> model_option_table(ModelOptions& o);

// A name of a model file or an image, which a stranger may have chosen, on a terminal: control characters become '?'.
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

}  // namespace tutti::predict_tool
