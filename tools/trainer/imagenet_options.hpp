// SPDX-License-Identifier: MIT
#pragma once

#include "tools/trainer/mxnet_options.hpp"
#include "tools/trainer/option_groups.hpp"

// The options of train_imagenet: names of the TensorFlow and Horovod ResNet-50 trainer, and those of train_cifar10.
namespace tutti::trainer {

namespace detail {

template <class V>
void describe_imagenet(RunOptions& o, V& v) {
  v.group("Data");
  v("data-dir", o.data_dir,
    "folder with training and validation images as class folders, TFRecords, RecordIO or packed shards, or its parent; "
    "default: $TUTTI_DATA",
    Scope::rank);
  describe_mxnet_data(o, v);
  v("synthetic", o.benchmark, "train on synthetic images");
  v("num-examples", o.num_examples, "synthetic images; 0: 1281167", Scope::training);
  v("image-size", o.image_size, "height and width of training images", Scope::training);
  v("image-size-steps", o.image_size_steps,
    "other sizes of training images after some epochs, EPOCH:SIZE,...: 12:192 means 192 pixels after 12 epochs",
    Scope::training);
  v("col-out", o.col_out,
    "share of the rows and columns of pixels that each step leaves out of its training images, the same ones of all "
    "images of a rank, e.g. 0.05; the net then sees smaller images; 0: none",
    Scope::training);
  v("eval-size", o.eval_size, "height and width in an evaluation, and of the saved net; 0: the last size of training",
    Scope::training);
  v("augmentation", o.augmentation,
    "horovod (a random part of a square canvas; the central 80 % in an evaluation) or torchvision (a random part; "
    "short "
    "side scaled to 8/7 of the size, and the centre)",
    Scope::training);
  v("crop-area", o.crop_area,
    "with --augmentation torchvision: smallest random part of a training image, as a share of its area; 0: 0.08",
    Scope::training);
  v("validation-share", o.validation_share,
    "if there are no validation images: the share of each class that is not used for training but for evaluation, "
    "chosen by --seed; 0: none",
    Scope::training);
  v("increased-aug", o.increased_aug, "change colours too", Scope::training);
  v("contrast", o.contrast, "of --increased-aug");
  v("saturation", o.saturation, "of --increased-aug");
  v("hue", o.hue, "of --increased-aug");
  v("brightness", o.brightness, "of --increased-aug");
  v("pca-noise", o.pca_noise, "PCA lighting, e.g. 0.1; 0: none");
  describe_augmentation(o, v);
  v("interpolation", o.interpolation,
    "of scaling and of --auto-augment: bilinear, bicubic or random (bilinear or bicubic; an evaluation: bicubic)",
    Scope::training);
  v("eval-resize", o.eval_resize,
    "with --augmentation torchvision: short side of an image in an evaluation, before its centre is cut out; 0: 8/7 of "
    "the size",
    Scope::training);
  v("crop-pct", o.crop_pct,
    "size of the net's input as a share of that short side, another way to give --eval-resize; with --augmentation "
    "horovod the central share of each side; 0: 0.875 and 0.8",
    Scope::training);
  v("rgb-mean", o.rgb_mean, "a mean per channel on the 0..255 scale; default: the augmentation's", Scope::training);
  v("rgb-std", o.rgb_std, "a standard deviation per channel; default: the augmentation's", Scope::training);
  v("num-classes", o.num_classes, "outputs of the net; 0: the data set's classes");
  v("num-parallel-calls", o.data_nthreads, "threads that decode images, per rank; 0: the training thread", Scope::rank);
  v("decoder", o.decoder, "auto, turbojpeg or stb", Scope::rank);
  v("on-bad-record", o.on_bad_record, "fail, or skip: a damaged record counts with weight 0 and is named in the log");
  v("allow-missing-shards", o.allow_missing_shards,
    "train on an incomplete TFRecord or packed set, if file names show that some files are missing");
  v("test-io", o.test_io, "only read the images and print the speed");

  v.group("Model");
  v("preset", o.preset,
    "torchvision: its recipe for ResNet-50, 90 epochs with the rate divided by 10 every 30; mxnet: the defaults of "
    "train_resnet.py, with MXNet's log lines");
  v("recipe", o.recipe,
    "a published recipe for ResNet-50, e.g. torchvision-v2, or finetune, for --pretrained weights and few images; "
    "other "
    "options replace its values; list: describe all");
  v("model", o.model,
    "resnet18, resnet34, resnet50, resnet101 or resnet152; resnext50_32x4d, wide_resnet50_2, mobilenet_v2 or "
    "convnext_tiny as in torchvision; resnet50d or seresnet50 as in timm. GluonCV's resnet50_v1b is resnet50, its "
    "resnet50_v1 has --v1 too",
    Scope::training);
  v("stem", o.stem,
    "imagenet (7x7 of stride 2 and pooling) or small (3x3 of stride 1); auto: small below 64 pixels, else imagenet",
    Scope::training);
  describe_mxnet_model(o, v);
  v("v1", o.v1, "stride in the first 1x1 of a bottleneck, not in its 3x3", Scope::training);
  v("blur-pool", o.blur_pool, "blur the input of each strided convolution of 16 channels or more, as FFCV's BlurPool",
    Scope::training);
  v("drop-path", o.drop_path,
    "rate of stochastic depth of the last block, which grows evenly over the blocks, 0..1; default: 0, ConvNeXt 0.1",
    Scope::training);
  v("pretrained", o.pretrained,
    "weights to begin with: a run's folder, of which the best checkpoint is taken, else the newest; a checkpoint; or a "
    ".safetensors file with torchvision's names; the classifier only if it has as many outputs");
  describe_fine_tuning(o, v);
  v("adv-bn-init", o.zero_gamma, "residual branches start at zero", Scope::training);
  v("adv-conv-init", o.adv_conv_init,
    "initialise convolutions as in He et al. 2015; otherwise as in Glorot and Bengio 2010", Scope::training);
  v("bn-eps", o.bn_eps, "batch norm's epsilon; default: horovod 1e-4, torchvision 1e-5", Scope::training);
  v("bn-momentum", o.bn_momentum, "share of batch norm's running statistics that a step keeps", Scope::training);
  describe_loss(o, v);

  v.group("Optimisation");
  v("batch-size", o.batch_size, "images in one pass: per rank, unless --batch-of says otherwise");
  describe_batch_of(o, v);
  v("global-batch-size", o.global_batch_size, "images per update, all ranks together; overrides --batch-size",
    Scope::training);
  v("accumulate", o.accumulate, "passes per update", Scope::training);
  v("optimizer", o.optimizer, "nag (SGD with Nesterov momentum), sgd, adam, adamw, lamb, muon, lars or larc",
    Scope::training);
  v("use-larc", o.use_larc, "larc: LARC around Nesterov momentum");
  v("lr", o.lr,
    "peak learning rate for the global batch; default: 0.1 per 256 images of it (adam, adamw: 0.001; "
    "lamb: 0.005 times the root of its share of 2048 images; muon: 0.02), 3.7 with LARC",
    Scope::training);
  v("mom", o.mom, "momentum; default: 0.9 (muon: 0.95)", Scope::training);
  v("wdecay", o.wd, "weight decay; default: 1e-4 (adamw: 0.05, lamb: 0.02, adam: 0)", Scope::training);
  v("decay-biases", o.decay_biases, "decay the classifier's bias too, as the Horovod trainer does", Scope::training);
  v("decay-all", o.decay_all, "decay batch norm and biases too", Scope::training);
  v("decay-of", o.decay_of,
    "patterns of parameters that decay too, separated by commas, as those of --freeze: *.downsample.1 is batch norm of "
    "the shortcuts of ResNets",
    Scope::training);
  v("leta", o.eta, "trust coefficient; default: lars 0.001, larc 0.013", Scope::training);
  describe_moments(o, v);
  describe_muon(o, v);
  v("loss-scale", o.loss_scale, "factor of the loss before the backward pass; dynamic: as large as possible",
    Scope::training);
  v("clip-norm", o.clip_norm, "largest norm of the whole gradient; 0: no clipping", Scope::training);
  v("ema-decay", o.ema_decay,
    "decay of an average of the weights, which is evaluated and saved too, e.g. 0.9999; 0: no average",
    Scope::training);
  describe_average(o, v);
  describe_sam(o, v);

  v.group("Schedule (positions count epochs of the whole job)");
  v("num-epochs", o.epochs, "passes over the training images, all ranks together; this or --num-batches",
    Scope::training);
  v("num-batches", o.num_batches, "length of the run in updates, if --num-epochs is not given", Scope::training);
  v("max-steps", o.max_steps, "end after this many updates, even if the schedule is longer; 0: at its end");
  v("lr-decay-mode", o.lr_schedule,
    "poly, poly_cycle, cosine, cosine_decay_restarts, linear_cosine, one_cycle, steps, linear or constant; auto: poly, "
    "or steps "
    "if one of its three options below is given",
    Scope::training);
  v("lr-decay-steps", o.lr_step_epochs,
    "with --lr-decay-mode steps: epochs at which the learning rate changes; default: 30,60,80", Scope::training);
  v("lr-decay-lrs", o.lr_step_lrs,
    "with --lr-decay-mode steps: the learning rates, one more than --lr-decay-steps; default: computed with "
    "--lr-decay-factor",
    Scope::training);
  v("lr-decay-factor", o.lr_factor,
    "with --lr-decay-mode steps: factor of the learning rate at each of the epochs; default: 0.1");
  v("poly-power", o.poly_power, "power of poly", Scope::training);
  v("lr-end", o.lr_end, "last rate of poly (default 1e-5) and linear (default 0)", Scope::training);
  v("warmup-epochs", o.warmup_epochs, "epochs over which the rate rises; default: 0", Scope::training);
  v("warmup-lr", o.warmup_lr, "rate at the start of the warmup; default: 0.001", Scope::training);
  describe_curves(o, v);
  describe_stopping(o, v);

  v.group("Run");
  v("log-dir", o.run_dir, "folder of the logs and checkpoints; a run in it continues", Scope::rank);
  v("logging-dir", o.log_dir, "folder of log.jsonl and the event files; default: --log-dir", Scope::rank);
  v("clear-log", o.clear_log, "remove the run in --log-dir, and begin again");
  v("log-name", o.log_name, "file name of the text log in --log-dir; with --eval it gets the prefix eval_",
    Scope::rank);
  describe_checkpoints(o, v);
  v("save-checkpoints-steps", o.save_steps, "steps between checkpoints, and at the end; 0: those of an epoch");
  v("save-frequency", o.save_frequency, "epochs between checkpoints, instead of --save-checkpoints-steps; 0: by steps");
  v("local-ckpt", o.local_ckpt, "one rank of every host saves in that host's own --log-dir, not only rank 0");
  v("save-summary-steps", o.save_summary_steps, "steps between points of TensorBoard's curves; 0: those of an epoch");
  v("evaluate-every", o.evaluate_every,
    "epochs between evaluations while training, and at the end; 0: never; default: 1 with class folders, unless "
    "--eval-interval or --num-gpus is given, else 0");
  v("tta", o.tta,
    "views of each test image at the end of the run: 0 the image only, 1 also mirrored, 2 also shifted by a pixel");
  v("eval", o.eval_only,
    "evaluate the newest checkpoint, or the one of --resume, or the weights of --pretrained, instead of training");
  v("eval-interval", o.eval_interval,
    "with --eval: every k-th checkpoint, counted from the oldest, and always the newest; 0: only the newest");
  v("num-gpus", o.num_gpus,
    "ranks that made the checkpoints, for the column epoch of --eval; default: from the checkpoint");
  v("display-every", o.disp_batches, "steps between lines of the table and log entries", Scope::rank);
  describe_log_lines(o, v);
  v("fp16", o.fp16,
    "half precision with f32 master weights: bf16, f16 on GPUs without it; f32 on processors without bf16 "
    "instructions");
  v("precision", o.precision, "f32, bf16 or, with cuda, f16; auto: by --fp16", Scope::training);
  describe_machine(o, v);
  v("print-schedule", o.print_schedule, "print step, epoch and rate of every line of the table, and stop");
  v("intra-op-parallelism-threads", o.intra_op_threads, "another name of --threads, for the processor", Scope::rank);
  v("inter-op-parallelism-threads", o.inter_op_threads,
    "has no effect: ops run one after the other, each on all threads");

  describe_distribution(o, v);
}

}  // namespace detail

// Sets the defaults that differ from train_cifar10's.
RunOptions imagenet_defaults();

}  // namespace tutti::trainer
