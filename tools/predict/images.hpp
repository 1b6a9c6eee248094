// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <tutti/data/dataset.hpp>
#include <tutti/data/images/image_decoder.hpp>
#include <tutti/data/images/image_folder.hpp>
#include <tutti/interchange/image_preparation.hpp>

namespace tutti::predict_tool {

// An image to predict, or the reason why it is missing.
struct GivenImage {
  std::string name;
  std::string error{};                // for a requested image that does not exist
  std::vector<std::uint8_t> bytes{};  // for an image from standard input; otherwise empty, and the file is read
};

namespace detail {

void add(const std::string& name, std::vector<GivenImage>& to);

}  // namespace detail

// Returns the images that the arguments of the command line name.
[[nodiscard]] std::vector<GivenImage> find_images(const std::vector<std::string>& words);

// The images as a data set. Stores the error of each image that cannot be read.
class GivenImages {
 public:
  GivenImages(const std::vector<GivenImage>& images, const ImageDecoders& decoders,
              const interchange::ImagePreparation& preparation, std::int64_t channels);

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(shared_->images.size()); }
  [[nodiscard]] const Schema& schema() const noexcept { return schema_; }
  void read(std::int64_t i, Rng&, Sample sample) const;
  // Returns the error of read() for this image.
  [[nodiscard]] std::string error(std::int64_t i) const;

 private:
  struct Shared {
    explicit Shared(const std::vector<GivenImage>& i) : images(i) {}
    const std::vector<GivenImage>& images;
    std::mutex mutex;
    std::map<std::int64_t, std::string> errors;
  };
  std::shared_ptr<Shared> shared_;
  ImageDecoders decoders_;
  interchange::ImagePreparer prepare_;
  Schema schema_;
};

}  // namespace tutti::predict_tool
