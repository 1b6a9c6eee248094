#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# fast
# Tests that the memory of host windows is allocated at once, although madvise() is refused or has no effect.
set -uo pipefail
program=${TUTTI_BUILD_DIR:?}/tests/comm/test_host_window
[[ -x $program ]] || { echo "SKIP: no $program" && exit 77; }
failures=0
for way in ignored refused; do
  python3 "${TUTTI_SOURCE_DIR:?}/tests/comm/without_call.py" "$way" madvise "$program" --no-skip
  status=$?
  [[ $status == 77 ]] && { echo "SKIP: this system takes no filter of system calls" && exit 77; }
  [[ $status == 0 ]] || { echo "FAILED: madvise() $way: status $status" && failures=$((failures + 1)); }
done
exit $((failures > 0))
