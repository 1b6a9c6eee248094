#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs missing packages, builds the tree and runs all tests.
#   ./test.sh [options of ctest, e.g. -L optim]
# Left out are the programs of bench/ that no test runs and the tests with the label "nightly"; fuzz targets run for 3 seconds,
# lint/headers_alone and lint/tidy check what has changed since it passed in build/, and packaging/compilers builds one
# program with each compiler instead of two. TUTTI_NIGHTLY=1 runs all of them at full length: tests/nightly.sh sets it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
me=test.sh
root=.
source .ci/common.sh

install g++ cmake ninja-build libdnnl-dev libeigen3-dev libcli11-dev doctest-dev libbenchmark-dev clang-14 clang-16 \
  libclang-rt-14-dev clang-format-14 clang-tidy-14 strace python3 pkg-config libstb-dev libjpeg-dev xz-utils curl ca-certificates \
  dataset-fashion-mnist libopenmpi-dev openmpi-bin libzmq3-dev libgloo-dev libssl-dev openssh-server openssh-client iproute2 rsync procps \
  python3-venv shellcheck patchelf debootstrap chromium-headless-shell slurmctld slurmd slurm-client munge \
  man-db zsh doxygen python3-markdown-it python3-pygments

# Real images for the tests that need them: a folder of test data next to the source tree.
if [[ -z ${TUTTI_DATA:-} && -f ../shared/data/cifar10_bin.sh ]]; then
  if bash ../shared/data/cifar10_bin.sh build/data; then
    export TUTTI_DATA=$PWD/build/data
  else
    say "../shared/data could not be unpacked"
  fi
fi

# Packages from PyPI for the tests of infra, interchange, Conan and TensorBoard, and CUDA 12's NVRTC for those of
# backends. They are installed again when their list changes. If they are missing, these tests are skipped.
# shellcheck disable=SC2317  # xargs calls it
environment_of() {
  local area=$1 venv=build/venv/$1 list=tests/$1/requirements.txt deps=()
  # Only the part of TensorBoard that reads its files.
  [[ $area != tensorboard ]] || deps=(--no-deps)
  if cmp -s "$list" "$venv/requirements.txt"; then return; fi
  say "installing the packages of $list in $venv"
  rm -rf "$venv"
  # --no-compile: Python compiles the few modules that it imports.
  if python3 -m venv "$venv" &&
    timeout 300 "$venv/bin/pip" install -q --no-compile "${deps[@]}" --disable-pip-version-check --retries 1 --timeout 15 -r "$list"; then
    cp "$list" "$venv"
  else
    say "they cannot be installed, so the tests of $area that need them are skipped"
    rm -rf "$venv"
  fi
}
export -f environment_of say
export me
# shellcheck disable=SC2016  # the inner shell expands it
printf '%s\n' backends infra interchange packaging tensorboard | xargs -P "$(nproc)" -n 1 bash -c 'environment_of "$0"'

# With a compiler cache, a clone in another folder reuses the objects that this one compiled.
if command -v ccache >/dev/null; then
  export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_NOHASHDIR=1
  export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER:-ccache}
  # Without these it does not cache what is compiled with precompiled headers. No file uses __TIME__, and no macro that is
  # defined on the command line occurs in these headers.
  export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}
fi
bench=tested fuzz_seconds=3 precompile=ON leave_out=(-LE '^nightly$')
if [[ ${TUTTI_NIGHTLY:-} == 1 ]]; then
  bench=ON fuzz_seconds=60 leave_out=()
  # So that the build finds #include lines that are missing.
  precompile=OFF
  export TUTTI_CHECK_ALL=1 TUTTI_FUZZ_SEED=${TUTTI_FUZZ_SEED:-0}
fi
configure -DTUTTI_BUILD_TESTS=ON -DTUTTI_BUILD_EXAMPLES=ON "-DTUTTI_BUILD_BENCH=$bench" "-DTUTTI_FUZZ_SECONDS=$fuzz_seconds" \
  "-DTUTTI_PRECOMPILE=$precompile"
cmake --build build --parallel "$(nproc)"

log=build/ctest.log
status=0
# Three more than the number of processors, because up to three tests at a time mostly wait.
ctest --test-dir build --output-on-failure --no-tests=error --parallel $(($(nproc) + 3)) --resource-spec-file "$PWD/build/tests/lanes.json" \
  "${leave_out[@]}" --output-junit ctest.xml "$@" 2>&1 | tee "$log" || status=$?

echo
python3 .ci/skipped.py build/ctest.xml || true
# Prints ctest's own summary again, as the last output.
sed -n '/tests passed, .* tests failed out of/,$p' "$log"
exit "$status"
