#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs the Debian package with apt-get in a bare Debian that debootstrap makes, trains there, builds the downstream
# example of the package with the compiler and the libraries that the package suggests, and removes the package again.
#   tests/packaging/bare_chroot.sh [SUITE]     bookworm, or another suite with the same libraries as this machine
# Needs root, the network and 3 GB below $TMPDIR; takes some 5 minutes. Not part of ./test.sh. TUTTI_BUILD_DIR is the
# build folder (default: build).
set -euo pipefail
suite=${1:-bookworm}
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${TUTTI_BUILD_DIR:-$source_dir/build}
fail() {
  echo "bare_chroot.sh: $*" >&2
  exit 1
}
say() { echo "bare_chroot.sh: $*"; }
if ((EUID != 0)) || ! command -v debootstrap >/dev/null || ! unshare --mount true 2>/dev/null; then
  echo "SKIP: it takes root, namespaces and debootstrap (Debian: apt-get install debootstrap)"
  exit 77
fi
# The kernel removes the mounts with this namespace.
if [[ -z ${TUTTI_BARE_CHROOT:-} ]]; then TUTTI_BARE_CHROOT=1 exec unshare --mount --propagation private "$0" "$@"; fi

work=$(mktemp -d)
root=$work/root
trap 'umount -R "$root/proc" "$root/dev" 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT
cpack --config "$build/CPackConfig.cmake" -B "$work/packages" -G DEB >"$work/log" 2>&1 || { cat "$work/log" && fail "cpack -G DEB fails"; }
package=$(echo "$work"/packages/*.deb)
say "$(basename "$package"), $(du -h "$package" | cut -f1), depends on $(dpkg-deb -f "$package" Depends)"

say "making a bare $suite"
debootstrap --variant=minbase "$suite" "$root" http://deb.debian.org/debian >"$work/log" 2>&1 || { tail -n 20 "$work/log" && fail "debootstrap fails"; }
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
[[ ! -d /etc/apt/apt.conf.d ]] || cp -n /etc/apt/apt.conf.d/*proxy* "$root/etc/apt/apt.conf.d/" 2>/dev/null || true
cp "$package" "$root/tmp/tutti.deb"
inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive ${http_proxy:+http_proxy="$http_proxy"} chroot "$root" "$@"; }
# quietly COMMAND...: runs a command in the chroot, and shows its output only if it fails.
quietly() { inside "$@" >"$work/log" 2>&1 || { tail -n 30 "$work/log" && fail "in the bare $suite: $*"; }; }

quietly apt-get update
quietly apt-get install -y --no-install-recommends /tmp/tutti.deb
say "installed; $(inside dpkg-query -W | wc -l) packages"
for program in train_cifar10 train_imagenet tutti-launch tutti-data tutti-report; do
  inside test -x "/usr/bin/$program" || fail "the package has no $program: build it first"
  quietly "$program" --help
  inside test -s "/usr/share/bash-completion/completions/$program" || fail "no completion of $program"
done
train=(train_cifar10 --dataset synthetic --num-examples 256 --image-shape "3,16,16" --depth 8 --batch-size 32 --epochs 1)
quietly "${train[@]}" --run-dir /tmp/run
quietly tutti-launch -n 2 "${train[@]}" --strategy gloo --run-dir /tmp/two
quietly tutti-report --out /tmp/report.html /tmp/run /tmp/two
inside test -s /tmp/report.html || fail "tutti-report wrote nothing"
say "trains, alone and as two"

say "building the downstream example"
quietly apt-get install -y --no-install-recommends g++ cmake make pkg-config libdnnl-dev libeigen3-dev
example=/usr/share/doc/tutti/examples/downstream
quietly cmake -S "$example" -B /tmp/downstream -D CMAKE_BUILD_TYPE=Release -D "DOWNSTREAM_COMPONENTS=onednn;eigen" -D DOWNSTREAM_COMPILED=ON
quietly cmake --build /tmp/downstream
inside /tmp/downstream/downstream || fail "the downstream program fails"
quietly pkg-config --exists --print-errors tutti tutti-eigen

quietly dpkg -r tutti
left=$(inside find /usr /etc -path '*tutti*' | head -n 5)
[[ -z $left ]] || fail "the package leaves behind $left"
say "done"
