// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <utility>

#include <tutti/io/cache_folder.hpp>
#include <tutti/io/text_store.hpp>

namespace tutti::cuda {

// Returns the folder in which plans are stored.
[[nodiscard]] inline std::filesystem::path default_plan_folder() { return io::cache_folder("cudnn"); }

// Stores the execution plans that were chosen.
class PlanStore : public io::TextStore {
 public:
  // folder: empty if plans are not to be stored.
  explicit PlanStore(std::filesystem::path folder = default_plan_folder())
      : TextStore(std::move(folder), "tutti cudnn plan 1", ".plan") {}
};

}  // namespace tutti::cuda
