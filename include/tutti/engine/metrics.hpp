// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstdio>
#include <iosfwd>
#include <string>

#include <tutti/core/image_window.hpp>

namespace tutti {

// Height and width of images. {0, 0} is the size that the net was made for.
struct ImageSize {
  std::int64_t height = 0, width = 0;
  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

// One batch on the host: images u8 [rows, H, W, C] (channels last), labels [rows], or mixed
// labels [rows, 3] in the training of a net that mixes them (Builder::mix_labels). Or windows [rows] of images in the
// backend's memory, with their labels.
struct BatchView {
  const std::uint8_t* images = nullptr;
  const std::int32_t* labels = nullptr;
  std::int64_t rows = 0;
  const ResidentImages* resident = nullptr;
  const ImageWindow* windows = nullptr;
  ImageSize size{};
};

// The results of a run over some rows. They are sums, so that results of batches and ranks can be added.
struct Metrics {
  double loss = 0, top1_hits = 0, topk_hits = 0, rows = 0;

  Metrics& operator+=(const Metrics& o) {
    loss += o.loss;
    top1_hits += o.top1_hits;
    topk_hits += o.topk_hits;
    rows += o.rows;
    return *this;
  }
  [[nodiscard]] double mean_loss() const { return rows > 0 ? loss / rows : 0; }
  [[nodiscard]] double top1_rate() const { return rows > 0 ? top1_hits / rows : 0; }
  [[nodiscard]] double topk_rate() const { return rows > 0 ? topk_hits / rows : 0; }
};

[[nodiscard]] inline std::string to_string(const Metrics& m) {  // "loss 0.8123, accuracy 71.30 % of 512 images"
  char text[96];
  std::snprintf(text, sizeof text, "loss %.4f, accuracy %.2f %% of %.0f images", m.mean_loss(), 100 * m.top1_rate(),
                m.rows);
  return text;
}
// Writes to_string().
template <class Traits>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out, const Metrics& m) {
  return out << to_string(m);
}

}  // namespace tutti
