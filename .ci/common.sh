# SPDX-License-Identifier: MIT
# Functions of quickstart.sh and test.sh. They source this file after `set -euo pipefail`, with $me, the name in
# messages, and $root, the source tree.
# shellcheck shell=bash disable=SC2154

say() { printf '%s: %s\n' "$me" "$*"; }

is_installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

as_root() {
  if ((EUID == 0)); then
    env DEBIAN_FRONTEND=noninteractive "$@"
  else
    sudo env DEBIAN_FRONTEND=noninteractive "$@"
  fi
}

apt_install() { as_root apt-get install -y --no-install-recommends "$@"; }

# dnf_name PACKAGE: prints the name of a Debian package in Fedora and Amazon Linux, or an empty text if there is none.
dnf_name() {
  case $1 in
    g++) echo gcc-c++ ;;
    clang-1? | clang-format-1? | clang-tidy-1? | libclang-rt-1?-dev | dataset-* | slurm*) ;; # the tests that need them
                                                                                             # are skipped
    libbenchmark-dev) echo google-benchmark-devel ;;
    libcli11-dev) echo cli11-devel ;;
    libdnnl-dev) echo onednn-devel ;;
    libjpeg-dev) echo libjpeg-turbo-devel ;;
    libopenmpi-dev) echo openmpi-devel ;;
    libzmq3-dev) echo zeromq-devel ;;
    libssl-dev) echo openssl-devel ;;
    lib*-dev) package=${1#lib} && echo "${package%-dev}-devel" ;;
    *-dev) echo "${1%-dev}-devel" ;;
    openmpi-bin) echo openmpi ;;
    openssh-client) echo openssh-clients ;;
    pkg-config) echo pkgconf-pkg-config ;;
    procps) echo procps-ng ;;
    python3-venv) ;; # part of python3
    iproute2) echo iproute ;;
    shellcheck) echo ShellCheck ;;
    xz-utils) echo xz ;;
    *) echo "$1" ;;
  esac
}

# dnf_install PACKAGE...: installs packages, given by Debian's names.
dnf_install() {
  local package name missing=() unavailable=()
  for package in "$@"; do
    name=$(dnf_name "$package")
    # Amazon Linux has curl-minimal; a package named curl would replace it.
    if [[ -z $name ]] || rpm -q "$name" >/dev/null 2>&1 || { [[ $name == curl ]] && command -v curl >/dev/null; }; then continue; fi
    missing+=("$name")
  done
  ((${#missing[@]})) || return 0
  if ((EUID != 0)) && ! command -v sudo >/dev/null; then
    say "not root and no sudo, so these packages are not installed: ${missing[*]}"
    return 0
  fi
  say "installing ${missing[*]}"
  as_root dnf install -y --setopt=strict=0 --setopt=install_weak_deps=0 "${missing[@]}" >/dev/null 2>&1 ||
    say "dnf install failed; continuing with the installed packages"
  for name in "${missing[@]}"; do rpm -q "$name" >/dev/null 2>&1 || unavailable+=("$name"); done
  ((${#unavailable[@]} == 0)) || say "not available here: ${unavailable[*]}"
}

# install PACKAGE...: installs all missing packages at once, with apt-get or dnf. A package that is not available is
# reported in one line and is not an error.
install() {
  local package missing=() available=() unavailable=()
  if ! command -v apt-get >/dev/null; then
    if command -v dnf >/dev/null; then
      dnf_install "$@"
    else
      say "neither apt-get nor dnf is available; these packages must be installed already: $*"
    fi
    return 0
  fi
  for package in "$@"; do is_installed "$package" || missing+=("$package"); done
  ((${#missing[@]})) || return 0
  if ((EUID != 0)) && ! command -v sudo >/dev/null; then
    say "not root and no sudo, so these packages are not installed: ${missing[*]}"
    return 0
  fi
  say "installing ${missing[*]}"
  as_root apt-get update -o Acquire::http::Timeout=20 -o Acquire::Retries=2 >/dev/null 2>&1 ||
    say "apt-get update failed; continuing with the existing package lists"
  for package in "${missing[@]}"; do
    if [[ $(LC_ALL=C apt-cache policy "$package" 2>/dev/null) =~ Candidate:\ [^\(] ]]; then
      available+=("$package")
    else
      unavailable+=("$package")
    fi
  done
  if ((${#available[@]})) && ! apt_install "${available[@]}" >/dev/null 2>&1; then
    # One package that fails must not stop the others.
    for package in "${available[@]}"; do
      apt_install "$package" >/dev/null 2>&1 || unavailable+=("$package")
    done
  fi
  ((${#unavailable[@]} == 0)) || say "not available here: ${unavailable[*]}"
}

# configure OPTION...: configures a Release build in the folder build.
configure() {
  local generator=()
  if [[ ! -f $root/build/CMakeCache.txt ]] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
  cmake -S "$root" -B "$root/build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release "$@"
}
