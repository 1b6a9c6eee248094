# SPDX-License-Identifier: MIT
"""The files that the set-up leaves on a host of the cluster, and those by which hosts exchange their keys."""
import json
import os
import pwd
import re
import subprocess
from pathlib import Path


def write_aside(path, text, mode=0o644, owner=None):
    """Replaces a file in one rename, so that no process reads half of it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as out:
        out.write(text)
    os.chmod(aside, mode)
    if owner is not None:
        os.chown(aside, owner.pw_uid, owner.pw_gid)
    os.rename(aside, path)


def text_of(path):
    return path.read_text() if path.exists() else ""


def read_json(path):
    """Returns the content of a file of the shared folder, or `None` if it does not exist or is incomplete."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def hosts_lines(master_ip, worker_ips):
    return [f"{master_ip} deeplearning-master",
            *(f"{ip} deeplearning-worker{k}" for k, ip in enumerate(worker_ips, 1))]


def without(text, pattern):
    return "".join(line + "\n" for line in text.splitlines() if not re.search(pattern, line))


def gpu_count():
    """Returns how many GPUs nvidia-smi lists; 0 if there is no GPU or if it fails."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def package_lacks_cuda(about=Path(__file__).resolve().parent.parent / "package" / "about"):
    """Returns whether the archive of this script has programs without the CUDA backend. Other installations do not
    record it."""
    return "cuda none" in text_of(about).splitlines()


# The names that `uname -m` has for the processors in e_machine of ELF files.
MACHINES = {62: "x86_64", 183: "aarch64"}


def processor_of_package(program=Path(__file__).resolve().parents[3] / "bin" / "tutti-launch"):
    """Returns the processor that the programs next to this script were built for, such as "aarch64", or `None` if there is no
    program."""
    try:
        with open(program, "rb") as file:
            head = file.read(20)
    except OSError:
        return None
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return None
    number = int.from_bytes(head[18:20], "big" if head[5] == 2 else "little")
    return MACHINES.get(number, f"processor {number} of ELF")


class Files:
    """Writes the set-up's files on a host. It may run again without writing entries twice."""

    def __init__(self, root, user):
        self.root = Path(root)
        self.user = pwd.getpwnam(user)
        self.home = self.at(self.user.pw_dir)

    def at(self, path):
        return self.root / str(path).lstrip("/")

    def own(self, path):
        os.chown(path, self.user.pw_uid, self.user.pw_gid)

    def write_hosts(self, master_ip, worker_ips):
        path = self.at("/etc/hosts")
        kept = without(text_of(path), r"\sdeeplearning-(master|worker\d+)\s*$")
        # Writes in place: the file may be a mount of its own.
        path.write_text(kept + "".join(line + "\n" for line in hosts_lines(master_ip, worker_ips)))

    def write_workers(self, count):
        path = self.at("/opt/deeplearning/workers")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_aside(path, "".join(f"deeplearning-worker{k}\n" for k in range(1, count + 1)), owner=self.user)

    def write_profile(self, variables):
        path = self.at("/etc/profile.d/deeplearning.sh")
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = without(text_of(path), rf"^export ({'|'.join(variables)})=")
        write_aside(path, kept + "".join(f"export {name}={value}\n" for name, value in variables.items()))

    def link_programs(self):
        """Links the programs into a folder that ssh searches too: ssh reads no profile."""
        folder = self.at("/usr/local/bin")
        folder.mkdir(parents=True, exist_ok=True)
        for program in sorted(self.at("/opt/tutti/bin").glob("*")):
            aside = folder / f".{program.name}.{os.getpid()}"
            aside.symlink_to(f"/opt/tutti/bin/{program.name}")
            os.rename(aside, folder / program.name)

    def forward_agent(self):
        """Lets ssh forward the logged-in user's agent to the next host."""
        path = self.at("/etc/ssh/ssh_config")
        old = text_of(path)
        new, changed = re.subn(r"(?mi)^[#\s]*ForwardAgent\s+no\s*$", "    ForwardAgent yes", old)
        if not changed and not re.search(r"(?mi)^\s*ForwardAgent\s+yes", old):
            new = old + "Host *\n    ForwardAgent yes\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_aside(path, new)

    def ssh_folder(self):
        folder = self.home / ".ssh"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.own(folder)
        return folder

    def make_key_pair(self):
        """Returns the public half of this cluster's key pair, which is made once."""
        private = self.ssh_folder() / "id_ed25519"
        if not private.exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tutti-cluster", "-f", str(private)], check=True,
                           stdin=subprocess.DEVNULL)
        public = private.with_suffix(".pub")
        self.own(private)
        self.own(public)
        return public.read_text().strip()

    def let_in(self, public_key):
        path = self.ssh_folder() / "authorized_keys"
        kept = without(text_of(path), r"\stutti-cluster\s*$")
        write_aside(path, kept + public_key + "\n", 0o600, self.user)

    def host_keys(self):
        """Returns the public keys of this host's sshd, as "TYPE KEY"."""
        folder = self.at("/etc/ssh")
        if not list(folder.glob("ssh_host_*_key.pub")):
            folder.mkdir(parents=True, exist_ok=True)
            subprocess.run(["ssh-keygen", "-A", *(["-f", str(self.root)] if str(self.root) != "/" else [])], check=True,
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        return [" ".join(p.read_text().split()[:2]) for p in sorted(folder.glob("ssh_host_*_key.pub"))]

    def know_hosts(self, text):
        put_known_hosts(self.ssh_folder() / "known_hosts", text, self.user)


def put_known_hosts(path, text, owner=None):
    """Puts lines into a known_hosts file. They replace those of the same hosts."""
    names = {name for line in text.splitlines() for name in line.split(" ", 1)[0].split(",")}
    kept = [line for line in text_of(path).splitlines() if not names & set(line.split(" ", 1)[0].split(","))]
    write_aside(path, "".join(line + "\n" for line in kept) + text, 0o600, owner)


def keys_of(told):
    """Returns the host keys that a host has left in the shared folder; empty if they are not in the format of
    host_keys()."""
    keys = told.get("keys") if told else None
    return [k for k in keys if isinstance(k, str) and re.fullmatch(r"[-a-z0-9@.]+ [A-Za-z0-9+/=]+", k)] if isinstance(keys, list) else []


def known_hosts_lines(keys, master_ip, worker_ips):
    """keys: of each address. A line has all names of a host and one of its keys."""
    lines = ""
    for k, ip in enumerate(worker_ips, 1):
        names = ",".join([ip, f"deeplearning-worker{k}", *(["deeplearning-master"] if ip == master_ip else [])])
        lines += "".join(f"{names} {key}\n" for key in keys[ip])
    return lines
