#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# sanitized: tests_io_checkpoint_writer
# test_checkpoint_killed.sh [WRITER]: runs the writer of checkpoints under strace, kills it at each file system call, and
# then makes each such call fail. Each time the newest checkpoint must be complete, no older than the last one that the
# writer reported as saved, and the only visible file. The next run must clean up.
set -euo pipefail
writer=${1:-${TUTTI_BUILD_DIR:?the build folder}/tests/io/checkpoint_writer}

skip() {
  echo "SKIP: $1"
  exit 77
}
command -v strace >/dev/null || skip "no strace (Debian: apt-get install strace)"
strace -o /dev/null true 2>/dev/null || skip "strace may not trace here (ptrace is forbidden)"
strace -o /dev/null -e inject=getpid:signal=USR1:when=9999 true 2>/dev/null || skip "this strace cannot inject signals"
[[ -x $writer ]] || { echo "no program $writer"; exit 1; }
! grep -q __gcov_ "$writer" || skip "built for tests/coverage.py, $writer writes files of its own at its end"

# Uses a file system in memory, on which a sync costs no time: only the order of the calls matters here.
base=${TMPDIR:-/tmp}
if [[ -w /dev/shm ]]; then base=/dev/shm; fi
work=$(mktemp -d "$base/tutti-killed-XXXXXX")
trap 'rm -rf "$work"' EXIT
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # the leak checker cannot run under strace

calls=(openat write pwrite64 fsync fdatasync rename renameat renameat2 mkdir mkdirat unlink unlinkat rmdir close ftruncate)
failed=0
complain() {
  echo "FAILED: $1"
  failed=1
}

# judge WHAT: checks the state that the writer left.
judge() {
  local found saved
  if ! found=$("$writer" check "$work/run" 2>&1); then
    complain "$1: $found"
    return
  fi
  saved=$(tail -n 1 "$work/out")
  case "$saved / $found" in
    " / none" | " / step 1" | "saved 1 / step 1" | "saved 1 / step 2" | "saved 2 / step 2") ;;
    *) complain "$1: the writer said '$saved', there is '$found'" ;;
  esac
}

# run CALL N WHAT: runs the writer in an empty folder with a fault at its Nth CALL, and returns its status.
run() {
  rm -rf "$work/run"
  mkdir "$work/run"
  local status=0
  # Suppresses the shell's own message about a killed program.
  { strace -f -o "$work/trace" -e trace="?$1" -e inject="?$1:$3:when=$2" "$writer" write "$work/run" \
    >"$work/out" 2>"$work/err" || status=$?; } 2>/dev/null
  return "$status"
}

kills=0
for call in "${calls[@]}"; do
  for ((n = 1; ; ++n)); do
    ((n < 1000)) || { complain "killed at $call without end"; break; }
    if run "$call" "$n" signal=KILL; then
      judge "not killed"
      break
    fi
    grep -q 'killed by SIGKILL' "$work/trace" || { complain "$call $n: not killed, but: $(cat "$work/err")"; break; }
    kills=$((kills + 1))
    judge "killed at $call number $n"
    # The next run continues from that checkpoint and keeps only its own.
    if ! "$writer" write "$work/run" >"$work/out" 2>"$work/err"; then
      complain "killed at $call number $n: the next run failed: $(cat "$work/err")"
    fi
    judge "after the run that followed a kill at $call number $n"
    left=$(ls -A "$work/run/checkpoints" | tr '\n' ' ')
    [[ $left == "best.json step-000000002 " ]] || complain "killed at $call number $n: the next run left $left"
  done
done

errors=0
for pair in write:ENOSPC fsync:EIO rename:EIO renameat:EIO renameat2:EIO mkdir:ENOSPC mkdirat:ENOSPC close:EIO openat:EMFILE; do
  call=${pair%:*}
  for ((n = 1; n < 1000; ++n)); do
    status=0
    run "$call" "$n" "error=${pair#*:}" || status=$?
    grep -q INJECTED "$work/trace" || break
    errors=$((errors + 1))
    judge "$call number $n failed"
    # 127: the program could not be loaded. 1: the program could not report. A close may fail without a message if no
    # data is lost.
    case $status in
      0) [[ $call == close || $call == openat ]] || complain "$call number $n failed unheard" ;;
      1 | 3 | 127) ;;
      *) complain "$call number $n failed: status $status: $(cat "$work/err")" ;;
    esac
    left=$(find "$work/run" -name '.tmp-*' | tr '\n' ' ')
    # The removal of a folder also calls openat. If it fails, the next save removes the rest, as after a kill.
    [[ -z $left || $call == openat ]] || complain "$call number $n failed: left behind: $left"
  done
done

echo "killed $kills times, failed $errors calls"
((kills >= 60)) || complain "too few kills for a writer of three checkpoints"
((errors >= 40)) || complain "too few errors for a writer of three checkpoints"
exit "$failed"
