// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/predict/model_options.hpp"

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
[[nodiscard]] Options parse_options(const std::vector<std::string>& words);

}  // namespace tutti::predict_tool
