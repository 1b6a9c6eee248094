// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

// What can be said on the command line of a training program: plain values, one table of them, and their meaning.
namespace tutti::examples {

// An empty optional, an empty text or "auto" leaves the choice to check().
struct RunOptions {
  // Data
  std::string data_dir;
  std::string dataset = "cifar10";
  std::string image_shape, rgb_mean, rgb_std;
  bool random_crop = true, random_mirror = true;
  std::int64_t centre_epochs = 0;
  std::optional<std::int64_t> pad_size;
  std::int64_t fill_value = 0;
  std::int64_t num_examples = 0, num_classes = 0;
  std::int64_t data_nthreads = 1;
  bool benchmark = false, test_io = false;
  // Model
  std::string preset;
  std::string network = "resnet";
  std::int64_t depth = 20;
  std::string initializer = "he";
  bool zero_gamma = false;
  double label_smoothing = 0;
  std::int64_t top_k = 5;
  // Optimisation
  std::int64_t batch_size = 64, global_batch_size = 0, accumulate = 1, macrobatch_size = 0;
  std::string optimizer = "nag";
  std::optional<double> lr;
  double mom = 0.9;
  std::optional<double> wd;
  bool decay_all = false;
  std::optional<double> eta;
  double clip_norm = 0, ema_decay = 0;
  // Schedule
  std::int64_t epochs = 15, max_steps = 0;
  std::string lr_schedule = "auto", lr_step_epochs;
  std::optional<double> lr_factor, lr_end;
  double poly_power = 2;
  std::optional<double> warmup_epochs;
  double warmup_lr = 0.001;
  std::string warmup_strategy = "linear";
  double cosine_alpha = 0;
  double cdr_first_decay_ratio = 0.33, cdr_t_mul = 2, cdr_m_mul = 0.1, cdr_alpha = 0;
  double lc_periods = 0.47, lc_alpha = 0, lc_beta = 1e-5;
  double stop_at_train_top1 = 0;
  // Run
  std::string run_dir, resume, model_prefix;
  std::optional<std::int64_t> load_epoch;
  std::int64_t save_period = 1, save_steps = 0;
  std::optional<std::int64_t> keep;
  std::int64_t evaluate_every = 1, disp_batches = 20;
  std::optional<std::int64_t> evaluation_batch;
  std::string precision = "f32", backend = "auto";
  std::int64_t threads = 0;
  std::uint64_t seed = 1;
  bool tensorboard = false, audit = false, dry_run = false, eval_only = false;
  // Distribution
  std::string strategy = "auto", kv_store, gpus, gc_type = "none";
  double gc_threshold = 0.5;
  std::int64_t bucket_mib = 16;
  double comm_deadline = 600;
  std::string comm_wire = "same";
  bool hierarchical = true, shared_memory = true;

  // Not options: how the above was understood, for the user to read.
  bool data_dir_from_environment = false;
  std::vector<std::string> notes;
};

// The table: v.group(title) and v(name, field, help, further names), names without their dashes.
template <class V>
void describe(RunOptions& o, V&& v) {
  using Names = std::initializer_list<const char*>;
  v.group("Data");
  v("data", o.data_dir,
    "folder of the data set, or its parent; default: $TUTTI_DATA, else data (fashion_mnist: Debian's)",
    Names{"data-dir"});
  v("dataset", o.dataset, "cifar10, fashion_mnist or synthetic", Names{});
  v("image-shape", o.image_shape, "C,H,W of what the net sees, e.g. 3,28,28; default: the data set's", Names{});
  v("rgb-mean", o.rgb_mean, "a mean per channel on the 0..255 scale; default: the data set's", Names{});
  v("rgb-std", o.rgb_std, "a standard deviation per channel; default: the data set's", Names{});
  v("random-crop", o.random_crop, "cut the training window at random, else in the centre", Names{});
  v("centre-epochs", o.centre_epochs,
    "epochs at the end of the run that cut it in the centre all the same, as the test does", Names{"center-epochs"});
  v("random-mirror", o.random_mirror, "mirror half of the training images", Names{});
  v("pad-size", o.pad_size,
    "pixels added on every side before the crop; default: 4, in runs of up to 60 epochs 2, of up to 20 epochs 1",
    Names{});
  v("fill-value", o.fill_value, "value of those pixels, 0..255", Names{});
  v("num-examples", o.num_examples, "training images used; 0: all", Names{});
  v("num-classes", o.num_classes, "outputs of the net; 0: the data set's classes", Names{});
  v("data-nthreads", o.data_nthreads, "threads that read images, per rank; 0: the training thread",
    Names{"num-data-workers"});
  v("benchmark", o.benchmark, "train on synthetic images", Names{"synthetic"});
  v("test-io", o.test_io, "only read the images and print the speed", Names{});

  v.group("Model");
  v("preset", o.preset, "cifar-resnet50-28: defaults for the depth-50 net on 28x28 images without augmentation",
    Names{});
  v("network", o.network,
    "resnet (depth 6n+2, or 18, 34, 101, 152 with a stem for small images), resnet_preact (6n+2, pre-activation), "
    "resnet_imagenet",
    Names{});
  v("depth", o.depth, "layers of the net", Names{"num-layers"});
  v("initializer", o.initializer, "he or xavier", Names{});
  v("zero-gamma", o.zero_gamma, "residual branches start at zero", Names{"last-gamma"});
  v("label-smoothing", o.label_smoothing, "0..1", Names{});
  v("top-k", o.top_k, "the second accuracy reported; 0: 5", Names{});

  v.group("Optimisation");
  v("batch-size", o.batch_size, "images per rank in one pass", Names{});
  v("global-batch-size", o.global_batch_size, "images per update, all ranks together; overrides --batch-size", Names{});
  v("accumulate", o.accumulate, "passes per update", Names{});
  v("macrobatch-size", o.macrobatch_size, "images per update at least, all ranks together, reached by accumulation",
    Names{});
  v("optimizer", o.optimizer, "nag (SGD with Nesterov momentum), sgd, adamw, lars or larc", Names{});
  v("lr", o.lr, "peak learning rate for the global batch; default: 0.1 per 64 images of it (adamw: 0.001)", Names{});
  v("mom", o.mom, "momentum", Names{"momentum"});
  v("wd", o.wd, "weight decay; default: 5e-4 (adamw: 0.05)", Names{"wdecay", "weight-decay"});
  v("decay-all", o.decay_all, "decay batch norm and biases too", Names{});
  v("eta", o.eta, "trust coefficient; default: lars 0.001, larc 0.013", Names{"leta"});
  v("clip-norm", o.clip_norm, "largest norm of the whole gradient; 0: no clipping", Names{});
  v("ema-decay", o.ema_decay, "average of the weights, evaluated and saved too, e.g. 0.999; 0: none", Names{});

  v.group("Schedule (positions count epochs of the whole job)");
  v("epochs", o.epochs, "passes over the training images, all ranks together", Names{"num-epochs"});
  v("max-steps", o.max_steps, "end after this many updates; 0: after the last epoch", Names{});
  v("lr-schedule", o.lr_schedule,
    "linear (default), cosine, cosine_restarts, linear_cosine, poly, steps (chosen by --lr-step-epochs or --lr-factor) "
    "or constant",
    Names{"lr-mode", "lr-decay-mode"});
  v("lr-step-epochs", o.lr_step_epochs, "epochs at which the rate falls, e.g. 200,250; pow2: a polynomial of power 2",
    Names{"lr-decay-epoch"});
  v("lr-factor", o.lr_factor, "what it is multiplied by there; default: 0.1", Names{"lr-decay"});
  v("lr-end", o.lr_end, "last rate of linear (default 0) and poly (default 1e-5)", Names{});
  v("poly-power", o.poly_power, "power of poly", Names{"lr-poly-power"});
  v("warmup-epochs", o.warmup_epochs,
    "epochs over which the rate rises; default: 1, 0 with --lr-step-epochs, 5 with --optimizer lbsgd", Names{});
  v("warmup-lr", o.warmup_lr, "rate at the start of the warmup", Names{});
  v("warmup-strategy", o.warmup_strategy, "linear, power2 or sqrt", Names{});
  v("cosine-alpha", o.cosine_alpha, "last rate of cosine as a share of the peak", Names{});
  v("cdr-first-decay-ratio", o.cdr_first_decay_ratio, "cosine_restarts: length of the first period, 0..1", Names{});
  v("cdr-t-mul", o.cdr_t_mul, "cosine_restarts: growth of the length", Names{});
  v("cdr-m-mul", o.cdr_m_mul, "cosine_restarts: growth of the height", Names{});
  v("cdr-alpha", o.cdr_alpha, "cosine_restarts: lowest rate as a share of the peak", Names{});
  v("lc-periods", o.lc_periods, "linear_cosine: periods", Names{});
  v("lc-alpha", o.lc_alpha, "linear_cosine: alpha", Names{});
  v("lc-beta", o.lc_beta, "linear_cosine: beta", Names{});
  v("stop-at-train-top1", o.stop_at_train_top1,
    "end after the epoch that reaches this training accuracy, 0..1; 0: never", Names{});

  v.group("Run");
  v("run-dir", o.run_dir, "folder for log.jsonl and checkpoints; default: a new one in runs/",
    Names{"train-dir", "log-dir"});
  v("resume", o.resume, "go on: --resume or --resume=latest, --resume=best, --resume=PATH of a checkpoint or run",
    Names{});
  v("model-prefix", o.model_prefix, "the run folder by another name, keeping every checkpoint", Names{});
  v("load-epoch", o.load_epoch, "go on after this epoch of the run folder", Names{});
  v("save-period", o.save_period, "epochs between checkpoints; 0: none at the end of epochs", Names{"save-frequency"});
  v("save-steps", o.save_steps, "steps between checkpoints; 0: none within an epoch", Names{});
  v("keep", o.keep, "newest checkpoints kept, the best beside them; default: 2", Names{});
  v("evaluate-every", o.evaluate_every, "epochs between evaluations; the last epoch always", Names{});
  v("evaluation-batch", o.evaluation_batch, "images per rank in one pass of an evaluation; default: --batch-size",
    Names{});
  v("disp-batches", o.disp_batches, "steps between progress lines and log entries",
    Names{"log-interval", "display-every"});
  v("precision", o.precision, "f32 or bf16 (bfloat16 with f32 master weights)", Names{"dtype"});
  v("backend", o.backend, "auto, reference, eigen or onednn", Names{});
  v("threads", o.threads, "compute threads per rank; 0: the cores of the host, shared by its ranks", Names{});
  v("seed", o.seed, "of weights, order and augmentation", Names{});
  v("tensorboard", o.tensorboard, "write event files for TensorBoard too", Names{});
  v("audit", o.audit, "write which images each step used to audit-rank<N>.txt", Names{});
  v("dry-run", o.dry_run, "print the net and the memory it takes, and stop", Names{});
  v("eval-only", o.eval_only, "only evaluate the checkpoint named by --resume", Names{"eval"});

  v.group("Distribution");
  v("strategy", o.strategy,
    "solo (one process) or mpi (as many as mpirun or tutti-launch started); default: by their number", Names{});
  v("kv-store", o.kv_store,
    "local or device: solo; dist_sync, dist_device_sync, dist_sync_device: mpi; dist_async: ps_async",
    Names{"kvstore"});
  v("gpus", o.gpus, "GPUs of this machine, e.g. 0,1; needs the cuda backend", Names{});
  v("bucket-mib", o.bucket_mib, "gradients summed at a time, MiB; the first bucket is 1", Names{});
  v("comm-deadline", o.comm_deadline, "seconds after which a rank that others wait for counts as lost", Names{});
  v("comm-wire", o.comm_wire, "how gradients cross the network: same (as they are) or bf16", Names{});
  v("hierarchical", o.hierarchical, "sum inside each host first; one flow per host crosses the network", Names{});
  v("shared-memory", o.shared_memory, "ranks of a host sum through shared memory", Names{});
  v("gc-type", o.gc_type, "gradient compression, none or 2bit", Names{});
  v("gc-threshold", o.gc_threshold, "of 2bit", Names{});
}

// Flags of the articles' scripts that mean nothing here unless they ask for something: each is taken with its neutral
// value and refused with any other.
struct NeutralOption {
  const char* name;
  const char* value;
};
inline constexpr NeutralOption neutral_options[] = {
    {"max-random-h", "0"},
    {"max-random-s", "0"},
    {"max-random-l", "0"},
    {"max-random-rotate-angle", "0"},
    {"max-random-shear-ratio", "0"},
    {"max-random-aspect-ratio", "0"},
    {"min-random-aspect-ratio", "0"},
    {"max-random-scale", "1"},
    {"min-random-scale", "1"},
    {"max-random-area", "1"},
    {"min-random-area", "1"},
    {"max-crop-size", "-1"},
    {"min-crop-size", "-1"},
    {"brightness", "0"},
    {"contrast", "0"},
    {"saturation", "0"},
    {"pca-noise", "0"},
    {"random-resized-crop", "0"},
    {"monitor", "0"},
};

}  // namespace tutti::examples
