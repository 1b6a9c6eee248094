// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/io/checkpoint.hpp>
#include <tutti/train/trainer.hpp>

namespace tutti {

// What a checkpoint is made of, put together: the trainer's committed tensors by name, its counters, the run's options.
// It depends neither on the number of ranks nor on the backend.
class Checkpoints {
 public:
  Checkpoints(const std::filesystem::path& run_dir, int keep, io::Json options)
      : store_(run_dir, keep), options_(std::move(options)) {}

  // Writes the committed state; returns the checkpoint's folder. Throws without touching earlier checkpoints.
  template <class Trainer>
  std::string save(Trainer& trainer) {
    io::CheckpointData data;
    const Counters& c = trainer.committed().counters();
    data.step = c.step;
    data.counters = io::Json::object({{"step", c.step},
                                      {"epoch", c.epoch},
                                      {"consumed", c.consumed},
                                      {"samples", c.samples},
                                      {"batches", c.batches},
                                      {"scale_exponent", c.scale_exponent},
                                      {"scale_steps", c.scale_steps}});
    data.options = options_;
    data.model = records(trainer.committed_tensors(false), c.batches);
    data.optimizer = records(trainer.committed_tensors(true), c.batches);
    return store_.save(data).string();
  }

  // Remembers the checkpoint of `step` as the best if its metric beats all before it.
  bool mark_if_best(std::int64_t step, double metric, const std::function<void(const std::string&)>& warn) {
    if (best_ && *best_ >= metric) return false;
    best_ = metric;
    try {
      store_.mark_best(step, metric);
    } catch (const Error& e) {
      warn(e.what());
    }
    return true;
  }

  // Puts the newest valid checkpoint into the trainer; false where there is none. Each bad one is named to `warn`.
  template <class Trainer>
  bool resume_latest(Trainer& trainer, const std::function<void(const std::string&)>& warn) {
    std::vector<std::string> complaints;
    const auto loaded = store_.load_newest_valid(&complaints);
    for (const auto& c : complaints) warn(c);
    if (!loaded) return false;
    restore(trainer, *loaded);
    return true;
  }
  template <class Trainer>
  void resume_best(Trainer& trainer) {
    const auto loaded = store_.load_best();
    if (!loaded)
      fail<DataError>("--resume=best", "a checkpoint marked as best", "none", "use --resume, or train with evaluation");
    restore(trainer, *loaded);
  }
  template <class Trainer>
  void resume_from(Trainer& trainer, const std::filesystem::path& path) {
    restore(trainer, io::load_checkpoint(path));
  }
  template <class Trainer>
  void resume_from(Trainer& trainer, const io::LoadedCheckpoint& loaded) {
    restore(trainer, loaded);
  }

 private:
  // A batch norm of PyTorch's has a third buffer beside its two statistics, the number of batches it has seen. Strict
  // loaders miss it, or begin to count at zero. Here all of a net's have seen as many. Its name, where `name` is that
  // of the first statistic.
  static std::optional<std::string> batches_seen(const std::string& name) {
    constexpr std::string_view statistic = "running_mean";
    if (!name.ends_with(statistic)) return std::nullopt;
    return name.substr(0, name.size() - statistic.size()) + "num_batches_tracked";
  }

  static std::vector<io::TensorRecord> records(const std::vector<StateSpan>& spans, const std::int64_t& batches) {
    std::vector<io::TensorRecord> list;
    list.reserve(spans.size());
    for (const auto& s : spans) {
      list.push_back({s.name, s.dtype, s.shape, s.bytes});
      if (auto count = batches_seen(s.name))
        list.push_back({std::move(*count), DType::i64, Shape{}, std::as_bytes(std::span(&batches, 1))});
    }
    return list;
  }

  template <class Trainer>
  void restore(Trainer& trainer, const io::LoadedCheckpoint& loaded) {
    const auto number = [&](const char* key) {
      const std::string where = "checkpoint " + loaded.path().string() + " counters";
      return loaded.counters().at(key, where).as_integer(where);
    };
    Counters c{number("step"), number("epoch"), number("consumed"), number("samples")};
    // Earlier checkpoints do not tell.
    if (loaded.counters().find("scale_exponent") != nullptr) {
      c.scale_exponent = std::clamp<std::int64_t>(number("scale_exponent"), 0, 126);
      c.scale_steps = number("scale_steps");
    }
    c.batches = loaded.counters().find("batches") != nullptr ? number("batches") : c.step;
    trainer.prepare_restore(c);
    fill(loaded, "model.safetensors", loaded.model(), trainer.committed_tensors(false));
    fill(loaded, "optimizer.safetensors", loaded.optimizer(), trainer.committed_tensors(true));
    trainer.restore();
    if (const auto metric = store_.best_metric()) best_ = metric;
  }

  // Every tensor of the run must be there with its shape, and nothing else but the numbers of batches.
  static void fill(const io::LoadedCheckpoint& loaded, const std::string& file,
                   std::span<const io::TensorRecord> records, const std::vector<StateSpan>& spans) {
    const std::string where = "checkpoint " + (loaded.path() / file).string();
    std::size_t used = 0;
    for (const StateSpan& s : spans) {
      const io::TensorRecord* found = nullptr;
      for (const auto& r : records)
        if (r.name == s.name) found = &r;
      const std::string wanted = "a tensor " + s.name + " " + std::string(name_of(s.dtype)) + " " + to_string(s.shape);
      constexpr const char* hint = "resume with the model and optimizer options the run was started with";
      if (found == nullptr) fail<DataError>(where, wanted, "none", hint);
      if (found->shape != s.shape || found->dtype != s.dtype || found->bytes.size() != s.bytes.size())
        fail<DataError>(where, wanted, std::string(name_of(found->dtype)) + " " + to_string(found->shape), hint);
      std::memcpy(s.bytes.data(), found->bytes.data(), s.bytes.size());
      ++used;
      const auto count = batches_seen(s.name);
      for (const auto& r : records) {
        if (r.name != count) continue;
        if (r.dtype != DType::i64 || r.shape.rank() != 0)
          fail<DataError>(where, "a tensor " + r.name + " i64 []",
                          std::string(name_of(r.dtype)) + " " + to_string(r.shape));
        ++used;
      }
    }
    if (used != records.size())
      fail<DataError>(where, std::to_string(used) + " tensors", std::to_string(records.size()),
                      "resume with the model and optimizer options the run was started with");
  }

  io::CheckpointStore store_;
  io::Json options_;
  std::optional<double> best_;
};

}  // namespace tutti
