#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests tutti-launch on this host: the environment of its processes, how they end, which one is blamed, and that no
process or file remains."""
import contextlib
import os
import re
import signal
import socket
import subprocess
import time

from launch_case import LAUNCH, PROGRESS_RANK, LaunchCase, main, state, wait_until

# Ignores SIGTERM, and has a child.
STUBBORN = "trap '' TERM INT; sleep 1000 & sleep 1000; sleep 1000"


class Local(LaunchCase):
    def setUp(self):
        super().setUp()
        # --kill ends all jobs of the user in this folder, so these tests need a separate folder.
        self.environment["TUTTI_STATE_DIR"] = str(self.runtime / "tutti")

    def test_state_folder_is_an_absolute_path(self):
        self.environment["TUTTI_STATE_DIR"] = "here"
        self.assertIn("[TUTTI_STATE_DIR] expected an absolute path, got 'here'",
                      self.message(self.launch("-n", 1, "true", code=2)))

    def test_environment_and_prefix(self):
        done = self.launch("-n", 3, "-s", 1, "--env", "A=x y", "--env-worker", "W=1", "--env-server", "S=2", "sh", "-c",
                           'echo "$TUTTI_ROLE $TUTTI_RANK $TUTTI_SIZE $TUTTI_LOCAL_RANK $TUTTI_LOCAL_SIZE $TUTTI_HOST '
                           '<$A> <$W> <$S> $DMLC_ROLE $DMLC_NUM_WORKER $DMLC_NUM_SERVER"; echo "oops $TUTTI_RANK" >&2; '
                           'echo "$TUTTI_JOB $TUTTI_ROOT $DMLC_PS_ROOT_URI:$DMLC_PS_ROOT_PORT"; test -w "$TUTTI_REPORT"')
        lines = done.out.splitlines()
        for rank in range(3):
            self.assertIn(f"[{rank}] worker {rank} 3 {rank} 3 localhost <x y> <1> <> worker 3 1", lines)
            self.assertIn(f"[{rank}] oops {rank}", done.err.splitlines())
        self.assertIn("[s0] server 0 1 0 1 localhost <x y> <> <2> server 3 1", lines)
        meeting = {line.split("] ")[1] for line in lines if "127.0.0.1" in line}
        self.assertEqual(len(meeting), 1, lines)
        job, root, old = meeting.pop().split()
        self.assertRegex(job, "^[0-9a-f]{16}$")
        self.assertNotEqual(root, old)
        for address in (root, old):
            self.assertTrue(address.startswith("127.0.0.1:"))

    def test_secrets_are_only_in_the_environment_of_the_process(self):
        done = self.launch("-n", 2, "--log-dir", "logs", "sh", "-c",
                           'echo "$TUTTI_SECRET" >secret-$TUTTI_RANK; echo "$TUTTI_ROOT_PORTS"; sleep 0.3')
        first, second = ((self.folder / f"secret-{rank}").read_text().strip() for rank in range(2))
        self.assertRegex(first, "^[0-9a-f]{64}$")
        self.assertEqual(first, second)
        self.assertNotIn(first, done.out + done.err)
        for log in (self.folder / "logs").iterdir():
            self.assertNotIn(first, log.read_text())

    def test_port_at_which_ranks_connect(self):
        with socket.socket() as taken, socket.socket() as probe:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            done = self.launch("-n", 1, "--root-port", port, "true", code=2)
            self.assertIn(f"[--root-port] expected a free port, and the next one free too, got {port}, which",
                          self.message(done))
            while True:  # finds two adjacent free ports
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
                with socket.socket() as next_one:
                    if port < 65535 and next_one.connect_ex(("127.0.0.1", port + 1)) != 0:
                        break
            probe.close()
            done = self.launch("-n", 1, "--root-port", port, "sh", "-c", "echo $TUTTI_ROOT $DMLC_PS_ROOT_PORT")
            self.assertIn(f"[0] 127.0.0.1:{port} {port + 1}", done.out)

    def test_arguments_and_long_lines_arrive_unchanged(self):
        word = "a 'b' \"c\" $(touch x) `touch y` ; \\ * ~ \xf6"
        done = self.launch("-n", 1, "printf", "%s|%s\n", word, "")
        self.assertEqual(done.out, f"[0] {word}|\n")
        done = self.launch("-n", 2, "sh", "-c", "head -c 60000 /dev/zero | tr '\\0' x; echo; seq 20000")
        lines = done.out.splitlines()
        self.assertEqual(len(lines), 2 * 20001)
        for rank in range(2):
            mine = [line[4:] for line in lines if line.startswith(f"[{rank}] ")]
            self.assertEqual(mine, ["x" * 60000, *map(str, range(1, 20001))])

    def test_log_files(self):
        self.launch("-n", 2, "--log_dir", "logs/deep", "--job-name", "night run", "sh", "-c",
                    "echo out $TUTTI_RANK; printf end; echo err >&2")
        for rank in range(2):
            head, *rest = (self.folder / "logs" / "deep" / f"worker-{rank}.log").read_text().splitlines()
            self.assertRegex(head, rf"^# rank {rank}, worker of job [0-9a-f]{{16}} \(night run\) on localhost, process \d+")
            # The output is unchanged, but the order of the two streams may differ.
            text = "\n".join(rest)
            for part in (f"out {rank}", "err", "end"):
                self.assertIn(part, text)
            self.assertNotIn("[", text)
        self.launch("-n", 1, "--log-dir", "logs/deep", "echo", "second")
        text = (self.folder / "logs" / "deep" / "worker-0.log").read_text()
        self.assertIn("out 0", text)
        self.assertIn("second", text)

    def test_log_folder_that_cannot_be_made(self):
        (self.folder / "file").write_text("")
        done = self.launch("-n", 1, "--log-dir", "file/logs", "true", code=2)
        self.assertIn("file/logs", self.message(done))
        self.assertNotIn("--sync-dst-dir", done.err)  # this option copies the program to other hosts

    def test_exit_code_is_that_of_the_failed_process(self):
        start = time.monotonic()
        done = self.launch("-n", 3, "sh", "-c", f"if [ $TUTTI_RANK = 1 ]; then exit 3; fi; {STUBBORN}", code=3)
        self.assertLess(time.monotonic() - start, 10)
        self.assertIn("[worker 1 on localhost] expected exit code 0, got exit code 3.", self.message(done))

    def test_other_processes_are_stopped_within_two_seconds(self):
        job = self.start("-n", 3, "sh", "-c", f"echo up; if [ $TUTTI_RANK = 2 ]; then exec sleep 1000; fi; {STUBBORN}")
        for _ in range(3):
            self.assertIn("up", job.stdout.readline())
        victim = wait_until(lambda: [p for p, c in self.marked().items() if c == "sleep 1000 " and
                                     os.getpgid(p) == p])[0]
        os.kill(victim, signal.SIGKILL)
        start = time.monotonic()
        self.finish(job)
        self.assertLess(time.monotonic() - start, 3)  # 2 s, and some time for a loaded machine
        self.assertEqual(job.returncode, 5, job.err)
        self.assertIn("[worker 2 on localhost]", self.message(job))
        self.assertIn("SIGKILL", job.err)

    def test_crash_and_kill_have_different_exit_codes(self):
        done = self.launch("-n", 2, "sh", "-c", "if [ $TUTTI_RANK = 0 ]; then kill -SEGV $$; fi; sleep 1000", code=1)
        self.assertIn("SIGSEGV", self.message(done))

    def test_error_names_step_and_bucket(self):
        job = self.start("-n", 2, PROGRESS_RANK, self.folder, 1000, 30)
        pid = int(wait_until(lambda: (self.folder / "pid-1").exists() and (self.folder / "pid-1").read_text()))
        wait_until(lambda: (self.folder / "at-1").exists() and int((self.folder / "at-1").read_text() or 0) >= 3)
        os.kill(pid, signal.SIGKILL)
        self.finish(job)
        self.assertEqual(job.returncode, 5, job.err)
        said = re.search(r"\[worker 1 on localhost\].*SIGKILL, last reported at step (\d+), bucket (\d) \((begun|done)\)",
                         self.message(job))
        self.assertIsNotNone(said, job.err)
        # A rank reports its position before it writes it to its file.
        at = int((self.folder / "at-1").read_text())
        self.assertIn(3 * int(said[1]) + int(said[2]) - at, (0, 1), self.message(job))

    def test_stopped_process_is_reported_and_ended(self):
        job = self.start("-n", 3, "--stall-warning", 0.7, "--stall-deadline", 2.5, PROGRESS_RANK, self.folder, 10000, 5)
        pid = int(wait_until(lambda: (self.folder / "pid-1").exists() and (self.folder / "pid-1").read_text()))
        wait_until(lambda: (self.folder / "at-2").exists() and int((self.folder / "at-2").read_text() or 0) >= 3)
        os.kill(pid, signal.SIGSTOP)
        self.finish(job)
        self.assertEqual(job.returncode, 5, job.err)
        warning = [line for line in job.err.splitlines() if "warning:" in line]
        self.assertEqual(len(warning), 1, job.err)
        for line in (warning[0], self.message(job)):
            self.assertRegex(line, r"worker 1 on localhost.* at step \d+, bucket \d .*SIGSTOP")
        self.assertIn("progress within 2.5 s", self.message(job))

    def test_silence_without_reports_is_no_stall(self):
        self.launch("-n", 2, "--stall-warning", 0.1, "--stall-deadline", 0.3, "sleep", 1)
        done = self.launch("-n", 2, "--stall-warning", 0.3, "--stall-deadline", 0, PROGRESS_RANK, self.folder, 1, 500)
        self.assertIn("warning:", done.err)

    def test_missing_program_and_folder(self):
        self.assertIn("no-such-program", self.message(self.launch("-n", 2, "no-such-program", code=2)))
        self.assertIn("does not exist", self.message(self.launch("-n", 2, "./no-such", code=2)))
        (self.folder / "text").write_text("echo hello\n")
        self.assertIn("text", self.message(self.launch("-n", 2, "./text", code=2)))

    def test_interrupt_lets_processes_save_their_state(self):
        script = "trap 'echo saved; exit 130' INT; trap 'echo saved; exit 143' TERM; echo up; while :; do sleep 0.1; done"
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            job = self.start("-n", 2, "bash", "-c", script)
            for _ in range(2):
                self.assertIn("up", job.stdout.readline())
            job.send_signal(number)
            self.finish(job)
            self.assertEqual(job.returncode, code, job.err)
            self.assertEqual(job.out.count("saved"), 2, job.out)

    def test_second_interrupt_ends_at_once(self):
        job = self.start("-n", 2, "sh", "-c", f"echo up; {STUBBORN}")
        for _ in range(2):
            job.stdout.readline()
        job.send_signal(signal.SIGINT)
        time.sleep(0.5)
        self.assertIsNone(job.poll())
        job.send_signal(signal.SIGINT)
        start = time.monotonic()
        self.finish(job)
        self.assertEqual(job.returncode, 130, job.err)
        self.assertLess(time.monotonic() - start, 30)  # half of --stop-timeout

    def test_stop_timeout(self):
        job = self.start("-n", 1, "--stop-timeout", 0.5, "sh", "-c", f"echo up; {STUBBORN}")
        job.stdout.readline()
        job.send_signal(signal.SIGTERM)
        self.finish(job)
        self.assertEqual(job.returncode, 143, job.err)

    def test_killed_launcher_leaves_no_process(self):
        job = self.start("-n", 3, "sh", "-c", f"echo up; {STUBBORN}")
        for _ in range(3):
            job.stdout.readline()
        self.assertGreaterEqual(len(self.marked()), 6)
        job.kill()
        job.wait()
        wait_until(lambda: not self.marked())

    def stop_for_long(self, job, others):
        """Pauses the launcher, and if `others` also its processes, for longer than --host-timeout."""
        stopped = set()
        # Repeats until it finds no new process: a process may have ended, or have started another one before it was
        # stopped.
        while new := ({job.pid} | (set(self.marked()) if others else set())) - stopped:
            stopped |= new
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
        if others:
            time.sleep(5)
        else:
            wait_until(lambda: set(self.marked()) == {job.pid})
        for pid in sorted(stopped, key=lambda p: p == job.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def test_paused_launcher(self):
        """While the launcher is paused, its agents end their processes. Afterwards the job reports a failure."""
        for code in (0, 143):
            job = self.start("-n", 2, "--host-timeout", 2, "bash", "-c",
                             f"trap 'exit {code}' TERM; echo up; while :; do sleep 0.1; done")
            for _ in range(2):
                self.assertIn("up", job.stdout.readline())
            self.stop_for_long(job, others=False)
            self.finish(job)
            self.assertEqual(job.returncode, 5, job.err)
            self.assertIn("[host localhost] expected a message of tutti-launch within 2 s, got none", self.message(job))

    def test_paused_machine(self):
        """A paused virtual machine does not count as silence of a process."""
        job = self.start("-n", 2, "--host-timeout", 4, "bash", "-c",
                         "echo up; while [ ! -e go ]; do sleep 0.1; done; echo the end")
        for _ in range(2):
            self.assertIn("up", job.stdout.readline())
        self.stop_for_long(job, others=True)
        time.sleep(1)
        (self.folder / "go").touch()
        self.finish(job)
        self.assertEqual(job.returncode, 0, job.err)
        self.assertEqual(job.out.count("the end"), 2)

    def test_killed_agent_leaves_no_process(self):
        job = self.start("-n", 2, "sh", "-c", f"echo up; {STUBBORN}")
        for _ in range(2):
            job.stdout.readline()
        agent = next(p for p, c in self.marked().items() if "--exec-ranks" in c)
        os.kill(agent, signal.SIGKILL)
        self.finish(job)
        self.assertEqual(job.returncode, 5, job.err)
        self.assertIn("[host localhost]", self.message(job))
        self.assertIn("worker 0", job.err)

    def test_descendants_are_ended_with_their_process(self):
        self.launch("-n", 2, "sh", "-c", "setsid sleep 1000 & sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &) ; exit 0")

    def test_kill_ends_exactly_the_recorded_processes(self):
        other = subprocess.Popen(["sleep", "1000"])
        self.addCleanup(other.wait)
        self.addCleanup(other.kill)
        first = self.start("-n", 2, "sh", "-c", f"echo up; {STUBBORN}")
        second = self.start("-n", 1, "sh", "-c", f"echo up; {STUBBORN}")
        for job, n in ((first, 2), (second, 1)):
            for _ in range(n):
                job.stdout.readline()
        name = next(p.name for p in (self.runtime / "tutti" / "jobs").iterdir() if (p / "worker-1.process").exists())
        start = time.monotonic()
        killed = subprocess.run([LAUNCH, "--kill", "--job", name], env=self.environment, text=True, capture_output=True)
        self.assertLess(time.monotonic() - start, 30)
        self.assertEqual((killed.returncode, killed.stdout.count("ended worker")), (0, 2), killed)
        self.assertEqual(self.finish(first).returncode, 143, first.err)
        self.assertIn("--kill", self.message(first))
        self.assertIsNone(second.poll())
        killed = subprocess.run([LAUNCH, "--kill"], env=self.environment, text=True, capture_output=True)
        self.assertEqual((killed.returncode, killed.stdout.count("ended worker")), (0, 1), killed)
        self.finish(second)
        self.assertTrue(state(other.pid))
        killed = subprocess.run([LAUNCH, "--kill"], env=self.environment, text=True, capture_output=True)
        self.assertIn("nothing was running", killed.stdout)

    def test_kill_spares_a_reused_process_number(self):
        other = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        self.addCleanup(other.wait)
        self.addCleanup(other.kill)
        job = self.runtime / "tutti" / "jobs" / "0123456789abcdef"
        job.mkdir(parents=True)
        for folder in (job.parent.parent, job.parent, job):
            folder.chmod(0o700)
        node = os.uname().nodename
        # This number belongs to a living process with another start time.
        (job / "worker-0.process").write_text(f"{other.pid} 1 {other.pid} 1 {node} localhost\n")
        (job / "worker-1.process").write_text("garbage\n")
        (job / "worker-2.process").write_text(f"1 1 1 1 {node} localhost\n")
        killed = subprocess.run([LAUNCH, "--kill"], env=self.environment, text=True, capture_output=True)
        self.assertEqual(killed.returncode, 0, killed)
        self.assertIn("nothing was running", killed.stdout)
        self.assertTrue(state(other.pid))

    def test_state_folder_of_another_user_is_refused(self):
        self.runtime.chmod(0o700)
        (self.runtime / "tutti").mkdir(mode=0o777)
        (self.runtime / "tutti").chmod(0o777)
        done = self.launch("-n", 1, "true", code=5)
        self.assertIn("0700", done.err)

    def test_state_folder_that_is_a_link_is_refused(self):
        self.runtime.chmod(0o700)
        (self.folder / "elsewhere").mkdir(mode=0o700)
        (self.runtime / "tutti").symlink_to(self.folder / "elsewhere")
        done = self.launch("-n", 1, "true", code=5)
        self.assertIn("0700", done.err)
        self.assertEqual(list((self.folder / "elsewhere").iterdir()), [])

    def test_unread_output(self):
        """If no program reads the output, the job waits. It is not ended, and continues when the output is read."""
        job = self.start("-n", 1, "--host-timeout", 4, "sh", "-c", "yes 0123456789 | head -n 700000; echo the end")
        time.sleep(6)
        self.finish(job)
        self.assertEqual(job.returncode, 0, job.err)
        self.assertTrue(job.out == "[0] 0123456789\n" * 700000 + "[0] the end\n", job.out[-100:])

    def test_rank_0_is_named(self):
        hosts = self.folder / "hosts"
        hosts.write_text(f"localhost slots=2\nlocalhost slots=2\n")
        done = self.launch("-H", hosts, "sh", "-c", "echo $TUTTI_RANK of $TUTTI_SIZE")
        self.assertIn("[1] 1 of 2", done.out.splitlines())
        self.assertRegex(done.err, r"job [0-9a-f]{16}: 2 workers on 1 host, ssh; rank 0 on localhost\n")

    def test_one_process_for_each_gpu(self):
        """With --gpus, -n counts hosts. The program gets the complete list."""
        for words in (["-n", 1], []):
            for gpus in (["--gpus", "0,1,2"], ["--gpus=0,1,2"]):
                done = self.launch(*words, "sh", "-c", 'echo "$TUTTI_RANK/$TUTTI_SIZE $TUTTI_LOCAL_RANK $*"', "sh", *gpus)
                self.assertEqual(sorted(done.out.splitlines()),
                                 [f"[{r}] {r}/3 {r} {' '.join(gpus)}" for r in range(3)])
                self.assertIn("3 workers on 1 host, one for each of the 3 GPUs of --gpus, local", done.err)
        done = self.launch("-n", 2, "true", "--gpus", "0,1", code=2)
        self.assertIn("[--num-workers] expected at most 1 host, because -n counts hosts if the command has --gpus, got 2.",
                      self.message(done))
        # If the list is empty or missing, the job uses CPUs, and -n counts processes.
        for gpus in (["--gpus", ""], ["--gpus="], ["--gpus"], ["--gpus", "--network", "resnet"]):
            self.assertEqual(len(self.launch("-n", 2, "echo", *gpus).out.splitlines()), 2)
        with_servers = self.launch("-n", 1, "-s", 1, "sh", "-c", "echo $TUTTI_ROLE", "sh", "--gpus", "0,1")
        self.assertEqual(sorted(with_servers.out.splitlines()), ["[0] worker", "[1] worker", "[s0] server"])

    def test_help_and_version(self):
        self.assertIn("--stall-deadline", subprocess.run([LAUNCH, "--help"], capture_output=True, text=True).stdout)
        self.assertRegex(subprocess.run([LAUNCH, "--version"], capture_output=True, text=True).stdout, r"\d+\.\d+")


if __name__ == "__main__":
    main()
