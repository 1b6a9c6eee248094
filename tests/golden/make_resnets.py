#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes resnets.safetensors: PyTorch's results for torchvision's ResNets with parameters by formula. See README.md."""
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from make_golden import write  # noqa: E402
from torchvision_resnet import ResNet, fill, images, normalized, uniform  # noqa: E402

ROWS, SIZE, CLASSES = 2, 64, 7


def main():
    out, x, labels = {}, normalized(images(ROWS, SIZE)), torch.tensor([3, 5])
    for depth, v1 in [(18, False), (34, False), (50, False), (50, True), (101, False), (152, False)]:
        name = f"resnet{depth}" + ("_v1" if v1 else "")
        model = ResNet(depth, CLASSES, v1).double()
        fill(model)
        model.eval()
        with torch.no_grad():
            out[f"{name}.eval"] = model(x).numpy().astype(np.float32)
        if depth > 50:
            continue
        model.train()
        logits = model(x)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        out[f"{name}.train"] = logits.detach().numpy().astype(np.float32)
        out[f"{name}.loss"] = loss.detach().view(1).numpy()
        # Stores the norm of each parameter's gradient, and its product with a fixed vector.
        for key, p in model.named_parameters():
            g = p.grad.reshape(-1).numpy()
            out[f"{name}.grad.{key}"] = np.array([np.sqrt(g @ g), g @ uniform("probe." + key, g.size)])
    write(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent) / "resnets.safetensors", out,
          {"rows": ROWS, "size": SIZE, "classes": CLASSES})


if __name__ == "__main__":
    main()
