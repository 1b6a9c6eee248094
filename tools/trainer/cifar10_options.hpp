// SPDX-License-Identifier: MIT
#pragma once

#include "tools/trainer/option_groups.hpp"
#include "tools/trainer/scripted_options.hpp"

namespace tutti::trainer {

namespace detail {

// Parts of the record recipes for CIFAR-10.
template <class V>
void describe_records(RunOptions& o, V& v) {
  v("muon-coefficients", o.muon_coefficients,
    "muon: the three factors of a step of Newton and Schulz; default: 3.4445,-4.7750,2.0315", Scope::training);
  v("muon-sparse-normalize", o.muon_sparse_normalize,
    "with --muon-normalize: scale every 2nd step at the beginning of the run to every 17th at its end, and decay too",
    Scope::training);
  v("hardest", o.hardest,
    "share of each batch that is trained: the images with the largest losses of a small net that learns from the same "
    "batches; 1: "
    "all images",
    Scope::training);
  v("early-parameters", o.early_parameters,
    "patterns of parameters, as of --freeze, that only the first --early-epochs train", Scope::training);
  v("early-epochs", o.early_epochs, "epochs that train --early-parameters, e.g. 3 or 0.19", Scope::training);
  v("early-rate", o.early_rate,
    "their rate: schedule (that of all), or linear: it falls to 0 in these epochs, with a linear schedule to 0",
    Scope::training);
}

// The option table of train_cifar10.
template <class V>
void describe_cifar10(RunOptions& o, V& v) {
  v.group("Data");
  v("data", o.data_dir,
    "folder of the data set, or its parent; default: $TUTTI_DATA, else data (fashion_mnist: Debian's)", Scope::rank);
  v("dataset", o.dataset, "cifar10, fashion_mnist or synthetic", Scope::training);
  v("data-train", o.data_train,
    "training images as RecordIO, a file or a folder with *train*.rec, instead of --data; like --data-val small images "
    "of one size",
    Scope::rank);
  v("data-train-idx", o.data_train_idx, "its list of records; default: the .idx file next to it", Scope::rank);
  v("data-val", o.data_val, "test images as RecordIO, a file or a folder with *val*.rec or *test*.rec", Scope::rank);
  v("data-val-idx", o.data_val_idx, "its list of records; default: the .idx file next to it", Scope::rank);
  v("decoder", o.decoder, "decoder of these images: auto, turbojpeg or stb", Scope::rank);
  v("image-shape", o.image_shape, "C,H,W of the net's input, e.g. 3,28,28; default: the data set's", Scope::training);
  v("rgb-mean", o.rgb_mean, "a mean per channel on the 0..255 scale; default: the data set's", Scope::training);
  v("rgb-std", o.rgb_std, "a standard deviation per channel; default: the data set's", Scope::training);
  v("random-crop", o.random_crop, "crop training images at random; otherwise the centre is cropped", Scope::training);
  v("centre-epochs", o.centre_epochs, "epochs at the end of the run that crop the centre anyway, as the test does",
    Scope::training);
  v("random-mirror", o.random_mirror, "mirror half of the training images", Scope::training);
  v("pad-size", o.pad_size,
    "pixels added on every side before the crop; default: 4, in runs of up to 60 epochs 2, of up to 20 epochs 1",
    Scope::training);
  v("pad-mode", o.pad_mode, "constant, or reflect: those pixels mirror the image without repeating its border",
    Scope::training);
  v("fill-value", o.fill_value, "value of constant padding, 0..255", Scope::training);
  describe_augmentation(o, v);
  v("cutout", o.cutout, "side of a square of the mean colour in each training image, in pixels; 0: no square",
    Scope::training);
  v("interpolation", o.interpolation, "of --auto-augment: nearest, bilinear, bicubic or random (bilinear or bicubic)",
    Scope::training);
  v("num-examples", o.num_examples, "training images used; 0: all", Scope::training);
  v("num-classes", o.num_classes, "outputs of the net; 0: the data set's classes");
  v("data-nthreads", o.data_nthreads, "threads that read images, per rank; 0: the training thread", Scope::rank);
  v("benchmark", o.benchmark, "train on synthetic images");
  v("test-io", o.test_io, "only read the images and print the speed");

  v.group("Model");
  v("preset", o.preset,
    "cifar-resnet50-28: defaults for the depth-50 net on 28x28 images without augmentation; mxnet: those of MXNet's "
    "train_cifar10.py --network resnet --num-layers 50, with its log lines");
  v("recipe", o.recipe,
    "airbench94, airbench94-muon, airbench96, airbench96-faster, hive94: defaults of the records for CIFAR-10; fast: "
    "tutti's own after "
    "them; finetune: those for --pretrained weights and few images; list: describe all");
  v("network", o.network,
    "resnet (depth 6n+2, or 18, 34, 101, 152 with a stem for small images; on images of up to 28 pixels "
    "resnet_preact, as MXNet's scripts), resnet_postact (6n+2), resnet_preact (6n+2, pre-activation; 9n+2 from 164 "
    "on), "
    "resnet_imagenet, cifar_fast (8 layers, the first one whitens the images), the nets of the records: airbench94, "
    "airbench94_muon, airbench96 (11 layers) and hive94, wide_resnet (6n+4: with --depth 28 --width 10 "
    "Wide-ResNet-28-10)",
    Scope::training);
  v("depth", o.depth, "layers of the net", Scope::training);
  v("width", o.width,
    "channels of cifar_fast as a fraction of 64, 256 and 256, of the nets of the records as a fraction of theirs, or "
    "of wide_resnet as a multiple of 16, 32 and 64");
  v("whitening-images", o.whitening_images, "training images from which a layer that whitens is computed",
    Scope::training);
  v("pretrained", o.pretrained,
    "weights to begin with: a run's folder, of which the best checkpoint is taken, else the newest; a checkpoint; or a "
    ".safetensors file with the net's names; the classifier only if it has as many outputs");
  describe_fine_tuning(o, v);
  v("initializer", o.initializer, "he or xavier");
  v("zero-gamma", o.zero_gamma, "residual branches start at zero", Scope::training);
  describe_loss(o, v);
  v("top-k", o.top_k, "the second accuracy reported; 0: 5");

  v.group("Optimisation");
  v("batch-size", o.batch_size, "images in one pass: per rank, unless --batch-of says otherwise");
  describe_batch_of(o, v);
  v("global-batch-size", o.global_batch_size, "images per update, all ranks together; overrides --batch-size",
    Scope::training);
  v("accumulate", o.accumulate, "passes per update", Scope::training);
  v("macrobatch-size", o.macrobatch_size, "images per update at least, all ranks together, reached by accumulation");
  v("optimizer", o.optimizer, "nag (SGD with Nesterov momentum), sgd, adam, adamw, lamb, muon, lars or larc",
    Scope::training);
  v("lr", o.lr,
    "peak learning rate for the global batch; default: 0.1 per 64 images of it (adam, adamw: 0.001; "
    "lamb: 0.005 times the root of its share of 2048 images; muon: 0.02)",
    Scope::training);
  v("mom", o.mom, "momentum; default: 0.9 (muon: 0.95)", Scope::training);
  v("wd", o.wd, "weight decay; default: 5e-4 (adamw: 0.05, lamb: 0.02, adam: 0)", Scope::training);
  v("decay-all", o.decay_all, "decay batch norm and biases too", Scope::training);
  v("eta", o.eta, "trust coefficient; default: lars 0.001, larc 0.013", Scope::training);
  describe_moments(o, v);
  describe_muon(o, v);
  describe_records(o, v);
  v("clip-norm", o.clip_norm, "largest norm of the whole gradient; 0: no clipping", Scope::training);
  v("ema-decay", o.ema_decay,
    "decay of an average of the weights, which is evaluated and saved too, e.g. 0.999; 0: no average", Scope::training);
  describe_average(o, v);
  describe_sam(o, v);

  v.group("Schedule (positions count epochs of the whole job)");
  v("epochs", o.epochs, "passes over the training images, all ranks together", Scope::training);
  v("last-epoch", o.last_epoch, "share of the last epoch that is trained, over 0 to 1: 0.9 with --epochs 10 is 9.9",
    Scope::training);
  v("epoch-end", o.epoch_end,
    "a step that the rest of an epoch does not fill: short, or run-on: it goes on with the next epoch, and the run has "
    "as many steps as if the rests were left out",
    Scope::training);
  v("max-steps", o.max_steps, "end after this many updates; 0: after the last epoch");
  v("lr-schedule", o.lr_schedule,
    "linear (default), cosine, cosine_restarts, linear_cosine, one_cycle, poly, steps (chosen by --lr-step-epochs or "
    "--lr-factor) "
    "or constant",
    Scope::training);
  v("lr-step-epochs", o.lr_step_epochs, "epochs at which the rate falls, e.g. 200,250; pow2: a polynomial of power 2",
    Scope::training);
  v("lr-factor", o.lr_factor, "factor of the rate at these epochs; default: 0.1", Scope::training);
  v("lr-end", o.lr_end, "last rate of linear (default 0) and poly (default 1e-5)", Scope::training);
  v("poly-power", o.poly_power, "power of poly", Scope::training);
  v("warmup-epochs", o.warmup_epochs,
    "epochs over which the rate rises; default: 1, 0 with --lr-step-epochs, 5 with --optimizer lbsgd", Scope::training);
  v("warmup-lr", o.warmup_lr, "rate at the start of the warmup; default: 0.001", Scope::training);
  v("warmup-strategy", o.warmup_strategy, "linear, power2 or sqrt", Scope::training);
  describe_curves(o, v);
  v("stop-at-train-top1", o.stop_at_train_top1,
    "end after the epoch that reaches this training accuracy, 0..1; 0: never");
  describe_stopping(o, v);

  v.group("Run");
  v("run-dir", o.run_dir, "folder of the checkpoints and logs; default: --log-dir, else a new one in runs/",
    Scope::rank);
  v("log-dir", o.log_dir, "folder of log.jsonl and the event files; default: --run-dir", Scope::rank);
  describe_checkpoints(o, v);
  v("model-prefix", o.model_prefix, "the run folder under another name; keeps every checkpoint", Scope::rank);
  v("load-epoch", o.load_epoch, "continue after this epoch of the run folder");
  v("save-period", o.save_period, "epochs between checkpoints; 0: not at the end of epochs");
  v("save-steps", o.save_steps, "steps between checkpoints; 0: not within an epoch");
  v("evaluate-every", o.evaluate_every, "epochs between evaluations, and at the end; 0: never");
  v("tta", o.tta,
    "views of each test image at the end of the run: 0 the image only, 1 also mirrored, 2 also shifted by a pixel; 3: "
    "those of 2, with equal weights, of the least certain quarter of the images only");
  v("disp-batches", o.disp_batches, "steps between progress lines and log entries", Scope::rank);
  describe_log_lines(o, v);
  v("precision", o.precision, "f32 (auto), bf16 (bfloat16 with f32 master weights) or, with cuda, f16",
    Scope::training);
  describe_machine(o, v);
  v("eval-only", o.eval_only, "only evaluate the checkpoint named by --resume");

  describe_distribution(o, v);
  describe_scripted(o, v);
}

}  // namespace detail

// Options that have no effect on small images, which are only cropped and mirrored.
inline constexpr NeutralOption cifar10_neutral_options[] = {
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

}  // namespace tutti::trainer
