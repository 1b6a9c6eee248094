// SPDX-License-Identifier: MIT
#pragma once

#include "tools/trainer/option_groups.hpp"

// The option names of MXNet's ImageNet scripts on train_imagenet: those of train_resnet.py, and the network and data of
// train_imagenet.py with its fit.py and data.py.
namespace tutti::trainer::detail {

template <class V>
void describe_mxnet_data(RunOptions& o, V& v) {
  v("data-train", o.data_train,
    "training images as RecordIO, a file or a folder with *train*.rec, in place of --data-dir", Scope::rank);
  v("data-train-idx", o.data_train_idx, "its list of records; not needed", Scope::rank);
  v("data-val", o.data_val, "validation images as RecordIO, a file or a folder with *val*.rec", Scope::rank);
  v("data-val-idx", o.data_val_idx, "its list of records; not needed", Scope::rank);
  v("use-rec", o.use_rec, "the images are RecordIO: --rec-train and --rec-val, or those of --data-dir", Scope::rank);
  v("image-shape", o.image_shape, "3,N,N: another way to give --image-size N");
}

template <class V>
void describe_mxnet_model(RunOptions& o, V& v) {
  v("network", o.symbol, "resnet: with --num-layers another way to give --model");
  v("num-layers", o.layers, "18, 34, 50, 101 or 152 layers of --network resnet; default: 50");
  v("mode", o.mode, "symbolic, imperative or hybrid: no effect, because a step is one graph in each", Scope::rank);
}

// Returns whether the command line is one of train_resnet.py. Its batch is that of the whole job.
[[nodiscard]] inline bool is_train_resnet(const RunOptions& o) { return o.use_rec; }

void check_mxnet_data(RunOptions& o);

// Converts --network, --num-layers and GluonCV's names to --model.
void check_mxnet_model(RunOptions& o);

}  // namespace tutti::trainer::detail
