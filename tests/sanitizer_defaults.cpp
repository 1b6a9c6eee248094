// SPDX-License-Identifier: MIT
// Gives every sanitized program the options that it needs, also where no environment reaches it: over ssh, under Slurm,
// by ctest alone. ASAN_OPTIONS, UBSAN_OPTIONS and TSAN_OPTIONS still have the last word.

extern "C" {
// Leaves leaks out: what Open MPI, OpenCL and OpenMP keep until the process ends is not ours.
const char* __asan_default_options() { return "detect_leaks=0:detect_stack_use_after_return=1"; }
const char* __lsan_default_options() { return "detect_leaks=0"; }
const char* __ubsan_default_options() { return "print_stacktrace=1"; }
const char* __tsan_default_options() {
  return "suppressions=" TUTTI_SOURCE_DIR "/tests/tsan.supp:history_size=4:die_after_fork=0";
}
}
