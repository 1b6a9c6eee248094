# SPDX-License-Identifier: MIT
"""mosaicml/examples with Composer, and NVIDIA's MLPerf, in PyTorch, as rows for torch_recipes.py.

Their optimizers differ knowingly from tutti's. A row has tutti's rule with the original's numbers; `own` has the original's rule,
and recipes.py prints how far a free run is from it.
"""
import math

import torch
import torch.nn.functional as F

from torch_recipe_run import CLASSES, EPOCHS, Original, OwnOptimizer, SmallResnet, single

# ---------------------------------------------------------------------------------------------------------------------
# mosaic: SGD whose decay is 5e-4 at the peak rate, for all parameters.

PEAK, MOMENTUM, DECAY = 2.048, 0.875, 5e-4
BATCH = 64  # The published rate on 8 images amplifies rounding in each step.


def summed_binary(smoothing, mixes):
    """Binary cross entropy, summed over the classes. An image is mixed with the one at the same distance from the other end."""
    smoothing = single(smoothing)

    def of(logits, labels, share):
        own = F.one_hot(labels, CLASSES).to(logits.dtype) * (1 - smoothing) + smoothing / CLASSES
        targets = own * share + own.flip(0) * (1 - share) if mixes else own
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / len(labels)

    return of


def mosaic_optimizer(model, rate):
    """The decay is part of the gradient, and shrinks a weight as much in the course of steps."""
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM, weight_decay=DECAY * (1 - MOMENTUM) / PEAK)


class DecoupledSgd(torch.optim.SGD):
    """Shrinks the weights apart from the gradient, by a factor that follows the rate."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(1 - DECAY * group["lr"] / PEAK)
        super().step()


def cosine(peak, epochs, per_epoch, warmup):
    total, warm = epochs * per_epoch, warmup * per_epoch
    return [peak * (i / warm if i < warm else (1 + math.cos(math.pi * (i - warm) / (total - warm))) / 2) for i in range(total)]


class IntervalAverage:
    """With the weights of every n-th step, from the initial weights on."""

    def __init__(self, model, numbers):
        self.decay, self.every = numbers
        self.average = {k: t.detach().clone() for k, t in model.state_dict().items() if t.is_floating_point()}

    def update(self, model, step):
        if (step + 1) % self.every == 0:
            for k, t in model.state_dict().items():
                if k in self.average:
                    self.average[k] = self.average[k] * self.decay + t.detach() * (1 - self.decay)

    def state(self):
        return self.average


def mosaic(epochs, smoothing, mixes, sam=None):
    more = {"perturbation": ("--sam", "0.51")} if sam else {}
    return Original(2048, epochs, 8, PEAK, summed_binary(smoothing, mixes), mosaic_optimizer, cosine, net=lambda: SmallResnet(blur=True),
                    average=IntervalAverage, numbers=lambda e: (2 ** (-20 / 100), 20 if e != EPOCHS else 2),
                    pairs="reversed" if mixes else None, mixes=("mixup",), sam=sam, short_rate=PEAK * BATCH / 2048,
                    words=("--ema-every", "2", "--drop-path", "0", "--batch-size", str(BATCH)),
                    planted={"decay": ("--wdecay", str(1.1 * DECAY * (1 - MOMENTUM) / PEAK)), "average": ("--ema-decay", "0.88"),
                             "smoothing": ("--label-smoothing", str(smoothing + 0.01)), "momentum": ("--mom", "0.88"), **more},
                    own={"optimizer": lambda model, rate: DecoupledSgd(model.parameters(), lr=rate, momentum=MOMENTUM),
                         "sam_statistics": True})


# ---------------------------------------------------------------------------------------------------------------------
# mlperf: LARS.


class Lars(OwnOptimizer):
    """The ratio has the norms of gradient and decay one by one, and is for weights only."""

    def __init__(self, groups, lr, momentum=0.9, eta=0.001):
        super().__init__(groups, {"lr": lr, "momentum": momentum})
        self.eta = eta

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                decay, norm = group["weight_decay"], p.norm()
                g = p.grad + decay * p
                divisor = p.grad.norm() + decay * norm
                ratio = self.eta * norm / divisor if norm > 0 and p.grad.norm() > 0 and p.dim() > 1 else 1
                buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                buffer.mul_(group["momentum"]).add_(ratio * g)
                p.sub_(group["lr"] * buffer)


def lars(model, rate):
    """Weights and the classifier's biases decay."""
    named = list(model.named_parameters())
    decays = lambda k, p: p.dim() > 1 or k == "fc.bias"
    return Lars([{"params": [p for k, p in named if decays(k, p)], "weight_decay": 5e-5},
                 {"params": [p for k, p in named if not decays(k, p)], "weight_decay": 0.0}], rate)


def square(peak, epochs, per_epoch, warmup):
    """Steps count from 1."""
    total, warm = epochs * per_epoch, warmup * per_epoch
    return [peak * (i / warm if i < warm else (1 - (i - warm) / (total - warm)) ** 2) for i in range(1, 1 + total)]


def large_batches(cross_entropy):
    """Returns the rows."""
    return {
        "mosaic-mild": mosaic(36, 0.08, False),
        "mosaic-medium": mosaic(135, 0.1, True, sam=(0.5, 10)),
        "mosaic-hot": mosaic(270, 0.13, True, sam=(0.5, 5)),
        "mlperf": Original(3200, 37, 2, 11, cross_entropy(0.1), lars, square,
                           planted={"decay": ("--wdecay", "5.5e-5"), "average": ("--ema-decay", "0.999"),
                                    "smoothing": ("--label-smoothing", "0.11"), "momentum": ("--mom", "0.91")}),
    }
