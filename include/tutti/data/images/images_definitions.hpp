// SPDX-License-Identifier: MIT
#pragma once

// Definitions of images.hpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/images/encoded_images.hpp>
#include <tutti/data/images/images.hpp>

namespace tutti {

namespace detail {

// Records with label places[k] in place of label k.
class RelabelledRecords {
 public:
  RelabelledRecords(AnyRecords records, std::vector<std::int32_t> places, std::vector<std::string> names)
      : records_(std::move(records)), places_(std::move(places)), names_(std::move(names)) {}

  [[nodiscard]] std::int64_t size() const { return records_.size(); }
  [[nodiscard]] int classes() const { return static_cast<int>(names_.size()); }
  [[nodiscard]] std::int64_t block() const { return records_.block(); }
  [[nodiscard]] std::vector<std::string> class_names() const { return names_; }
  [[nodiscard]] std::string where(std::int64_t i) const { return records_.where(i); }
  [[nodiscard]] std::int32_t read(std::int64_t i, std::vector<std::uint8_t>& bytes) const {
    const std::int32_t label = records_.read(i, bytes);
    // A label out of range becomes -1, which EncodedImages reports as damaged.
    return label >= 0 && static_cast<std::size_t>(label) < places_.size() ? places_[static_cast<std::size_t>(label)]
                                                                          : -1;
  }

 private:
  AnyRecords records_;
  std::vector<std::int32_t> places_;
  std::vector<std::string> names_;
};

// Returns e.g. "cat, dog, fox": at most eight of the names.
[[nodiscard]] inline std::string some_names(const std::vector<std::string>& names) {
  constexpr std::size_t most = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), most); ++i) text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > most ? text + " and " + std::to_string(names.size() - most) + " more" : text;
}

}  // namespace detail

TUTTI_CORE_FUNCTION AnyDataset Images::dataset(Split role,
                                               const std::function<const ImageDecoders&()>& decoders) const {
  if (!records_) return *stored_;
  return EncodedImages(schema_.name, *records_, decoders(), input_.augment(role));
}

TUTTI_CORE_FUNCTION Images Images::with_classes(const std::vector<std::string>& names) const {
  const std::vector<std::string>& mine = schema_.class_names;
  if (mine == names) return *this;
  std::vector<std::int32_t> places;
  for (const std::string& name : mine) {
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end())
      fail<DataError>(schema_.name, "classes of the training images: " + detail::some_names(names), name,
                      "a net can be tested only on classes that it was trained on");
    places.push_back(static_cast<std::int32_t>(at - names.begin()));
  }
  if (!records_ || mine.empty())
    fail<DataError>(
        schema_.name, "the classes of the training images in their order: " + detail::some_names(names),
        mine.empty() ? std::to_string(schema_.classes) + " classes without names" : detail::some_names(mine));
  return {schema_.name, AnyRecords(detail::RelabelledRecords(*records_, std::move(places), names)), input_};
}

}  // namespace tutti
