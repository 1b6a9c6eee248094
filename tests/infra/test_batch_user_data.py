#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests the script in the user data of infra/batch/batch.yaml, which mounts the file system on each node."""
import base64
import email
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from batch_stack import BATCH, GIVEN
from templates import Stack, load


class UserData(unittest.TestCase):
    """Runs the script of a node, with stand-ins for the programs that it calls."""

    def setUp(self):
        data = Stack(load(BATCH), **GIVEN).resources["LaunchTemplate"]["Properties"]["LaunchTemplateData"]["UserData"]
        message = email.message_from_bytes(base64.b64decode(data))
        self.assertTrue(message.is_multipart())
        self.script, = (p.get_payload() for p in message.get_payload() if p.get_content_type() == "text/x-shellscript")
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def run_script(self, **programs):
        bin_folder = self.folder / "bin"
        bin_folder.mkdir()
        for name in ("dnf", "mount", "mountpoint", "shutdown", "sleep", "mount.lustre"):
            code = programs.get(name.replace(".", "_"), 0)
            if code is not None:
                (bin_folder / name).write_text(f'#!/bin/sh\necho {name} "$@" >>{self.folder}/calls\nexit {code}\n')
                (bin_folder / name).chmod(0o755)
        (self.folder / "etc" / "ecs").mkdir(parents=True)
        (self.folder / "dev").mkdir()
        text = re.sub(r"(?<![\w@}])/(fsx|scratch|etc|dev/console)\b", rf"{self.folder}/\1", self.script)
        done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=300,
                              env={"PATH": f"{bin_folder}:/usr/bin:/bin"})
        return done.returncode, (self.folder / "calls").read_text()

    def test_shellcheck(self):
        try:
            done = subprocess.run(["shellcheck", "-s", "bash", "-"], input=self.script, text=True, capture_output=True, timeout=300)
        except FileNotFoundError:
            self.skipTest("no shellcheck (Debian: apt-get install shellcheck)")
        self.assertEqual(done.stdout, "")

    def test_mounts(self):
        code, calls = self.run_script()
        self.assertEqual(code, 0)
        self.assertNotIn("shutdown", calls)
        line = (self.folder / "etc" / "fstab").read_text()
        self.assertRegex(line, r"^<FileSystem>\.fsx\.us-east-1\.amazonaws\.com@tcp:/<FileSystem\.LustreMountName> \S*/fsx lustre "
                               r"defaults,noatime,flock,_netdev 0 0\n$")

    def test_node_without_the_file_system_shows_an_empty_folder(self):
        """After a failure the node keeps running. If it shut down, Batch would replace it again and again while the job
        waits."""
        code, calls = self.run_script(mount=1, mountpoint=1)
        self.assertNotEqual(code, 0)
        self.assertNotIn("shutdown", calls)
        self.assertEqual(calls.count("mount "), 6)
        self.assertRegex(calls, r"mount -t tmpfs -o ro,size=4k none \S+/fsx\n$")


if __name__ == "__main__":
    unittest.main(verbosity=2)
