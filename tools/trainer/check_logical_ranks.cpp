// SPDX-License-Identifier: MIT
#include "tools/trainer/check_logical_ranks.hpp"

#include <algorithm>
#include <string>

#include <tutti/core/error.hpp>

#include "tools/trainer/check_values.hpp"

namespace tutti::trainer::detail {

namespace {

constexpr std::int64_t most = 4096;

// A strategy in which all ranks do each step together, and sum integers.
void require_common_steps(const RunOptions& o) {
  if (o.strategy == "ps_async")
    fail<UsageError>("--strategy",
                     "solo, mpi, gloo, nccl or ps with --logical-ranks, because all ranks must do each step together",
                     o.strategy, "--strategy ps has servers too");
  const auto refuse = [](const char* option, const char* expected, const std::string& got, const char* hint) {
    fail<UsageError>(option, std::string(expected) + " with --logical-ranks, because sums must be exact", got, hint);
  };
  if (o.comm_wire != "same") refuse("--comm-wire", "same", o.comm_wire, "leave it out");
  if (o.gc_type != "none") refuse("--gc-type", "none", o.gc_type, "leave it out");
}

// Options by which each process would compute other bits than another one.
void require_fixed_kernels(const RunOptions& o) {
  if (o.convolution == "tune")
    fail<UsageError>("--convolution",
                     "auto, direct or winograd with --logical-ranks, because measured times differ between processes",
                     o.convolution, "leave it out");
  if (o.autotune.value_or(false))
    fail<UsageError>("--autotune",
                     "no --autotune with --logical-ranks, because measured times differ between processes", "given",
                     "leave it out");
  if (o.elastic_batch == "worker")
    fail<UsageError>("--elastic-batch",
                     "global with --logical-ranks, because the batch must not follow the number of workers",
                     o.elastic_batch, "leave it out");
}

void check_shares_of_rows(RunOptions& o, const StartedJob& job) {
  if (o.backend == "cuda")
    fail<UsageError>("--shares", "equal with backend cuda, because only backends of the processor have shares of rows",
                     o.shares, "leave it out, or use --gpus '' to train on the processor");
  if (o.logical_ranks > 0)
    fail<UsageError>("--shares", "equal or measured with --logical-ranks", o.shares,
                     "--shares measured keeps the bits");
  if (o.elastic_batch == "worker")
    fail<UsageError>("--shares", "equal with --elastic-batch worker, because the batch must not follow the workers",
                     o.shares, "leave out --shares or --elastic-batch");
  if (job.processes < 2 && !job.elastic)
    o.notes.push_back("no effect: --shares rows, because one process was started, which has all rows");
  else
    o.notes.push_back(
        "--shares rows: batch norm sees the rows of one process, and their number follows its speed; the bits depend "
        "on the shares, which log.jsonl has. --logical-ranks with --shares measured keeps the bits");
}

void check_shares(RunOptions& o, const StartedJob& job) {
  word("--shares", o.shares, {"equal", "measured", "rows"});
  if (o.shares == "equal") return;
  if (o.find_lr)
    fail<UsageError>("--shares", "equal with --find-lr, whose steps are not measured", o.shares, "leave it out");
  if (o.strategy == "ps_async")
    fail<UsageError>("--shares", "equal with --strategy ps_async, because its workers do not wait for each other",
                     o.shares, "leave it out, or use --strategy ps");
  if (o.shares == "rows") return check_shares_of_rows(o, job);
  if (o.logical_ranks == 0)
    fail<UsageError>("--shares", "equal or rows without --logical-ranks, because batch norm would see other rows",
                     o.shares,
                     "give --logical-ranks a number, for example " + std::to_string(8 * std::max(job.processes, 2)) +
                         ", and divide --batch-size accordingly; --shares rows needs none, and changes the bits");
  if (job.processes < 2 && !job.elastic)
    o.notes.push_back("no effect: --shares measured, because one process was started, which has all logical ranks");
}

}  // namespace

void check_logical_ranks(RunOptions& o, const StartedJob& job) {
  number("--logical-ranks", o.logical_ranks, 0, most);
  check_shares(o, job);
  if (o.logical_ranks == 0) {
    if (o.allow_other_bits)
      fail<UsageError>("--allow-other-bits", "--logical-ranks with it, because other runs do not check their bits",
                       "given", "leave it out");
    return;
  }
  if (job.processes > o.logical_ranks)
    fail<UsageError>("--logical-ranks",
                     "at least the " + std::to_string(job.processes) + " processes that were started",
                     std::to_string(o.logical_ranks),
                     "start at most " + std::to_string(o.logical_ranks) + ", or give a larger number");
  require_common_steps(o);
  require_fixed_kernels(o);
  // Only backend cuda has kernels whose results vary.
  o.deterministic = true;
}

std::int64_t ranks_of_batch(const RunOptions& o, int processes) {
  if (o.logical_ranks > 0) return o.logical_ranks;
  if (o.dry_run_ranks > 0) return o.dry_run_ranks;
  return o.strategy == "solo" ? 1 : processes;
}

}  // namespace tutti::trainer::detail
