// SPDX-License-Identifier: MIT
#pragma once

#include <set>
#include <string>

namespace tutti {

struct LoadWeightsOptions {  // Options of load_weights().
  // If true, and the classifier in the file is missing or has another number of classes, the net keeps the initial
  // values of its classifier and loads everything else. Fine-tuning begins like this.
  bool skip_classifier = false;
  std::string classifier = "fc.";  // beginning of the names of the classifier's tensors
  // Tensors of the net that the file may lack. They keep their values.
  std::set<std::string> may_be_missing{};
};

}  // namespace tutti
