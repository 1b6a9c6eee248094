// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/images/image_folder.hpp>
#include <tutti/data/images/image_input.hpp>
#include <tutti/data/records/records.hpp>

namespace tutti {

class ImageDecoders;  // data/image_decoder.hpp

// Any images that fit(job, net, ...) takes, for training or for evaluation:
//   a Dataset   as it is: load_cifar10(), Augmented, one of your own
//   Records     decoded, augmented for training and cut out of the centre for evaluation, as an ImageInput says:
//               ImageFolder, open_imagenet() with all its forms, PackedShards, TfRecords, RecordIoFiles
// Copies share the images.
class Images {
 public:
  // NOLINTBEGIN(google-explicit-constructor)

  // Takes a data set as it is.
  template <class D>
  requires(!std::same_as<D, Images> && Dataset<D>) Images(D dataset)
      : stored_(AnyDataset(std::move(dataset))), schema_(stored_->schema()) {}
  // Takes records, which are decoded and augmented as `input` says.
  template <class R>
  requires(!std::same_as<R, Images> && !Dataset<R> && !std::same_as<R, ImageFolder> && Records<R>)
      Images(R records, ImageInput input = {})
      : Images("records", AnyRecords(std::move(records)), std::move(input)) {}
  // Takes the images of a folder, with the folder's own input.
  Images(const ImageFolder& folder)
      : Images("image folder " + folder.folder().string(), AnyRecords(folder), folder.input()) {}
  // Takes what open_imagenet() returns.
  template <class O>
  requires requires(const O& o) {
    { o.records } -> std::convertible_to<const AnyRecords&>;
    { o.folder } -> std::convertible_to<const io::Path&>;
  }
  Images(const O& opened, ImageInput input = {}) : Images(opened.folder.string(), opened.records, std::move(input)) {}
  // NOLINTEND(google-explicit-constructor)

  [[nodiscard]] std::int64_t size() const { return records_ ? records_->size() : stored_->size(); }
  // Returns what a net sees: extents, normalisation, classes.
  [[nodiscard]] const Schema& schema() const noexcept { return schema_; }
  // Returns whether the images are files that are decoded when they are read.
  [[nodiscard]] bool encoded() const noexcept { return records_.has_value(); }

  // Returns the data set of these images in this role. decoders: called for encoded images only.
  [[nodiscard]] TUTTI_CORE_FUNCTION AnyDataset dataset(Split role,
                                                       const std::function<const ImageDecoders&()>& decoders) const;

  // Returns the same images with labels for classes of these names, in any order. Throws DataError if a class does not
  // have one of these names, or if the images have no class names to compare.
  [[nodiscard]] TUTTI_CORE_FUNCTION Images with_classes(const std::vector<std::string>& names) const;

 private:
  Images(std::string name, AnyRecords records, ImageInput input)
      : records_(std::move(records)),
        input_(std::move(input)),
        schema_(encoded_schema(std::move(name), records_->classes(), records_->block(), records_->class_names(),
                               input_.augment(Split::test))) {}

  std::optional<AnyDataset> stored_;   // set if the images are a Dataset
  std::optional<AnyRecords> records_;  // set if they are Records
  ImageInput input_;
  Schema schema_;
};

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/data/images/images_definitions.hpp>
#endif
