// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "tools/trainer/options.hpp"
#include "tools/trainer/strategy_help.hpp"

// Options of all training programs, as parts of their tables: v.group(title) and v(name, field, help, scope), with the
// name without dashes. Additional names are in command_line/spellings.cpp.
namespace tutti::trainer {

// Says which processes must agree on the value of an option.
enum class Scope : std::uint8_t {
  job,       // all ranks must have the same value
  training,  // all ranks, and a resumed run prints a note if the value differs
  rank       // this process or its files only
};

// A flag of older scripts that has no effect here. It is accepted with its neutral value and refused with any other;
// without a neutral value any number is accepted.
struct NeutralOption {
  const char* name;
  const char* value;
};

namespace detail {

template <class V>
void describe_moments(RunOptions& o, V& v) {
  v("opt-betas", o.opt_betas,
    "adam, adamw, lamb, muon with adamw: shares of the two moments that a step keeps; default: 0.9,0.999",
    Scope::training);
  v("opt-eps", o.opt_eps, "adam, adamw, lamb, muon with adamw: added to the denominator; default: 1e-8 (lamb: 1e-6)",
    Scope::training);
  v("trust-clip", o.trust_clip, "lamb: the norm of the weights divided by that of their update counts as 1 at most",
    Scope::training);
  v("lars-mlperf", o.lars_mlperf,
    "lars: MLPerf's rule: the norms of gradient and decay are added, and biases and batch norm follow sgd",
    Scope::training);
  v("max-grad-norm", o.max_grad_norm, "lamb: largest norm of the whole gradient, default: 1; 0: no limit",
    Scope::training);
}

template <class V>
void describe_muon(RunOptions& o, V& v) {
  v("muon-rest", o.muon_rest, "muon: the rule of the parameters that are not weights of convolutions: nag, or adamw",
    Scope::training);
  v("rest-lr", o.rest_lr, "muon: their peak learning rate; default: --lr (adamw: 0.001)", Scope::training);
  v("rest-mom", o.rest_mom, "muon: their momentum with nag; default: 0.9", Scope::training);
  v("muon-steps", o.muon_steps, "muon: steps of Newton and Schulz", Scope::training);
  v("muon-scale", o.muon_scale,
    "muon: factor of the step of a matrix: none, rows (the root of rows / columns, at least 1) or rms (0.2 times the "
    "root of the longer side)",
    Scope::training);
  v("muon-normalize", o.muon_normalize,
    "muon: scale weights to the norm of an orthogonal matrix before each step, in place of the decay", Scope::training);
  v("muon-products", o.muon_products, "muon: precision of its matrices, f32 or bf16", Scope::training);
  v("rest-wd", o.rest_wd, "muon: weight decay of the other parameters; default: --wd", Scope::training);
}

template <class V>
void describe_average(RunOptions& o, V& v) {
  v("ema-schedule", o.ema_schedule,
    "counted: the decay grows as (1 + step) / (10 + step); constant; timm: it grows as 1 - (1 + step)^-2/3; "
    "torchvision: "
    "it is adjusted to the batch and the epochs, and the average is a copy during the warmup of the rate; "
    "lookahead: it grows as (step / steps of the run)^3, and the weights become the average after each update",
    Scope::training);
  v("ema-every", o.ema_every, "steps between two updates of the average; default: 1 (torchvision: 32, lookahead: 5)",
    Scope::training);
}

template <class V>
void describe_sam(RunOptions& o, V& v) {
  v("sam", o.sam,
    "sharpness-aware minimisation: take the gradient at weights that are moved by this length along the gradient of a "
    "rank's own images, e.g. 0.05; 0: no SAM",
    Scope::training);
  v("sam-every", o.sam_every, "steps from one step with SAM to the next; a step with SAM takes twice as long",
    Scope::training);
}

template <class V>
void describe_fine_tuning(RunOptions& o, V& v) {
  v("freeze", o.freeze,
    "patterns of parameters that stay as they are, separated by commas: layer1, conv1.weight, *.bn?.*; !PATTERN takes "
    "some out again: '*,!fc' trains the classifier only",
    Scope::training);
  v("freeze-statistics", o.freeze_statistics,
    "batch norm uses its running statistics in training too, and does not change them", Scope::training);
  v("rate-of", o.rate_of,
    "factors of the learning rate, PATTERN=FACTOR separated by commas, e.g. fc=10,layer1=0.1; --freeze is for 0",
    Scope::training);
  v("class-weights", o.class_weights,
    "weights of the classes in the loss: auto (in inverse proportion to their images), NAME=WEIGHT,... (others: 1), or "
    "a file with a line NAME WEIGHT for each",
    Scope::training);
}

template <class V>
void describe_stopping(RunOptions& o, V& v) {
  v("patience", o.patience,
    "end after so many evaluations in succession that are not better than the best one; 0: never", Scope::training);
  v("find-lr", o.find_lr,
    "do not train: raise the rate from step to step, write the losses to find_lr.json in the run's folder for "
    "tutti-report, and suggest a rate");
  v("find-lr-steps", o.find_lr_steps, "steps of --find-lr, 20 to 100000");
}

template <class V>
void describe_curves(RunOptions& o, V& v) {
  v("cosine-alpha", o.cosine_alpha, "last rate of cosine as a fraction of the peak");
  v("cdr-first-decay-ratio", o.cdr_first_decay_ratio, "cosine_restarts: length of the first period, 0..1");
  v("cdr-t-mul", o.cdr_t_mul, "cosine_restarts: growth of the length");
  v("cdr-m-mul", o.cdr_m_mul, "cosine_restarts: growth of the height");
  v("cdr-alpha", o.cdr_alpha, "cosine_restarts: lowest rate as a fraction of the peak");
  v("pct-start", o.pct_start, "one_cycle: share of the steps in which the rate rises", Scope::training);
  v("div-factor", o.div_factor, "one_cycle: peak divided by the first rate", Scope::training);
  v("final-div-factor", o.final_div_factor, "one_cycle: first rate divided by the last one", Scope::training);
  v("anneal-strategy", o.anneal_strategy, "one_cycle: cos or linear", Scope::training);
  v("three-phase", o.three_phase, "one_cycle: fall to the first rate as fast as it rose, then to the last one",
    Scope::training);
  v("cycle-momentum", o.cycle_momentum,
    "one_cycle: the momentum (adam, adamw, lamb: beta1) falls while the rate rises, and rises while it falls",
    Scope::training);
  v("base-momentum", o.base_momentum, "with --cycle-momentum: the lowest momentum; default: 0.85", Scope::training);
  v("max-momentum", o.max_momentum, "with --cycle-momentum: the highest momentum; default: 0.95", Scope::training);
  v("lr-updates", o.lr_updates, "step, or epoch: the rate changes only between epochs, as timm's and torchvision's",
    Scope::training);
  v("lr-first-step", o.lr_first_step, "0 or 1, the number of the first step in the formulas of the rate; MLPerf's is 1",
    Scope::training);
  v("warmup-prefix", o.warmup_prefix,
    "a curve begins at the end of the warmup; otherwise at the beginning of the run, as timm's: then the first rate "
    "after the warmup is below the peak",
    Scope::training);
  v("lc-periods", o.lc_periods, "linear_cosine: periods");
  v("lc-alpha", o.lc_alpha, "linear_cosine: alpha");
  v("lc-beta", o.lc_beta, "linear_cosine: beta");
}

template <class V>
void describe_augmentation(RunOptions& o, V& v) {
  v("auto-augment", o.auto_augment,
    "random operations on training images: trivial (TrivialAugmentWide), ra-m9-n2 (torchvision's RandAugment), "
    "rand-m7-mstd0.5-inc1 (timm's) or none",
    Scope::training);
  v("jitter-brightness", o.jitter_brightness,
    "add up to this many standard deviations to training images, or subtract them; 0: no change", Scope::training);
  v("jitter-contrast", o.jitter_contrast, "then multiply them by 1 - this to 1 + this; 0: no change", Scope::training);
  v("random-erase", o.random_erase, "probability of erasing a part of a training image, 0..1", Scope::training);
  v("erase-mode", o.erase_mode,
    "the erased part becomes const (the mean colour), rand (a random colour) or pixel (random pixels)",
    Scope::training);
  v("repeated-aug", o.repeated_aug,
    "views of each image in an epoch, one after another; an epoch then has this fraction of the images",
    Scope::training);
  v("erase-count", o.erase_count, "largest number of erased parts of an image, 1..16", Scope::training);
  v("mixup", o.mixup, "alpha of mixup, which blends the images of a batch in pairs, e.g. 0.2; 0: no mixup",
    Scope::training);
  v("cutmix", o.cutmix, "alpha of cutmix, which copies a part of another image of the batch, e.g. 1; 0: no cutmix",
    Scope::training);
  v("mix-probability", o.mix_probability, "probability of mixing a batch, 0..1", Scope::training);
  v("mix-switch", o.mix_switch, "probability of cutmix in place of mixup if both are on, 0..1", Scope::training);
  v("mix-pairs", o.mix_pairs,
    "an image is mixed with reversed (the image at the same distance from the other end of the batch, as timm's) or "
    "previous (the image before it, as torchvision's)",
    Scope::training);
}

template <class V>
void describe_loss(RunOptions& o, V& v) {
  v("label-smoothing", o.label_smoothing, "0..1", Scope::training);
  v("bce-loss", o.bce_loss, "binary cross entropy of each class for itself, as timm's", Scope::training);
  v("bce-target-thresh", o.bce_target_thresh,
    "with --bce-loss: a smoothed or mixed target above this counts as 1, another one as 0; default: targets as they "
    "are",
    Scope::training);
  v("bce-sum", o.bce_sum, "with --bce-loss: the loss of an image is the sum over the classes, not their mean",
    Scope::training);
}

template <class V>
void describe_batch_of(RunOptions& o, V& v) {
  v("batch-auto", o.batch_auto,
    "another way to write --batch-size auto: the largest power of 2 that fits the memory, up to 1024 and a twentieth "
    "of "
    "the training images");
  v("batch-of", o.batch_of,
    "what --batch-size counts: rank (the images of each rank), worker (of the ranks of one --gpus list together, as "
    "MXNet's scripts count) or job (of all ranks together); default: rank");
}

template <class V>
void describe_log_lines(RunOptions& o, V& v) {
  v("log-lines", o.log_lines, "progress on standard output: tutti, or mxnet: the lines that MXNet's parse_log.py reads",
    Scope::rank);
}

template <class V>
void describe_checkpoints(RunOptions& o, V& v) {
  v("resume", o.resume, "continue: --resume or --resume=latest, --resume=best, --resume=PATH of a checkpoint or run",
    Scope::rank);
  v("save-seconds", o.save_seconds,
    "seconds between checkpoints, each after a step that all ranks have done; 0: not by time");
  v("keep", o.keep,
    o.program == Program::train_imagenet ? "number of newest checkpoints to keep, besides the best one; default: all"
                                         : "number of newest checkpoints to keep, besides the best one; default: 2",
    Scope::rank);
  v("evaluation-batch", o.evaluation_batch, "images per rank in one pass of an evaluation; default: --batch-size");
}

template <class V>
void describe_machine(RunOptions& o, V& v) {
  v("backend", o.backend, "auto, reference, eigen, onednn or cuda");
  v("tf32", o.tf32,
    "cuda: products of f32 with the precision of TF32: 1: all; 0: exact products; default: those of convolutions");
  v("autotune", o.autotune,
    "cuda: time the libraries' kernels before the first step: 1: all; 0: off; default: for 20 seconds. Results are "
    "kept");
  v("deterministic", o.deterministic, "cuda: the same bits every time");
  v("cuda-fusion", o.cuda_fusion, "cuda: fuse batch norm with convolutions: auto, on or off");
  v("recompute", o.recompute, "cuda: save memory: compute cheap activations again in the backward pass");
  v("cuda-graph", o.cuda_graph, "cuda: capture a step once and replay it");
  v("convolution", o.convolution,
    "3x3 convolutions on the processor: auto, direct, winograd if there is code for it, or tune: measures both before "
    "the "
    "first step and uses the faster one");
  v("data-on-device", o.data_on_device,
    "cuda: keep images that do not change in the GPU's memory, yes, no or auto (up to 1 GiB and a quarter of what is "
    "free)",
    Scope::rank);
  v("threads", o.threads, "compute threads per rank; 0: the cores of the host, divided among its ranks", Scope::rank);
  v("seed", o.seed, "seed of weights, order and augmentation", Scope::training);
  v("tensorboard", o.tensorboard, "write event files for TensorBoard next to log.jsonl", Scope::rank);
  v("histograms", o.histograms,
    "steps between histograms of weights and gradients in TensorBoard's files; 0: no histograms", Scope::rank);
  v("audit", o.audit, "write which images each step used to audit-rank<N>.txt");
  v("trace", o.trace,
    "write a timeline of all processes to this file, in Chrome's trace format, for chrome://tracing or Perfetto",
    Scope::rank);
  v("trace-steps", o.trace_steps,
    "with --trace: FIRST:LAST, the steps for which layers and images are recorded; default: the first 10 of this "
    "process",
    Scope::rank);
  v("dry-run", o.dry_run, "print the net and the memory it takes, and stop");
  v("dry-run-ranks", o.dry_run_ranks,
    "with --dry-run or --print-schedule: as a job of this many ranks; 0: the actual number");
}

template <class V>
void describe_distribution(RunOptions& o, V& v) {
  v.group("Distribution");
  v("strategy", o.strategy, strategy_help().c_str());
  v("kv-store", o.kv_store,
    "local or device: solo; dist_sync, dist_device_sync, dist_sync_device: with servers ps, else mpi, with GPUs nccl, "
    "as nccl; dist_async: ps_async");
  v("gpus", o.gpus, "GPUs of this host, one for each of its processes, e.g. 0,1; empty: train on the processor",
    Scope::rank);
  v("bucket-mib", o.bucket_mib, "gradients summed at a time, MiB; the first bucket is 1");
  v("comm-deadline", o.comm_deadline, "seconds after which a rank that others wait for counts as lost");
  v("comm-wire", o.comm_wire, "how gradients cross the network: same (as they are) or bf16");
  v("encrypt", o.encrypt,
    "gloo: encrypt connections between hosts with TLS 1.3: on, off, or auto (on if the build has OpenSSL); ps and "
    "ps_async encrypt without it");
  v("hierarchical", o.hierarchical, "sum inside each host first; one flow per host crosses the network");
  v("shared-memory", o.shared_memory, "processes of a host sum through memory that they share");
  v("spot-notice", o.spot_notice,
    "with tutti-launch --elastic: when this file appears, this process leaves the job after its step", Scope::rank);
  v("logical-ranks", o.logical_ranks,
    "compute, bit for bit, what so many ranks would, on any number of processes up to it, which may change at any "
    "step; "
    "--batch-size then counts the images of a logical rank; 0: each process is a rank");
  v("allow-other-bits", o.allow_other_bits,
    "with --logical-ranks: continue a checkpoint of another number of logical ranks, or of processes whose bits differ",
    Scope::rank);
  v("shares", o.shares,
    "equal (each process has the same number of logical ranks or rows), measured (with --logical-ranks: their numbers "
    "follow the speed of the processes, with the same bits) or rows (without --logical-ranks: the numbers of rows "
    "follow the speed; batch norm sees the rows of one process, so the bits depend on the shares)");
  v("elastic-batch", o.elastic_batch,
    "with tutti-launch --elastic, when workers join or leave: global (the global batch and the rate stay as at the "
    "beginning) or worker (each keeps --batch-size, so the global batch and the rate follow the number of workers)",
    Scope::training);
  v("elastic-ramp-steps", o.elastic_ramp_steps,
    "with --elastic-batch worker: steps over which the rate changes to that of a new number of workers; 0: at once",
    Scope::training);
  v("ps-plain", o.ps_plain, "ps, ps_async: do not encrypt between hosts; within one host data is never encrypted");
  v("ps-staleness", o.ps_staleness, "ps_async: steps that a worker may be ahead of the slowest one; default: no limit");
  v("ps-snapshot-seconds", o.ps_snapshot_seconds,
    "ps_async with servers that are started again (tutti-launch --server-restarts N): seconds between the states that "
    "a server saves to continue from; 0: it saves no states");
  v("ps-key-file", o.ps_key_file,
    "file with 64 hexadecimal digits, mode 0600: the secret of a job with processes that scripts start", Scope::rank);
  v("rank-timeout", o.rank_timeout,
    "in such a job: seconds without a sign of life after which a process is lost; default: 10");
  v("gc-type", o.gc_type, "ps, ps_async: none, or 2bit: gradients travel to the servers in two bits each");
  v("gc-threshold", o.gc_threshold,
    "2bit: value that a worker's sum of a gradient over its images must reach before it is sent");
}

}  // namespace detail

}  // namespace tutti::trainer
