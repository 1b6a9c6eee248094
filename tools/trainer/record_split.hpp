// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/data/records/records.hpp>
#include <tutti/datasets/imagenet/open.hpp>

// Splits a set of encoded images into training and validation images, and counts its classes.
namespace tutti::trainer {

// Some records of a set, in the order of the list.
class RecordSubset {
 public:
  RecordSubset(AnyRecords from, std::vector<std::int64_t> at)
      : from_(std::move(from)), at_(std::make_shared<const std::vector<std::int64_t>>(std::move(at))) {}

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(at_->size()); }
  [[nodiscard]] std::int32_t read(std::int64_t i, std::vector<std::uint8_t>& bytes) const {
    return from_.read((*at_)[static_cast<std::size_t>(i)], bytes);
  }
  [[nodiscard]] std::string where(std::int64_t i) const { return from_.where((*at_)[static_cast<std::size_t>(i)]); }
  [[nodiscard]] int classes() const { return from_.classes(); }
  [[nodiscard]] std::int64_t block() const { return from_.block(); }
  [[nodiscard]] std::vector<std::string> class_names() const { return from_.class_names(); }

 private:
  AnyRecords from_;
  std::shared_ptr<const std::vector<std::int64_t>> at_;
};

// Returns the label of each record. Takes those of class folders from the paths, and reads the records of other forms.
std::vector<std::int32_t> labels_of(const imagenet::Opened& set);

// Returns the number of records of each class.
std::vector<std::int64_t> counts_of(const imagenet::Opened& set);

// Moves `share` of each class, rounded, but one record or more if the class has two, from `train` to the returned set.
// The seed decides which.
imagenet::Opened split_off(imagenet::Opened& train, double share, std::uint64_t seed);

}  // namespace tutti::trainer
