#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The recipe of `train_cifar10 --recipe fast` in PyTorch, on the same files: the peer for accuracy and time.

The net, the numbers and the data are the same; the random numbers are PyTorch's. All work runs on the device,
augmentation too. Prints a JSON line with the accuracies and seconds; the last seconds count from the start of the
process.
"""
import time

START = time.time()

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402


def process_start():
    """Returns the start of this process in seconds of Unix time."""
    try:
        ticks = float(open("/proc/self/stat").read().rsplit(") ", 1)[1].split()[19])
        boot = next(float(line.split()[1]) for line in open("/proc/stat") if line.startswith("btime"))
        return min(boot + ticks / os.sysconf("SC_CLK_TCK"), START)
    except (OSError, StopIteration, IndexError, ValueError):
        return START


def load(folder, names):
    """Loads images [n, 3, 32, 32] of bytes, and labels, from files of the binary version."""
    inside = os.path.join(folder, "cifar-10-batches-bin")
    folder = inside if os.path.isdir(inside) else folder
    raw = np.concatenate([np.fromfile(os.path.join(folder, n), np.uint8).reshape(-1, 3073) for n in names])
    return torch.from_numpy(raw[:, 1:].reshape(-1, 3, 32, 32).copy()), torch.from_numpy(raw[:, 0].astype(np.int64))


def whitening(images, eps=5e-4):
    """Returns weights [24, 3, 2, 2]: the eigenvectors of the mean products of patches, each divided by the root of its
    eigenvalue, and then all of them negated."""
    patches = images.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 12).double()
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    w = (vectors / torch.sqrt(values + eps)).T.flip(0).reshape(12, 3, 2, 2)
    return torch.cat((w, -w)).float()


def norm(channels):
    bn = nn.BatchNorm2d(channels, eps=1e-5, momentum=0.4)
    bn.weight.requires_grad = False
    return bn


class Block(nn.Module):
    def __init__(self, channels_in, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1, self.bn2 = norm(channels), norm(channels)
        for conv in (self.conv1, self.conv2):
            w = conv.weight.data
            nn.init.dirac_(w[: w.size(1)])

    def forward(self, x):
        x = F.gelu(self.bn1(F.max_pool2d(self.conv1(x), 2)))
        return F.gelu(self.bn2(self.conv2(x)))


class Net(nn.Module):
    """The net of include/tutti/models/cifar_fast.hpp."""

    def __init__(self, widths, classes=10, scale=1 / 9):
        super().__init__()
        self.whitening = nn.Conv2d(3, 24, 2)
        self.whitening.weight.requires_grad = False
        self.whitening.bias.data.zero_()
        self.layer1, self.layer2 = Block(24, widths[0]), Block(widths[0], widths[1])
        self.layer3 = Block(widths[1], widths[2])
        self.fc = nn.Linear(widths[-1], classes, bias=False)
        self.scale = scale

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(F.gelu(self.whitening(x)))))
        return self.fc(F.max_pool2d(x, x.shape[2:]).flatten(1)) * self.scale


def parameter_groups(model, decay, rate):
    """Returns parameter groups: biases of batch norm learn with `rate` times the rate, and one step decays all
    parameters alike."""
    learned = [(k, p) for k, p in model.named_parameters() if p.requires_grad]
    return [{"params": [p for k, p in learned if ".bn" in k], "rate": rate, "weight_decay": decay / rate},
            {"params": [p for k, p in learned if ".bn" not in k], "rate": 1, "weight_decay": decay}]


def learning_rate(step, total, peak):
    """Returns the rate's share of its peak: it rises from a fifth to 1 in the first 23 % of the steps, and then falls
    to 7 %."""
    warm = round(0.23 * total)
    if step < warm:
        return peak * (0.2 + 0.8 * step / warm)
    return peak * (0.07 + 0.93 * (1 - (step - warm) / (total - warm)))


def epoch(images, labels, batch, number, mirrored_first, generator):
    """Yields the batches of an epoch. Images are shifted by up to two pixels, and each is mirrored in every second
    epoch."""
    n, device = len(images), images.device
    flip = mirrored_first if number % 2 == 0 else ~mirrored_first
    images = torch.where(flip.view(-1, 1, 1, 1), images.flip(3), images)
    padded = F.pad(images.float(), (2, 2, 2, 2), "reflect").to(images.dtype)
    shift = torch.randint(5, (n, 2), device=device, generator=generator)
    shifted = torch.empty_like(images)
    for dy in range(5):
        for dx in range(5):
            chosen = (shift[:, 0] == dy) & (shift[:, 1] == dx)
            shifted[chosen] = padded[chosen, :, dy:dy + 32, dx:dx + 32]
    order = torch.randperm(n, device=device, generator=generator)
    for at in range(0, n, batch):
        chosen = order[at:at + batch]
        yield shifted[chosen].contiguous(memory_format=torch.channels_last), labels[chosen]


def logits_of_views(model, x):
    """Sums the logits of the image, with half of the weight, and of the image shifted by one pixel in both directions
    of a diagonal. Each of them is also mirrored."""
    def both(x):
        return 0.5 * (model(x).float() + model(x.flip(3)).float())
    padded = F.pad(x.float(), (1, 1, 1, 1), "reflect").to(x.dtype)
    return 0.5 * both(x) + 0.25 * both(padded[:, :, :32, :32]) + 0.25 * both(padded[:, :, 2:, 2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder of the binary version of CIFAR-10, or its parent")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--width", type=float, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num-examples", type=int, default=0, help="training images used; 0: all")
    parser.add_argument("--precision", choices=("f32", "bf16"), default="bf16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=0, help="threads on the processor; 0: the default of PyTorch")
    parser.add_argument("--compile", action="store_true", help="use torch.compile; its time is included")
    args = parser.parse_args()
    began = process_start()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = True
    device = torch.device(args.device)
    generator = torch.Generator(device).manual_seed(args.seed)

    def normalized(pixels):
        x = (pixels.to(device).float() - 128) / 64
        return x.to(torch.bfloat16) if args.precision == "bf16" else x  # without rounding

    images, labels = load(args.data, [f"data_batch_{i}.bin" for i in range(1, 6)])
    if args.num_examples:
        images, labels = images[:args.num_examples], labels[:args.num_examples]
    test_images, test_labels = load(args.data, ["test_batch.bin"])
    images, labels = normalized(images), labels.to(device)
    test_images, test_labels = normalized(test_images), test_labels.to(device)

    widths = [max(8, int(args.width * w / 8 + 0.5) * 8) for w in (64, 256, 256)]
    model = Net(widths).to(device)
    model.whitening.weight.data.copy_(whitening(images[:2000].float()))
    model = model.to(memory_format=torch.channels_last)
    images, test_images = (x.to(memory_format=torch.channels_last) for x in (images, test_images))
    forward = torch.compile(model) if args.compile else model

    peak, decay, rate = 1.5 * args.batch_size / 1024, 0.0153 / 11.5, 64
    optimizer = torch.optim.SGD(parameter_groups(model, decay, rate), lr=peak, momentum=0.85, nesterov=True)
    # Averages weights and statistics over steps. The averages are evaluated.
    state = [t for t in model.state_dict().values() if t.is_floating_point()]
    average = [t.detach().clone() for t in state]
    per_epoch = -(-len(images) // args.batch_size)
    total, step = per_epoch * args.epochs, 0
    mirrored_first = torch.randint(2, (len(images),), device=device, generator=generator).bool()
    cast = {"device_type": device.type, "dtype": torch.bfloat16, "enabled": args.precision == "bf16"}

    training = time.time()
    for number in range(args.epochs):
        model.train()
        loss_sum, images_seen = torch.zeros((), device=device), 0
        for x, y in epoch(images, labels, args.batch_size, number, mirrored_first, generator):
            for g in optimizer.param_groups:
                g["lr"] = learning_rate(step, total, peak) * g["rate"]
            with torch.autocast(**cast):
                z = forward(x)
            loss = F.cross_entropy(z.float(), y, label_smoothing=0.2)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            kept = min(0.97, (1 + step) / (10 + step))
            torch._foreach_mul_(average, kept)
            torch._foreach_add_(average, state, alpha=1 - kept)
            loss_sum += loss.detach() * len(y)
            images_seen += len(y)
        if device.type == "cpu":
            print(f"epoch {number + 1}/{args.epochs}  loss {loss_sum.item() / images_seen:.4f}  {time.time() - training:.0f} s", flush=True)
    for t, a in zip(state, average):
        t.copy_(a)
    model.eval()
    hits, hits_of_views = torch.zeros((), device=device), torch.zeros((), device=device)
    with torch.no_grad(), torch.autocast(**cast):
        for x, y in zip(test_images.split(args.batch_size), test_labels.split(args.batch_size)):
            hits += (model(x).argmax(1) == y).sum()
            hits_of_views += (logits_of_views(model, x).argmax(1) == y).sum()
    accuracy, of_views = (h.item() / len(test_labels) for h in (hits, hits_of_views))
    end = time.time()
    print(json.dumps({"system": f"PyTorch {torch.__version__}", "device": str(device), "precision": args.precision,
                      "epochs": args.epochs, "width": args.width, "seed": args.seed, "compile": args.compile,
                      "loss": round(loss_sum.item() / images_seen, 4), "accuracy": accuracy, "accuracy_of_views": of_views,
                      "seconds_training": round(end - training, 2), "seconds": round(end - began, 2)}), flush=True)


if __name__ == "__main__":
    main()
