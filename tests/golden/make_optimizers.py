#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes optimizers.safetensors with PyTorch's and timm's own optimizers, schedules and averages. README.md says what is in it.

  python3 -m venv v && v/bin/pip install torch==2.15.0 timm==1.0.31 numpy==2.4.6 && v/bin/python tests/golden/make_optimizers.py

Everything is computed in float64 from inputs that are exact in float32. The rates are stored as float64.
"""
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from timm.optim.lamb import Lamb
from timm.scheduler.cosine_lr import CosineLRScheduler
from timm.utils.model_ema import ModelEmaV3
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, OneCycleLR, SequentialLR
from torch.optim.swa_utils import AveragedModel

from make_golden import draw, f32, f64, write

SPLIT, STEPS, DECAY = [5, 4, 3], 5, 0.02
TALL, WIDE = (10, 6), (6, 10)
TOTAL, PER_EPOCH = 60, 6


def history(make, start, gradients, decays):
    """Returns the parameters after each step; decays: of each."""
    parts = [nn.Parameter(p.clone()) for p in start]
    optimizer = make([{"params": [p], "weight_decay": d} for p, d in zip(parts, decays)])
    out = []
    for step in gradients:
        for p, g in zip(parts, step):
            p.grad = g.clone()
        optimizer.step()
        out.append(torch.cat([p.detach().flatten() for p in parts]).clone())
    return f64(torch.stack(out))


def optimizers(out):
    generator = torch.Generator().manual_seed(21)
    w0 = draw(generator, sum(SPLIT))
    # Small in some steps, so that limits of the norm take both branches.
    gradients = draw(generator, STEPS, sum(SPLIT)) * torch.tensor([1.0, 0.125, 2.0, 0.0625, 0.5]).view(STEPS, 1)
    out.update({"w0": f32(w0), "gradients": f32(gradients), "split": np.array(SPLIT, dtype=np.int64)})
    parts, steps = torch.split(w0, SPLIT), [torch.split(g, SPLIT) for g in gradients]
    # The last tensor does not decay, as biases do not.
    decays = [DECAY, DECAY, 0]

    def case(name, make):
        out[f"{name}.w"] = history(make, parts, steps, decays)

    betas, eps = (0.8, 0.95), 1e-3
    case("adam", lambda p: torch.optim.Adam(p, 0.01))
    case("adam_betas", lambda p: torch.optim.Adam(p, 0.01, betas, eps))
    case("adamw", lambda p: torch.optim.AdamW(p, 0.01))
    case("adamw_betas", lambda p: torch.optim.AdamW(p, 0.01, betas, eps))
    case("lamb", lambda p: Lamb(p, 0.01))
    case("lamb_betas", lambda p: Lamb(p, 0.01, betas=betas, eps=eps))
    case("lamb_trust_clip", lambda p: Lamb(p, 0.01, trust_clip=True))
    case("lamb_no_limit", lambda p: Lamb(p, 0.01, max_grad_norm=None))
    case("lamb_always_adapt", lambda p: Lamb(p, 0.01, always_adapt=True, max_grad_norm=0.5))


def airbench(w, a, g, momentum, lr, steps):
    """Muon of airbench94_muon.py, which normalises weights and adds eps to the norm."""
    a = momentum * a + g
    d = g + momentum * a
    w = w * (len(w) ** 0.5 / w.norm())
    x = d / (d.norm() + 1e-7)
    x = x.T if x.size(0) > x.size(1) else x
    for _ in range(steps):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return w - lr * (x.T if d.size(0) > d.size(1) else x), a


def muon(out):
    generator = torch.Generator().manual_seed(22)
    for name, shape in (("tall", TALL), ("wide", WIDE)):
        w0, gradients = draw(generator, *shape), draw(generator, STEPS, *shape)
        out.update({f"muon_{name}.w0": f32(w0), f"muon_{name}.gradients": f32(gradients)})
        half = torch.bfloat16
        try:
            for case, more in (("bf16", {}), ("rows", {}), ("rms", {"adjust_lr_fn": "match_rms_adamw"}), ("plain", {"nesterov": False, "ns_steps": 3})):
                torch.bfloat16 = half if case == "bf16" else torch.float64  # otherwise PyTorch's own code, in float64
                out[f"muon_{name}_{case}.w"] = history(lambda p: torch.optim.Muon(p, lr=0.02, momentum=0.9, **more),
                                                       [w0], [[g] for g in gradients], [DECAY])
        finally:
            torch.bfloat16 = half
        w, a, all_of = w0, torch.zeros_like(w0), []
        for g in gradients:
            w, a = airbench(w, a, g, 0.6, 0.24, 3)
            all_of.append(w.flatten())
        out[f"muon_{name}_airbench.w"] = f64(torch.stack(all_of))


SAM_STEPS, SAM_ROWS, RHO = 4, 8, 0.5
NORM = float(np.float32(1e-5)), float(np.float32(0.1))  # eps and momentum, which tutti has in float32


def sam_case(start, images, labels, every=1, ranks=1, frozen=()):
    """Returns weights and statistics after each step. As Composer's SAM: each rank perturbs the weights by the gradient of
    its own rows. As its authors' code, the second pass does not change the statistics of batch norm. The ranks then
    take the mean of the gradients, and of the statistics."""
    net = nn.Sequential(OrderedDict(conv1=nn.Conv2d(3, 4, 3, 1, 1, bias=False), bn1=nn.BatchNorm2d(4, *NORM), relu=nn.ReLU(),
                                    pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), fc=nn.Linear(4, 4))).double()
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(start[name])
    named = {n: p for n, p in net.named_parameters() if n not in frozen}
    parts, statistics = list(named.values()), (net.bn1.running_mean, net.bn1.running_var)
    optimizer = torch.optim.SGD([{"params": [p], "weight_decay": DECAY if p.dim() > 1 else 0} for p in parts],
                                lr=0.1, momentum=0.9, nesterov=True)
    out = []

    def put(values):
        for s, v in zip(statistics, values):
            s.copy_(v)

    for step in range(SAM_STEPS):
        before, after, total = [s.clone() for s in statistics], [], [0.0] * len(parts)
        for x, y in zip(images[step].chunk(ranks), labels[step].chunk(ranks)):
            put(before)
            gradient = lambda: torch.autograd.grad(nn.functional.cross_entropy(net(x), y), parts)
            g = gradient()
            after.append([s.clone() for s in statistics])
            if (step + 1) % every == 0:
                norm = torch.stack([v.norm() for v in g]).norm()
                old = [p.detach().clone() for p in parts]
                with torch.no_grad():
                    for p, v in zip(parts, g):
                        p.add_(v * (RHO / (norm + 1e-12)))
                g = gradient()
                with torch.no_grad():
                    for p, o in zip(parts, old):
                        p.copy_(o)
            total = [t + v / ranks for t, v in zip(total, g)]
        put([torch.stack(s).mean(0) for s in zip(*after)])
        for p, t in zip(parts, total):
            p.grad = t
        optimizer.step()
        names = ("conv1.weight", "bn1.weight", "bn1.bias", "fc.weight", "fc.bias")
        values = dict(net.named_parameters())
        out.append(torch.cat([values[n].detach().flatten() for n in names] + [s.flatten() for s in statistics]).clone())
    return f64(torch.stack(out))


def sam(out):
    generator = torch.Generator().manual_seed(24)
    bytes_of = torch.randint(0, 256, (SAM_STEPS, SAM_ROWS, 6, 6, 3), generator=generator)
    labels = torch.randint(0, 4, (SAM_STEPS, SAM_ROWS), generator=generator)
    start = {"conv1.weight": draw(generator, 4, 3, 3, 3, scale=0.3), "bn1.weight": draw(generator, 4, scale=0.2, shift=1),
             "bn1.bias": draw(generator, 4, scale=0.2), "fc.weight": draw(generator, 4, 4), "fc.bias": draw(generator, 4)}
    out.update({f"sam.{name}": f32(v) for name, v in start.items()})
    out.update({"sam.images": bytes_of.numpy().astype(np.uint8), "sam.labels": labels.numpy()})
    images = (bytes_of.permute(0, 1, 4, 2, 3).double() - 128) / 64
    case = lambda **more: sam_case(start, images, labels, **more)
    out.update({"sam.every_1": case(), "sam.every_2": case(every=2), "sam.ranks": case(every=2, ranks=2),
                "sam.frozen": case(frozen=("conv1.weight",))})


def momenta(make, factory):
    """Returns the parameters after each step of an optimizer whose momentum a scheduler changes, and the momentum of
    each step."""
    generator = torch.Generator().manual_seed(25)
    p = nn.Parameter(torch.tensor([-1, -0.5, 0.25, 1]).double())
    optimizer = factory([p])
    scheduler, of_steps, momentum = make(optimizer), [], []
    for step in range(TOTAL):
        group = optimizer.param_groups[0]
        momentum.append(group["betas"][0] if "betas" in group else group["momentum"])
        p.grad = draw(generator, 4)
        optimizer.step()
        of_steps.append(p.detach().clone())
        if step + 1 < TOTAL:
            scheduler.step()
    return f64(torch.stack(of_steps)), f64(momentum)


def cycles(out):
    generator = torch.Generator().manual_seed(25)
    out["cycle.gradients"] = f32(torch.stack([draw(generator, 4) for _ in range(TOTAL)]))
    one = lambda **more: lambda o: OneCycleLR(o, 0.05, total_steps=TOTAL, **more)
    sgd, adamw = lambda p: torch.optim.SGD(p, 0.05, momentum=0.9), lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0)
    for name, make, factory in (("sgd", one(), sgd), ("adamw", one(), adamw),
                                ("linear", one(pct_start=0.4, anneal_strategy="linear", base_momentum=0.7, max_momentum=0.9), sgd),
                                ("three_phase", one(three_phase=True), sgd)):
        out[f"cycle.{name}.w"], out[f"cycle.{name}.momentum"] = momenta(make, factory)


def rates(make, per_epoch=1):
    """Returns the rate of each step of a scheduler that is stepped every per_epoch steps."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler, out = make(optimizer), []
    for step in range(TOTAL):
        out.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if (step + 1) % per_epoch == 0 and step + 1 < TOTAL:
            scheduler.step(*([(step + 1) // per_epoch] if isinstance(scheduler, CosineLRScheduler) else []))
    return f64(out)


def schedules(out):
    one = lambda **more: rates(lambda o: OneCycleLR(o, 0.5, total_steps=TOTAL, **more))
    out["one_cycle"] = one()
    out["one_cycle_linear"] = one(pct_start=0.4, anneal_strategy="linear", div_factor=10, final_div_factor=100)
    out["one_cycle_three_phase"] = one(three_phase=True)
    epochs = TOTAL // PER_EPOCH
    timm = lambda t, per_epoch, **more: rates(lambda o: CosineLRScheduler(o, t_initial=t, lr_min=1e-3, warmup_lr_init=1e-4, **more),
                                              per_epoch)
    out["timm_epochs"] = timm(epochs, PER_EPOCH, warmup_t=2)
    out["timm_epochs_prefix"] = timm(epochs - 2, PER_EPOCH, warmup_t=2, warmup_prefix=True)
    out["timm_updates"] = timm(TOTAL, 1, warmup_t=12, t_in_epochs=True)
    out["torchvision_epochs"] = rates(lambda o: SequentialLR(o, [LinearLR(o, 0.01, total_iters=2), CosineAnnealingLR(o, epochs - 2)], [2]),
                                      PER_EPOCH)


def averages(out):
    generator = torch.Generator().manual_seed(23)
    weights = draw(generator, 30, 4)
    out["ema.weights"] = f32(weights)
    model = nn.Linear(4, 1, bias=False).double()

    def follow(average, update):
        history = []
        for step, w in enumerate(weights, 1):
            with torch.no_grad():
                model.weight.copy_(w.view(1, 4))
            update(average, step)
            history.append(average.module.weight.detach().flatten().clone())
        return f64(torch.stack(history))

    out["ema.timm"] = follow(ModelEmaV3(model, decay=0.9, use_warmup=True), lambda a, step: a.update(model, step=step))
    out["ema.timm_later"] = follow(ModelEmaV3(model, decay=0.9, use_warmup=True, update_after_step=4, min_decay=0.5),
                                   lambda a, step: a.update(model, step=step))

    # references/classification of torchvision: 10 steps an epoch, an update every 3, warmup of one epoch, 2 epochs of batch 8.
    decay = 1 - min(1.0, (1 - 0.99) * (8 * 3 / 2))

    def torchvision(average, step):
        if (step - 1) % 10 % 3 == 0:
            average.update_parameters(model)
            if (step - 1) // 10 < 1:
                average.n_averaged.fill_(0)
    out["ema.torchvision"] = follow(AveragedModel(model, avg_fn=lambda a, m, n: decay * a + (1 - decay) * m), torchvision)


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    torch.set_num_threads(1)
    out = {}
    optimizers(out)
    muon(out)
    sam(out)
    cycles(out)
    schedules(out)
    averages(out)
    write(folder / "optimizers.safetensors", out,
          {"made_by": f"make_optimizers.py, PyTorch {torch.__version__.split('+')[0]}, timm 1.0.31", "decay": DECAY})


if __name__ == "__main__":
    main()
