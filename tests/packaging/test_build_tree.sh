#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests that find_package works with a build tree that was never installed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
downstream "$work/build" -D "CMAKE_PREFIX_PATH=$TUTTI_BUILD_DIR"
