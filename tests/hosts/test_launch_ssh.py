#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests tutti-launch over ssh between hosts of a separate network: start, errors, cut links, bad hosts, cleanup."""
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from netns_cluster import SSH_PORT
from hosts_case import LAUNCH, PROGRESS_RANK, HostsCase, main
from launch_case import wait_until

# This folder has separate contents on each host.
PRIVATE = tempfile.mkdtemp(prefix="tutti-private-")
STUBBORN = "trap '' TERM INT; sleep 1000 & sleep 1000; sleep 1000"


class Ssh(HostsCase):
    def test_three_hosts(self):
        hosts = self.folder / "hosts"
        hosts.write_text(f"# the cluster\r\n{self.cluster.address(0)} slots=2\r\n\nroot@{self.cluster.names[1]}\n"
                         f"{self.cluster.address(2)}:{SSH_PORT} slots=2 # two\nroot@{self.cluster.names[1]} slots=1 # again\n")
        word = "it's \"$HOME\" `x`; * \\"
        done = self.launch("-H", hosts, "-n", 7, "--env", f"W={word}", "--log-dir", "logs", "sh", "-c",
                           'echo "$TUTTI_RANK/$TUTTI_SIZE $(hostname) $TUTTI_LOCAL_RANK/$TUTTI_LOCAL_SIZE $TUTTI_HOST '
                           '$TUTTI_ROOT|$W|$1|$(pwd)"', "sh", word, timeout=300)
        host = [0, 0, 1, 2, 2, 0, 0]
        local = ["0/4", "1/4", "0/1", "0/2", "1/2", "2/4", "3/4"]
        names = [self.cluster.address(0), self.cluster.names[1], self.cluster.address(2)]
        for rank in range(7):
            self.assertRegex(done.out, re.compile(
                rf"^\[{rank}\] {rank}/7 {self.cluster.names[host[rank]]} {local[rank]} {names[host[rank]]} "
                rf"{self.cluster.address(0)}:\d+\|{re.escape(word)}\|{re.escape(word)}\|{re.escape(str(self.folder))}$", re.M))
            # All hosts write their logs to one folder, as on a shared file system.
            self.assertIn(f"{rank}/7", (self.folder / "logs" / f"worker-{rank}.log").read_text())

    def test_this_host_too(self):
        hosts = self.folder / "hosts"
        hosts.write_text(f"{self.cluster.address(1)}\nlocalhost\n")
        # Options of the program in the environment reach each host.
        self.environment["TUTTI_EPOCHS"] = "a b"
        done = self.launch("-H", hosts, "sh", "-c", 'echo $(hostname) $TUTTI_ROOT; echo "epochs $TUTTI_EPOCHS"')
        self.assertIn("2 workers on 2 hosts, ssh; rank 0 on localhost", done.err)
        here = os.uname().nodename
        for rank in range(2):
            self.assertIn(f"[{rank}] epochs a b\n", done.out)
        self.assertRegex(done.out, re.compile(rf"^\[0\] {here} {self.cluster.here}:\d+$", re.M))
        self.assertRegex(done.out, re.compile(rf"^\[1\] {self.cluster.names[1]} {self.cluster.here}:\d+$", re.M))

    def test_this_host_by_its_address(self):
        """The launcher starts a process on its own host without ssh. This host has no sshd."""
        hosts = self.folder / "hosts"
        hosts.write_text(f"{self.cluster.address(1)}\n{self.cluster.here}\n")
        done = self.launch("-H", hosts, "sh", "-c", "echo $(hostname)")
        self.assertEqual(sorted(done.out.splitlines()), [f"[0] {os.uname().nodename}", f"[1] {self.cluster.names[1]}"])
        self.assertIn(f"rank 0 on {self.cluster.here}", done.err)

    def test_program_is_asked_on_the_host_of_rank_0(self):
        """The program exists only on the hosts. There it answers the launcher how to start it. Another launcher gets
        the same answer."""
        program = Path(PRIVATE) / "program"
        text = ("#!/bin/sh\n# tutti-launch may ask this program by TUTTI_ASK\n"
                'if [ "$TUTTI_ASK" ]; then echo "asked on $(hostname) $A" >&2; exit 3; fi\n')
        for host in (1, 2):
            self.cluster.run(host, ["sh", "-c", f"cat >{program}; chmod +x {program}"], input=text, text=True, check=True)
        try:
            done = self.launch("-H", self.cluster.hosts_file(hosts=[1, 2]), "--env", "A=x", program, code=3)
            self.assertIn(f"[0] asked on {self.cluster.names[1]} x\n", done.err)
            self.assertEqual(done.err.count("asked on"), 1)
            self.assertIn(f"[worker 0 on {self.cluster.address(1)}]", self.message(done))
        finally:
            for host in (1, 2):
                self.cluster.run(host, ["rm", "-f", str(program)])

    def test_one_process_for_each_gpu_of_each_host(self):
        done = self.launch("-n", 2, "-H", self.cluster.hosts_file([5, 1, 1]), "sh", "-c",
                           'echo "$TUTTI_RANK/$TUTTI_SIZE $(hostname) $TUTTI_LOCAL_RANK/$TUTTI_LOCAL_SIZE $*"', "sh",
                           "--network", "resnet", "--gpus", "0,1")
        self.assertEqual(sorted(done.out.splitlines()),
                         [f"[{r}] {r}/4 {self.cluster.names[r // 2]} {r % 2}/2 --network resnet --gpus 0,1" for r in range(4)])

    def test_secret_is_only_in_the_environment_of_the_process(self):
        secret = "s3cret-" + os.urandom(8).hex()
        self.environment["TOKEN"] = secret
        job = self.start("-H", self.cluster.hosts_file(), "--env", "TOKEN", "sh", "-c", 'echo "got $TOKEN"; sleep 3')
        for _ in range(3):
            self.assertIn(f"got {secret}", job.stdout.readline())
        seen = 0
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes()
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue
            self.assertNotIn(secret.encode(), command)
            if command.startswith(b"ssh\0") and self.cluster.ssh_config.encode() in command:
                seen += 1
                self.assertNotIn(secret.encode(), environment)
        self.assertEqual(seen, 3)
        self.finish(job)
        self.assertNotIn(secret, job.err)

    def test_blame_over_hosts(self):
        start = time.monotonic()
        done = self.launch("-H", self.cluster.hosts_file(2), "sh", "-c",
                           f"if [ $TUTTI_RANK = 3 ]; then exit 17; fi; {STUBBORN}", code=17)
        self.assertLess(time.monotonic() - start, 30)  # the time of --host-timeout
        self.assertIn(f"[worker 3 on {self.cluster.address(1)}] expected exit code 0, got exit code 17.", self.message(done))

    def run_ranks(self, *options, count=3):
        job = self.start("-H", self.cluster.hosts_file(), "-n", count, *options, PROGRESS_RANK, self.folder, 100000, 5)
        for rank in range(count):
            wait_until(lambda r=rank: self.at(r) >= 60)
        return job

    def at(self, rank):
        try:
            return int((self.folder / f"at-{rank}").read_text())
        except (OSError, ValueError):
            return -1

    def assert_stands(self, message, rank):
        """Checks the position of a rank in a message. A rank reports its position before it writes it to its file. An
        event between the two shows a position that is one bucket further."""
        step, bucket = map(int, re.search(r"step (\d+), bucket (\d)", message).groups())
        self.assertIn(3 * step + bucket - self.at(rank), (0, 1), message)

    def pid(self, rank):
        return int((self.folder / f"pid-{rank}").read_text())

    def test_killed_rank_is_named_with_step_and_bucket(self):
        job = self.run_ranks()
        os.kill(self.pid(1), signal.SIGKILL)
        start = time.monotonic()
        self.finish(job)
        self.assertLess(time.monotonic() - start, 30)
        self.assertEqual(job.returncode, 5, job.err)
        self.assertRegex(self.message(job), rf"\[worker 1 on {self.cluster.address(1)}\].*SIGKILL.*step \d+, bucket \d ")
        self.assert_stands(self.message(job), 1)

    def test_stopped_rank_is_reported_and_ended(self):
        job = self.run_ranks("--stall-warning", 1, "--stall-deadline", 3)
        os.kill(self.pid(2), signal.SIGSTOP)
        self.finish(job)
        self.assertEqual(job.returncode, 5, job.err)
        self.assertRegex(job.err, rf"warning: worker 2 on {self.cluster.address(2)} .*step \d+, bucket \d")
        self.assertRegex(self.message(job), rf"\[worker 2 on {self.cluster.address(2)}\].*step \d+, bucket \d.*SIGSTOP")
        self.assert_stands(self.message(job), 2)

    def test_cut_link(self):
        """Neither side learns of the cut link from the network. Both end their processes. The error names the host and
        its rank."""
        job = self.run_ranks("--host-timeout", 4)
        self.cluster.cut(1)
        try:
            self.finish(job)
            self.assertEqual(job.returncode, 5, job.err)
            self.assertRegex(self.message(job), rf"\[host {self.cluster.address(1)}\].*worker 1, last reported at step \d+, bucket \d")
            # The unreachable side ends its processes without a message.
            wait_until(lambda: not self.marked_on(1))
        finally:
            self.cluster.heal(1)

    def test_killed_connection(self):
        job = self.run_ranks()
        for pid in self.ssh_of(self.cluster.address(1)):
            os.kill(pid, signal.SIGKILL)
        self.finish(job)
        self.assertEqual(job.returncode, 5, job.err)
        self.assertIn(f"[host {self.cluster.address(1)}]", self.message(job))

    def ssh_of(self, address):
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0] == b"ssh" and address.encode() in words and any(b"--exec-ranks" in w for w in words):
                found.append(int(folder.name))
        return found

    def test_killed_launcher(self):
        job = self.run_ranks()
        job.kill()
        job.wait()
        wait_until(lambda: not self.marked())

    def test_interrupt_reaches_every_host(self):
        job = self.start("-H", self.cluster.hosts_file(), "bash", "-c",
                         "trap 'echo saved; exit 130' INT; echo up; while :; do sleep 0.1; done")
        for _ in range(3):
            self.assertIn("up", job.stdout.readline())
        job.send_signal(signal.SIGINT)
        self.finish(job)
        self.assertEqual((job.returncode, job.out.count("saved")), (130, 3), job.err)

    def test_kill_on_hosts(self):
        hosts = self.cluster.hosts_file()
        job = self.start("-H", hosts, "sh", "-c", f"echo up; {STUBBORN}")
        for _ in range(3):
            job.stdout.readline()
        other = self.start("-H", hosts, "sh", "-c", f"echo up; {STUBBORN}")
        for _ in range(3):
            other.stdout.readline()
        name = re.search(r"job ([0-9a-f]{16})", job.stderr.readline())[1]
        self.jobs.append(name)
        killed = self.kill("-H", hosts, "--job", name)
        self.assertEqual((killed.returncode, killed.stdout.count(f"of job {name}")), (0, 3), killed)
        for host in range(3):
            self.assertIn(f"{self.cluster.address(host)}: ended worker {host} ", killed.stdout)
        self.finish(job)
        self.assertEqual(job.returncode, 143, job.err)
        self.assertIsNone(other.poll())
        other.send_signal(signal.SIGTERM)
        other.send_signal(signal.SIGTERM)
        self.finish(other)


class BadHosts(HostsCase):
    """Tests errors before the start: one message names the host, and no host runs a process."""

    def refused(self, code, *arguments):
        done = self.launch("-n", 2, *arguments, "touch", self.folder / "ran", code=code)
        self.assertFalse((self.folder / "ran").exists())
        return self.message(done)

    def hosts(self, text):
        path = self.folder / "hosts"
        path.write_text(text)
        return path

    def test_bad_lines_are_refused_with_their_number(self):
        good = self.cluster.address(0)
        for bad in ("-oProxyCommand=touch proof", "-oProxyCommand=touch", "a;touch proof", "$(touch proof)",
                    "`touch proof`", "a slots=0", "a slots=two", "a b", "@a", "-l@a", "a@b@c", "a:0",
                    f"{good} slots=2", f"root@{good}"):
            message = self.refused(3, "-H", self.hosts(f"{good}\n\n{bad}\n"))
            self.assertIn("line 3]", message)
            self.assertFalse((self.folder / "proof").exists())
            killed = self.kill("-H", str(self.folder / "hosts"))
            self.assertEqual(killed.returncode, 3, killed)
            self.assertFalse((self.folder / "proof").exists())
        self.assertIn("at least one host", self.refused(3, "-H", self.hosts("# none\n")))
        self.assertIn("no-such-file", self.refused(3, "-H", "no-such-file"))

    def test_unreachable(self):
        # An address that no host has, a port without a server, and an unknown name.
        for host in (f"{self.cluster.net}.99", f"{self.cluster.address(1)}:2223", "no-such-host.invalid"):
            message = self.refused(5, "-H", self.hosts(f"{self.cluster.address(0)}\n{host}\n"))
            self.assertIn(f"[host {host.split(':')[0]}]", message)

    def test_host_that_does_not_answer_in_time(self):
        hosts = self.hosts(f"{self.cluster.address(0)}\n{self.cluster.address(1)}\n")
        sshd = self.cluster.sshds[1].pid
        os.kill(sshd, signal.SIGSTOP)
        try:
            self.assertIn(f"[host {self.cluster.address(1)}]", self.refused(5, "--connect-timeout", 6, "-H", hosts))
        finally:
            os.kill(sshd, signal.SIGCONT)

    def test_wrong_key(self):
        config = self.folder / "ssh_config"
        text = Path(self.cluster.ssh_config).read_text()
        config.write_text(text.replace("/id\n", "/wrong_id\n"))
        message = self.refused(5, "--ssh-config", config, "-H", self.hosts(f"{self.cluster.address(1)}\n"))
        self.assertIn(f"[host {self.cluster.address(1)}]", message)
        self.assertIn("Permission denied", message)

    def test_another_host_key(self):
        config = self.folder / "ssh_config"
        known = self.folder / "known_hosts"
        text = (self.cluster.folder / "known_hosts").read_text()
        lines = text.splitlines()
        key = next(line.split(" ", 1)[1] for line in lines if self.cluster.address(0) in line)
        known.write_text("\n".join(f"{line.split(' ')[0]} {key}" for line in lines) + "\n")
        config.write_text(Path(self.cluster.ssh_config).read_text().replace(str(self.cluster.folder / "known_hosts"), str(known)))
        message = self.refused(5, "--ssh-config", config, "-H", self.hosts(f"{self.cluster.address(0)}\n{self.cluster.address(1)}\n"))
        self.assertIn(f"[host {self.cluster.address(1)}]", message)
        self.assertIn("key", message)

    def test_missing_program_on_one_host(self):
        program = Path(PRIVATE) / "program"
        for host in (0, 2):
            self.cluster.run(host, ["cp", "/bin/true", str(program)], check=True)
        try:
            done = self.launch("-H", self.cluster.hosts_file(), program, code=2)
            self.assertIn(f"[host {self.cluster.address(1)}]", self.message(done))
            self.assertIn(str(program), done.err)
            self.cluster.run(1, ["cp", "/bin/true", str(program)], check=True)
            self.launch("-H", self.cluster.hosts_file(), program)
        finally:
            for host in range(3):
                self.cluster.run(host, ["rm", "-f", str(program)])

    def test_missing_launcher_on_one_host(self):
        message = self.refused(2, "-H", self.cluster.hosts_file(hosts=[0]), "--remote-launch", "/nowhere/it's $(touch proof)")
        self.assertIn("/nowhere/it's $(touch proof)", message)
        self.assertFalse((self.folder / "proof").exists())

    def test_another_program_at_its_path(self):
        message = self.refused(5, "-H", self.cluster.hosts_file(hosts=[1]), "--remote-launch", "/bin/true")
        self.assertIn(f"[host {self.cluster.address(1)}]", message)

    def test_missing_folder_on_one_host(self):
        inside = Path(PRIVATE) / "only-on-0"
        self.cluster.run(0, ["mkdir", str(inside)], check=True)
        inside.mkdir()
        try:
            done = self.launch("-H", self.cluster.hosts_file(hosts=[0, 1]), "true", code=2, cwd=inside)
            self.assertIn(f"[host {self.cluster.address(1)}]", self.message(done))
            self.assertIn("only-on-0", done.err)
        finally:
            inside.rmdir()
            self.cluster.run(0, ["rmdir", str(inside)])


class Sync(HostsCase):
    def test_working_folder_is_copied_first(self):
        if shutil.which("rsync") is None:
            self.fail("no rsync (Debian: apt-get install rsync)")
        work = self.folder / "work it's"
        (work / "sub").mkdir(parents=True)
        (work / "sub" / "data").write_text("of this host\n")
        (work / "say").write_text("#!/bin/sh\ncat sub/data; pwd; hostname\n")
        (work / "say").chmod(0o755)
        # The folder contains the launcher itself, so it is copied too.
        shutil.copy(LAUNCH, work / "tutti-launch")
        target = f"{PRIVATE}/it's a $(touch copy)"
        job = subprocess.run([str(work / "tutti-launch"), *self.options(), "-H", self.cluster.hosts_file(), "--sync-dst-dir",
                              target, "./say"], cwd=work, env=self.environment, capture_output=True, text=True, timeout=300)
        self.assertEqual(job.returncode, 0, job.stderr)
        for rank in range(3):
            for line in ("of this host", target, self.cluster.names[rank]):
                self.assertIn(f"[{rank}] {line}\n", job.stdout)
        self.assertEqual(list(Path(PRIVATE).iterdir()), [])

    def test_host_that_cannot_get_the_copy(self):
        hosts = self.folder / "hosts"
        hosts.write_text(f"{self.cluster.address(0)}\n{self.cluster.address(1)}:2223\n")
        done = self.launch("-H", hosts, "--sync-dst-dir", PRIVATE + "/x", "true", code=5)
        self.assertIn(f"[host {self.cluster.address(1)}]", self.message(done))


if __name__ == "__main__":
    try:
        main(3, [PRIVATE])
    finally:
        shutil.rmtree(PRIVATE, ignore_errors=True)
