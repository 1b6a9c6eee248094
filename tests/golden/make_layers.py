#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes layers.safetensors of this folder with PyTorch, in the form of ops.safetensors: README.md says what is in it."""
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from make_golden import draw, f32, write  # noqa: E402


def layers():
    generator = torch.Generator().manual_seed(12)
    out = {}

    def case(name, function, **inputs):
        """Stores inputs, y = function(inputs), an incoming gradient dy and d<input> of each input."""
        inputs = {k: v.clone().requires_grad_() for k, v in inputs.items()}
        y = function(*inputs.values())
        dy = draw(generator, *y.shape)
        y.backward(dy)
        out.update({f"{name}.{k}": f32(v) for k, v in inputs.items()})
        out.update({f"{name}.y": f32(y), f"{name}.dy": f32(dy)})
        out.update({f"{name}.d{k}": f32(v.grad) for k, v in inputs.items()})

    for name, (n, c, h, w), k, kernel, stride, padding, groups in [
        ("conv3x3_groups", (2, 6, 6, 7), 9, 3, 1, 1, 3),
        ("conv3x3_depthwise", (2, 5, 7, 8), 5, 3, 1, 1, 5),
        ("conv5x5_depthwise_s2", (2, 4, 9, 8), 8, 5, 2, 2, 4),
    ]:
        case(name, lambda x, w, s=stride, p=padding, g=groups: F.conv2d(x, w, stride=s, padding=p, groups=g),
             x=draw(generator, n, c, h, w), w=draw(generator, k, c // groups, kernel, kernel, scale=0.25))
    binomial = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)
    kernel = (binomial.view(3, 1) * binomial).expand(4, 1, 3, 3)
    case("blur", lambda x: F.conv2d(x, kernel, stride=2, padding=1, groups=4), x=draw(generator, 2, 4, 7, 6))

    for name, function in [("sigmoid", torch.sigmoid), ("silu", F.silu), ("hard_swish", F.hardswish), ("relu6", F.relu6)]:
        case(name, function, x=draw(generator, 3, 5, 4, 6, scale=3.0))
    case("avg_pool", lambda x: F.avg_pool2d(x, 3, 2, 1), x=draw(generator, 2, 3, 7, 8))
    case("avg_pool_inside", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), x=draw(generator, 2, 3, 7, 8))
    case("multiply", lambda x, f: x * f, x=draw(generator, 2, 5, 3, 4), f=draw(generator, 2, 5, 1, 1))
    case("concat", lambda a, b: torch.cat([a, b], 1), a=draw(generator, 2, 3, 3, 4), b=draw(generator, 2, 4, 3, 4))
    # ConvNeXt's LayerNorm2d, and its scale of a block.
    case("layer_norm", lambda x, gamma, beta: F.layer_norm(x.permute(0, 2, 3, 1), (6,), gamma, beta, 1e-6).permute(0, 3, 1, 2),
         x=draw(generator, 2, 6, 3, 4, scale=2.0, shift=0.5), gamma=draw(generator, 6, scale=0.2, shift=1.0),
         beta=draw(generator, 6, scale=0.2))
    case("layer_scale", lambda x, gamma: x * gamma.view(1, -1, 1, 1), x=draw(generator, 2, 5, 3, 4),
         gamma=draw(generator, 5, scale=0.2))
    # ResNet-D's shortcut in timm, for a size that is odd.
    case("avg_pool_ceil", lambda x: F.avg_pool2d(x, 2, 2, ceil_mode=True, count_include_pad=False), x=draw(generator, 2, 3, 7, 5))
    return out


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    torch.set_num_threads(1)
    write(folder / "layers.safetensors", layers(), {"made_by": f"make_layers.py, PyTorch {torch.__version__.split('a')[0]}"})


if __name__ == "__main__":
    main()
