// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/sampler.hpp>

// Repeated augmentation (Hoffer et al. 2019, arXiv 1901.09335; Berman et al. 2019, arXiv 1902.05509).
namespace tutti {

// A data set in which an epoch shows `repeats` views of one image after another, each augmented differently, and as
// many samples as the source has: the first 1/repeats of the images in the order of the epoch. This is timm's
// RepeatAugSampler, except that timm shortens an epoch to a multiple of 256 samples, and gives the views of an image to
// different ranks. A sample is a view: its index is its position in the epoch, so that each index occurs once in an
// epoch, and random numbers, which belong to an index, differ between the views of an image.
class RepeatedImages {
 public:
  // seed: of the order, as in LoaderOptions. Throws UsageError unless there are 1 to 64 repeats.
  RepeatedImages(AnyDataset source, int repeats, std::uint64_t seed)
      : source_(std::move(source)), schema_(source_.schema()), repeats_(repeats), seed_(seed) {
    if (repeats < 1 || repeats > 64) fail<UsageError>("repeated augmentation", "1 to 64 views of an image", repeats);
    detail::check_sampler_size(source_.size());
    schema_.own_order = true;
  }

  [[nodiscard]] std::int64_t size() const { return source_.size(); }
  [[nodiscard]] const Schema& schema() const noexcept { return schema_; }

  // Returns the image of the source that sample `i` of an epoch shows. Threads may share it.
  [[nodiscard]] std::int64_t image_of(std::int64_t i, std::int64_t epoch) const {
    const auto order = orders_->of(epoch, *this);
    return (*order)[static_cast<std::size_t>(i / repeats_)];
  }

  void read(std::int64_t i, Rng& rng, Sample sample) const {
    check_read(schema_, size(), i, sample);
    source_.read(image_of(i, static_cast<std::int64_t>(rng.epoch())), rng, sample);
  }

 private:
  using Order = std::vector<std::uint32_t>;

  // Returns the images of an epoch, in order.
  [[nodiscard]] Order order_of(std::int64_t epoch) const {
    std::vector<std::int64_t> all(static_cast<std::size_t>(size()));
    permutation(seed_, epoch, span_of(all), source_.schema().block);
    return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>((size() + repeats_ - 1) / repeats_)};
  }

  // The orders of the last two epochs: a step may continue into the next epoch.
  struct Orders {
    std::mutex mutex;
    std::deque<std::pair<std::int64_t, std::shared_ptr<const Order>>> known;
    [[nodiscard]] std::shared_ptr<const Order> of(std::int64_t epoch, const RepeatedImages& images) {
      const std::lock_guard lock(mutex);
      for (const auto& [e, order] : known)
        if (e == epoch) return order;
      known.emplace_back(epoch, std::make_shared<const Order>(images.order_of(epoch)));
      if (known.size() > 2) known.pop_front();
      return known.back().second;
    }
  };

  AnyDataset source_;
  Schema schema_;
  std::int64_t repeats_;
  std::uint64_t seed_;
  std::shared_ptr<Orders> orders_ = std::make_shared<Orders>();
};

}  // namespace tutti
