#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# takes long
# sets up: stage
# Installs the build once for all tests of this folder that need an installation, and moves it to another folder, like a
# package that is unpacked elsewhere. install_moved in common.sh copies it.
set -euo pipefail
: "${TUTTI_BUILD_DIR:?}" "${STAGED_INSTALL:?}"
rm -rf "$STAGED_INSTALL"
mkdir -p "$STAGED_INSTALL"
# Object files of earlier versions.
find "$TUTTI_BUILD_DIR/tests/compiled_once" -mtime +0 -delete 2>/dev/null || true
cmake --install "$TUTTI_BUILD_DIR" --prefix "$STAGED_INSTALL/first place" >"$STAGED_INSTALL/log"
mv "$STAGED_INSTALL/first place" "$STAGED_INSTALL/prefix"
[[ -f $STAGED_INSTALL/prefix/include/tutti/tutti.hpp ]]
touch "$STAGED_INSTALL/complete"
