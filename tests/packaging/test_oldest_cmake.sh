#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests that the oldest supported CMake, 3.22, configures, builds and installs the whole tree, and finds the
# installation. A stand-in for the compiler makes an empty object of each source, because CMake does not depend on the
# compiler's output.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
version=3.22.6
oldest=$(sed -n 's/^cmake_minimum_required(VERSION \([0-9.]*\)\.\.\..*/\1/p' "$TUTTI_SOURCE_DIR/CMakeLists.txt")
[[ ${version%.*} == "$oldest" ]] || fail "tested with $version, promised: $oldest"

cache=$TUTTI_BUILD_DIR/cmake-$version
cmake=$cache/cmake/data/bin/cmake
if [[ ! -f $cache/complete ]]; then
  if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --timeout 20 --retries 1 \
    --dest "$work/wheel" "cmake==$version" >"$work/log" 2>&1; then
    echo "SKIP: CMake $version cannot be had from PyPI: $(tail -n 1 "$work/log")"
    exit 77
  fi
  rm -rf "$cache"
  python3 -m zipfile -e "$work"/wheel/*.whl "$cache"
  chmod +x "$cache"/cmake/data/bin/*
  touch "$cache/complete"
fi
[[ $("$cmake" --version) == "cmake version $version"* ]] || fail "expected CMake $version, got $("$cmake" --version)"

# Compiles an empty object, or a main with a --help, from which the installation makes a manual page.
cat >"$work/stand in" <<'S'
#!/usr/bin/env bash
compiler=$1
shift
source= object= arguments=()
while (($#)); do
  case $1 in
    -c) source=$2 && shift ;;
    -o) object=$2 && shift ;;
    -MF | -MT | -MQ) [[ $1 != -MF ]] || : >"$2" && shift ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
text=
if grep -qE '^int main\(|DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN|BENCHMARK_MAIN' "$source"; then
  text=$'#include <cstdio>\nint main() { std::puts("Does nothing.\\n\\nUsage: stand-in [OPTION]\\n\\nOptions\\n  --help  says this"); }'
fi
exec "$compiler" -x c++ -c - -o "$object" <<<"$text"
S
chmod +x "$work/stand in"
generator=(-G Ninja)
command -v ninja >/dev/null || generator=()
run() {
  if ! "$@" >"$work/log" 2>&1; then
    tail -n 40 "$work/log"
    fail "CMake $version fails: $*"
  fi
}
stand_in=(-D "CMAKE_CXX_COMPILER_LAUNCHER=$work/stand in" -D CMAKE_EXPORT_COMPILE_COMMANDS=ON)
run "$cmake" -S "$TUTTI_SOURCE_DIR" -B "$work/own build" "${generator[@]}" "${stand_in[@]}" -D TUTTI_BUILD_TESTS=OFF
run "$cmake" --build "$work/own build" --parallel 2
run "$cmake" --install "$work/own build" --prefix "$work/pre fix"
for file in bin/train_cifar10 bin/train_imagenet bin/tutti-launch bin/generate-trainer bin/tutti-data bin/tutti-report bin/runclust share/tutti/scripts/train.sh \
  include/tutti/tutti.hpp include/tutti/backends/eigen/eigen.hpp include/tutti/datasets/cifar10/cifar10.hpp; do
  [[ -e "$work/pre fix/$file" ]] || fail "CMake $version does not install $file"
done
if [[ $(components) == *eigen* && -z $(find "$work/own build" -name 'train_cifar10' -type f) ]]; then fail "not built"; fi

# The tests may need a newer CMake, but this one must configure them.
run "$cmake" -S "$TUTTI_SOURCE_DIR" -B "$work/own build" -D TUTTI_BUILD_TESTS=ON
(cd "$TUTTI_SOURCE_DIR" && run "$cmake" --list-presets)

for compiled in OFF ON; do
  run "$cmake" -S "$TUTTI_SOURCE_DIR/examples/downstream" -B "$work/downstream $compiled" "${generator[@]}" "${stand_in[@]}" \
    -D "CMAKE_PREFIX_PATH=$work/pre fix" -D "DOWNSTREAM_COMPONENTS=$(components)" -D DOWNSTREAM_COMPILED=$compiled
  run "$cmake" --build "$work/downstream $compiled" --parallel 2
  grep -q "pre fix/include" "$work/downstream $compiled/compile_commands.json" || fail "the installed headers are not found"
done
