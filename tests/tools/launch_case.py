# SPDX-License-Identifier: MIT
"""Base class for tests of tutti-launch: runs it, and checks that no process or file is left."""
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid
from pathlib import Path

ROOT = Path(os.environ.get("TUTTI_SOURCE_DIR", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build"))
LAUNCH = str(BUILD / "tools" / "tutti-launch")
PROGRESS_RANK = str(BUILD / "tests" / "tools" / "progress_rank")
CONTROL_RANK = str(BUILD / "tests" / "tools" / "control_rank")
ELASTIC_RANK = str(BUILD / "tests" / "tools" / "elastic_rank")


def wait_until(condition, seconds=300):
    """Waits for a true value of condition() and returns it. Fails after a time that is long, because other tests may
    use the processors."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {condition}")


def at_night(test):
    """A decorator for a test of a schedule that the simulation covers, too. It runs if TUTTI_CHECK_ALL is 1, which
    TUTTI_NIGHTLY=1 ./test.sh sets. Otherwise unittest reports it as skipped; the other tests of the file count."""
    return unittest.skipUnless(os.environ.get("TUTTI_CHECK_ALL") == "1", "runs at night (TUTTI_NIGHTLY=1)")(test)


def state(pid):
    """Returns the letter of a process's state, or an empty text if the process has ended or is a zombie."""
    with contextlib.suppress(OSError):
        letter = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return None if letter in "ZX" else letter
    return None


def parent(pid):
    return int(Path(f"/proc/{pid}/status").read_text().split("PPid:")[1].split()[0])


class LaunchCase(unittest.TestCase):
    """Gives each test a folder, and puts a mark into the environment of all processes that it starts."""

    def setUp(self):
        self.mark = f"TUTTI_TEST_MARK={uuid.uuid4().hex}"
        temp = tempfile.TemporaryDirectory(prefix="tutti-launch-")
        self.addCleanup(temp.cleanup)
        self.folder = Path(temp.name)
        self.runtime = self.folder / "runtime"
        self.runtime.mkdir(mode=0o700)
        self.environment = dict(os.environ, XDG_RUNTIME_DIR=str(self.runtime), TUTTI_TEST_MARK=self.mark[16:])
        self.addCleanup(self.check_nothing_left)
        self.jobs = []

    def options(self):
        return ["--env", self.mark]

    def start(self, *arguments, launch=LAUNCH, **more):
        process = subprocess.Popen([launch, *self.options(), *map(str, arguments)], stdin=subprocess.DEVNULL, text=True,
                                   errors="replace",
                                   **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": self.environment,
                                      "cwd": self.folder, **more})
        self.addCleanup(self.end, process)
        return process

    def finish(self, process, timeout=900):
        """Waits for the process, and returns it with returncode, out and err."""
        process.out, process.err = process.communicate(timeout=timeout)
        self.jobs += re.findall(r"job ([0-9a-f]{16})", process.err)
        return process

    def launch(self, *arguments, code=0, timeout=900, **more):
        """Runs tutti-launch and checks its exit code."""
        done = self.finish(self.start(*arguments, **more), timeout)
        self.assertEqual(done.returncode, code, f"stdout:\n{done.out}\nstderr:\n{done.err}")
        return done

    def message(self, done):
        """Returns the launcher's error, which must be one message in one line."""
        lines = [line for line in done.err.splitlines() if line.startswith("tutti-launch: [")]
        self.assertEqual(len(lines), 1, done.err)
        return lines[0]

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            stream.close()

    def marked(self):
        """Returns {pid: command} of the processes with the mark."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (folder / "environ").read_bytes().split(b"\0") and state(folder.name):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def check_nothing_left(self):
        end = time.monotonic() + 30
        while self.marked() and time.monotonic() < end:
            time.sleep(0.05)
        left = self.marked()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.assertEqual(left, {}, "processes are left")
        for job in self.jobs:
            self.assertEqual(self.state_files(job), [], "files of the job are left")

    def state_files(self, job):
        """Returns the files of a job in the state folders of running jobs."""
        bases = (self.runtime, Path(f"/tmp/tutti-{os.geteuid()}"))
        return [str(p) for base in bases for p in base.rglob(f"*{job}*/*")]


def main():
    for program in (LAUNCH, PROGRESS_RANK, CONTROL_RANK, ELASTIC_RANK):
        if not os.access(program, os.X_OK):
            sys.exit(f"{program} has not been built")
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
