// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <tutti/cluster/job_facts.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/dataset.hpp>

namespace tutti {

// Adds a fact that differs between ranks if their images differ: the number of images, and a hash of sixteen of them.
// may_skip: if true, an unreadable image is a fact too; otherwise its DataError is thrown.
inline void add_data(JobFacts& facts, const std::string& what, const AnyDataset& d, bool may_skip = false) {
  std::string text;
  std::vector<std::uint8_t> image(static_cast<std::size_t>(d.schema().image_bytes()));
  constexpr std::int64_t looks = 16;
  for (std::int64_t k = 0; k < std::min(looks, d.size()); ++k) {
    std::int32_t label = 0;
    Rng rng(0, Purpose::user);
    try {
      d.read(k * d.size() / looks, rng, Sample{image, label});
    } catch (const DataError& e) {
      if (!may_skip) throw;
      text += e.what();
      continue;
    }
    text.append(reinterpret_cast<const char*>(image.data()), image.size()).append(std::to_string(label));
  }
  facts.add(what, {d.size(), " images, sample ", JobFacts::hash_of(text)});
}

}  // namespace tutti
