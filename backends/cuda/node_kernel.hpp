// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <variant>

#include <tutti/engine/kernel.hpp>
#include <tutti/graph/ops.hpp>

namespace tutti::cuda {

// How B runs an O: B's functions run(O, call), whole in one call, and prepare(O, info), what it makes ready; and for
// weights pack_bytes(op, desc) and pack(op, desc, weights, to). One class holds pointers to them: on a GPU all that an
// op has of its own is what it prepares and which kernels it starts, so that a class an op would say less in more
// lines.
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

// The kernel of whatever op it is but a custom one: B has functions for all of them, and for Own, ops of its own.
template <class... Own, class B>
[[nodiscard]] std::unique_ptr<Kernel> kernel_of(B& b, const Op& op, const NodeDesc& d) {
  std::unique_ptr<Kernel> made;
  const auto one = [&]<class O>(const O* o) {
    if (o == nullptr) return;
    const typename NodeKernel<B>::Functions functions{
        [](B& on, const Op& any, const PrepareInfo& info) -> std::shared_ptr<void> {
          return on.prepare(*op_cast<O>(any), info);
        },
        [](B& on, const Op& any, Call& c) { on.run(*op_cast<O>(any), c); }};
    made = std::make_unique<NodeKernel<B>>(b, op, d, functions);
  };
  [&]<class... All>(const std::variant<op::Custom, op::CustomBackward, op::Private, All...>* any) {
    (one(std::get_if<All>(any)), ...);
  }(&op);
  (one(op_cast<Own>(op)), ...);
  return made;
}

}  // namespace tutti::cuda
