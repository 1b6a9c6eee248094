#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# needs: stage
# Tests an installation that was moved: find_package works with its components, and no file contains a folder of
# this machine.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
install_moved "$work/prefix"

if grep -rIl -e "$TUTTI_SOURCE_DIR" -e "$TUTTI_BUILD_DIR" -e "first place" "$work/prefix"; then
  fail "these installed files name folders of this machine"
fi
if find "$work/prefix" -type l ! -lname '../share/tutti/scripts/*' | grep .; then fail "these installed files are links"; fi
for header in tutti/version.hpp tutti/datasets/cifar10/cifar10.hpp; do
  [[ -f $work/prefix/include/$header ]] || fail "$header is not installed"
done
[[ -x $work/prefix/share/tutti/datasets/cifar10/prepare ]] || fail "datasets/cifar10/prepare is not installed"
bash "$work/prefix/share/tutti/datasets/cifar10/prepare" --help >/dev/null || fail "the installed prepare does not run"

# Each header of the tree must be installed.
(cd "$TUTTI_SOURCE_DIR/include" && find tutti -name '*.hpp' | sort) >"$work/want"
(cd "$TUTTI_SOURCE_DIR" && find backends datasets -name '*.hpp' | sed 's|^|tutti/|' | sort) >>"$work/want"
(cd "$work/prefix/include" && find tutti -name '*.hpp') | sort >"$work/got"
sort -o "$work/want" "$work/want"
diff "$work/want" "$work/got" || fail "the installed headers differ from the tree's (<: missing)"

downstream "$work/build" -D "CMAKE_PREFIX_PATH=$work/prefix"

# The version file accepts the same minor version, on any architecture.
version() {
  rm -rf "$work/version"
  mkdir "$work/version"
  cat >"$work/version/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.22)
project(version LANGUAGES CXX)
math(EXPR CMAKE_SIZEOF_VOID_P "12 - \${CMAKE_SIZEOF_VOID_P}")
find_package(tutti $1 REQUIRED NO_DEFAULT_PATH PATHS "$work/prefix")
EOF
  cmake -S "$work/version" -B "$work/version/build" >"$work/version/log" 2>&1
}
part() { sed -n "s/.*TUTTI_VERSION_$1 //p" "$TUTTI_SOURCE_DIR/include/tutti/version.hpp"; }
major=$(part MAJOR) minor=$(part MINOR)
version "$major.$minor" || { cat "$work/version/log" && fail "version $major.$minor is not found"; }
if version "$major.$((minor + 1))"; then fail "version $major.$((minor + 1)) is said to be there"; fi
if version "$((major + 1)).0"; then fail "version $((major + 1)).0 is said to be there"; fi
