# SPDX-License-Identifier: MIT
# The tests of this folder source this file after `set -euo pipefail`. It makes a scratch folder $work and defines
# common functions.
# shellcheck shell=bash
: "${TUTTI_SOURCE_DIR:?}" "${TUTTI_BUILD_DIR:?}"
export CXX=${TUTTI_CXX:-c++}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
# The compiler cache must ignore the name of $work, which differs in each run.
export CCACHE_BASEDIR=$work
# Object files that the tests of this folder share, see compile_once.sh.
export COMPILED_ONCE=$TUTTI_BUILD_DIR/tests/compiled_once

fail() {
  echo "$*"
  exit 1
}

# names_folder FOLDER FILE...: prints the files that contain FOLDER as a path of its own. Finds nothing if FOLDER is directly
# below the root, because texts and programs name /src or /tutti for other reasons.
names_folder() {
  local folder
  [[ $1 == /*/* ]] || return 1
  folder=$(printf %s "$1" | sed 's/[].[*^$+?(){}|\\]/\\&/g')
  shift
  LC_ALL=C grep -arlE "(^|[^A-Za-z0-9_./-])$folder([^A-Za-z0-9_.-]|$)" "$@"
}

# Prints the components with an installed library, separated by ';'.
components() {
  local component found=()
  for component in "$TUTTI_BUILD_DIR"/share/cmake/tutti/tutti-*-targets.cmake; do
    component=$(basename "$component" -targets.cmake)
    component=${component#tutti-}
    case $component in
      eigen) [[ -d /usr/include/eigen3 ]] || continue ;;
      onednn) [[ -f /usr/include/oneapi/dnnl/dnnl.hpp ]] || continue ;;
      mpi) command -v mpicxx >/dev/null || continue ;;
      stb) [[ -f /usr/include/stb/stb_image.h ]] || continue ;;
      turbojpeg) [[ -f /usr/include/jpeglib.h ]] || continue ;;
      gloo) [[ -f /usr/include/gloo/transport/tcp/device.h ]] || continue ;;
      openssl) [[ -f /usr/include/openssl/ssl.h ]] || continue ;;
      zeromq) [[ -f /usr/include/zmq.h ]] || continue ;;
      *) continue ;;
    esac
    found+=("$component")
  done
  local IFS=';'
  echo "${found[*]}"
}

# headers COMPONENTS: prints each header of tutti that needs no libraries except those of the components, separated by
# ';'.
headers() {
  (cd "$TUTTI_SOURCE_DIR/include" && find tutti -name '*.hpp' | sort)
  local component
  for component in ${1//;/ }; do
    (cd "$TUTTI_BUILD_DIR/include" && find -L "tutti/backends/$component" -name '*.hpp' | sort)
  done
  (cd "$TUTTI_BUILD_DIR/include" && find -L tutti/datasets -name '*.hpp' | sort)
}

# built_libraries: prints the paths of the build's libraries with tutti's large functions, in the order for the linker, one a
# line. Prints nothing if the build has none, or has sanitizers.
built_libraries() {
  local component
  [[ -z ${TUTTI_SANITIZE:-} && -f $TUTTI_BUILD_DIR/libtutti_compiled_core.a ]] || return 0
  for component in onednn eigen core; do
    [[ ! -f $TUTTI_BUILD_DIR/libtutti_compiled_$component.a ]] || echo "$TUTTI_BUILD_DIR/libtutti_compiled_$component.a"
  done
}

# downstream BUILD_DIR OPTION...: configures, builds and runs examples/downstream with each component. The build is not
# optimised, and takes tutti's large functions from the libraries of the build, because finding and linking do not
# depend on them. test_compilers.sh compiles them in the program, and test_compiled.sh in each other way.
downstream() {
  local build=$1 libraries taken=()
  shift
  mapfile -t libraries < <(built_libraries)
  if ((${#libraries[@]})) && [[ " $*" != *" DOWNSTREAM_"*=ON* ]]; then
    {
      echo "add_compile_definitions(TUTTI_SEPARATE_COMPILATION)"
      printf 'link_libraries("%s")\n' "${libraries[@]}"
    } >"$work/taken.cmake"
    taken=(-D "CMAKE_PROJECT_downstream_INCLUDE=$work/taken.cmake")
  fi
  if ! { cmake -S "$TUTTI_SOURCE_DIR/examples/downstream" -B "$build" -D CMAKE_BUILD_TYPE=Release -D CMAKE_CXX_FLAGS_RELEASE=-O0 \
    -D "CMAKE_CXX_COMPILER_LAUNCHER=bash;$TUTTI_SOURCE_DIR/tests/packaging/compile_once.sh" -D "DOWNSTREAM_COMPONENTS=$(components)" \
    "${taken[@]}" "$@" && cmake --build "$build" --parallel 2; } >"$work/log" 2>&1; then
    cat "$work/log"
    fail "the downstream project does not build"
  fi
  "$build/downstream" || fail "the downstream program fails"
}

# install_moved PREFIX: makes an installation of tutti that was moved to another folder, like a package that is unpacked
# elsewhere. Under ctest it copies the installation of test_stage.sh.
install_moved() {
  if [[ -n ${STAGED_INSTALL:-} && -f $STAGED_INSTALL/complete ]]; then
    cp -a "$STAGED_INSTALL/prefix" "$1"
    return
  fi
  cmake --install "$TUTTI_BUILD_DIR" --prefix "$work/first place" >/dev/null
  mv "$work/first place" "$1"
}
