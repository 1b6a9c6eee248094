# SPDX-License-Identifier: MIT
"""Finds cuobjdump and nvdisasm, which read a kernel's machine code, in the CUDA toolkit or in a pinned wheel
of PyPI."""
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# The wheel contains NVIDIA's tools. Nothing else in it is used.
WHEEL = "triton==3.5.0"
TOOLS = ("cuobjdump", "nvdisasm")


def folder() -> Path:
    """Returns a folder with both tools. Raises a LookupError with the reason if they are not available."""
    for place in (*os.environ.get("PATH", "").split(os.pathsep), "/usr/local/cuda/bin"):
        if place and all(os.access(Path(place) / t, os.X_OK) for t in TOOLS):
            return Path(place)
    kept = Path(os.environ.get("TUTTI_BUILD_DIR", "build")) / "tests" / "tools" / WHEEL
    if not all((kept / t).is_file() for t in TOOLS):
        _download(kept)
    return kept


def _download(to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to) as work:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", work,
               "--python-version", "3.11", "--platform", "manylinux_2_28_x86_64", "--timeout", "20", WHEEL]
        try:
            done = subprocess.run(pip, capture_output=True, text=True, timeout=180, check=False)
        except (OSError, subprocess.TimeoutExpired) as e:
            raise LookupError(f"{WHEEL} from PyPI: {e}") from e
        wheels = list(Path(work).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            raise LookupError(f"{WHEEL} from PyPI: {(done.stderr.strip().splitlines() or ['nothing came'])[-1]}")
        with zipfile.ZipFile(wheels[0]) as z:
            for tool in TOOLS:
                new = Path(work) / tool
                with z.open(f"triton/backends/nvidia/bin/{tool}") as source, open(new, "wb") as target:
                    shutil.copyfileobj(source, target)
                new.chmod(0o755)
                new.replace(to / tool)
