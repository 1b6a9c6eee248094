#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests tutti-launch --elastic: workers join, leave, are replaced and are lost while the job runs."""
import os
import shutil
import signal
import time
from pathlib import Path

from elastic_case import A, B, C, DEAF, ElasticCase
from launch_case import LAUNCH, main, parent, wait_until


class Elastic(ElasticCase):
    def test_launcher_that_is_replaced(self):
        """If the launcher's file is updated while a job runs, the new program starts later workers."""
        own = self.folder / "tutti-launch"
        shutil.copy(LAUNCH, own)
        job = self.job(launch=own)
        job.wait_for(1)
        own.unlink()
        shutil.copy(LAUNCH, own)
        job.edit("localhost", A)
        job.wait_for(2, workers=2)
        self.stop(job)

    # ---- orderly changes ----
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
        # The change is at the end of an epoch.
        for generation in (1, 2):
            self.assertEqual(max(s for g, s, _ in job.steps() if g == generation) % job.epoch, 0)

    def test_epoch_with_which_a_new_worker_begins(self):
        job = self.job(words=("steps=10", "epochs=400"))
        job.wait_for(1)
        job.edit("localhost", A)
        job.wait_for(2, workers=2)
        done = self.stop(job)
        told = int(done.out.split("[1] joins as 1 of 2 in epoch ")[1].split(",")[0])
        first = min(s for g, s, _ in job.steps() if g == 2)
        self.assertLessEqual(told * job.epoch + 1, first)
        self.assertGreater(told, 0)

    def test_finished_work_ends_the_job(self):
        job = self.job(words=("steps=10", "epochs=12", "load=60000"))
        job.wait_for(1)
        job.edit("localhost", A)  # the job does not wait for a worker that has not arrived yet
        done = job.end()
        self.assertIn("[0] done at step 60\n", done.out)
        self.assertEqual(job.logged(), [])

    def test_replaced_in_one_edit_at_epochs(self):
        """The removed worker leaves one epoch before the added worker joins."""
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

    def test_only_other_host_is_replaced_although_two_are_needed(self):
        """If the old worker left first, there would be too few workers. So the new worker joins before."""
        job = self.job("--min-workers", 2, hosts=("localhost", A))
        job.wait_for(1, workers=2)
        job.edit("localhost", B)
        wait_until(lambda: sorted(line.split(" ", 1)[1] for line in job.logged()) == [f"ADDED {B}", f"REMOVED {A}"])
        done = self.stop(job)
        self.assertIn(f"warning: {A} stays in the job until other workers have joined: without it there would be fewer than 2 "
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
        """The host of a worker that has left is not used until the hosts file lists it again."""
        job = self.job("--elastic-at", "step", hosts=("localhost", A))
        job.wait_for(1, workers=2)
        job.kill(1, signal.SIGTERM)
        wait_until(lambda: job.logged() == [f"0 REMOVED {A}"])
        job.wait_for(2, workers=1)
        time.sleep(1.5)
        self.assertEqual(job.logged(), [f"0 REMOVED {A}"])
        job.edit("localhost", DEAF)
        wait_until(lambda: f"[host {DEAF}]" in "".join(job.err))  # shows that the launcher has read the edit
        job.edit("localhost", A)
        wait_until(lambda: job.logged() == [f"0 REMOVED {A}", f"1 ADDED {A}"])
        done = self.stop(job)
        self.assertIn(f"worker 1 on {A} leaves; its slot is not used until the host is removed from the hosts file "
                      "and listed again\n", done.err)
        self.assertIn(f"worker 1 on {A} has left\n", done.err)
        self.assertEqual([line for line in done.err.splitlines() if "warning" in line and DEAF not in line], [])

    def test_last_worker_stops_the_job_instead_of_leaving(self):
        job = self.job()
        job.wait_for(1)
        job.kill(0, signal.SIGTERM)
        done = job.end(code=143)
        self.assertIn("[0] saved at step", done.out)

    # ---- losses ----
    def test_killed_workers_are_replaced(self):
        for victim in (0, 1):
            with self.subTest(victim=victim):
                self.folder.joinpath("audit").unlink(missing_ok=True)
                job = self.job("--elastic-at", "step", hosts=("localhost", A), folder=f"killed{victim}")
                job.wait_for(1, workers=2)
                job.kill(victim, signal.SIGKILL)
                job.wait_for(3, workers=2)
                done = self.stop(job)
                where = ("localhost", A)[victim]
                self.assertIn(f"warning: worker {victim} on {where}: its end by SIGKILL; the other workers continue\n", done.err)
                self.assertIn("[2] joins as 2 of 2", done.out)
                self.assertEqual(job.logged(), [f"0 REMOVED {where}", f"1 ADDED {where}"])

    def test_killed_last_worker_ends_the_job(self):
        job = self.job()
        job.wait_for(1)
        job.kill(0, signal.SIGKILL)
        done = job.end(code=5)
        self.assertIn("[worker 0 on localhost] expected exit code 0, got its end by SIGKILL", self.message(done))

    def test_stopped_worker_is_given_up_and_ended(self):
        job = self.job("--elastic-at", "step", "--rank-timeout", 4, hosts=("localhost", A))
        job.wait_for(1, workers=2)
        pid = job.pid(1)
        os.kill(pid, signal.SIGSTOP)
        job.wait_for(2, workers=1)
        wait_until(lambda: not os.path.exists(f"/proc/{pid}"))
        job.wait_for(3, workers=2)
        done = self.stop(job)
        self.assertIn(f"warning: worker 1 on {A}: no message for 4 s; the other workers continue\n", done.err)
        self.assertEqual(job.logged(), [f"0 REMOVED {A}", f"1 ADDED {A}"])

    def test_end_that_is_reported_after_the_others_work_again(self):
        """After a worker was removed from the job, its end has no effect: the job runs until the user stops it."""
        job = self.job("--elastic-at", "step", "--rank-timeout", 4, "--restart-budget", 0, hosts=("localhost", A))
        job.wait_for(1, workers=2)
        pid = job.pid(1)
        agent = parent(pid)
        os.kill(agent, signal.SIGSTOP)  # so that the launcher gets no message from the worker
        try:
            job.wait_for(2, workers=1)
            os.kill(pid, signal.SIGKILL)
        finally:
            os.kill(agent, signal.SIGCONT)
        wait_until(lambda: not os.path.exists(f"/proc/{agent}"))
        before = len(job.steps())
        wait_until(lambda: len(job.steps()) > before + 3)
        job.process.send_signal(signal.SIGINT)
        done = job.end(code=130)
        self.assertIn("saved at step", done.out)
        self.assertEqual(done.err.count("worker 1 on"), 1, done.err)  # the only message is that it was removed

    def test_lost_agent(self):
        """All workers of a host end at once, as after a broken connection."""
        job = self.job("--elastic-at", "step", "--rank-timeout", 4, hosts=("localhost", f"{A} slots=2"))
        job.wait_for(1, workers=3)
        agent = parent(job.pid(1))
        os.kill(agent, signal.SIGKILL)
        job.wait_for(2, workers=1)
        job.wait_for(3, workers=3)
        done = self.stop(job)
        self.assertIn(f"[host {A}] expected its tutti-launch to stay connected", done.err)
        self.assertEqual(job.logged(), [f"0 REMOVED {A}", f"1 ADDED {A}"])

    def test_too_few(self):
        job = self.job("--elastic-at", "step", "--min-workers", 2, "--min-timeout", 2, "--restart-budget", 0,
                       hosts=("localhost", A))
        job.wait_for(1, workers=2)
        job.kill(1, signal.SIGKILL)
        done = job.end(code=5)
        self.assertIn("warning: 1 worker of at least 2; the job waits for more\n", done.err)
        self.assertIn("[job] expected at least 2 workers within 2 s, got 1.", self.message(done))

    def test_too_few_until_another_worker_joins(self):
        job = self.job("--min-workers", 2, "--restart-budget", 0, hosts=("localhost", A), epoch=100000)
        job.wait_for(1, workers=2)
        job.kill(1, signal.SIGKILL)
        wait_until(lambda: job.logged() == [f"0 REMOVED {A}"])
        job.edit("localhost", B)
        job.wait_for(2, workers=2)  # the job does not wait for the end of an epoch
        self.stop(job)

    def test_host_that_fails_repeatedly(self):
        job = self.job("--elastic-at", "step", "--restart-budget", 2, words=("steps=30", "epochs=200", "die"))
        job.wait_for(1)
        began = time.monotonic()
        job.edit("localhost", A)
        wait_until(lambda: (self.folder / "ssh.log").exists() and (self.folder / "ssh.log").read_text().count("\n") == 3)
        self.assertGreater(time.monotonic() - began, 3)  # it waits for 1 s, and then for 2 s more
        time.sleep(1)
        job.edit("localhost", B)
        wait_until(lambda: B in (self.folder / "ssh.log").read_text())
        done = self.stop(job)
        given_up = f"warning: {A} is not used until it is removed from the hosts file and listed again: --restart-budget 2\n"
        self.assertEqual(done.err.count(given_up), 1)
        self.assertEqual((job.logged(), job.generation()), ([], 1))

    def test_killed_launcher_leaves_no_process(self):
        job = self.job("--elastic-at", "step", hosts=("localhost", A))
        job.wait_for(1, workers=2)
        job.edit("localhost", A, B)
        job.wait_for(2, workers=3)
        job.process.kill()
        job.process.wait()
        wait_until(lambda: not self.marked())

    # ---- losses before the job has begun ----
    def test_job_begins_without_workers_that_die_before(self):
        """Workers, including the first one, are killed or exit with a code, before or after they have asked for
        admission."""
        for victim, how, said in ((1, "3", "exit code 3"), (0, "kill", "its end by SIGKILL"),
                                  (1, "asked", "its end by SIGKILL")):
            with self.subTest(victim=victim, how=how):
                self.folder.joinpath("audit").unlink(missing_ok=True)
                go = self.folder / f"go{victim}{how}"
                job = self.job("--elastic-at", "step", hosts=("localhost", A, B), folder=f"died{victim}{how}",
                               words=("steps=30", "epochs=200", f"after={go}", f"dies={victim}:{how}"))
                where = ("localhost", A)[victim]
                warning = f"warning: worker {victim} on {where}: {said}; the job begins without it\n"
                wait_until(lambda: warning in "".join(job.err))
                go.touch()
                job.wait_for(1, workers=2)
                self.assertEqual({n for g, _, n in job.steps() if g == 1}, {0, 1, 2} - {victim})
                job.wait_for(2, workers=3)  # the launcher starts it again, as a new worker
                done = self.stop(job)
                self.assertIn("[3] joins as 3 of 3", done.out)
                self.assertEqual(job.logged(), [f"0 REMOVED {where}", f"1 ADDED {where}"])

    def test_host_that_is_lost_before_the_job_begins(self):
        go = self.folder / "go"
        job = self.job("--elastic-at", "step", "--restart-budget", 0, hosts=("localhost", f"{A} slots=2"),
                       words=("steps=30", "epochs=200", f"after={go}", "dies=1:asked"))

        def gone():
            return "".join(job.err).count("; the job begins without it\n")
        wait_until(lambda: gone() == 1)
        wait_until(lambda: "[2] waits\n" in job.out)  # so the launcher knows that all workers of that host have been
                                                      # started
        os.kill(parent(job.pid(2)), signal.SIGKILL)
        wait_until(lambda: gone() == 2)
        go.touch()
        job.wait_for(1, workers=1)
        self.stop(job)
        self.assertEqual(job.logged(), [f"0 REMOVED {A}"])

    def test_all_die_before_the_job_begins(self):
        """If all workers fail with the same exit code, the job has this code; fewer than --min-workers cannot form a job."""
        job = self.job(hosts=("localhost", A), words=("dies=0:2", "dies=1:2"))
        done = job.end(code=2)
        self.assertIn("got exit code 2", self.message(done))
        job = self.job("--min-workers", 2, hosts=("localhost", A), words=(f"after={self.folder / 'go'}", "dies=1:3"), folder="few")
        done = job.end(code=3)
        self.assertIn(f"[worker 1 on {A}] expected exit code 0, got exit code 3", self.message(done))


if __name__ == "__main__":
    main()
