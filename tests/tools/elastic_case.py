# SPDX-License-Identifier: MIT
"""Base class for tests of tutti-launch --elastic: a job, its hosts file, its log, and the files of its workers. The
ssh to other hosts is a script that runs the command on this machine."""
import os
import re
import signal
import threading
from pathlib import Path

from launch_case import ELASTIC_RANK, LaunchCase, wait_until

# Addresses of hosts in a network for documentation. .66 refuses connections, and .77 has another key.
A, B, C, DEAF, KEY = (f"192.0.2.{n}" for n in (11, 12, 13, 66, 77))
SSH = """#!/bin/sh
all=$*
while [ "$1" != -- ]; do shift; done
host=$2
shift 2
case $host in
  *.66) echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255;;
  *.77) echo "Host key verification failed." >&2; exit 255;;
esac
echo "$host $all" >>"$HOME/ssh.log"
exec sh -c "$*"
"""


class Job:
    """A running job of elastic_rank. words: arguments of elastic_rank. before: options of the launcher."""

    def __init__(self, case, *options, words=(), folder="elastic", epoch=5, **more):
        self.case = case
        self.folder = case.folder / folder
        self.folder.mkdir(exist_ok=True)
        self.audit = case.folder / "audit"
        self.hosts = self.folder / "host_worker"
        self.log = self.folder / "host_worker_log"
        self.epoch = epoch
        self.ended = False
        self.process = case.start("--elastic", "--elastic-dir", self.folder, *options, ELASTIC_RANK, f"out={self.audit}",
                                  f"epoch={epoch}", *words, **more)
        self.out, self.err = [], []
        self.readers = [threading.Thread(target=lambda s=stream, to=lines: to.extend(s))
                        for stream, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err))]
        for reader in self.readers:
            reader.start()
        case.addCleanup(self.tell)

    def tell(self):
        """Prints the output of a job if the test has not ended it."""
        if not self.ended:
            print("".join(self.out + self.err))

    def edit(self, *lines):
        """Replaces the hosts file by a rename."""
        new = self.folder / "new"
        new.write_text("".join(f"{line}\n" for line in lines))
        new.rename(self.hosts)

    def steps(self):
        """Returns [(generation, step, number of the worker)] in the order in which the steps were done."""
        if not self.audit.exists():
            return []
        return [tuple(map(int, line.split()[:3])) for line in self.audit.read_text().splitlines()]

    def begun(self, generation):
        """Returns the time of the first step of a generation, in ns."""
        lines = [line.split() for line in self.audit.read_text().splitlines()]
        return min(int(line[3]) for line in lines if int(line[0]) == generation)

    def generation(self):
        return max((g for g, _, _ in self.steps()), default=0)

    def wait_for(self, generation, workers=None):
        """Waits until this number of workers has done a step of this generation or of a later one."""
        def done():
            groups = {}
            for g, s, n in self.steps():
                if g >= generation:
                    groups.setdefault((g, s), set()).add(n)
            return any(workers is None or len(w) == workers for w in groups.values())
        ended = wait_until(lambda: "in time" if done() else self.process.poll() is not None and "the job")
        self.case.assertEqual(ended, "in time")

    def logged(self):
        """Returns the lines of the log without their times. Checks that the times are valid and in order."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        times = [int(line[3]) for line in lines]
        assert times == sorted(times) and all(t > 1_600_000_000 * 10**9 for t in times), times
        return [" ".join(line[:3]) for line in lines]

    def pid(self, number):
        """Returns the process id of a worker from the state folder."""
        path = wait_until(lambda: next((self.case.runtime / "tutti" / "jobs").glob(f"*/worker-{number}.process"), None))
        return int(Path(path).read_text().split()[0])

    def kill(self, number, signal):
        os.kill(self.pid(number), signal)

    def end(self, code=0):
        """Waits for the end and checks that the steps are a complete run: all members have done each step once. If a
        generation was broken, the next one repeats its last step."""
        done = self.process
        done.wait(60)
        for reader in self.readers:
            reader.join()
        self.ended = True
        done.out, done.err = "".join(self.out), "".join(self.err)
        self.case.jobs += re.findall(r"job ([0-9a-f]{16})", done.err)
        self.case.assertEqual(done.returncode, code, f"stdout:\n{done.out}\nstderr:\n{done.err}")
        last = {}
        for g, s, n in self.steps():
            self.case.assertGreaterEqual(g, max((v[0] for v in last.values()), default=0), "an older generation wrote")
            last[s] = (g, n)
        self.case.assertEqual(sorted(last), list(range(1, len(last) + 1)))
        return done


class ElasticCase(LaunchCase):
    def setUp(self):
        super().setUp()
        bin_folder = self.folder / "bin"
        bin_folder.mkdir()
        (bin_folder / "ssh").write_text(SSH)
        (bin_folder / "ssh").chmod(0o755)
        self.environment.update(PATH=f"{bin_folder}:{os.environ['PATH']}", HOME=str(self.folder))

    def hosts_file(self, *lines):
        path = self.folder / "hosts"
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def job(self, *options, words=("steps=30", "epochs=200"), hosts=None, **more):
        where = ("-H", self.hosts_file(*hosts)) if hosts else ("-n", 1)
        return Job(self, *where, *options, words=words, **more)

    def stop(self, job):
        """Ends a running job as its user does."""
        job.process.send_signal(signal.SIGTERM)
        done = job.end(code=143)
        self.assertIn("saved at step", done.out)
        return done
