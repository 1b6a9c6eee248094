#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Measures encryption: "openssl speed" of the cipher, then build/bench/encryption between two network namespaces, which it
# makes and removes. Needs root and iproute2.
#   bench/encryption.sh [MEGABYTES [ROUNDS]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
first=tutti-bench-$$-a
second=tutti-bench-$$-b
cleanup() {
  ip netns del "$first" 2>/dev/null || true
  ip netns del "$second" 2>/dev/null || true
}
trap cleanup EXIT
ip netns add "$first"
ip netns add "$second"
ip -n "$first" link add eth0 type veth peer name eth0 netns "$second"
ip -n "$first" addr add 10.78.0.1/24 dev eth0
ip -n "$second" addr add 10.78.0.2/24 dev eth0
for space in "$first" "$second"; do
  for device in eth0 lo; do ip -n "$space" link set "$device" up; done
done
openssl speed -seconds 1 -bytes 16384 -evp aes-128-gcm 2>/dev/null | tail -n 1
"${TUTTI_BUILD_DIR:-build}/bench/encryption" "$first" 10.78.0.1 "$second" 10.78.0.2 "$@"
