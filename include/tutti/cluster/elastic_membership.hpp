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
  std::uint64_t step = 0;  // its last complete step
  bool broken = false;     // the work after it failed: a peer was lost, or a common operation failed
  bool epoch_end = false;  // the step was the last of an epoch
  bool preparing = false;  // the training state is not ready yet: no process can join its preparation
};

// Membership interface of an elastic strategy. Members work in generations. The training code asks for a change in each
// step, leaves the generation together with the other members, and continues in the next one (Trainer::reform). Calls
// come from one thread.
class ElasticMembership {
 public:
  enum class Change : std::uint8_t {
    none,
    after_epoch,  // to be announced to all ranks in the last step of the epoch, by step_flag::membership
    after_step,   // to be announced in the next step
    broken        // the generation cannot continue; it ends at once
  };

  ElasticMembership() = default;
  ElasticMembership(const ElasticMembership&) = delete;
  ElasticMembership& operator=(const ElasticMembership&) = delete;

  // Returns whether a generation's processes end with it, and new processes continue from a checkpoint. In that case
  // the training code saves and ends when the members are to change, and next_generation() is not called.
  [[nodiscard]] virtual bool restarts_processes() const { return false; }
  // For workers that do not wait for each other, and that enter the next generation separately: returns the source of
  // their steps. In that case next_generation() returns at once, running operations continue, and no process takes the
  // state of another process.
  [[nodiscard]] virtual StepAssignments* step_assignments() { return nullptr; }
  // Returns whether this process has not been in any generation yet: it has no state for other members, and takes
  // theirs.
  [[nodiscard]] virtual bool joining() const = 0;
  // Returns whether this process has no state that other members need, because the state of its first generation has
  // not arrived yet.
  [[nodiscard]] virtual bool lacks_state() const { return joining(); }
  // For a process that was started to join a job. epoch_of_joining(): the job's epoch at that time. most_members(): the
  // largest number of workers so far, including this one.
  [[nodiscard]] virtual std::int64_t epoch_of_joining() const { return 0; }
  [[nodiscard]] virtual int most_members() const { return 1; }
  // Returns memory for a second copy of the state, which processes of this host may read during the transfer. It is
  // valid as long as this object. Returns an empty span if there is no such memory.
  [[nodiscard]] virtual std::span<std::byte> state_memory(std::size_t /*bytes*/) { return {}; }
  // Returns whether the last synchronisation brought any state from another member.
  [[nodiscard]] virtual bool took_state() const { return true; }
  // Returns the known change of the current generation.
  [[nodiscard]] virtual Change change() = 0;
  // Leaves the current generation, or enters the first one, and waits until the group of the next one is formed.
  // Returns false if this process is released, as it or its launcher has requested. Throws CommunicationError if the
  // arbiter has removed it from the job.
  [[nodiscard]] virtual bool next_generation(const LeaveReport& how) = 0;
  // Returns whether the other members of the current generation take this process's state.
  [[nodiscard]] virtual bool has_authority() const = 0;
  // Asks to leave when the next generation begins, after a step.
  virtual void ask_to_leave() = 0;
  // Returns whether the whole job is to stop.
  [[nodiscard]] virtual bool stop_requested() const = 0;
  // Returns false after the arbiter may have removed this process: it must then not write files that others read.
  [[nodiscard]] virtual bool may_write() const = 0;
  // Blocks until this process may write. Returns false if the arbiter does not answer within the rank time-out: then
  // this process must end. Throws CommunicationError if the arbiter has removed it from the job.
  [[nodiscard]] virtual bool await_lease() { return may_write(); }
  // Rank 0 calls it at the start of an epoch. The launcher passes the epoch to processes that it starts later.
  virtual void epoch_begins(std::int64_t epoch) = 0;

 protected:
  ~ElasticMembership() = default;  // never deleted through this type
};

// Throws the error of a process for which await_lease() has returned false.
[[noreturn]] inline void fail_without_lease() {
  fail<CommunicationError>(
      "this process", "an answer of the job's arbiter within the time-out", "no answer",
      "check the network of this host and whether the launcher runs; --rank-timeout sets the time-out");
}

}  // namespace tutti
