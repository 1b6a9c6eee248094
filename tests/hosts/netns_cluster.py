# SPDX-License-Identifier: MIT
"""Several hosts on one machine: network namespaces, each with a name, an address and an sshd, joined by a bridge.

    with NetnsCluster(3) as cluster:
        cluster.run(0, ["hostname"])                 # inside host 0, without ssh
        subprocess.run(cluster.ssh(1, "hostname"))   # over ssh

The hosts share files, processes and /dev/shm with this machine, except the folders in `private`, of which each host has
its own. Needs root, iproute2 and openssh-server. The end of the block removes all parts of a cluster, also after an
exception. If the process of a cluster was killed, the next cluster removes the parts that it left.
"""
import atexit
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SSHD = "/usr/sbin/sshd"
SSH_PORT = 2200
# Namespaces are named tutti-<process id>-<host>, network devices tt<process id in base 36><b|v><host>.
NAMESPACE = re.compile(r"tutti-(\d+)-\d+")
DEVICE = re.compile(r"tt([0-9a-z]+)[bv]\d*")


class Unavailable(Exception):
    """This machine cannot make hosts. The message gives the reason."""


def finish(program):
    """Ends a test program. The exit code is 1 if parts of a cluster are left."""
    left = traces(os.getpid())
    if left:
        print("left of the cluster:", left)
    sys.exit(0 if program.result.wasSuccessful() and not left else 1)


def skip(reason):
    print(f"SKIP: {reason}")
    sys.exit(77)


def _base36(n):
    digits = ""
    while True:
        n, d = divmod(n, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[d] + digits
        if n == 0:
            return digits


def _call(*argv, check=True, timeout=300):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=timeout)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stdout.strip()}")
    return done.stdout


def _namespaces():
    return [line.split()[0] for line in _call("ip", "netns", "list", check=False).splitlines() if line.strip()]


def _devices():
    return re.findall(r"^\d+: ([^:@]+)", _call("ip", "-o", "link", check=False), re.M)


def _pids_in(namespace):
    return [int(p) for p in _call("ip", "netns", "pids", namespace, check=False).split() if p.isdigit()]


def runs(pid, program):
    """Returns whether a process runs this file. Compares files, not paths, because a host has its own mounts."""
    return os.path.samestat(os.stat(f"/proc/{pid}/exe"), os.stat(program))


def root_is_a_mount():
    return any(line.split()[4] == "/" for line in Path("/proc/self/mountinfo").read_text().splitlines())


def remove_stale():
    """Removes the clusters of processes that were killed."""
    for name in _namespaces():
        match = NAMESPACE.fullmatch(name)
        if match and not Path(f"/proc/{match[1]}").exists():
            for pid in _pids_in(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            _call("ip", "netns", "del", name, check=False)
    for name in _devices():
        match = DEVICE.fullmatch(name)
        if match and not Path(f"/proc/{int(match[1], 36)}").exists():
            _call("ip", "link", "del", name, check=False)


class Whole:
    """A context manager. _make() makes all parts. If it fails, or at the end, close() removes the parts that exist."""

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()


class NetnsCluster(Whole):
    def __init__(self, hosts, private=()):
        self.count = hosts
        self.private = [str(p) for p in private]
        self.id = os.getpid()
        self.short = _base36(self.id)
        self.folder = None
        self.sshds = {}
        self.names = [f"tutti-{self.id}-{i}" for i in range(hosts)]
        self._made_bridge = False
        self._claimed = None

    # The interface for tests.
    def address(self, host):
        return f"{self.net}.{10 + host}"

    @property
    def here(self):
        """Returns the address of this machine as the hosts see it."""
        return f"{self.net}.1"

    def hosts_file(self, slots=1, hosts=None, names=False):
        """Writes a new hosts file and returns its path."""
        path = Path(tempfile.mkstemp(dir=self.folder, prefix="hosts-")[1])
        slots = [slots] * self.count if isinstance(slots, int) else slots
        hosts = range(self.count) if hosts is None else hosts
        path.write_text("".join(f"{self.names[h] if names else self.address(h)} slots={slots[h]}\n" for h in hosts))
        return str(path)

    @property
    def ssh_config(self):
        return str(self.folder / "ssh_config")

    def ssh(self, host, *command):
        return ["ssh", "-F", self.ssh_config, "--", self.address(host), *command]

    def inside(self, host, argv):
        """Returns the command that runs argv inside a host, with the host's network, name and mounts, in "/"."""
        # Also enters the host's root, because entering a mount namespace leaves a chroot.
        return ["nsenter", f"--target={self.sshds[host].pid}", "--net", "--uts", "--mount", "--root", "--wd", "--", *argv]

    def run(self, host, argv, **options):
        return subprocess.run(self.inside(host, argv), **options)

    def cut(self, host):
        """Removes the host's link, like a pulled cable: no connection is notified."""
        _call("ip", "link", "set", self._veth(host), "down")

    def heal(self, host):
        _call("ip", "link", "set", self._veth(host), "up")

    def pids(self, host):
        return [p for p in _pids_in(self.names[host]) if not self._is_sshd(p)]

    # The construction of a cluster.
    def _veth(self, host):
        return f"tt{self.short}v{host}"

    @property
    def _bridge(self):
        return f"tt{self.short}b"

    def _is_sshd(self, pid):
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/comm").read_text().strip() == "sshd"
        return True

    def __enter__(self):
        for program, package in (("ip", "iproute2"), (SSHD, "openssh-server"), ("ssh", "openssh-client"),
                                 ("ssh-keygen", "openssh-client"), ("nsenter", "util-linux")):
            if shutil.which(program) is None:
                raise Unavailable(f"no {program} (Debian: apt-get install {package})")
        if os.geteuid() != 0:
            raise Unavailable("network namespaces need root")
        if not root_is_a_mount():
            raise Unavailable("/ is no mount point, as in a chroot, so mounts cannot be a host's own: outside, before the chroot, "
                              "mount --bind ROOT ROOT && mount --make-private ROOT")
        self._trap_signals()
        remove_stale()
        return super().__enter__()

    def _trap_signals(self):
        """Turns signals into exceptions, so that they also remove the cluster."""
        atexit.register(self.close)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, lambda n, _: sys.exit(128 + n))

    def _make(self):
        self.folder = Path(tempfile.mkdtemp(prefix="tutti-bed-"))
        used = _call("ip", "-o", "addr")
        subnets = [f"10.77.{k}" for k in range(1, 255)]
        start = self.id % len(subnets)
        self.net = next(n for n in subnets[start:] + subnets[:start] if f"{n}." not in used and self._claim(n))
        try:
            _call("ip", "link", "add", self._bridge, "type", "bridge")
            self._made_bridge = True
            _call("ip", "netns", "add", self.names[0])
        except RuntimeError as e:
            raise Unavailable(f"network namespaces cannot be made here: {e}") from None
        _call("ip", "addr", "add", f"{self.net}.1/24", "dev", self._bridge)
        _call("ip", "link", "set", self._bridge, "up")
        self._make_keys()
        for host in range(self.count):
            self._make_host(host)
        for host in range(self.count):
            self._wait_for_sshd(host)

    def _claim(self, net):
        """Returns whether no other cluster uses this subnet. An abstract socket with its name reserves the subnet,
        because two clusters may start at the same time. The kernel frees the name when this process ends."""
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0tutti-cluster-{net}")
        except OSError:
            claim.close()
            return False
        self._claimed = claim
        return True

    def _make_keys(self):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tutti-bed", "-f"]
        _call(*keygen, str(self.folder / "id"))
        _call(*keygen, str(self.folder / "wrong_id"))
        shutil.copy(self.folder / "id.pub", self.folder / "authorized_keys")
        known = []
        for host in range(self.count):
            _call(*keygen, str(self.folder / f"hostkey{host}"))
            key = " ".join((self.folder / f"hostkey{host}.pub").read_text().split()[:2])
            known += [f"[{n}]:{SSH_PORT} {key}" for n in (self.address(host), self.names[host])]
        (self.folder / "known_hosts").write_text("\n".join(known) + "\n")
        common = Path("/etc/hosts").read_text() if Path("/etc/hosts").exists() else ""
        (self.folder / "etc_hosts").write_text(
            common + "".join(f"{self.address(h)} {self.names[h]}\n" for h in range(self.count)))
        # A login gets a plain shell and an empty home, whatever settings the user of this machine has.
        (self.folder / "home").mkdir()
        shell = re.sub(r"^(root:[^:]*:0:0:[^:]*):.*$", rf"\1:{self.folder}/home:/bin/sh", Path("/etc/passwd").read_text(),
                       flags=re.M)
        (self.folder / "passwd").write_text(shell)
        names = "".join(f"Host {n}\n  HostName {self.address(h)}\n  HostKeyAlias [{n}]:{SSH_PORT}\n"
                        for h, n in enumerate(self.names))
        (self.folder / "ssh_config").write_text(
            f"{names}Host *\n  Port {SSH_PORT}\n  User root\n  IdentityFile {self.folder}/id\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.folder}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
            "  StrictHostKeyChecking yes\n")

    def _make_host(self, host):
        name = self.names[host]
        if host > 0:
            _call("ip", "netns", "add", name)
        _call("ip", "link", "add", self._veth(host), "type", "veth", "peer", "name", "eth0", "netns", name)
        _call("ip", "link", "set", self._veth(host), "master", self._bridge, "up")
        _call("ip", "-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _call("ip", "-n", name, "link", "set", device, "up")
        self._start_host(host)

    def _start_host(self, host):
        name = self.names[host]
        config = self.folder / f"sshd{host}.conf"
        config.write_text(
            f"Port {SSH_PORT}\nListenAddress {self.address(host)}\nHostKey {self.folder}/hostkey{host}\n"
            f"AuthorizedKeysFile {self.folder}/authorized_keys\nPidFile {self.folder}/sshd{host}.pid\n"
            "UsePAM no\nStrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            "PermitRootLogin prohibit-password\nUseDNS no\nLogLevel VERBOSE\n")
        # Runs in a new mount namespace, with the cluster's names and users, sshd's folder in an empty /run, and the
        # private folders of this host. The kernel removes the namespace and its mounts after its last process.
        script = ('cd / && hostname "$1" && mount --bind "$2/etc_hosts" /etc/hosts && mount --bind "$2/passwd" /etc/passwd '
                  '&& mount -t tmpfs tmpfs /run && mkdir -m 0755 /run/sshd /run/user && mkdir -m 0700 /run/user/$(id -u) '
                  '&& cluster=$2 number=$3 && shift 3 && for f; do '
                  'mount -t tmpfs -o mode=1777 tmpfs "$f" || exit 1; done; '
                  f'exec {SSHD} -D -f "$cluster/sshd$number.conf" -E "$cluster/sshd$number.log"')
        self.sshds[host] = subprocess.Popen(
            ["ip", "netns", "exec", name, "unshare", "--uts", "--mount", "--", "sh", "-c", script, "sh", name,
             str(self.folder), str(host), *self.private],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True)

    def _wait_for_sshd(self, host):
        for _ in range(2400):
            if self.sshds[host].poll() is not None:
                said = self.sshds[host].stdout.read().strip()
                kind = Unavailable if "ermitted" in said or "denied" in said else RuntimeError
                raise kind(f"the sshd of a host did not start: {said}")
            with contextlib.suppress(OSError), socket.create_connection((self.address(host), SSH_PORT), timeout=1):
                return
            time.sleep(0.05)
        raise RuntimeError(f"the sshd of host {host} does not answer")

    def close(self):
        """Removes all parts. Tries every step, even if an earlier one failed. A second call has no effect."""
        atexit.unregister(self.close)
        old = None
        if threading.current_thread() is threading.main_thread():
            old = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for sshd in self.sshds.values():
                with contextlib.suppress(ProcessLookupError):
                    sshd.kill()
            present = set(_namespaces())
            for name in self.names:
                if name not in present:
                    continue
                for _ in range(50):
                    pids = _pids_in(name)
                    for pid in pids:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    if not pids:
                        break
                    time.sleep(0.05)
                _call("ip", "netns", "del", name, check=False)
            for sshd in self.sshds.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    sshd.wait(5)
                sshd.stdout.close()
            self.sshds = {}
            devices = set(_devices())
            for name in [self._veth(h) for h in range(self.count)] + [self._bridge]:
                if name in devices:
                    _call("ip", "link", "del", name, check=False)
            if self._claimed is not None:
                self._claimed.close()
                self._claimed = None
            if self.folder is not None:
                shutil.rmtree(self.folder, ignore_errors=True)
                self.folder = None
        finally:
            if old is not None:
                signal.signal(signal.SIGINT, old)


def traces(pid):
    """Returns the parts that the cluster of a process left: namespaces, devices, mounts, processes, folders."""
    found = [n for n in _namespaces() if n.startswith(f"tutti-{pid}-")]
    found += [d for d in _devices() if (m := DEVICE.fullmatch(d)) and int(m[1], 36) == pid]
    found += [m for m in Path("/proc/self/mounts").read_text().splitlines() if f"tutti-{pid}-" in m]
    for stat in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = stat.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if f"tutti-{pid}-" in command:
                found.append(command)
    return found
