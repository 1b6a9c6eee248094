#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes cifar_fast.safetensors: the net of the fast CIFAR-10 recipe, a few channels wide, in PyTorch. See README.md."""
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "baselines"))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from make_golden import write  # noqa: E402
from torch_cifar_recipe import Net, parameter_groups, whitening  # noqa: E402
from torchvision_resnet import fill, images, normalized, uniform  # noqa: E402

ROWS, SIZE, WIDTHS, SMOOTHING = 4, 32, (8, 16, 24), 0.2
RATE, DECAY, MOMENTUM, BETA_RATE, STEPS = 0.05, 0.02, 0.85, 4, 6


def digest(name, values):
    """Returns the norm of a tensor, and its product with a fixed vector."""
    v = values.detach().reshape(-1).numpy()
    return np.array([np.sqrt(v @ v), v @ uniform("probe." + name, v.size)])


def main():
    torch.set_num_threads(1)
    pixels = images(ROWS, SIZE)
    x, labels = normalized(pixels), torch.tensor([3, 5, 0, 9])
    model = Net(WIDTHS).double()
    fill(model)
    model.whitening.weight.data.copy_(whitening(x))
    out = {"whitening": model.whitening.weight.detach().numpy().astype(np.float32), "labels": labels.numpy()}
    # The file has the whitening weights in float32.
    model.whitening.weight.data.copy_(torch.from_numpy(out["whitening"]).double())
    model.eval()
    with torch.no_grad():
        out["eval"] = model(x).numpy()
    model.train()

    def seen(name):
        return lambda module, inputs, y: out.update({f"act.{name}": digest(name, y.permute(0, 2, 3, 1))})

    hooks = [m.register_forward_hook(seen(name)) for name, m in model.named_modules() if name.startswith("layer") and "." not in name]
    logits = model(x)
    loss = F.cross_entropy(logits, labels, label_smoothing=SMOOTHING)
    loss.backward()
    for h in hooks:
        h.remove()
    out.update({"train": logits.detach().numpy(), "loss": loss.detach().view(1).numpy()})
    out.update({f"grad.{k}": digest(k, p.grad) for k, p in model.named_parameters() if p.requires_grad})
    # Running statistics change in every forward pass. The losses below do not depend on them.
    out.update({f"running.{k}": digest(k, v) for k, v in model.state_dict().items() if "running_" in k})

    optimizer = torch.optim.SGD(parameter_groups(model, DECAY, BETA_RATE), lr=RATE, momentum=MOMENTUM, nesterov=True)
    for g in optimizer.param_groups:
        g["lr"] = RATE * g["rate"]
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), labels, label_smoothing=SMOOTHING)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    out["losses"] = np.array(losses)
    out.update({f"final.{k}": digest(k, p) for k, p in model.named_parameters() if p.requires_grad})
    write(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent) / "cifar_fast.safetensors", out,
          {"rows": ROWS, "size": SIZE, "widths": WIDTHS, "label_smoothing": SMOOTHING, "lr": RATE, "weight_decay": DECAY,
           "momentum": MOMENTUM, "beta_rate": BETA_RATE, "bn_eps": 1e-5, "bn_momentum": 0.4, "output_scale": "1/9"})


if __name__ == "__main__":
    main()
