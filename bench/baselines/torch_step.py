#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Whole training steps of PyTorch on the processor, the peer of bench/step: prints the same JSON line.

The nets, the loss and the update are the same, on images in memory, channels last, normalised beforehand. With --check
it trains one step from the weights and images that `tutti_step --dump FILE` wrote, and compares the results.
"""
import json
import sys
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "tests" / "golden"), str(ROOT / "tools")]

import peer_step  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torchvision_resnet import CifarResNet, ResNet  # noqa: E402

NETS = {"resnet18": lambda: ResNet(18, 10, cifar_stem=True), "resnet50": lambda: ResNet(50, 1000),
        **{f"resnet{depth}": lambda depth=depth: CifarResNet(depth) for depth in (20, 56, 110)}}
SIZES = {**peer_step.TORCH_NETS, **{name: found[:2] for name, found in peer_step.NETS.items()}}


def net_of(name):
    """Builds a net: those of tests/golden, the Wide ResNet of tests/golden, timm's or torchvision's."""
    if name in NETS:
        return NETS[name]()
    if name == "wrn28_10":
        from make_nets import WideResNet
        return WideResNet(28, 10, SIZES[name][1])
    if name in ("resnet50d", "seresnet50"):
        import timm
        return timm.create_model(name)
    import torchvision
    return torchvision.models.get_model(name)


class Steps:
    def __init__(self, args):
        self.batch = args.batch
        size, classes = SIZES[args.model]
        torch.manual_seed(1)
        self.model = net_of(args.model).to(memory_format=torch.channels_last).train()
        pure = args.precision == "bf16" and args.bf16 == "pure"
        self.cast = torch.bfloat16 if args.precision == "bf16" and not pure else None
        if pure:
            self.model = self.model.to(torch.bfloat16)
        images = torch.randn(args.batch, 3, size, size).to(torch.bfloat16 if args.precision == "bf16" else torch.float32)
        self.images = images.contiguous(memory_format=torch.channels_last)
        self.labels = torch.randint(classes, (args.batch,))
        ways = {"foreach": {"foreach": True}, "fused": {"fused": True}}
        self.sgd = torch.optim.SGD(self.model.parameters(), lr=peer_step.RATE, momentum=peer_step.MOMENTUM,
                                   weight_decay=peer_step.DECAY, **ways[args.optimizer])
        self.loss_of = torch.compile(self.loss, dynamic=False) if args.way == "compile" else self.loss

    def loss(self, images, labels):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.cast is not None):
            logits = self.model(images)
        return F.cross_entropy(logits.float(), labels)

    def step(self):
        loss = self.loss_of(self.images, self.labels)
        loss.backward()
        self.sgd.step()
        self.sgd.zero_grad(set_to_none=True)
        return loss


def measure(args):
    steps, last = Steps(args), []

    def step():
        last[:] = [steps.step()]

    args.threads = torch.get_num_threads()
    peer_step.measure(args, f"PyTorch {torch.__version__} {args.way}", sum(p.numel() for p in steps.model.parameters()), step,
                      lambda: bool(torch.isfinite(last[0])), optimizer=args.optimizer, bf16=args.bf16 if args.precision == "bf16" else None)


def check(args):
    """Trains with the same weights and images in f32. Compares logits, loss, gradients and the weights after a step
    by the norms of the differences."""
    import pytorch_weights
    torch.use_deterministic_algorithms(True)
    args.precision = "f32"
    file = pytorch_weights.read_safetensors(torch, args.check)
    images, labels = file["images"], file["labels"].long()
    args.batch = len(labels)
    steps = Steps(args)
    before = {k[len("before."):]: v for k, v in file.items() if k.startswith("before.")}
    missing = set(before) ^ {k for k in steps.model.state_dict() if not k.endswith("num_batches_tracked")}
    if missing:
        sys.exit(f"torch_step.py: names differ: {sorted(missing)[:5]}")
    steps.model.load_state_dict(before, strict=False)
    mean, scale = torch.tensor([125.0, 123, 114]).view(3, 1, 1), torch.tensor([52.0, 51, 51]).view(3, 1, 1)
    steps.images = ((images.permute(0, 3, 1, 2).float() - mean) / scale).contiguous(memory_format=torch.channels_last)
    steps.labels = labels
    found = {}
    hook = steps.model.register_forward_hook(lambda m, x, y: found.update(logits=y.detach()))
    loss = steps.loss_of(steps.images, steps.labels)
    hook.remove()
    found["loss"] = loss.detach().reshape(1)
    loss.backward()
    found.update({f"gradient.{k}": p.grad for k, p in steps.model.named_parameters()})
    steps.sgd.step()
    found.update({f"after.{k}": v for k, v in steps.model.state_dict().items() if not k.endswith("num_batches_tracked")})
    worst = {}
    for name, value in found.items():
        kind, _, of = name.partition(".")
        expected, origin = file[name].reshape(value.shape).double(), torch.zeros(())
        off = (value.detach().double() - expected).norm()
        if kind == "after":  # the change of the step, without the f32 rounding of the weights
            origin = before[of].double()
            off = (off - 2.4e-7 * expected.norm()).clamp(min=0)
        off = (off / ((expected - origin).norm() + 1e-12)).item()
        worst[kind] = max(worst.get(kind, (0, "")), (off, name))
    print(json.dumps({"model": args.model, "parameters": sum(p.numel() for p in steps.model.parameters()),
                      "tensors": len(found), **{k: float(f"{v[0]:.1e}") for k, v in worst.items()},
                      "worst": max(worst.values())[1]}), flush=True)
    # If rounding moves an activation to the other side of zero, the gradients change by much more than the rounding.
    allowed = {"logits": 1e-3, "loss": 1e-3, "gradient": 0.1, "after": 0.1}
    return 0 if all(worst[kind][0] < most for kind, most in allowed.items()) else 1


def main():
    parser = peer_step.parser(__doc__, ("f32", "bf16"), tuple(SIZES))
    parser.add_argument("--bf16", choices=("autocast", "pure"), default="autocast", help="pure: weights and momentum too")
    parser.add_argument("--optimizer", choices=("foreach", "fused"), default="fused")
    parser.add_argument("--way", choices=("eager", "compile"), default="eager")
    parser.add_argument("--check", metavar="FILE", help="a file that tutti_step --dump has written")
    args = peer_step.parse(parser)
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.set_num_interop_threads(1)
    return check(args) if args.check else measure(args)


if __name__ == "__main__":
    sys.exit(main())
