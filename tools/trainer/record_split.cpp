// SPDX-License-Identifier: MIT
#include "tools/trainer/record_split.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/rng.hpp>

namespace tutti::trainer {

std::vector<std::int32_t> labels_of(const imagenet::Opened& set) {
  std::vector<std::int32_t> labels;
  labels.reserve(static_cast<std::size_t>(set.records.size()));
  const std::size_t prefix = (set.folder / "").string().size();
  std::vector<std::uint8_t> bytes;
  for (std::int64_t i = 0; i < set.records.size(); ++i) {
    if (set.form == imagenet::Form::image_folder) {
      const std::string path = set.records.where(i);
      const std::string name = path.substr(prefix, path.find('/', prefix) - prefix);
      const auto at = std::lower_bound(set.class_names.begin(), set.class_names.end(), name);
      if (at != set.class_names.end() && *at == name) {
        labels.push_back(static_cast<std::int32_t>(at - set.class_names.begin()));
        continue;
      }
    }
    labels.push_back(set.records.read(i, bytes));
  }
  return labels;
}

std::vector<std::int64_t> counts_of(const imagenet::Opened& set) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(set.classes), 0);
  for (const std::int32_t label : labels_of(set))
    if (label >= 0 && label < set.classes) ++counts[static_cast<std::size_t>(label)];
  return counts;
}

imagenet::Opened split_off(imagenet::Opened& train, double share, std::uint64_t seed) {
  std::vector<std::vector<std::int64_t>> of_class(static_cast<std::size_t>(std::max(train.classes, 1)));
  const std::vector<std::int32_t> labels = labels_of(train);
  for (std::size_t i = 0; i < labels.size(); ++i)
    if (labels[i] >= 0 && labels[i] < train.classes)
      of_class[static_cast<std::size_t>(labels[i])].push_back(static_cast<std::int64_t>(i));
  std::vector<std::int64_t> kept, held_out;
  for (std::size_t k = 0; k < of_class.size(); ++k) {
    std::vector<std::int64_t>& all = of_class[k];
    Rng rng(seed, Purpose::user, 0, k);
    for (std::size_t i = all.size(); i > 1; --i)
      std::swap(all[i - 1], all[static_cast<std::size_t>(rng.below(static_cast<std::uint32_t>(i)))]);
    const auto most = static_cast<std::int64_t>(all.size()) - 1;
    const std::int64_t out = std::clamp<std::int64_t>(std::llround(share * static_cast<double>(all.size())),
                                                      most > 0 ? 1 : 0, std::max<std::int64_t>(most, 0));
    held_out.insert(held_out.end(), all.begin(), all.begin() + out);
    kept.insert(kept.end(), all.begin() + out, all.end());
  }
  std::sort(kept.begin(), kept.end());
  std::sort(held_out.begin(), held_out.end());
  imagenet::Opened test = train;
  test.records = AnyRecords(RecordSubset(train.records, std::move(held_out)));
  test.left_out.clear();
  train.records = AnyRecords(RecordSubset(train.records, std::move(kept)));
  return test;
}

}  // namespace tutti::trainer
