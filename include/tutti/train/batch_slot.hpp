// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include <tutti/core/error.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/tensor/memory.hpp>
#include <tutti/train/arenas.hpp>
#include <tutti/train/metrics.hpp>

namespace tutti {

// Where the ops of a run find its batch. On the host that is the batch itself; on a device one slot, into which each
// batch is uploaded or gathered. The slot is of the largest plan's size from the beginning, because what is captured
// keeps its address.
template <class B>
class BatchSlot {
 public:
  static constexpr bool on_host = std::is_base_of_v<HostMemory, B>;

  // Of a model's images; g outlives this.
  BatchSlot(B& backend, const Graph& g) : b_(backend), graph_(g) {}

  [[nodiscard]] const std::uint8_t* images() const noexcept { return batch_.images; }
  [[nodiscard]] const std::int32_t* labels() const noexcept { return batch_.labels; }
  // What the slot holds, and what it takes for so many rows.
  [[nodiscard]] std::size_t bytes() const noexcept { return images_.bytes() + labels_.bytes(); }
  [[nodiscard]] std::size_t bytes_for(std::int64_t rows) const { return image_bytes(rows) + label_bytes(rows); }

  void reserve(std::int64_t rows) {
    if constexpr (!on_host) {
      Arenas<B>::grow(b_, images_, image_bytes(rows));
      Arenas<B>::grow(b_, labels_, label_bytes(rows));
    }
  }

  // The next run's batch.
  void bind(const BatchView& batch) {
    if constexpr (on_host) {
      batch_ = batch;
    } else {
      reserve(batch.rows);
      if (batch.resident != nullptr)
        gather(batch);
      else
        upload(batch);
      batch_ = {static_cast<const std::uint8_t*>(images_.data()), static_cast<const std::int32_t*>(labels_.data()),
                batch.rows};
    }
  }

 private:
  void upload(const BatchView& batch) {
    void *const images = images_.data(), *const labels = labels_.data();
    const std::size_t of_images = image_bytes(batch.rows), of_labels = label_bytes(batch.rows);
    if constexpr (requires { b_.upload(images, of_images, labels, of_labels, images, labels); }) {
      b_.upload(batch.images, of_images, batch.labels, of_labels, images, labels);
    } else {
      b_.copy_in(images, batch.images, of_images);
      b_.copy_in(labels, batch.labels, of_labels);
    }
  }
  void gather(const BatchView& batch) {
    void *const images = images_.data(), *const labels = labels_.data();
    const Shape& s = shape();
    const ResidentImages& from = *batch.resident;
    if (from.channels != s[1] || from.out_height != s[2] || from.out_width != s[3])
      fail<ShapeError>("Executor", "images " + to_string(s),
                       "windows of " + std::to_string(from.channels) + " channels, " + std::to_string(from.out_height) +
                           "x" + std::to_string(from.out_width));
    if constexpr (requires { b_.gather_images(from, batch.windows, batch.rows, images, labels); })
      b_.gather_images(from, batch.windows, batch.rows, images, labels);
    else
      fail<UsageError>("Executor", "images of the host", "images in the memory of another backend");
  }

  [[nodiscard]] const Shape& shape() const { return graph_[graph_.images].shape; }
  [[nodiscard]] std::size_t image_bytes(std::int64_t rows) const {
    return static_cast<std::size_t>(rows * shape().row_numel());
  }
  [[nodiscard]] static std::size_t label_bytes(std::int64_t rows) {
    return static_cast<std::size_t>(rows) * sizeof(std::int32_t);
  }

  B& b_;
  const Graph& graph_;
  Buffer<B> images_, labels_;
  BatchView batch_;
};

}  // namespace tutti
