// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <string_view>

#include "tools/trainer/cifar10_options.hpp"
#include "tools/trainer/imagenet_options.hpp"

namespace tutti::trainer {

// Describes the options of a program: v.group(title) and v(name, field, help, scope).
template <class V>
void describe(RunOptions& o, V&& v) {
  if (o.program == Program::train_cifar10)
    detail::describe_cifar10(o, v);
  else
    detail::describe_imagenet(o, v);
}

[[nodiscard]] inline RunOptions defaults_of(Program p) {
  RunOptions o = p == Program::train_cifar10 ? RunOptions{} : imagenet_defaults();
  o.program = p;
  return o;
}

[[nodiscard]] std::span<const NeutralOption> neutral_options(Program p);

// Whether --help lists the option. --help-all lists every option.
[[nodiscard]] bool is_common(std::string_view option);

}  // namespace tutti::trainer
