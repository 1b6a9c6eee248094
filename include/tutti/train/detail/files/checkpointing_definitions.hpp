// SPDX-License-Identifier: MIT
#pragma once

// Definitions of checkpointing.hpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/io/checkpoint/checkpoint.hpp>
#include <tutti/train/checkpointing.hpp>
#include <tutti/train/detail/files/run_card.hpp>
#include <tutti/train/run_with_heartbeat.hpp>
#include <tutti/version.hpp>

namespace tutti {

struct Checkpoints::Parts {
  io::CheckpointStore store;
  io::Json options;
  io::SafetensorsMetadata metadata;
  std::optional<double> best{};
  std::int64_t generation = 0;
};

namespace detail {

// In PyTorch a batch norm has a third buffer next to its two statistics: the number of batches that it has seen.
// Without this buffer strict loaders fail, or the count starts at zero. In tutti all batch norms of a net have seen the
// same number. Returns the name of this buffer if `name` is that of the first statistic.
inline std::optional<std::string> batches_seen(const std::string& name) {
  constexpr std::string_view statistic = "running_mean";
  if (!name.ends_with(statistic)) return std::nullopt;
  return name.substr(0, name.size() - statistic.size()) + "num_batches_tracked";
}

inline std::vector<io::TensorRecord> records(const std::vector<StateSpan>& spans, const std::int64_t& batches) {
  std::vector<io::TensorRecord> list;
  list.reserve(spans.size());
  for (const auto& s : spans) {
    list.push_back({s.name, s.dtype, s.shape, s.bytes});
    if (auto count = batches_seen(s.name))
      list.push_back(io::make_record<std::int64_t>(std::move(*count), {}, std::span(&batches, 1)));
  }
  return list;
}

// The state of IntegerSums. A run that begins to use logical ranks, or no longer uses them, has it in one of the two.
inline bool is_optional(std::string_view name) { return name == "integer_sums.levels"; }

// Requires each tensor of the run with its shape. Allows no other tensors except numbers of batches and optional ones.
inline void fill_tensors(const io::LoadedCheckpoint& loaded, const std::string& file,
                         std::span<const io::TensorRecord> records, const std::vector<StateSpan>& spans) {
  const std::string where = "checkpoint " + (loaded.path() / file).string();
  auto used = static_cast<std::size_t>(
      std::count_if(records.begin(), records.end(), [](const io::TensorRecord& r) { return is_optional(r.name); }));
  for (const StateSpan& s : spans) {
    const io::TensorRecord* found = nullptr;
    for (const auto& r : records)
      if (r.name == s.name) found = &r;
    const std::string wanted = "a tensor " + s.name + " " + std::string(name_of(s.dtype)) + " " + to_string(s.shape);
    constexpr const char* hint = "resume with the model and optimizer options of the first start";
    if (found == nullptr && is_optional(s.name)) continue;
    if (found == nullptr) fail<DataError>(where, wanted, "none", hint);
    if (found->shape != s.shape || found->dtype != s.dtype || found->bytes.size() != s.bytes.size())
      fail<DataError>(where, wanted, {name_of(found->dtype), " ", to_string(found->shape)}, hint);
    std::memcpy(s.bytes.data(), found->bytes.data(), s.bytes.size());
    used += is_optional(s.name) ? 0 : 1;
    const auto count = batches_seen(s.name);
    for (const auto& r : records) {
      if (r.name != count) continue;
      if (r.dtype != DType::i64 || r.shape.rank() != 0)
        fail<DataError>(where, {"a tensor ", r.name, " i64 []"}, {name_of(r.dtype), " ", to_string(r.shape)});
      ++used;
    }
  }
  if (used != records.size())
    fail<DataError>(where, {used, " tensors"}, records.size(),
                    "resume with the model and optimizer options of the first start");
}

// Returns everything that the bits of a run with logical ranks depend on, in addition to its options.
inline io::Json bits_of(Trainer& trainer) {
  io::Json bits =
      io::Json::object({{"tutti", version}, {"precision", std::string(name_of(trainer.options().compute))}});
  for (const BitFact& b : trainer.executor().backend().bits_depend_on()) bits.set(b.name, b.value);
  return bits;
}

// Requires a checkpoint that the trainer can continue with the same bits, unless its options allow others.
inline void require_same_bits(const io::LoadedCheckpoint& loaded, Trainer& trainer) {
  const TrainerOptions& o = trainer.options();
  const std::string where = "checkpoint " + loaded.path().string();
  const io::Json* const ranks = loaded.counters().find("logical_ranks");
  const io::Json* const bits = loaded.counters().find("bits");
  const std::int64_t theirs = ranks != nullptr ? ranks->as_integer(where + " logical_ranks") : 0;
  if (o.allow_other_bits || (theirs == 0 && o.logical_ranks == 0)) return;
  constexpr const char* hint =
      "continue with the same options, build and kind of machine, or accept other bits: --allow-other-bits";
  const auto in_words = [](std::int64_t n) {
    return n == 0 ? "no logical ranks" : std::to_string(n) + " logical ranks";
  };
  if (theirs != o.logical_ranks) fail<UsageError>(where, in_words(theirs), in_words(o.logical_ranks), hint);
  const io::Json mine = bits_of(trainer);
  if (bits == nullptr) fail<DataError>(where, "the facts 'bits' of a run with logical ranks", "none");
  for (const auto& [name, value] : mine.as_object(where)) {
    const io::Json* const then = bits->find(name);
    const std::string was = then != nullptr ? then->as_string(where + " bits") : "nothing";
    if (was != value.as_string()) fail<UsageError>(where, {name, " ", was}, value.as_string(), hint);
  }
}

}  // namespace detail

TUTTI_CORE_FUNCTION Checkpoints::Checkpoints(const std::string& run_dir, int keep)
    : Checkpoints(run_dir, keep, io::Json::object()) {}
TUTTI_CORE_FUNCTION Checkpoints::Checkpoints(const std::string& run_dir, int keep, io::Json options,
                                             std::vector<std::pair<std::string, std::string>> metadata)
    : parts_(new Parts{io::CheckpointStore(run_dir, keep), std::move(options), std::move(metadata)}) {}
TUTTI_CORE_FUNCTION Checkpoints::~Checkpoints() = default;

TUTTI_CORE_FUNCTION bool Checkpoints::resume(Trainer& trainer, const Warn& warn) {
  std::optional<io::LoadedCheckpoint> loaded;
  std::vector<std::string> complaints;
  run_with_heartbeat(trainer.strategy(), "reading a checkpoint", [&] {
    if (trainer.strategy().rank() == 0) loaded = parts_->store.load_newest_valid(&complaints);
  });
  for (const auto& c : complaints)
    if (warn)
      warn(c);
    else
      std::fprintf(stderr, "warning: %s\n", c.c_str());
  if (loaded) resume_from(trainer, *loaded);
  if (trainer.strategy().size() > 1 || trainer.strategy().owns_weights()) trainer.synchronise();
  return trainer.counters().step > 0;
}

TUTTI_CORE_FUNCTION std::string Checkpoints::save(Trainer& trainer) {
  io::CheckpointData data;
  const Counters& c = trainer.committed().counters();
  data.step = c.step;
  data.generation = c.generation;
  data.counters = io::Json::object({{"step", c.step},
                                    {"epoch", c.epoch},
                                    {"consumed", c.consumed},
                                    {"samples", c.samples},
                                    {"batches", c.batches},
                                    {"scale_exponent", c.scale_exponent},
                                    {"scale_steps", c.scale_steps}});
  if (c.generation > 0) data.counters.set("generation", c.generation);
  if (c.rate_batch > 0)
    data.counters.set("rate_batch", c.rate_batch)
        .set("rate_from", c.rate_from)
        .set("rate_to", c.rate_to)
        .set("rate_step", c.rate_step);
  if (c.epoch_rows > 0)
    data.counters.set("epoch_loss", c.epoch_loss)
        .set("epoch_top1_hits", c.epoch_top1_hits)
        .set("epoch_topk_hits", c.epoch_topk_hits)
        .set("epoch_rows", c.epoch_rows)
        .set("epoch_skipped", c.epoch_skipped);
  if (const int ranks = trainer.options().logical_ranks; ranks > 0)
    data.counters.set("logical_ranks", ranks).set("bits", detail::bits_of(trainer));
  if (c.report_rows > 0)
    data.counters.set("report_loss", c.report_loss)
        .set("report_top1_hits", c.report_top1_hits)
        .set("report_rows", c.report_rows);
  if (c.evaluated_step > 0)
    data.counters.set("best_value", c.best_value)
        .set("evaluations_since_best", c.evaluations_since_best)
        .set("evaluated_step", c.evaluated_step);
  data.options = parts_->options;
  data.metadata = detail::with_card(parts_->metadata, trainer);
  data.model = detail::records(trainer.committed_tensors(false), c.batches);
  data.optimizer = detail::records(trainer.committed_tensors(true), c.batches);
  return parts_->store.save(data).string();
}

TUTTI_CORE_FUNCTION bool Checkpoints::is_best(double metric) const { return !parts_->best || metric > *parts_->best; }
TUTTI_CORE_FUNCTION bool Checkpoints::mark_if_best(std::int64_t step, double metric, const Warn& warn) {
  if (!is_best(metric)) return false;
  parts_->best = metric;
  try {
    parts_->store.mark_best(step, metric, parts_->generation);
  } catch (const CommunicationError&) {
    throw;
  } catch (const Error& e) {
    warn(e.what());
  }
  return true;
}

TUTTI_CORE_FUNCTION std::optional<std::int64_t> Checkpoints::best_step() const {
  const auto marked = parts_->store.best();
  return marked ? std::optional(marked->step) : std::nullopt;
}
TUTTI_CORE_FUNCTION void Checkpoints::begin_generation(std::int64_t generation, std::int64_t step) {
  parts_->generation = generation;
  if (generation > 0)
    parts_->store.begin_generation(generation, step);
  else
    parts_->store.forget_generations();
}
TUTTI_CORE_FUNCTION std::int64_t Checkpoints::latest_generation() const { return parts_->store.latest_generation(); }
TUTTI_CORE_FUNCTION void Checkpoints::set_require_lease(std::function<void()> f) {
  parts_->store.set_require_lease(std::move(f));
}

TUTTI_CORE_FUNCTION void Checkpoints::take_over() { parts_->best = parts_->store.best_metric(); }

TUTTI_CORE_FUNCTION bool Checkpoints::resume_latest(Trainer& trainer, const Warn& warn) {
  std::vector<std::string> complaints;
  const auto loaded = parts_->store.load_newest_valid(&complaints);
  for (const auto& c : complaints) warn(c);
  if (!loaded) return false;
  resume_from(trainer, *loaded);
  return true;
}
TUTTI_CORE_FUNCTION void Checkpoints::resume_best(Trainer& trainer) {
  const auto loaded = parts_->store.load_best();
  if (!loaded)
    fail<DataError>("--resume=best", "a checkpoint marked as best", "no such checkpoint",
                    "use --resume, or train with evaluation");
  resume_from(trainer, *loaded);
}
TUTTI_CORE_FUNCTION void Checkpoints::resume_from(Trainer& trainer, const std::string& path) {
  resume_from(trainer, io::load_checkpoint(path));
}
TUTTI_CORE_FUNCTION void Checkpoints::begin_restore(Trainer& trainer, const io::LoadedCheckpoint& loaded) {
  const auto number = [&](const char* key) {
    const std::string where = "checkpoint " + loaded.path().string() + " counters";
    return loaded.counters().at(key, where).as_integer(where);
  };
  Counters c{number("step"), number("epoch"), number("consumed"), number("samples")};
  // Earlier versions of checkpoints do not store it.
  if (loaded.counters().find("scale_exponent") != nullptr) {
    c.scale_exponent = std::clamp<std::int64_t>(number("scale_exponent"), 0, 126);
    c.scale_steps = number("scale_steps");
  }
  if (loaded.counters().find("generation") != nullptr) c.generation = std::max<std::int64_t>(number("generation"), 0);
  const auto real = [&](const char* key, double most = 1e9) {
    const std::string where = "checkpoint " + loaded.path().string() + " counters " + key;
    const double v = loaded.counters().at(key, where).as_double(where);
    if (!(v >= 0 && v <= most)) fail<DataError>(where, {"a number of 0 to ", most}, v);
    return v;
  };
  if (loaded.counters().find("rate_batch") != nullptr) {
    c.rate_batch = std::max<std::int64_t>(number("rate_batch"), 0);
    c.rate_from = real("rate_from");
    c.rate_to = real("rate_to");
    c.rate_step = number("rate_step");
  }
  if (loaded.counters().find("epoch_rows") != nullptr) {
    c.epoch_loss = real("epoch_loss", 1e300);
    c.epoch_top1_hits = real("epoch_top1_hits", 1e15);
    c.epoch_topk_hits = real("epoch_topk_hits", 1e15);
    c.epoch_rows = real("epoch_rows", 1e15);
    c.epoch_skipped = real("epoch_skipped", 1e15);
  }
  if (loaded.counters().find("report_rows") != nullptr) {
    c.report_loss = real("report_loss", 1e300);
    c.report_top1_hits = real("report_top1_hits", 1e15);
    c.report_rows = real("report_rows", 1e15);
  }
  if (loaded.counters().find("evaluated_step") != nullptr) {
    const std::string where = "checkpoint " + loaded.path().string() + " counters";
    c.best_value = loaded.counters().at("best_value", where).as_double(where);
    c.evaluations_since_best = std::max<std::int64_t>(number("evaluations_since_best"), 0);
    c.evaluated_step = std::max<std::int64_t>(number("evaluated_step"), 0);
  }
  c.batches = loaded.counters().find("batches") != nullptr ? number("batches") : c.step;
  trainer.prepare_restore(c);
}
TUTTI_CORE_FUNCTION void Checkpoints::resume_from(Trainer& trainer, const io::LoadedCheckpoint& loaded) {
  detail::require_same_bits(loaded, trainer);
  begin_restore(trainer, loaded);
  detail::fill_tensors(loaded, "model.safetensors", loaded.model(), trainer.committed_tensors(false));
  detail::fill_tensors(loaded, "optimizer.safetensors", loaded.optimizer(), trainer.committed_tensors(true));
  trainer.restore();
  if (const auto metric = parts_->store.best_metric()) parts_->best = metric;
}
TUTTI_CORE_FUNCTION void Checkpoints::load_weights(Trainer& trainer, const io::LoadedCheckpoint& loaded) {
  begin_restore(trainer, loaded);
  detail::fill_tensors(loaded, "model.safetensors", loaded.model(), trainer.committed_tensors(false));
  std::vector<StateSpan> averages = trainer.committed_tensors(true);
  std::erase_if(averages, [](const StateSpan& s) { return !is_average(s.name); });
  std::vector<io::TensorRecord> saved;
  if (!averages.empty())
    std::copy_if(loaded.optimizer().begin(), loaded.optimizer().end(), std::back_inserter(saved),
                 [](const io::TensorRecord& t) { return is_average(t.name); });
  detail::fill_tensors(loaded, "optimizer.safetensors", saved, averages);
  trainer.restore();
}

}  // namespace tutti
