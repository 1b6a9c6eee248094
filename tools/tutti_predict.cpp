// SPDX-License-Identifier: MIT
// Predicts the classes of images with a trained net, see predict/options.cpp. Without libjpeg-turbo
// (TUTTI_HAS_TURBOJPEG) it reads images with stb. Without libjpeg-turbo and stb (TUTTI_HAS_STB) it cannot read images.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tutti/backends/decoders.hpp>
#include <tutti/backends/make.hpp>
#include <tutti/core/clock.hpp>
#include <tutti/core/exit_code_of.hpp>
#include <tutti/core/ignored_label.hpp>
#include <tutti/core/threads/threads.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/engine/inference.hpp>

#include "tools/data/progress.hpp"
#include "tools/predict/answer.hpp"
#include "tools/predict/images.hpp"
#include "tools/predict/model_options.hpp"
#include "tools/predict/options.hpp"

namespace {

using namespace tutti;
using namespace tutti::predict_tool;

std::unique_ptr<Backend> make_backend_of(const Options& o) {
  BackendOptions as;
  as.threads = static_cast<int>(o.threads);
  as.bf16 = o.precision == "bf16";
  as.where = "--backend";
  as.warn = [](const std::string& w) { std::fprintf(stderr, "tutti-predict: %s\n", w.c_str()); };
  return make_backend(o.backend, as);
}

DType compute_of(const Options& o, const Backend& backend) {
  const DType t = o.precision == "bf16" ? DType::bf16 : o.precision == "f16" ? DType::f16 : DType::f32;
  if (!backend.computes_in(t))
    fail<UsageError>("--precision", "a type that backend " + backend.name() + " computes in", o.precision);
  return t;
}

void write(const std::string& line) {
  if (std::fwrite(line.data(), 1, line.size(), stdout) != line.size())
    fail<DataError>("standard output", "room for the predictions", "an error");
}

int predict(const Options& o) {
  const OpenedModel m = open_model(o.model);
  const std::unique_ptr<Backend> backend = make_backend_of(o);
  Inference net(*backend, m.loaded.net, {compute_of(o, *backend)});
  const std::vector<GivenImage> images = find_images(o.images);
  if (o.verbose)
    std::fprintf(stderr, "%s: %s, %lld classes, %s; %s, %s, %d threads; %zu images\n", m.file.path.c_str(),
                 shown(m.card.name).c_str(), static_cast<long long>(m.classes()), weights_of(m).c_str(),
                 backend->name().c_str(), o.precision.c_str(), backend->threads(), images.size());
  if (images.empty()) return 0;
  const Shape& input = m.card.graph->operator[](m.card.graph->images).shape;
  const GivenImages given(images, make_image_decoders(o.decoder, "--decoder"), m.card.image, input[1]);
  LoaderOptions as;
  as.placement = {std::min<std::int64_t>(o.batch, given.size()), 0, 1};
  as.shuffle = false;
  as.one_pass = true;
  as.threads = static_cast<int>(o.data_threads >= 0 ? o.data_threads : usable_cores());
  as.group = 4;
  as.skip_bad_records = true;
  as.allocate = [&](std::size_t bytes) { return backend->allocate_pinned(bytes); };
  if (!backend->pins_memory()) as.allocate = nullptr;
  as.before_reuse = [&] { backend->wait_for_uploads(); };
  Loader loader(given, as);
  std::optional<data_tool::Progress> progress;
  if (::isatty(STDOUT_FILENO) == 0) progress.emplace("predicting", given.size());
  const Stopwatch watch;
  bool lacks = false;
  loader.start({});
  for (bool last = false; !last;) {
    const Batch& batch = loader.next();
    last = batch.last_of_epoch;
    const auto classes = static_cast<std::size_t>(net.classes());
    const std::span<const float> logits = net.logits(batch.images.data(), batch.count);
    for (std::size_t row = 0; row < static_cast<std::size_t>(batch.count); ++row) {
      const std::string& name = images[static_cast<std::size_t>(batch.indices[row])].name;
      if (batch.labels[row] == ignored_label) {
        lacks = true;
        const std::string why = given.error(batch.indices[row]);
        std::fprintf(stderr, "tutti-predict: %s\n", shown(why).c_str());
        if (o.json) write(json_error(name, why));
        continue;
      }
      const auto best = best_of(logits.subspan(row * classes, classes), static_cast<std::size_t>(o.top));
      write(o.json ? json_line(name, best, m) : text_line(name, best, m));
    }
    if (std::fflush(stdout) != 0) fail<DataError>("standard output", "room for the predictions", "an error");
    if (progress) progress->add(batch.count, 0);
  }
  progress.reset();
  if (o.verbose)
    std::fprintf(stderr, "%.2f s, %.1f images/s\n", watch.seconds(),
                 static_cast<double>(given.size()) / watch.seconds());
  return lacks ? static_cast<int>(ExitCode::data) : 0;
}

int run(const std::vector<std::string>& words) {
  const Options o = parse_options(words);
  if (!o.text.empty()) return std::fputs(o.text.c_str(), stdout) < 0 ? 1 : 0;
  return predict(o);
}

}  // namespace

int main(int argc, char** argv) {
  return exit_code_of("tutti-predict",
                      [&] { return run(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc)); });
}
