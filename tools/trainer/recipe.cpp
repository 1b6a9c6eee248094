// SPDX-License-Identifier: MIT
#include "tools/trainer/recipe.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/data/augment/mix.hpp>
#include <tutti/graph/builder.hpp>
#include <tutti/models/cifar_fast.hpp>
#include <tutti/models/imagenet_net.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/resnet_cifar.hpp>
#include <tutti/models/wide_resnet.hpp>
#include <tutti/optim/schedule_parse.hpp>

#include "tools/trainer/augmentation.hpp"
#include "tools/trainer/fine_tuning.hpp"
#include "tools/trainer/image_sizes.hpp"
#include "tools/trainer/scripted_options.hpp"

namespace tutti::trainer {

namespace {

schedule::OneCycleOptions one_cycle_options(const RunOptions& o) {
  return {.pct_start = o.pct_start,
          .div_factor = o.div_factor,
          .final_div_factor = o.final_div_factor,
          .linear = o.anneal_strategy == "linear",
          .three_phase = o.three_phase};
}

}  // namespace

Schedule make_schedule(const RunOptions& o, std::int64_t steps_per_epoch) {
  const double lr = o.lr.value();
  const auto decay = [&]() -> Schedule {
    if (o.lr_schedule == "linear") return schedule::Poly(lr, {.power = 1, .end = o.lr_end.value()});
    if (o.lr_schedule.starts_with("poly"))
      return schedule::Poly(lr,
                            {.power = o.poly_power, .end = o.lr_end.value(), .cycle = o.lr_schedule == "poly_cycle"});
    if (o.lr_schedule == "cosine") return schedule::Cosine(lr, o.cosine_alpha);
    if (o.lr_schedule == "cosine_restarts")
      return schedule::CosineRestarts(lr, {.first_decay_ratio = o.cdr_first_decay_ratio,
                                           .t_mul = o.cdr_t_mul,
                                           .m_mul = o.cdr_m_mul,
                                           .alpha = o.cdr_alpha});
    if (o.lr_schedule == "one_cycle") return schedule::OneCycle(lr, one_cycle_options(o));
    if (o.lr_schedule == "linear_cosine")
      return schedule::LinearCosine(lr, {.periods = o.lc_periods, .alpha = o.lc_alpha, .beta = o.lc_beta});
    if (!o.lr_step_lrs.empty())
      return schedule::Piecewise(schedule::parse_numbers("--lr-decay-steps", o.lr_step_epochs),
                                 schedule::parse_numbers("--lr-decay-lrs", o.lr_step_lrs));
    if (o.lr_schedule == "steps") return schedule::parse_lr_step_epochs(o.lr_step_epochs, lr, o.lr_factor.value());
    return schedule::Constant(lr);
  };
  const std::int64_t warmup = warmup_steps(o, steps_per_epoch);
  const auto whole = [&](Schedule s) -> Schedule {
    if (o.lr_first_step > 0)
      s = [from = std::move(s), first = o.lr_first_step](SchedulePoint p) {
        p.step += first;
        return from(p);
      };
    if (o.lr_updates == "epoch") s = schedule::PerEpoch(std::move(s));
    return s;
  };
  if (warmup == 0) return whole(decay());
  // Epochs such as "200 and 250" are absolute. A curve runs from the end of the warmup to the end of the run.
  const bool anew = o.lr_schedule != "steps" && o.warmup_prefix;
  const double power = o.warmup_strategy == "sqrt" ? 0.5 : o.warmup_strategy == "power2" ? 2 : 1;
  if (anew) return whole(schedule::Warmup(*o.warmup_lr, lr, warmup, decay(), power));
  return whole(schedule::WarmupWithin(*o.warmup_lr, lr, warmup, decay(), power));
}

std::int64_t steps_of_run(const RunOptions& o, std::int64_t images) {
  if (images == 0) return 0;
  if (o.num_batches > 0) return o.num_batches;
  const EpochEnd end = epoch_end_of(o);
  if (o.last_epoch == 1 && o.epoch_end == "short")
    return steps_left({}, images, o.global_batch_size, end, o.epochs) * steps_of_all(o);
  const auto steps = static_cast<double>(steps_per_epoch(images, o.global_batch_size, end));
  const double epochs = static_cast<double>(o.epochs - 1) + o.last_epoch;
  return static_cast<std::int64_t>(std::ceil(epochs * steps - 1e-6)) * steps_of_all(o);
}

AnyOptimizer make_optimizer(const RunOptions& o, std::int64_t steps) {
  if (o.optimizer == "sgd") return Sgd{o.mom.value(), false};
  const auto with_moments = [&](auto made) {
    if (!o.opt_betas.empty()) {
      const auto betas = schedule::parse_numbers("--opt-betas", o.opt_betas);
      made.beta1 = betas[0];
      made.beta2 = betas[1];
    }
    if (o.opt_eps) made.eps = *o.opt_eps;
    return made;
  };
  if (o.optimizer == "adam") return with_moments(Adam{});
  if (o.optimizer == "adamw") return with_moments(Adamw{});
  if (o.optimizer == "muon") {
    MuonUpdate rule{.momentum = o.mom.value(),
                    .steps = static_cast<int>(o.muon_steps),
                    .scale = o.muon_scale == "none"   ? MuonUpdate::Scale::none
                             : o.muon_scale == "rows" ? MuonUpdate::Scale::rows
                                                      : MuonUpdate::Scale::rms,
                    .normalize = o.muon_normalize,
                    .sparse_steps = o.muon_sparse_normalize ? std::max<std::int64_t>(steps, 1) : 0,
                    .bf16 = o.muon_products == "bf16"};
    if (!o.muon_coefficients.empty()) {
      const auto k = schedule::parse_numbers("--muon-coefficients", o.muon_coefficients);
      rule.a = k[0];
      rule.b = k[1];
      rule.c = k[2];
    }
    const double rest_rate = o.lr.value() > 0 ? o.rest_lr.value() / *o.lr : 1;
    if (o.muon_rest == "adamw")
      return with_moments(MuonAdamw{.rule = rule, .rest_rate = rest_rate, .rest_decay = o.rest_wd});
    return Muon{
        .rule = rule, .rest_momentum = o.rest_mom.value_or(0.9), .rest_rate = rest_rate, .rest_decay = o.rest_wd};
  }
  if (o.optimizer == "lamb")
    return with_moments(Lamb{.trust_clip = o.trust_clip, .max_grad_norm = o.max_grad_norm.value_or(1)});
  if (o.optimizer == "lars") return Lars{.momentum = o.mom.value(), .eta = o.eta.value(), .mlperf = o.lars_mlperf};
  // The Horovod trainer applies LARC around Nesterov momentum.
  if (o.optimizer == "larc") return Larc{.momentum = o.mom.value(), .nesterov = true, .eta = o.eta.value()};
  return Sgd{o.mom.value(), true};
}

EmaSchedule make_ema_schedule(const RunOptions& o, std::int64_t images) {
  EmaSchedule s;
  if (o.ema_schedule == "constant") s.warmup = EmaSchedule::Warmup::none;
  if (o.ema_schedule == "timm") s = EmaSchedule::timm(true);
  const std::int64_t every = o.ema_every.value_or(1);
  if (o.ema_schedule == "torchvision" && images > 0) {
    const std::int64_t per_epoch = steps_per_epoch(images, o.global_batch_size, epoch_end_of(o)) * steps_of_all(o);
    s = EmaSchedule::torchvision(every, per_epoch, warmup_steps(o, per_epoch));
  }
  if (o.ema_schedule == "lookahead")
    return EmaSchedule::airbench(every, std::max<std::int64_t>(steps_of_run(o, images), 1));
  s.every = every;
  return s;
}

TrainerOptions trainer_options(const RunOptions& o, std::int64_t images) {
  TrainerOptions t;
  t.compute = o.precision == "bf16" ? DType::bf16 : o.precision == "f16" ? DType::f16 : DType::f32;
  t.optimizer = make_optimizer(o, steps_of_run(o, images));
  t.weight_decay = o.wd.value();
  t.decay_all = o.decay_all;
  t.clip_norm = o.clip_norm;
  t.dynamic_loss_scale = o.loss_scale == "dynamic";
  if (!t.dynamic_loss_scale) t.loss_scale = schedule::parse_numbers("--loss-scale", o.loss_scale)[0];
  t.ema_decay = o.ema_schedule == "torchvision" && o.ema_decay > 0
                    ? EmaSchedule::torchvision_decay(o.ema_decay, o.global_batch_size, o.ema_every.value_or(1),
                                                     std::max<std::int64_t>(o.epochs, 1))
                    : o.ema_decay;
  t.ema = make_ema_schedule(o, images);
  if (o.early_epochs > 0 && images > 0) {
    const auto steps = static_cast<double>(steps_per_epoch(images, o.global_batch_size, epoch_end_of(o)));
    t.early.parameters = o.early_parameters;
    t.early.steps = static_cast<std::int64_t>(std::ceil(o.early_epochs * steps - 1e-6)) * steps_of_all(o);
    if (o.early_rate == "linear") t.early.of_steps = steps_of_run(o, images);
  }
  t.sam = {o.sam, o.sam_every};
  t.seed = o.seed;
  t.micro_batch = micro_batch_of(o);
  t.logical_ranks = static_cast<int>(o.logical_ranks);
  t.allow_other_bits = o.allow_other_bits;
  if (const auto sizes = image_size_steps(o);
      o.program != Program::train_cifar10 && (sizes.size() > 1 || o.image_size != o.eval_size || o.col_out > 0))
    for (const ImageSizeStep& s : sizes) {
      const std::int64_t side = ColOut::kept(s.size, o.col_out);
      t.image_sizes.push_back({side, side});
    }
  t.bucket_bytes = static_cast<std::size_t>(o.bucket_mib) << 20;
  return t;
}

std::string bad_record_hint(const RunOptions& o) {
  if (!o.traits().as_horovod) return {};
  return "--on-bad-record skip trains without such images; tutti-data verify " + o.data_dir + " --decode names all";
}

LoaderOptions loader_options(const RunOptions& o, bool training, int rank, int world) {
  LoaderOptions l;
  const std::int64_t ranks = o.logical_ranks > 0 ? o.logical_ranks : world;
  l.placement = {training ? o.global_batch_size : *o.evaluation_batch * ranks, rank, world};
  l.placement.logical_ranks = static_cast<int>(o.logical_ranks);
  if (training && !o.test_io) l.placement.epoch_end = epoch_end_of(o);
  l.seed = o.seed;
  l.shuffle = training;
  l.one_pass = !training;
  l.threads = static_cast<int>(o.data_nthreads);
  l.skip_bad_records = o.on_bad_record == "skip";
  l.bad_record_hint = bad_record_hint(o);
  if (training) {
    l.mix = mixer(batch_mix(o));
    l.col_out = {o.col_out, o.col_out};
  }
  return l;
}

FitOptions fit_options(const RunOptions& o, std::int64_t images) {
  const std::int64_t steps_per_epoch = tutti::steps_per_epoch(images, o.global_batch_size, epoch_end_of(o));
  FitOptions f;
  f.epochs = o.epochs;
  f.global_batch = o.global_batch_size;
  f.schedule = make_schedule(o, steps_per_epoch * steps_of_all(o));
  if (o.cycle_momentum)
    f.momentum = schedule::CycledMomentum(o.base_momentum.value(), o.max_momentum.value(), one_cycle_options(o));
  f.report_every = o.disp_batches;
  f.evaluate_every = o.evaluate_every.value_or(0);
  f.mistakes = true;
  f.shares = o.shares == "measured" ? Shares::measured : o.shares == "rows" ? Shares::rows : Shares::equal;
  f.save_every = o.save_period;
  f.save_every_steps = o.save_steps;
  f.save_every_seconds = o.save_seconds;
  f.max_steps = o.max_steps;
  if (o.num_batches > 0 || o.last_epoch < 1 || o.epoch_end != "short") {
    f.total_steps = steps_of_run(o, images);
    // Sets enough epochs for all steps.
    f.epochs = (f.total_steps / (o.num_batches > 0 ? 1 : steps_of_all(o)) * o.global_batch_size + images - 1) / images;
    // If the batch follows the number of workers, fit() counts these steps with the first batch size.
    if (o.elastic_batch != "worker" && (f.max_steps == 0 || f.max_steps > f.total_steps)) f.max_steps = f.total_steps;
  }
  if (o.elastic_batch == "worker") {
    f.batch_per_worker = o.batch_size * o.accumulate;
    f.ramp_steps = o.elastic_ramp_steps;
    // The default rate is for this batch size, even if other processes began the run.
    if (std::find(o.derived.begin(), o.derived.end(), "lr") != o.derived.end()) f.rate_batch = o.global_batch_size;
  }
  if (o.traits().as_horovod) {
    // train_imagenet's table has rows for step 1 and for every --display-every'th step; its intervals are in steps.
    f.report_first = true;
    f.report_epochs = !o.as_table;
    const std::int64_t steps = steps_per_epoch * steps_of_all(o);
    if (f.save_every_steps == 0 && f.save_every == 0) f.save_every_steps = steps;
    f.save_last = true;
    f.summary_every = o.save_summary_steps > 0 ? o.save_summary_steps : steps;
  }
  if (is_scripted(o)) f.save_last = true;
  f.evaluation_batch = o.evaluation_batch.value();
  f.stop_at_train_top1 = o.stop_at_train_top1;
  f.patience = o.patience;
  return f;
}

namespace detail {

std::vector<float> whitening_weights(const RunOptions& o, const AnyDataset& train, const Schema& schema,
                                     std::span<const float> inv_std) {
  models::PatchMoments moments(schema.channels, 2);
  std::vector<std::uint8_t> image(static_cast<std::size_t>(train.schema().image_bytes()));
  // Leaves out what a shift may have moved in. The nets of the records take images as they are.
  const std::int64_t padded = o.network == "cifar_fast" ? o.pad_size.value_or(0) : 0;
  const std::int64_t border = 2 * padded + 2 <= std::min(schema.height, schema.width) ? padded : 0;
  for (std::int64_t i = 0; i < std::min(o.whitening_images, train.size()); ++i) {
    std::int32_t label = 0;
    Rng rng(o.seed, Purpose::augment, 0, static_cast<std::uint64_t>(i));
    train.read(i, rng, Sample{image, label});
    moments.add(image, train.schema().height, train.schema().width, border);
  }
  return models::whitening_weights(moments, schema.mean, inv_std);
}

// Returns the net of a name for which whitens() is true.
static models::CifarFastOptions fast_net(const std::string& network) {
  if (network == "airbench94") return models::CifarFastOptions::airbench94();
  if (network == "airbench94_muon") return models::CifarFastOptions::airbench94_muon();
  if (network == "airbench96") return models::CifarFastOptions::airbench96();
  if (network == "airbench96_proxy") return models::CifarFastOptions::airbench96_proxy();
  if (network == "hive94") return models::CifarFastOptions::hive94();
  return {};
}

// Changes the loss with which a net ends to that of the options.
static void set_loss(Graph& g, const RunOptions& o) {
  if (!o.bce_loss) return;
  auto& loss = std::get<op::SoftmaxCrossEntropy>(g.nodes[static_cast<std::size_t>(g[g.metrics].producer)].op);
  loss.binary = true;
  loss.threshold = static_cast<float>(o.bce_target_thresh.value_or(-1));
  loss.sum_classes = o.bce_sum;
}

}  // namespace detail

Graph make_model(const RunOptions& o, const Schema& schema, const AnyDataset* train, const RecordResnet& resnet) {
  Builder b(schema.channels, schema.height, schema.width);
  std::vector<float> inverse;
  for (const float s : schema.stddev) inverse.push_back(1 / s);
  const ValueId x = b.normalize(schema.mean, inverse);
  const auto smoothing = static_cast<float>(o.label_smoothing);
  const int depth = static_cast<int>(o.depth);
  if (whitens(o.network)) {
    models::CifarFastOptions r = detail::fast_net(o.network);
    r.classes = schema.classes;
    for (auto& w : r.widths) w = std::max<std::int64_t>(std::llround(o.width * static_cast<double>(w) / 8), 1) * 8;
    if (train != nullptr) r.whitening = detail::whitening_weights(o, *train, schema, inverse);
    r.label_smoothing = smoothing;
    r.top_k = static_cast<int>(o.top_k);
    models::cifar_fast(b, x, r);
  } else if (o.network == "wide_resnet") {
    models::wide_resnet(b, x,
                        {.depth = depth,
                         .widen = std::llround(o.width),
                         .classes = schema.classes,
                         .label_smoothing = smoothing,
                         .top_k = static_cast<int>(o.top_k)});
  } else if (o.network == "resnet_imagenet" || depth == 0) {
    models::ResnetOptions r;
    r.classes = schema.classes;
    r.cifar_stem = o.stem == "small" || (o.stem == "auto" && schema.height < 64);
    r.zero_gamma = o.zero_gamma;
    r.glorot = !o.adv_conv_init;
    r.decay_bias = o.decay_biases;
    r.stride_in_1x1 = o.v1;
    r.blur = o.blur_pool;
    if (o.bn_eps) r.bn_eps = static_cast<float>(*o.bn_eps);
    r.bn_momentum = static_cast<float>(1 - o.bn_momentum);
    r.label_smoothing = smoothing;
    r.top_k = static_cast<int>(o.top_k);
    if (resnet)
      resnet(b, x, r);
    else
      models::imagenet_net(b, x, depth > 0 ? "resnet" + std::to_string(depth) : o.network, r, o.drop_path);
  } else {
    models::ResnetCifarOptions r;
    r.depth = depth;
    r.classes = schema.classes;
    r.zero_gamma = o.zero_gamma;
    r.xavier = o.initializer == "xavier";
    r.preactivation = o.network == "resnet_preact";
    if (r.preactivation) r.bn_eps = 2e-5F;
    r.label_smoothing = smoothing;
    r.top_k = static_cast<int>(o.top_k);
    models::resnet_cifar(b, x, r);
  }
  if (batch_mix(o).any()) b.mix_labels();
  Graph model = std::move(b).take();
  detail::set_loss(model, o);
  group_parameters(model, o);
  return model;
}

Graph make_model(const RunOptions& o, const Schema& schema, const AnyDataset* train) {
  return make_model(o, schema, train, {});
}

interchange::Metadata model_metadata(const RunOptions& o, const Schema& seen, const Graph& model,
                                     const interchange::ImagePreparation& image) {
  std::string name = o.network;
  if (o.depth > 0 && !whitens(o.network)) name += "-" + std::to_string(o.depth);
  if (o.network == "wide_resnet") name += "-" + std::to_string(std::llround(o.width));
  return interchange::model_metadata(name, model, image, seen.class_names);
}

}  // namespace tutti::trainer
