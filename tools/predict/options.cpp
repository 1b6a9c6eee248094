// SPDX-License-Identifier: MIT
#include "tools/predict/options.hpp"

#include <string>
#include <vector>

#include <tutti/core/error.hpp>

#include "tools/command_line/command_line.hpp"
#include "tools/command_line/values.hpp"

namespace tutti::predict_tool {

Options parse_options(const std::vector<std::string>& words) {
  using namespace command_line;
  const Form form{.program = "tutti-predict",
                  .title =
                      "Predicts what images show with a trained net: the five most probable classes of each, one line "
                      "for each image.",
                  .usage = "tutti-predict [OPTIONS] MODEL IMAGES...",
                  .notes = std::string(model_notes) + R"(
IMAGES: JPEG and PNG files; folders, with all images in them and in their folders, in alphabetical order; - is the
standard input, which is one image, or a list of files and folders, one on each line.
Exit codes: 0, 1 internal error, 2 usage, 3 a model or an image that cannot be read (the image is named on the
standard error, and the other images are predicted), 4 a GPU that fails, 6 a result that is not finite.)"};
  const std::string group = "Options";
  Options o;
  std::vector<Option> table{
      {"--top", "N", integer(o.top, 1, 1 << 24, "a number"), "number of classes to print for each image  [5]", group},
      {"--json", "", flag(o.json),
       "print a line of JSON for each image: \"image\", and \"classes\" with \"class\", \"index\", \"probability\" and "
       "\"logit\", or \"error\"",
       group},
      {"--precision", "WORD", one_of(o.precision, {"f32", "bf16", "f16"}),
       "type in which the net computes: f32, bf16, or f16 on a GPU  [f32]", group},
      {"--batch-size", "N", integer(o.batch, 1, 1 << 20, "a number"),
       "number of images that the net processes at a time  [32]", group},
      {"--backend", "WORD", text(o.backend),
       "backend that runs the net: auto, cuda, onednn, eigen or reference  [auto]", group},
      {"--threads", "N", integer(o.threads, 1, 4096, "a number"), "threads that run the net on the CPU  [all cores]",
       group},
      {"--data-nthreads", "N", integer(o.data_threads, 0, 4096, "a number"),
       "threads that read and decode images while the net computes  [all cores]", group},
      {"--decoder", "WORD", one_of(o.decoder, {"auto", "turbojpeg", "stb"}),
       "library that decodes JPEG images: auto, turbojpeg or stb  [auto]", group},
      {"--verbose", "", flag(o.verbose), "print the net's name and the speed on the standard error", group}};
  for (const Option& one : model_option_table(o.model)) table.push_back(one);
  const Line line = read(words, table, form);
  o.text = line.text;
  if (!o.text.empty()) return o;
  o.images = words_of(line, "a file or a folder");
  if (o.images.empty()) fail<UsageError>("command line", "a model and images", "neither", "--help says more");
  o.model.model = o.images.front();
  o.images.erase(o.images.begin());
  if (o.images.empty())
    fail<UsageError>("command line", "images after the model", "none", "give - to read the standard input");
  return o;
}

}  // namespace tutti::predict_tool
