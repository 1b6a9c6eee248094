# SPDX-License-Identifier: MIT
"""The records for CIFAR-10 in PyTorch, as rows for torch_recipes.py: KellerJordan/cifar10-airbench and hiverge/cifar10-speedrun.

The originals add the losses of a batch. A step has fewer images here, so its loss is their mean, times IMAGES. The products of Muon
have the type of the weights, where the originals have bfloat16 or float16. An eps of 1e-5 or less that these types cannot hold
next to a norm is left out.
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from torch_recipe_run import Original, OwnOptimizer, single

IMAGES = 64  # of a step of the short run
EARLY = 2    # its epochs in which the biases of the first layer learn


class Block(nn.Module):
    def __init__(self, inputs, channels, third, activation, momentum):
        super().__init__()
        for i in range(3 if third else 2):
            self.add_module(f"conv{i + 1}", nn.Conv2d(channels if i else inputs, channels, 3, padding=1, bias=False))
            norm = nn.BatchNorm2d(channels, eps=1e-12, momentum=momentum)
            norm.weight.requires_grad = False
            self.add_module(f"bn{i + 1}", norm)
        self.third, self.activation = third, activation

    def forward(self, x):
        first = self.activation(self.bn1(F.max_pool2d(self.conv1(x), 2)))
        x = self.activation(self.bn2(self.conv2(first)))
        return self.activation(self.bn3(self.conv3(x)) + first) if self.third else x


class RecordNet(nn.Module):
    """The nets of the records, with tutti's names."""

    def __init__(self, widths, scale, third=False, activation=F.gelu, momentum=0.4):
        super().__init__()
        self.whitening = nn.Conv2d(3, 24, 2)
        self.whitening.weight.requires_grad = False
        for i, (inputs, channels) in enumerate(zip([24, *widths], widths)):
            self.add_module(f"layer{i + 1}", Block(inputs, channels, third, activation, momentum))
        self.fc = nn.Linear(widths[-1], 10, bias=False)
        self.scale = scale

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(F.gelu(self.whitening(x)))))
        return self.fc(F.max_pool2d(x, x.shape[2:]).flatten(1)) * self.scale


def summed_cross_entropy(smoothing):
    loss = nn.CrossEntropyLoss(label_smoothing=single(smoothing))
    return lambda logits, labels, share: loss(logits, labels) * IMAGES


# ---------------------------------------------------------------------------------------------------------------------
# Optimizers. The "rate" of a group is in units of tutti's, which is for the mean of the losses.


def sgd(kilo_rate, kilo_decay, momentum=0.85, bias_scale=64):
    """kilo_rate and kilo_decay: of 1,024 images, for steps whose length does not depend on the momentum."""

    def make(model, _):
        kilo = 1024 * (1 + 1 / (1 - momentum))
        rate, decay = kilo_rate / kilo, kilo_decay * IMAGES / kilo
        named = [(k, p) for k, p in model.named_parameters() if p.requires_grad]
        group = lambda norms, r: {"params": [p for k, p in named if (".bn" in k) == norms], "rate": r / (rate * IMAGES), "weight_decay": decay / r}
        return torch.optim.SGD([group(True, rate * bias_scale), group(False, rate)], lr=rate, momentum=momentum, nesterov=True)

    return make


class Muon(OwnOptimizer):
    """The rule of airbench94_muon.py; with `steps`, the steps of a run, and `decay` that of cifar10_speedrun.py."""

    def __init__(self, parameters, lr, momentum, coefficients, steps, decay):
        super().__init__(parameters, {"lr": lr, "momentum": momentum})
        self.coefficients, self.steps, self.decay, self.done, self.last = coefficients, steps, decay, 0, 0

    def normalizes(self):
        if self.steps and self.done - self.last < 2 + int(15 * self.done / self.steps):
            return False
        self.last = self.done
        return True

    def orthogonal(self, x):
        x = x / x.norm()
        if self.steps:
            share = self.done / self.steps
            x = x * (0.5012 * (1 - share) + 0.0786 * share)
            x = x / (x.norm() + 1e-5)
        a, b, c = self.coefficients
        tall = x.size(0) > x.size(1)
        x = x.T if tall else x
        for _ in range(3):
            gram = x @ x.T
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x.T if tall else x

    @torch.no_grad()
    def step(self):
        self.done += 1
        normalizes = self.normalizes()
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                buffer.mul_(group["momentum"]).add_(p.grad)
                x = self.orthogonal((p.grad + group["momentum"] * buffer).flatten(1))
                if normalizes:
                    p.mul_(len(p) ** 0.5 / p.norm())
                p.add_(x.reshape(p.shape), alpha=-group["lr"])
                p.mul_(1 - group["lr"] * self.decay)


def muon(momentum, bias_rate, head_rate, decay, rest_momentum, coefficients=(3.4445, -4.7750, 2.0315), steps=None, decays=False):
    """decay: of one image, for a sum of losses. decays: whether the matrices decay too."""

    def make(model, peak):
        named = [(k, p) for k, p in model.named_parameters() if p.requires_grad]
        group = lambda params, r, **more: {"params": params, "rate": r / peak, "weight_decay": decay * IMAGES / r, **more}
        groups = [group([model.whitening.bias], bias_rate, early=EARLY), group([p for k, p in named if ".bn" in k], bias_rate),
                  group([model.fc.weight], head_rate)]
        return [torch.optim.SGD(groups, lr=bias_rate, momentum=rest_momentum, nesterov=True),
                Muon([p for _, p in named if p.dim() == 4], peak, momentum, coefficients, steps, decay * IMAGES if decays else 0)]

    return make


# ---------------------------------------------------------------------------------------------------------------------
# Schedules and the average.


def triangle(share, end):
    """From a fifth of the peak to the peak in the share of the steps that the published run has, or in `warmup` epochs; then to
    `end` times the peak."""

    def rates(peak, epochs, per_epoch, warmup):
        total = math.ceil(epochs * per_epoch)
        warm = math.floor(total * share + 0.5) if warmup is None else warmup * per_epoch
        return [peak * (0.2 + 0.8 * i / warm if i < warm else 1 - (1 - end) * (i - warm) / (total - warm)) for i in range(total)]

    return rates


def falling(peak, epochs, per_epoch, warmup):
    total = math.ceil(epochs * per_epoch)
    return [peak * (1 - i / total) for i in range(total)]


class Lookahead:
    """Every fifth step the weights go back to an average, whose decay grows with the third power of the step."""
    sets_weights = True

    def __init__(self, model, numbers):
        self.decay, self.every, self.total = *numbers, 20
        self.average = {k: t.detach().clone() for k, t in model.state_dict().items() if t.is_floating_point()}

    @torch.no_grad()
    def update(self, model, step):
        done = step + 1
        decays = [self.decay * (done / self.total) ** 3] * (done % self.every == 0) + [1.0] * (done == self.total)
        for decay in decays:
            for k, t in model.state_dict().items():
                if k in self.average:
                    self.average[k].lerp_(t, 1 - decay)
                    t.copy_(self.average[k])

    def state(self):
        return self.average


# ---------------------------------------------------------------------------------------------------------------------


def airbench(epochs, kilo_rate, kilo_decay, share, end, width, **net):
    rate = kilo_rate / (1 + 1 / (1 - 0.85))
    return Original(1024, epochs, None, rate, summed_cross_entropy(0.2), sgd(kilo_rate, kilo_decay), triangle(share, end),
                    net=lambda: RecordNet(scale=1 / 9, **net), average=Lookahead, numbers=lambda _: (0.95**5, 5), program="train_cifar10",
                    words=("--width", width, "--batch-size", str(IMAGES), "--early-epochs", str(EARLY)), short_rate=rate * IMAGES / 1024,
                    sum_of=IMAGES, early=EARLY,
                    planted={"decay": ("--wd", str(1.1 * kilo_decay / kilo_rate)), "average": ("--ema-decay", "0.7"),
                             "smoothing": ("--label-smoothing", "0.21"), "momentum": ("--mom", "0.86"), "early": ("--early-epochs", "1")})


def with_muon(batch, epochs, rate, smoothing, wrong_decay, planted, net, **optimizer):
    # The published rate turns the matrices of random images so far that rounding grows in each step.
    return Original(batch, epochs, None, rate, summed_cross_entropy(smoothing), muon(**optimizer), falling, short_rate=rate / 8,
                    net=lambda: RecordNet([8, 32, 32], 1 / 256, **net), program="train_cifar10",
                    words=("--width", "0.125", "--batch-size", str(IMAGES), "--early-epochs", str(EARLY), "--muon-products", "f32",
                           "--lr", repr(rate / 8)),
                    sum_of=IMAGES, early=EARLY, short_warmup=0,
                    planted={"decay": ("--rest-wd", str(wrong_decay)), "average": ("--ema-decay", "0.999"),
                             "smoothing": ("--label-smoothing", str(smoothing + 0.01)), "early": ("--early-epochs", "1"), **planted})


RECORDS = {
    "airbench94": airbench(10, 11.5, 0.0153, 109 / 476, 0.07, "0.125", widths=[8, 32, 32]),
    "airbench94-muon": with_muon(2000, 8, 0.24, 0.2, 1.1 * 2e-6 / 0.053,
                                 {"momentum": ("--mom", "0.61"), "other momentum": ("--rest-mom", "0.86")}, {},
                                 momentum=0.6, bias_rate=0.053, head_rate=0.67, decay=2e-6, rest_momentum=0.85),
    "airbench96": airbench(37, 9.0, 0.012, 177 / 1776, 0, "0.0625", widths=[8, 24, 32], third=True, momentum=0.1),
    # Batch norm's momentum is computed in float32.
    "hive94": with_muon(1536, 8, 0.205, 0.09, 1.1 * 1.0418e-6 / 0.0573,
                        {"momentum": ("--mom", "0.66"), "other momentum": ("--rest-mom", "0.83"),
                         "matrix decay": ("--wd", str(1.1 * 1.0418e-6 * IMAGES))},
                        {"activation": F.silu, "momentum": 1 - single(0.5566)},
                        momentum=0.655, bias_rate=0.0573, head_rate=0.5415, decay=1.0418e-6, rest_momentum=0.825,
                        coefficients=(3.4576, -4.7391, 2.0843), steps=20, decays=True),
}
