#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes this instance a host of the cluster: the master, one of its workers, or an elastic worker that joins later.

    setup_host.py [--root DIR]        writes its files below DIR instead of /

All other settings come from the environment, see user_data.sh. Hosts exchange their keys in a folder of the shared file
system, $EFS_MOUNT/.tutti-cluster/STACK: `master.json` (address and public key of the master), `hosts/ADDRESS.json` (a host's keys; it
exists once the master may log in), `cluster.json` (the hosts of the cluster) and `known_hosts`. The job itself needs no other
folder. Python 3.9 and boto3.
"""
import argparse
import logging
import os
import subprocess
import sys
from pathlib import Path

from elastic_worker_setup import ElasticWorkerSetup
from host_setup import Failure, log
from master_setup import MasterSetup, signal_stack
from worker_setup import WorkerSetup

ROLES = {"master": MasterSetup, "worker": WorkerSetup, "elasticworker": ElasticWorkerSetup}


def role_of(environment):
    """Returns the class of the role in AWS_DL_NODE_TYPE, in upper or lower case."""
    role = environment.get("AWS_DL_NODE_TYPE", "").lower()
    if role not in ROLES:
        raise Failure(f"AWS_DL_NODE_TYPE is '{role}', not Master, Worker or ElasticWorker")
    return ROLES[role]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default="/", help="the folder below which it writes")
    root = Path(parser.parse_args().root)
    file = root / "var/log/dl_cfn_setup.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s setup_host: %(levelname)s: %(message)s",
                        handlers=[logging.FileHandler(file), logging.StreamHandler()])
    # The logs of these libraries may contain the credentials that signed a request.
    for library in ("boto3", "botocore", "urllib3"):
        logging.getLogger(library).setLevel(logging.ERROR)
    try:
        role_of(os.environ)(root).run()
    except Exception as e:
        # For an unexpected error the log has the place in the code too.
        expected = isinstance(e, (Failure, OSError, subprocess.SubprocessError, ValueError, ImportError))
        why = str(e) if expected else repr(e)
        log.error("%s", why, exc_info=not expected)
        # Without a master there is no cluster: the stack need not wait until its time-out.
        if os.environ.get("AWS_DL_NODE_TYPE", "").lower() == "master" and os.environ.get("AWS_DL_WAIT_HANDLE"):
            try:
                signal_stack(os.environ["AWS_DL_WAIT_HANDLE"], "FAILURE", "setup_host", why, 2)
            except Failure as failed:
                log.error("%s", failed)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
