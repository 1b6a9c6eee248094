// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>

namespace tutti {

// Steps that are dealt out one by one to workers who wait for no other one, and who come and go: numbers from 0, each
// dealt to one worker, which does it and says so. What a worker had and had not done when it left, or was lost, is
// dealt to another one. Calls come from one thread.
class StepAssignments {
 public:
  struct Reply {  // what a worker gets
    enum class Kind : std::uint8_t {
      step,  // `number` is this worker's to do
      wait,  // there is none, but others have some which they may not come to do: to be asked again
      done,  // all are done; what is left is the coordinator's
      over   // and the coordinator has done that
    };
    Kind kind = Kind::wait;
    std::int64_t number = 0;
  };

  StepAssignments() = default;
  StepAssignments(const StepAssignments&) = delete;
  StepAssignments& operator=(const StepAssignments&) = delete;

  // Asks for a step below `limit`, without waiting; several may be asked for.
  virtual void ask(std::int64_t limit) = 0;
  // What was asked for longest ago, or nothing where nothing was or the answer is not there yet. wait: waits for it.
  [[nodiscard]] virtual std::optional<Reply> take(bool wait) = 0;
  // A step of this worker's is done.
  virtual void complete(std::int64_t number) = 0;
  // The coordinator's work is done, and with it the job.
  virtual void end_all() = 0;
  // Workers that began the job, which rates and the weight of a gradient go by however many there are later.
  [[nodiscard]] virtual int founders() const = 0;
  // Whether this worker is one of them.
  [[nodiscard]] virtual bool is_founder() const = 0;
  // Of this worker: no other one ever has it.
  [[nodiscard]] virtual int number() const = 0;

 protected:
  ~StepAssignments() = default;  // nobody owns one by this name
};

}  // namespace tutti
