#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes records.safetensors: the nets of the records for CIFAR-10, a few channels wide, and twelve steps of their
training, in PyTorch. See README.md."""
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from make_golden import write  # noqa: E402
from torch import nn  # noqa: E402
from torchvision_resnet import images, normalized, uniform, value  # noqa: E402

ROWS, SIZE, CLASSES, WIDTHS, SMOOTHING = 2, 32, 7, (8, 16, 24), 0.2
STEPS, EARLY, WARM = 12, 4, 3
# Rates and decays of a sum of losses.
SGD_RATE, BIAS_FACTOR, SGD_DECAY = 0.02, 64, 0.001
MUON_RATE, MUON_DECAY, REST_RATE, REST_DECAY = 0.1, 0.05, 0.05, 0.004
HEADS = {"airbench94_muon": 0.67 / 0.053, "hive94": 0.5415 / 0.0573}


def norm(channels, momentum):
    bn = nn.BatchNorm2d(channels, eps=1e-12, momentum=momentum)
    bn.weight.requires_grad = False
    return bn


class Block(nn.Module):
    def __init__(self, channels_in, channels, convolutions, momentum, activation):
        super().__init__()
        for k in range(convolutions):
            self.add_module(f"conv{k + 1}", nn.Conv2d(channels if k else channels_in, channels, 3, padding=1, bias=False))
            self.add_module(f"bn{k + 1}", norm(channels, momentum))
        self.third, self.activation = convolutions == 3, activation

    def forward(self, x):
        first = self.activation(self.bn1(F.max_pool2d(self.conv1(x), 2)))
        x = self.activation(self.bn2(self.conv2(first)))
        return self.activation(self.bn3(self.conv3(x)) + first) if self.third else x


class Net(nn.Module):
    def __init__(self, name):
        super().__init__()
        convolutions = 3 if name == "airbench96" else 2
        momentum = {"airbench96": 0.1, "hive94": 1 - 0.5566}.get(name, 0.4)
        self.scale = 1 / 256 if name in HEADS else 1 / 9
        self.whitening = nn.Conv2d(3, 24, 2)
        self.whitening.weight.requires_grad = False
        last = 24
        for k, channels in enumerate(WIDTHS):
            self.add_module(f"layer{k + 1}", Block(last, channels, convolutions, momentum, F.silu if name == "hive94" else F.gelu))
            last = channels
        self.fc = nn.Linear(last, CLASSES)
        self.fc.bias.requires_grad = False

    def forward(self, x, trains_bias=True):
        bias = self.whitening.bias
        x = F.gelu(F.conv2d(x, self.whitening.weight, bias if trains_bias else bias.detach()))
        x = self.layer3(self.layer2(self.layer1(x)))
        return F.linear(F.max_pool2d(x, 3).flatten(1), self.fc.weight) * self.scale + self.fc.bias


def fill(model):
    """Sets all values by formula. tutti's weights of the head include the scale of the output."""
    with torch.no_grad():
        for key, p in model.state_dict().items():
            if not key.endswith("num_batches_tracked"):
                p.copy_(value(key, tuple(p.shape)) / (model.scale if key == "fc.weight" else 1))


def digest(key, values, scale=1):
    v = values.detach().reshape(-1).numpy() * scale
    return np.array([np.sqrt(v @ v), v @ uniform("probe." + key, v.size)])


def triangle(step):
    if step < WARM:
        return 0.2 + 0.8 * step / WARM
    return 1 - 0.93 * (step - WARM) / (STEPS - WARM)


def polynomial(x, factors):
    a, b, c = factors
    x = x.T if x.size(0) > x.size(1) else x
    for _ in range(3):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


class Muon:
    """The rule of both records. An eps of 1e-7 and less of the norms is left out."""

    def __init__(self, parameters, hive):
        self.parameters, self.hive = parameters, hive
        self.momentum = [torch.zeros_like(p) for p in parameters]
        self.steps = self.last = 0

    @torch.no_grad()
    def step(self, rate):
        self.steps += 1
        share = self.steps / STEPS
        normalizes = True
        if self.hive:
            normalizes = self.steps - self.last >= 2 + int(15 * share)
            if normalizes:
                self.last = self.steps
        for p, a in zip(self.parameters, self.momentum):
            a.mul_(0.655 if self.hive else 0.6).add_(p.grad)
            d = (p.grad + (0.655 if self.hive else 0.6) * a).flatten(1)
            x = d / d.norm()
            if self.hive:
                x = x * (0.5012 * (1 - share) + 0.0786 * share)
                x = x / (x.norm() + 1e-5)
            x = polynomial(x, (3.4576, -4.7391, 2.0843) if self.hive else (3.4445, -4.7750, 2.0315))
            x = x.T if d.size(0) > d.size(1) else x
            if normalizes:
                p.mul_(len(p) ** 0.5 / p.norm())
            p.sub_(rate * x.reshape(p.shape))
            if self.hive:
                p.mul_(1 - rate * MUON_DECAY)


def train(name, model, x, labels):
    """Runs the steps of a record, with other rates and a length of 12 steps. Returns the losses."""
    learned = [(k, p) for k, p in model.named_parameters() if p.requires_grad]
    muon = name in HEADS
    if muon:
        filters = Muon([p for _, p in learned if p.dim() == 4], name == "hive94")
        group = lambda which, rate: {"params": [p for k, p in learned if which in k], "lr": rate, "weight_decay": REST_DECAY / rate}
        groups = [group("whitening", REST_RATE), group(".bn", REST_RATE), group("fc", REST_RATE * HEADS[name])]
    else:
        group = lambda is_bias, rate: {"params": [p for k, p in learned if (".bn" in k) == is_bias], "lr": rate, "weight_decay": SGD_DECAY / rate}
        groups = [group(True, SGD_RATE * BIAS_FACTOR), group(False, SGD_RATE)]
    optimizer = torch.optim.SGD(groups, momentum=0.825 if name == "hive94" else 0.85, nesterov=True)
    peaks = [g["lr"] for g in optimizer.param_groups]
    average = {k: v.clone() for k, v in model.state_dict().items()}
    losses = []
    for step in range(STEPS):
        model.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x, step < EARLY), labels, label_smoothing=SMOOTHING, reduction="sum")
        loss.backward()
        losses.append(loss.item() / ROWS)
        for k, (g, peak) in enumerate(zip(optimizer.param_groups, peaks)):
            g["lr"] = peak * ((1 - step / (EARLY if k == 0 else STEPS)) if muon else triangle(step))
        optimizer.step()
        if muon:
            filters.step(MUON_RATE * (1 - step / STEPS))
            continue
        done = step + 1
        with torch.no_grad():
            for k, v in model.state_dict().items():
                if not v.is_floating_point():
                    continue
                if done % 5 == 0:
                    average[k].lerp_(v, 1 - 0.95**5 * (done / STEPS) ** 3)
                if done % 5 == 0 or done == STEPS:
                    v.copy_(average[k])
    return losses


def main():
    torch.set_num_threads(1)
    x, labels = normalized(images(ROWS, SIZE)), torch.tensor([3, 5])
    out = {}
    for name in ("airbench94", "airbench94_muon", "airbench96", "hive94"):
        model = Net(name).double()
        fill(model)
        model.eval()
        with torch.no_grad():
            out[f"{name}.eval"] = model(x).numpy().astype(np.float32)
        model.train()
        logits = model(x)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        out.update({f"{name}.train": logits.detach().numpy().astype(np.float32), f"{name}.loss": loss.detach().view(1).numpy()})
        scale = lambda k: model.scale if k == "fc.weight" else 1
        out.update({f"{name}.grad.{k}": digest(k, p.grad, 1 / scale(k)) for k, p in model.named_parameters() if p.requires_grad})
        fill(model)
        out[f"{name}.losses"] = np.array(train(name, model, x, labels))
        out.update({f"{name}.final.{k}": digest(k, v, scale(k)) for k, v in model.state_dict().items() if not k.endswith("num_batches_tracked")})
    write(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent) / "records.safetensors", out,
          {"rows": ROWS, "size": SIZE, "classes": CLASSES, "widths": WIDTHS, "label_smoothing": SMOOTHING, "steps": STEPS, "early": EARLY})


if __name__ == "__main__":
    main()
