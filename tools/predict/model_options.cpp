// SPDX-License-Identifier: MIT
#include "tools/predict/model_options.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>

namespace tutti::predict_tool {

std::vector<Option> model_option_table(ModelOptions& o) {
  return {word("--averaged", o.averaged, {"auto", "yes", "no"}),
          text("--classes", o.classes),
          text("--model", o.net.name),
          number("--image-size", o.net.image_size, 1, 4096),
          number("--short-side", o.net.short_side, 1, 65536),
          per_channel("--rgb-mean", o.net.mean, 0.0F),
          per_channel("--rgb-std", o.net.stddev, 1e-3F)};
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
