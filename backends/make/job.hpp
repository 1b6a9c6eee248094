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

struct JobOptions {               // options of a Job; by default it chooses everything automatically
  std::string backend = "auto";   // as make_backend() has it; "auto": TUTTI_BACKEND of the environment, if set
  std::string strategy = "auto";  // as make_strategy() has it; "auto": TUTTI_STRATEGY of the environment, if set
  BackendOptions of_backend{};    // threads 0: TUTTI_THREADS of the environment, if set
  StrategyOptions of_strategy{};
};

// A backend and the processes that train together, as tutti-launch, mpirun or srun have started them, or this process
// alone. Everything lives as long as this does: make it first in main() and give it to fit().
//   Job job;
//   fit(job, net, {.train = train});
// A process that was started as a server serves the others in fit(), and ends there. If tutti-launch only asks how to
// start the program, the constructor answers and ends it.
class Job final : public TrainingJob {
 public:
  Job() : Job(JobOptions{}) {}
  // UsageError for a backend or a strategy that was not linked.
  TUTTI_CORE_FUNCTION explicit Job(JobOptions options);
  TUTTI_CORE_FUNCTION ~Job() override;

  [[nodiscard]] TUTTI_CORE_FUNCTION Backend& backend() override;
  [[nodiscard]] TUTTI_CORE_FUNCTION const ImageDecoders& decoders() override;
  [[nodiscard]] TUTTI_CORE_FUNCTION AnyStrategy& join(const JoinOptions& o) override;
  [[nodiscard]] bool has_servers() const override { return start_.servers > 0; }

  // Meets the others unless fit() has done so. rank() is negative in a process that is about to join a running job.
  [[nodiscard]] AnyStrategy& strategy() { return join({}); }
  [[nodiscard]] int rank() { return strategy().rank(); }
  [[nodiscard]] int size() { return strategy().size(); }

 private:
  JobOptions options_;
  LaunchEnvironment start_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ImageDecoders> decoders_;
  std::optional<AnyStrategy> strategy_;  // after the backend, which outlives it
};

}  // namespace tutti

#if TUTTI_MAKE_DEFINITIONS
#include <tutti/backends/make/job_definitions.hpp>
#endif
