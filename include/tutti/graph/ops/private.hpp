// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/graph/ops/op.hpp>

namespace tutti {

// An op that a backend makes from several ops (Backend::rewrite) and that only this backend can run. The backend's code
// defines it. A graph holds a pointer to it (op::Private); op_cast() returns the op (graph/ops.hpp).
struct PrivateOp {
  explicit PrivateOp(const OpInfo& i) : info(i) {}
  virtual ~PrivateOp() = default;
  OpInfo info;
};
template <class O>
struct PrivateOpOf final : PrivateOp {  // Holds the backend's own op.
  explicit PrivateOpOf(const O& o) : PrivateOp(O::info), op(o) {}
  O op;
};

namespace op {

struct Private {  // An op that only one backend can run.
  static constexpr OpInfo info{.name = "private", .gradient = true};
  const PrivateOp* def = nullptr;
};

}  // namespace op
}  // namespace tutti
