// SPDX-License-Identifier: MIT
#pragma once

#include "tools/trainer/options.hpp"
#include "tools/trainer/scripted.hpp"

// The timeline of --trace.
namespace tutti::trainer {

// If --trace is given, records a timeline while the object exists, and then closes the file. The last process of a job
// that finishes merges the files of all processes.
class TraceOfRun {
 public:
  TraceOfRun(const RunOptions& o, const Started& start);
  ~TraceOfRun();
  TraceOfRun(const TraceOfRun&) = delete;
  TraceOfRun& operator=(const TraceOfRun&) = delete;

  // Call before a function that may end this process without returning.
  static void flush() noexcept;
};

}  // namespace tutti::trainer
