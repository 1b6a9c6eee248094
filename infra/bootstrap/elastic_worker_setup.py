# SPDX-License-Identifier: MIT
"""A worker that joins a complete cluster: it joins the existing hosts, prepares its data, and reports that
in a file for which the elastic manager waits."""
import os
import subprocess
import sys
from pathlib import Path

from host_files import read_json
from host_setup import Failure, HostSetup, log


class ElasticWorkerSetup(HostSetup):
    def set_up(self):
        # Removes the file of an earlier instance with this address.
        success = Path(self.env["EFS_MOUNT"]) / f"prepare_data_success_{self.ip}"
        success.unlink(missing_ok=True)
        self.let_master_in()
        self.answer()
        cluster = self.until("the cluster", lambda: read_json(self.shared / "cluster.json"))
        if not cluster:
            raise Failure(f"the master has not written cluster.json to {self.shared}; see its log")
        self.leave_files(cluster["master-ip"], cluster["worker-ips"])
        self.prepare_data()
        success.touch()
        log.info("data is prepared; the elastic manager may add %s", self.ip)

    def prepare_data(self):
        script = self.env.get("PREPARE_DATA_SCRIPT")
        if not script:
            return
        if not os.path.isfile(script):
            raise Failure(f"PREPARE_DATA_SCRIPT: there is no file {script}")
        command = [script] if os.access(script, os.X_OK) else [sys.executable, script]
        log.info("running %s", script)
        # Passes only the script's own variables: it must not see the wait handle and other values of the set-up.
        keep = {n: v for n, v in self.env.items() if n in ("PATH", "LANG", "EFS_MOUNT", "AWS_REGION")}
        with subprocess.Popen(command, cwd=self.env["EFS_MOUNT"], env={"HOME": self.files.user.pw_dir, **keep}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as running:
            for line in running.stdout:
                log.info("prepare: %s", line.rstrip())
        if running.returncode != 0:
            raise Failure(f"{script} ended with {running.returncode}: this host is not added to a job")
