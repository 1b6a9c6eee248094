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
  // bytes(): number of bytes that the slot holds. bytes_for(): number of bytes that it needs for `rows` rows of g.
  [[nodiscard]] std::size_t bytes() const noexcept { return images_.bytes() + labels_.bytes(); }
  [[nodiscard]] std::size_t bytes_for(std::int64_t rows, const Graph& g) const {
    return on_host_ ? 0 : image_bytes(rows, g) + label_bytes(rows);
  }

  void reserve(std::int64_t rows, const Graph& g) {
    if (on_host_) return;
    Arenas::grow(b_.memory(), images_, image_bytes(rows, g));
    Arenas::grow(b_.memory(), labels_, label_bytes(rows));
  }

  // Sets the batch of the next run. g: the graph of this run, which has the size of the images and says whether the
  // labels are mixed.
  void bind(const BatchView& batch, const Graph& g) {
    if (on_host_) {
      batch_ = batch;
      return;
    }
    reserve(batch.rows, g);
    const Shape& label = g[g.labels].shape;
    if (batch.resident != nullptr && label.rank() == 2)
      fail<UsageError>("Executor", "plain labels with images in the device's memory", "mixed labels");
    if (batch.resident != nullptr)
      gather(batch, g[g.images].shape);
    else
      b_.upload(batch.images, image_bytes(batch.rows, g), batch.labels,
                static_cast<std::size_t>(batch.rows * label.row_numel()) * sizeof(std::int32_t), images_.data(),
                labels_.data());
    batch_ = {static_cast<const std::uint8_t*>(images_.data()), static_cast<const std::int32_t*>(labels_.data()),
              batch.rows};
  }

 private:
  void gather(const BatchView& batch, const Shape& s) {
    const ResidentImages& from = *batch.resident;
    if (from.channels != s[1] || from.out_height != s[2] || from.out_width != s[3])
      fail<ShapeError>("Executor", {"images ", to_string(s)},
                       {"windows of ", from.channels, " channels, ", from.out_height, "x", from.out_width});
    b_.gather_images(from, batch.windows, batch.rows, images_.data(), labels_.data());
  }

  [[nodiscard]] static std::size_t image_bytes(std::int64_t rows, const Graph& g) {
    return static_cast<std::size_t>(rows * g[g.images].shape.row_numel());
  }
  // Mixed labels of training need the most memory.
  [[nodiscard]] std::size_t label_bytes(std::int64_t rows) const {
    return static_cast<std::size_t>(rows * graph_[graph_.labels].shape.row_numel()) * sizeof(std::int32_t);
  }

  Backend& b_;
  const Graph& graph_;
  bool on_host_;
  Buffer images_, labels_;
  BatchView batch_;
};

}  // namespace tutti
