#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs dpkg-shlibdeps for programs for arm64, with the libraries that sysroot.sh has unpacked to $TUTTI_SYSROOT. cpack runs this script
# in place of dpkg-shlibdeps, in the folder that becomes the package.
#   shlibdeps.sh [ARGUMENT OF dpkg-shlibdeps]...
set -euo pipefail
me=shlibdeps.sh
# shellcheck source=common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"
[[ -f ${TUTTI_SYSROOT:-}/DEBIAN/shlibs ]] || fail 2 TUTTI_SYSROOT "a folder that sysroot.sh has made" "${TUTTI_SYSROOT:-nothing}"
export DEB_HOST_ARCH=arm64
# It takes packages that are being built for libraries' packages: their files, and DEBIAN/shlibs and DEBIAN/symbols of them.
if [[ -d debian ]]; then
  ln -sfn "$TUTTI_SYSROOT" debian/sysroot
  trap 'rm -f debian/sysroot' EXIT
fi
dpkg-shlibdeps "$@"
