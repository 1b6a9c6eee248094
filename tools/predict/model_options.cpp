// SPDX-License-Identifier: MIT
#include "tools/predict/model_options.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/io/checkpoint/checkpoint_names.hpp>
#include <tutti/io/file.hpp>

#include "tools/command_line/values.hpp"

namespace tutti::predict_tool {

namespace detail {

namespace {

// Accepts one value, or one value for each of three channels.
command_line::Set per_channel(std::vector<float>& to, float low) {
  return [&to, low](const std::string& option, const std::string& text) {
    to.clear();
    for (std::size_t at = 0; at <= text.size();) {
      const std::size_t end = std::min(text.find(',', at), text.size());
      to.push_back(command_line::number(option, text.substr(at, end - at), low, 255.0F,
                                        "a number from " + std::to_string(low) + " to " + std::to_string(255.0F)));
      at = end + 1;
    }
    if (to.size() == 1) to.resize(3, to[0]);
    if (to.size() != 3) fail<UsageError>(option, "one value or three", "'" + printable(text) + "'");
  };
}

}  // namespace

}  // namespace detail

std::vector<command_line::Option> model_option_table(ModelOptions& o) {
  using namespace command_line;
  const std::string group = "Model";
  return {
      {"--averaged", "WORD", one_of(o.averaged, {"auto", "yes", "no"}),
       "use the averaged weights of a checkpoint: yes, no, or auto (yes if the checkpoint has them, see --ema-decay)  "
       "[auto]",
       group},
      {"--classes", "FILE", text(o.classes),
       "file with the names of the classes, one on each line  [the names in MODEL, otherwise numbers]", group},
      {"--model", "NAME", text(o.net.name),
       "net of a MODEL that does not name its net: resnet18, resnet34, resnet50, resnet101, resnet152, "
       "resnext50_32x4d, "
       "wide_resnet50_2, mobilenet_v2 or convnext_tiny of torchvision; resnet50d or seresnet50 of timm. Images are "
       "prepared as torchvision evaluates ImageNet; the next four options change this",
       group},
      {"--image-size", "N", integer(o.net.image_size, 1, 4096, "a number"),
       "with --model: height and width of the net's input, in pixels  [224]", group},
      {"--short-side", "N", integer(o.net.short_side, 1, 65536, "a number"),
       "with --model: scale the short side of each image to N pixels, and crop the centre  [8/7 of --image-size: 256]",
       group},
      {"--rgb-mean", "M,M,M", detail::per_channel(o.net.mean, 0.0F),
       "with --model: mean, 0 to 255, that is subtracted from the pixels  [123.675,116.28,103.53]", group},
      {"--rgb-std", "S,S,S", detail::per_channel(o.net.stddev, 1e-3F),
       "with --model: standard deviation by which the pixels are divided  [58.395,57.12,57.375]", group}};
}

std::string shown(std::string name) {
  for (std::size_t k = 0; k < name.size(); ++k) {
    const auto u = static_cast<unsigned char>(name[k]);
    const auto next = k + 1 < name.size() ? static_cast<unsigned char>(name[k + 1]) : 0U;
    if (u == 0xc2 && next >= 0x80 && next < 0xa0) name.erase(k + 1, 1), name[k] = '?';  // U+0080 to U+009F
    if (u < 0x20 || u == 0x7f) name[k] = '?';
  }
  return name;
}

namespace detail {

namespace {

[[nodiscard]] std::vector<std::string> read_classes(const std::string& path) {
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

}  // namespace

}  // namespace detail

OpenedModel open_model(const ModelOptions& o) {
  OpenedModel m{interchange::open_model(o.model), {}, {}};
  const auto& n = o.net;
  if (!n.name.empty() && m.file.card)
    fail<UsageError>("--model", "a file that does not name its net",
                     m.file.path.string() + ", which is of " + m.file.card->name, "leave the option out");
  if (n.name.empty() && (n.image_size > 0 || n.short_side > 0 || !n.mean.empty() || !n.stddev.empty()))
    fail<UsageError>("--image-size, --short-side, --rgb-mean, --rgb-std", "--model together with it", "none",
                     "files that name their net contain this too");
  if (!n.name.empty()) {
    m.card = interchange::card_of(n, m.file);
  } else if (m.file.card) {
    m.card = *m.file.card;
  } else {
    fail<DataError>("model " + m.file.path.string(), "a file that names its net", "a file that does not",
                    "for files of other programs give --model, such as resnet50; checkpoints of tutti name their net "
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

std::string weights_of(const OpenedModel& m) {
  std::string text = m.loaded.averaged ? "the averaged weights" : "the weights";
  if (const auto name = io::CheckpointName::parse(m.file.checkpoint.filename().string()))
    text += " of step " + std::to_string(name->step);
  return text;
}

}  // namespace tutti::predict_tool
