# SPDX-License-Identifier: MIT
# Finds CUDA's headers and runtime: in toolkits, also in those that only nvcc's place names, and in packages of pip. run.sh
# sources this file.
# shellcheck shell=bash

# Toolkits that are searched after $CUDA_HOME, $CUDA_PATH and nvcc's own, and before pip's packages; tests set others.
toolkits=(/usr/local/cuda /opt/cuda)
system_folder=/usr

# Lists the folders of pip's packages nvidia-*: .../site-packages/nvidia/cu13, .../nvidia/cudnn.
pip_folders=()
find_pip_folders() {
  local python=$1
  [[ -n $python ]] || return 0
  mapfile -t pip_folders < <("$python" - <<'PYTHON' 2>/dev/null
import glob, os, sys
for p in sys.path:
    for d in sorted(glob.glob(os.path.join(p, "nvidia", "*"))):
        if os.path.isdir(d):
            print(d)
PYTHON
  )
}

# Lists the folders that may hold include/ and a folder of libraries, the preferred ones first.
cuda_roots() {
  local d nvcc
  nvcc=$(command -v nvcc || true)
  [[ -z $nvcc ]] || nvcc=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
  for d in "${CUDA_HOME:-}" "${CUDA_PATH:-}" "$nvcc" "${toolkits[@]}" ${pip_folders[@]+"${pip_folders[@]}"} "$system_folder"; do
    [[ -n $d && -d $d ]] && echo "$d"
  done
  return 0
}

# header_folder NAME [ROOT]: prints the include folder that holds the header; ROOT is searched first.
header_folder() {
  local d include
  while read -r d; do
    for include in "$d/include" "$d/targets/$(uname -m)-linux/include"; do
      [[ -f $include/$1 ]] && { echo "$include"; return 0; }
    done
  done < <([[ -z ${2:-} ]] || echo "$2"; cuda_roots)
  return 1
}

# runtime_library ROOT: prints the file of CUDA's runtime in a folder: the static library, or the shared one, which is what
# some packages of pip have.
runtime_library() {
  local lib file
  for lib in "$1/lib64" "$1/lib" "$1/targets/$(uname -m)-linux/lib" "$1/lib/$(uname -m)-linux-gnu"; do
    for file in "$lib"/libcudart_static.a "$lib"/libcudart.so "$lib"/libcudart.so.*; do
      [[ -f $file ]] && { echo "$file"; return 0; }
    done
  done
  return 1
}

# Prints the arguments that tell CMake where CUDA is, one a line. The runtime's header and library come from one folder,
# because those of two versions do not fit. Fails and says what was searched if it is missing.
cuda_arguments() {
  local root chosen="" library="" include part folder
  while read -r root; do
    include=$(header_folder cuda_runtime_api.h "$root") || break
    case $include in "$root/include" | "$root"/targets/*) ;; *) continue ;; esac
    library=$(runtime_library "$root") && chosen=$root && break
  done < <(cuda_roots)
  if [[ -z $chosen ]]; then
    echo "no folder has both cuda_runtime_api.h and libcudart; searched: $(cuda_roots | tr '\n' ' ')" >&2
    return 1
  fi
  echo "-DCUDAdnn_INCLUDE_DIR=$include"
  echo "-DCUDAdnn_LIBRARY=$library"
  for part in nvrtc cublasLt cudnn; do
    folder=$(header_folder $part.h "$chosen") && echo "-DCUDAdnn_${part}_INCLUDE_DIR=$folder"
  done
  folder=$(header_folder nccl.h "$chosen") && echo "-DNCCL_INCLUDE_DIR=$folder"
  # In packages of pip the runtime's header includes files of another package.
  if [[ ! -f $include/crt/host_defines.h ]] && folder=$(header_folder crt/host_defines.h "$chosen"); then
    echo "-DCMAKE_CXX_FLAGS=-isystem $folder"
  fi
  return 0
}

# tool NAME: prints the path of a program of the toolkit, on PATH or in a toolkit's bin.
tool() {
  local d
  command -v "$1" && return 0
  while read -r d; do
    [[ -x $d/bin/$1 ]] && { echo "$d/bin/$1"; return 0; }
  done < <(cuda_roots)
  return 1
}
