#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests tutti-launch with a real mpirun between hosts of a separate network: placement, errors, cleanup."""
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from hosts_case import BUILD, PROGRESS_RANK, HostsCase, main
from launch_case import wait_until

MPI_RANK = str(BUILD / "tests" / "hosts" / "mpi_rank")
PRIVATE = tempfile.mkdtemp(prefix="tutti-private-")
STUBBORN = "trap '' TERM INT; sleep 1000 & sleep 1000; sleep 1000"


class Mpi(HostsCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(self.check_no_traces_of_mpi)

    def check_no_traces_of_mpi(self):
        """Checks that no daemon and no file of Open MPI is left on a host. The cleanup may run after the end of the
        job."""
        wait_until(lambda: not any(self.cluster.pids(h) for h in range(self.cluster.count)))

        def left():
            try:
                return [str(p) for folder in ("/tmp", "/dev/shm") for first in Path(folder).glob("*")
                        if any(name in first.name for name in self.cluster.names) for p in (first, *first.rglob("*"))]
            except FileNotFoundError as e:  # the cleanup is removing it
                return [str(e)]
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not left())
        self.assertEqual(left(), [])

    def options(self):
        net = f"{self.cluster.net}.0/24"
        arguments = ["--mca", "oob_tcp_if_include", net, "--mca", "btl_tcp_if_include", net, "--mca", "btl", "tcp,self",
                     "--mca", "mpi_yield_when_idle", "1"]
        return [*super().options(), "--launcher", "mpi", *[w for a in arguments for w in ("--mpi-arg", a)]]

    def test_ranks_are_placed_as_in_the_hosts_file(self):
        done = self.launch("-H", self.cluster.hosts_file([2, 1]), "-n", 5, "--env", "SECRET=it's a \"secret\"", "--log-dir",
                           "logs", "sh", "-c", 'echo "$(hostname) $TUTTI_RANK/$TUTTI_SIZE $OMPI_COMM_WORLD_RANK/'
                           '$OMPI_COMM_WORLD_SIZE $TUTTI_LOCAL_RANK/$TUTTI_LOCAL_SIZE $OMPI_COMM_WORLD_LOCAL_RANK '
                           '$SECRET $1"; echo oops >&2', "sh", "a b")
        host, local, count = [0, 0, 1, 0, 0], [0, 1, 0, 2, 3], [4, 1]
        self.assertEqual(len(done.out.splitlines()), 5, done.out)
        for r in range(5):
            line = (f"{self.cluster.names[host[r]]} {r}/5 {r}/5 {local[r]}/{count[host[r]]} {local[r]} it's a \"secret\" a b")
            self.assertIn(f"[{r}] {line}", done.out.splitlines())
            self.assertIn(f"[{r}] oops", done.err.splitlines())
            self.assertIn(line, (self.folder / "logs" / f"worker-{r}.log").read_text())

    def test_real_ranks_between_hosts(self):
        done = self.launch("-H", self.cluster.hosts_file(2), MPI_RANK)
        for r in range(4):
            self.assertIn(f"[{r}] rank {r} of 4 on {self.cluster.names[r // 2]}, sum 6", done.out.splitlines())

    def test_only_this_host(self):
        done = self.launch("-n", 2, MPI_RANK)
        here = os.uname().nodename
        self.assertEqual(sorted(done.out.splitlines()), [f"[{r}] rank {r} of 2 on {here}, sum 1" for r in range(2)])

    def test_this_host_and_others(self):
        hosts = self.folder / "hosts"
        hosts.write_text(f"{self.cluster.address(1)}\nlocalhost slots=2\n")
        done = self.launch("-H", hosts, MPI_RANK)
        names = [os.uname().nodename] * 2 + [self.cluster.names[1]]
        self.assertEqual(sorted(done.out.splitlines()), [f"[{r}] rank {r} of 3 on {names[r]}, sum 3" for r in range(3)])
        self.assertIn("3 workers on 2 hosts, mpi; rank 0 on localhost", done.err)

    def test_exit_code_is_that_of_the_failed_process(self):
        done = self.launch("-H", self.cluster.hosts_file(2), "sh", "-c",
                           f"if [ $TUTTI_RANK = 3 ]; then exit 17; fi; {STUBBORN}", code=17)
        self.assertIn(f"[worker 3 on {self.cluster.address(1)}] expected exit code 0, got exit code 17.", self.message(done))

    def test_abort(self):
        done = self.launch("-H", self.cluster.hosts_file(2), MPI_RANK, "abort", 2, code=9)
        self.assertRegex(self.message(done), rf"\[worker 2 on {self.cluster.address(1)}\].*(exit code 9).*step 7, bucket 1")

    def test_killed_rank_is_named_with_step_and_bucket(self):
        job = self.run_ranks()
        os.kill(self.pid(1), signal.SIGKILL)
        start = time.monotonic()
        self.finish(job)
        self.assertLess(time.monotonic() - start, 30)  # the time of --host-timeout
        self.assertEqual(job.returncode, 5, job.err)
        self.assertRegex(self.message(job), rf"\[worker 1 on {self.cluster.address(1)}\].*SIGKILL.*step \d+, bucket \d ")

    def test_stopped_rank_is_reported_and_ended(self):
        job = self.run_ranks("--stall-warning", 1, "--stall-deadline", 3)
        os.kill(self.pid(0), signal.SIGSTOP)
        self.finish(job)
        self.assertEqual(job.returncode, 5, job.err)
        self.assertRegex(job.err, rf"warning: worker 0 on {self.cluster.address(0)} .*step \d+, bucket \d")
        self.assertRegex(self.message(job), rf"\[worker 0 on {self.cluster.address(0)}\].*SIGSTOP")

    def test_cut_link(self):
        job = self.run_ranks("--host-timeout", 5)
        self.cluster.cut(1)
        try:
            self.finish(job)
            self.assertEqual(job.returncode, 5, job.err)
            self.assertRegex(self.message(job), rf"\[host {self.cluster.address(1)}\].*worker 1, last reported at step \d+, bucket \d")
            wait_until(lambda: not self.marked_on(1))
        finally:
            self.cluster.heal(1)

    def test_killed_mpirun(self):
        job = self.run_ranks()
        mpirun = [p for p in self.children(job.pid) if Path(f"/proc/{p}/comm").read_text() == "mpirun\n"]
        self.assertEqual(len(mpirun), 1)
        os.kill(mpirun[0], signal.SIGKILL)
        self.finish(job)
        self.assertEqual(job.returncode, 5, job.err)
        self.message(job)

    def test_killed_daemon(self):
        job = self.run_ranks()
        daemon = next(p for p in self.cluster.pids(1) if Path(f"/proc/{p}/comm").read_text() == "orted\n")
        os.kill(daemon, signal.SIGKILL)
        self.finish(job)
        self.assertEqual(job.returncode, 5, job.err)
        self.assertIn(f"worker 1 on {self.cluster.address(1)}", self.message(job))

    def test_killed_launcher(self):
        job = self.run_ranks()
        job.kill()
        job.wait()
        wait_until(lambda: not self.marked())

    def test_interrupt_lets_processes_save_their_state(self):
        job = self.start("-H", self.cluster.hosts_file(), "bash", "-c",
                         "trap 'echo saved; exit 130' INT; echo up; while :; do sleep 0.1; done")
        for _ in range(2):
            self.assertIn("up", job.stdout.readline())
        job.send_signal(signal.SIGINT)
        self.finish(job)
        self.assertEqual((job.returncode, job.out.count("saved")), (130, 2), job.err)

    def test_kill_on_hosts(self):
        job = self.run_ranks()
        killed = self.kill("-H", self.cluster.hosts_file())
        self.assertEqual(killed.returncode, 0, killed)
        # mpirun ends the other ranks when it learns that one has ended. It may do so before the second host answers.
        ended = killed.stdout.count("ended worker")
        self.assertIn((ended, killed.stdout.count("nothing was running")), [(2, 0), (1, 1)], killed)
        self.finish(job)
        self.assertNotEqual(job.returncode, 0, job.err)

    def test_unreachable_host(self):
        hosts = self.folder / "hosts"
        hosts.write_text(f"{self.cluster.address(0)}\n{self.cluster.address(1)}:2223\n")
        done = self.launch("-H", hosts, "touch", self.folder / "ran", code=5)
        self.assertIn(f"[host {self.cluster.address(1)}]", self.message(done))
        self.assertFalse((self.folder / "ran").exists())

    def test_missing_program_on_one_host(self):
        program = Path(PRIVATE) / "program"
        self.cluster.run(0, ["cp", "/bin/true", str(program)], check=True)
        try:
            done = self.launch("-H", self.cluster.hosts_file(2), program, code=2)
            self.assertIn(f"[host {self.cluster.address(1)}]", self.message(done))
            self.assertIn(str(program), self.message(done))
        finally:
            self.cluster.run(0, ["rm", "-f", str(program)])

    def test_missing_mpirun(self):
        empty = self.folder / "bin"
        empty.mkdir()
        for name in ("ssh", "sh", "env"):
            (empty / name).symlink_to(shutil.which(name))
        self.environment["PATH"] = str(empty)
        done = self.launch("-H", self.cluster.hosts_file(), "/bin/true", code=2)
        self.assertIn("openmpi-bin", self.message(done))

    def run_ranks(self, *options):
        job = self.start("-H", self.cluster.hosts_file(), *options, PROGRESS_RANK, self.folder, 100000, 5)
        for rank in range(2):
            wait_until(lambda r=rank: self.at(r) >= 60)
        return job

    def at(self, rank):
        try:
            return int((self.folder / f"at-{rank}").read_text())
        except (OSError, ValueError):
            return -1

    def pid(self, rank):
        return int((self.folder / f"pid-{rank}").read_text())

    @staticmethod
    def children(pid):
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


if __name__ == "__main__":
    if shutil.which("mpirun") is None or not os.access(MPI_RANK, os.X_OK):
        sys.exit("no mpirun, or no mpi_rank built with it (Debian: apt-get install openmpi-bin libopenmpi-dev)")
    try:
        main(2, [PRIVATE])
    finally:
        shutil.rmtree(PRIVATE, ignore_errors=True)
