// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <tutti/graph/ops/activation.hpp>
#include <tutti/graph/ops/concat.hpp>
#include <tutti/graph/ops/convolution.hpp>
#include <tutti/graph/ops/custom.hpp>
#include <tutti/graph/ops/dropout.hpp>
#include <tutti/graph/ops/elementwise.hpp>
#include <tutti/graph/ops/linear.hpp>
#include <tutti/graph/ops/loss.hpp>
#include <tutti/graph/ops/multiply.hpp>
#include <tutti/graph/ops/norm.hpp>
#include <tutti/graph/ops/op.hpp>
#include <tutti/graph/ops/pool.hpp>
#include <tutti/graph/ops/private.hpp>

namespace tutti {

template <class... Os>
struct OpList {  // The list of all kinds of ops.
  using Variant = std::variant<Os...>;
  static constexpr std::array<OpInfo, sizeof...(Os)> infos{Os::info...};
  template <class O>
  static constexpr bool has = (std::is_same_v<O, Os> || ...);

  // Calls f with the op. Compiles faster than std::visit, which needs a function for each op and a table of them.
  template <class F>
  static void visit(const Variant& o, F&& f) {
    visit(o, f, std::make_index_sequence<sizeof...(Os)>());
  }
  // The same for ops of the forward pass; ignores gradients.
  template <class F>
  static void visit_forward(const Variant& o, F&& f) {
    visit_forward(o, f, std::make_index_sequence<sizeof...(Os)>());
  }

 private:
  template <class F, std::size_t... I>
  static void visit(const Variant& o, F& f, std::index_sequence<I...>) {
    (void)(... || (o.index() == I && (f(*std::get_if<I>(&o)), true)));
  }
  template <class F, std::size_t... I>
  static void visit_forward(const Variant& o, F& f, std::index_sequence<I...>) {
    const auto one = [&]<std::size_t K, class O>() {
      if constexpr (!O::info.gradient)
        if (o.index() == K) f(*std::get_if<K>(&o));
    };
    (one.template operator()<I, Os>(), ...);
  }
};

// All ops that a graph can contain. User-defined ops and ops of a single backend are first; every backend has a kernel
// for each op after them.
// clang-format off
using Ops = OpList<
    op::Custom, op::CustomBackward, op::Private,
    op::Normalize,
    op::Conv2d, op::Conv2dBackwardData, op::Conv2dBackwardWeights,
    op::BatchNorm, op::BatchNormInference, op::BatchNormBackward,
    op::Relu, op::ReluBackward,
    op::Activation, op::ActivationBackward,
    op::Add,
    op::Bias, op::BiasBackward,
    op::Multiply, op::MultiplyBackward,
    op::Concat, op::ConcatBackward,
    op::LayerNorm, op::LayerNormBackward,
    op::Dropout,
    op::MaxPool, op::MaxPoolBackward,
    op::AvgPool, op::AvgPoolBackward,
    op::Linear, op::LinearBackwardData, op::LinearBackwardWeights,
    op::SoftmaxCrossEntropy>;
// clang-format on
using Op = Ops::Variant;
static_assert(std::is_trivially_copyable_v<Op>);

[[nodiscard]] inline const OpInfo& info_of(const Op& o) {  // Returns the description of the op's kind.
  if (const auto* p = std::get_if<op::Private>(&o)) return p->def->info;
  return Ops::infos[o.index()];
}
// Returns one word, as in profiles.
[[nodiscard]] inline std::string_view name_of(const Op& o) {
  if (const auto* a = std::get_if<op::Activation>(&o)) return op::name_of(a->kind, false);
  if (const auto* a = std::get_if<op::ActivationBackward>(&o)) return op::name_of(a->kind, true);
  if (const auto* p = std::get_if<op::AvgPool>(&o); p != nullptr && p->global()) return "global_avg_pool";
  if (const auto* p = std::get_if<op::AvgPoolBackward>(&o); p != nullptr && p->global())
    return "global_avg_pool_backward";
  if (const auto* d = std::get_if<op::Dropout>(&o); d != nullptr && d->rows) return "drop_path";
  if (const auto* l = std::get_if<op::SoftmaxCrossEntropy>(&o); l != nullptr && l->binary)
    return "binary_cross_entropy";
  return info_of(o).name;
}
// Returns whether the op's second input is weights, which a backend may need in a layout of its own.
[[nodiscard]] inline bool reads_weights(const Op& o) { return info_of(o).weights; }

// Returns the op if its type is O, otherwise nullptr. O may be a private op of a backend.
template <class O>
[[nodiscard]] const O* op_cast(const Op& o) {
  if constexpr (Ops::has<O>) {
    return std::get_if<O>(&o);
  } else {
    const auto* p = std::get_if<op::Private>(&o);
    const auto* own = p != nullptr ? dynamic_cast<const PrivateOpOf<O>*>(p->def) : nullptr;
    return own != nullptr ? &own->op : nullptr;
  }
}

}  // namespace tutti
