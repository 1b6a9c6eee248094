# SPDX-License-Identifier: MIT
"""Prepares the environment of the systems that tutti is compared with: virtual environments with pinned packages, and
mallocs. Also describes the machine."""
import datetime
import glob
import os
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# glibc keeps freed memory. Otherwise it returns the memory of each activation to the system, and must fault it in
# again.
KEEP = {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TOP_PAD_": "67108864"}
LIBRARIES = {"jemalloc": ("libjemalloc.so.2", {"MALLOC_CONF": "background_thread:false,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:-1"}),
             "tcmalloc": ("libtcmalloc_minimal.so.4", {"TCMALLOC_RELEASE_RATE": "0"})}


class Unavailable(Exception):
    """This machine cannot install the system for comparison."""


def folder_of(peer):
    """Returns the folder of the virtual environment of a system for comparison (`peer`)."""
    return Path(os.environ.get(f"{peer.upper()}_VENV", ROOT / "build" / "peers" / peer))


def python_of(peer, say=lambda text: None):
    """Returns the Python of a peer's virtual environment. Makes the environment at the first use and again when the
    pins change."""
    requirements = HERE / "requirements" / f"{peer}.txt"
    folder = folder_of(peer)
    python, ready = folder / "bin" / "python", folder / "ready"
    wanted = requirements.read_text()
    if ready.exists() and ready.read_text() == wanted and python.exists():
        return python
    say(f"installing {requirements.relative_to(ROOT)} into {folder}")
    for step in ([sys.executable, "-m", "venv", "--clear", folder],
                 [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", requirements],
                 [python, "-c", f"import {peer}"]):
        try:
            done = subprocess.run([str(s) for s in step], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        except OSError as e:
            raise Unavailable(f"{requirements.name} cannot be installed on this machine: {e}") from None
        if done.returncode != 0:
            raise Unavailable(f"{requirements.name} cannot be installed on this machine: {done.stdout.strip()[-400:]}")
    ready.write_text(wanted)
    return python


def find_library(name):
    """Returns the path of a shared library, or None if it is not found."""
    for pattern in (f"/usr/lib/*/{name}", f"/usr/lib64/{name}", f"/usr/lib/{name}", f"/usr/local/lib/{name}"):
        found = sorted(glob.glob(pattern))
        if found:
            return found[0]
    return None


def mallocs():
    """Returns {name of a malloc on this machine: its environment variables}, and the names of mallocs that are not
    installed."""
    there, missing = {"glibc": {}, "glibc-keep": dict(KEEP)}, []
    for name, (library, settings) in LIBRARIES.items():
        path = find_library(library)
        if path is None:
            missing.append(name)
        else:
            there[name] = {"LD_PRELOAD": path, **settings}
    return there, missing


def processor():
    """Returns the name of the processor, the number of cores that this process may use, and the processor's matrix
    instructions."""
    name, flags = platform.machine(), set()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() == "flags":
                flags = set(value.split())
    except OSError:
        pass
    what = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in flags]
    return f"{name}, {cores()} cores" + (f", {' '.join(what)}" if what else "")


def conditions(load_before):
    return (f"- {processor()}; load {load_before:.1f} before, {load():.1f} after; "
            f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC")


def cores():
    return len(os.sched_getaffinity(0))


def load():
    return os.getloadavg()[0]
