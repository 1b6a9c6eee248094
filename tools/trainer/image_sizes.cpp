// SPDX-License-Identifier: MIT
#include "tools/trainer/image_sizes.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/augment/col_out_options.hpp>

#include "tools/trainer/check_values.hpp"

namespace tutti::trainer {

namespace {

constexpr std::int64_t smallest = 32, largest = 4096;

// Reads a whole number; returns false unless it is the complete text.
bool read(std::string_view text, std::int64_t& to) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
  return error == std::errc{} && end == text.data() + text.size();
}

}  // namespace

std::vector<ImageSizeStep> image_size_steps(const RunOptions& o) {
  std::vector<ImageSizeStep> steps{{0, o.image_size}};
  std::string_view rest = o.image_size_steps;
  while (!o.image_size_steps.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const std::size_t colon = item.find(':');
    ImageSizeStep s;
    const bool good =
        colon != item.npos && read(item.substr(0, colon), s.epoch) && read(item.substr(colon + 1), s.size);
    if (!good || s.epoch <= steps.back().epoch || s.size < smallest || s.size > largest)
      fail<UsageError>("--image-size-steps",
                       "EPOCH:SIZE,... with rising epochs from 1 on and sizes of 32 to 4096, e.g. 12:192",
                       "'" + o.image_size_steps + "'", "12:192 means: 192 pixels after 12 epochs");
    steps.push_back(s);
    if (comma == rest.npos) break;
    rest = rest.substr(comma + 1);
  }
  return steps;
}

void check_image_sizes(RunOptions& o) {
  detail::number("--image-size", o.image_size, smallest, largest);
  const auto steps = image_size_steps(o);
  if (o.eval_size == 0) o.eval_size = steps.back().size;
  detail::number("--eval-size", o.eval_size, smallest, largest);
  detail::number("--col-out", o.col_out, 0, 0.9);
  if (steps.size() == 1 && o.eval_size == o.image_size && o.col_out == 0) return;
  std::string note = "training images have " + std::to_string(o.image_size) + " pixels on each side";
  for (std::size_t i = 1; i < steps.size(); ++i)
    note += ", " + std::to_string(steps[i].size) + " after " + std::to_string(steps[i].epoch) +
            (steps[i].epoch == 1 ? " epoch" : " epochs");
  if (o.col_out > 0)
    note += "; of " + std::to_string(steps.back().size) + " --col-out leaves " +
            std::to_string(ColOut::kept(steps.back().size, o.col_out));
  o.notes.push_back(note + "; an evaluation, and the saved net, have " + std::to_string(o.eval_size));
  if (o.epochs > 0 && steps.back().epoch >= o.epochs)
    o.notes.push_back("--image-size-steps: the run ends after epoch " + std::to_string(o.epochs) +
                      ", before training images have " + std::to_string(steps.back().size) + " pixels");
}

std::int64_t largest_image_bytes(const RunOptions& o, const Schema& seen) {
  std::int64_t bytes = seen.image_bytes();
  if (o.program == Program::train_cifar10) return bytes;
  for (const ImageSizeStep& s : image_size_steps(o)) bytes = std::max(bytes, seen.channels * s.size * s.size);
  return bytes;
}

}  // namespace tutti::trainer
