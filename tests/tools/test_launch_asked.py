#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests tutti-launch with programs that answer how to start them: through MPI, with servers, or without a launcher.
"""
from launch_case import LaunchCase, main


class Asked(LaunchCase):
    def fake(self, answer, body='echo "$TUTTI_RANK/$TUTTI_SIZE $TUTTI_LOCAL_RANK $*"'):
        """Makes a program that contains the marker for queries. It writes the query to the file `asked`."""
        path = self.folder / "fake"
        path.write_text(f"""#!/bin/sh
# tutti-launch may ask this program by TUTTI_ASK
if [ -n "$TUTTI_ASK" ]; then
  echo "$TUTTI_RANK/$TUTTI_SIZE $TUTTI_LOCAL_SIZE $A $*" >>asked
  echo "a library's greeting"
  {answer}
  exit
fi
{body}
""")
        path.chmod(0o755)
        return path

    def asked(self):
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []

    def test_program_is_asked_once_how_to_start_it(self):
        fake = self.fake("echo TUTTI-ANSWER 1 strategy=nccl mpi=0 servers=0")
        done = self.launch("-n", 2, "--env", "A=x", fake, "--k", "v")
        self.assertEqual(sorted(done.out.splitlines()), ["[0] 0/2 0 --k v", "[1] 1/2 1 --k v"])
        self.assertEqual(self.asked(), ["0/2 2 x --k v"])
        self.assertIn("2 workers on 1 host, local; rank 0 on localhost", done.err)

    def test_only_programs_with_the_marker_are_asked(self):
        """A program without the marker is started unchanged, and only once."""
        self.launch("-n", 2, "sh", "-c", "echo $TUTTI_RANK. $TUTTI_ASK >>ran")
        self.assertEqual(sorted((self.folder / "ran").read_text().split()), ["0.", "1."])

    def test_ranks_of_mpi_are_not_started_otherwise(self):
        fake = self.fake("echo TUTTI-ANSWER 1 strategy=mpi mpi=1 servers=0")
        done = self.launch("-n", 2, "--launcher", "local", fake, code=2)
        self.assertIn("[--launcher] expected mpi, because", self.message(done))
        self.assertIn("leave --launcher out", self.message(done))
        self.assertEqual(done.out, "")
        # A single process is no job of several processes.
        self.assertIn("[0] 0/1 0", self.launch("-n", 1, "--launcher", "local", fake).out)

    def test_number_of_servers_for_a_program_without_servers(self):
        fake = self.fake("echo TUTTI-ANSWER 1 strategy=mpi mpi=1 servers=0")
        for words in (["-s", 1], ["-s", 2, "--launcher", "local"]):
            done = self.launch("-n", 2, *words, "--log-dir", "logs", fake, code=2)
            self.assertIn("[--num-servers] expected none, because", self.message(done))
            self.assertEqual(done.out, "")
            self.assertFalse((self.folder / "logs").exists())
        done = self.launch("-n", 1, "-s", 1, "--launcher", "mpi", "true", code=2)
        self.assertIn("[--num-servers] expected no servers with --launcher mpi", self.message(done))

    def test_servers_of_a_program_that_needs_them(self):
        """In addition to the workers, as many servers are started, unless the command line gives a number."""
        words = 'echo "$TUTTI_ROLE $TUTTI_LOCAL_RANK/$TUTTI_LOCAL_SIZE $DMLC_NUM_WORKER $DMLC_NUM_SERVER"'
        fake = self.fake("echo TUTTI-ANSWER 1 strategy=ps mpi=0 servers=1", words)
        done = self.launch("-n", 1, "-s", 1, fake)
        self.assertEqual(sorted(done.out.splitlines()), ["[0] worker 0/1 1 1", "[s0] server 0/1 1 1"])
        done = self.launch("-n", 2, "--env-server", "A=b", fake)
        self.assertEqual(sorted(done.out.splitlines()), ["[0] worker 0/2 2 2", "[1] worker 1/2 2 2", "[s0] server 0/2 2 2",
                                                         "[s1] server 1/2 2 2"])
        self.assertIn("2 workers, 2 servers on 1 host, local", done.err)
        done = self.launch("-n", 2, "-s", 1, fake)
        self.assertEqual(done.out.count("server"), 1)
        for words, why in ((["-s", 0], "[--num-servers] expected 1 or more, because"),
                           (["--launcher", "mpi"], "[--launcher] expected local or ssh, because"),
                           (["--server-restarts", 1], "[--server-restarts] expected 0, because")):
            done = self.launch("-n", 2, *words, fake, code=2)
            self.assertIn(why, self.message(done))
            self.assertEqual(done.out, "")
        fake = self.fake("echo TUTTI-ANSWER 1 strategy=ps_async mpi=0 servers=1 restart=1", "echo $TUTTI_ROLE")
        self.launch("-n", 1, "--server-restarts", 1, fake)
        for words in (["--env-server", "A=b"], ["--server-restarts", 1]):
            self.assertIn("expected servers, -s N, got none", self.message(self.launch("-n", 2, *words, "true", code=2)))

    def test_servers_end_with_the_workers(self):
        job = self.start("-n", 2, "-s", 2, "sh", "-c", 'if [ $TUTTI_ROLE = server ]; then echo up; sleep 1000; fi')
        self.finish(job)
        self.assertEqual((job.returncode, job.err.count("expected")), (0, 0), job.err)

    def test_error_of_the_program_is_printed_once(self):
        fake = self.fake("echo 'fake: [--k] expected a value, got none.' >&2; exit 3")
        for words in ([], ["--launcher", "local"], ["--launcher", "mpi"]):
            done = self.launch("-n", 4, *words, fake, code=3)
            self.assertEqual((done.out, done.err.count("[--k]")), ("", 1), done.err)
            self.assertIn("[worker 0 on localhost] expected exit code 0, got exit code 3, before any process was started",
                          self.message(done))

    def test_program_with_another_answer(self):
        """A program may end without an answer, for example because it prints --help."""
        self.assertIn("[1] 1/2 1", self.launch("-n", 2, self.fake("echo usage")).out)
        done = self.launch("-n", 1, self.fake("kill -SEGV $$"))
        self.assertIn("warning:", done.err)
        self.assertIn("[0] 0/1 0", done.out)


if __name__ == "__main__":
    main()
