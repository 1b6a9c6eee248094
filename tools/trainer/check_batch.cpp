// SPDX-License-Identifier: MIT
#include "tools/trainer/check_batch.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <system_error>
#include <vector>

#include <tutti/core/error.hpp>

#include "tools/trainer/check_values.hpp"
#include "tools/trainer/mxnet_options.hpp"

namespace tutti::trainer::detail {

std::vector<int> gpu_numbers(const std::string& text) {
  std::vector<int> list;
  const char *at = text.data(), *const end = at + text.size();
  while (at != end) {
    int n = -1;
    const auto [after, error] = std::from_chars(at, end, n);
    const bool more = error == std::errc{} && after != end && *after == ',' && after + 1 != end;
    if (error != std::errc{} || n < 0 || n > 1023 || (after != end && !more) ||
        std::find(list.begin(), list.end(), n) != list.end())
      fail<UsageError>("--gpus", "numbers of different GPUs, e.g. 0,1", "'" + text + "'", "see nvidia-smi -L");
    list.push_back(n);
    at = more ? after + 1 : after;
  }
  return list;
}

void check_batch_of(RunOptions& o, std::int64_t world) {
  if (o.batch_of.empty() && is_train_resnet(o) && o.global_batch_size == 0) {
    o.batch_of = "job";
    o.notes.push_back(
        "--batch-size " + std::to_string(o.batch_size) +
        " counts the images of all ranks together (--batch-of job), as with --use-rec of train_resnet.py");
  }
  if (o.batch_of.empty()) o.batch_of = "rank";
  word("--batch-of", o.batch_of, {"rank", "worker", "job"},
       {{"machine", "worker"}, {"host", "worker"}, {"global", "job"}});
  if (o.batch_of == "rank" || o.global_batch_size > 0) return;
  if (o.batch_auto)
    fail<UsageError>("--batch-size", "a number with --batch-of " + o.batch_of + ", which a recipe may have set", "auto",
                     "--batch-of rank together with auto finds the batch of a rank");
  if (o.elastic_batch == "worker")
    fail<UsageError>("--batch-of", "rank with --elastic-batch worker, because each process keeps its batch", o.batch_of,
                     "leave one of the two out");
  if (o.macrobatch_size > 0)
    fail<UsageError>("--macrobatch-size", "--batch-of rank with it", "--batch-of " + o.batch_of);
  std::int64_t workers = 1;
  if (o.batch_of == "worker") {
    const auto devices = std::max<std::int64_t>(1, std::ssize(gpu_numbers(o.gpus.value_or(""))));
    if (world > 1 && world % devices != 0)
      fail<UsageError>("--batch-of", "as many ranks for each worker as --gpus lists, " + std::to_string(devices),
                       std::to_string(world) + " ranks", "--batch-of job counts the images of all ranks together");
    workers = std::max<std::int64_t>(1, world / devices);
  }
  o.global_batch_size = o.batch_size * workers * o.accumulate;
}

void check_batch(RunOptions& o, std::int64_t world) {
  constexpr std::int64_t most = 1'000'000;
  if (o.batch_auto && (o.global_batch_size > 0 || o.macrobatch_size > 0))
    fail<UsageError>(o.global_batch_size > 0 ? "--global-batch-size" : "--macrobatch-size",
                     "no --batch-size auto together with it", "both", "leave one of the two out");
  number("--batch-size", o.batch_size, 1, most);
  number("--accumulate", o.accumulate, 1, most);
  number("--macrobatch-size", o.macrobatch_size, 0, most);
  number("--global-batch-size", o.global_batch_size, 0, most);
  if (o.macrobatch_size > 0) {
    const std::int64_t pass = o.batch_size * world;
    o.accumulate = std::max<std::int64_t>((o.macrobatch_size + pass - 1) / pass, 1);
    o.derived.emplace_back("accumulate");
    o.macrobatch_size = 0;
  }
  if (o.global_batch_size > 0) {
    if (o.global_batch_size < world * o.accumulate)
      fail<UsageError>("--global-batch-size",
                       "at least one image per rank and pass, " + std::to_string(world * o.accumulate),
                       std::to_string(o.global_batch_size));
    o.batch_size = (o.global_batch_size + world * o.accumulate - 1) / (world * o.accumulate);
    o.derived.emplace_back("batch-size");
  } else {
    o.global_batch_size = o.batch_size * world * o.accumulate;
    o.derived.emplace_back("global-batch-size");
    number("--batch-size times ranks times --accumulate", o.global_batch_size, 1, most);
  }
}

std::string few_updates(const RunOptions& o, std::int64_t images) {
  // Momentum averages about ten steps, and a rate that falls over the run needs several for each of its values.
  constexpr std::int64_t few = 10, enough = 20, small = 32;
  const std::int64_t of_update = o.strategy == "ps_async" ? o.batch_size * o.accumulate : o.global_batch_size;
  const std::int64_t updates = (images + of_update - 1) / of_update;
  // The length of a run in steps is the user's choice.
  if (updates >= few || of_update <= small || o.num_batches > 0 || o.max_steps > 0) return {};
  std::int64_t fits = 8;
  while (2 * fits * enough <= images) fits *= 2;
  const bool total = std::find(o.derived.begin(), o.derived.end(), "batch-size") != o.derived.end();
  const bool per_rank = o.batch_of == "rank" && !total;
  const std::int64_t parts = per_rank ? of_update / o.batch_size : o.batch_of == "job" ? o.accumulate : 1;
  const std::int64_t batch = std::max<std::int64_t>(fits / parts, 1);
  if (2 * batch * parts > of_update) return {};
  const bool follows = std::find(o.derived.begin(), o.derived.end(), "lr") != o.derived.end();
  std::string text = "an epoch of " + std::to_string(images) + " images has " + std::to_string(updates) +
                     (updates == 1 ? " update" : " updates") + " of " + std::to_string(of_update) +
                     " images, with which a net learns little: ";
  if (o.batch_of == "worker") return text + "give a smaller --batch-size";
  text += std::string(o.batch_of == "rank" && total ? "--global-batch-size " : "--batch-size ") +
          std::to_string(batch) + " makes " + std::to_string(images / (batch * parts)) + " of them";
  return text + (follows ? ", and the rate follows the batch" : "");
}

}  // namespace tutti::trainer::detail
