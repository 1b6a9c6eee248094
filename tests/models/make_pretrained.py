#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes pretrained.txt: the names and shapes of torchvision's and timm's ResNets, and their logits for one image with the
weights of pretrained_case.py. Needs both libraries; made with torchvision 0.29.2 and timm 1.0.31."""
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent)]
from pretrained_case import CLASSES, DEPTHS, MEAN, SIDE, STD, STORED, pixels, values  # noqa: E402


def libraries():
    """Returns {name of an installed library: function that makes its net with a given depth}."""
    found = []
    try:
        import torchvision
        found.append(("torchvision", lambda depth: getattr(torchvision.models, f"resnet{depth}")(num_classes=CLASSES)))
    except ImportError:
        pass
    try:
        import timm
        found.append(("timm", lambda depth: timm.create_model(f"resnet{depth}", num_classes=CLASSES)))
    except ImportError:
        pass
    return found


def state_of(torch, model):
    """Returns the model's state dictionary, filled with the values for its names."""
    state = model.state_dict()
    for name, tensor in state.items():
        if tensor.dtype == torch.float32:
            state[name] = torch.frombuffer(bytearray(values(name, list(tensor.shape))), dtype=torch.float32).reshape(tensor.shape)
        else:
            state[name] = torch.tensor(5)
    model.load_state_dict(state, strict=True)
    return state


def logits_of(torch, model):
    image = torch.frombuffer(bytearray(pixels()), dtype=torch.uint8).reshape(1, SIDE, SIDE, 3).permute(0, 3, 1, 2).float()
    mean, std = (torch.tensor(v).reshape(1, 3, 1, 1) for v in (MEAN, STD))
    with torch.no_grad():
        return model.double().eval()(((image - mean) / std).double())[0].tolist()


def main():
    import torch
    found = libraries()
    assert [name for name, _ in found] == ["torchvision", "timm"], found
    lines = ["# Made by make_pretrained.py: tensors with type and shape, and logits by library."]
    for depth in DEPTHS:
        lines.append(f"net {depth}")
        tensors = {}
        for library, make in found:
            model = make(depth)
            state = state_of(torch, model)
            these = {name: tuple(t.shape) for name, t in state.items()}
            assert not tensors or tensors == these, f"{library}'s resnet{depth} has other tensors"
            if not tensors:
                lines += [f"{name} {'F32' if t.dtype == torch.float32 else 'I64'} {','.join(map(str, t.shape))}".rstrip() for name, t in state.items()]
            tensors = these
            lines.append(f"logits {library} " + " ".join(f"{v:.9g}" for v in logits_of(torch, model)))
    STORED.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
