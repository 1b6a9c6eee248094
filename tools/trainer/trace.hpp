// SPDX-License-Identifier: MIT
#pragma once

#include "tools/trainer/options.hpp"
#include "tools/trainer/scripted.hpp"

// The timeline of --trace.
namespace tutti::trainer {

// Records from now on, where --trace asks for it, to its end: the file is then closed, and the last process of a job to
// come to that puts one file together of what all have written.
class TraceOfRun {
 public:
  TraceOfRun(const RunOptions& o, const Started& start);
  ~TraceOfRun();
  TraceOfRun(const TraceOfRun&) = delete;
  TraceOfRun& operator=(const TraceOfRun&) = delete;

  // Call before something that may end this process without a return.
  static void flush() noexcept;
};

}  // namespace tutti::trainer
