#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests tutti-launch --elastic: hosts that cannot join, errors in the hosts file, and the command line."""
import os
import time

from elastic_case import A, B, DEAF, KEY, ElasticCase
from launch_case import ELASTIC_RANK, main, wait_until


class ElasticHosts(ElasticCase):
    # ---- hosts that cannot join ----
    def test_hosts_that_cannot_be_reached(self):
        job = self.job("--elastic-at", "step")
        job.wait_for(1)
        job.edit("localhost", DEAF, KEY, A)
        job.wait_for(2, workers=2)
        for why in (f"warning: [host {DEAF}] expected a connection by ssh, got ssh: connect to host {DEAF} port 22: No route to "
                    f"host. hint: 'ssh {DEAF}' must work from here without a prompt. The next attempt is in 1 s.",
                    f"[host {KEY}] expected a connection by ssh, got Host key verification failed."):
            wait_until(lambda text=why: text in "".join(job.err))
        wait_until(lambda: job.logged() == [f"0 ADDED {A}"])
        self.stop(job)

    def test_host_keys(self):
        """The key of a host that joins must be known, unless an option allows unknown keys. The first hosts need no
        known key."""
        for options, word in (((), "yes"), (("--accept-new-hosts",), "accept-new")):
            (self.folder / "ssh.log").unlink(missing_ok=True)
            self.folder.joinpath("audit").unlink(missing_ok=True)
            job = self.job("--elastic-at", "step", *options, hosts=("localhost", A), folder=f"keys-{word}")
            job.wait_for(1, workers=2)
            job.edit("localhost", A, B)
            job.wait_for(2, workers=3)
            self.stop(job)
            used = {line.split()[0]: line for line in (self.folder / "ssh.log").read_text().splitlines()}
            self.assertIn("StrictHostKeyChecking=accept-new", used[A])
            self.assertIn(f"StrictHostKeyChecking={word} ", used[B])

    def test_prepare_script(self):
        script = self.folder / "prepare.py"
        script.write_text("#!/usr/bin/env python3\nimport os, sys\nprint('prepares', os.environ['TUTTI_HOST'])\n"
                          f"sys.exit(os.environ['TUTTI_HOST'] == '{B}')\n")
        job = self.job("--elastic-at", "step", "--prepare-script", script)
        job.wait_for(1)
        job.edit("localhost", A, B, DEAF)
        job.wait_for(2, workers=2)
        for why in (f"[host {DEAF}] expected a connection by ssh",
                    f"warning: [host {B}] expected exit code 0 of --prepare-script, got exit code 1. The next attempt is in"):
            wait_until(lambda text=why: text in "".join(job.err))
        done = self.stop(job)
        self.assertIn(f"[1] prepares {A}\n", done.out)
        self.assertIn(f"prepares {B}\n", done.out)
        self.assertEqual(job.logged(), [f"0 ADDED {A}"])
        self.assertNotIn("prepares localhost", done.out)

    def test_copy_of_the_folder(self):
        job = self.job("--elastic-at", "step", "--sync-dst-dir", self.folder / "copy" / "of it")
        job.wait_for(1)
        job.edit("localhost", A, DEAF)
        job.wait_for(2, workers=2)
        wait_until(lambda: f"[host {DEAF}] expected a copy of {self.folder} in" in "".join(job.err))
        self.stop(job)
        self.assertTrue((self.folder / "copy" / "of it" / "audit").exists())

    def test_only_the_new_host_that_differs_is_refused(self):
        job = self.job("--elastic-at", "step", "--restart-budget", 0, words=("steps=30", "epochs=200", "facts=other"))
        job.wait_for(1)
        job.edit("localhost", A)
        wait_until(lambda: f"[worker 1 on {A}] expected model same, as the others have, got other" in "".join(job.err))
        self.stop(job)
        self.assertEqual((job.logged(), job.generation()), ([], 1))

    def test_max_workers(self):
        job = self.job("--elastic-at", "step", "--max-workers", 2)
        job.wait_for(1)
        job.edit("localhost", A, B)
        job.wait_for(2, workers=2)
        time.sleep(0.5)
        done = self.stop(job)
        self.assertEqual(done.err.count("--max-workers 2\n"), 1)
        self.assertEqual(job.logged(), [f"0 ADDED {A}"])

    # ---- the file ----
    def test_invalid_files_have_no_effect(self):
        job = self.job("--elastic-at", "step", hosts=("localhost", A))
        job.wait_for(1, workers=2)

        def replace(text):
            new = job.folder / "new"
            new.write_bytes(text)
            new.rename(job.hosts)

        def said():
            return "".join(job.err)

        wait_until(lambda: said().count("Launching worker node") == 2)
        for bad, why in ((b"", "expected at least one host, got no host"), (b"-oProxyCommand=touch\n", "expected a host as NAME"),
                         (b"# all gone\n", "expected at least one host, got no host"), (b"localhost reboot\n", "after the host"),
                         (b"$(reboot)\n", "expected a host as NAME"), (b"\xff\xfe\0\n", "expected a host as NAME"),
                         (b"localhost slots=0\n", "expected slots=N"), (b"a\n" * 600000, "expected at most")):
            before = len(said())
            replace(bad)
            with self.subTest(why=why, bad=bad[:40]):
                wait_until(lambda: why in said()[before:])
            time.sleep(0.3)
            self.assertEqual(said()[before:].count("\n"), 1, bad)
        for make, why in ((job.hosts.unlink, "No such file"), (lambda: os.mkfifo(job.hosts), "expected a regular file"),
                          (lambda: (job.hosts.unlink(), job.hosts.mkdir()), "a folder")):
            before = len(said())
            make()
            wait_until(lambda: why in said()[before:])
            time.sleep(1.5)
            self.assertEqual(said()[before:].count("\n"), 1, why)
        job.hosts.rmdir()
        self.assertEqual((job.logged(), job.generation()), ([], 1))
        # CRLF, comments and repeated lines are allowed.
        replace(f"# mine\r\nlocalhost\r\n\r\n{A}\r\n{A}\r\n{B}  # new\r\n".encode())
        wait_until(lambda: job.logged() == [f"0 ADDED {B}"])
        self.stop(job)

    def test_file_that_is_written_in_place_counts_when_it_is_complete(self):
        job = self.job("--elastic-at", "step")
        job.wait_for(1)
        with job.hosts.open("w") as out:
            for part in ("local", "host\n", A[:8], A[8:]):
                out.write(part)
                out.flush()
                time.sleep(0.5)
            said = f"[{job.hosts}] expected a newline at the end, got an incomplete last line"
            wait_until(lambda: said in "".join(job.err))
            self.assertEqual(job.logged(), [])
            out.write("\n")
        wait_until(lambda: job.logged() == [f"0 ADDED {A}"])
        self.stop(job)

    def test_host_of_the_launcher_stays(self):
        job = self.job("--elastic-at", "step", hosts=("localhost", A))
        job.wait_for(1, workers=2)
        job.edit(A)
        job.edit(A, B)
        job.wait_for(2, workers=3)
        done = self.stop(job)
        self.assertEqual(done.err.count("warning: localhost stays in the job: the launcher runs there\n"), 1)

    def test_log_continues(self):
        for first in (0, 2):
            self.folder.joinpath("audit").unlink(missing_ok=True)
            job = self.job("--elastic-at", "step")
            job.wait_for(1)
            job.edit("localhost", A)
            wait_until(lambda: len(job.logged()) == first + 1)
            job.edit("localhost")
            wait_until(lambda: len(job.logged()) == first + 2)
            self.stop(job)
        self.assertEqual(job.logged(), [f"0 ADDED {A}", f"1 REMOVED {A}", f"2 ADDED {A}", f"3 REMOVED {A}"])

    def test_host_by_hand(self):
        job = self.job("--elastic-at", "step")
        job.wait_for(1)
        done = self.launch("--launch-worker", "--host", A, "--elastic-dir", job.folder)
        self.assertEqual(done.out, f"{A} has been added to {job.hosts}; {job.log} will show when it joins\n")
        wait_until(lambda: job.logged() == [f"0 ADDED {A}"])
        done = self.launch("--launch-worker", "--host", A, "--elastic-dir", job.folder, code=2)
        self.assertIn(f"got {A}, which is in line 2", done.err)
        second = self.launch("-n", 1, "--elastic", "--elastic-dir", job.folder, ELASTIC_RANK, code=2)
        self.assertIn("which another job uses. hint: name another folder with --elastic-dir.", second.err)
        self.stop(job)
        done = self.launch("--launch-worker", "--host", B, "--elastic-dir", job.folder, code=2)
        self.assertIn("expected a running job with its hosts file in", done.err)

    # ---- the command line ----
    def test_bad_command_lines(self):
        for options, message in ((("--elastic", "-n", 1, "--launcher", "mpi", ELASTIC_RANK), "--launcher"),
                                 (("--elastic", "-n", 1, ELASTIC_RANK, "rigid"), "--elastic"),
                                 (("--elastic-training-enabled", "maybe", "-n", 1, ELASTIC_RANK), "--elastic-training-enabled"),
                                 (("--min-workers", 2, "-n", 1, ELASTIC_RANK), "--min-workers"),
                                 (("--elastic", "--min-workers", 3, "--max-workers", 2, "-n", 1, ELASTIC_RANK), "--max-workers"),
                                 (("--elastic", "--min-workers", 3, "-n", 1, ELASTIC_RANK), "--min-workers"),
                                 (("--elastic", "--max-workers", 1, "-n", 2, ELASTIC_RANK), "--max-workers"),
                                 (("--elastic", "--prepare-script", "none", "-n", 1, ELASTIC_RANK), None),
                                 (("--launch-worker",), "--launch-worker"), (("--host", A, "-n", 1, "true"), "--host"),
                                 (("--launch-worker", "--host", A, "true"), "--launch-worker"),
                                 (("--elastic", "--elastic-dir", "none/at/all", "-n", 1, ELASTIC_RANK), None)):
            with self.subTest(options=options):
                done = self.finish(self.start(*options))
                self.assertIn(done.returncode, (2, 3), done.err)
                if message:
                    self.assertIn(f"tutti-launch: [{message}", self.message(done))

    def test_older_option_name(self):
        """The older option takes True or False."""
        for word, there in (("False", ()), ("True", ("--elastic-dir", self.folder))):
            done = self.launch("--elastic-training-enabled", word, *there, "-n", 1, "sh", "-c",
                               "echo ${TUTTI_ELASTIC:-none} ${ELASTIC_TRAINING_ENABLED:-none}")
            self.assertIn("[0] 1 1\n" if there else "[0] none none\n", done.out)
            self.assertEqual("Created worker host file" in done.err, bool(there))


if __name__ == "__main__":
    main()
