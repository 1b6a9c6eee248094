# SPDX-License-Identifier: MIT
"""Runs the measured programs and reads their results."""
import contextlib
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import time

from environment import ROOT


def say(text):
    print(text, file=sys.stderr, flush=True)


class Failed(Exception):
    """A program has printed no numbers."""


def start_with(nice):
    """Runs in a child before its program: gives it a new session and a priority. Linux weighs sessions against
    each other, and nice values only within one session."""
    os.setsid()
    if nice is not None:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as file:
            file.write(str(nice))


def last_line(out):
    """Returns the numbers in the last line, which is JSON, of a program's output."""
    found = json.loads(out.strip().splitlines()[-1])
    float(found["images_per_second"]), float(found["images_per_cpu_second"]), float(found["peak_rss_mib"])
    return found


def run(command, more=None, timeout=900, nice=None, read=last_line):
    """Runs a program. Returns the result of `read` for its output, and the seconds that it took."""
    started = subprocess.Popen([str(c) for c in command], env={**os.environ, **(more or {})}, text=True, cwd=ROOT,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=lambda: start_with(nice))
    began = time.monotonic()
    try:
        out, err = started.communicate(timeout=timeout)
    except BaseException as e:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.communicate()
        if isinstance(e, subprocess.TimeoutExpired):
            raise Failed(f"{shlex.join(map(str, command))}: no result in {timeout} s") from None
        raise
    with contextlib.suppress(ValueError, KeyError, IndexError, TypeError, OSError):
        if started.returncode == 0:
            return {"seconds": time.monotonic() - began, **read(out)}
    raise Failed(f"{shlex.join(map(str, command))}: status {started.returncode}, {out.strip()[-200:]} {err.strip()[-600:]}")


@contextlib.contextmanager
def competitor(wanted):
    """Runs a process that keeps the first core busy, if wanted."""
    if not wanted:
        yield
        return
    core = min(os.sched_getaffinity(0))
    busy = subprocess.Popen([sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


@contextlib.contextmanager
def locked(path):
    if path is None:
        yield
        return
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
