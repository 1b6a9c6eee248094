#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# takes long
# processors: 2
# Links a project of two files that use tutti in three ways: header-only; with TUTTI_IMPLEMENTATION in a third file; with
# the sources of tutti::compiled. Each program must train to the same loss. The build is not optimised, because only the
# linking differs. TUTTI_CHECK_ALL=1: also with clang.
#   test_implementation.sh [COMPILER...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
compilers=("$@")
if (($# == 0)); then
  compilers=(g++)
  [[ ${TUTTI_CHECK_ALL:-} != 1 ]] || compilers+=(clang++-16)
fi

# As in CMake's projects, so that the test shares object files with test_compiled.sh.
flags=(-O0 -std=gnu++20 -I "$TUTTI_SOURCE_DIR/include" -I "$TUTTI_BUILD_DIR/include")
libraries=(-pthread)
header=tutti/tutti.hpp backend=ReferenceBackend sources=(core)
if [[ $(components) == *onednn* ]]; then
  header=tutti/backends/onednn/onednn.hpp backend=OnednnBackend sources=(core onednn)
  flags+=(-D TUTTI_HAS_ONEDNN=1)
  libraries+=(-ldnnl -lgomp)
elif [[ $(components) == *eigen* ]]; then
  header=tutti/backends/eigen/eigen.hpp backend=EigenBackend sources=(core eigen)
  flags+=(-D TUTTI_HAS_EIGEN=1 -isystem /usr/include/eigen3)
fi

files=("${sources[@]/#/$TUTTI_SOURCE_DIR/src/}")

cat >net.hpp <<END
#include <tutti/tutti.hpp>
#include <$header>
tutti::Builder net();
tutti::$backend backend();
END
cat >net.cpp <<END
#include "net.hpp"
using namespace tutti;
Builder net() {
  Builder b(3, 8, 8);
  models::resnet_cifar(b, b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F}), {.depth = 8, .classes = 4});
  return b;
}
$backend backend() { return $backend(); }
END
cat >train.cpp <<END
#include <cstdio>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include "net.hpp"
using namespace tutti;
int main() {
  auto b = net();
  auto on = backend();
  Loader loader(Synthetic({.size = 256, .height = 8, .width = 8, .classes = 4, .learnable = true}),
                {.placement = {.global_batch = 16}, .seed = 1});
  Solo solo;
  Trainer trainer(on, solo, b.graph(), {.optimizer = Sgd{0.9, true}});
  double first = 0, last = 0;
  for (int step = 0; step < 12; ++step) {
    last = trainer.step(loader.next(), 0.05).wait().metrics.mean_loss();
    if (step == 0) first = last;
  }
  std::printf("%.3f %.3f\n", first, last);
  return last < first ? 0 : 1;
}
END
# objects PREFIX FLAG... -- SOURCE...: compiles each source to PREFIX<name>.o, two at a time.
objects() {
  local prefix=$1 options=()
  shift
  while [[ $1 != -- ]]; do options+=("$1") && shift; done
  shift
  # shellcheck disable=SC2016  # the inner shell expands them
  printf '%s\n' "$@" | xargs -P 2 -I '{}' bash -c 'source=$1 prefix=$2 && shift 2 && "$@" -c "$source" -o "$prefix$(basename "$source" .cpp).o"' \
    _ '{}' "$prefix" bash "$TUTTI_SOURCE_DIR/tests/packaging/compile_once.sh" "$compiler" "${flags[@]}" "${options[@]}" ||
    fail "$compiler does not compile"
}
# trains NAME OBJECT...: links a program and runs it.
trains() {
  local name=$1
  shift
  "$compiler" "$@" -o "$name" "${libraries[@]}" || fail "$compiler: $name does not link"
  ./"$name" >"$name.loss" || fail "$compiler: $name does not learn: $(cat "$name.loss")"
  echo "$compiler, $name: loss $(cat "$name.loss")"
}
# defines FUNCTION OBJECT: succeeds if the object contains the code of this function of tutti.
defines() {
  nm -C "$2" >symbols
  grep -qE " [TW] tutti::$1\\(" symbols
}

ran=0
for compiler in "${compilers[@]}"; do
  if ! command -v "$compiler" >/dev/null; then
    echo "skipped: no $compiler"
    continue
  fi
  rm -f ./*.o
  objects inline- -- net.cpp train.cpp
  objects '' -D TUTTI_SEPARATE_COMPILATION -- "$TUTTI_SOURCE_DIR/examples/downstream/tutti.cpp" net.cpp train.cpp "${files[@]/%/.cpp}"
  trains header-only inline-net.o inline-train.o
  trains implementation net.o train.o tutti.o
  trains compiled net.o train.o "${sources[@]/%/.o}"
  defines Trainer::step inline-train.o || fail "$compiler: a header-only file lacks Trainer::step"
  for function in Trainer::step Executor::train CpuOps::kernel models::resnet_cifar; do
    defines "$function" tutti.o || fail "$compiler: TUTTI_IMPLEMENTATION lacks $function"
    if defines "$function" train.o; then fail "$compiler: a file next to TUTTI_IMPLEMENTATION compiles $function again"; fi
  done
  for other in implementation compiled; do
    cmp header-only.loss $other.loss || fail "$compiler: another loss with $other"
  done
  ran=$((ran + 1))
done
if ((!ran)); then
  echo "SKIP: none of ${compilers[*]} is here"
  exit 77
fi
