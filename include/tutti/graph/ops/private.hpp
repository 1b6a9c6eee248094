// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/graph/ops/op.hpp>

namespace tutti {

// An op that a backend makes from several others (Backend::rewrite) and that only this backend runs. The backend's code
// defines it. Graphs know its name; op_cast() finds it (graph/ops.hpp).
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

struct Private {  // An op that only one backend knows.
  static constexpr OpInfo info{.name = "private", .gradient = true};
  const PrivateOp* def = nullptr;
};

}  // namespace op
}  // namespace tutti
