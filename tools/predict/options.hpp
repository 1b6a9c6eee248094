// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>

#include "model_options.hpp"
#include "words.hpp"

namespace tutti::predict_tool {

inline constexpr const char* help_text =
    R"(Says what a trained net sees in images: the five most probable classes of each, one line an image.

Usage: tutti-predict [OPTIONS] MODEL IMAGES...

IMAGES: JPEG and PNG files; folders, of which all images below are taken, in alphabetical order; - is the standard
input, which is one image, or a list of files and folders, one a line.
  --top N              classes of an image  [5]
  --json               a line of JSON for each image: "image", and "classes" with "class", "index", "probability" and
                       "logit", or "error"
  --precision WORD     f32, bf16, or f16 on a GPU  [f32]
  --batch-size N       images at a time  [32]
  --backend WORD       auto, cuda, onednn, eigen or reference  [auto]
  --threads N          of the net, on the processor  [all cores]
  --data-nthreads N    that read and decode images beside the net  [all cores]
  --decoder WORD       auto, turbojpeg or stb  [auto]
  --verbose            says on the standard error which net this is, and how fast it was
)";
inline constexpr const char* exit_codes =
    R"(
Exit codes: 0, 1 internal error, 2 usage, 3 a model that cannot be read, or an image: that one is named on the standard
error and the others go on; 4 a GPU that fails, 6 a net whose answer is no number.
)";

struct Options {
  bool help = false, version = false, json = false, verbose = false;
  ModelOptions model;
  std::vector<std::string> images;
  std::int64_t top = 5, batch = 32, threads = 0, data_threads = -1;
  std::string precision = "f32", backend = "auto", decoder = "auto";
};

// Throws UsageError.
[[nodiscard]] inline Options parse_options(const std::vector<std::string>& words) {
  Options o;
  std::vector<Option> table = model_option_table(o.model);
  for (Option& one : std::vector<Option>{
           flag("--help", o.help), flag("-h", o.help), flag("--version", o.version), flag("--json", o.json),
           flag("--verbose", o.verbose), number("--top", o.top, 1, 1 << 24),
           number("--batch-size", o.batch, 1, 1 << 20), number("--threads", o.threads, 1, 4096),
           number("--data-nthreads", o.data_threads, 0, 4096), word("--precision", o.precision, {"f32", "bf16", "f16"}),
           text("--backend", o.backend), word("--decoder", o.decoder, {"auto", "turbojpeg", "stb"})})
    table.push_back(std::move(one));
  o.images = read_words(words, table);
  if (o.help || o.version) return o;
  if (o.images.empty()) fail<UsageError>("command line", "a model and images", "neither", "--help says more");
  o.model.model = o.images.front();
  o.images.erase(o.images.begin());
  if (o.images.empty())
    fail<UsageError>("command line", "images behind the model", "none", "- reads the standard input");
  return o;
}

}  // namespace tutti::predict_tool
