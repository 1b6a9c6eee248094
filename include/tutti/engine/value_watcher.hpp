// SPDX-License-Identifier: MIT
#pragma once

namespace tutti {

class Memory;
class PlanWalk;
struct PreparedPlan;
struct Segment;

// Is told what each op of a run has come to, as soon as it is done and before the next one begins: see
// engine/value_trace.hpp.
class ValueWatcher {
 public:
  virtual ~ValueWatcher() = default;
  // A segment of one op, or of a part of one, that has run. What it throws ends the run.
  virtual void ran(const PlanWalk& walk, Memory& memory, const PreparedPlan& p, const Segment& segment) = 0;
};

}  // namespace tutti
