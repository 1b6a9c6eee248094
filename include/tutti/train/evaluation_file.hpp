// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/images/png_write.hpp>
#include <tutti/io/base64.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/train/mistakes.hpp>
#include <tutti/train/report.hpp>
#include <tutti/train/run_log.hpp>

namespace tutti {

// Writes RUN/evaluation.json: the confusion matrix of the last evaluation and its worst-classified images, if
// FitOptions::mistakes is set. Each evaluation replaces the file, or, after keep_best(), each one that is the best.
// "confusion" is a flat list of triples: label, predicted class, number of images. Pairs without an image are left out.
// "png" is a small copy of the image, in Base64.
class EvaluationFile : public FitListener {
 public:
  static constexpr std::int64_t format = 1, most_pixels = 72;  // most_pixels: for each side

  // test: the evaluated data. An unreadable image is listed without its picture. where: returns the file of an image,
  // for its "path"; may be empty.
  EvaluationFile(const io::Path& run_dir, AnyDataset test, std::function<void(const std::string&)> complain,
                 std::function<std::string(std::int64_t)> where = {})
      : path_(run_dir / "evaluation.json"),
        test_(std::move(test)),
        careful_(path_.string(), std::move(complain)),
        where_(std::move(where)) {}

  // Keeps the file of the best evaluation. best_step: the step of the best checkpoint, if a run with one goes on.
  void keep_best(std::optional<std::int64_t> best_step) {
    keeps_best_ = true;
    if (!best_step || !io::path_exists(path_)) return;
    careful_([&] {
      const io::Json before = io::parse_json(io::read_text_file(path_, std::size_t{1} << 26), path_.string(),
                                             {std::size_t{1} << 26, std::size_t{1} << 22, 8});
      has_best_ = before.at("step", path_.string()).as_integer(path_.string()) == *best_step;
    });
  }

  void mistakes(const Mistakes& m) override {
    if (keeps_best_)
      last_ = m;
    else
      write(m);
  }
  void epoch(const EpochReport& r) override {
    if (last_ && (r.best || !has_best_)) write(*last_);
    has_best_ = has_best_ || (last_ && r.best);
    last_.reset();
  }

 private:
  void write(const Mistakes& m) {
    // Does not wait for the disk: the other ranks may wait for this one, and the disk may be slow.
    careful_([&] { io::replace_file(path_, io::write_json(json_of(m)) + "\n"); });
  }
  [[nodiscard]] io::Json json_of(const Mistakes& m) const {
    io::Json::Array names, confusion, worst;
    const std::vector<std::string>& known = test_.schema().class_names;
    // The net may have more outputs than the data set has classes. The additional ones get numbers as names.
    if (!known.empty())
      for (std::size_t k = 0; k < static_cast<std::size_t>(m.classes); ++k)
        names.emplace_back(k < known.size() ? utf8_text(known[k]) : std::to_string(k));
    for (std::size_t at = 0; at < m.confusion.size(); ++at) {
      if (m.confusion[at] == 0) continue;
      const auto label = static_cast<std::int64_t>(at) / m.classes, said = static_cast<std::int64_t>(at) % m.classes;
      for (const std::int64_t v : {label, said, static_cast<std::int64_t>(m.confusion[at])}) confusion.emplace_back(v);
    }
    for (const WrongImage& w : m.worst) {
      worst.push_back(io::Json::object({{"index", w.index},
                                        {"label", w.label},
                                        {"said", w.said},
                                        {"loss", detail::finite(w.loss)},
                                        {"sure", detail::finite(w.sure)},
                                        {"png", picture(w.index)}}));
      if (where_) worst.back().set("path", utf8_text(where_(w.index)));
    }
    return io::Json::object({{"format", format},
                             {"epoch", m.epoch},
                             {"step", m.step},
                             {"averaged", m.averaged},
                             {"images", m.images},
                             {"classes", m.classes},
                             {"class_names", std::move(names)},
                             {"confusion", m.confusion.empty() ? io::Json() : io::Json(std::move(confusion))},
                             {"worst", std::move(worst)}});
  }
  [[nodiscard]] io::Json picture(std::int64_t index) const {
    const Schema& s = test_.schema();
    std::vector<std::uint8_t> image(static_cast<std::size_t>(s.image_bytes()));
    std::int32_t label = 0;
    Rng rng(0, Purpose::user);
    try {
      test_.read(index, rng, {image, label});
    } catch (const Error&) {
      return {};
    }
    const Thumbnail t = make_thumbnail(image, s.height, s.width, s.channels, most_pixels);
    return io::to_base64(write_png(t.pixels, t.height, t.width, t.channels));
  }

  io::Path path_;
  AnyDataset test_;
  detail::FaultTolerantWriter careful_;
  std::function<std::string(std::int64_t)> where_;
  bool keeps_best_ = false, has_best_ = false;
  std::optional<Mistakes> last_;  // with keeps_best_: of the evaluation that the next epoch() reports
};

}  // namespace tutti
