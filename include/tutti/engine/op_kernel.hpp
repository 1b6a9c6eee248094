// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include <tutti/engine/kernel.hpp>
#include <tutti/graph/custom.hpp>
#include <tutti/graph/ops.hpp>

namespace tutti {

// A backend's functions for an O: how it is divided, what it makes ready, how it runs.
template <class B, class O>
concept RunsOp = requires(B& b, const O& o, Call& call, const NodeDesc& d, const PrepareInfo& info) {
  b.run(o, call);
  { b.partition(o, d) } -> std::same_as<Partition>;
  { b.prepare(o, info) } -> std::convertible_to<std::shared_ptr<void>>;
};

namespace detail {

// Stands for an O that nothing takes but a function of O's own.
template <class O>
struct OpProbe {
  operator const O&() const;  // NOLINT(google-explicit-constructor): it stands for one
};
template <class T>
inline constexpr bool is_probe = false;
template <class O>
inline constexpr bool is_probe<OpProbe<O>> = true;

}  // namespace detail

// Says itself how an O is divided, rather than that it runs whole.
template <class B, class O>
concept DividesOp = requires(B& b, const detail::OpProbe<O>& o, const NodeDesc& d) {
  b.partition(o, d);
};

// Calls those functions, and for weights B's pack_bytes(op, desc) and pack(op, desc, weights, to). One class a backend:
// of each op it holds pointers, which cost a compiler less than a class.
template <class B>
class OpKernel final : public Kernel {
 public:
  struct Functions {
    Partition (*partition)(B& b, const Op& op, const NodeDesc& d);
    std::shared_ptr<void> (*prepare)(B& b, const Op& op, const PrepareInfo& info);
    void (*run)(B& b, const Op& op, Call& c);
    bool divides;
  };
  OpKernel(B& backend, const Op& op, const NodeDesc& d, const Functions& f) : b_(backend), op_(op), f_(f), desc_(d) {}

  [[nodiscard]] Partition cut() override { return f_.partition(b_, op_, desc_); }
  [[nodiscard]] std::size_t packed_bytes() override { return b_.pack_bytes(op_, desc_); }
  void pack(const TensorRef& weights, void* to) override { b_.pack(op_, desc_, weights, to); }
  void prepare(const PrepareInfo& info) override {
    prepared_ = f_.prepare(b_, op_, info);
    desc_.state = prepared_.get();
  }
  void run(Call& c) override {
    c.state = prepared_.get();
    f_.run(b_, op_, c);
  }
  [[nodiscard]] bool is_fallback() const override { return !f_.divides; }

 private:
  B& b_;
  const Op& op_;
  Functions f_;
  NodeDesc desc_;
  std::shared_ptr<void> prepared_;
};

namespace detail {

template <class B, class O>
requires RunsOp<B, O>
[[nodiscard]] typename OpKernel<B>::Functions functions_of() {
  return {[](B& on, const Op& any, const NodeDesc& n) { return on.partition(*op_cast<O>(any), n); },
          [](B& on, const Op& any, const PrepareInfo& info) -> std::shared_ptr<void> {
            return on.prepare(*op_cast<O>(any), info);
          },
          [](B& on, const Op& any, Call& c) { on.run(*op_cast<O>(any), c); }, DividesOp<B, O>};
}

}  // namespace detail

// The kernel for an op that is one of Os; null for others.
template <class... Os, class B>
[[nodiscard]] std::unique_ptr<Kernel> kernel_among(B& b, const Op& op, const NodeDesc& d) {
  std::optional<typename OpKernel<B>::Functions> found;
  const auto one = [&]<class O>(const O* o) {
    if (o != nullptr) found = detail::functions_of<B, O>();
  };
  (one(op_cast<Os>(op)), ...);
  return found ? std::make_unique<OpKernel<B>>(b, op, d, *found) : nullptr;
}

// The kernel for an op that is none of Os, no custom one and no backend's own; null for these. The backend has
// functions for all others.
template <class... Os, class B>
[[nodiscard]] std::unique_ptr<Kernel> kernel_of_others(B& b, const Op& op, const NodeDesc& d) {
  std::optional<typename OpKernel<B>::Functions> found;
  const auto one = [&]<class O>(const O* o) {
    if constexpr (!(std::is_same_v<O, Os> || ...))
      if (o != nullptr) found = detail::functions_of<B, O>();
  };
  [&]<class... All>(const std::variant<op::Custom, op::CustomBackward, op::Private, All...>* any) {
    (one(std::get_if<All>(any)), ...);
  }(&op);
  return found ? std::make_unique<OpKernel<B>>(b, op, d, *found) : nullptr;
}

// The kernel of whatever op it is but a custom one and a backend's own; the backend has functions for all of them.
template <class B>
[[nodiscard]] std::unique_ptr<Kernel> kernel_of(B& b, const Op& op, const NodeDesc& d) {
  return kernel_of_others<>(b, op, d);
}

// Runs a custom op's own code on the operands.
inline void run_custom(const CustomOp::Kernel& kernel, Call& c) {
  kernel(std::span<const TensorRef>(c.in.data(), static_cast<std::size_t>(c.inputs)),
         std::span<const TensorRef>(c.out.data(), static_cast<std::size_t>(c.outputs)));
}

// A custom op's definition, of its gradient too; null where the op is another.
[[nodiscard]] inline const CustomOp* custom_op(const Op& op) {
  if (const auto* forward = std::get_if<op::Custom>(&op)) return forward->def;
  if (const auto* backward = std::get_if<op::CustomBackward>(&op)) return backward->def;
  return nullptr;
}
// The code of a custom op, or of its gradient, for a backend of one of these names, the first that there is; null where
// the op is another or has none.
[[nodiscard]] inline const CustomOp::Kernel* custom_code(const Op& op, std::span<const std::string_view> names) {
  const CustomOp* def = custom_op(op);
  if (def == nullptr) return nullptr;
  const auto& codes = std::holds_alternative<op::Custom>(op) ? def->forward : def->backward;
  for (const std::string_view name : names)
    if (const auto it = codes.find(std::string(name)); it != codes.end()) return &it->second;
  return nullptr;
}

// A custom op on the host.
class CustomKernel final : public Kernel {
 public:
  explicit CustomKernel(const CustomOp::Kernel& code) : code_(code) {}
  void run(Call& c) override { run_custom(code_, c); }

 private:
  CustomOp::Kernel code_;
};

}  // namespace tutti
