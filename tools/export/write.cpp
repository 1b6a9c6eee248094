// SPDX-License-Identifier: MIT
#include "tools/export/write.hpp"

#include <cstdio>
#include <string>
#include <utility>

#include <tutti/graph/fold_norms.hpp>
#include <tutti/interchange/onnx.hpp>
#include <tutti/io/file_writer.hpp>

#include "tools/predict/model_options.hpp"

namespace tutti::export_tool {

int write(const Options& o) {
  predict_tool::OpenedModel m = predict_tool::open_model(o.model);
  const std::string file =
      interchange::to_onnx(fold_norms(std::move(m.loaded.net)), m.card,
                           {.pixels = o.input == "pixels", .probabilities = o.output == "probabilities"});
  io::atomic_write_file(o.out, file);
  return std::printf("%s: %s, %lld classes, %s, %.1f MB\n", o.out.c_str(), predict_tool::shown(m.card.name).c_str(),
                     static_cast<long long>(m.classes()), predict_tool::weights_of(m).c_str(),
                     static_cast<double>(file.size()) / 1e6) < 0
             ? 1
             : 0;
}

}  // namespace tutti::export_tool
