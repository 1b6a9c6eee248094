// SPDX-License-Identifier: MIT
// Writes a trained net as an ONNX file, see help_text.
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/exit_code_of.hpp>
#include <tutti/graph/fold_norms.hpp>
#include <tutti/interchange/onnx.hpp>
#include <tutti/io/file_writer.hpp>
#include <tutti/version.hpp>

#include "tools/predict/model_options.hpp"
#include "tools/predict/words.hpp"

namespace {

using namespace tutti;
using namespace tutti::predict_tool;

constexpr const char* help_text =
    R"(Writes a trained net as an ONNX file, opset 17, for ONNX Runtime, TensorRT, OpenVINO and others: its forward pass with
batch norm folded into the convolutions, for batches of any size.

Usage: tutti-export [OPTIONS] MODEL FILE.onnx

FILE.onnx has an input "images" [batch, channels, height, width] and an output "logits" [batch, classes], both f32, and
in its metadata "classes", "mean", "std" and "image": how images are made ready.
  --input WORD         normalized: (pixel / 255 - mean) / std, as torchvision makes it; or pixels: 0 to 255  [normalized]
  --output WORD        logits or probabilities  [logits]
)";
constexpr const char* exit_codes =
    R"(
Exit codes: 0, 1 internal error, 2 usage, 3 a model that cannot be read, or a file that cannot be written.
)";

struct Options {
  bool help = false, version = false;
  ModelOptions model;
  std::string out, input = "normalized", output = "logits";
};

Options parse_options(const std::vector<std::string>& words) {
  Options o;
  std::vector<Option> table = model_option_table(o.model);
  for (Option& one : std::vector<Option>{flag("--help", o.help), flag("-h", o.help), flag("--version", o.version),
                                         word("--input", o.input, {"normalized", "pixels"}),
                                         word("--output", o.output, {"logits", "probabilities"})})
    table.push_back(std::move(one));
  const auto files = read_words(words, table);
  if (o.help || o.version) return o;
  if (files.size() != 2)
    fail<UsageError>("command line", "a model and a file to write", std::to_string(files.size()) + " words",
                     "--help says more");
  o.model.model = files[0];
  o.out = files[1];
  if (!std::string_view(o.out).ends_with(".onnx"))
    fail<UsageError>("command line", "a file to write that ends in .onnx", printable(o.out));
  return o;
}

int run(const std::vector<std::string>& words) {
  const Options o = parse_options(words);
  if (o.help) return std::printf("%s%s%s", help_text, model_help, exit_codes) < 0 ? 1 : 0;
  if (o.version) return std::printf("tutti-export of tutti %s\n", version) < 0 ? 1 : 0;
  OpenedModel m = open_model(o.model);
  const std::string file =
      interchange::to_onnx(fold_norms(std::move(m.loaded.net)), m.card,
                           {.pixels = o.input == "pixels", .probabilities = o.output == "probabilities"});
  io::atomic_write_file(o.out, file);
  return std::printf("%s: %s, %lld classes, %s weights, %.1f MB\n", o.out.c_str(), shown(m.card.name).c_str(),
                     static_cast<long long>(m.classes()), m.loaded.averaged ? "averaged" : "the last",
                     static_cast<double>(file.size()) / 1e6) < 0
             ? 1
             : 0;
}

}  // namespace

int main(int argc, char** argv) {
  return exit_code_of("tutti-export",
                      [&] { return run(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc)); });
}
