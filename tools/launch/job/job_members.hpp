// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::launch {

struct Link;

// Who is in a job whose workers come and go, for Elastic, which knows who is to be: the arbiter where processes have a
// channel (JobControl), one mpirun after the other where they have none (MpiGenerations). Workers go by their names.
class JobMembers {
 public:
  JobMembers() = default;
  JobMembers(const JobMembers&) = delete;
  JobMembers& operator=(const JobMembers&) = delete;
  virtual ~JobMembers() = default;

  // Whether it is in the job, or waits to be let in: then it leaves as the members do, else it may be ended.
  [[nodiscard]] virtual bool opened(const std::string& worker) const = 0;
  [[nodiscard]] virtual bool can_spare(const std::string& worker) const = 0;
  virtual void ask_to_leave(const std::string& worker) = 0;
  // A worker that the job was to begin with has ended before it was in it.
  virtual void never_comes(int /*worker*/) {}
  virtual void stop_all() = 0;
  [[nodiscard]] virtual bool too_few() const = 0;
  // Workers have ended their work; the job is to stop.
  [[nodiscard]] virtual bool finished() const = 0;
  [[nodiscard]] virtual bool stopping() const = 0;
  [[nodiscard]] virtual std::uint64_t epoch() const = 0;
  // Of the generation that stands.
  [[nodiscard]] virtual std::vector<std::string> standing() const = 0;
  // The agent of a host that serves all workers there, once there is one; null: each that comes has its own.
  [[nodiscard]] virtual Link* agent_of(const std::string& /*host*/) { return nullptr; }
  // Has it serve one more, and ends what it runs of one.
  virtual void add(Link& /*agent*/, const std::string& /*worker*/, int /*number*/) {}
};

}  // namespace tutti::launch
