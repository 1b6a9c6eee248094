#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests FetchContent: a project clones tutti from a repository on this machine, and with TUTTI_CHECK_ALL=1
# builds with it and runs. The clone adds no tests, programs or install rules.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if ! command -v git >/dev/null; then
  echo "SKIP: no git (Debian: apt-get install git)"
  exit 77
fi
# A repository with the tree as it is, also if it is not committed.
mkdir repository
for part in CMakeLists.txt LICENSE cmake include backends datasets src; do cp -r "$TUTTI_SOURCE_DIR/$part" repository; done
git -c init.defaultBranch=main init -q repository
git -C repository add -A
git -C repository -c user.name=test -c user.email=test@localhost -c commit.gpgSign=false commit -qm "The tree"
commit=$(git -C repository rev-parse HEAD)
fetch=(-D "TUTTI_REPOSITORY=file://$work/repository" -D "TUTTI_COMMIT=$commit")
if [[ ${TUTTI_CHECK_ALL:-} == 1 ]]; then
  downstream "$work/build" "${fetch[@]}"
else
  # A missing target of a component fails here, too.
  cmake -S "$TUTTI_SOURCE_DIR/examples/downstream" -B build "${fetch[@]}" -D "DOWNSTREAM_COMPONENTS=$(components)" >log 2>&1 ||
    fail "the downstream project cannot be configured: $(cat log)"
fi
[[ $(git -C build/_deps/tutti-src rev-parse HEAD) == "$commit" ]] || fail "another commit than $commit was fetched"
if find build/_deps/tutti-build -name '*.o' | grep .; then fail "these files of tutti's own programs were built"; fi
if cmake --build build --target help | grep -E 'train_cifar10|tutti-launch'; then fail "these targets of tutti's own programs were added"; fi
cmake --install build --prefix "$work/prefix" >/dev/null
if find "$work/prefix" -type f 2>/dev/null | grep .; then fail "these files of tutti were installed"; fi
