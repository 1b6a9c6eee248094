# SPDX-License-Identifier: MIT
"""torchvision's ResNets as plain PyTorch modules with torchvision's names, because Debian does not package torchvision,
and parameters by formula, so that no file of weights has to be stored. tests/golden/test_resnet.cpp has the
formula too."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def conv(channels_in, channels, kernel, stride=1):
    return nn.Conv2d(channels_in, channels, kernel, stride, kernel // 2, bias=False)


class Block(nn.Module):
    """Two convolutions of 3x3, or a bottleneck: 1x1, 3x3, and 1x1 with four times as many channels."""

    def __init__(self, channels_in, width, stride, bottleneck, stride_in_1x1):
        super().__init__()
        out = 4 * width if bottleneck else width
        first = stride if stride_in_1x1 or not bottleneck else 1
        self.conv1 = conv(channels_in, width, 1 if bottleneck else 3, first)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride // first)
        self.bn2 = nn.BatchNorm2d(width)
        if bottleneck:
            self.conv3 = conv(width, out, 1)
            self.bn3 = nn.BatchNorm2d(out)
        self.bottleneck = bottleneck
        self.downsample = None
        if stride != 1 or channels_in != out:
            self.downsample = nn.Sequential(conv(channels_in, out, 1, stride), nn.BatchNorm2d(out))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        if self.bottleneck:
            y = self.bn3(self.conv3(F.relu(y, inplace=True)))
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


class ResNet(nn.Module):
    """He et al. 2016. The stride of a bottleneck is in its 3x3 convolution (v1.5, as in torchvision) or in its first
    one. A stem for CIFAR is a 3x3 convolution without pooling."""

    def __init__(self, depth, classes, stride_in_1x1=False, cifar_stem=False):
        super().__init__()
        self._stages(BLOCKS[depth], 64, classes, depth >= 50, stride_in_1x1, cifar_stem)

    def _stages(self, blocks, width, classes, bottleneck, stride_in_1x1, cifar_stem):
        self.conv1 = conv(3, width, 3) if cifar_stem else conv(3, width, 7, 2)
        self.bn1 = nn.BatchNorm2d(width)
        self.pooled, self.stages = not cifar_stem, len(blocks)
        channels = width
        for stage, count in enumerate(blocks):
            layer = []
            for i in range(count):
                layer.append(Block(channels, width << stage, 2 if stage > 0 and i == 0 else 1, bottleneck, stride_in_1x1))
                channels = (4 if bottleneck else 1) * width << stage
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layer))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        if self.pooled:
            x = F.max_pool2d(x, 3, 2, 1)
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))


class CifarResNet(ResNet):
    """He et al. 2016, section 4.2: depth 6n + 2, with three stages of basic blocks of 16, 32 and 64 channels."""

    def __init__(self, depth, classes=10):
        nn.Module.__init__(self)
        self._stages(((depth - 2) // 6,) * 3, 16, classes, False, False, True)


def bits(name, count):
    """Returns `count` 64-bit numbers: SplitMix64 (Steele et al. 2014) from the FNV-1a hash of the name."""
    h = 0xCBF29CE484222325
    for c in name.encode():
        h = (h ^ c) * 0x100000001B3 % (1 << 64)
    z = np.uint64(h) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(name, count):
    """Returns numbers in [-1, 1) with 24 bits."""
    return (bits(name, count) >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1


def value(name, shape):
    """Returns a parameter or statistic in float64, with values that float32 represents exactly."""
    u = uniform(name, int(np.prod(shape)))
    if name.endswith("running_var"):
        v = 1 + 0.25 * u
    elif name.endswith("running_mean"):
        v = 0.1 * u
    elif len(shape) > 1:
        v = u * np.sqrt((6.0 if len(shape) == 4 else 1.0) / np.prod(shape[1:]))
    elif ".bn3." in name or (".bn2." in name and name.endswith("weight")):
        v = 0.25 + 0.1 * u if name.endswith("weight") else 0.1 * u  # so that sums of residual blocks grow little
    else:
        v = 1 + 0.1 * u if name.endswith("weight") else 0.1 * u
    return torch.from_numpy(v.astype(np.float32).astype(np.float64).reshape(shape))


def fill(model):
    with torch.no_grad():
        for name, p in model.state_dict().items():
            if not name.endswith("num_batches_tracked"):
                p.copy_(value(name, tuple(p.shape)))


def images(rows, size):
    """Returns images as bytes, [rows, size, size, 3]."""
    return (bits("images", rows * size * size * 3) >> np.uint64(56)).astype(np.uint8).reshape(rows, size, size, 3)


def normalized(pixels):
    """Returns (pixels - (120, 124, 128)) / 64 in float64, without rounding, [rows, 3, size, size]."""
    return (torch.from_numpy(pixels).permute(0, 3, 1, 2).double() - torch.tensor([120.0, 124, 128]).view(3, 1, 1)) / 64
