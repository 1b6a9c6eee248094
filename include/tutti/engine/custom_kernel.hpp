// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include <tutti/core/separate.hpp>
#include <tutti/engine/kernel.hpp>
#include <tutti/graph/custom.hpp>
#include <tutti/graph/ops.hpp>

namespace tutti {

// Runs a custom op's own code on the operands.
TUTTI_CORE_FUNCTION void run_custom(const CustomOp::Kernel& kernel, Call& c);

// Returns the definition of a custom op or of its gradient; null for other ops.
[[nodiscard]] TUTTI_CORE_FUNCTION const CustomOp* custom_op(const Op& op);
// Returns the code of a custom op, or of its gradient, for the first of these backend names that has one. Returns null
// for another op, or if there is no code.
[[nodiscard]] TUTTI_CORE_FUNCTION const CustomOp::Kernel* custom_code(const Op& op,
                                                                      std::span<const std::string_view> names);

// A custom op on the host.
class CustomKernel final : public Kernel {
 public:
  explicit CustomKernel(const CustomOp::Kernel& code) : code_(code) {}
  void run(Call& c) override { run_custom(code_, c); }

 private:
  CustomOp::Kernel code_;
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION void run_custom(const CustomOp::Kernel& kernel, Call& c) {
  kernel(std::span<const TensorRef>(c.in.data(), static_cast<std::size_t>(c.inputs)),
         std::span<const TensorRef>(c.out.data(), static_cast<std::size_t>(c.outputs)));
}
TUTTI_CORE_FUNCTION const CustomOp* custom_op(const Op& op) {
  if (const auto* forward = std::get_if<op::Custom>(&op)) return forward->def;
  if (const auto* backward = std::get_if<op::CustomBackward>(&op)) return backward->def;
  return nullptr;
}
TUTTI_CORE_FUNCTION const CustomOp::Kernel* custom_code(const Op& op, std::span<const std::string_view> names) {
  const CustomOp* def = custom_op(op);
  if (def == nullptr) return nullptr;
  const auto& codes = std::holds_alternative<op::Custom>(op) ? def->forward : def->backward;
  for (const std::string_view name : names)
    if (const auto it = codes.find(std::string(name)); it != codes.end()) return &it->second;
  return nullptr;
}
#endif

}  // namespace tutti
