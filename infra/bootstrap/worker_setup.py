# SPDX-License-Identifier: MIT
"""A worker of the stack: it lets the master in, answers, and waits for the list of the cluster's hosts."""
from host_files import read_json
from host_setup import CLUSTER, Failure, HostSetup, log
from queue_messages import check_worker_setup


class WorkerSetup(HostSetup):
    NEEDED = CLUSTER

    def check_member(self, ips):
        if self.ip not in ips:
            raise Failure(f"the cluster began without {self.ip}, which answered too late or was launched later: it has {' '.join(ips)}. "
                          "hint: workers join later only by elastic.yaml's AddWorkerCommand; else delete the stack and create it anew "
                          "with EFSFileSystemId")

    def set_up(self):
        self.let_master_in()
        self.answer()
        url = self.queue("AWS_DL_WORKER_QUEUE")

        def hear():
            # The queue deletes its messages after four days; the shared folder does not.
            begun, master = read_json(self.shared / "cluster.json"), read_json(self.shared / "master.json")
            if begun and master and begun.get("master-ip") == master.get("ip"):
                self.check_member(begun["worker-ips"])
            # All workers read the same message: it stays visible, and no worker deletes it.
            for message, receipt in self.messages(url, check_worker_setup, 0):
                if message["master-ip"] != (read_json(self.shared / "master.json") or {}).get("ip"):
                    log.warning("a message of %s, which is not this cluster's master, is deleted", message["master-ip"])
                    self.delete(url, receipt)
                    continue
                return message
            return None
        message = self.until("worker-setup", hear)
        if not message:
            raise Failure(f"no worker-setup within {self.budget:.0f} s; see the master's log")
        self.check_member(message["worker-ips"])
        # The master may have been replaced meanwhile.
        self.let_master_in()
        self.leave_files(message["master-ip"], message["worker-ips"])
        log.info("this host is deeplearning-worker%d", message["worker-ips"].index(self.ip) + 1)
