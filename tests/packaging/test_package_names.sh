#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests which packages quickstart.sh and test.sh install on a system with dnf and without apt-get. Uses stand-ins for
# dnf and rpm.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
mkdir bin
for program in bash env; do ln -s "$(command -v $program)" "bin/$program"; done
cat >bin/rpm <<S
#!$(command -v bash)
[[ \$1 == -q && " \$(<"$work/installed") " == *" \$2 "* ]]
S
cat >bin/dnf <<S
#!$(command -v bash)
echo "\$*" >>"$work/dnf"
for word in "\$@"; do
  case \$word in install | -* | onednn-devel) ;; *) echo -n "\$word " >>"$work/installed" ;; esac
done
S
printf '#!%s\nexec "$@"\n' "$(command -v bash)" >bin/sudo
chmod +x bin/rpm bin/dnf bin/sudo
echo -n "cmake " >installed
try() { # try PACKAGE...: prints the output of the installation
  PATH=$work/bin bash -c 'set -euo pipefail; me=try root=$1; source "$root/.ci/common.sh"; shift; install "$@"' _ "$TUTTI_SOURCE_DIR" "$@"
}
want="try: installing gcc-c++ ninja-build onednn-devel eigen3-devel cli11-devel libjpeg-turbo-devel stb-devel openmpi openssh-clients
try: not available here: onednn-devel"
got=$(try g++ cmake ninja-build libdnnl-dev libeigen3-dev libcli11-dev libjpeg-dev libstb-dev clang-14 clang-16 libclang-rt-14-dev \
  dataset-fashion-mnist openmpi-bin openssh-client)
[[ $got == "$want" ]] || fail "expected: $want"$'\n'"got: $got"
[[ $(<dnf) == "install -y "*" gcc-c++ "* && $(wc -l <dnf) == 1 ]] || fail "dnf ran with: $(<dnf)"
[[ $(try g++ cmake) == "" ]] || fail "what is installed is installed again"
rm bin/dnf
[[ $(try g++) == *"neither apt-get nor dnf"* ]] || fail "no word about a system that has neither"
