#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# fast
# Tests what tests/nightly.sh and tests/repeat.sh run, that they continue after they were stopped, and their tables.
# Stand-ins replace the pieces and ctest.
set -euo pipefail
: "${TUTTI_SOURCE_DIR:?}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "FAILED: $*"
  exit 1
}
mkdir -p "$work"/tree/tests/{io,fuzz,mutants,tools,hosts,packaging} "$work/tree/build" "$work/bin"
cd "$work/tree"
cp "$TUTTI_SOURCE_DIR"/tests/{nightly,repeat}.sh tests/
touch tests/io/test_x.cpp build/CTestTestfile.cmake

# Each stand-in writes its name and arguments to the file `calls`. If the file `fail` names the stand-in, it exits with
# the status in that file.
for program in test.sh tests/sanitize.sh tests/mutants/run.py tests/coverage.py tests/packaging/bare_chroot.sh ../bin/cmake ../bin/python3; do
  name=$(basename "$program")
  cat >"$program" <<S
#!/usr/bin/env bash
echo "$name \$*" >>"$work/calls"
if grep -qsF "$name \$*" "$work/stop"; then kill -KILL \$(ps -o ppid= -p \$PPID) \$PPID; fi
if grep -qsF "$name \$*" "$work/fail"; then exit 3; fi
S
  chmod +x "$program"
done
cat >"$work/bin/ctest" <<S
#!/usr/bin/env bash
if [[ " \$* " == *" -N "* ]]; then
  printf '  Test  #1: hosts/train\n  Test #12: tools/launch: a (b)\n\nTotal Tests: 2\n'
  exit
fi
echo "ctest \$*" >>"$work/calls"
if grep -qsF -- "\$4" "$work/fail"; then exit 8; fi
S
chmod +x "$work/bin/ctest"
export PATH=$work/bin:$PATH
calls() { grep -c -- "$1" "$work/calls" || true; }

# nightly.sh runs every piece once and reports a failed piece. A second run repeats no piece. With --again it repeats
# the failed piece.
echo "sanitize.sh --preset tsan" >"$work/fail"
only=build,tests-io,tests-fuzz,sanitize-asan-ubsan,sanitize-tsan,mutants-frames,coverage,soak-resume,soak-elastic,simulation-members,chroot
status=0
tests/nightly.sh --only $only >"$work/out" || status=$?
[[ $status == 1 ]] || fail "a failed piece: exit $status"
grep -qE '^sanitize-tsan +red \(3\)' "$work/out" || fail "the failed piece is not named: $(cat "$work/out")"
(($(grep -c ' green ' "$work/out") == 10)) || fail "not ten green pieces: $(cat "$work/out")"
(($(calls 'sanitize.sh --preset') == 2 && $(calls 'ctest .*-L ^io\$') == 1 && $(calls 'soak_resume.py --minutes 60') == 1 &&
  $(calls 'simulation/run.py --scenario members --minutes 60') == 1)) ||
  fail "it ran: $(cat "$work/calls")"
before=$(wc -l <"$work/calls")
tests/nightly.sh --only $only >/dev/null && fail "the second run is green"
(($(wc -l <"$work/calls") == before)) || fail "the second run repeats pieces: $(cat "$work/calls")"
rm "$work/fail"
tests/nightly.sh --only $only --again >"$work/out" || fail "--again: $(cat "$work/out")"
(($(wc -l <"$work/calls") == before + 1)) || fail "--again repeats more than the failed piece: $(cat "$work/calls")"

# After a run was killed in the middle of a piece, the next run repeats this piece, but not the earlier pieces.
rm -rf build/nightly "$work/calls"
echo "coverage.py --all --check" >"$work/stop"
tests/nightly.sh --only build,coverage,soak-resume >"$work/out" 2>&1 && fail "it was not killed"
[[ -f build/nightly/build.result && ! -e build/nightly/coverage.result ]] || fail "the killed run left: $(ls build/nightly)"
rm "$work/stop"
tests/nightly.sh --only build,coverage,soak-resume >"$work/out" || fail "the second start: $(cat "$work/out")"
(($(calls test.sh) == 1 && $(calls coverage.py) == 2 && $(calls soak_resume) == 1)) || fail "it does not continue: $(cat "$work/calls")"
for wrong in "--only nonesuch" "--only" "--minutes x" "--nonesuch"; do
  status=0
  # shellcheck disable=SC2086
  tests/nightly.sh $wrong 2>/dev/null || status=$?
  [[ $status == 2 ]] || fail "$wrong: exit $status"
done

# repeat.sh runs each test the given number of times, next to the given number of busy processes. A failure has a log
# and a row. A second run repeats no run.
rm "$work/calls"
echo '^tools/launch: a \(b\)$' >"$work/fail"
status=0
tests/repeat.sh --times 3 --load 1 >"$work/out" || status=$?
[[ $status == 1 && $(calls ctest) == 6 ]] || fail "exit $status, $(calls ctest) runs: $(cat "$work/out")"
grep -qE '^tools/launch: a \(b\) +3 +3 ' "$work/out" || fail "the table: $(cat "$work/out")"
grep -qE '^hosts/train +3 +0 ' "$work/out" || fail "the table: $(cat "$work/out")"
(($(find build/repeat -name '*.log' | wc -l) == 3)) || fail "logs: $(ls build/repeat)"
sed -i '2,3d' build/repeat/results.tsv
tests/repeat.sh --times 3 --load 1 >"$work/out" || true
[[ $(calls ctest) == 8 ]] || fail "it does not continue: $(calls ctest) runs"
status=0
tests/repeat.sh --times 0 2>/dev/null || status=$?
[[ $status == 2 ]] || fail "--times 0: exit $status"
if pgrep -P $$ -f repeat.sh >/dev/null; then fail "busy processes are left"; fi
echo "all good"
