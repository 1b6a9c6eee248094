// SPDX-License-Identifier: MIT
// Gives each sanitized program the options that it needs, even if the environment does not reach the program: over ssh,
// under Slurm, or if ctest starts it directly. ASAN_OPTIONS, UBSAN_OPTIONS and TSAN_OPTIONS override them.

extern "C" {
// Ignores leaks: Open MPI, OpenCL and OpenMP keep memory until the process ends.
const char* __asan_default_options() { return "detect_leaks=0:detect_stack_use_after_return=1"; }
const char* __lsan_default_options() { return "detect_leaks=0"; }
const char* __ubsan_default_options() { return "print_stacktrace=1"; }
const char* __tsan_default_options() {
  return "suppressions=" TUTTI_SOURCE_DIR "/tests/tsan.supp:history_size=4:die_after_fork=0";
}
}
