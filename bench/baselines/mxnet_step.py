#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Whole training steps of MXNet's Gluon on the processor in f32, a peer of bench/step: prints the same JSON line."""
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import mxnet as mx  # noqa: E402
import peer_step  # noqa: E402
from mxnet.gluon import nn  # noqa: E402


class Block(nn.HybridBlock):
    def __init__(self, width, out, stride, projected, bottleneck, channels):
        super().__init__()
        self.body, self.shortcut = nn.HybridSequential(), None
        if bottleneck:
            shapes = [(width, 1, 1, channels), (width, 3, stride, width), (out, 1, 1, width)]
        else:
            shapes = [(width, 3, stride, channels), (out, 3, 1, width)]
        for i, (to, kernel, by, of) in enumerate(shapes):
            self.body.add(*convolution(to, kernel, by, of))
            if i + 1 < len(shapes):
                self.body.add(nn.Activation("relu"))
        if projected:
            self.shortcut = nn.HybridSequential()
            self.shortcut.add(*convolution(out, 1, stride, channels))

    def hybrid_forward(self, F, x):
        return F.Activation(self.body(x) + (x if self.shortcut is None else self.shortcut(x)), act_type="relu")


def convolution(out, kernel, stride, channels):
    return (nn.Conv2D(out, kernel, stride, kernel // 2, use_bias=False, in_channels=channels),
            nn.BatchNorm(momentum=0.9, epsilon=1e-5, in_channels=out))


def make(model):
    _, classes, _, width, _, cifar_stem = peer_step.NETS[model]
    blocks, bottleneck = peer_step.blocks_of(model)
    net = nn.HybridSequential()
    net.add(*convolution(width, 3 if cifar_stem else 7, 1 if cifar_stem else 2, 3), nn.Activation("relu"))
    if not cifar_stem:
        net.add(nn.MaxPool2D(3, 2, 1))
    channels = width
    for inner, out, stride, projected in blocks:
        net.add(Block(inner, out, stride, projected, bottleneck, channels))
        channels = out
    net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(classes, in_units=channels))
    return net


def main():
    args = peer_step.parse(peer_step.parser(__doc__, ("f32",)))
    mx.random.seed(1)
    size, classes = peer_step.NETS[args.model][:2]
    net = make(args.model)
    net.initialize(mx.init.MSRAPrelu())
    net.hybridize(static_alloc=True, static_shape=True)
    images = mx.nd.random.normal(shape=(args.batch, 3, size, size))
    labels = mx.nd.array([i % classes for i in range(args.batch)])
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    loss_of.hybridize(static_alloc=True, static_shape=True)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": peer_step.RATE, "momentum": peer_step.MOMENTUM,
                                                            "wd": peer_step.DECAY}, kvstore=None)
    last = []

    def step():
        with mx.autograd.record():
            loss = loss_of(net(images), labels)
        loss.backward()
        trainer.step(args.batch)
        last[:] = [float(loss.mean().asscalar())]  # waits for the step
        mx.nd.waitall()

    learned = sum(p.data().size for p in net.collect_params().values() if p.grad_req != "null")
    peer_step.measure(args, f"MXNet {mx.__version__}", learned, step, lambda: last[0] == last[0] and abs(last[0]) < 1e30)


if __name__ == "__main__":
    main()
