// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/interchange/model_card.hpp>
#include <tutti/interchange/model_file.hpp>
#include <tutti/interchange/named_net.hpp>
#include <tutti/io/file.hpp>

#include "words.hpp"

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

[[nodiscard]] inline std::vector<Option> model_option_table(ModelOptions& o) {
  return {word("--averaged", o.averaged, {"auto", "yes", "no"}),
          text("--classes", o.classes),
          text("--model", o.net.name),
          number("--image-size", o.net.image_size, 1, 4096),
          number("--short-side", o.net.short_side, 1, 65536),
          per_channel("--rgb-mean", o.net.mean, 0.0F),
          per_channel("--rgb-std", o.net.stddev, 1e-3F)};
}

// A name of a model file or an image, which a stranger may have chosen, on a terminal: control characters become '?'.
[[nodiscard]] inline std::string shown(std::string name) {
  for (std::size_t k = 0; k < name.size(); ++k) {
    const auto u = static_cast<unsigned char>(name[k]);
    const auto next = k + 1 < name.size() ? static_cast<unsigned char>(name[k + 1]) : 0U;
    if (u == 0xc2 && next >= 0x80 && next < 0xa0) name.erase(k + 1, 1), name[k] = '?';  // U+0080 to U+009F
    if (u < 0x20 || u == 0x7f) name[k] = '?';
  }
  return name;
}

struct OpenedModel {
  interchange::ModelFile file;
  interchange::ModelCard card;
  interchange::LoadedModel loaded;

  [[nodiscard]] std::int64_t classes() const { return card.graph->operator[](card.graph->logits).shape[1]; }
  [[nodiscard]] std::string class_name(std::size_t k) const {
    return k < card.classes.size() ? card.classes[k] : std::to_string(k);
  }
};

namespace detail {

[[nodiscard]] inline std::vector<std::string> read_classes(const std::string& path) {
  std::vector<std::string> names;
  const std::string text = io::read_text_file(path, std::size_t{1} << 26);
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    while (line.ends_with('\r') || line.ends_with(' ')) line.remove_suffix(1);
    names.emplace_back(utf8_text(std::string(line)));
  }
  return names;
}

}  // namespace detail

[[nodiscard]] inline OpenedModel open_model(const ModelOptions& o) {
  OpenedModel m{interchange::open_model(o.model), {}, {}};
  const auto& n = o.net;
  if (!n.name.empty() && m.file.card)
    fail<UsageError>("--model", "a file that does not say its net",
                     m.file.path.string() + ", which is of " + m.file.card->name, "leave the option out");
  if (n.name.empty() && (n.image_size > 0 || n.short_side > 0 || !n.mean.empty() || !n.stddev.empty()))
    fail<UsageError>("--image-size, --short-side, --rgb-mean, --rgb-std", "--model beside it", "none",
                     "files that say their net say this too");
  if (!n.name.empty()) {
    m.card = interchange::card_of(n, m.file);
  } else if (m.file.card) {
    m.card = *m.file.card;
  } else {
    fail<DataError>(
        "model " + m.file.path.string(), "a file that says which net it is of", "one that does not",
        "--model resnet18 to resnet152 names the net of other programs' files; checkpoints of tutti name it "
        "themselves");
  }
  if (!m.card.graph)
    fail<DataError>("model " + m.file.path.string(), "a net of tutti's own ops",
                    m.card.name + ", which has another one",
                    "predict in the program that trained it: Trainer::predict()");
  if (!o.classes.empty()) m.card.classes = detail::read_classes(o.classes);
  if (!m.card.classes.empty() && static_cast<std::int64_t>(m.card.classes.size()) != m.classes())
    fail<DataError>("--classes " + o.classes, "a line for each of " + std::to_string(m.classes()) + " classes",
                    std::to_string(m.card.classes.size()));
  using interchange::Averaged;
  m.loaded = interchange::load_model(m.file, *m.card.graph,
                                     o.averaged == "yes"  ? Averaged::yes
                                     : o.averaged == "no" ? Averaged::no
                                                          : Averaged::automatic);
  return m;
}

}  // namespace tutti::predict_tool
