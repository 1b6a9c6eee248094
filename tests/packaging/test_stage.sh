#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# takes long
# sets up: stage
# Installs the build once for all tests of this folder that need an installed tutti, and moves it to another folder, as a
# package that is unpacked elsewhere. install_moved of common.sh copies it.
set -euo pipefail
: "${TUTTI_BUILD_DIR:?}" "${TUTTI_STAGE:?}"
rm -rf "$TUTTI_STAGE"
mkdir -p "$TUTTI_STAGE"
cmake --install "$TUTTI_BUILD_DIR" --prefix "$TUTTI_STAGE/first place" >"$TUTTI_STAGE/log"
mv "$TUTTI_STAGE/first place" "$TUTTI_STAGE/prefix"
[[ -f $TUTTI_STAGE/prefix/include/tutti/tutti.hpp ]]
touch "$TUTTI_STAGE/complete"
