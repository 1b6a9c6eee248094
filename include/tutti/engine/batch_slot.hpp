// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/engine/metrics.hpp>
#include <tutti/engine/plan/arenas.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti {

// The batch that the ops of a run read. On the host this is the batch itself. On a device it is one slot, into which
// each batch is uploaded or gathered. The slot has the size of the largest plan from the start, because captured runs
// keep its address.
class BatchSlot {
 public:
  // g: the model, which must outlive this object.
  BatchSlot(Backend& backend, const Graph& g) : b_(backend), graph_(g), on_host_(backend.memory().on_host()) {}

  [[nodiscard]] const std::uint8_t* images() const noexcept { return batch_.images; }
  [[nodiscard]] const std::int32_t* labels() const noexcept { return batch_.labels; }
  // bytes(): number of bytes that the slot holds. bytes_for(): number of bytes that it needs for `rows` rows.
  [[nodiscard]] std::size_t bytes() const noexcept { return images_.bytes() + labels_.bytes(); }
  [[nodiscard]] std::size_t bytes_for(std::int64_t rows) const {
    return on_host_ ? 0 : image_bytes(rows) + label_bytes(rows);
  }

  void reserve(std::int64_t rows) {
    if (on_host_) return;
    Arenas::grow(b_.memory(), images_, image_bytes(rows));
    Arenas::grow(b_.memory(), labels_, label_bytes(rows));
  }

  // Sets the batch of the next run.
  void bind(const BatchView& batch) {
    if (on_host_) {
      batch_ = batch;
      return;
    }
    reserve(batch.rows);
    if (batch.resident != nullptr)
      gather(batch);
    else
      b_.upload(batch.images, image_bytes(batch.rows), batch.labels, label_bytes(batch.rows), images_.data(),
                labels_.data());
    batch_ = {static_cast<const std::uint8_t*>(images_.data()), static_cast<const std::int32_t*>(labels_.data()),
              batch.rows};
  }

 private:
  void gather(const BatchView& batch) {
    const Shape& s = shape();
    const ResidentImages& from = *batch.resident;
    if (from.channels != s[1] || from.out_height != s[2] || from.out_width != s[3])
      fail<ShapeError>("Executor", {"images ", to_string(s)},
                       {"windows of ", from.channels, " channels, ", from.out_height, "x", from.out_width});
    b_.gather_images(from, batch.windows, batch.rows, images_.data(), labels_.data());
  }

  [[nodiscard]] const Shape& shape() const { return graph_[graph_.images].shape; }
  [[nodiscard]] std::size_t image_bytes(std::int64_t rows) const {
    return static_cast<std::size_t>(rows * shape().row_numel());
  }
  [[nodiscard]] static std::size_t label_bytes(std::int64_t rows) {
    return static_cast<std::size_t>(rows) * sizeof(std::int32_t);
  }

  Backend& b_;
  const Graph& graph_;
  bool on_host_;
  Buffer images_, labels_;
  BatchView batch_;
};

}  // namespace tutti
