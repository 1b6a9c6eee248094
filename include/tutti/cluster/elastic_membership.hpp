// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <tutti/cluster/step_assignments.hpp>
#include <tutti/core/error.hpp>

namespace tutti {

// How a member of a generation leaves its work.
struct LeaveReport {
  std::uint64_t step = 0;  // behind which it stands, whole
  bool broken = false;     // what followed broke off: a peer was lost, or what they did together failed
  bool epoch_end = false;  // the step was the last of an epoch
  bool preparing = false;  // what is trained is not ready yet: nobody can join those who make it
};

// What a strategy whose members come and go says of them, and is told. Members work in generations: whoever trains asks
// for a change in each step, leaves the generation with the others, and goes on in the next (Trainer::reform). Calls
// come from one thread.
class ElasticMembership {
 public:
  enum class Change : std::uint8_t {
    none,
    after_epoch,  // to be told to all in the last step of the epoch, by step_flag::membership
    after_step,   // in the next step
    broken        // the generation cannot go on, at once
  };

  ElasticMembership() = default;
  ElasticMembership(const ElasticMembership&) = delete;
  ElasticMembership& operator=(const ElasticMembership&) = delete;

  // Whether a generation's processes end with it, and new ones go on from a checkpoint: then who trains saves and ends
  // when the members are to change, and next_generation() is not called.
  [[nodiscard]] virtual bool restarts_processes() const { return false; }
  // Where workers wait for no other one, and each goes over to the next generation for itself: from whom they have
  // their steps. Then next_generation() returns at once, what is under way goes on, and nobody takes another one's
  // state.
  [[nodiscard]] virtual StepAssignments* step_assignments() { return nullptr; }
  // Whether this process has not been in any generation yet: it holds nothing that others need, and takes what they
  // have.
  [[nodiscard]] virtual bool joining() const = 0;
  // Whether it still holds nothing that others need, because the state of its first generation has not come yet.
  [[nodiscard]] virtual bool lacks_state() const { return joining(); }
  // Of a process that was started to join a job: the epoch that this was in then, and how many workers it had at most,
  // this one with them.
  [[nodiscard]] virtual std::int64_t epoch_of_joining() const { return 0; }
  [[nodiscard]] virtual int most_members() const { return 1; }
  // Memory for a second copy of the state, which processes of this host may read while it is handed over; stays as long
  // as this. Empty: there is none such.
  [[nodiscard]] virtual std::span<std::byte> state_memory(std::size_t /*bytes*/) { return {}; }
  // Whether something of another member's came in what was synchronised last.
  [[nodiscard]] virtual bool took_state() const { return true; }
  // What is known of a change of the present generation.
  [[nodiscard]] virtual Change change() = 0;
  // Leaves the present generation, or comes to its first, and waits until the group of the next one stands. False where
  // this process is let go, as it or whoever started it had asked. CommunicationError where it was given up.
  [[nodiscard]] virtual bool next_generation(const LeaveReport& how) = 0;
  // Whether the others of the present generation take this process's state.
  [[nodiscard]] virtual bool has_authority() const = 0;
  // Leaves with the next generation, which comes after a step.
  virtual void ask_to_leave() = 0;
  // The whole job is to stop.
  [[nodiscard]] virtual bool stop_requested() const = 0;
  // False once this process might have been given up: then it must not write what others read.
  [[nodiscard]] virtual bool may_write() const = 0;
  // Blocks until this process may write. Returns false if it cannot learn within the rank time-out whether it may: then
  // it must end. CommunicationError if it was given up.
  [[nodiscard]] virtual bool await_right() { return may_write(); }
  // Said by rank 0, for whoever starts further processes.
  virtual void epoch_begins(std::int64_t epoch) = 0;

 protected:
  ~ElasticMembership() = default;  // nobody owns one by this name
};

// The error of a process for which await_right() has returned false.
[[noreturn]] inline void fail_without_right() {
  fail<CommunicationError>("this process", "an answer of the job's arbiter within the time-out", "none",
                           "was its host cut off, or the launcher stopped? --rank-timeout sets the time");
}

}  // namespace tutti
