// SPDX-License-Identifier: MIT
#include "tools/trainer/check.hpp"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/cluster/launch/launch_info.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/isa.hpp>

#include "tools/trainer/check_batch.hpp"
#include "tools/trainer/check_cifar10.hpp"
#include "tools/trainer/check_imagenet.hpp"
#include "tools/trainer/check_logical_ranks.hpp"
#include "tools/trainer/check_optimizer.hpp"
#include "tools/trainer/check_strategy_options.hpp"
#include "tools/trainer/check_values.hpp"
#include "tools/trainer/fine_tuning.hpp"
#include "tools/trainer/recipes.hpp"
#include "tools/trainer/trace_window.hpp"

namespace tutti::trainer {

using namespace detail;

namespace detail {

void check_backend(RunOptions& o) {
  const auto means = [&](const char* said, const char* hint) {
    if (o.backend == said) fail<UsageError>("--backend", "auto, reference, eigen, onednn or cuda", o.backend, hint);
  };
  means("gpu", "did you mean cuda?");
  means("cpu", "did you mean auto? it uses the fastest backend; with --gpus '' it does not use GPUs");
  word("--backend", o.backend, {"auto", "reference", "eigen", "onednn", "cuda"});
  word("--data-on-device", o.data_on_device, {"auto", "yes", "no"});
  word("--cuda-fusion", o.cuda_fusion, {"auto", "on", "off"});
  word("--convolution", o.convolution, {"auto", "direct", "winograd", "tune"});
}

}  // namespace detail

namespace {

// Chooses the precision by --fp16 and the backend, if the user does not. A GPU uses bf16, or f16 if it has no bf16.
void choose_precision(RunOptions& o) {
  if (o.precision != "auto") return;
  o.precision = "f32";
  if (!o.fp16) return;
  // Each process chooses for its own device.
  o.any_half = true;
  if (o.backend == "cuda") {
    o.precision = "bf16";
  } else if (cpu::has_bf16(cpu::detect_isa())) {
    o.precision = "bf16";
  } else {
    o.notes.emplace_back("--fp16: this processor computes in f32, because it has no AVX512-BF16 or ARM bf16");
  }
}

void check_run(RunOptions& o) {
  if (!o.model_prefix.empty()) {
    if (!o.run_dir.empty() && o.run_dir != o.model_prefix)
      fail<UsageError>("--model-prefix", "no --run-dir together with it, because both name the run's folder",
                       o.run_dir);
    o.run_dir = o.model_prefix;
    if (!o.keep) o.keep = 1'000'000;
  }
  // If only --log-dir is given, the log folder is also the run folder.
  if (o.run_dir.empty()) o.run_dir = o.log_dir;
  if (!o.keep) o.keep = 2;
  number("--keep", *o.keep, 1, 1'000'000);
  if (o.load_epoch) {
    number("--load-epoch", *o.load_epoch, 1, 10'000'000);
    if (!o.resume.empty()) fail<UsageError>("--load-epoch", "no --resume together with it", o.resume);
    if (o.run_dir.empty()) fail<UsageError>("--load-epoch", "--model-prefix or --run-dir", "none");
  }
  if ((o.resume == "latest" || o.resume == "best") && o.run_dir.empty())
    fail<UsageError>("--resume", "--run-dir, the run to continue, or --resume=PATH", "none");
  if (o.eval_only && o.resume.empty() && !o.load_epoch && o.pretrained.empty())
    fail<UsageError>("--eval-only", "--resume, --resume=best or --resume=PATH, the weights to evaluate", "none");
  number("--save-period", o.save_period, 0, 10'000'000);
  number("--save-seconds", o.save_seconds, 0, 1e9);
  number("--save-steps", o.save_steps, 0, std::int64_t{1} << 40);
  if (o.evaluate_every) number("--evaluate-every", *o.evaluate_every, 0, 10'000'000);
  if (!o.evaluation_batch) {
    o.evaluation_batch = o.batch_size;
    o.derived.emplace_back("evaluation-batch");
  }
  number("--evaluation-batch", *o.evaluation_batch, 1, 1'000'000);
  number("--disp-batches", o.disp_batches, 1, 1'000'000'000);
  number("--threads", o.threads, 0, 4096);
  for (const char* half : {"float16", "fp16", "f16", "half"})
    if (o.precision == half && o.backend == "cuda")
      o.precision = "f16";
    else if (o.precision == half)
      fail<UsageError>("--precision", "f32 or bf16", o.precision,
                       "no processor backend computes in float16; bf16 is as fast and has the range of float32");
  if (o.precision != "f16")
    word("--precision", o.precision, {"f32", "bf16"},
         {{"float32", "f32"}, {"fp32", "f32"}, {"float", "f32"}, {"bfloat16", "bf16"}});
  // Without loss scaling, gradients of f16 vanish and overflow.
  if (o.precision == "f16" && o.loss_scale == "1") o.loss_scale = "dynamic";
}

void check_strategy(RunOptions& o, const std::vector<std::string>& built, const char* option, const std::string& said) {
  if (std::find(built.begin(), built.end(), o.strategy) != built.end()) return;
  for (const KnownStrategy& w : known_strategies())
    if (o.strategy == w.word)
      fail<UsageError>(option, list_of(built) + ", the strategies of this build", "'" + said + "'",
                       "install " + std::string(w.packages) + " and build again");
  fail<UsageError>(option, list_of(built), "'" + said + "'");
}

// Explains why --backend auto trains on the processor of a host that has a GPU.
void leave_gpu(RunOptions& o, const StartedJob& job) {
  const bool nccl = std::find(job.built.begin(), job.built.end(), "nccl") != job.built.end();
  std::string packages;
  for (const KnownStrategy& w : known_strategies())
    if (std::string_view(w.word) == "nccl") packages = w.packages;
  o.warnings.push_back("--backend auto trains on the processor and does not use the GPU, because strategy " +
                       o.strategy + " sums gradients in the host's memory. hint: " +
                       (nccl ? "--strategy nccl uses the GPUs; "
                             : "strategy nccl uses the GPUs (install " + packages +
                                   " and build again), and so do parameter servers (tutti-launch -s M); ") +
                       "--gpus '' selects the processor.");
}

// NCCL sums only gradients of GPUs. With servers, the gradients of GPUs pass through the host's memory.
void match_backend_and_strategy(RunOptions& o, const StartedJob& job) {
  const int processes = job.processes;
  const bool gpu = job.gpu;
  const bool servers = has_servers(o.strategy);
  // Each process decides for its own host, so that hosts with a GPU and hosts without a GPU can train together.
  if (o.backend == "auto") o.derived.emplace_back("backend");
  if (o.strategy == "nccl") {
    if (o.backend == "auto") o.backend = "cuda";
    if (o.backend != "cuda")
      fail<UsageError>("--backend", "cuda, because strategy nccl sums gradients in GPUs", o.backend,
                       "use --strategy mpi for the backends on the processor");
  } else if (o.backend == "cuda" && o.strategy != "solo" && !servers && (processes > 1 || job.elastic)) {
    fail<UsageError>("--strategy", "nccl, ps or ps_async with --backend cuda and several processes", o.strategy);
  } else if (o.backend == "auto" && gpu) {
    if (servers || ((o.strategy == "solo" || processes == 1) && !job.elastic))
      o.backend = "cuda";
    else
      leave_gpu(o, job);
  }
  if (!o.gpus) return;
  if (o.gpus->empty() && o.backend == "cuda")
    fail<UsageError>("--gpus", o.strategy == "nccl" ? "GPUs for strategy nccl" : "a GPU for --backend cuda", "none",
                     "name them, e.g. --gpus 0, or leave --gpus out to use the GPUs of the host");
  if (!o.gpus->empty() && o.backend != "cuda")
    fail<UsageError>("--gpus",
                     job.cuda_built ? "no GPUs, because the cuda backend was not chosen"
                                    : "no GPUs, because this build has no CUDA backend",
                     *o.gpus,
                     job.cuda_built ? "give --backend cuda, or --gpus '' to train on the processor"
                                    : "give --gpus '' to train on the processor, or build with CUDA's and cuDNN's "
                                      "headers");
  (void)gpu_numbers(*o.gpus);
}

void check_elastic_batch(RunOptions& o, bool elastic) {
  word("--elastic-batch", o.elastic_batch, {"global", "worker"});
  number("--elastic-ramp-steps", o.elastic_ramp_steps, 0, std::int64_t{1} << 40);
  const bool follows = o.elastic_batch == "worker";
  if (o.elastic_ramp_steps > 0 && !follows)
    fail<UsageError>("--elastic-ramp-steps",
                     "--elastic-batch worker with it, because otherwise the rate does not change",
                     std::to_string(o.elastic_ramp_steps), "leave it out");
  if (!follows) return;
  if (!elastic)
    fail<UsageError>(
        "--elastic-batch", "global, because the workers of this job stay the same", "worker",
        "'tutti-launch --elastic -n N PROGRAM --elastic-batch worker' starts a job with workers that join and "
        "leave");
  if (o.global_batch_size > 0)
    fail<UsageError>("--global-batch-size",
                     "--batch-size with --elastic-batch worker, because each worker keeps its batch",
                     std::to_string(o.global_batch_size), "leave one of the two out");
}

}  // namespace

namespace detail {

void check_elastic(RunOptions& o, const StartedJob& job) {
  if (!job.elastic) {
    if (!o.spot_notice.empty())
      fail<UsageError>("--spot-notice", "a job that can continue without this process", "a job that cannot",
                       "'tutti-launch --elastic -n N PROGRAM --spot-notice FILE' starts such a job");
    return;
  }
  const auto built = [&](const char* strategy) {
    return std::find(job.built.begin(), job.built.end(), strategy) != job.built.end();
  };
  const bool gpu = built("nccl") && (o.backend == "cuda" || (o.backend == "auto" && job.gpu));
  const bool synchronous = o.kv_store.starts_with("dist_") && o.kv_store != "dist_async";
  if (o.strategy == "auto" && (o.kv_store.empty() || synchronous))
    o.strategy = job.over_mpi ? "mpi" : job.servers > 0 ? "ps" : gpu ? "nccl" : "gloo";
  if (o.strategy == "auto" && o.kv_store == "dist_async") o.strategy = "ps_async";
  if (o.strategy == "auto" && o.kv_store == "nccl") o.strategy = "nccl";
  if (o.strategy == "auto" || (built(o.strategy.c_str()) && !changes_members(o.strategy)))
    fail<UsageError>(
        o.strategy != "auto" ? "--strategy" : "--kv-store",
        "gloo, nccl with GPUs (dist_sync), mpi, or with servers ps (dist_sync) or ps_async (dist_async), because "
        "tutti-launch --elastic lets processes join and leave",
        o.strategy != "auto" ? o.strategy : o.kv_store, "leave the option out, or start the job without --elastic");
  if (o.eval_only)
    fail<UsageError>("--eval-only", "no tutti-launch --elastic, because an evaluation does not train", "given",
                     "start one process for an evaluation");
  if (job.over_mpi != (o.strategy == "mpi") && !is_launcher_query())
    fail<UsageError>("--strategy",
                     job.over_mpi ? "mpi, because mpirun started this process" : "another strategy than mpi",
                     o.strategy);
  if (o.local_ckpt && o.strategy != "mpi")
    fail<UsageError>("--local-ckpt", "no --local-ckpt with tutti-launch --elastic, because ranks join and leave",
                     "given", "leave the option out");
}

}  // namespace detail

namespace {

void check_distribution(RunOptions& o, const StartedJob& job) {
  const auto& [processes, built, gpu, servers, elastic, over_mpi, cuda_built] = job;
  if (!o.kv_store.empty())
    word("--kv-store", o.kv_store,
         {"local", "device", "dist_sync", "dist_device_sync", "dist_sync_device", "dist_async", "nccl"});
  for (char& c : o.strategy) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  check_elastic(o, job);
  check_elastic_batch(o, job.elastic);
  const std::string said = o.strategy;
  // The default backend uses GPUs only if the processes can exchange gradients of GPUs.
  const bool nccl = std::find(built.begin(), built.end(), "nccl") != built.end();
  const bool gpus = o.backend == "cuda" || (o.backend == "auto" && gpu && nccl);
  if (o.strategy != "auto") {
    check_strategy(o, built, "--strategy", o.strategy);
  } else if (!o.kv_store.empty()) {
    o.strategy = strategy_of_kv_store(o.kv_store, processes, gpus, servers);
    if (processes == 1 && servers == 0 && o.strategy != "solo" && o.kv_store != "nccl") {
      o.notes.push_back("--kv-store " + o.kv_store + ": one process was started, so it trains alone (strategy solo)");
      o.strategy = "solo";
    }
    check_strategy(o, built, "--kv-store", o.kv_store);
  } else {
    const bool alone = processes == 1 && servers == 0;
    o.strategy = alone ? "solo" : servers > 0 ? "ps" : gpus ? "nccl" : "mpi";
    if (!alone) check_strategy(o, built, "--strategy", std::to_string(processes) + " that the launcher started");
  }
  // With strategy solo, each process would train alone, in one run folder, with the batches and the rate of all
  // processes.
  if ((processes > 1 || elastic) && o.strategy == "solo")
    fail<UsageError>(o.kv_store.empty() ? "--strategy" : "--kv-store",
                     std::string(o.kv_store.empty() ? "mpi, gloo, nccl or ps" : "dist_sync") + " for the " +
                         std::to_string(processes) + " processes that were started",
                     o.kv_store.empty() ? o.strategy : o.kv_store,
                     "to train several nets, start the program once for each, with a --run-dir of its own");
  match_backend_and_strategy(o, job);
  number("--bucket-mib", o.bucket_mib, 1, 1024);
  number("--comm-deadline", o.comm_deadline, 0.1, 1e6);
  word("--encrypt", o.encrypt, {"auto", "on", "off"});
  word("--comm-wire", o.comm_wire, {"same", "bf16"}, {{"f32", "same"}, {"float32", "same"}, {"bfloat16", "bf16"}});
  word("--gc-type", o.gc_type, {"none", "2bit"});
  number("--gc-threshold", o.gc_threshold, 1e-12, 1e12);
  check_strategy_options(o, said, processes == 1 && !elastic);
}

}  // namespace

void check(RunOptions& o, StartedJob job) {
  detail::check_backend(o);
  job.gpu = job.gpu && !detail::wants_no_gpu(o);
  if (o.program != Program::train_cifar10) {
    detail::check_imagenet_data(o);
    detail::check_imagenet_model(o);
    detail::check_imagenet_run(o);
  } else {
    detail::check_cifar10_data(o);
    detail::check_cifar10_model(o);
  }
  check_distribution(o, job);
  choose_precision(o);
  if (!o.trace_steps.empty() && o.trace.empty())
    fail<UsageError>("--trace-steps", "--trace FILE together with it", o.trace_steps);
  (void)trace_window(o);
  detail::number("--histograms", o.histograms, 0, 1'000'000'000);
  if (o.histograms > 0 && !o.tensorboard)
    fail<UsageError>("--histograms", "event files for TensorBoard", "--no-tensorboard", "leave one of the two out");
  detail::number("--dry-run-ranks", o.dry_run_ranks, 0, 1'000'000);
  if (o.dry_run_ranks > 0 && !o.dry_run)
    fail<UsageError>("--dry-run-ranks", "--dry-run or --print-schedule together with it",
                     std::to_string(o.dry_run_ranks));
  detail::check_logical_ranks(o, job);
  const std::int64_t ranks = detail::ranks_of_batch(o, job.processes);
  detail::number("--batch-size", o.batch_size, 1, 1'000'000);
  detail::number("--accumulate", o.accumulate, 1, 1'000'000);
  detail::check_batch_of(o, ranks);
  detail::word("--log-lines", o.log_lines, {"tutti", "mxnet"});
  detail::check_batch(o, ranks);
  fill_recipe(o);
  detail::check_optimizer(o);
  detail::check_schedule(o);
  check_run(o);
  detail::check_fine_tuning(o);
  if (o.batch_auto && job.elastic)
    fail<UsageError>("--batch-size", "a number with tutti-launch --elastic, because workers that join must use it too",
                     "auto");
  (void)detail::gradient_threshold(o);
}

}  // namespace tutti::trainer
