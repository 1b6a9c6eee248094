// SPDX-License-Identifier: MIT
#pragma once

// Definitions of trainer.hpp about tensors.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>
#include <tutti/tensor/arena.hpp>
#include <tutti/tensor/tensor.hpp>
#include <tutti/train/detail/evaluation/logits.hpp>
#include <tutti/train/trainer.hpp>

namespace tutti {

TUTTI_CORE_FUNCTION Tensor<float> Trainer::parameter(const std::string& name) {
  const std::pair<const ArenaLayout*, void*> places[] = {{&executor_->parameters(), executor_->parameter_data()},
                                                         {&executor_->states(), executor_->state_data()}};
  for (const auto& [layout, data] : places) {
    const Slice* const s = layout->find(name);
    if (s == nullptr) continue;
    settle();
    const std::size_t unit = size_of(layout->dtype);
    std::vector<std::byte> raw(s->count * unit);
    b_.memory().copy_out(raw.data(), static_cast<const std::byte*>(data) + s->offset * unit, raw.size());
    Tensor<float> t(s->shape);
    detail::add_values(layout->dtype, raw.data(), s->count, 1, t.data());
    return t;
  }
  std::string some;
  for (const Slice& s : executor_->parameters().slices) {
    if (some.size() > 60) {
      some += ", ...";
      break;
    }
    some += (some.empty() ? "" : ", ") + s.name;
  }
  fail<UsageError>("Trainer::parameter", "a parameter or running statistic of the net", {"'", name, "'"},
                   {"it has ", some});
}

TUTTI_CORE_FUNCTION Tensor<float> Trainer::predict(const Tensor<std::uint8_t>& images, std::int64_t batch) {
  const Graph& g = executor_->graph();
  const Shape image = g[g.images].shape;  // [rows, channels, height, width]
  const Shape& given = images.shape();
  if (given.rank() != 4 || given[1] != image[2] || given[2] != image[3] || given[3] != image[1])
    fail<ShapeError>("Trainer::predict", {"images [rows, ", image[2], ", ", image[3], ", ", image[1], "]"},
                     to_string(given), "use the order of data sets: height, width, channels");
  if (batch < 1) fail<UsageError>("Trainer::predict", "a batch of 1 or more", batch);
  settle();
  Tensor<float> logits(Shape{given[0], g[g.logits].shape[1]});
  detail::LogitsOnHost of_batch(*executor_);
  const std::vector<std::int32_t> labels(static_cast<std::size_t>(std::min(batch, given[0])));  // these have no effect
  for (std::int64_t row = 0; row < given[0]; row += batch) {
    const std::int64_t rows = std::min(batch, given[0] - row);
    executor_->start_evaluation({images.row(row).data(), labels.data(), rows});
    const std::span<const float> z = of_batch.of_last_run(rows);
    std::copy(z.begin(), z.end(), logits.row(row).begin());
  }
  return logits;
}

}  // namespace tutti
