#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds tests for aarch64 with the cross compiler of Debian 12 and runs them under qemu-user. Each test program is built
# and run before the next one, and its result is written to FOLDER/results.txt. A script that was stopped continues: it
# does not run a program again that has passed and did not change.
#
# tests/aarch64.sh [OPTION]... [REGEX]
# REGEX           the programs to run, by names such as engine/test_cpu; default: aarch64/kernels, which needs seconds and
#                 comes first, core, tensor, graph, optim, engine, golden, strategy and the backends of the processor
# --build FOLDER  build folder                                                     build-aarch64
# --cpu NAME      processor that qemu shows; may be repeated                       max
#                 max has bf16; neoverse-n1 has only NEON
# --jobs N        compilers that run at the same time                              number of cores
# --list          prints the names of the programs and ends
# --configure     ends after the build folder is configured
#
# The arm64 libraries are downloaded by apt with lists and a state of its own and are unpacked to FOLDER/sysroot, so the
# packages and architectures of this machine do not change. Ends with status 1 if a program failed, 2 after a wrong
# option, 77 if this machine cannot install the tools.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD me=aarch64.sh
. .ci/common.sh
. infra/package/sysroot.sh

wrong() {
  say "$*" >&2
  exit 2
}
build=build-aarch64 cpus=() jobs=$(nproc) list=0 only_configure=0
regex='^aarch64/kernels$|^(core|tensor|graph|optim|engine|golden|strategy)/test_|^backends/test_(eigen|make|job)'
while (($#)); do
  case $1 in
    --build | --cpu | --jobs)
      (($# > 1)) || wrong "$1 needs a value"
      case $1 in
        --build) build=$2 ;;
        --cpu) cpus+=("$2") ;;
        --jobs) jobs=$2 ;;
      esac
      shift
      ;;
    --list) list=1 ;;
    --configure) only_configure=1 ;;
    -*) wrong "unknown option $1" ;;
    *) regex=$1 ;;
  esac
  shift
done
((${#cpus[@]})) || cpus=(max)
mkdir -p "$build"/{logs,passed,tests/aarch64}
build=$(cd "$build" && pwd)
sysroot=$build/sysroot

# The tools of this machine.
command -v apt-get dpkg-deb >/dev/null || { say "SKIP: needs Debian's apt-get and dpkg-deb" && exit 77; }
install g++-aarch64-linux-gnu qemu-user-static cmake ninja-build
for tool in aarch64-linux-gnu-g++ qemu-aarch64-static cmake ninja; do
  command -v "$tool" >/dev/null || { say "SKIP: $tool cannot be installed" && exit 77; }
done

# result WORD PROGRAM CPU SECONDS: replaces the line of this program and processor in results.txt.
result() {
  touch "$build/results.txt"
  { grep -v " $2 on $3," "$build/results.txt" || true; echo "$1 $2 on $3, $4 s"; } | sort -k 2 >"$build/results.new"
  mv "$build/results.new" "$build/results.txt"
  say "$1 $2 on $3, $4 s"
}
failed=0
# run PROGRAM: runs it on each processor, unless it has passed there.
run() {
  local program=$1 file=$build/tests/$1 log=$build/logs/${1/\//-} cpu passed sum begin
  for cpu in "${cpus[@]}"; do
    passed=$build/passed/${program/\//-}-$cpu sum=$(sha256sum "$file" | cut -d ' ' -f 1)
    if [[ -f $passed && $(<"$passed") == "$sum" ]]; then continue; fi
    begin=$SECONDS
    # The cases of the suite "nightly" take minutes on a real processor.
    if timeout 3600 qemu-aarch64-static -cpu "$cpu" -L "$sysroot" "$file" --no-colors --test-suite-exclude=nightly \
      >"$log-$cpu.log" 2>&1; then
      echo "$sum" >"$passed"
      result passed "$program" "$cpu" $((SECONDS - begin))
    else
      tail -30 "$log-$cpu.log"
      result failed "$program" "$cpu" $((SECONDS - begin))
      failed=1
    fi
  done
}

# This program needs no library.
if ((only_configure + list == 0)) && [[ aarch64/kernels =~ $regex ]]; then
  if aarch64-linux-gnu-g++ -std=c++20 -O2 -static -Wno-psabi -I include tests/aarch64/kernels.cpp -o "$build/tests/aarch64/kernels"; then
    run aarch64/kernels
  else
    result "does not compile:" aarch64/kernels "${cpus[0]}" 0
    failed=1
  fi
  # No other program has such a name.
  [[ $regex != *aarch64/kernels* || $regex == *'|'* ]] || exit $failed
fi

# The libraries of arm64.
make_sysroot "$build" libc6-dev libstdc++-12-dev doctest-dev libeigen3-dev libcli11-dev
write_toolchain "$build"
if [[ ! -f $build/build.ninja ]]; then
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release "-DCMAKE_TOOLCHAIN_FILE=$build/toolchain.cmake" \
    -DTUTTI_BUILD_TESTS=ON -DTUTTI_BUILD_EXAMPLES=OFF -DTUTTI_BUILD_TOOLS=OFF -DTUTTI_BUILD_BENCH=OFF -DTUTTI_INSTALL=OFF \
    -DTUTTI_EIGEN_NATIVE=OFF -DTUTTI_PRECOMPILE=ON >"$build/configure.log" ||
    { tail -20 "$build/configure.log" && exit 1; }
fi
((only_configure == 0)) || exit 0

mapfile -t programs < <(ninja -C "$build" -t targets all | sed -nE 's,^tests/([a-z]+)/(test_[a-z0-9_]+): .*,\1/\2,p' |
  grep -E -- "$regex" | sort -u)
((${#programs[@]})) || wrong "no program is named like $regex"
if ((list)); then
  printf '%s\n' "${programs[@]}"
  exit 0
fi

for program in "${programs[@]}"; do
  log=$build/logs/${program/\//-}
  if ! ninja -C "$build" -j "$jobs" "tests/$program" >"$log.build" 2>&1; then
    tail -30 "$log.build"
    result "does not compile:" "$program" "${cpus[0]}" 0
    failed=1
    continue
  fi
  run "$program"
done
say "results: $build/results.txt"
exit $failed
