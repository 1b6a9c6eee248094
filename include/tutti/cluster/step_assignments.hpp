// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>

namespace tutti {

// Steps assigned on demand to workers that do not wait for each other, and that may join and leave. Steps are numbers
// from 0. Each is assigned to one worker, which runs it and reports it. Unfinished steps of a worker that left or was
// lost are assigned to another worker.
class StepAssignments {
 public:
  struct Reply {  // the answer to a worker
    enum class Kind : std::uint8_t {
      step,  // `number` is assigned to this worker
      wait,  // no step now, but other workers may fail to finish theirs: ask again
      done,  // all steps are finished; only the coordinator's work remains
      over   // the coordinator's work is finished too
    };
    Kind kind = Kind::wait;
    std::int64_t number = 0;
  };

  StepAssignments() = default;
  StepAssignments(const StepAssignments&) = delete;
  StepAssignments& operator=(const StepAssignments&) = delete;

  // Requests a step below `limit` without waiting. Several requests may be open.
  virtual void ask(std::int64_t limit) = 0;
  // Returns the answer to the oldest request. Returns no value if there is no request, or no answer yet. wait: waits
  // for the answer.
  [[nodiscard]] virtual std::optional<Reply> take(bool wait) = 0;
  // Reports that a step of this worker is finished.
  virtual void complete(std::int64_t number) = 0;
  // Reports that the coordinator's work, and with it the job, is finished.
  virtual void end_all() = 0;
  // Returns the number of workers that began the job. Learning rates and the weight of a gradient depend on it, and not
  // on the current number of workers.
  [[nodiscard]] virtual int founders() const = 0;
  // Returns whether this worker is a founder.
  [[nodiscard]] virtual bool is_founder() const = 0;
  // Returns this worker's number, which no other worker ever gets.
  [[nodiscard]] virtual int number() const = 0;

 protected:
  ~StepAssignments() = default;  // never deleted through this type
};

}  // namespace tutti
