// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/image_window.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/core/text_part.hpp>

namespace tutti {

enum class Split { train, test };  // The training part and the held-out part of a data set.

[[nodiscard]] constexpr const char* name_of(Split s) noexcept { return s == Split::train ? "train" : "test"; }  // word

struct ImagePreparation;  // data/images/image_preparation.hpp

// Properties that all images of a data set share.
struct Schema {
  std::string name;  // for messages, e.g. "cifar10 train"
  std::int64_t channels = 0, height = 0, width = 0;
  int classes = 0;
  std::vector<float> mean, stddev;       // per channel, on the 0..255 scale
  std::vector<std::string> class_names;  // one per class, or empty
  std::int64_t block = 1;                // number of adjacent samples that are best read together
  bool own_order = false;                // index i is the i-th sample of each epoch: readers do not shuffle
  // How to prepare an image outside the set for prediction. Null: the image must already have this size.
  std::shared_ptr<const ImagePreparation> preparation{};

  // Returns the bytes of one image, [height, width, channels] of u8.
  [[nodiscard]] std::int64_t image_bytes() const noexcept { return channels * height * width; }

  // Throws UsageError if an extent is out of range or a vector has the wrong length.
  void check() const;
};
#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION void Schema::check() const {
  const auto require = [&](bool ok, const char* expected, TextPart got) {
    if (!ok) fail<UsageError>({"schema of ", name}, expected, got);
  };
  constexpr std::int64_t most = 1 << 16;
  for (const auto d : {height, width}) require(d > 0 && d <= most, "a height and a width of 1 to 65536", d);
  require(channels > 0 && channels <= 1024, "1 to 1024 channels", channels);
  require(classes > 0, "1 class or more", classes);
  require(block > 0, "blocks of 1 sample or more", block);
  const auto per_channel = static_cast<std::size_t>(channels);
  require(mean.size() == per_channel, "one mean per channel", mean.size());
  require(stddev.size() == per_channel, "one standard deviation per channel", stddev.size());
  for (const float s : stddev) require(s > 0, "standard deviations over 0", s);
  require(class_names.empty() || class_names.size() == static_cast<std::size_t>(classes), "a name for every class",
          class_names.size());
}
#endif

// The destination of one sample: `image` is a row of a batch, [height, width, channels] of u8.
struct Sample {
  std::span<std::uint8_t> image;
  std::int32_t& label;
};

// A map from an index in [0, size()) to an image and its label. All three calls are const and safe from several threads
// at once. read() takes its random numbers only from `rng`, so a sample depends only on (seed, epoch, index).
template <class D>
concept Dataset = requires(const D& d, std::int64_t i, Rng& r, Sample s) {
  { d.size() } -> std::same_as<std::int64_t>;
  { d.schema() } -> std::convertible_to<const Schema&>;
  d.read(i, r, s);
};

// A data set in memory that gives access to its images without a copy.
template <class D>
concept InMemoryDataset = Dataset<D> && requires(const D& d, std::int64_t i) {
  { d.image(i) } -> std::same_as<std::span<const std::uint8_t>>;  // [height, width, channels]
  { d.label(i) } -> std::same_as<std::int32_t>;
};

// A data set with a read() that takes no random numbers: an image is always the same.
template <class D>
concept FixedDataset = InMemoryDataset<D> ||(Dataset<D>&& requires { requires D::fixed; });

// A data set of samples that are windows of stored images. A backend that has these images can make the samples itself.
template <class D>
concept WindowedDataset = Dataset<D> && requires(const D& d, std::int64_t i, Rng& r, Sample s) {
  { d.stored() } -> std::convertible_to<const Schema&>;
  d.read_stored(i, s);                           // the stored image
  { d.window(r) } -> std::same_as<ImageWindow>;  // the same for all images; takes the same random numbers as read()
  { d.pad_mode() } -> std::same_as<PadMode>;
  { d.fill() } -> std::convertible_to<std::span<const std::uint8_t>>;  // constant padding, a value per channel
};

// The stored images of an AnyDataset, if its samples are windows of images that never change.
class StoredImages {
 public:
  virtual ~StoredImages() = default;
  [[nodiscard]] virtual const Schema& stored() const = 0;
  virtual void read_stored(std::int64_t index, Sample sample) const = 0;
  [[nodiscard]] virtual ImageWindow window(Rng& rng) const = 0;
  [[nodiscard]] virtual PadMode pad_mode() const = 0;
  [[nodiscard]] virtual std::vector<std::uint8_t> fill() const = 0;
};

// Throws UsageError unless `index` is in [0, size) and `sample` has room for exactly one image.
TUTTI_CORE_FUNCTION void check_read(const Schema& schema, std::int64_t size, std::int64_t index, const Sample& sample);

// Any data set, chosen at run time. Copies share the data set.
class AnyDataset {
 public:
  template <Dataset D>
  requires(!std::same_as<D, AnyDataset>)
      AnyDataset(D dataset)  // NOLINT(google-explicit-constructor): a data set is one
      : self_(shared(new Model<D>(std::move(dataset)))) {
    schema().check();
  }

  [[nodiscard]] std::int64_t size() const { return self_->size(); }
  [[nodiscard]] const Schema& schema() const { return self_->schema(); }
  void read(std::int64_t index, Rng& rng, Sample sample) const { self_->read(index, rng, sample); }
  // Returns the stored images; null unless read() only cuts windows out of images that never change.
  [[nodiscard]] const StoredImages* stored() const { return self_->stored_images(); }

 private:
  struct Interface : StoredImages {
    [[nodiscard]] virtual const StoredImages* stored_images() const = 0;
    [[nodiscard]] virtual std::int64_t size() const = 0;
    [[nodiscard]] virtual const Schema& schema() const = 0;
    virtual void read(std::int64_t index, Rng& rng, Sample sample) const = 0;
  };
  template <class D>
  struct Model final : Interface {
    explicit Model(D d) : dataset(std::move(d)) {}
    [[nodiscard]] std::int64_t size() const override { return dataset.size(); }
    [[nodiscard]] const Schema& schema() const override { return dataset.schema(); }
    void read(std::int64_t index, Rng& rng, Sample sample) const override { dataset.read(index, rng, sample); }

    // In a fixed data set, a sample shows the complete image.
    static constexpr bool windowed = WindowedDataset<D>;
    [[nodiscard]] const StoredImages* stored_images() const override {
      return windowed || FixedDataset<D> ? this : nullptr;
    }
    [[nodiscard]] const Schema& stored() const override {
      if constexpr (windowed)
        return dataset.stored();
      else
        return dataset.schema();
    }
    void read_stored(std::int64_t index, Sample sample) const override {
      if constexpr (windowed) {
        dataset.read_stored(index, sample);
      } else {
        Rng none(0, Purpose::user);
        dataset.read(index, none, sample);
      }
    }
    [[nodiscard]] ImageWindow window(Rng& rng) const override {
      if constexpr (windowed)
        return dataset.window(rng);
      else
        return {};
    }
    [[nodiscard]] PadMode pad_mode() const override {
      if constexpr (windowed)
        return dataset.pad_mode();
      else
        return PadMode::constant;
    }
    [[nodiscard]] std::vector<std::uint8_t> fill() const override {
      if constexpr (windowed) {
        const std::span<const std::uint8_t> f = dataset.fill();
        return {f.begin(), f.end()};
      } else {
        return std::vector<std::uint8_t>(static_cast<std::size_t>(dataset.schema().channels));
      }
    }
    D dataset;
  };

  // Takes ownership. One type of shared pointer for all data sets costs a compiler less than one for each.
  [[nodiscard]] static std::shared_ptr<const Interface> shared(const Interface* made);

  std::shared_ptr<const Interface> self_;
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION void check_read(const Schema& schema, std::int64_t size, std::int64_t index, const Sample& sample) {
  if (index < 0 || index >= size) fail<UsageError>(schema.name, {"an index in [0, ", size, ")"}, index);
  if (sample.image.size() != static_cast<std::size_t>(schema.image_bytes()))
    fail<UsageError>(schema.name, {"a slot of ", schema.image_bytes(), " bytes"}, sample.image.size());
}
TUTTI_CORE_FUNCTION std::shared_ptr<const AnyDataset::Interface> AnyDataset::shared(const Interface* made) {
  return std::shared_ptr<const Interface>(made);
}
#endif

}  // namespace tutti
