#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the golden values of this folder with PyTorch (Debian: python3-torch, 1.13.1). README.md describes them.

Everything is computed in float64 from inputs that are exact in float32, and stored as float32, so that a difference
beyond float32's own rounding is a difference in the mathematics.
"""
import json
import struct
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TYPES = {"float64": "F64", "float32": "F32", "int64": "I64", "uint8": "U8"}


def write(path, tensors, metadata):
    """Writes a safetensors file: header length, JSON header, data. Types of 8 bytes come first, so that all data is
    aligned."""
    arrays = {k: np.ascontiguousarray(v) for k, v in tensors.items()}
    header, offset, body = {"__metadata__": {k: str(v) for k, v in metadata.items()}}, 0, []
    for name, a in sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize):
        header[name] = {"dtype": TYPES[str(a.dtype)], "shape": list(a.shape), "data_offsets": [offset, offset + a.nbytes]}
        offset += a.nbytes
        body.append(a.astype(a.dtype.newbyteorder("<")).tobytes())
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(body))
    print(f"{path.name}: {len(arrays)} tensors, {path.stat().st_size} bytes")


def f32(t):
    return t.detach().numpy().astype(np.float32)


def f64(t):
    return np.asarray(t, dtype=np.float64)


def draw(generator, *shape, scale=1.0, shift=0.0):
    """Returns float64 values that float32 represents exactly."""
    return (torch.randn(*shape, generator=generator) * scale + shift).float().double()


# ---------------------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False),
                                            nn.BatchNorm2d(channels))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet8(nn.Module):
    """The CIFAR ResNet of depth 6n+2 with n = 1 and a quarter of the width: 4, 8 and 16 channels."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.layer1 = nn.Sequential(Block(4, 4, 1))
        self.layer2 = nn.Sequential(Block(4, 8, 2))
        self.layer3 = nn.Sequential(Block(8, 16, 2))
        self.fc = nn.Linear(16, 10)

    def forward(self, x, seen=lambda name, value: None):
        x = self.conv1(x)
        seen("stem_conv", x)
        x = F.relu(self.bn1(x))
        seen("stem", x)
        for i, layer in enumerate((self.layer1, self.layer2, self.layer3), 1):
            x = layer(x)
            seen(f"layer{i}.0", x)
        x = x.mean((2, 3))
        seen("pool", x)
        return self.fc(x)


def values(model):
    """Returns parameters and running statistics without the number of batches."""
    return {k: v.detach().clone() for k, v in model.state_dict().items() if not k.endswith("num_batches_tracked")}


def initialize(model, generator):
    """Sets He's normal weights. Scales, shifts and statistics of batch norm differ from 1 and 0, which would hide
    errors."""
    with torch.no_grad():
        for name, p in model.state_dict().items():
            if name.endswith("num_batches_tracked"):
                continue
            if name.endswith("running_mean"):
                p.copy_(draw(generator, *p.shape, scale=0.1))
            elif name.endswith("running_var"):
                p.copy_(draw(generator, *p.shape, scale=0.1).abs() + 0.75)
            elif p.dim() == 4:
                p.copy_(draw(generator, *p.shape, scale=(2 / p[0].numel()) ** 0.5))
            elif p.dim() == 2:
                p.copy_(draw(generator, *p.shape, scale=(1 / p.shape[1]) ** 0.5))
            elif ".bn" in "." + name or ".downsample.1." in name:
                p.copy_(draw(generator, *p.shape, scale=0.1, shift=1.0 if name.endswith("weight") else 0.0))
            else:
                p.copy_(draw(generator, *p.shape, scale=0.1))


def resnet8(dtype=torch.float64):
    # With most seeds the input of some relu is within 1e-8 of zero during the ten steps, so the rounding of a sum
    # changes the last losses. With this seed the losses change by less than 1e-5 if all weights change by 1e-5.
    generator = torch.Generator().manual_seed(12)
    model = ResNet8().double()
    initialize(model, generator)
    model = model.to(dtype)
    images = torch.randint(0, 256, (6, 3, 16, 16), generator=generator, dtype=torch.uint8)
    mean, inv_std = torch.tensor([120.0, 124.0, 128.0]), torch.full((3,), 1 / 64)
    x = ((images.double() - mean.view(3, 1, 1)) * inv_std.view(3, 1, 1)).to(dtype)  # exact
    labels = torch.tensor([3, 0, 9, 5, 3, 7])
    out = {"labels": labels.numpy(), "images": images.numpy(), "mean": f32(mean), "inv_std": f32(inv_std),
           "input": x}
    out.update({f"init.{k}": v for k, v in values(model).items()})

    # Evaluates with the initial running statistics.
    model.eval()
    out["eval.logits"] = model(x)
    model.train()

    x.requires_grad_()
    logits = model(x, lambda name, value: out.update({f"act.{name}": value}))
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    out.update({"logits": logits, "loss": loss.view(1), "grad.input": x.grad})
    out.update({f"grad.{k}": p.grad.clone() for k, p in model.named_parameters()})
    out.update({f"running.{k}": v for k, v in values(model).items() if "running_" in k})
    x = x.detach()

    # Trains ten steps from the initial state. The first loss equals the loss above.
    model.load_state_dict({k[5:]: v for k, v in out.items() if k.startswith("init.")}, strict=False)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    losses = []
    for _ in range(10):
        sgd.zero_grad()
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        sgd.step()
        losses.append(loss.item())
    out.update({f"final.{k}": v for k, v in values(model).items()})
    tensors = {k: v if isinstance(v, np.ndarray) else f32(v) for k, v in out.items()}
    tensors["losses"] = f64(losses)
    return tensors


# ---------------------------------------------------------------------------------------------------------------------


def ops():
    generator = torch.Generator().manual_seed(9)
    out = {}

    def case(name, function, **inputs):
        """Stores inputs, y = function(inputs), an incoming gradient dy and d<input> of each input."""
        inputs = {k: v.clone().requires_grad_() for k, v in inputs.items()}
        y = function(**inputs)
        dy = draw(generator, *y.shape)
        y.backward(dy)
        out.update({f"{name}.{k}": f32(v) for k, v in inputs.items()})
        out.update({f"{name}.y": f32(y), f"{name}.dy": f32(dy)})
        out.update({f"{name}.d{k}": f32(v.grad) for k, v in inputs.items()})

    for name, (n, c, h, w), k, kernel, stride, padding in [
        ("conv1x1", (2, 5, 6, 7), 4, 1, 1, 0),
        ("conv1x1_s2", (2, 4, 7, 8), 6, 1, 2, 0),
        ("conv3x3", (2, 3, 6, 7), 5, 3, 1, 1),
        ("conv3x3_s2", (2, 4, 7, 8), 5, 3, 2, 1),
        ("conv7x7_s2", (2, 3, 15, 18), 4, 7, 2, 3),
    ]:
        case(name, lambda x, w, s=stride, p=padding: F.conv2d(x, w, stride=s, padding=p),
             x=draw(generator, n, c, h, w), w=draw(generator, k, c, kernel, kernel, scale=0.25))

    # All values are negative: padding that counted as zero would be the maximum.
    pool = lambda x: F.max_pool2d(x, 3, 2, 1)
    case("max_pool", pool, x=draw(generator, 2, 3, 7, 8))
    case("max_pool_negative", pool, x=-draw(generator, 2, 3, 8, 7).abs() - 0.5)
    case("global_avg_pool", lambda x: F.adaptive_avg_pool2d(x, 1), x=draw(generator, 3, 4, 5, 7))
    case("linear", lambda x, w, b: F.linear(x, w, b), x=draw(generator, 4, 6), w=draw(generator, 5, 6), b=draw(generator, 5))

    # running = 0.9 running + 0.1 batch, with the unbiased variance; eps 1e-5.
    for name, relu, residual in [("batch_norm", 0, 0), ("batch_norm_relu", 1, 0), ("batch_norm_add_relu", 1, 1)]:
        running = [draw(generator, 5, scale=0.2), draw(generator, 5, scale=0.2).abs() + 0.5]
        out.update({f"{name}.running_mean": f32(running[0]), f"{name}.running_var": f32(running[1])})

        def norm(x, gamma, beta, residual=None):
            y = F.batch_norm(x, *running, gamma, beta, training=True, momentum=0.1, eps=1e-5)
            y = y if residual is None else y + residual
            return F.relu(y) if relu else y

        shape = (3, 5, 4, 6)
        more = {"residual": draw(generator, *shape)} if residual else {}
        x = draw(generator, *shape, scale=2.0, shift=0.5)
        before = [r.clone() for r in running]
        case(name, norm, x=x, gamma=draw(generator, 5, scale=0.2, shift=1.0), beta=draw(generator, 5, scale=0.2), **more)
        out.update({f"{name}.mean": f32(x.mean((0, 2, 3))),
                    f"{name}.inv_std": f32((x.var((0, 2, 3), unbiased=False) + 1e-5).rsqrt()),
                    f"{name}.new_running_mean": f32(running[0]), f"{name}.new_running_var": f32(running[1])})
        if name == "batch_norm":
            gamma, beta = (torch.from_numpy(out[f"{name}.{k}"]).double() for k in ("gamma", "beta"))
            out[f"{name}.y_inference"] = f32(F.batch_norm(x, *before, gamma, beta, training=False, eps=1e-5))

    # The mean over the rows, and its gradient.
    logits = draw(generator, 6, 10, scale=3.0)
    labels = torch.tensor([1, 0, 9, 4, 4, 7])
    for name, smoothing in [("cross_entropy", 0.0), ("cross_entropy_smooth", 0.1)]:
        z = logits.clone().requires_grad_()
        loss = F.cross_entropy(z, labels, label_smoothing=smoothing)
        loss.backward()
        out.update({f"{name}.logits": f32(z), f"{name}.labels": labels.numpy(), f"{name}.loss": f32(loss.view(1)),
                    f"{name}.dlogits": f32(z.grad)})
    return out


# ---------------------------------------------------------------------------------------------------------------------

SPLIT = (5, 4, 3)  # the sizes of three tensors in the vector, for methods that work by tensor
STEPS = 5
ETA, RATE, DECAY, MOMENTUM, MAX_NORM = 0.013, 0.1, 1e-4, 0.9, 1.0


def larc(w0, gradients, clip, nesterov):
    """Trains with LARS (or with `clip` LARC) and SGD with momentum. Weight decay is part of the gradient (L2)."""
    w, a, history, factors = w0.copy(), np.zeros_like(w0), [], []
    for g in gradients:
        g = g + DECAY * w
        scaled = np.empty_like(g)
        for part in np.split(np.arange(w.size), np.cumsum(SPLIT)[:-1]):
            norm_w, norm_g = np.linalg.norm(w[part]), np.linalg.norm(g[part])
            factor = ETA * norm_w / norm_g if norm_w > 0 and norm_g > 0 else 1.0
            if clip:
                factor = min(factor / RATE, 1.0)
            scaled[part] = factor * g[part]
            factors.append(factor)
        a = MOMENTUM * a + scaled
        w = w - RATE * (scaled + MOMENTUM * a if nesterov else a)
        history.append(w)
    return np.array(history), np.array(factors).reshape(STEPS, len(SPLIT))


def optim():
    generator = torch.Generator().manual_seed(10)
    w0 = draw(generator, sum(SPLIT))
    # Some steps have small gradients, so that LARC's minimum and the clipping use both branches.
    gradients = draw(generator, STEPS, sum(SPLIT)) * torch.tensor([1.0, 0.125, 2.0, 0.0625, 0.5]).view(STEPS, 1)
    split_w0 = w0.clone()
    split_w0[-SPLIT[-1]:] = 0  # a tensor of norm zero
    out = {"w0": f32(w0), "gradients": f32(gradients), "split": np.array(SPLIT, dtype=np.int64),
           "split_w0": f32(split_w0)}

    def torch_steps(name, make, start=w0, max_norm=None):
        parts = [nn.Parameter(p.clone()) for p in torch.split(start, SPLIT)]
        optimizer, history, norms = make(parts), [], []
        for g in gradients:
            for p, part in zip(parts, torch.split(g, SPLIT)):
                p.grad = part.clone()
            if max_norm:
                norms.append(nn.utils.clip_grad_norm_(parts, max_norm).item())
            optimizer.step()
            history.append(torch.cat([p.detach() for p in parts]).clone())
        out[f"{name}.w"] = f32(torch.stack(history))
        if norms:
            out[f"{name}.norms"] = np.array(norms, dtype=np.float32)

    sgd = torch.optim.SGD
    torch_steps("sgd", lambda p: sgd(p, RATE))
    torch_steps("sgd_momentum", lambda p: sgd(p, RATE, MOMENTUM))
    torch_steps("sgd_momentum_decay", lambda p: sgd(p, RATE, MOMENTUM, weight_decay=0.01))
    torch_steps("sgd_nesterov", lambda p: sgd(p, RATE, MOMENTUM, nesterov=True))
    torch_steps("sgd_nesterov_decay", lambda p: sgd(p, RATE, MOMENTUM, nesterov=True, weight_decay=0.01))
    torch_steps("adamw", lambda p: torch.optim.AdamW(p, 0.01, (0.9, 0.999), 1e-8, weight_decay=0.01))
    torch_steps("adamw_no_decay", lambda p: torch.optim.AdamW(p, 0.01, (0.9, 0.999), 1e-8, weight_decay=0.0))
    torch_steps("clip", lambda p: sgd(p, RATE, MOMENTUM), max_norm=MAX_NORM)
    for name, clip, nesterov in [("lars", 0, 0), ("lars_nesterov", 0, 1), ("larc", 1, 0), ("larc_nesterov", 1, 1)]:
        history, factors = larc(split_w0.numpy(), gradients.numpy(), clip, nesterov)
        out.update({f"{name}.w": history.astype(np.float32), f"{name}.factors": factors.astype(np.float32)})
    return out


def rounding(tensors):
    """Returns the difference of PyTorch in float32 from the golden values, which is the smallest possible tolerance."""
    single = resnet8(torch.float32)
    worst = {}
    for name, expected in tensors.items():
        group = name.split(".")[0]
        error = np.abs(single[name].astype(np.float64) - expected).max() / max(np.abs(expected).max(), 1e-30)
        worst[group] = max(worst.get(group, 0), error)
    for group, error in worst.items():
        print(f"  float32: {group:10} {error:.1e} of the tensor's largest value")


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    torch.set_num_threads(1)
    by = {"made_by": f"make_golden.py, PyTorch {torch.__version__.split('a')[0]}"}
    net = resnet8()
    write(folder / "resnet8.safetensors", net,
          {**by, "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "bn_eps": 1e-5, "bn_momentum": 0.1})
    rounding(net)
    write(folder / "ops.safetensors", ops(), {**by, "bn_eps": 1e-5, "bn_momentum": 0.1, "label_smoothing": 0.1})
    write(folder / "optim.safetensors", optim(),
          {**by, "lr": RATE, "momentum": MOMENTUM, "sgd_decay": 0.01, "adamw_lr": 0.01, "adamw_decay": 0.01,
           "lars_eta": ETA, "lars_decay": DECAY, "max_norm": MAX_NORM})


if __name__ == "__main__":
    main()
