#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests tests/gpu/first_light.sh: its rehearsal, in which all four calls run with stand-ins for the GPU and the programs,
# and its refusals.
set -euo pipefail
root=${TUTTI_SOURCE_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
command -v python3 >/dev/null || { echo "SKIP: no python3" && exit 77; }
command -v xz >/dev/null || { echo "SKIP: no xz" && exit 77; }
light() { bash "$root/tests/gpu/first_light.sh" "$@"; }

echo "== the rehearsal"
status=0
light --rehearse >"$work/rehearsal" 2>&1 || status=$?
[[ $status != 77 ]] || { cat "$work/rehearsal" && exit 77; }
cat "$work/rehearsal"
[[ $status == 0 ]] || fail "status $status"
for n in 1 2 3 4; do grep -q "^call $n: status 0, " "$work/rehearsal" || fail "call $n"; done
grep -q 'the calls have at most 2[0-2] minutes of GPU time' "$work/rehearsal" || fail "too much GPU time"
for want in 'device: status 0: NVIDIA H100 80GB HBM3 as h100.json: as planned' 'step: status 0: .*"images_per_second": 6000.0' \
  'torch +ok' 'ratio +2.00x eager' 'sanitizer +ok .*memcheck: no error. racecheck: no error' '2 GPUs trained together'; do
  grep -qE "$want" "$work/rehearsal" || fail "no line '$want'"
done

echo "== a GPU that differs from its description, a step that fails, and a call that is cut short"
"$root/tests/gpu/stand_ins.sh" "$work"
sed -i 's/"multiProcessorCount":132/"multiProcessorCount":114/' "$work/packed/tree/tests/backends/device.json"
cat >"$work/packed/tree/tests/backends/test_cuda" <<'EOF'
#!/bin/bash
echo "[doctest] test cases: 3 | 2 passed | 1 failed | 0 skipped"
exit 1
EOF
tar -cJf "$work/packed.tar.xz" -C "$work/packed" .
on_gpu=(env PATH="$work/bin:$PATH" OUT="$work/out" TUTTI_GPU_BUILD="$work/gpu" TUTTI_GPU_ARCHIVE="$work/packed.tar.xz")
call() { "${on_gpu[@]}" bash "$root/tests/gpu/first_light.sh" call "$@"; }
# The limits of time leave a program in its process group, so that the end of the group ends it.
printf '#!/bin/bash\nexec "%s" --foreground "$@"\n' "$(command -v timeout)" >"$work/bin/timeout"
chmod +x "$work/bin/timeout"
status=0
call 1 >"$work/printed" 2>&1 || status=$?
[[ $status == 1 ]] || fail "a part failed, and the status is $status"
grep -q 'as h100.json: multiProcessorCount: planned 132, here 114$' <(sed 's/ *$//' "$work/out/first.txt") || fail "$(cat "$work/out/first.txt")"
grep -q 'memory: status 1: .*1 failed' "$work/out/first.txt" || fail "the test that fails is not told of"
grep -q 'step-without-graph: status 0' "$work/out/first.txt" || fail "after a failed part the others do not run"
cat >"$work/packed/tree/bench/tutti_step" <<EOF
#!/bin/bash
touch "$work/begun"
exec sleep 600
EOF
tar -cJf "$work/packed.tar.xz" -C "$work/packed" .
rm -rf "$work/out"
setsid "${on_gpu[@]}" bash "$root/tests/gpu/first_light.sh" call 1 >"$work/printed" 2>&1 &
pid=$!
while [[ ! -e $work/begun ]] && kill -0 $pid 2>/dev/null; do sleep 0.1; done
kill -9 -- -$pid
wait $pid 2>/dev/null || true
grep -q 'libraries: status 0' "$work/out/first.txt" || fail "a call that was ended left: $(cat "$work/out/first.txt")"

echo "== refusals"
refused() {
  local want=$1 status=0
  shift
  "$@" >"$work/printed" 2>&1 || status=$?
  if [[ $status != 2 ]] || ! grep -q "$want" "$work/printed"; then fail "$*: status $status, $(cat "$work/printed")"; fi
}
refused "usage:" light
refused "a number from 1 to 4, got '5'" call 5
refused "a number of minutes from 1 to 9, got '10'" call 2 10
refused "a number of minutes from 1 to 9, got ''" call 2 ""
refused "no archive $work/none" env TUTTI_GPU_ARCHIVE="$work/none" OUT="$work/out" TUTTI_GPU_BUILD="$work/gpu" bash "$root/tests/gpu/first_light.sh" call 2
refused "no folder of headers" light pack "$work/none"
refused "no archive $work/none" light --rehearse "$work/none"
refused "cannot be unpacked" env TUTTI_GPU_ARCHIVE="$work/printed" OUT="$work/out" TUTTI_GPU_BUILD="$work/gpu" bash "$root/tests/gpu/first_light.sh" call 2
refused "a number of MB, got 'much'" light pack --largest much "$work"
# With a stand-in that builds no program, and data of slightly more than 1 MB.
mkdir -p "$work/copy/tests/gpu" "$work/data"
cp "$root/tests/gpu/first_light.sh" "$work/copy/tests/gpu"
printf '#!/bin/bash\necho "run.sh $*"\n' >"$work/copy/tests/gpu/run.sh" && chmod +x "$work/copy/tests/gpu/run.sh"
head -c $(((1 << 20) + 4096)) /dev/urandom >"$work/data/train.rec.xz"
packed=("$work/copy/tests/gpu/first_light.sh" pack)
refused "bytes, and --largest allows 1048576 bytes" "${packed[@]}" --largest 1 "$work" "$work/data"
"${packed[@]}" "$work" "$work/data" >"$work/printed" 2>&1 || fail "1 MB is too large: $(cat "$work/printed")"
for given in "" 4; do
  env TUTTI_GPU_ARCHIVE="$work/packed.tar.xz" OUT="$work/out" TUTTI_GPU_BUILD="$work/gpu" "$work/copy/tests/gpu/first_light.sh" call 2 ${given:+"$given"} >"$work/printed"
  grep -q "^run.sh --prebuilt --minutes ${given:-7} " "$work/printed" || fail "call 2 $given: $(cat "$work/printed")"
done

echo "== a part for which no time is left is a failure"
sed -e '/^case ${1:-} in/,$d' -e 's/^minutes=(0 3/minutes=(0 0/' "$root/tests/gpu/first_light.sh" >"$work/functions"
mkdir -p "$work/out"
status=0
# shellcheck disable=SC2016  # the inner shell expands it
got=$(env OUT="$work/out" bash -c 'source "$1/functions" && part late 10 true; exit $failed' _ "$work") || status=$?
[[ $status == 1 && $got == *"late: no time is left"* ]] || fail "status $status: $got"

echo "$failures failed"
exit $((failures > 0))
