// SPDX-License-Identifier: MIT
// Reads any bytes as a TFRecord file of image examples. The result is either DataError or frames that follow one
// another.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include <tutti/data/records/tfrecord_reader.hpp>
#include <tutti/datasets/imagenet/tfrecords.hpp>

#include "fuzz/memory_file.hpp"

namespace fuzz::tfrecord {

int run(const std::uint8_t* data, std::size_t size) {
  const std::span input(data, size);
  const auto parse = [](std::span<const std::uint8_t> payload) {
    try {
      const auto e = tutti::imagenet::parse_image_example(payload, "fuzz");
      if (e.encoded.empty() || e.encoded.data() < payload.data() ||
          e.encoded.data() + e.encoded.size() > payload.data() + payload.size())
        std::abort();
    } catch (const tutti::DataError&) {
    }
  };
  parse(input);  // parses the input without checksums, which few inputs pass
  const tutti::test::MemoryFile file(input);
  const tutti::ShardFiles files({file.path()});
  try {
    std::uint64_t end = 0;
    for (const auto& span : tutti::tfrecord::scan(files, 0)) {
      if (span.offset != end || span.length < 16) std::abort();
      end += span.length;
      std::vector<std::uint8_t> frame(span.length);
      files.read(0, span.offset, frame);
      try {
        parse(tutti::tfrecord::payload(frame, "fuzz"));
      } catch (const tutti::DataError&) {
      }
    }
    if (end != size) std::abort();
  } catch (const tutti::DataError&) {
  }
  return 0;
}

}  // namespace fuzz::tfrecord
