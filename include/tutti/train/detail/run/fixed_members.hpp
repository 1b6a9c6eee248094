// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/train/detail/run/run_members.hpp>

namespace tutti::detail {

// The same ranks do all steps of the run together. If a rank is lost, the run ends with an error.
class FixedMembers final : public RunMembers {
 public:
  explicit FixedMembers(RunParts& parts) : RunMembers(parts) {}

  [[nodiscard]] bool begin() override {
    make_sources();
    (void)start();
    return true;
  }
};

}  // namespace tutti::detail
