// SPDX-License-Identifier: MIT
#pragma once

#include <set>
#include <string>

namespace tutti {

struct LoadWeightsOptions {  // what load_weights() can be told
  // Where the file's classifier has another number of classes, or there is none in it, the net keeps its own with the
  // initial values, and all else is loaded: the beginning of fine-tuning.
  bool skip_classifier = false;
  std::string classifier = "fc.";  // what the names of its tensors begin with
  // Tensors of the net that the file may lack: these keep what they hold.
  std::set<std::string> may_be_missing{};
};

}  // namespace tutti
