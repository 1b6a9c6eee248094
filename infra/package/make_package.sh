#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes an archive of the programs that runs on any Linux host with one kind of processor, x86-64 or aarch64. It contains the shared
# libraries, the C library and its loader, and Open MPI. On an aarch64 machine this script was never run.
#   make_package.sh [--target PROCESSOR] [--out FILE] [--build DIR] [--native] [--cuda 12|13 [--wheels DIR]]
# --target      x86_64 or aarch64, the processor of the hosts; default: that of this machine. On x86-64 programs for aarch64 are built
#               with Debian's cross compiler and its arm64 libraries (configure.sh)
# --out FILE    the archive                        tutti-<version>-linux-<processor>.tar.gz, such as linux-x86_64
# --build DIR   takes the programs of this build; without it they are built, in build/package/build or build/package/aarch64/build
# --native      allows a build whose Eigen kernels are compiled for this machine's processor (TUTTI_EIGEN_NATIVE). The
#               archive then runs only on processors of that kind
# --cuda 12|13  adds CUDA's libraries, for hosts that have only an NVIDIA GPU and its driver: NVRTC, cuBLASLt, cuDNN and
#               NCCL, of PyPI's wheels (cuda-12.txt, cuda-13.txt; 1.7 GB to fetch). Programs that are built here use their
#               headers too. 12 is for V100 and newer, 13 for T4 and newer
# --wheels DIR  folder of these wheels; missing ones are downloaded into it            build/package/wheels
# Without --cuda, programs built with CUDA search the host for its libraries, and programs built without it train only on
# processors; the script prints a line about it.
# The archive unpacks to one folder, tutti, and runs unchanged in /opt. For another folder, or to use the host's C library,
# run tutti/setup.sh. This script needs patchelf and Open MPI's programs (Debian: patchelf, openmpi-bin).
set -euo pipefail

me=make_package.sh
# shellcheck source=common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

out='' build='' native=0 built_here=0 cuda='' wheels=$root/build/package/wheels target=$(this_processor)
while (($#)); do
  case $1 in
    --target | --out | --build | --wheels)
      need_value "$1" "${2:-}"
      printf -v "${1#--}" %s "$2"
      shift
      ;;
    --cuda)
      [[ ${2:-} == 12 || ${2:-} == 13 ]] || fail 2 --cuda "12 or 13, the major version of CUDA" "${2:-none}"
      cuda=$2
      shift
      ;;
    --native) native=1 ;;
    -h | --help) print_help && exit 0 ;;
    *) fail 2 arguments "--out FILE, --target PROCESSOR, --build DIR, --native, --cuda 12|13 or --wheels DIR" "$1" ;;
  esac
  shift
done
check_target "$target"
if [[ $target != "$(this_processor)" ]]; then
  [[ -z $cuda ]] || fail 2 --cuda "an archive for the processor of this machine" "--target $target" "make it on a machine with that processor"
  ((!native)) || fail 2 --native "an archive for the processor of this machine" "--target $target"
fi
for program in cmake patchelf readelf tar gzip python3; do
  need_program "$program" "cmake patchelf binutils python3"
done
version=$(version_of_tree)
set_source_date
out=${out:-tutti-$version-linux-$target.tar.gz}
[[ -d $(dirname "$out") && ! -d $out ]] || fail 2 --out "a file in an existing folder" "$out"
out=$(cd "$(dirname "$out")" && pwd)/$(basename "$out")

# Unpacks CUDA's wheels as a toolkit, $toolkit with include and lib, and downloads missing wheels.
unpack_toolkit() {
  mkdir -p "$wheels"
  wheels=$(cd "$wheels" && pwd)
  toolkit=$wheels/cuda-$cuda
  local list=$root/infra/package/cuda-$cuda.txt pin file missing=()
  if cmp -s "$list" "$toolkit/wheels.txt"; then return; fi
  need_program python3 "python3" "to unpack wheels"
  # wheel_of NAME==VERSION: prints the wheel's file, or an empty line if it does not exist.
  wheel_of() {
    local name=${1%%==*}
    compgen -G "$wheels/${name//[-.]/_}-${1#*==}-*.whl" | head -n 1 || true
  }
  while read -r pin; do
    [[ -n $(wheel_of "$pin") ]] || missing+=("$pin")
  done < <(grep -v '^#' "$list")
  if ((${#missing[@]})); then
    say "fetching from PyPI: ${missing[*]}"
    pip=(python3 -m pip)
    if ! "${pip[@]}" --version >/dev/null 2>&1; then
      python3 -m venv "$wheels/venv" >&2 || fail 2 pip "Python's pip or venv" none "Debian: apt-get install python3-venv"
      pip=("$wheels/venv/bin/pip")
    fi
    "${pip[@]}" download -q --disable-pip-version-check --no-deps --only-binary :all: -d "$wheels" "${missing[@]}" >&2 ||
      fail 1 --cuda "wheels from PyPI: ${missing[*]}" "an error of pip" "put them into a folder and give --wheels"
  fi
  rm -rf "$toolkit" "$toolkit.new"
  mkdir -p "$toolkit.new/all" "$toolkit.new/include" "$toolkit.new/lib" "$toolkit.new/licenses"
  while read -r pin; do
    file=$(wheel_of "$pin")
    [[ -n $file ]] || fail 1 --wheels "the wheel of $pin in $wheels" none
    python3 -m zipfile -e "$file" "$toolkit.new/all/${pin%%==*}" || fail 1 "$file" "a wheel" "a file that is not a wheel"
    local folder
    for folder in include lib; do
      # nvidia/cudnn/lib of CUDA 12's wheels, nvidia/cu13/lib of 13's.
      for part in "$toolkit.new/all/${pin%%==*}"/nvidia/*/"$folder"; do
        [[ ! -d $part ]] || cp -alf "$part/." "$toolkit.new/$folder"
      done
    done
    find "$toolkit.new/all/${pin%%==*}" -path '*.dist-info/*' -iname '*licen[sc]e*' -type f \
      -exec cp {} "$toolkit.new/licenses/${pin%%==*}.txt" \;
  done < <(grep -v '^#' "$list")
  rm -rf "$toolkit.new/all"
  cp "$list" "$toolkit.new/wheels.txt"
  mv "$toolkit.new" "$toolkit"
}
if [[ -z $build ]]; then
  build=$root/build/package/build${cuda:+-cuda-$cuda}
  if [[ $target != "$(this_processor)" ]]; then build=$root/build/package/$target/build; fi
  headers=()
  if [[ -n $cuda ]]; then
    unpack_toolkit
    headers=("-DCUDAdnn_INCLUDE_DIR=$toolkit/include" "-DCUDAdnn_nvrtc_INCLUDE_DIR=$toolkit/include"
      "-DCUDAdnn_cublasLt_INCLUDE_DIR=$toolkit/include" "-DCUDAdnn_cudnn_INCLUDE_DIR=$toolkit/include"
      "-DCUDAdnn_LIBRARY=$toolkit/lib/libcudart_static.a" "-DNCCL_INCLUDE_DIR=$toolkit/include")
  fi
  "$root/infra/package/configure.sh" --target "$target" --build "$build" "${headers[@]}"
  built_here=1
fi
[[ -f $build/CMakeCache.txt ]] || fail 2 --build "a folder that CMake has configured" "$build"
if grep -q '^TUTTI_EIGEN_NATIVE:BOOL=\(ON\|1\|TRUE\|YES\)$' "$build/CMakeCache.txt" && ((!native)); then
  fail 2 --build "programs for any $target processor" "$build, configured with TUTTI_EIGEN_NATIVE=ON" \
    "configure it with -DTUTTI_EIGEN_NATIVE=OFF, or give --native"
fi
built_cuda=$(sed -n 's/^TUTTI_BUILT_CUDA:INTERNAL=//p' "$build/CMakeCache.txt")
built_with="without CUDA"
[[ -z $built_cuda ]] || built_with="with CUDA $built_cuda"
if [[ -n $cuda && ${built_cuda%%.*} != "$cuda" ]]; then
  fail 2 --cuda "a build with CUDA $cuda" "$build, configured $built_with" \
    "leave --build out, and the programs are built with CUDA $cuda"
fi
[[ -z $cuda ]] || unpack_toolkit
if [[ -z $built_cuda ]]; then
  trains="trains on processors only, because its programs are built without CUDA: no headers of CUDA and cuDNN were found; --cuda 12 or 13 fetches them"
elif [[ -z $cuda ]]; then
  trains="trains on GPUs of hosts that have CUDA ${built_cuda%%.*}'s NVRTC and cuBLAS, and cuDNN; --cuda ${built_cuda%%.*} brings them along"
else
  trains="trains on GPUs of hosts that have NVIDIA's driver: it brings CUDA $cuda's libraries"
fi
say "the archive $trains"
if ((built_here)); then cmake --build "$build" --parallel "$(nproc)" >&2; fi
find=("$root/infra/package/elf_libraries.py")
if [[ -f $build/tools/tutti-launch ]]; then
  built_for=$("${find[@]}" --processor "$build/tools/tutti-launch") || exit $?
  [[ $built_for == "$target" ]] || fail 2 --build "programs for $target" "programs for $built_for" "give --target $built_for"
fi
# The folder of the libraries that the archive gets: that of this machine, or of a build for another processor.
sysroot=$(sysroot_of "$build") strip=strip
find+=(--root "${sysroot:-/}")
if [[ $target != "$(this_processor)" ]]; then strip=$target-linux-gnu-strip; fi
need_program "$strip" "binutils-${target//_/-}-linux-gnu"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
top=$work/tutti
cmake --install "$build" --prefix "$work/all" >"$work/log" || { cat "$work/log" >&2 && exit 1; }
if grep 'Not installed' "$work/log" >&2; then
  fail 1 --build "all programs" "a build that lacks these" "build train_cifar10, train_imagenet, tutti-launch, tutti-data, tutti-check-audit, tutti-report and generate-trainer"
fi
cmake --install "$build" --prefix "$work/all" --component libraries >"$work/log" || { cat "$work/log" >&2 && exit 1; }
mkdir -p "$top/lib" "$top/share"
cp -a "$work/all/bin" "$top/bin"
cp -a "$work/all/lib/tutti" "$top/lib/tutti"
cp -a "$work/all/share/tutti" "$work/all/share/doc" "$top/share"
rm -rf "$work/all"

# The C library has a folder of its own, so that the host's can replace it.
libraries=$top/lib/tutti c=$top/lib/tutti/c
mkdir "$c"
loader=$("${find[@]}" --loader "$top/bin/tutti-launch")
system=$(dirname "$("${find[@]}" "$top/bin/tutti-launch" | sed -n 's/^libc\.so\.6 //p')")
cp -L "$sysroot$loader" "$c"
for name in libc.so.6 libm.so.6 libmvec.so.1 libpthread.so.0 libdl.so.2 librt.so.1 libutil.so.1 libresolv.so.2 libanl.so.1 \
  libnss_files.so.2 libnss_dns.so.2; do
  [[ ! -e $system/$name ]] || cp -L "$system/$name" "$c"
done
c_version=$(LC_ALL=C grep -aoE -m 1 'GNU C Library .* release version [0-9.]*[0-9]' "$c/libc.so.6" | sed 's/.* //') || true
[[ -n $c_version ]] || fail 1 "C library" "a version" none

# The Open MPI that the programs link: its programs and its plugins for TCP and shared memory. Plugins that bypass the kernel
# (verbs, UCX, libfabric) and those of batch systems are left out: they depend on the host.
mpi=$top/lib/openmpi
declare -a elf=()
needs_mpi=$(find "$libraries" -name 'libmpi.so.*' | head -n 1)
if [[ -n $needs_mpi ]]; then
  if [[ -n $sysroot ]]; then
    # Debian's folders.
    orterun=$sysroot/usr/bin/orterun orted=$sysroot/usr/bin/orted
    of_mpi() {
      case $1 in
        pkgdatadir) echo "$sysroot/usr/share/openmpi" ;;
        pkglibdir) compgen -G "$sysroot/usr/lib/$target-linux-gnu/openmpi/lib/openmpi[0-9]*" ;;
      esac
    }
  else
    orterun=$(readlink -f "$(command -v mpirun || true)")
    orted=$(readlink -f "$(command -v orted || true)")
    of_mpi() { ompi_info --parsable --path "$1" | sed -n "s/^path:$1://p"; }
  fi
  [[ -x $orterun && -x $orted ]] || fail 2 mpirun "Open MPI's mpirun and orted on PATH" none "Debian: apt-get install openmpi-bin"
  mkdir -p "$mpi/bin" "$mpi/libexec" "$mpi/lib/openmpi" "$mpi/lib/pmix" "$mpi/share" "$mpi/etc"
  cp "$orterun" "$mpi/libexec/mpirun"
  cp "$orted" "$mpi/libexec/orted"
  cp -rL "$(of_mpi pkgdatadir)" "$mpi/share/openmpi"
  # Replaces Debian's settings, which name plugins that the archive lacks, and keeps the host's settings out.
  printf '# Open MPI of this archive reads its settings here.\nbtl = self,vader,tcp\n' >"$mpi/etc/openmpi-mca-params.conf"
  : >"$mpi/etc/openmpi-default-hostfile"
  for plugin in "$(of_mpi pkglibdir)"/mca_*.so; do
    case $(basename "$plugin") in
      *ucx* | *ofi* | *psm* | *openib* | *slurm* | *flux* | *gridengine* | *simulator* | *monitoring*) continue ;;
      # Plugins of OpenSHMEM's library, which no program here uses.
      mca_atomic_* | mca_memheap_* | mca_scoll_* | mca_spml_* | mca_sshmem_*) continue ;;
    esac
    cp -L "$plugin" "$mpi/lib/openmpi"
  done
  pmix=$({ "${find[@]}" "$(of_mpi pkglibdir)"/mca_pmix_*.so || true; } | sed -n 's/^libpmix\.so\.[0-9]* //p')
  if [[ -n $pmix ]]; then
    for plugin in "$(dirname "$pmix")"/pmix/*.so; do
      [[ ! -e $plugin || $plugin == *slurm* ]] || cp -L "$plugin" "$mpi/lib/pmix"
    done
  fi
  for name in mpirun orted; do
    cat >"$mpi/bin/$name" <<'WRAPPER'
#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs the Open MPI of this archive with its folder set, also if another host starts it.
here=$(dirname "$(readlink -f "$0")")
prefix=${here%/bin}
export OPAL_PREFIX="$prefix" OPAL_BINDIR="$prefix/bin" OPAL_LIBDIR="$prefix/lib" OPAL_PKGLIBDIR="$prefix/lib/openmpi" \
  OPAL_DATADIR="$prefix/share" OPAL_PKGDATADIR="$prefix/share/openmpi" OPAL_SYSCONFDIR="$prefix/etc" \
  PMIX_INSTALL_PREFIX="$prefix" PMIX_LIBDIR="$prefix/lib" PMIX_PKGLIBDIR="$prefix/lib/pmix"
WRAPPER
  done
  # shellcheck disable=SC2016 # expanded when it runs
  printf 'exec "$prefix/libexec/mpirun" --prefix "$prefix" "$@"\n' >>"$mpi/bin/mpirun"
  # shellcheck disable=SC2016
  printf 'exec "$prefix/libexec/orted" "$@"\n' >>"$mpi/bin/orted"
  chmod 755 "$mpi/bin/mpirun" "$mpi/bin/orted"
  ln -s ../lib/openmpi/bin/mpirun "$top/bin/mpirun"
  # Copies libraries of these files that the programs do not use.
  while read -r name path; do
    [[ ! -e $libraries/$name && ! -e $c/$name ]] || continue
    cp -L "$path" "$libraries/$name"
  done < <("${find[@]}" "$mpi"/libexec/* "$mpi"/lib/*/*.so)
fi

# NVIDIA's CUDA libraries, unchanged, in a folder of their own, which programs search first. Libraries that they open by name
# are in the same folder, because it is their own search path.
if [[ -n $cuda ]]; then
  mkdir "$libraries/cuda"
  for pattern in "libnvrtc.so.$cuda" "libnvrtc-builtins.so.$cuda.[0-9]*" "libcublasLt.so.$cuda" 'libcudnn*.so.9' libnccl.so.2; do
    compgen -G "$toolkit/lib/$pattern" >/dev/null || fail 1 --cuda "$pattern in the wheels" none
    compgen -G "$toolkit/lib/$pattern" | xargs -d '\n' cp -L --reflink=auto -t "$libraries/cuda"
  done
  for file in "$libraries"/cuda/*.so*; do
    while read -r name; do
      [[ ! -e $libraries/cuda/$name ]] || continue
      if [[ -e $c/$name ]]; then
        ln -sf "../c/$name" "$libraries/cuda/$name"
      elif [[ -e $libraries/$name ]]; then
        ln -sf "../$name" "$libraries/cuda/$name"
      else
        path=$({ "${find[@]}" --also "$libraries/cuda" "$file" || true; } | sed -n "s/^$name //p")
        [[ -n $path ]] || fail 1 "$(basename "$file")" "its library $name on this machine" none
        cp -L "$path" "$libraries/cuda/$name"
      fi
    done < <(readelf -dW "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  done
  mkdir -p "$top/share/tutti/package/licenses"
  cp "$toolkit"/licenses/* "$top/share/tutti/package/licenses"
  say "CUDA $cuda's libraries take $(du -shL "$libraries/cuda" | cut -f1):$(cd "$libraries/cuda" && find . -type f -size +0 -printf '%s %f\n' |
    sort -rn | awk '{ printf "%s %s %.0f MB", (NR > 1 ? "," : ""), $2, $1 / 1e6 }')"
fi

# Search paths: programs search only the archive; libraries and plugins use the program's paths.
while IFS= read -r -d '' file; do
  [[ -L $file ]] || case $(head -c 4 "$file" | tr -d '\0') in
    $'\177ELF') elf+=("$file") ;;
  esac
done < <(find "$top" -path "$libraries/cuda" -prune -o -type f -print0)
room=256 # characters for the loader's path, for any folder of the archive
for file in "${elf[@]}"; do
  [[ $file != "$c"/* ]] || continue
  chmod u+w "$file"
  "$strip" --strip-unneeded "$file"
  if readelf -lW "$file" | grep -q INTERP; then
    up=$(realpath --relative-to="$(dirname "$file")" "$libraries")
    path=/opt/tutti/lib/tutti/c/$(basename "$loader")
    padding=$(printf '%*s' $((room - ${#path})) '' | tr ' ' /)
    patchelf --set-interpreter "/opt${padding}${path#/opt}" "$file"
    # shellcheck disable=SC2016 # the loader expands it
    patchelf --force-rpath --set-rpath '$ORIGIN/'"$up:"'$ORIGIN/'"$up/c" "$file"
    # The position at which setup.sh writes another interpreter.
    read -r at size < <(readelf -lW "$file" | awk '$1 == "INTERP" { print $2, $5 }')
    ((size == room + 1)) || fail 1 "$file" "an interpreter of $room characters" "$((size - 1))"
    printf '%d %s\n' "$((at))" "${file#"$top"/}" >>"$work/interpreters"
  else
    patchelf --remove-rpath "$file"
  fi
done
install -D -m 644 "$work/interpreters" "$top/share/tutti/package/interpreters"
{
  echo "version $version"
  echo "processor $target"
  echo "c_library $c_version"
  echo "loader $(basename "$loader")"
  echo "loader_folder $(dirname "$loader")"
  echo "room $room"
  echo "cuda ${built_cuda:-none}"
  if [[ -n $cuda ]]; then echo "cuda_libraries own"; else echo "cuda_libraries host"; fi
} >"$top/share/tutti/package/about"
install -m 755 "$root/infra/package/setup.sh" "$top/setup.sh"
# Lists each library, program and plugin that is not tutti's own, as it is in the archive.
rm -rf "$top/share/doc/tutti/licences"
python3 "$root/cmake/bill_of_materials.py" --dependencies "$build/dependencies.tsv" --version "$version" --bundled "$top/lib" --root "$top" \
  ${sysroot:+--sysroot "$sysroot"} --licences "$top/share/doc/tutti/licences" --out "$top/share/doc/tutti/tutti.spdx.json"

write_tar "$work" tutti "$out"
say "$out: $(du -h "$out" | cut -f1), C library $c_version, $(wc -l <"$work/interpreters") programs, ${#elf[@]} programs and libraries"
say "the archive $trains"
