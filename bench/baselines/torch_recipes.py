# SPDX-License-Identifier: MIT
"""The published recipes in PyTorch, each made of its original's own parts: torchvision's and timm's packages, torch.optim,
and schedules as the originals' scripts compute them. recipes.py compares tutti's recipes with them.

A recipe is a row of ORIGINALS. A row has the published numbers, and the options that give tutti's recipe 20 steps in 4 epochs,
with a warmup of one epoch.
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from timm.data.mixup import mixup_target
from timm.loss import BinaryCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.optim.swa_utils import AveragedModel
from torchvision.ops._utils import split_normalization_params

from torch_cifar_recipe import Net, learning_rate, parameter_groups
from torch_large_batches import large_batches
from torch_recipe_run import CLASSES, EPOCHS, PER_EPOCH, WARMUP, Original, SmallResnet, single
from torch_records import RECORDS

# ---------------------------------------------------------------------------------------------------------------------
# Losses: of logits, the labels of the images before they were mixed, and the share of an image's own label.


def cross_entropy(smoothing):
    loss = nn.CrossEntropyLoss(label_smoothing=single(smoothing))
    return lambda logits, labels, share: loss(logits, labels)


def mixed_cross_entropy(smoothing):
    """torchvision's: an image is mixed with the one before it."""
    loss = nn.CrossEntropyLoss(label_smoothing=single(smoothing))

    def of(logits, labels, share):
        own = F.one_hot(labels, CLASSES).to(logits.dtype)
        return loss(logits, own * share + own.roll(1, 0) * (1 - share))

    return of


def mixed_binary(smoothing):
    """timm's: an image is mixed with the one at the same distance from the other end."""
    loss = BinaryCrossEntropy(target_threshold=0.2)
    return lambda logits, labels, share: loss(logits, mixup_target(labels, CLASSES, share, single(smoothing)).to(logits.dtype))


# ---------------------------------------------------------------------------------------------------------------------
# Optimizers of a model, with the peak rate.


def goyal_optimizer(model, rate):
    """Batch norm does not decay (section 2.2 and 5.1)."""
    norms, others = split_normalization_params(model)
    return torch.optim.SGD([{"params": norms, "weight_decay": 0}, {"params": others}], lr=rate, momentum=0.9, weight_decay=1e-4, nesterov=True)


def torchvision_optimizer(model, rate):
    """--opt sgd --momentum 0.9 --wd 2e-5 --norm-weight-decay 0."""
    norms, others = split_normalization_params(model)
    return torch.optim.SGD([{"params": norms, "weight_decay": 0.0}, {"params": others, "weight_decay": 2e-5}], lr=rate, momentum=0.9,
                           weight_decay=2e-5)


def rsb_optimizer(decay):
    return lambda model, rate: create_optimizer_v2(model, opt="lamb", lr=rate, weight_decay=decay)


def ffcv_optimizer(model, rate):
    """Parameters with "bn" in their names do not decay; batch norm of a shortcut has another name, and decays."""
    named = list(model.named_parameters())
    return torch.optim.SGD([{"params": [p for k, p in named if "bn" in k], "weight_decay": 0.0},
                            {"params": [p for k, p in named if "bn" not in k], "weight_decay": 1e-4}], lr=rate, momentum=0.9)


def fast_optimizer(model, rate):
    return torch.optim.SGD(parameter_groups(model, 0.0153 / 11.5, 64), lr=rate, momentum=0.85, nesterov=True)


# ---------------------------------------------------------------------------------------------------------------------
# Schedules: the rate of each step of a run, from the peak, the epochs, the steps of an epoch and the epochs of the warmup.


def each_epoch(make):
    """A scheduler object that its script steps after each epoch."""

    def rates(peak, epochs, per_epoch, warmup):
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=peak)
        scheduler, out = make(optimizer, epochs, warmup), []
        for epoch in range(epochs):
            out += [optimizer.param_groups[0]["lr"]] * per_epoch
            optimizer.step()
            scheduler.step(*([epoch + 1] if isinstance(scheduler, CosineLRScheduler) else []))
        return out

    return rates


torchvision_rates = each_epoch(lambda o, epochs, warmup: SequentialLR(
    o, [LinearLR(o, start_factor=0.01, total_iters=warmup), CosineAnnealingLR(o, T_max=epochs - warmup)], [warmup]))
rsb_rates = each_epoch(lambda o, epochs, warmup: CosineLRScheduler(o, t_initial=epochs, lr_min=1e-6, warmup_t=warmup, warmup_lr_init=1e-4))


def goyal_rates(peak, epochs, per_epoch, warmup):
    """A gradual warmup from the rate of 256 images, by iterations; then a tenth at each of three epochs."""
    at = (30, 60, 80) if epochs == 90 else (1.6, 2.6, 3.6)
    return [0.1 + (peak - 0.1) * i / (warmup * per_epoch) if i < warmup * per_epoch
            else peak * 0.1 ** sum(i >= e * per_epoch for e in at) for i in range(epochs * per_epoch)]


def ffcv_rates(peak, epochs, per_epoch, warmup):
    """The cyclic schedule of train_imagenet.py: linear between epochs, and between the iterations of an epoch."""
    of_epoch = lambda e: np.interp([e], [0, warmup, epochs], [1e-4 * peak, peak, 0])[0]
    return np.concatenate([np.interp(np.arange(per_epoch), [0, per_epoch], [of_epoch(e), of_epoch(e + 1)]) for e in range(epochs)]).tolist()


def fast_rates(peak, epochs, per_epoch, warmup):
    total = epochs * per_epoch
    if epochs != EPOCHS:
        return [learning_rate(i, total, peak) for i in range(total)]
    warm = warmup * per_epoch
    return [peak * (0.2 + 0.8 * i / warm if i < warm else 0.07 + 0.93 * (1 - (i - warm) / (total - warm))) for i in range(total)]


# ---------------------------------------------------------------------------------------------------------------------
# Averages of the weights: numbers(epochs) are the decay and the steps between two updates.


class TorchvisionAverage:
    """The ExponentialMovingAverage of torchvision's references/classification, as its train.py updates it."""

    def __init__(self, model, numbers):
        decay, self.every = numbers
        self.average = AveragedModel(model, avg_fn=lambda average, new, _: decay * average + (1 - decay) * new, use_buffers=True)

    def update(self, model, step):
        epoch, i = divmod(step, PER_EPOCH)
        if i % self.every == 0:
            self.average.update_parameters(model)
            if epoch < WARMUP:
                self.average.n_averaged.fill_(0)

    def state(self):
        return self.average.module.state_dict()


def torchvision_average(epochs):
    """--model-ema-decay 0.99998 --model-ema-steps 32, adjusted to 8 processes of 128 images; 2 steps in the short run."""
    every = 32 if epochs != EPOCHS else 2
    return 1 - min(1.0, (1 - 0.99998) * (8 * 128 * every / epochs)), every


class CountedAverage:
    """The average of bench/baselines/torch_cifar_recipe.py."""

    def __init__(self, model, numbers):
        self.decay = numbers[0]
        self.average = {k: t.detach().clone() for k, t in model.state_dict().items() if t.is_floating_point()}

    def update(self, model, step):
        kept = min(self.decay, (2 + step) / (11 + step))
        for k, t in model.state_dict().items():
            if k in self.average:
                self.average[k].mul_(kept).add_(t, alpha=1 - kept)

    def state(self):
        return self.average


def fast_average(epochs):
    # The decay of the recipe would have no effect in 20 steps, because it grows to it in 313 steps.
    return (0.97 if epochs != EPOCHS else 0.5), 1


# ---------------------------------------------------------------------------------------------------------------------


def rsb(epochs, rate, decay, smoothing):
    # The threshold hides small changes of the smoothing.
    return Original(2048, epochs, 5, rate, mixed_binary(smoothing), rsb_optimizer(decay), rsb_rates, pairs="reversed",
                    words=("--drop-path", "0"),
                    planted={"decay": ("--wdecay", str(1.1 * decay)), "average": ("--ema-decay", "0.999"),
                             "smoothing": ("--label-smoothing", "0.7"), "momentum": ("--opt-betas", "0.91,0.999")})


def ffcv(epochs):
    return Original(4096, epochs, 2, 1.7, cross_entropy(0.1), ffcv_optimizer, ffcv_rates, net=lambda: SmallResnet(blur=True),
                    planted={"decay": ("--wdecay", "1.1e-4"), "average": ("--ema-decay", "0.999"),
                             "smoothing": ("--label-smoothing", "0.11"), "momentum": ("--mom", "0.91")},
                    steps_as=None if epochs == 16 else "ffcv-16")


ORIGINALS = {
    "goyal": Original(8192, 90, 5, 3.2, cross_entropy(0), goyal_optimizer, goyal_rates, words=("--lr-decay-steps", "1.6,2.6,3.6"),
                      planted={"decay": ("--wdecay", "1.1e-4"), "average": ("--ema-decay", "0.999"),
                               "smoothing": ("--label-smoothing", "0.01"), "momentum": ("--mom", "0.91")}),
    "torchvision-v2": Original(1024, 600, 5, 0.5, mixed_cross_entropy(0.1), torchvision_optimizer, torchvision_rates,
                               average=TorchvisionAverage, numbers=torchvision_average, pairs="previous", words=("--ema-every", "2"),
                               planted={"decay": ("--wdecay", "2.2e-5"), "average": ("--ema-decay", "0.99997"),
                                        "smoothing": ("--label-smoothing", "0.11"), "momentum": ("--mom", "0.91")}),
    "rsb-a1": rsb(600, 0.005, 0.01, 0.1),
    "rsb-a2": rsb(300, 0.005, 0.02, 0),
    "rsb-a3": rsb(100, 0.008, 0.02, 0),
    **{f"ffcv-{n}": ffcv(n) for n in (16, 24, 32, 40, 56, 88)},
    "fast": Original(1000, 10, 2.3, 1.5 * 1000 / 1024, cross_entropy(0.2), fast_optimizer, fast_rates, net=lambda: Net([8, 32, 32]),
                     average=CountedAverage, numbers=fast_average, program="train_cifar10",
                     # The published rate on 8 images amplifies rounding in each step. That of a batch of 64 follows the rule.
                     words=("--width", "0.125", "--ema-decay", "0.5", "--batch-size", "64"), short_rate=1.5 * 64 / 1024,
                     planted={"decay": ("--wd", str(1.1 * 0.0153 / 11.5)), "average": ("--ema-decay", "0.6"),
                              "smoothing": ("--label-smoothing", "0.21"), "momentum": ("--mom", "0.86")}),
    **large_batches(cross_entropy),
    **RECORDS,
}
