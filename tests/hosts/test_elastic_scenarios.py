#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Runs each scenario of elastic training over Gloo, and the scenarios that need a later cleanup also over MPI."""
import shutil

import elastic_scenarios
from elastic_scenarios import Scenarios  # noqa: F401
from hosts_case import main
from launch_case import at_night


class OverMpi(elastic_scenarios.Scenarios):
    STRATEGY = ("--strategy", "mpi")


# test_train_elastic_mpi.py has the remaining scenarios for MPI.
for name in dir(OverMpi):
    if name.startswith("test_") and (name[5:7] not in ("03", "04") or shutil.which("mpirun") is None):
        setattr(OverMpi, name, None)

Scenarios.test_14_failures_in_a_change = at_night(Scenarios.test_14_failures_in_a_change)

if __name__ == "__main__":
    main(3)
