// SPDX-License-Identifier: MIT
#include "tools/trainer/start.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include <tutti/core/free_memory.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/graph/summary.hpp>
#include <tutti/models/imagenet_net.hpp>
#include <tutti/train/load_weights.hpp>
#include <tutti/version.hpp>

#include "tools/trainer/image_sizes.hpp"
#include "tools/trainer/recipe.hpp"

namespace tutti::trainer {

std::string versions(const Backend& backend, const RunOptions& o, int world) {
  const std::string logical =
      o.logical_ranks > 0 ? ", " + std::to_string(o.logical_ranks) + " logical ranks" : std::string();
  std::string precision = o.precision;
  // Says which products use TF32, because users compare with PyTorch: its convolutions use TF32 by default.
  if (o.backend == "cuda" && precision == "f32")
    for (const BitFact& f : backend.bits_depend_on())
      if (f.name == "TF32")
        precision += f.value == "yes" ? " by TF32 (--tf32 0: exact)"
                     : f.value == "no"
                         ? ", exact (--precision bf16 or f16 is several times as fast)"
                         : ", convolutions by TF32, as in PyTorch (--tf32 0: exact; --precision bf16 is faster)";
  return std::string("tutti ") + version + ": backend " + backend.name() + " (" + backend.description() + "), " +
         precision + ", " + std::to_string(backend.threads()) + " threads, strategy " + o.strategy +
         (world > 1 ? ", " + std::to_string(world) + " ranks" : "") + logical;
}

std::optional<std::string> memory_shortage(const MemoryEstimate& m, const RunOptions& o, int ranks_here) {
  const auto need = static_cast<std::int64_t>(m.total()) - resident_memory(), there = available_memory() / ranks_here;
  if (need <= there) return std::nullopt;
  const auto each = static_cast<std::int64_t>(m.activations + m.batches) / std::max<std::int64_t>(o.batch_size, 1);
  const std::int64_t fits =
      std::max<std::int64_t>(o.batch_size - (need - there) / std::max<std::int64_t>(each, 1) - 1, 0);
  return error_message("memory", format_bytes(static_cast<double>(m.total())) + " for this rank",
                       format_bytes(static_cast<double>(there + resident_memory())),
                       fits > 0 ? "--batch-size " + std::to_string(fits) + " fits" : "no batch size fits");
}

MemoryEstimate memory_of(Trainer& trainer, const RunOptions& o, const Schema& seen) {
  const std::int64_t rows = o.batch_size * o.accumulate, evaluated = *o.evaluation_batch;
  // With shares of rows, a process may have more rows than fit into one micro-batch.
  const std::int64_t of_step = o.shares == "rows" ? std::max(rows, micro_batch_of(o)) + 1 : rows;
  MemoryEstimate m = trainer.memory(of_step, evaluated);
  // The loader of a process holds the rows of all its logical ranks.
  const std::int64_t world = std::max(trainer.strategy().size(), 1);
  // With measured shares it may get those of processes that are much slower; each of these has one, or none.
  const std::int64_t most = o.shares == "rows"       ? world
                            : o.shares == "measured" ? o.logical_ranks - world + 1
                                                     : (o.logical_ranks + world - 1) / world;
  const std::int64_t ranks = std::max<std::int64_t>(most, 1);
  const LoaderOptions ring;
  const auto batches = static_cast<std::size_t>(ranks * (rows + evaluated) * ring.slots * largest_image_bytes(o, seen));
  m.batches = batches;
  if (!trainer.executor().backend().memory().on_host()) return m;
  if (!o.dry_run) check_memory(m, o, launched().local_size);
  // A dry run allocates a little memory to know the sum exactly, but not most of the memory of the machine.
  constexpr std::size_t little = std::size_t{1} << 30;
  if (!o.dry_run || m.activations < little) m = trainer.prepare(of_step, evaluated);
  m.batches = batches;
  return m;
}

void load_pretrained(Trainer& trainer, const RunOptions& o) {
  const LoadedWeights w = [&] {
    try {
      return load_weights(
          trainer, o.pretrained,
          {.skip_classifier = !o.eval_only, .classifier = concat({models::classifier_of(o.network), "."})});
    } catch (const DataError& e) {
      const std::string message = e.what();
      const std::string other = o.stem == "small" ? "imagenet" : "small";
      // The shape of conv1 distinguishes the stems: [64, 3, 7, 7] and [64, 3, 3, 3].
      const bool is_stem = message.find("conv1.weight [64, 3, 7, 7] for [64, 3, 3, 3]") != std::string::npos ||
                           message.find("conv1.weight [64, 3, 3, 3] for [64, 3, 7, 7]") != std::string::npos;
      if (!is_stem) throw;
      throw DataError(message + " These weights have the other stem: --stem " + other + ".");
    }
  }();
  std::string fresh;
  for (const std::string& name : w.skipped) fresh += (fresh.empty() ? ": " : ", ") + name;
  if (!fresh.empty()) fresh = "; the classifier starts from random weights, for another number of classes" + fresh;
  std::printf("%zu tensors from %s%s\n", w.loaded, o.pretrained.c_str(), fresh.c_str());
}

void print_net(const Graph& model, const MemoryEstimate& memory, const RunOptions& o, const Schema& seen) {
  std::string batch;
  if (o.elastic_batch == "worker") {
    batch =
        ": " + std::to_string(o.batch_size * o.accumulate) + " for each worker; the rate follows the number of workers";
    if (o.elastic_ramp_steps > 0) batch += " within " + std::to_string(o.elastic_ramp_steps) + " steps";
  }
  const std::string depth = o.depth > 0 ? " " + std::to_string(o.depth) : "";
  std::printf("%s%s on %s images %lldx%lldx%lld, %lld images per update%s\n%s%s\n", o.network.c_str(), depth.c_str(),
              o.dataset.c_str(), static_cast<long long>(seen.channels), static_cast<long long>(seen.height),
              static_cast<long long>(seen.width), static_cast<long long>(o.global_batch_size), batch.c_str(),
              (o.dry_run ? summary(model) : totals(model)).c_str(), to_string(memory).c_str());
}

}  // namespace tutti::trainer
