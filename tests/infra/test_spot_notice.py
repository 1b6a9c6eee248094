#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests that an instance that AWS will end notifies its worker, whatever started the worker."""
import json
import os
import re
import subprocess
import sys
import time
import unittest
import unittest.mock

from boot import Boot, setup_host
from cloud import BOOTSTRAP, CloudCase, until

from instance_metadata import Metadata


class Notice(CloudCase):
    def test_the_spot_notice(self):
        web, file = self.cloud.web, self.folder / "notice"
        endpoint = web.add_host("spot", "i-1", "10.0.0.1")
        file.write_text("an older one")
        poller = self.start([sys.executable, BOOTSTRAP / "spot_notice.py", "--poll", "0.1", file],
                            {**os.environ, "AWS_EC2_METADATA_SERVICE_ENDPOINT": endpoint})
        until(lambda: not file.exists())
        asked = len(web.asked)
        until(lambda: len(web.asked) > asked + 3)
        self.assertFalse(file.exists())
        self.assertIsNone(poller.poll())
        web.hosts["spot"]["spot/instance-action"] = "<html>"
        time.sleep(0.3)
        self.assertFalse(file.exists())
        web.hosts["spot"]["spot/instance-action"] = '{"action": "terminate", "time": "2026-11-22T08:22:00Z"}'
        said = self.finish(poller)
        self.assertEqual(json.loads(file.read_text())["action"], "terminate")
        self.assertIn("this instance ends: terminate at 2026-11-22T08:22:00Z", said)
        # Requests have a token. Without it the service would answer 401, and no notice would arrive.
        bad = subprocess.run([sys.executable, BOOTSTRAP / "spot_notice.py", "--poll", "0", file], capture_output=True, timeout=300, check=False)
        self.assertEqual(bad.returncode, 2)


class SpotService(Boot):
    """Tests the service that the system starts on a spot instance."""

    def setup_of(self, **metadata):
        env = self.stack.environment("Worker", "spot-host", "i-1", "10.99.0.7", self.efs)
        self.cloud.web.hosts["spot-host"].update(metadata)
        (self.folder / "systemctl").write_text(f'#!/bin/sh\necho "$@" >>{self.folder}/calls\n')
        (self.folder / "systemctl").chmod(0o755)
        setup = setup_host.role_of(env)(self.folder, env)
        setup.metadata = Metadata(f"{self.cloud.web.url}/spot-host")
        with unittest.mock.patch.dict(os.environ, PATH=f"{self.folder}:{os.environ['PATH']}"):
            setup.watch_for_spot_notice()
        return self.folder / "etc/systemd/system/tutti-spot-notice.service"

    def test_service_starts_and_stops_after_the_notice(self):
        unit = self.setup_of(**{"instance-life-cycle": "spot"})
        self.assertEqual((self.folder / "calls").read_text(), "enable --now tutti-spot-notice.service\n")
        text = unit.read_text()
        command = re.search(r"^ExecStart=(\S+) (\S+) /run/tutti-spot-notice$", text, re.M)
        self.assertTrue(os.access(command[1], os.X_OK) and os.path.isfile(command[2]), text)
        # The service ends with 0 after a notice. It removes the file when it starts.
        self.assertIn("\nRestart=on-failure\n", text)

    def test_other_instances_have_no_service(self):
        self.assertFalse(self.setup_of(**{"instance-life-cycle": "on-demand"}).exists())
        self.assertFalse(self.setup_of().exists())
        self.assertFalse((self.folder / "calls").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
