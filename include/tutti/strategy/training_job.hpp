// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>

#include <tutti/cluster/job_facts.hpp>
#include <tutti/strategy/any_strategy.hpp>

namespace tutti {

class Backend;        // engine/backend.hpp
class ImageDecoders;  // data/image_decoder.hpp
struct LaunchEnvironment;
namespace ps {
class WeightStore;
}

struct JoinOptions {  // the facts of the net that TrainingJob::join() needs
  // Must be the same in all processes: a process with a different fact is refused, with the name of the fact.
  JobFacts facts{};
  // Makes the weights in a server of an asynchronous strategy.
  std::function<std::shared_ptr<ps::WeightStore>(const LaunchEnvironment&)> make_weights{};
};

// Provides a backend, a strategy and image decoders for fit(job, net, ...). Job in backends/make/job.hpp chooses all
// three automatically; derive from this class to use another backend or strategy.
class TrainingJob {
 public:
  TrainingJob() = default;
  virtual ~TrainingJob() = default;
  TrainingJob(const TrainingJob&) = delete;
  TrainingJob& operator=(const TrainingJob&) = delete;

  [[nodiscard]] virtual Backend& backend() = 0;
  // Throws UsageError if the program was linked with no decoder.
  [[nodiscard]] virtual const ImageDecoders& decoders() = 0;
  // Connects to the other processes; later calls return the same strategy. Does not return in a server or scheduler:
  // there it serves until the workers have ended, and ends the program. The strategy outlives the trainer that uses it,
  // and the backend outlives the strategy.
  [[nodiscard]] virtual AnyStrategy& join(const JoinOptions& o) = 0;
  // Returns whether the job has servers, which print their own errors.
  [[nodiscard]] virtual bool has_servers() const { return false; }
};

}  // namespace tutti
