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

}  // namespace tutti::trainer::detail
