// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// The options of the training programs as plain values. The tables of names are in cifar10_options.hpp and
// imagenet_options.hpp; check.hpp checks the values.
namespace tutti::trainer {

enum class Program : std::uint8_t { train_cifar10, train_imagenet, tutti_train };

// How a program differs apart from its table of options.
struct ProgramTraits {
  const char *name, *title;
  std::array<const char*, 2> presets;
  double batch_of_rate;  // batch size, in images, that its default learning rate is for
  // As the TensorFlow and Horovod trainer: counts the length of a run, its reports and its checkpoints in steps, which
  // continue from one epoch into the next; and continues a run that its folder has.
  bool as_horovod;
};
[[nodiscard]] constexpr ProgramTraits traits_of(Program p) noexcept {
  if (p == Program::train_imagenet)
    return {"train_imagenet", "Trains a ResNet on ImageNet.", {"torchvision", "mxnet"}, 256, true};
  if (p == Program::tutti_train)
    return {
        "tutti-train",
        "Trains a net on a folder of images: tutti-train FOLDER [OPTIONS]. It chooses what no option says, and prints "
        "each choice.\nThe options are those of train_imagenet.",
        {"torchvision", "mxnet"},
        256,
        true};
  return {"train_cifar10", "Trains a ResNet on small images.", {"cifar-resnet50-28", "mxnet"}, 64, false};
}
[[nodiscard]] constexpr const char* name_of(Program p) noexcept { return traits_of(p).name; }

// The state of a run that other processes continue.
struct RunHandoff {
  std::int64_t step = -1;     // of its last checkpoint; -1: no checkpoint yet
  std::int64_t ended_ns = 0;  // system time at which the last processes stopped for these, in ns; 0: they were lost
};

struct RunOptions {
  Program program = Program::train_cifar10;  // the program that has the options below
  [[nodiscard]] ProgramTraits traits() const { return traits_of(program); }
  // Data
  std::string data_dir;
  std::string dataset = "cifar10";
  std::string image_shape, rgb_mean, rgb_std;
  std::string data_train, data_train_idx, data_val, data_val_idx;
  bool random_crop = true, random_mirror = true;
  std::int64_t centre_epochs = 0;
  std::optional<std::int64_t> pad_size;
  std::string pad_mode = "constant";
  std::int64_t fill_value = 0;
  std::string auto_augment = "none", interpolation = "bilinear", erase_mode = "const";
  double random_erase = 0, jitter_brightness = 0, jitter_contrast = 0;
  std::int64_t erase_count = 1, repeated_aug = 1, cutout = 0;
  double mixup = 0, cutmix = 0, mix_probability = 1, mix_switch = 0.5;
  std::string mix_pairs = "reversed";
  std::int64_t num_examples = 0, num_classes = 0;
  std::int64_t data_nthreads = 1;
  bool benchmark = false, test_io = false;
  // Names of MXNet's scripts on train_imagenet, see mxnet_options.hpp
  bool use_rec = false;
  std::string mode, symbol;  // --network
  std::optional<std::int64_t> layers, save_frequency;
  // Data of train_imagenet
  std::int64_t image_size = 224, eval_size = 0, eval_resize = 0;
  std::string image_size_steps;
  double col_out = 0;
  double crop_pct = 0;
  std::string augmentation = "horovod", decoder = "auto", on_bad_record = "fail";
  bool allow_missing_shards = false;
  bool increased_aug = false;
  double contrast = 0.6, saturation = 0.6, hue = 0.13, brightness = 0.3, pca_noise = 0;
  double crop_area = 0;  // 0: the augmentation's
  double validation_share = 0;
  // Model
  std::string preset, recipe;
  std::string network = "resnet";
  std::int64_t depth = 20;
  double width = 1;
  std::string initializer = "he";
  bool zero_gamma = false;
  std::int64_t whitening_images = 2000;
  double label_smoothing = 0;
  bool bce_loss = false, bce_sum = false;
  std::optional<double> bce_target_thresh;
  // Fine-tuning, see fine_tuning.hpp
  std::string freeze, rate_of, class_weights;
  bool freeze_statistics = false;
  std::int64_t top_k = 5;
  std::string model = "resnet50", stem = "auto", pretrained;
  bool v1 = false, adv_conv_init = true, blur_pool = false;
  std::optional<double> drop_path;
  std::optional<double> bn_eps;
  double bn_momentum = 0.9;
  // Optimisation
  std::int64_t batch_size = 64, global_batch_size = 0, accumulate = 1, macrobatch_size = 0;
  bool batch_auto = false;
  std::string batch_of;  // what --batch-size counts: the images of a rank, of a worker, or of the job
  std::string optimizer = "nag";
  std::optional<double> lr;
  std::optional<double> mom;
  std::optional<double> wd;
  bool decay_all = false, decay_biases = false;
  std::string decay_of;
  std::string opt_betas;  // empty: the optimizer's
  std::optional<double> opt_eps, max_grad_norm;
  bool trust_clip = false, lars_mlperf = false;
  std::string muon_rest = "nag", muon_scale = "rows", muon_products = "f32";
  std::int64_t muon_steps = 5;
  bool muon_normalize = false, muon_sparse_normalize = false;
  std::string muon_coefficients;  // empty: the optimizer's
  std::optional<double> rest_lr, rest_mom, rest_wd;
  std::string early_parameters, early_rate = "schedule";
  double early_epochs = 0;
  double hardest = 1;
  std::optional<double> eta;
  double clip_norm = 0, ema_decay = 0;
  std::string ema_schedule = "counted";
  std::optional<std::int64_t> ema_every;
  double sam = 0;
  std::int64_t sam_every = 1;
  bool use_larc = false;
  std::string loss_scale = "1";
  // Schedule
  std::int64_t epochs = 15, max_steps = 0, num_batches = 0;
  double last_epoch = 1;
  std::string epoch_end = "short";  // or run-on
  std::string lr_schedule = "auto", lr_step_epochs;
  std::string lr_step_lrs;
  std::optional<double> lr_factor, lr_end;
  double poly_power = 2;
  std::optional<double> warmup_epochs;
  std::optional<double> warmup_lr;
  std::string warmup_strategy = "linear";
  double cosine_alpha = 0;
  double cdr_first_decay_ratio = 0.33, cdr_t_mul = 2, cdr_m_mul = 0.1, cdr_alpha = 0;
  double pct_start = 0.3, div_factor = 25, final_div_factor = 1e4;
  std::string anneal_strategy = "cos";
  bool three_phase = false, cycle_momentum = false;
  std::optional<double> base_momentum, max_momentum;
  std::string lr_updates = "step";  // or epoch
  std::int64_t lr_first_step = 0;   // number of the first step in the schedule's formulas
  bool warmup_prefix = true;
  double lc_periods = 0.47, lc_alpha = 0, lc_beta = 1e-5;
  double stop_at_train_top1 = 0;
  std::int64_t patience = 0;
  bool find_lr = false;
  std::int64_t find_lr_steps = 200;
  // Run
  std::string run_dir, log_dir, resume, model_prefix;
  std::optional<std::int64_t> load_epoch;
  std::int64_t save_period = 1, save_steps = 0;
  double save_seconds = 0;
  std::optional<std::int64_t> keep;
  std::optional<std::int64_t> evaluate_every = 1;
  std::int64_t disp_batches = 20, tta = 0;
  std::string log_lines = "tutti";
  std::optional<std::int64_t> evaluation_batch;
  std::string precision = "auto", backend = "auto";
  bool any_half = false;  // bf16 was chosen by default: a GPU without it computes in f16
  std::string data_on_device = "auto", cuda_fusion = "auto", convolution = "auto";
  std::optional<bool> tf32;
  std::optional<bool> autotune;
  bool deterministic = false, recompute = false, cuda_graph = true;
  std::int64_t threads = 0, intra_op_threads = 0, inter_op_threads = 0;
  std::uint64_t seed = 1;
  bool tensorboard = true, audit = false, dry_run = false, eval_only = false;
  bool print_schedule = false;
  std::string trace, trace_steps;
  std::int64_t histograms = 0;
  std::int64_t dry_run_ranks = 0;
  bool clear_log = false, local_ckpt = false, fp16 = false;
  std::string log_name = "hvd_train.log";
  std::int64_t eval_interval = 0, save_summary_steps = 0;
  std::optional<std::int64_t> num_gpus;
  // Distribution
  std::string strategy = "auto", kv_store, gc_type = "none";
  std::optional<std::string> gpus;  // an empty text: the processor
  double gc_threshold = 0.5, ps_snapshot_seconds = 60;
  std::int64_t bucket_mib = 16;
  double comm_deadline = 600;
  std::string comm_wire = "same", encrypt = "auto";
  bool hierarchical = true, shared_memory = true, ps_plain = false;
  std::optional<std::int64_t> ps_staleness{};
  std::string spot_notice;
  std::int64_t logical_ranks = 0;
  bool allow_other_bits = false;
  std::string shares = "equal";
  std::string elastic_batch = "global";
  std::int64_t elastic_ramp_steps = 0;
  std::string ps_key_file;
  std::optional<double> rank_timeout{};
  // Jobs with processes that scripts start one by one, and separate evaluations of a run, see scripted_options.hpp
  std::string ps_hosts, worker_hosts, job_name;
  std::optional<std::int64_t> task_index{};
  std::string checkpoint_dir, eval_dir, eval_data;
  std::optional<double> eval_interval_secs{};
  bool run_once = false;

  // Not options: results of interpreting the options, for messages.
  bool as_table = false;  // an option was written as the Horovod trainer's, with '_': train_imagenet prints its table
  bool data_dir_from_environment = false;
  std::vector<std::pair<std::string, std::string>> from_environment;  // options, and the variables that set them
  std::vector<std::string> notes;
  std::vector<std::string> warnings;  // for standard error, printed by one process of a host
  // Options that are derived from others and from the number of ranks. Ranks need not compare them.
  std::vector<std::string> derived;
  std::int64_t founders = 1;         // number of first workers, if others may join or leave
  std::optional<RunHandoff> kept{};  // set if these processes continue a run of this job
  std::vector<std::string> choices;  // that tutti-train made, see folder_choices.hpp
  // Returns these options, checked anew, for another batch size: for --batch-auto. Empty until they are checked.
  std::function<RunOptions(std::int64_t)> with_batch{};
};

// Returns whether the net of train_cifar10 has a first layer that whitens the images (models/cifar_fast.hpp).
[[nodiscard]] inline bool whitens(const std::string& network) {
  return network == "cifar_fast" || network == "airbench94" || network == "airbench94_muon" ||
         network == "airbench96" || network == "airbench96_proxy" || network == "hive94";
}

// Returns how many steps a pass of all ranks over the global batch counts as: one, or one for each rank if servers own
// the weights.
[[nodiscard]] inline std::int64_t steps_of_all(const RunOptions& o) {
  return o.strategy == "ps_async" ? o.global_batch_size / (o.batch_size * o.accumulate) : 1;
}

}  // namespace tutti::trainer
