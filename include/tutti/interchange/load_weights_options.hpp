// SPDX-License-Identifier: MIT
#pragma once

#include <set>
#include <string>

namespace tutti {

struct LoadWeightsOptions {  // Options of load_weights().
  // If the file's classifier has another number of classes or is missing, the net keeps the initial values of its own,
  // and everything else is loaded. Fine-tuning starts this way.
  bool skip_classifier = false;
  std::string classifier = "fc.";  // prefix of the names of its tensors
  // Tensors of the net that may be missing in the file. They keep their values.
  std::set<std::string> may_be_missing{};
};

}  // namespace tutti
