// SPDX-License-Identifier: MIT
#include "tools/trainer/mxnet_options.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/optim/schedule_parse.hpp>

#include "tools/trainer/check_values.hpp"

namespace tutti::trainer::detail {

void check_mxnet_data(RunOptions& o) {
  for (const auto& [idx, rec, name] :
       {std::tuple{&o.data_train_idx, &o.data_train, "--data-train"}, {&o.data_val_idx, &o.data_val, "--data-val"}})
    if (!idx->empty() && rec->empty())
      fail<UsageError>(std::string(name) + "-idx", std::string(name) + ", the file that the list is for", "none");
  const bool records = !o.data_train.empty() || !o.data_val.empty();
  if (records && o.benchmark)
    fail<UsageError>(o.data_train.empty() ? "--data-val" : "--data-train", "no --synthetic together with it", "both",
                     "give one of the two");
  if (records && !o.data_dir.empty() && !o.data_dir_from_environment)
    fail<UsageError>("--data-dir", "no --data-train or --data-val together with it", o.data_dir, "give one of the two");
  if (records && o.data_train.empty() && !o.eval_only)
    fail<UsageError>("--data-train", "the training images", "--data-val alone", "or use --eval to evaluate on these");
  if (o.use_rec && !records && !o.benchmark && o.data_dir.empty())
    fail<UsageError>("--use-rec", "--rec-train and --rec-val, or --data-dir with *.rec files", "none");
  if (!o.image_shape.empty()) {
    const auto shape = schedule::parse_numbers("--image-shape", o.image_shape);
    const bool good = shape.size() == 3 && shape[0] == 3 && shape[1] == shape[2] && shape[1] == std::floor(shape[1]) &&
                      shape[1] >= 32 && shape[1] <= 4096;
    if (!good)
      fail<UsageError>("--image-shape", "3,N,N with N of 32 to 4096, e.g. 3,224,224", o.image_shape,
                       "the net's input is square images in three colours");
    o.image_size = static_cast<std::int64_t>(shape[1]);
  }
  if (!o.mode.empty()) word("--mode", o.mode, {"symbolic", "imperative", "hybrid"}, {{"module", "symbolic"}});
}

void check_mxnet_model(RunOptions& o) {
  if (o.layers && o.symbol.empty()) o.symbol = "resnet";
  if (!o.symbol.empty()) {
    if (o.symbol != "resnet" && o.symbol != "resnet-v1" && o.symbol != "resnet_v1")
      fail<UsageError>("--network", "resnet", "'" + o.symbol + "'",
                       "this program trains ResNets of He et al. 2015; docs/how-to/own-model.md shows how to train "
                       "another net");
    const std::int64_t layers = o.layers.value_or(50);
    const std::vector<std::int64_t> known{18, 34, 50, 101, 152};
    if (std::find(known.begin(), known.end(), layers) == known.end())
      fail<UsageError>("--num-layers", "18, 34, 50, 101 or 152", std::to_string(layers));
    o.model = "resnet" + std::to_string(layers);
    if (o.symbol == "resnet")
      o.notes.push_back(
          "--network resnet is " + o.model +
          " of He et al. 2015 (post-activation); the net of MXNet's train_imagenet.py has pre-activation");
  }
  if (o.model.ends_with("_v1b") || o.model.ends_with("_v1")) {
    if (o.model.ends_with("_v1")) o.v1 = true;
    o.model.erase(o.model.rfind("_v1"));
  }
}

}  // namespace tutti::trainer::detail
