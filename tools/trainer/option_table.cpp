// SPDX-License-Identifier: MIT
#include "tools/trainer/option_table.hpp"

#include <span>

namespace tutti::trainer {

std::span<const NeutralOption> neutral_options(Program p) {
  if (p == Program::train_cifar10) return cifar10_neutral_options;
  return {};
}

}  // namespace tutti::trainer
