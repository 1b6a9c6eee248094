// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::launch {

struct Link;

// The members of an elastic job, as Elastic uses them. If processes have a channel, JobControl implements this class
// with the arbiter. Otherwise MpiGenerations does, with one mpirun after the other. Workers are identified by name.
class JobMembers {
 public:
  JobMembers() = default;
  JobMembers(const JobMembers&) = delete;
  JobMembers& operator=(const JobMembers&) = delete;
  virtual ~JobMembers() = default;

  // Returns whether the worker is a member or waits to join. If so, it must leave as members do. If not, the launcher
  // may end it.
  [[nodiscard]] virtual bool opened(const std::string& worker) const = 0;
  [[nodiscard]] virtual bool can_spare(const std::string& worker) const = 0;
  virtual void ask_to_leave(const std::string& worker) = 0;
  // Call when an initial worker has ended before it became a member.
  virtual void never_comes(int /*worker*/) {}
  virtual void stop_all() = 0;
  [[nodiscard]] virtual bool too_few() const = 0;
  // Returns whether workers have finished their work, so that the job stops.
  [[nodiscard]] virtual bool finished() const = 0;
  [[nodiscard]] virtual bool stopping() const = 0;
  [[nodiscard]] virtual std::uint64_t epoch() const = 0;
  // Returns the workers of the current generation.
  [[nodiscard]] virtual std::vector<std::string> standing() const = 0;
  // Returns the agent that serves all workers of a host. Returns null if it does not exist yet, or if each new worker
  // gets its own agent.
  [[nodiscard]] virtual Link* agent_of(const std::string& /*host*/) { return nullptr; }
  // Gives the agent one more worker to serve.
  virtual void add(Link& /*agent*/, const std::string& /*worker*/, int /*number*/) {}
};

}  // namespace tutti::launch
