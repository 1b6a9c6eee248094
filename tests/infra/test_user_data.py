#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs user_data.sh as a new host does, in a mount namespace: the stack gets signals of its failures, and the host's
own apt-get installs although another process holds the lock of the package lists."""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    from cloud import BOOTSTRAP, HANDLE_SECRET, Web
except ImportError as e:
    print(f"SKIP: no {e.name} (./test.sh installs tests/infra/requirements.txt)")
    sys.exit(77)

APT = "/usr/bin/apt-get"
UNSHARE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
# Mounts the folders of a first boot, in which the script's files are kept.
BOOT = """set -e
for f in opt var/log; do mount --bind "$ROOT/$f" "/$f"; done
mount --bind "$ROOT/fstab" /etc/fstab
mount -t tmpfs tmpfs "$EFS_MOUNT"
exec bash "$SCRIPT"
"""
# The real apt-get, with separate folders and sources. Its install succeeds if the lists have been read, or if the test
# requests it.
FAKE_APT = """#!/bin/sh
case "$*" in
  *install*)
    echo install >>"$CALLS"
    [ -e "$ROOT/read" ] || { echo "E: Unable to locate package $(echo "$*" | sed 's/.* //')" >&2; exit 100; } ;;
  *)
    %s -o Dir::State="$ROOT/state" -o Dir::Cache="$ROOT/cache" -o Dir::Etc::sourcelist="$ROOT/sources.list" \\
      -o Dir::Etc::sourceparts=/dev/null -o APT::Sandbox::User= "$@"
    status=$?
    [ $status != 0 ] || touch "$ROOT/read"
    echo "update $status" >>"$CALLS"
    exit $status ;;
esac
""" % APT
# A pause takes no time. The third pause ends the work of the other process.
FAKE_SLEEP = """#!/bin/sh
echo "sleep $1" >>"$CALLS"
[ "$(grep -c sleep "$CALLS")" != 3 ] || [ ! -p "$ROOT/end" ] || { echo end >"$ROOT/end" && read -r _ <"$ROOT/ended"; }
"""
# Holds the lock until it gets a message.
HOLDER = """import fcntl, sys
root = sys.argv[1]
lock = open(root + "/state/lists/lock", "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
print("held", flush=True)
open(root + "/end").read()
lock.close()
open(root + "/ended", "w").write("ended\\n")
"""


def can_unshare():
    return subprocess.run([*UNSHARE, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0


class UserData(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tutti-user-data-")
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.web = Web("127.0.0.1")
        self.addCleanup(self.web.server_close)
        self.addCleanup(self.web.shutdown)
        for name in ("opt", "var/log", "bin", "efs", "state/lists/partial", "state/dpkg", "cache/archives/partial"):
            (self.root / name).mkdir(parents=True)
        for name in ("fstab", "sources.list", "calls", "state/status", "state/dpkg/status"):
            (self.root / name).write_text("")
        for name, text in (("apt-get", FAKE_APT), ("sleep", FAKE_SLEEP), ("python", "#!/bin/sh\nexit 1\n")):
            (self.root / "bin" / name).write_text(text)
            (self.root / "bin" / name).chmod(0o755)
        self.environment = {
            **os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}", "ROOT": str(self.root), "CALLS": str(self.root / "calls"),
            "SCRIPT": str(BOOTSTRAP / "user_data.sh"), "EFS_MOUNT": str(self.root / "efs"), "EFS_FILE_SYSTEM_ID": "fs-1",
            "AWS_REGION": "us-east-1", "AWS_DL_URL_SUFFIX": "amazonaws.com", "AWS_DL_NODE_TYPE": "Master", "AWS_DL_DEFAULT_USER": "root", "AWS_DL_STACK_ID": "a-stack",
            "AWS_DL_WAIT_HANDLE": self.web.handle, "AWS_DL_PYTHON": str(self.root / "bin/python"), "TUTTI_PACKAGE": "s3://none/none"}

    def boot(self, **changed):
        environment = {k: v for k, v in {**self.environment, **changed}.items() if v is not None}
        done = subprocess.run([*UNSHARE, "sh", "-c", BOOT], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertNotIn(HANDLE_SECRET, done.stdout)
        return done.stdout

    def reason(self, said):
        self.assertNotIn("the stack could not be told of it", said)
        self.assertEqual([(s["Status"], s["UniqueId"]) for s in self.web.signals], [("FAILURE", "user_data")], said)
        return self.web.signals[0]["Reason"]

    def calls(self):
        return (self.root / "calls").read_text().splitlines()

    def hold_lock(self):
        for name in ("end", "ended"):
            os.mkfifo(self.root / name)
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(self.root)], stdout=subprocess.PIPE, text=True)
        self.addCleanup(holder.stdout.close)
        self.addCleanup(holder.wait)
        self.addCleanup(holder.kill)
        self.assertEqual(holder.stdout.readline(), "held\n")

    def test_stack_gets_the_failure(self):
        self.assertEqual(self.reason(self.boot(AWS_DL_DEFAULT_USER=None)), "the environment has no AWS_DL_DEFAULT_USER")

    def test_reason_is_valid_json(self):
        """The signal does not contain quotes, backslashes and control characters of a path."""
        reason = self.reason(self.boot(AWS_DL_PYTHON="python3", TUTTI_PACKAGE='/no"thing\\is\there', PATH=f"{self.root}/bin:/usr/bin:/bin"))
        self.assertRegex(reason, "^(/nothingis here cannot be fetched|python3-boto3 cannot be installed)")

    def test_worker_does_not_signal(self):
        self.boot(AWS_DL_NODE_TYPE="Worker", AWS_DL_DEFAULT_USER=None)
        self.assertEqual(self.web.signals, [])

    @unittest.skipUnless(os.access(APT, os.X_OK), "no apt-get here")
    def test_lock_of_package_lists_is_awaited(self):
        self.hold_lock()
        self.assertIn("cannot be fetched", self.reason(self.boot()))
        calls = [c for c in self.calls() if not c.startswith("sleep")]
        self.assertEqual(calls, 3 * ["update 100"] + ["update 0", "install"])
        self.assertIn("lists/lock", (self.root / "var/log/dl_cfn_setup.log").read_text())

    @unittest.skipUnless(os.access(APT, os.X_OK), "no apt-get here")
    def test_broken_source_does_not_hide_the_others(self):
        (self.root / "sources.list").write_text("deb [trusted=yes] file:/nowhere/at/all ./\n")
        (self.root / "read").touch()  # the other sources have the package
        self.assertIn("cannot be fetched", self.reason(self.boot()))
        calls = [c for c in self.calls() if not c.startswith("sleep")]
        self.assertEqual(calls, 10 * ["update 100"] + ["install"])

    @unittest.skipUnless(os.access(APT, os.X_OK), "no apt-get here")
    def test_reason_has_the_words_of_apt(self):
        (self.root / "sources.list").write_text("deb [trusted=yes] file:/nowhere/at/all ./\n")
        self.assertEqual(self.reason(self.boot()), "python3-boto3 cannot be installed: E: Unable to locate package python3-boto3")
        self.assertEqual(self.calls().count("install"), 21)


if __name__ == "__main__":
    if not can_unshare():
        print("SKIP: this process may not make mount namespaces")
        sys.exit(77)
    unittest.main(verbosity=2)
