#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes nets.safetensors: results of torchvision's and timm's nets, and of a Wide ResNet, with parameters by formula. See
README.md. Needs PyTorch, torchvision and timm from PyPI; made with 2.15.0, 0.29.2 and 1.0.31."""
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np  # noqa: E402
import timm  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import torchvision  # noqa: E402
from make_golden import write  # noqa: E402
from torch import nn  # noqa: E402
from torchvision_resnet import images, normalized, uniform, value  # noqa: E402

ROWS, SIZE, SMALL, CLASSES = 2, 64, 16, 7


class WideBlock(nn.Module):
    def __init__(self, channels_in, channels, stride, project):
        super().__init__()
        self.bn0, self.bn1 = nn.BatchNorm2d(channels_in), nn.BatchNorm2d(channels)
        self.conv0 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.conv1 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.convdim = nn.Conv2d(channels_in, channels, 1, stride, bias=False) if project else None

    def forward(self, x):
        o = F.relu(self.bn0(x))
        z = self.conv1(F.relu(self.bn1(self.conv0(o))))
        return z + (x if self.convdim is None else self.convdim(o))


class WideResNet(nn.Module):
    """As resnet.py of the authors' program (szagoruyko/wide-residual-networks, pytorch)."""

    def __init__(self, depth, widen, classes=CLASSES):
        super().__init__()
        blocks, last = (depth - 4) // 6, 16
        self.conv0 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        for group in range(3):
            members = nn.Module()
            for k in range(blocks):
                members.add_module(f"block{k}", WideBlock(last, 16 * widen << group, 2 if group > 0 and k == 0 else 1, k == 0))
                last = 16 * widen << group
            self.add_module(f"group{group}", members)
        self.bn, self.fc = nn.BatchNorm2d(last), nn.Linear(last, classes)

    def forward(self, x):
        x = self.conv0(x)
        for group in range(3):
            for block in getattr(self, f"group{group}").children():
                x = block(x)
        return self.fc(F.relu(self.bn(x)).mean((2, 3)))


def shape_of(name, p):
    """Returns the shape of a parameter in tutti: ConvNeXt's fully connected layers are 1x1 convolutions."""
    return (*p.shape, 1, 1) if ".block." in name and p.dim() == 2 else tuple(p.shape)


def main():
    library = torchvision.models
    nets = {
        "resnext50_32x4d": library.resnext50_32x4d(num_classes=CLASSES),
        "wide_resnet50_2": library.wide_resnet50_2(num_classes=CLASSES),
        "resnet50d": timm.create_model("resnet50d", num_classes=CLASSES),
        "seresnet50": timm.create_model("seresnet50", num_classes=CLASSES),
        "mobilenet_v2": library.mobilenet_v2(num_classes=CLASSES, dropout=0.0),
        "convnext_tiny": library.convnext_tiny(num_classes=CLASSES, stochastic_depth_prob=0.0),
        "wide_resnet_16_2": WideResNet(16, 2),
    }
    out, labels = {}, torch.tensor([3, 5])
    for name, model in nets.items():
        x = normalized(images(ROWS, SMALL if name == "wide_resnet_16_2" else SIZE))
        model = model.double()
        with torch.no_grad():
            for key, p in model.state_dict().items():
                if not key.endswith("num_batches_tracked"):
                    p.copy_(value(key, shape_of(key, p)).reshape(p.shape))
        model.eval()
        with torch.no_grad():
            out[f"{name}.eval"] = model(x).numpy().astype(np.float32)
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
    write(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent) / "nets.safetensors", out,
          {"rows": ROWS, "size": SIZE, "small": SMALL, "classes": CLASSES})


if __name__ == "__main__":
    main()
