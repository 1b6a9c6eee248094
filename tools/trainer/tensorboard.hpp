// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <tutti/data/batch_source.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/sampler.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/train/report.hpp>
#include <tutti/train/run_log.hpp>
#include <tutti/train/trainer.hpp>

// The data, in addition to curves, that training programs write to the event files.
namespace tutti::trainer {

class TensorboardRun : public TensorboardLog {
 public:
  // options: the run's options, by their names on the command line. at: points to this object while it exists.
  TensorboardRun(const io::Path& folder, const std::function<void(const std::string&)>& complain, bool summaries,
                 const io::Json& options, TensorboardRun*& at);

  ~TensorboardRun() override {
    if (at_ == this) at_ = nullptr;
  }
  TensorboardRun(const TensorboardRun&) = delete;
  TensorboardRun& operator=(const TensorboardRun&) = delete;

  // Writes up to eight images of the batch at position p, as the net gets them, but not normalised.
  void samples(const AnyDataset& d, const BatchSource& source, Position p, std::uint64_t seed, std::int64_t step);

  // Writes histograms of each parameter, and of its gradient in the last step. Waits for running steps.
  void histograms(Trainer& trainer, std::int64_t step);

  void ended(const RunEnd& e) override;

 private:
  TensorboardRun*& at_;
};

}  // namespace tutti::trainer
