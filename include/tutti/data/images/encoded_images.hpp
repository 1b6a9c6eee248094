// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/span.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/images/image_augment.hpp>
#include <tutti/data/images/image_decoder.hpp>
#include <tutti/data/images/image_input.hpp>
#include <tutti/data/records/records.hpp>

namespace tutti {

// A data set of encoded images: records that are decoded and augmented. Training and test set differ in the
// augmentation.
class EncodedImages {
 public:
  // `name` is for messages, e.g. "imagenet train". Throws UsageError for an invalid augmentation.
  EncodedImages(std::string name, AnyRecords records, ImageDecoders decoders, ImageAugment augment)
      : records_(std::move(records)),
        decoders_(std::move(decoders)),
        augmenter_(std::move(augment)),
        schema_(encoded_schema(std::move(name), records_.classes(), records_.block(), records_.class_names(),
                               augmenter_.augment())) {}

  [[nodiscard]] std::int64_t size() const { return records_.size(); }
  [[nodiscard]] const Schema& schema() const noexcept { return schema_; }
  [[nodiscard]] const AnyRecords& records() const noexcept { return records_; }

  // Throws DataError that names the record if it is damaged or its label is out of range. The sample's contents are
  // undefined then.
  void read(std::int64_t i, Rng& rng, Sample sample) const {
    check_read(schema_, size(), i, sample);
    thread_local std::vector<std::uint8_t> bytes;
    thread_local ImageAugmenter::Scratch scratch;
    const std::int32_t label = read_record(i, bytes);
    if (label < 0 || label >= schema_.classes)
      fail<DataError>(records_.where(i), {"a label in [0, ", schema_.classes, ")"}, label);
    augmenter_(decoders_, bytes, records_.where(i), rng, scratch, sample.image);
    sample.label = label;
  }

 private:
  std::int32_t read_record(std::int64_t i, std::vector<std::uint8_t>& bytes) const {
    const Span span(Lane::data, "read", {}, -1, detail_watcher);
    return records_.read(i, bytes);
  }

  AnyRecords records_;
  ImageDecoders decoders_;
  ImageAugmenter augmenter_;
  Schema schema_;
};

}  // namespace tutti
