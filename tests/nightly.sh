#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs everything at full length, piece by piece, for hours, including all that ./test.sh leaves out or shortens.
#   tests/nightly.sh [--out FOLDER] [--only PIECE[,PIECE...]] [--minutes N] [--again] [--list]
# --out build/nightly: folder for PIECE.log and PIECE.result (exit code, seconds, source tree) of each piece. --only:
# runs only these pieces. --minutes 60: the length of each soak test and simulation. --again: repeats the pieces that
# failed. --list: prints the names of the pieces. A piece that has a result for the same sources is not repeated, so a
# script that was stopped continues when it is started again. After a failed piece the next one runs. Prints a table at
# the end. Exit code 1: a piece failed. 2: bad options.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
die() {
  echo "nightly.sh: $*" >&2
  exit 2
}

# The pieces, in their order. tests-AREA: the tests with the label AREA, a folder of tests/.
pieces=(build)
for folder in tests/*/; do
  folder=$(basename "$folder")
  if [[ $folder == fuzz ]] || compgen -G "tests/$folder/test_*" >/dev/null; then pieces+=("tests-$folder"); fi
done
pieces+=(sanitize-asan-ubsan sanitize-tsan mutants-sampler mutants-arbiter mutants-checkpoint mutants-frames mutants-logical ptx
  planted-kernels coverage soak-resume soak-elastic simulation-members simulation-training simulation-tables simulation-hosts simulation-shares logical-ranks chroot aarch64-packages repeat)

out=build/nightly only=() minutes=60 again=
while (($#)); do
  case $1 in
    --out | --only | --minutes) (($# >= 2)) || die "[$1] expected a value, got none" ;;&
    --out) out=$2 && shift ;;
    --only)
      IFS=, read -ra only <<<"$2"
      for piece in "${only[@]}"; do
        [[ " ${pieces[*]} " == *" $piece "* ]] || die "[--only] expected pieces of: ${pieces[*]}; got \"$piece\""
      done
      shift
      ;;
    --minutes)
      [[ $2 =~ ^[1-9][0-9]*$ ]] || die "[--minutes] expected a number above 0, got \"$2\""
      minutes=$2 && shift
      ;;
    --again) again=yes ;;
    --list) printf '%s\n' "${pieces[@]}" && exit 0 ;;
    *) die "[options] expected --out, --only, --minutes, --again or --list, got \"$1\"" ;;
  esac
  shift
done
((${#only[@]})) || only=("${pieces[@]}")
mkdir -p "$out"
# ./test.sh unpacks real images for the tests into this folder.
if [[ -z ${TUTTI_DATA:-} && -d build/data ]]; then export TUTTI_DATA=$PWD/build/data; fi

# tree: prints an identity of the sources, including changes that are not committed.
tree() {
  if git rev-parse --git-dir >/dev/null 2>&1; then
    { git rev-parse HEAD && git diff HEAD && git ls-files -z --others --exclude-standard | xargs -0 -r sha256sum; } | sha256sum | cut -c 1-16
  else
    echo unknown
  fi
}

# piece NAME: runs one piece. Tests run with the lint checks of all files, with one minute for each fuzz target, and
# with another seed.
piece() {
  local soak=(env TUTTI_BUILD_DIR=build)
  case $1 in
    build) TUTTI_NIGHTLY=1 ./test.sh -N ;;
    tests-*) TUTTI_CHECK_ALL=1 TUTTI_FUZZ_SEED=0 ctest --test-dir build -L "^${1#tests-}\$" --no-tests=error --output-on-failure \
      --parallel $(($(nproc) + 3)) --resource-spec-file "$PWD/build/tests/lanes.json" ;;
    sanitize-*) tests/sanitize.sh --preset "${1#sanitize-}" ;;
    mutants-logical) tests/mutants/logical_ranks.py ;;
    mutants-*) tests/mutants/run.py --only "${1#mutants-}" ;;
    ptx) "${soak[@]}" tests/backends/ptx_all.py --out "$out/ptx" ;;
    planted-kernels) "${soak[@]}" tests/backends/planted_kernels.py ;;
    coverage) tests/coverage.py --all --check ;;
    soak-resume) "${soak[@]}" python3 tests/tools/soak_resume.py --minutes "$minutes" ;;
    # 200 events take a quarter of an hour.
    soak-elastic) "${soak[@]}" python3 tests/hosts/soak_elastic.py --events $((minutes * 200 / 15)) ;;
    # Continues after the last seed of the night before.
    simulation-*) "${soak[@]}" python3 tests/simulation/run.py --scenario "${1#simulation-}" --minutes "$minutes" ;;
    logical-ranks) "${soak[@]}" python3 tests/logical_ranks.py --out "$out/logical-ranks" ;;
    # The Debian package must not depend on this machine's processor, so it has a separate build.
    chroot)
      cmake -S . -B build-package -DCMAKE_BUILD_TYPE=Release -DTUTTI_EIGEN_NATIVE=OFF -DTUTTI_BUILD_TESTS=OFF -DTUTTI_BUILD_BENCH=OFF &&
        cmake --build build-package --parallel "$(nproc)" && TUTTI_BUILD_DIR=$PWD/build-package tests/packaging/bare_chroot.sh
      ;;
    aarch64-packages) tests/packaging/aarch64_packages.sh --out "$out/aarch64-packages" ;;
    repeat) tests/repeat.sh --out "$out/repeat" ;;
  esac
}

sources=$(tree)
for name in "${only[@]}"; do
  result=$out/$name.result
  if [[ -f $result ]]; then
    read -r code _ of <"$result"
    if [[ $of == "$sources" && ! ($again && $code != 0) ]]; then
      continue
    fi
    rm "$result"
    if [[ $name == repeat && $of != "$sources" ]]; then rm -rf "$out/repeat"; fi
  fi
  echo "nightly.sh: $(date -u +%H:%M) $name"
  begin=$SECONDS code=0
  (piece "$name") >"$out/$name.log" 2>&1 </dev/null || code=$?
  # Only a piece that has ended has a result. An interrupted piece runs again.
  echo "$code $((SECONDS - begin)) $sources" >"$result.new"
  mv "$result.new" "$result"
done

failed=0
printf '%-22s %-8s %8s  %s\n' piece result seconds log
for name in "${only[@]}"; do
  read -r code seconds _ <"$out/$name.result"
  case $code in
    0) word=green ;;
    77) word=skipped ;;
    *) word="red ($code)" failed=1 ;;
  esac
  printf '%-22s %-8s %8s  %s\n' "$name" "$word" "$seconds" "$out/$name.log"
done
exit $failed
