# SPDX-License-Identifier: MIT
"""Runs Slurm on a cluster of hosts: slurmctld and munged on host 0, and slurmd on each host, with a new configuration.

    with Slurm(cluster, cpus=4) as slurm:
        slurm.run(["srun", "-n", "2", "hostname"], capture_output=True)    # on host 0, as a user would
"""
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from netns_cluster import Whole

PROGRAMS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "sbatch": "slurm-client",
            "munged": "munge"}


def missing():
    """Returns which packages to install, as text, or `None` if all are installed."""
    for program, package in PROGRAMS.items():
        if shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin") is None:
            return f"no {program} (Debian: apt-get install slurmctld slurmd slurm-client munge)"
    return None


class Slurm(Whole):
    def __init__(self, cluster, cpus):
        self.cluster = cluster
        self.cpus = cpus
        self.folder = Path(tempfile.mkdtemp(prefix="tutti-slurm-"))
        self.running = []
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "PMI", "OMPI", "TUTTI_DATA"))}
        self.environment["SLURM_CONF"] = str(self.folder / "slurm.conf")

    def run(self, argv, host=0, **options):
        """Runs a command on a host. If host is `None`, runs it on this machine, which is not a node."""
        argv = [str(a) for a in argv]
        options = {"text": True, "capture_output": True, "timeout": 300, "env": self.environment, **options}
        # A command enters the host in the folder "/".
        inside = ["sh", "-c", 'cd "$0" && exec "$@"', str(self.folder), *argv]
        try:
            return subprocess.run(inside if host is None else self.cluster.inside(host, inside), **options)
        except subprocess.TimeoutExpired as e:
            said = "\n".join((t.decode(errors="replace") if isinstance(t, bytes) else t) for t in (e.stdout, e.stderr) if t)
            raise AssertionError(f"{' '.join(argv)}: no end within {options['timeout']} s\n{said}\n{self.state()}") from None

    def state(self):
        """Returns jobs, nodes, logs and the processes of all hosts, for the report about a command that did not end."""
        def output(*argv):
            done = subprocess.run(self.cluster.inside(0, list(argv)), text=True, capture_output=True, timeout=60, env=self.environment)
            return done.stdout + done.stderr
        pids = [str(p) for h in range(self.cluster.count) for p in self.cluster.pids(h)]
        return "\n".join([output("squeue", "--steps"), output("squeue", "-l"), output("sinfo", "-N", "-l"), self.logs(),
                          output("ps", "-o", "pid,ppid,stat,wchan:20,etime,args", "-p", ",".join(pids))])

    def logs(self):
        return "\n".join(f"== {f.name}\n{f.read_text(errors='replace')[-3000:]}" for f in sorted(self.folder.glob("*.log")))

    def _make(self):
        names, folder = self.cluster.names, self.folder
        folder.chmod(0o755)
        munge = folder / "munge"
        munge.mkdir(mode=0o755)
        (folder / "state").mkdir()
        key = munge / "key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        for name in names:
            (folder / name / "spool").mkdir(parents=True)
        # Slurm makes no cgroups, but slurmd looks up their version in /sys, which is empty inside "ip netns exec".
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (folder / "plugstack.conf").touch()
        (folder / "slurm.conf").write_text("\n".join([
            "ClusterName=tutti", f"SlurmctldHost={names[0]}({self.cluster.address(0)})", "SlurmctldPort=6817",
            "AuthType=auth/munge", f"AuthInfo=socket={munge}/socket", "CredType=cred/munge", "SlurmUser=root",
            f"StateSaveLocation={folder}/state", f"SlurmdSpoolDir={folder}/%n/spool", f"TmpFS={folder}/%n",
            f"SlurmctldPidFile={folder}/slurmctld.pid", f"SlurmdPidFile={folder}/%n/slurmd.pid",
            f"SlurmctldLogFile={folder}/slurmctld.log", f"SlurmdLogFile={folder}/slurmd-%n.log",
            "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU", "SlurmdParameters=config_overrides", "ReturnToService=2", "MailProg=/bin/true",
            "SchedulerParameters=sched_interval=1,batch_sched_delay=0",
            f"PlugStackConfig={folder}/plugstack.conf", "JobRequeue=1", "KillWait=20",
            *[f"NodeName={n} NodeHostname={n} NodeAddr={self.cluster.address(h)} Port=6818 CPUs={self.cpus} State=UNKNOWN"
              for h, n in enumerate(names)],
            "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP", ""]))
        self._daemon(["munged", "-F", f"--socket={munge}/socket", f"--key-file={key}", f"--pid-file={munge}/pid",
                      f"--seed-file={munge}/seed", f"--log-file={munge}/log"], munge / "socket")
        self._daemon(["slurmctld", "-D", "-f", self.environment["SLURM_CONF"]])
        for host, name in enumerate(names):
            self._daemon(["slurmd", "-D", "-N", name, "-f", self.environment["SLURM_CONF"]], host=host)
        self._wait(lambda: self.run(["sinfo", "-h", "-o", "%T"]).stdout.split() == ["idle"], "nodes that are idle")

    def _daemon(self, argv, until=None, host=0):
        out = open(self.folder / f"{argv[0]}-{host}.out", "wb")
        path = self.environment["PATH"] + ":/usr/sbin"
        self.running.append(subprocess.Popen(
            self.cluster.inside(host, [shutil.which(argv[0], path=path), *argv[1:]]), stdin=subprocess.DEVNULL, stdout=out,
            stderr=out, env=self.environment, start_new_session=True))
        out.close()
        if until:
            self._wait(until.exists, f"{argv[0]} to listen")

    def _wait(self, done, what):
        for _ in range(600):
            if done():
                return
            if any(p.poll() is not None for p in self.running):
                break
            time.sleep(0.1)
        said = "\n".join(f.read_text(errors="replace")[-1000:] for f in self.folder.glob("*.out"))
        raise RuntimeError(f"Slurm: no {what}:\n{said}\n{self.logs()}")

    def close(self):
        """Ends the processes that this object started, the last first. Processes of jobs end with the cluster's hosts.
        """
        if self.running:
            subprocess.run(["scancel", "--full", "--user=root"], env=self.environment, capture_output=True, timeout=300)
        for process in reversed(self.running):
            process.terminate()
        for process in reversed(self.running):
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(15)
        self.running = []
        shutil.rmtree(self.folder, ignore_errors=True)
