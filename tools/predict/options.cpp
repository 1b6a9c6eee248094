// SPDX-License-Identifier: MIT
#include "tools/predict/options.hpp"

#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>

#include "tools/predict/words.hpp"

namespace tutti::predict_tool {

Options parse_options(const std::vector<std::string>& words) {
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
