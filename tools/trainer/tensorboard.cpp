// SPDX-License-Identifier: MIT
#include "tools/trainer/tensorboard.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/data/images/png_write.hpp>
#include <tutti/io/tfevents_summary.hpp>
#include <tutti/tensor/arena.hpp>
#include <tutti/tensor/tensor.hpp>

namespace tutti::trainer {

TensorboardRun::TensorboardRun(const io::Path& folder, const std::function<void(const std::string&)>& complain,
                               bool summaries, const io::Json& options, TensorboardRun*& at)
    : TensorboardLog(folder, complain, summaries), at_(at) {
  at_ = this;
  careful_([&] { events_.event(io::encode_hparams_event(events_.now(), options)); });
}

void TensorboardRun::samples(const AnyDataset& d, const BatchSource& source, Position p, std::uint64_t seed,
                             std::int64_t step) {
  constexpr std::size_t most = 8;
  const Schema& s = d.schema();
  if (s.channels != 1 && s.channels != 3) return;
  Sampler order = source.sampler();
  const Share share = order.share(p, source.placement());
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(s.image_bytes()));
  std::vector<std::string> tags, files;
  std::vector<io::ImageSummary> images;
  for (std::size_t i = 0; i < std::min(most, share.indices.size()); ++i) {
    const std::int64_t index = share.indices[i];
    const std::int64_t epoch = share.epochs.empty() ? p.epoch : share.epochs[i];
    Rng rng(seed, Purpose::augment, static_cast<std::uint64_t>(epoch), static_cast<std::uint64_t>(index));
    std::int32_t label = 0;
    try {
      d.read(index, rng, Sample{span_of(pixels), label});
    } catch (const DataError&) {  // training will report the error
      continue;
    }
    tags.push_back("input/" + std::to_string(i) + " class " + std::to_string(label));
    files.push_back(write_png(span_of(pixels), s.height, s.width, s.channels));
  }
  for (std::size_t i = 0; i < files.size(); ++i) images.push_back({tags[i], s.height, s.width, s.channels, files[i]});
  careful_([&] { events_.event(io::encode_image_event(events_.now(), step, span_of(images))); });
}

void TensorboardRun::histograms(Trainer& trainer, std::int64_t step) {
  Executor& e = trainer.executor();
  const ArenaLayout& p = e.parameters();
  const auto write = [&](const std::string& tag, std::span<const float> values) {
    const auto h = io::Histogram::of(values);
    careful_([&] { events_.event(io::encode_histogram_event(events_.now(), step, tag, h)); });
  };
  for (const Slice& s : p.slices) {
    const Tensor<float> weights = trainer.parameter(s.name);
    write("weights/" + s.name, {weights.data(), s.count});
  }
  const double scale = trainer.loss_scale();
  std::vector<std::byte> raw;
  std::vector<float> values;
  for (const Slice& s : p.slices) {
    if (!s.trainable) continue;
    const std::size_t unit = size_of(p.dtype);
    raw.resize(s.count * unit);
    values.resize(s.count);
    e.backend().memory().copy_out(raw.data(), static_cast<const std::byte*>(e.gradient_data()) + s.offset * unit,
                                  raw.size());
    for (std::size_t i = 0; i < s.count; ++i) {
      if (p.dtype == DType::f64)
        values[i] = static_cast<float>(reinterpret_cast<const double*>(raw.data())[i] / scale);
      else
        values[i] = static_cast<float>(reinterpret_cast<const float*>(raw.data())[i] / scale);
    }
    write("gradients/" + s.name, span_of(values));
  }
}

void TensorboardRun::ended(const RunEnd& e) {
  const auto status = e.status == "finished" ? io::RunStatus::success
                      : e.status == "failed" ? io::RunStatus::failure
                                             : io::RunStatus::unknown;
  careful_([&] { events_.event(io::encode_hparams_end(events_.now(), status)); });
}

}  // namespace tutti::trainer
