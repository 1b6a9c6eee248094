// SPDX-License-Identifier: MIT
#pragma once

namespace tutti {

class Memory;
class PlanWalk;
struct PreparedPlan;
struct Segment;

// Receives the result of each op of a run, as soon as it is done and before the next op begins: see
// engine/value_trace.hpp.
class ValueWatcher {
 public:
  virtual ~ValueWatcher() = default;
  // Called after a segment of one op, or of a part of one, has run. An exception ends the run.
  virtual void ran(const PlanWalk& walk, Memory& memory, const PreparedPlan& p, const Segment& segment) = 0;
};

}  // namespace tutti
