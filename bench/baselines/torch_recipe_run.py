# SPDX-License-Identifier: MIT
"""What the originals of the recipes share: the small net, the row of a recipe, and the run of an original on tutti's images."""
import copy
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

CLASSES, STEPS, PER_EPOCH, EPOCHS, WARMUP = 10, 20, 5, 4, 1


def single(number):
    """Returns a number as float32 stores it. tutti stores label smoothing and the numbers of batch norm in this type."""
    return float(np.float32(number))


# ---------------------------------------------------------------------------------------------------------------------
# Nets.


class BlurredConv(nn.Conv2d):
    """A strided convolution of 16 channels or more that reads a blurred input, as in FFCV's script."""

    def forward(self, x):
        row = torch.tensor([0.25, 0.5, 0.25], dtype=x.dtype)
        kernel = torch.outer(row, row).repeat(x.size(1), 1, 1, 1)
        return super().forward(F.conv2d(x, kernel, padding=1, groups=x.size(1)))


class Block(nn.Module):
    def __init__(self, inputs, channels, stride, blur):
        super().__init__()
        strided = BlurredConv if blur and stride > 1 and inputs >= 16 else nn.Conv2d
        self.conv1 = strided(inputs, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(strided(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class SmallResnet(nn.Module):
    """The net of bench/common/recipe_steps.hpp."""

    def __init__(self, blur=False):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(Block(8, 8, 1, blur))
        self.layer2 = nn.Sequential(Block(8, 16, 2, blur))
        self.layer3 = nn.Sequential(Block(16, 32, 2, blur))
        self.fc = nn.Linear(32, CLASSES)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.fc(x.mean((2, 3)))


# ---------------------------------------------------------------------------------------------------------------------


class OwnOptimizer(torch.optim.Optimizer):
    """An optimizer written here. torch.optim.Optimizer would copy parameters and state only."""

    def __getstate__(self):
        return self.__dict__.copy()


@dataclass(frozen=True)
class Original:
    """A published recipe. words: options that shorten tutti's recipe. planted: options with a wrong constant each; a wrong rate
    of a step needs no option."""
    batch: int
    epochs: int
    warmup: float
    rate: float
    loss: object
    optimizer: object
    rates: object
    net: object = SmallResnet
    average: object = None   # a class, with `numbers`
    numbers: object = None
    pairs: str = None        # how images are mixed: "previous", "reversed" or not at all
    program: str = "train_imagenet"
    short_rate: float = None  # of the 20 steps, if the words set another batch
    sum_of: int = 1          # the loss is that of so many images together, not their mean
    early: int = None        # the epochs in which the first layer's biases learn
    mixes: tuple = ("mixup", "cutmix")  # what `pairs` does
    sam: tuple = None        # length of the perturbation, and steps between two of them
    sam_statistics: bool = False  # both passes count for batch norm's statistics
    short_warmup: int = WARMUP
    own: dict = None         # what the original has where tutti knowingly differs, and this row too
    words: tuple = ()
    planted: dict = field(default_factory=dict)
    steps_as: str = None     # the recipe whose 20 steps these are too, because only lengths differ

    def short_words(self, name):
        epochs = "--num-epochs" if self.program == "train_imagenet" else "--epochs"
        return [self.program, "--recipe", name, epochs, str(EPOCHS), "--warmup-epochs", str(self.short_warmup), *self.words]

    def short_rates(self):
        return self.rates(self.short_rate or self.rate, EPOCHS, PER_EPOCH, WARMUP)


class Run:
    """A run of an original on tutti's images, from tutti's initial weights."""

    def __init__(self, original, begin, dtype):
        torch.set_default_dtype(dtype)
        self.original, self.begin, self.dtype, self.half = original, begin, dtype, False
        self.model = original.net()
        for m in self.model.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.eps, m.momentum = single(m.eps), single(m.momentum)
        # tutti's classifier of the fast recipe includes the scale of the output.
        self.scale = {"fc.weight": self.model.scale} if hasattr(self.model, "scale") else {}
        with torch.no_grad():
            for name, t in self.model.state_dict().items():
                if t.is_floating_point():
                    t.copy_(torch.from_numpy(begin["state/" + name]) / self.scale.get(name, 1))
        made = original.optimizer(self.model, original.short_rate or original.rate)
        self.optimizers = made if isinstance(made, list) else [made]
        self.average = original.average(self.model, original.numbers(EPOCHS)) if original.average else None
        self.rates = original.short_rates()

    def snapshot(self):
        """Returns weights, statistics, the optimizer's state and the average under tutti's names."""
        out = {}
        weights = {k: t for k, t in self.model.state_dict().items() if t.is_floating_point()}
        for k, t in weights.items():
            out[k] = t * self.scale.get(k, 1)
        slots = {"momentum_buffer": "momentum.", "exp_avg": "exp_avg.", "exp_avg_sq": "exp_avg_sq."}
        # What the optimizer has not met yet: zeros.
        moments = [k for k in self.begin if k.startswith(tuple("state/" + s for s in slots.values()))]
        out.update({k.removeprefix("state/"): torch.zeros(self.begin[k].shape) for k in moments})
        for k, p in self.model.named_parameters():
            for s, t in (item for o in self.optimizers for item in o.state.get(p, {}).items()):
                if s in slots and t is not None:
                    out[slots[s] + k] = t / self.scale.get(k, 1) / self.original.sum_of
        if self.average is not None:
            for k, t in self.average.state().items():
                if t.is_floating_point():
                    out["ema." + k] = t * self.scale.get(k, 1)
        found = {k: t.detach().to(self.dtype).numpy().copy() for k, t in out.items()}
        # What tutti has and the net here does not: constants.
        for k, a in self.begin.items():
            if k.startswith("state/"):
                k = k.removeprefix("state/")
                plain = next((k.removeprefix(p) for p in ("ema.", *slots.values()) if k.startswith(p)), k)
                if plain not in weights:
                    found[k] = a.astype(found["fc.weight"].dtype)
        return found

    def step(self, n):
        """Does step n, from 0, and returns its loss."""
        images = torch.from_numpy(self.begin["images"][n]).permute(0, 3, 1, 2).to(self.dtype)
        labels, share = torch.from_numpy(self.begin["labels"][n]).long(), float(self.begin["share"][n][0])
        early = (self.original.early or EPOCHS) * PER_EPOCH
        for group in (g for o in self.optimizers for g in o.param_groups):
            group["lr"] = self.rates[n] * group.get("rate", 1)
            if "early" in group:
                group["lr"] = self.rates[0] * group["rate"] * (1 - n / early)
        if self.original.early:
            self.model.whitening.bias.requires_grad_(n < early)
        self.model.train()

        def backward():
            with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
                logits = self.model((images - 128) / 64)
            loss = self.original.loss(logits.to(self.dtype), labels, share)
            self.model.zero_grad()
            loss.backward()
            return loss.item() / self.original.sum_of

        loss = backward()
        if self.original.sam and (n + 1) % self.original.sam[1] == 0:
            self.perturbed(self.original.sam[0], backward)
        for optimizer in self.optimizers:
            optimizer.step()
        if self.average is not None:
            self.average.update(self.model, n)
        return loss

    def perturbed(self, length, backward):
        """Takes the gradient at the weights plus `length` in the direction of the gradient. Batch norm's statistics are those of the
        first pass, unless sam_statistics."""
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        statistics = [(t, t.clone()) for t in self.model.buffers()]
        before = [p.detach().clone() for p in parameters]
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in parameters]))
        with torch.no_grad():
            for p in parameters:
                p.add_(p.grad * (length / (norm + 1e-12)))
        backward()
        with torch.no_grad():
            for p, old in zip(parameters, before):
                p.copy_(old)
            for t, old in statistics if not self.original.sam_statistics else ():
                t.copy_(old)

    def other_step(self, n, kind):
        """Returns the state after step n in bfloat16 or in float64, from the present state, without the average."""
        twin = copy.deepcopy(self)
        if not getattr(twin.average, "sets_weights", False):
            twin.average = None
        if kind == "bf16":
            twin.half = True
            twin.step(n)
            twin.average = None
            return twin.snapshot()
        twin.dtype = torch.float64
        twin.model.double()
        for state in (t for o in twin.optimizers for t in o.state.values()):
            state.update({k: t.double() for k, t in state.items() if torch.is_tensor(t)})
        if twin.average is not None:
            twin.average.average = {k: t.double() for k, t in twin.average.average.items()}
        torch.set_default_dtype(torch.float64)
        twin.step(n)
        twin.average = None
        torch.set_default_dtype(self.dtype)
        return twin.snapshot()

    def all_steps(self, kinds=()):
        """Returns the states before the first step and after each step, the losses, and for each of `kinds` the states after each
        step that computes in this type."""
        states, losses, others = [self.snapshot()], [], {k: [] for k in kinds}
        for n in range(STEPS):
            for kind, found in others.items():
                found.append(self.other_step(n, kind))
            losses.append(self.step(n))
            states.append(self.snapshot())
        return states, losses, others
