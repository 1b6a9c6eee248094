// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/graph/ops/op.hpp>

namespace tutti {

// An op that one backend makes of several (Backend::rewrite) and that it alone runs. It lives with the backend; graphs
// know what it is called, and op_cast() finds it (graph/ops.hpp).
struct PrivateOp {
  explicit PrivateOp(const OpInfo& i) : info(i) {}
  virtual ~PrivateOp() = default;
  OpInfo info;
};
template <class O>
struct PrivateOpOf final : PrivateOp {  // what a backend has put there
  explicit PrivateOpOf(const O& o) : PrivateOp(O::info), op(o) {}
  O op;
};

namespace op {

struct Private {  // an op that one backend alone knows
  static constexpr OpInfo info{.name = "private", .gradient = true};
  const PrivateOp* def = nullptr;
};

}  // namespace op
}  // namespace tutti
