// SPDX-License-Identifier: MIT
#include "tools/report/read_evaluation.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/core/error.hpp>
#include <tutti/io/base64.hpp>
#include <tutti/io/file.hpp>
#include <tutti/train/evaluation_file.hpp>

#include "tools/report/table.hpp"

namespace tutti::report_tool {

namespace detail {

namespace {

// Returns a whole number of [0, end). Throws DataError for other values.
[[nodiscard]] std::int64_t number_below(const io::Json& v, std::int64_t end, std::string_view what) {
  const std::int64_t n = v.as_integer(what);
  if (n < 0 || n >= end) fail<DataError>(what, "a number from 0 to " + std::to_string(end - 1), std::to_string(n));
  return n;
}

// Checks the triples (label, predicted class, images) that EvaluationFile writes.
void check_confusion(const io::Json& confusion, std::int64_t classes) {
  const io::Json::Array& all = confusion.as_array("confusion");
  if (all.size() % 3 != 0) fail<DataError>("confusion", "triples of numbers", std::to_string(all.size()) + " numbers");
  std::int64_t before = -1;
  for (std::size_t i = 0; i < all.size(); i += 3) {
    const std::int64_t at =
        number_below(all[i], classes, "label") * classes + number_below(all[i + 1], classes, "said");
    if (at <= before) fail<DataError>("confusion", "pairs of classes in ascending order, each once", "another order");
    before = at;
    (void)number_below(all[i + 2], std::int64_t{1} << 50, "images of a pair");
  }
}

// Returns whether the text is a PNG file in base64.
[[nodiscard]] bool is_picture(const io::Json& v) {
  if (!v.is_string() || v.as_string().size() > (std::size_t{1} << 16)) return false;
  const auto bytes = io::from_base64(v.as_string());
  return bytes && bytes->starts_with("\x89PNG\r\n\x1a\n");
}

}  // namespace

}  // namespace detail

io::Json read_evaluation(const io::Path& path, std::size_t most_images) {
  const std::string text = io::read_text_file(path, std::size_t{1} << 26);
  const io::Json from = io::parse_json(text, path.string(), {std::size_t{1} << 26, std::size_t{1} << 22, 8});
  const std::int64_t format = from.at("format", "evaluation").as_integer("format");
  if (format != EvaluationFile::format)
    fail<DataError>("evaluation " + path.string(), "format " + std::to_string(EvaluationFile::format),
                    std::to_string(format), "the file was written by another version of tutti");
  constexpr std::int64_t most = std::int64_t{1} << 50;
  const std::int64_t classes = detail::number_below(from.at("classes"), std::int64_t{1} << 24, "classes");
  io::Json to = io::Json::object({{"classes", classes}});
  for (const char* name : {"epoch", "step", "images"}) to.set(name, detail::number_below(from.at(name), most, name));
  to.set("averaged", from.at("averaged").as_bool("averaged"));
  io::Json::Array names;
  for (const io::Json& n : from.at("class_names").as_array("class_names")) {
    const std::string& name = n.as_string("class_names");
    names.emplace_back(name.size() <= 60 ? name : utf8_text(name.substr(0, 60)) + " ...");
  }
  if (!names.empty() && static_cast<std::int64_t>(names.size()) != classes)
    fail<DataError>("class_names", std::to_string(classes) + " names, or no names", std::to_string(names.size()));
  to.set("class_names", std::move(names));
  if (!from.at("confusion").is_null()) detail::check_confusion(from.at("confusion"), classes);
  to.set("confusion", from.at("confusion"));
  io::Json::Array worst;
  for (const io::Json& w : from.at("worst").as_array("worst")) {
    if (worst.size() == most_images) break;
    io::Json shown = io::Json::object({{"index", detail::number_below(w.at("index"), most, "index")},
                                       {"label", detail::number_below(w.at("label"), classes, "label")},
                                       {"said", detail::number_below(w.at("said"), classes, "said")},
                                       {"loss", short_number(w.at("loss").as_double("loss"))},
                                       {"sure", short_number(w.at("sure").as_double("sure"))}});
    if (const io::Json* file = w.find("path"); file != nullptr && file->as_string("path").size() <= 4096)
      shown.set("path", utf8_text(file->as_string("path")));
    if (const io::Json* png = w.find("png"); png != nullptr && detail::is_picture(*png)) shown.set("png", *png);
    worst.push_back(std::move(shown));
  }
  return to.set("worst", std::move(worst));
}

}  // namespace tutti::report_tool
