// SPDX-License-Identifier: MIT
#include "tools/trainer/step_lines.hpp"

#include <sys/time.h>

#include <cstdio>
#include <ctime>
#include <string>

namespace tutti::trainer {

std::string date_and_time() {
  timeval now{};
  ::gettimeofday(&now, nullptr);
  std::tm local{};
  ::localtime_r(&now.tv_sec, &local);
  char day[32], all[48];
  std::strftime(day, sizeof day, "%Y-%m-%d %H:%M:%S", &local);
  std::snprintf(all, sizeof all, "%s.%06ld", day, static_cast<long>(now.tv_usec));
  return all;
}

}  // namespace tutti::trainer
