#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""tutti-launch --elastic: workers join, leave, are replaced and lost while the job runs. Other hosts are names whose ssh
is a script that runs the command here."""
import os
import shutil
import signal
import time
from pathlib import Path

from elastic_case import Job
from launch_case import ELASTIC_RANK, LAUNCH, LaunchCase, main, wait_until

# Hosts of a documentation network; .66 refuses, .77 has another key.
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


class Elastic(LaunchCase):
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
        """Ends a job that goes on, as its user does."""
        job.process.send_signal(signal.SIGTERM)
        done = job.end(code=143)
        self.assertIn("saved at step", done.out)
        return done

    def test_launcher_that_is_replaced(self):
        """An update of the launcher's file while a job runs: who joins then is started by the new one."""
        own = self.folder / "tutti-launch"
        shutil.copy(LAUNCH, own)
        job = self.job(launch=own)
        job.wait_for(1)
        own.unlink()
        shutil.copy(LAUNCH, own)
        job.edit("localhost", A)
        job.wait_for(2, workers=2)
        self.stop(job)

    # ---- in order ----
    def test_starts_with_one_grows_and_shrinks(self):
        job = self.job()
        job.wait_for(1)
        job.edit("localhost", A)
        wait_until(lambda: job.logged() == [f"0 ADDED {A}"])
        job.wait_for(2, workers=2)
        job.edit("localhost")
        wait_until(lambda: job.logged() == [f"0 ADDED {A}", f"1 REMOVED {A}"])
        job.wait_for(3, workers=1)
        done = self.stop(job)
        self.assertIn("[1] let go at step", done.out)
        self.assertRegex(done.out, r"\[1\] joins as 1 of 2 in epoch \d+, elastic 1\n")
        for line in ("Created worker host file " + str(job.hosts), f"Created worker host log file {job.log}",
                     "Launching worker node at ip: localhost", f"Launching worker node at ip: {A}"):
            self.assertIn(f"tutti-launch: {line}\n", done.err)
        # At the end of an epoch, not before.
        for generation in (1, 2):
            self.assertEqual(max(s for g, s, _ in job.steps() if g == generation) % job.epoch, 0)

    def test_epoch_that_a_newcomer_begins_with(self):
        job = self.job(words=("steps=10", "epochs=400"))
        job.wait_for(1)
        job.edit("localhost", A)
        job.wait_for(2, workers=2)
        done = self.stop(job)
        told = int(done.out.split("[1] joins as 1 of 2 in epoch ")[1].split(",")[0])
        first = min(s for g, s, _ in job.steps() if g == 2)
        self.assertLessEqual(told * job.epoch + 1, first)
        self.assertGreater(told, 0)

    def test_work_that_is_finished_ends_the_job(self):
        job = self.job(words=("steps=10", "epochs=12", "load=60000"))
        job.wait_for(1)
        job.edit("localhost", A)  # who is still on its way is not waited for
        done = job.end()
        self.assertIn("[0] done at step 60\n", done.out)
        self.assertEqual(job.logged(), [])

    def test_replaced_in_one_edit_at_epochs(self):
        """Who is removed goes now, who is added comes an epoch later."""
        job = self.job(hosts=("localhost", A, B))
        job.wait_for(1, workers=3)
        job.edit("localhost", A, C)
        wait_until(lambda: job.logged() == [f"0 REMOVED {B}", f"1 ADDED {C}"])
        job.wait_for(3, workers=3)
        self.stop(job)
        without = {s for g, s, _ in job.steps() if g == 2}
        self.assertGreaterEqual(len(without), job.epoch)
        self.assertEqual({n for g, _, n in job.steps() if g == 2}, {0, 1})
        self.assertEqual({n for g, _, n in job.steps() if g == 3}, {0, 1, 3})

    def test_replaced_in_one_edit_at_steps(self):
        job = self.job("--elastic-at", "step", hosts=("localhost", A), words=("steps=30", "epochs=1"), epoch=100000)
        job.wait_for(1, workers=2)
        job.edit("localhost", B)
        wait_until(lambda: sorted(line.split(" ", 1)[1] for line in job.logged()) == [f"ADDED {B}", f"REMOVED {A}"])
        job.wait_for(2, workers=2)
        self.stop(job)

    def test_the_only_other_host_is_replaced_although_two_are_needed(self):
        """The new one comes first then."""
        job = self.job("--min-workers", 2, hosts=("localhost", A))
        job.wait_for(1, workers=2)
        job.edit("localhost", B)
        wait_until(lambda: sorted(line.split(" ", 1)[1] for line in job.logged()) == [f"ADDED {B}", f"REMOVED {A}"])
        done = self.stop(job)
        self.assertIn(f"warning: {A} stays in the job until others have joined: without it there would be fewer than 2 "
                      "workers", done.err)

    def test_slots(self):
        job = self.job("--elastic-at", "step")
        job.wait_for(1)
        job.edit("localhost slots=3")
        job.wait_for(2, workers=3)
        job.edit("localhost slots=2")
        job.wait_for(3, workers=2)
        self.stop(job)
        self.assertEqual(job.logged(), [])

    def test_worker_that_gets_sigterm_leaves(self):
        """And its host stays unused until it is listed anew."""
        job = self.job("--elastic-at", "step", hosts=("localhost", A))
        job.wait_for(1, workers=2)
        job.kill(1, signal.SIGTERM)
        wait_until(lambda: job.logged() == [f"0 REMOVED {A}"])
        job.wait_for(2, workers=1)
        time.sleep(1.5)
        self.assertEqual(job.logged(), [f"0 REMOVED {A}"])
        job.edit("localhost")
        time.sleep(0.3)
        job.edit("localhost", A)
        wait_until(lambda: job.logged() == [f"0 REMOVED {A}", f"1 ADDED {A}"])
        done = self.stop(job)
        self.assertIn(f"worker 1 on {A} leaves; its place is not used until the host is listed anew\n", done.err)
        self.assertIn(f"worker 1 on {A} has left\n", done.err)
        self.assertNotIn("warning", done.err)

    def test_the_last_worker_does_not_leave_but_stops_the_job(self):
        job = self.job()
        job.wait_for(1)
        job.kill(0, signal.SIGTERM)
        done = job.end(code=143)
        self.assertIn("[0] saved at step", done.out)

    # ---- losses ----
    def test_killed_workers_are_made_good(self):
        for victim in (0, 1):
            with self.subTest(victim=victim):
                self.folder.joinpath("audit").unlink(missing_ok=True)
                job = self.job("--elastic-at", "step", hosts=("localhost", A), folder=f"killed{victim}")
                job.wait_for(1, workers=2)
                job.kill(victim, signal.SIGKILL)
                job.wait_for(3, workers=2)
                done = self.stop(job)
                where = ("localhost", A)[victim]
                self.assertIn(f"warning: worker {victim} on {where}: its end by SIGKILL; the others go on\n", done.err)
                self.assertIn("[2] joins as 2 of 2", done.out)
                self.assertEqual(job.logged(), [f"0 REMOVED {where}", f"1 ADDED {where}"])

    def test_the_last_worker_that_is_killed_ends_the_job(self):
        job = self.job()
        job.wait_for(1)
        job.kill(0, signal.SIGKILL)
        done = job.end(code=5)
        self.assertIn("[worker 0 on localhost] expected exit code 0, got its end by SIGKILL", self.message(done))

    def test_stopped_worker_is_given_up_and_ended(self):
        job = self.job("--elastic-at", "step", "--rank-timeout", 1.5, hosts=("localhost", A))
        job.wait_for(1, workers=2)
        pid = job.pid(1)
        os.kill(pid, signal.SIGSTOP)
        job.wait_for(2, workers=1)
        wait_until(lambda: not os.path.exists(f"/proc/{pid}"))
        job.wait_for(3, workers=2)
        done = self.stop(job)
        self.assertIn(f"warning: worker 1 on {A}: no sign of life for 1.5 s; the others go on\n", done.err)
        self.assertEqual(job.logged(), [f"0 REMOVED {A}", f"1 ADDED {A}"])

    def test_lost_agent(self):
        """All of a host at once, as where its connection breaks."""
        job = self.job("--elastic-at", "step", "--rank-timeout", 1.5, hosts=("localhost", f"{A} slots=2"))
        job.wait_for(1, workers=3)
        agent = int(Path(f"/proc/{job.pid(1)}/status").read_text().split("PPid:")[1].split()[0])
        os.kill(agent, signal.SIGKILL)
        job.wait_for(2, workers=1)
        job.wait_for(3, workers=3)
        done = self.stop(job)
        self.assertIn(f"[host {A}] expected its tutti-launch to stay", done.err)
        self.assertEqual(job.logged(), [f"0 REMOVED {A}", f"1 ADDED {A}"])

    def test_too_few(self):
        job = self.job("--elastic-at", "step", "--min-workers", 2, "--min-timeout", 2, "--restart-budget", 0,
                       hosts=("localhost", A))
        job.wait_for(1, workers=2)
        job.kill(1, signal.SIGKILL)
        done = job.end(code=5)
        self.assertIn("warning: 1 worker of at least 2; the job waits for more\n", done.err)
        self.assertIn("[job] expected at least 2 workers within 2 s, got 1.", self.message(done))

    def test_too_few_until_another_one_comes(self):
        job = self.job("--min-workers", 2, "--restart-budget", 0, hosts=("localhost", A), epoch=100000)
        job.wait_for(1, workers=2)
        job.kill(1, signal.SIGKILL)
        wait_until(lambda: job.logged() == [f"0 REMOVED {A}"])
        job.edit("localhost", B)
        job.wait_for(2, workers=2)  # which does not wait for an epoch
        self.stop(job)

    def test_host_that_fails_again_and_again(self):
        job = self.job("--elastic-at", "step", "--restart-budget", 2, words=("steps=30", "epochs=200", "die"))
        job.wait_for(1)
        began = time.monotonic()
        job.edit("localhost", A)
        wait_until(lambda: (self.folder / "ssh.log").exists() and (self.folder / "ssh.log").read_text().count("\n") == 3)
        self.assertGreater(time.monotonic() - began, 3)  # after 1 s, and 2 s more
        time.sleep(1)
        job.edit("localhost", B)
        wait_until(lambda: B in (self.folder / "ssh.log").read_text())
        done = self.stop(job)
        self.assertEqual(done.err.count(f"warning: {A} is not used until it is listed anew: --restart-budget 2\n"), 1)
        self.assertEqual((job.logged(), job.generation()), ([], 1))

    def test_killed_launcher_leaves_nothing(self):
        job = self.job("--elastic-at", "step", hosts=("localhost", A))
        job.wait_for(1, workers=2)
        job.edit("localhost", A, B)
        job.wait_for(2, workers=3)
        job.process.kill()
        job.process.wait()
        wait_until(lambda: not self.marked(), 10)

    # ---- death before the job has begun ----
    def test_begins_without_who_dies_before(self):
        """Killed or with an exit code, before it has asked to be let in or behind that, the first one too."""
        for victim, how, said in ((1, "3", "exit code 3"), (0, "kill", "its end by SIGKILL"),
                                  (1, "asked", "its end by SIGKILL")):
            with self.subTest(victim=victim, how=how):
                self.folder.joinpath("audit").unlink(missing_ok=True)
                job = self.job("--elastic-at", "step", hosts=("localhost", A, B), folder=f"died{victim}{how}",
                               words=("steps=30", "epochs=200", "load=1000", f"dies={victim}:{how}"))
                job.wait_for(1, workers=2)
                self.assertEqual({n for g, _, n in job.steps() if g == 1}, {0, 1, 2} - {victim})
                job.wait_for(2, workers=3)  # it is started again, as one that joins
                done = self.stop(job)
                where = ("localhost", A)[victim]
                self.assertIn(f"warning: worker {victim} on {where}: {said}; the job begins without it\n", done.err)
                self.assertIn("[3] joins as 3 of 3", done.out)
                self.assertEqual(job.logged(), [f"0 REMOVED {where}", f"1 ADDED {where}"])

    def test_host_that_is_lost_before(self):
        job = self.job("--elastic-at", "step", "--restart-budget", 0, hosts=("localhost", f"{A} slots=2"),
                       words=("steps=30", "epochs=200", "load=3000", "dies=1:asked"))
        agent = int(Path(f"/proc/{job.pid(2)}/status").read_text().split("PPid:")[1].split()[0])
        time.sleep(1)  # the launcher has heard that they run: a host that cannot start its own ends the job
        os.kill(agent, signal.SIGKILL)
        job.wait_for(1, workers=1)
        done = self.stop(job)
        self.assertIn("; the job begins without it\n", done.err)
        self.assertEqual(job.logged(), [f"0 REMOVED {A}"])

    def test_all_die_before(self):
        """What all have wrong is the job's own exit code; fewer than --min-workers are no job."""
        job = self.job(hosts=("localhost", A), words=("dies=0:2", "dies=1:2"))
        done = job.end(code=2)
        self.assertIn("got exit code 2", self.message(done))
        job = self.job("--min-workers", 2, hosts=("localhost", A), words=("load=500", "dies=1:3"), folder="few")
        done = job.end(code=3)
        self.assertIn(f"[worker 1 on {A}] expected exit code 0, got exit code 3", self.message(done))

    # ---- hosts that cannot join ----
    def test_hosts_that_cannot_be_reached(self):
        job = self.job("--elastic-at", "step")
        job.wait_for(1)
        job.edit("localhost", DEAF, KEY, A)
        job.wait_for(2, workers=2)
        done = self.stop(job)
        self.assertIn(f"warning: [host {DEAF}] expected a connection by ssh, got ssh: connect to host {DEAF} port 22: No "
                      f"route to host. hint: 'ssh {DEAF}' must work from here without a question. It is tried again in 1 s.",
                      done.err)
        self.assertIn(f"[host {KEY}] expected a connection by ssh, got Host key verification failed.", done.err)
        self.assertEqual(job.logged(), [f"0 ADDED {A}"])

    def test_host_keys(self):
        """Who joins must be known, unless an option says otherwise; who is there at the beginning need not."""
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
        done = self.stop(job)
        self.assertIn(f"[host {DEAF}] expected a connection by ssh", done.err)
        self.assertIn(f"[1] prepares {A}\n", done.out)
        self.assertIn(f"prepares {B}\n", done.out)
        self.assertIn(f"warning: [host {B}] expected exit code 0 of --prepare-script, got exit code 1. It is tried again in",
                      done.err)
        self.assertEqual(job.logged(), [f"0 ADDED {A}"])
        self.assertNotIn("prepares localhost", done.out)

    def test_copy_of_the_folder(self):
        job = self.job("--elastic-at", "step", "--sync-dst-dir", self.folder / "copy" / "of it")
        job.wait_for(1)
        job.edit("localhost", A, DEAF)
        job.wait_for(2, workers=2)
        done = self.stop(job)
        self.assertTrue((self.folder / "copy" / "of it" / "audit").exists())
        self.assertIn(f"[host {DEAF}] expected a copy of {self.folder} in", done.err)

    def test_newcomer_that_differs_is_refused_alone(self):
        job = self.job("--elastic-at", "step", "--restart-budget", 0, words=("steps=30", "epochs=200", "facts=other"))
        job.wait_for(1)
        job.edit("localhost", A)
        wait_until(lambda: (self.folder / "ssh.log").exists())
        time.sleep(1)
        done = self.stop(job)
        self.assertIn(f"[worker 1 on {A}] expected model same, as the others have, got other", done.err)
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
    def test_bad_files_change_nothing(self):
        job = self.job("--elastic-at", "step", hosts=("localhost", A))
        job.wait_for(1, workers=2)

        def replace(text):
            new = job.folder / "new"
            new.write_bytes(text)
            new.rename(job.hosts)

        def said():
            return "".join(job.err)

        wait_until(lambda: said().count("Launching worker node") == 2)
        for bad, why in ((b"", "expected a host, got none"), (b"-oProxyCommand=touch\n", "expected a host as NAME"),
                         (b"# all gone\n", "expected a host, got none"), (b"localhost reboot\n", "after the host"),
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
        # CRLF, comments, and a line twice are none of these.
        replace(f"# mine\r\nlocalhost\r\n\r\n{A}\r\n{A}\r\n{B}  # new\r\n".encode())
        wait_until(lambda: job.logged() == [f"0 ADDED {B}"])
        self.stop(job)

    def test_file_that_is_written_in_place_counts_when_it_is_whole(self):
        job = self.job("--elastic-at", "step")
        job.wait_for(1)
        with job.hosts.open("w") as out:
            for part in ("local", "host\n", A[:8], A[8:]):
                out.write(part)
                out.flush()
                time.sleep(0.5)
            time.sleep(1.5)  # without its newline it is not whole
            self.assertEqual(job.logged(), [])
            out.write("\n")
        wait_until(lambda: job.logged() == [f"0 ADDED {A}"])
        done = self.stop(job)
        self.assertIn(f"[{job.hosts}] expected a newline at its end, got the middle of a line", done.err)

    def test_the_launchers_host_stays(self):
        job = self.job("--elastic-at", "step", hosts=("localhost", A))
        job.wait_for(1, workers=2)
        job.edit(A)
        job.edit(A, B)
        job.wait_for(2, workers=3)
        done = self.stop(job)
        self.assertEqual(done.err.count("warning: localhost stays in the job: the launcher runs there\n"), 1)

    def test_log_goes_on(self):
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
        self.assertEqual(done.out, f"{A} is in {job.hosts}; {job.log} tells when it has joined\n")
        wait_until(lambda: job.logged() == [f"0 ADDED {A}"])
        done = self.launch("--launch-worker", "--host", A, "--elastic-dir", job.folder, code=2)
        self.assertIn(f"got {A}, as in line 2", done.err)
        second = self.launch("-n", 1, "--elastic", "--elastic-dir", job.folder, ELASTIC_RANK, code=2)
        self.assertIn("where another job has its hosts file. hint: --elastic-dir names another one.", second.err)
        self.stop(job)
        done = self.launch("--launch-worker", "--host", B, "--elastic-dir", job.folder, code=2)
        self.assertIn("expected a job that has its hosts file in", done.err)

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

    def test_older_word(self):
        """True and False mean what they say."""
        for word, there in (("False", ()), ("True", ("--elastic-dir", self.folder))):
            done = self.launch("--elastic-training-enabled", word, *there, "-n", 1, "sh", "-c",
                               "echo ${TUTTI_ELASTIC:-none} ${ELASTIC_TRAINING_ENABLED:-none}")
            self.assertIn("[0] 1 1\n" if there else "[0] none none\n", done.out)
            self.assertEqual("Created worker host file" in done.err, bool(there))


if __name__ == "__main__":
    main()
