// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <variant>

#include <tutti/engine/kernel.hpp>
#include <tutti/graph/ops.hpp>

namespace tutti::cuda {

// Runs an op O by functions of the backend B: run(O, call) runs the op in one call, and prepare(O, info) returns the
// op's prepared data. For weights, B has pack_bytes(op, desc) and pack(op, desc, weights, to). One class with pointers
// to these functions is enough: on a GPU, ops differ only in their prepared data and in the kernels that they start.
template <class B>
class NodeKernel final : public Kernel {
 public:
  struct Functions {
    std::shared_ptr<void> (*prepare)(B& b, const Op& op, const PrepareInfo& info);
    void (*run)(B& b, const Op& op, Call& c);
  };
  NodeKernel(B& backend, const Op& op, const NodeDesc& d, const Functions& f) : b_(backend), op_(op), f_(f), desc_(d) {}

  [[nodiscard]] std::size_t packed_bytes() override { return b_.pack_bytes(op_, desc_); }
  void pack(const TensorRef& weights, void* to) override { b_.pack(op_, desc_, weights, to); }
  void prepare(const PrepareInfo& info) override { prepared_ = f_.prepare(b_, op_, info); }
  void run(Call& c) override {
    c.prepared = prepared_.get();
    f_.run(b_, op_, c);
  }

 private:
  B& b_;
  const Op& op_;
  Functions f_;
  NodeDesc desc_;
  std::shared_ptr<void> prepared_;
};

// Returns the kernel of any op except a custom one, or null for an op that B has no function for. B must have functions
// for Own, its private ops.
template <class... Own, class B>
[[nodiscard]] std::unique_ptr<Kernel> kernel_of(B& b, const Op& op, const NodeDesc& d) {
  std::unique_ptr<Kernel> made;
  const auto one = [&]<class O>(const O* o) {
    if (o == nullptr) return;
    if constexpr (requires(Call & c) { b.run(*o, c); }) {
      const typename NodeKernel<B>::Functions functions{
          [](B& on, const Op& any, const PrepareInfo& info) -> std::shared_ptr<void> {
            return on.prepare(*op_cast<O>(any), info);
          },
          [](B& on, const Op& any, Call& c) { on.run(*op_cast<O>(any), c); }};
      made = std::make_unique<NodeKernel<B>>(b, op, d, functions);
    }
  };
  [&]<class... All>(const std::variant<op::Custom, op::CustomBackward, op::Private, All...>* any) {
    (one(std::get_if<All>(any)), ...);
  }(&op);
  (one(op_cast<Own>(op)), ...);
  return made;
}

}  // namespace tutti::cuda
