// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <tutti/backends/make/backend.hpp>
#include <tutti/backends/make/separate.hpp>
#include <tutti/backends/make/strategy.hpp>
#include <tutti/strategy/training_job.hpp>

namespace tutti {

struct JobOptions {               // options of a Job; the default chooses everything automatically
  std::string backend = "auto";   // name for make_backend(); "auto": the value of TUTTI_BACKEND, if set
  std::string strategy = "auto";  // name for make_strategy(); "auto": the value of TUTTI_STRATEGY, if set
  BackendOptions of_backend{};    // if threads is 0: the value of TUTTI_THREADS, if set
  StrategyOptions of_strategy{};
};

// A backend, and the processes that train together: those that tutti-launch, mpirun or srun started, or this process
// alone. The object must outlive everything that uses it. Construct it first in main(), and pass it to fit().
//   Job job;
//   fit(job, net, {.train = train});
// A process that was started as a server serves the other processes in fit(), and ends there. If tutti-launch only
// queries how to start the program, the constructor answers the query and ends the program.
class Job final : public TrainingJob {
 public:
  Job() : Job(JobOptions{}) {}
  // Throws UsageError if the backend or the strategy was not linked.
  TUTTI_CORE_FUNCTION explicit Job(JobOptions options);
  TUTTI_CORE_FUNCTION ~Job() override;

  [[nodiscard]] TUTTI_CORE_FUNCTION Backend& backend() override;
  [[nodiscard]] TUTTI_CORE_FUNCTION const ImageDecoders& decoders() override;
  [[nodiscard]] TUTTI_CORE_FUNCTION AnyStrategy& join(const JoinOptions& o) override;
  [[nodiscard]] bool has_servers() const override { return start_.servers > 0; }

  // Joins the other processes, unless fit() has done so. rank() is negative in a process that will join a running job.
  [[nodiscard]] AnyStrategy& strategy() { return join({}); }
  [[nodiscard]] int rank() { return strategy().rank(); }
  [[nodiscard]] int size() { return strategy().size(); }

 private:
  JobOptions options_;
  LaunchEnvironment start_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ImageDecoders> decoders_;
  std::optional<AnyStrategy> strategy_;  // declared after the backend, which must outlive it
};

}  // namespace tutti

#if TUTTI_MAKE_DEFINITIONS
#include <tutti/backends/make/job_definitions.hpp>
#endif
