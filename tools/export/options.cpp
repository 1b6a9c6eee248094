// SPDX-License-Identifier: MIT
#include "tools/export/options.hpp"

#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

#include "tools/command_line/command_line.hpp"
#include "tools/command_line/values.hpp"

namespace tutti::export_tool {

Options parse_options(const std::vector<std::string>& words) {
  using namespace command_line;
  const Form form{
      .program = "tutti-export",
      .title =
          R"(Writes a trained net as an ONNX file, opset 17, for ONNX Runtime, TensorRT, OpenVINO and others: its forward pass with
batch norm folded into the convolutions, for batches of any size.)",
      .usage = "tutti-export [OPTIONS] MODEL FILE.onnx",
      .notes = std::string(predict_tool::model_notes) + R"(
FILE.onnx has an input "images" [batch, channels, height, width] and an output "logits" [batch, classes], both f32, and
in its metadata "classes", "mean", "std" and "image": how to prepare images.
Exit codes: 0, 1 internal error, 2 usage, 3 a model that cannot be read, or a file that cannot be written.)"};
  Options o;
  std::vector<Option> table{
      {"--input", "WORD", one_of(o.input, {"normalized", "pixels"}),
       "normalized: images are (pixel / 255 - mean) / std, as in torchvision; pixels: images are 0 to "
       "255  [normalized]",
       "Options"},
      {"--output", "WORD", one_of(o.output, {"logits", "probabilities"}),
       "values that FILE.onnx returns: logits or probabilities  [logits]", "Options"}};
  for (const Option& one : predict_tool::model_option_table(o.model)) table.push_back(one);
  const Line line = read(words, table, form);
  o.text = line.text;
  if (!o.text.empty()) return o;
  const auto files = words_of(line, "a file or a folder");
  if (files.size() != 2)
    fail<UsageError>("command line", "a model and a file to write", std::to_string(files.size()) + " words",
                     "--help says more");
  o.model.model = files[0];
  o.out = files[1];
  if (!std::string_view(o.out).ends_with(".onnx"))
    fail<UsageError>("command line", "a file to write that ends in .onnx", printable(o.out));
  return o;
}

}  // namespace tutti::export_tool
