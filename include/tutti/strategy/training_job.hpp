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

struct JoinOptions {  // what TrainingJob::join() is told of the net that is to be trained
  // Must be the same in all processes: a process with others is refused, by the name of the fact.
  JobFacts facts{};
  // Makes the weights in a server of an asynchronous strategy.
  std::function<std::shared_ptr<ps::WeightStore>(const LaunchEnvironment&)> make_weights{};
};

// What fit(job, net, ...) trains with: a backend, the other processes, and what decodes images. Job in
// backends/make/job.hpp chooses all three by itself; derive from this for a backend or a strategy of your own.
class TrainingJob {
 public:
  TrainingJob() = default;
  virtual ~TrainingJob() = default;
  TrainingJob(const TrainingJob&) = delete;
  TrainingJob& operator=(const TrainingJob&) = delete;

  [[nodiscard]] virtual Backend& backend() = 0;
  // UsageError if the program was linked with no decoder.
  [[nodiscard]] virtual const ImageDecoders& decoders() = 0;
  // Meets the other processes, once; later calls return the same strategy. Does not return in a process that serves
  // the others and trains nothing: it serves until they are done and ends the program. The strategy outlives what
  // trains with it, and the backend outlives the strategy.
  [[nodiscard]] virtual AnyStrategy& join(const JoinOptions& o) = 0;
  // Whether servers take part: their errors are shown where they happen.
  [[nodiscard]] virtual bool has_servers() const { return false; }
};

}  // namespace tutti
