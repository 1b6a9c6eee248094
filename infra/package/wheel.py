#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes a wheel of the programs, which pip installs: no compiler, no package of the system and no other wheel is needed.

  wheel.py [--target PROCESSOR] [--out FOLDER] [--build DIR [--native] [--archive FILE]] [--jobs N]

--target       x86_64 or aarch64, the processor of the programs, see make_package.sh                  this machine's
--out FOLDER   the wheel's folder                                                                the current folder
--build DIR    takes the programs of this build. If they link Open MPI, the wheel brings it. Without the option they are
               built without MPI, in build/package/wheel or build/package/aarch64/wheel
--native       allows a build for the processors of this machine (TUTTI_EIGEN_NATIVE); the programs then ask for their features
--archive FILE takes an archive that make_package.sh has made of this build, and saves its time
--jobs N       compilers at a time                                                               all processors

The wheel has the programs of PROGRAMS with their libraries, but not the C library: the tag names the oldest version that the
programs and libraries need, manylinux_2_36_x86_64 if they are built on Debian 12. The tag of aarch64 is linux_aarch64, because the
programs were never run on an ARM processor: pip installs such a wheel with every C library, PyPI refuses it, and its programs check the
C library when they start. The wheel has no Python module. Equal input gives equal bytes.
"""
import argparse
import base64
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# These are one file, lib/tutti/bin/tutti-programs: most of their code is the same.
MERGED = ("train_cifar10", "train_imagenet", "tutti-train", "tutti-predict", "tutti-export")
PROGRAMS = ("train_cifar10", "train_imagenet", "tutti-train", "tutti-launch", "tutti-predict", "tutti-report", "tutti-export", "tutti-data",
            "tutti-plan", "prepare-data")
# Folders of the archive's share/tutti that the programs read.
DATA = ("plan", "bootstrap", "datasets", "scripts")
LOADERS = {"x86_64": b"/lib64/ld-linux-x86-64.so.2", "aarch64": b"/lib/ld-linux-aarch64.so.1"}
MOST_BYTES = 25_000_000
MOST_BYTES_WITH_MPI = 28_000_000  # if a build of yours links Open MPI, which then comes with the wheel
# Features of a processor for which compilers have options; kernels and libraries choose theirs when they run.
FEATURES = re.compile(r"ssse3|sse4_[12]|avx\w*|fma|bmi[12]|f16c|movbe|popcnt|abm|asimd\w*|sve\w*|bf16|i8mm|atomics")

# A program of the wheel is this script, next to Python's: it names what the machine lacks, which the loader would not do.
SCRIPT = """#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs {program} of tutti's wheel.
here=$(dirname "$(readlink -f "$0")")
program=${{here%/*}}/lib/tutti/bin/{file}
fail() {{
  printf '%s: [%s] expected %s, got %s. hint: %s.\\n' {program} "$1" "$2" "$3" "$4" >&2
  exit 4
}}
machine=$(uname -m)
[ "$machine" = {machine} ] || fail processor {machine} "$machine" 'build tutti from its sources on this machine'
{features}[ -x "$program" ] || fail installation "$program" 'no such program' 'pip install --force-reinstall tutti'
{check}exec "$program" {name}"$@"
"""
CHECK = """c=$(getconf GNU_LIBC_VERSION 2>/dev/null)
case $c in
  glibc\\ *) ;;
  *) fail 'C library' 'glibc {c} or later' "${{c:-another one}}" 'take the archive of make_package.sh, which brings its C library' ;;
esac
c=${{c#glibc }}
major=${{c%%.*}} minor=${{c#*.}}
minor=${{minor%%.*}}
if [ "$major" -lt {major} ] || {{ [ "$major" -eq {major} ] && [ "$minor" -lt {minor} ]; }}; then
  fail 'C library' 'glibc {c} or later' "$c" 'take the archive of make_package.sh, which brings its C library'
fi
"""
CHECK_FEATURES = """has=" $(sed -n '/^\\(flags\\|Features\\)/{{s/.*: //;p;q;}}' /proc/cpuinfo 2>/dev/null) "
for feature in {features}; do
  case $has in
    '  ' | *" $feature "*) ;; # without /proc nothing is known
    *) fail processor "one with $feature" 'one without it' 'these programs are compiled for another processor: take a wheel for all' ;;
  esac
done
"""


def fail(code, where, expected, got, hint=""):
    sys.stderr.write(f"wheel.py: [{where}] expected {expected}, got {got}.{f' hint: {hint}.' if hint else ''}\n")
    sys.exit(code)


def run(*argv, **options):
    done = subprocess.run([str(a) for a in argv], text=True, stdin=subprocess.DEVNULL, **options)
    if done.returncode:
        fail(1, Path(str(argv[0])).name, "success", f"status {done.returncode}")
    return done.stdout


def source_date():
    """Returns the time of all files. It has the rule of cmake/source_date.cmake."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not given and (ROOT / ".git").exists():
        given = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%ct"], text=True, capture_output=True, check=False).stdout.strip()
    if given and not given.isdigit():
        fail(2, "SOURCE_DATE_EPOCH", "seconds since 1970", given)
    return max(int(given or 0), 315532800)  # the earliest time of a zip file


def build_programs(target, jobs):
    build = ROOT / "build" / "package" / ("wheel" if target == platform.machine() else f"{target}/wheel")
    run(ROOT / "infra/package/configure.sh", "--target", target, "--build", build, "-DCMAKE_DISABLE_FIND_PACKAGE_MPIC=ON", stdout=sys.stderr)
    # Targets by name: a build of all examples takes several times as long.
    run("cmake", "--build", build, "--parallel", jobs, "--target", *MERGED, "tutti-programs", "tutti-launch", "tutti-report", "tutti-data",
        "tutti-check-audit", "generate-trainer", stdout=sys.stderr)
    return build


def needed_c_library(files):
    """Returns the newest version of glibc's symbols that the files need."""
    newest = (2, 17)
    for path in files:
        asked = re.findall(r"\bName: GLIBC_(\d+)\.(\d+)", run("readelf", "-VW", path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
        newest = max([newest, *((int(a), int(b)) for a, b in asked)])
    return newest


def is_elf(path):
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def use_loader_of_host(top, loader):
    """Writes the host's loader into the programs, as setup.sh --c-library host does, and removes the archive's C library."""
    about = dict(line.split(" ", 1) for line in (top / "share/tutti/package/about").read_text().splitlines())
    room = int(about["room"])
    for line in (top / "share/tutti/package/interpreters").read_text().splitlines():
        at, name = line.split(" ", 1)
        with (top / name).open("r+b") as file:
            file.seek(int(at))
            file.write(loader.ljust(room + 1, b"\0"))
    shutil.rmtree(top / "lib/tutti/c")


def merge(top, build, target):
    """Puts tutti-programs in place of MERGED, with their interpreter and search path."""
    if not (build / "tools" / "tutti-programs").is_file():
        run("cmake", "--build", build, "--target", "tutti-programs", stdout=sys.stderr)
    of = top / "bin" / MERGED[0]
    search = run("patchelf", "--print-rpath", of, stdout=subprocess.PIPE).strip()
    merged = top / "bin" / "tutti-programs"
    shutil.copy2(build / "tools" / "tutti-programs", merged)
    run("strip" if target == platform.machine() else f"{target}-linux-gnu-strip", "--strip-unneeded", merged)
    run("patchelf", "--set-interpreter", LOADERS[target].decode(), merged)
    run("patchelf", "--force-rpath", "--set-rpath", search, merged)
    for name in MERGED:
        (top / "bin" / name).unlink()


def select(top):
    """Leaves what the programs need. A wheel has no links, so each library becomes one file with the name that programs ask for."""
    for path in sorted((top / "bin").iterdir()):
        if path.name not in (*PROGRAMS, "tutti-programs", "mpirun"):
            path.unlink()
    for path in sorted((top / "share/tutti").iterdir()):
        if path.name not in DATA:
            shutil.rmtree(path)
    (top / "setup.sh").unlink()
    links = [path for path in top.rglob("*") if path.is_symlink()]
    real = {path: path.resolve() for path in links}
    wanted = {name for path in top.rglob("*") if path.is_file() and not path.is_symlink() and is_elf(path)
              for name in re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-dW", path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))}
    for path in links:
        path.unlink()
        if path.name in wanted or path.parent == top / "bin":
            if path.name == "mpirun":  # finds its folder by its own path
                path.write_text('#!/bin/sh\nexec "$(dirname "$(readlink -f "$0")")/../lib/openmpi/bin/mpirun" "$@"\n')
                path.chmod(0o755)
            else:
                shutil.copy2(real[path], path)
    for path in set(real.values()):
        if path.is_relative_to(top / "lib/tutti") and path.exists() and path.name not in wanted:
            path.unlink()


def script(program, path, target, c_library, features):
    elf = is_elf(path)
    check = CHECK.format(c="%d.%d" % c_library, major=c_library[0], minor=c_library[1]) if elf else ""
    asked = CHECK_FEATURES.format(features=" ".join(features)) if elf and features else ""
    return SCRIPT.format(program=program, machine=target, file=path.name, name=f"{program} " if program in MERGED else "", check=check, features=asked)


def metadata(version, target, c_library, mpi):
    readme = (f"The training programs of tutti for Linux on {target.replace('_', '-')} with glibc {'%d.%d' % c_library} or later: {', '.join(PROGRAMS)}. "
              f"`train_cifar10 --dataset synthetic` trains at once. {mpi} The wheel has no Python module. NOTICE and licenses/ name what it bundles.")
    return ("Metadata-Version: 2.4\nName: tutti\n" f"Version: {version}\n" "Summary: Trains image classifiers, alone or as many processes\n"
            "License-Expression: MIT\nLicense-File: LICENSE\nLicense-File: NOTICE\nRequires-Python: >=3.6\n"
            "Classifier: Operating System :: POSIX :: Linux\nDescription-Content-Type: text/markdown\n\n" + readme + "\n")


def write_wheel(path, files, epoch):
    """Writes {name: (bytes, executable)} with a RECORD, sorted, with one time and fixed modes."""
    info = next(name for name in files if name.endswith(".dist-info/WHEEL"))[:-len("WHEEL")]
    record = ""
    for name in sorted(files):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name][0]).digest()).rstrip(b"=").decode()
        quoted = '"' + name.replace('"', '""') + '"' if re.search(r'[",]', name) else name
        record += f"{quoted},sha256={digest},{len(files[name][0])}\n"
    record += f"{info}RECORD,,\n"
    names = sorted(files, key=lambda name: (name.startswith(info), name))  # dist-info last, as the format recommends
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name in [*names, info + "RECORD"]:
            data, executable = files.get(name, (record.encode(), False))
            entry = zipfile.ZipInfo(name, time.gmtime(epoch)[:6])
            entry.create_system, entry.compress_type = 3, zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            wheel.writestr(entry, data, compresslevel=9)


def main():
    a = argparse.ArgumentParser(prog="wheel.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--target", default=platform.machine())
    a.add_argument("--out", type=Path, default=Path("."))
    a.add_argument("--build", type=Path)
    a.add_argument("--native", action="store_true")
    a.add_argument("--archive", type=Path)
    a.add_argument("--jobs", type=int, default=os.cpu_count())
    o = a.parse_args()
    if o.target not in LOADERS:
        fail(2, "--target", " or ".join(LOADERS), o.target)
    if o.native and o.target != platform.machine():
        fail(2, "--native", "a wheel for the processor of this machine", f"--target {o.target}")
    if o.build and not (o.build / "CMakeCache.txt").is_file():
        fail(2, "--build", "a folder that CMake has configured", o.build)
    if not o.out.is_dir():
        fail(2, "--out", "a folder", o.out)
    if o.archive and not (o.build and o.archive.is_file()):
        fail(2, "--archive", "an archive of make_package.sh, and --build", o.archive)
    epoch = source_date()
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch)
    build = o.build or build_programs(o.target, o.jobs)
    version = re.search(r'version = "([^"]+)"', (ROOT / "include/tutti/version.hpp").read_text())[1]
    with tempfile.TemporaryDirectory() as work:
        archive = o.archive or Path(work, "tutti.tar.gz")
        if not o.archive:
            run(ROOT / "infra/package/make_package.sh", "--target", o.target, "--build", build, *(["--native"] if o.native else []), "--out", archive, stdout=sys.stderr)
        with tarfile.open(archive) as tar:
            # By default Python 3.14 refuses links that lead out of the folder; the archive is our own.
            tar.extractall(work, **({"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}))
        top = Path(work, "tutti")
        about = (top / "share/tutti/package/about").read_text()
        if f"\nprocessor {o.target}\n" not in about:
            fail(2, "--archive", f"an archive for {o.target}", o.archive, "give --target the processor of the archive")
        use_loader_of_host(top, LOADERS[o.target])
        merge(top, build, o.target)
        select(top)
        c_library = needed_c_library([path for path in top.rglob("*") if path.is_file() and is_elf(path)])
        cache = (build / "CMakeCache.txt").read_text()
        native = re.search(r"^TUTTI_EIGEN_NATIVE:BOOL=(ON|1|TRUE|YES)$", cache, re.M)
        sysroot = re.search(r"^TUTTI_SYSROOT:INTERNAL=(.+)$", cache, re.M)
        flags = re.search(r"^(?:flags|Features)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
        features = sorted(f for f in flags[1].split() if FEATURES.fullmatch(f)) if native and flags else []
        mpi = "Open MPI comes with it." if (top / "lib/openmpi").exists() else "`--strategy mpi` is left out: the programs are built without MPI."
        stem = f"tutti-{version}"
        info, data = f"{stem}.dist-info/", f"{stem}.data/data/"
        tag = "py3-none-manylinux_%d_%d_x86_64" % c_library if o.target == "x86_64" else f"py3-none-linux_{o.target}"
        run(sys.executable, ROOT / "cmake/bill_of_materials.py", "--dependencies", build / "dependencies.tsv", "--version", version, "--bundled",
            top / "lib", "--root", top, *(["--sysroot", sysroot[1]] if sysroot else []), "--out", Path(work, "bill"))
        files = {info + "METADATA": (metadata(version, o.target, c_library, mpi).encode(), False),
                 info + "WHEEL": (f"Wheel-Version: 1.0\nGenerator: tutti ({version})\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), False),
                 info + "sboms/tutti.spdx.json": (Path(work, "bill").read_bytes(), False)}
        for name in ("LICENSE", "NOTICE"):
            files[info + "licenses/" + name] = ((ROOT / name).read_bytes(), False)
        doc = top / "share/doc/tutti"
        for path in sorted((doc / "licences").glob("*.txt")):
            files[f"{info}licenses/bundled/{path.name}"] = (path.read_bytes(), False)
        for program in PROGRAMS:
            path = top / "bin" / ("tutti-programs" if program in MERGED else program)
            if not path.is_file():
                fail(1, "--build", f"the program {program}", "none", "build the programs of wheel.py first")
            files[f"{stem}.data/scripts/{program}"] = (script(program, path, o.target, c_library, features).encode(), True)
        shutil.rmtree(top / "share/doc")
        for path in sorted(top.rglob("*")):
            if path.is_file():
                files[f"{data}lib/tutti/{path.relative_to(top).as_posix()}"] = (path.read_bytes(), os.access(path, os.X_OK))
        out = o.out / f"{stem}-{tag}.whl"
        write_wheel(out, files, epoch)
    size = out.stat().st_size
    print(f"wheel.py: {out}: {size / 1e6:.1f} MB, {len(PROGRAMS)} programs, glibc {'%d.%d' % c_library} or later. {mpi}", file=sys.stderr)
    most = MOST_BYTES_WITH_MPI if mpi.startswith("Open MPI comes") else MOST_BYTES
    if size > most:
        fail(1, out.name, f"at most {most / 1e6:g} MB", f"{size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
