// SPDX-License-Identifier: MIT
#include "tools/trainer/mxnet_lines.hpp"

#include <algorithm>
#include <cstdio>
#include <string>

namespace tutti::trainer {

std::string mxnet_step_line(const StepReport& r) {
  char line[160];
  std::snprintf(line, sizeof line, "Epoch[%lld] Batch [%lld]\tSpeed: %.2f samples/sec\taccuracy=%.6f",
                static_cast<long long>(r.epoch - 1), static_cast<long long>(r.step_in_epoch), r.images_per_second,
                r.train_top1);
  return line;
}

std::string mxnet_epoch_lines(const EpochReport& r) {
  const auto epoch = static_cast<long long>(r.epoch - 1);
  char lines[320];
  const auto text = [&](const char* form, double value) {
    std::snprintf(lines, sizeof lines, form, epoch, value);
    return std::string(lines);
  };
  double evaluation = 0;
  if (r.test) evaluation = static_cast<double>(r.test->images) / std::max(r.test->images_per_second, 1e-9);
  std::string all = text("Epoch[%lld] Train-accuracy=%.6f", r.train_top1) +
                    text("\nEpoch[%lld] Time cost=%.3f", std::max(r.seconds - evaluation, 0.0));
  if (r.test) all += text("\nEpoch[%lld] Validation-accuracy=%.6f", r.test->top1);
  return all;
}

}  // namespace tutti::trainer
