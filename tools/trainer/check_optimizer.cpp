// SPDX-License-Identifier: MIT
#include "tools/trainer/check_optimizer.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/optim/schedule_parse.hpp>

#include "tools/trainer/check_imagenet.hpp"
#include "tools/trainer/check_values.hpp"
#include "tools/trainer/recipes.hpp"

namespace tutti::trainer::detail {

namespace {

// Returns the options that a recipe sets by itself.
RunOptions recipe_alone(const RunOptions& o) {
  RunOptions alone;
  alone.program = o.program;
  if (!o.recipe.empty()) apply_recipe(alone, o.recipe);
  return alone;
}

// Returns whether an option of a part that the user has turned off has the value that the recipe sets, so that the user
// need not have given it.
template <class T>
bool by_recipe(const RunOptions& o, T RunOptions::*option) {
  return !o.recipe.empty() && o.recipe != "finetune" && o.*option == recipe_alone(o).*option;
}

// Checks the numbers of Adam's moments, which SGD does not have.
void check_moments(RunOptions& o) {
  const bool lamb = o.optimizer == "lamb";
  const bool moments = lamb || o.optimizer.starts_with("adam") || (o.optimizer == "muon" && o.muon_rest == "adamw");
  const auto refuse = [&](const char* option, const std::string& value) {
    fail<UsageError>(option, "--optimizer adam, adamw or lamb together with it",
                     value + " with --optimizer " + o.optimizer, "leave it out");
  };
  if (!o.opt_betas.empty()) {
    if (!moments) refuse("--opt-betas", o.opt_betas);
    const std::vector<double> betas = schedule::parse_numbers("--opt-betas", o.opt_betas);
    bool good = betas.size() == 2;
    for (const double b : betas) good = good && b >= 0 && b < 1;
    if (!good) fail<UsageError>("--opt-betas", "two numbers from 0 to below 1, e.g. 0.9,0.999", o.opt_betas);
  }
  if (o.opt_eps) {
    if (!moments) refuse("--opt-eps", text_of(*o.opt_eps));
    if (!(*o.opt_eps > 0 && *o.opt_eps <= 1)) fail<UsageError>("--opt-eps", "above 0, to 1", text_of(*o.opt_eps));
  }
  const auto of_lamb = [&](const char* option, const std::string& value) {
    fail<UsageError>(option, "--optimizer lamb together with it", value + " with --optimizer " + o.optimizer,
                     option[2] == 'm' ? "--clip-norm limits the norm for every optimizer" : "leave it out");
  };
  if (o.trust_clip && !lamb) of_lamb("--trust-clip", "given");
  if (o.lars_mlperf && o.optimizer != "lars" && !by_recipe(o, &RunOptions::lars_mlperf))
    fail<UsageError>("--lars-mlperf", "--optimizer lars together with it", "--optimizer " + o.optimizer,
                     "leave it out");
  if (o.max_grad_norm) {
    if (!lamb) of_lamb("--max-grad-norm", text_of(*o.max_grad_norm));
    number("--max-grad-norm", *o.max_grad_norm, 0, 1e12);
  }
}

void check_muon(RunOptions& o) {
  const RunOptions usual;
  if (o.optimizer != "muon") {
    const auto require_usual = [&](const char* option, auto RunOptions::*of) {
      if (o.*of != usual.*of && !by_recipe(o, of))
        fail<UsageError>(option, "--optimizer muon together with it", "--optimizer " + o.optimizer, "leave it out");
    };
    // A recipe with Muon computes the rate of the others from the batch, and --print-config prints it.
    if (recipe_alone(o).optimizer != "muon") require_usual("--rest-lr", &RunOptions::rest_lr);
    for (const auto& [option, of] :
         {std::pair{"--rest-mom", &RunOptions::rest_mom}, {"--rest-wd", &RunOptions::rest_wd}})
      require_usual(option, of);
    for (const auto& [option, of] : {std::pair{"--muon-rest", &RunOptions::muon_rest},
                                     {"--muon-coefficients", &RunOptions::muon_coefficients},
                                     {"--muon-scale", &RunOptions::muon_scale},
                                     {"--muon-products", &RunOptions::muon_products}})
      require_usual(option, of);
    for (const auto& [option, of] : {std::pair{"--muon-sparse-normalize", &RunOptions::muon_sparse_normalize},
                                     {"--muon-normalize", &RunOptions::muon_normalize}})
      require_usual(option, of);
    require_usual("--muon-steps", &RunOptions::muon_steps);
    return;
  }
  word("--muon-rest", o.muon_rest, {"nag", "adamw"}, {{"sgd", "nag"}});
  word("--muon-scale", o.muon_scale, {"none", "rows", "rms"}, {{"original", "rows"}, {"match_rms_adamw", "rms"}});
  word("--muon-products", o.muon_products, {"f32", "bf16"}, {{"float32", "f32"}, {"bfloat16", "bf16"}});
  number("--muon-steps", o.muon_steps, 1, 100);
  if (!o.muon_coefficients.empty() && schedule::parse_numbers("--muon-coefficients", o.muon_coefficients).size() != 3)
    fail<UsageError>("--muon-coefficients", "three numbers, e.g. 3.4445,-4.7750,2.0315", o.muon_coefficients);
  if (!o.muon_normalize && by_recipe(o, &RunOptions::muon_sparse_normalize)) o.muon_sparse_normalize = false;
  if (o.muon_sparse_normalize && !o.muon_normalize)
    fail<UsageError>("--muon-sparse-normalize", "--muon-normalize together with it", "none", "leave it out");
  if (o.rest_wd) number("--rest-wd", *o.rest_wd, 0, 1e3);
  if (o.rest_mom && o.muon_rest == "adamw")
    fail<UsageError>("--rest-mom", "--muon-rest nag together with it", "--muon-rest adamw",
                     "--opt-betas sets its moments");
  if (o.rest_mom) number("--rest-mom", *o.rest_mom, 0, 0.999999);
  if (!o.rest_lr) {
    o.rest_lr = o.muon_rest == "adamw" ? 0.001 : *o.lr;
    o.derived.emplace_back("rest-lr");
  }
  number("--rest-lr", *o.rest_lr, 0, 1e6);
  if (*o.lr == 0 && *o.rest_lr > 0)
    fail<UsageError>("--rest-lr", "0, because --lr is 0 and both follow one schedule", text_of(*o.rest_lr));
}

void check_average(RunOptions& o) {
  number("--ema-decay", o.ema_decay, 0, 0.9999999);
  word("--ema-schedule", o.ema_schedule, {"counted", "constant", "timm", "torchvision", "lookahead"},
       {{"none", "constant"}});
  if (o.ema_decay == 0) {
    if (by_recipe(o, &RunOptions::ema_schedule)) o.ema_schedule = RunOptions().ema_schedule;
    if (by_recipe(o, &RunOptions::ema_every)) o.ema_every.reset();
  }
  const bool given = o.ema_schedule != RunOptions().ema_schedule;
  if (o.ema_decay == 0 && (given || o.ema_every.value_or(1) != 1))
    fail<UsageError>(given ? "--ema-schedule" : "--ema-every", "--ema-decay together with it",
                     given ? o.ema_schedule : std::to_string(*o.ema_every), "e.g. --ema-decay 0.999");
  if (!o.ema_every) o.ema_every = o.ema_schedule == "torchvision" ? 32 : o.ema_schedule == "lookahead" ? 5 : 1;
  number("--ema-every", *o.ema_every, 1, std::int64_t{1} << 40);
}

void check_sam(RunOptions& o) {
  number("--sam", o.sam, 0, 1e6);
  number("--sam-every", o.sam_every, 1, std::int64_t{1} << 40);
  if (o.sam == 0 && o.sam_every != 1 && !by_recipe(o, &RunOptions::sam_every))
    fail<UsageError>("--sam-every", "--sam together with it", o.sam_every, "e.g. --sam 0.05");
  if (o.sam > 0 && o.backend == "cuda")
    fail<UsageError>("--sam", "a backend on the processor", "--backend cuda",
                     "leave it out, or give --gpus '' in place of --backend");
}

// Checks the momentum of --lr-schedule one_cycle.
void check_cycle(RunOptions& o) {
  const bool given = o.base_momentum || o.max_momentum;
  if (!o.cycle_momentum && given)
    fail<UsageError>(o.base_momentum ? "--base-momentum" : "--max-momentum", "--cycle-momentum together with it",
                     "none", "leave it out");
  if (!o.cycle_momentum) return;
  if (o.lr_schedule != "one_cycle")
    fail<UsageError>("--cycle-momentum", "--lr-schedule one_cycle together with it", o.lr_schedule, "leave it out");
  if (!o.max_momentum) o.max_momentum = std::max(0.95, o.base_momentum.value_or(0));
  number("--max-momentum", *o.max_momentum, 0, 0.999999);
  if (!o.base_momentum) o.base_momentum = std::min(0.85, *o.max_momentum);
  number("--base-momentum", *o.base_momentum, 0, *o.max_momentum);
}

}  // namespace

bool has_own_rise(const RunOptions& o) {
  std::string name;
  for (const char c : o.lr_schedule)
    if (c != '-' && c != '_') name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name == "onecycle";
}

void check_optimizer(RunOptions& o) {
  word("--optimizer", o.optimizer, {"nag", "sgd", "adam", "adamw", "lamb", "muon", "lars", "larc", "lbsgd"},
       {{"nesterov", "nag"}});
  if (o.optimizer == "lbsgd") {
    // Large-batch SGD is SGD with accumulation and a long warmup.
    o.optimizer = "sgd";
    if (!o.warmup_epochs && !has_own_rise(o)) o.warmup_epochs = 5;
  }
  const bool adam = o.optimizer.starts_with("adam");
  // The default rate is for the programs' default batches of 64 and 256 images.
  const double of_batch = static_cast<double>(o.global_batch_size) / o.traits().batch_of_rate;
  if (!o.lr) {
    o.derived.emplace_back("lr");
    // LAMB's authors scale its rate by the square root of the batch; "ResNet strikes back" has 0.005 for 2,048 images.
    o.lr = o.use_larc              ? 3.7
           : o.optimizer == "muon" ? 0.02
           : o.optimizer == "lamb" ? 0.005 * std::sqrt(static_cast<double>(o.global_batch_size) / 2048)
                                   : (adam ? 0.001 : 0.1) * of_batch;
  }
  number("--lr", *o.lr, 0, 1e6);
  if (!o.mom) o.mom = o.optimizer == "muon" ? 0.95 : 0.9;
  number("--mom", *o.mom, 0, 0.999999);
  if (!o.wd)
    o.wd = o.optimizer == "adamw"  ? 0.05
           : o.optimizer == "lamb" ? 0.02
           : adam                  ? 0
           : o.traits().as_horovod ? 1e-4
                                   : 5e-4;
  number("--wd", *o.wd, 0, 1e3);
  check_muon(o);
  check_moments(o);
  if (!o.eta) o.eta = o.optimizer == "lars" ? 0.001 : 0.013;
  number("--eta", *o.eta, 1e-12, 1e3);
  number("--clip-norm", o.clip_norm, 0, 1e12);
  check_average(o);
  check_sam(o);
}

namespace {

// The parameters that only the first epochs train.
void check_early(RunOptions& o) {
  number("--early-epochs", o.early_epochs, 0, 1e7);
  word("--early-rate", o.early_rate, {"schedule", "linear"});
  if (o.early_parameters.empty() || o.early_epochs == 0) {
    if (by_recipe(o, &RunOptions::early_parameters)) o.early_parameters.clear();
    if (by_recipe(o, &RunOptions::early_epochs)) o.early_epochs = 0;
    if (by_recipe(o, &RunOptions::early_rate)) o.early_rate = RunOptions().early_rate;
  }
  if (o.early_parameters.empty() != (o.early_epochs == 0))
    fail<UsageError>(o.early_epochs == 0 ? "--early-parameters" : "--early-epochs",
                     o.early_epochs == 0 ? "--early-epochs together with it" : "--early-parameters together with it",
                     "none", "e.g. --early-parameters whitening.bias --early-epochs 3");
  if (o.early_rate == "linear" &&
      (o.lr_schedule != "linear" || *o.lr_end != 0 || *o.warmup_epochs != 0 || o.lr_first_step != 0))
    fail<UsageError>("--early-rate", "schedule, because the rate of the others does not fall linearly to 0", "linear",
                     "or use --lr-schedule linear --lr-end 0 --warmup-epochs 0 --lr-first-step 0");
}

}  // namespace

void check_loss(RunOptions& o) {
  number("--label-smoothing", o.label_smoothing, 0, 0.999);
  if (!o.bce_loss) {
    if (by_recipe(o, &RunOptions::bce_sum)) o.bce_sum = false;
    if (by_recipe(o, &RunOptions::bce_target_thresh)) o.bce_target_thresh.reset();
  }
  if (!o.bce_loss && (o.bce_sum || o.bce_target_thresh))
    fail<UsageError>(o.bce_sum ? "--bce-sum" : "--bce-target-thresh", "--bce-loss together with it", "none",
                     "leave it out");
  if (o.bce_target_thresh) number("--bce-target-thresh", *o.bce_target_thresh, 0, 0.999);
}

void check_schedule(RunOptions& o) {
  number("--epochs", o.epochs, o.traits().as_horovod ? 0 : 1, 10'000'000);
  number("--max-steps", o.max_steps, 0, std::int64_t{1} << 40);
  word("--lr-schedule", o.lr_schedule,
       {"auto", "linear", "cosine", "cosine_restarts", "linear_cosine", "one_cycle", "poly", "poly_cycle", "steps",
        "constant"},
       {{"step", "steps"}, {"onecycle", "one_cycle"}, {"cosine_decay_restarts", "cosine_restarts"}});
  if (o.traits().as_horovod) check_imagenet_steps(o);
  const bool asks_for_steps = !o.lr_step_epochs.empty() || o.lr_factor;
  if (o.lr_schedule == "auto") o.lr_schedule = asks_for_steps ? "steps" : "linear";
  if (asks_for_steps && o.lr_schedule != "steps")
    fail<UsageError>(o.lr_step_epochs.empty() ? "--lr-factor" : "--lr-step-epochs", "--lr-schedule steps",
                     o.lr_schedule, "give one of the two");
  if (o.lr_schedule == "steps") {
    if (!o.warmup_epochs) o.warmup_epochs = 0;
    // He et al. 2015 divide the rate at a half and at three quarters of the run.
    if (o.lr_step_epochs.empty()) {
      const auto n = static_cast<double>(o.epochs);
      o.lr_step_epochs = text_of(n / 2) + "," + text_of(n * 3 / 4);
    }
    if (!o.lr_factor) o.lr_factor = 0.1;
    number("--lr-factor", *o.lr_factor, 0, 1e6);
    try {
      (void)schedule::parse_lr_step_epochs(o.lr_step_epochs, *o.lr, *o.lr_factor);
    } catch (const UsageError&) {
      fail<UsageError>("--lr-step-epochs", "ascending epochs, e.g. 200,250, or a power, e.g. pow2", o.lr_step_epochs);
    }
  }
  if (o.lr_schedule == "one_cycle") {
    if (o.warmup_epochs.value_or(0) > 0)
      fail<UsageError>("--warmup-epochs", "0 with one_cycle, which begins with a rise of its own",
                       text_of(*o.warmup_epochs), "--pct-start sets the length of its rise");
    o.warmup_epochs = 0;
  }
  word("--anneal-strategy", o.anneal_strategy, {"cos", "linear"}, {{"cosine", "cos"}});
  number("--pct-start", o.pct_start, 0, o.three_phase ? 0.5 : 1);
  number("--div-factor", o.div_factor, 1e-6, 1e30);
  number("--final-div-factor", o.final_div_factor, 1e-6, 1e30);
  check_cycle(o);
  word("--lr-updates", o.lr_updates, {"step", "epoch"});
  number("--lr-first-step", o.lr_first_step, 0, 1);
  if (!o.lr_end) o.lr_end = o.lr_schedule.starts_with("poly") ? 1e-5 : 0;
  number("--lr-end", *o.lr_end, 0, 1e6);
  number("--poly-power", o.poly_power, 0, 100);
  if (!o.warmup_epochs) o.warmup_epochs = std::min(1.0, static_cast<double>(o.epochs) / 4);
  number("--warmup-epochs", *o.warmup_epochs, 0, 1e7);
  if (!o.warmup_lr) o.warmup_lr = 0.001;
  number("--warmup-lr", *o.warmup_lr, 0, 1e6);
  word("--warmup-strategy", o.warmup_strategy, {"linear", "power2", "sqrt"});
  number("--cosine-alpha", o.cosine_alpha, 0, 1);
  number("--cdr-first-decay-ratio", o.cdr_first_decay_ratio, 1e-6, 1);
  number("--cdr-t-mul", o.cdr_t_mul, 1, 1e6);
  number("--cdr-m-mul", o.cdr_m_mul, 0, 1e6);
  number("--cdr-alpha", o.cdr_alpha, 0, 1);
  number("--lc-periods", o.lc_periods, 0, 1e6);
  number("--lc-alpha", o.lc_alpha, 0, 1e6);
  number("--lc-beta", o.lc_beta, 0, 1e6);
  number("--stop-at-train-top1", o.stop_at_train_top1, 0, 1);
  check_early(o);
}

}  // namespace tutti::trainer::detail
