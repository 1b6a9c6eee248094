// SPDX-License-Identifier: MIT
#include <cmath>
#include <iostream>

#include <tutti/optim/schedule.hpp>

#include "report.hpp"

int main() {
  const tutti::Schedule schedule = tutti::schedule::Warmup(0.001, 3.2, 1560, tutti::schedule::Poly(3.2));
  const double lr = schedule({.step = 400, .steps_per_epoch = 156, .total_steps = 14075});
  report(std::cout, lr);
  return std::abs(lr - 0.82126) < 1e-5 ? 0 : 1;
}
