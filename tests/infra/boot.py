# SPDX-License-Identifier: MIT
"""Runs setup_host.py for instances of a stack. Each instance is a folder, and moto's server is the cloud."""
import sys

from cloud import BOOTSTRAP, CloudCase, Stack

sys.path.insert(0, str(BOOTSTRAP))
import setup_host  # noqa: E402, F401


class Boot(CloudCase):
    def setUp(self):
        super().setUp()
        self.stack = Stack(self.cloud)
        self.cloud.web.signals.clear()
        self.instances = {}

    def ip(self, k):
        return f"10.99.0.{7 + k * 3}"  # text order differs from number order: .10 comes before .7

    def root(self, k):
        return self.folder / f"host{k}"

    def launch(self, role, k):
        self.instances[k] = self.stack.launch(role, self.ip(k))

    def boot(self, role, k, **more):
        (self.root(k) / "etc/ssh").mkdir(parents=True, exist_ok=True)
        env = self.stack.environment(role, f"{self.stack.name}{k}", self.instances[k], self.ip(k), self.efs, **more)
        return self.start([sys.executable, BOOTSTRAP / "setup_host.py", "--root", self.root(k)],
                          {name: value for name, value in env.items() if value is not None})

    def read(self, k, path):
        return (self.root(k) / path).read_text()

    def signals(self):
        return [(s["Status"], s["UniqueId"]) for s in self.cloud.web.signals]
