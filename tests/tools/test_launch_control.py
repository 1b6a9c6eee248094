#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests the channel between tutti-launch's processes and the arbiter in the launcher: admission, published texts,
silence."""
import os
import signal
import time
from pathlib import Path

from launch_case import CONTROL_RANK, LaunchCase, main, state

# Part of the text that each rank publishes. The test would find it if it were visible.
SECRET = b"secret-of-worker"


class Control(LaunchCase):
    def ranks(self, role="worker"):
        """Returns {rank: pid} of the running processes of a role, from the state folder."""
        found = {}
        for path in (self.runtime / "tutti" / "jobs").glob(f"*/{role}-*.process"):
            found[int(path.stem.split("-")[1])] = int(path.read_text().split()[0])
        return found

    def test_processes_meet(self):
        done = self.launch("-n", 3, "-s", 2, "--log-dir", "logs", CONTROL_RANK)
        for role, count in (("", 3), ("s", 2)):
            for rank in range(count):
                name = "server" if role else "worker"
                self.assertIn(f"[{role}{rank}] generation 1: {name} {rank} of 3 workers and 2 servers\n", done.out)
                self.assertIn(f"[{role}{rank}] found 300000 bytes, no nothing\n", done.out)
        self.assertNotIn("secret-of", done.out + done.err)

    def test_published_texts_are_not_in_files_or_command_lines(self):
        job = self.start("-n", 2, "--log-dir", "logs", CONTROL_RANK, "sleep=1500")
        for _ in range(4):
            job.stdout.readline()
        seen = 0
        for pid in self.marked():
            folder = Path(f"/proc/{pid}")
            for name in ("cmdline", "environ"):
                self.assertNotIn(SECRET, (folder / name).read_bytes())
            seen += 1
        self.assertGreaterEqual(seen, 4)  # the launcher, the agent and the ranks
        self.finish(job)
        self.assertEqual(job.returncode, 0, job.err)
        for file in self.folder.rglob("*"):
            if file.is_file():
                self.assertNotIn(SECRET, file.read_bytes(), file)

    def test_only_the_different_process_is_refused(self):
        """The facts of the majority count, so the launcher may refuse any process, including rank 0."""
        for odd in (0, 1):
            script = f'f=a; [ $TUTTI_RANK = {odd} ] && f=b; exec "$0" facts=$f'
            done = self.launch("-n", 3, "sh", "-c", script, CONTROL_RANK, code=2)
            self.assertIn(f"[{odd}] [worker {odd} on localhost] expected model a, as the others have, got b.", done.err)
            self.assertEqual(done.err.count("as the others have"), 1)
            self.assertIn(f"[worker {odd} on localhost] expected exit code 0, got exit code 2", self.message(done))

    def test_missing_process_is_named(self):
        script = '[ $TUTTI_RANK = 1 ] && exec sleep 1000; exec "$0" enrol=1500'
        done = self.launch("-n", 3, "sh", "-c", script, CONTROL_RANK, code=5)
        self.assertIn("[control channel] expected all processes of the job within 1500 ms, got no message yet from worker 1.",
                      done.err)

    def test_stopped_process_is_lost(self):
        job = self.start("-n", 3, "--rank-timeout", 4, CONTROL_RANK, "wait")
        for _ in range(6):
            job.stdout.readline()
        os.kill(self.ranks()[1], signal.SIGSTOP)
        self.finish(job)
        self.assertEqual(job.returncode, 5, job.err)
        self.assertIn("[worker 1 on localhost] expected a sign of life within 4 s, got none; it is stopped, as by SIGSTOP. "
                      "hint: set a longer time with --rank-timeout.", self.message(job))
        for rank in (0, 2):
            self.assertIn(f"[{rank}] lost worker 1 on localhost\n", job.out)

    def test_killed_process_is_reported(self):
        job = self.start("-n", 2, CONTROL_RANK, "wait")
        for _ in range(4):
            job.stdout.readline()
        os.kill(self.ranks()[1], signal.SIGKILL)
        self.finish(job)
        self.assertEqual(job.returncode, 5, job.err)
        self.assertIn("[worker 1 on localhost] expected exit code 0, got its end by SIGKILL", self.message(job))
        self.assertIn("[0] lost worker 1 on localhost\n", job.out)

    def test_servers_end_when_the_workers_have_finished(self):
        done = self.launch("-n", 2, "-s", 2, CONTROL_RANK, "serve=1500")
        for rank in range(2):
            self.assertIn(f"[s{rank}] saved\n", done.out)

    def test_server_that_dies_is_started_again(self):
        """The new process of a server gets the same number, and all processes learn of it."""
        job = self.start("-n", 2, "-s", 2, "--server-restarts", 2, CONTROL_RANK, "serve=0", "generations=3")
        said = [job.stdout.readline() for _ in range(8)]
        for generation in (2, 3):
            os.kill(self.ranks("server")[0], signal.SIGKILL)
            wanted = {f"[{rank}] generation {generation}: server 0 has id {2 + generation}, its text begins with secret-of\n"
                      for rank in range(2)}
            while not wanted <= set(said):
                said.append(job.stdout.readline())
                self.assertTrue(said[-1], said)
        said += job.stdout.readlines()
        self.finish(job)
        self.assertEqual(job.returncode, 0, job.err)
        self.assertEqual(sorted(line for line in said if "saved" in line), ["[s0] saved\n", "[s1] saved\n"])
        for number in (1, 2):
            self.assertIn(f"tutti-launch: warning: server 0 on localhost: its end by SIGKILL; it is started again with the "
                          f"same number, {number} of 2 restarts\n", job.err)

    def test_server_that_dies_too_often(self):
        done = self.launch("-n", 1, "-s", 1, "--server-restarts", 2, "sh", "-c",
                           "echo up; [ $TUTTI_ROLE = server ] && exit 7; sleep 1000", code=7)
        self.assertEqual(done.out.count("[s0] up"), 3)
        self.assertIn("[server 0 on localhost] expected exit code 0, got exit code 7", self.message(done))

    def test_invalid_frame_is_reported_once(self):
        done = self.launch("-n", 2, CONTROL_RANK, "nonsense")
        for rank in range(2):
            self.assertEqual(done.err.count(f"warning: worker {rank} on localhost sent an invalid frame on its channel"), 1)

    def test_only_processes_with_an_open_channel_are_watched(self):
        """A program that never opens the channel may be paused for any time."""
        job = self.start("-n", 1, "--rank-timeout", 1, "sh", "-c", "echo up; sleep 2.5; echo done")
        job.stdout.readline()
        pid = self.ranks()[0]
        os.kill(pid, signal.SIGSTOP)
        time.sleep(2)
        self.assertEqual(state(pid), "T")
        os.kill(pid, signal.SIGCONT)
        self.finish(job)
        self.assertEqual((job.returncode, job.out), (0, "[0] done\n"), job.err)

    def test_stopped_launcher_loses_no_process(self):
        job = self.start("-n", 2, "--rank-timeout", 4, CONTROL_RANK, "sleep=9000")
        for _ in range(4):
            job.stdout.readline()
        os.kill(job.pid, signal.SIGSTOP)
        time.sleep(6)
        os.kill(job.pid, signal.SIGCONT)
        self.finish(job)
        self.assertEqual(job.returncode, 0, job.err)

    def test_unread_output_does_not_silence_processes(self):
        job = self.start("-n", 1, "--rank-timeout", 4, "sh", "-c", '("$0" sleep=9000 >/dev/null) & '
                         "yes 0123456789 | head -n 700000; wait $!; echo the end $?", CONTROL_RANK)
        time.sleep(7)
        self.finish(job)
        self.assertEqual(job.returncode, 0, job.err)
        self.assertTrue(job.out == "[0] 0123456789\n" * 700000 + "[0] the end 0\n", job.out[-200:])

    def test_no_channel_without_a_descriptor(self):
        """The channel is missing if a wrapper program closes the descriptor, or if tutti-launch did not start the program."""
        close = "import os,sys,subprocess; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
        done = self.launch("-n", 1, "python3", "-c", close, CONTROL_RANK, code=4)
        self.assertIn("[0] no channel\n", done.out)
        self.assertIn("[worker 0 on localhost] expected exit code 0, got exit code 4", done.err)

    def test_process_gets_only_its_own_descriptor(self):
        done = self.launch("-n", 2, "sh", "-c", "ls /proc/self/fd | tr '\\n' ' '; echo; readlink /proc/$$/fd/$TUTTI_CONTROL")
        for line in done.out.splitlines():
            self.assertRegex(line, r"^\[\d\] ((\d+ ){5}|socket:\[\d+\])$")


if __name__ == "__main__":
    main()
