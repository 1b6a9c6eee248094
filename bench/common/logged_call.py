# SPDX-License-Identifier: MIT
"""Runs a program of a benchmark with its output in a file. Used by recipe_parts.py and fine_tuning.py."""
import subprocess
import sys
import time
from pathlib import Path


def logged_call(words, log, folder=None):
    """Runs a program in a folder, with its output in the file `log`. Returns its seconds. If it fails, ends this process with
    the command and the end of its output."""
    words, log = [str(w) for w in words], Path(log)
    begin = time.monotonic()
    with open(log, "w", encoding="utf-8") as text:
        code = subprocess.run(words, cwd=folder, stdout=text, stderr=subprocess.STDOUT, check=False).returncode
    if code != 0:
        sys.exit(f"{' '.join(words)} ended with {code}:\n{log.read_text(errors='replace')[-2000:]}")
    return time.monotonic() - begin
