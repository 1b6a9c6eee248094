#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Whole training steps of TensorFlow on the processor, a peer of bench/step: prints the same JSON line. bf16 is Keras' mixed
precision: weights and their momentum in f32."""
import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np  # noqa: E402
import peer_step  # noqa: E402
import tensorflow as tf  # noqa: E402
from tensorflow import keras  # noqa: E402

layers = keras.layers


def convolution(x, out, kernel, stride):
    if kernel > 1:
        x = layers.ZeroPadding2D(kernel // 2)(x)
    x = layers.Conv2D(out, kernel, stride, use_bias=False)(x)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)


def make(model):
    size, classes, _, width, _, cifar_stem = peer_step.NETS[model]
    blocks, bottleneck = peer_step.blocks_of(model)
    images = keras.Input((size, size, 3))
    x = layers.ReLU()(convolution(images, width, 3 if cifar_stem else 7, 1 if cifar_stem else 2))
    if not cifar_stem:
        x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))  # the values are never negative
    for inner, out, stride, projected in blocks:
        y = x
        for to, kernel, by in ((inner, 1, 1), (inner, 3, stride), (out, 1, 1)) if bottleneck else ((inner, 3, stride), (out, 3, 1)):
            if y is not x:
                y = layers.ReLU()(y)
            y = convolution(y, to, kernel, by)
        x = layers.ReLU()(layers.Add()([y, convolution(x, out, 1, stride) if projected else x]))
    x = layers.Dense(classes)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(images, layers.Activation("linear", dtype="float32")(x))


def main():
    args = peer_step.parse(peer_step.parser(__doc__, ("f32", "bf16")))
    if args.threads:
        tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.set_visible_devices([], "GPU")
    tf.random.set_seed(1)
    if args.precision == "bf16":
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    size, classes = peer_step.NETS[args.model][:2]
    net = make(args.model)
    images = tf.random.normal((args.batch, size, size, 3))
    if args.precision == "bf16":
        images = tf.cast(images, tf.bfloat16)
    labels = tf.constant(np.arange(args.batch) % classes)
    weights = [v.value for v in net.trainable_variables]
    momentum = [tf.Variable(tf.zeros_like(w)) for w in weights]

    @tf.function
    def train(images, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, net(images, training=True)))
        for w, m, g in zip(weights, momentum, tape.gradient(loss, weights)):
            m.assign(peer_step.MOMENTUM * m + g + peer_step.DECAY * w)
            w.assign_sub(peer_step.RATE * m)
        return loss

    last = []

    def step():
        last[:] = [float(train(images, labels))]

    learned = sum(int(np.prod(w.shape)) for w in weights)
    peer_step.measure(args, f"TensorFlow {tf.__version__}", learned, step, lambda: np.isfinite(last[0]))


if __name__ == "__main__":
    main()
