#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests how elastic jobs over gloo and MPI end."""
import unittest

from endings_case import EndingsCase, lacks
from launch_case import main


@unittest.skipIf(lacks("gloo", "libgloo-dev"), "no gloo")
class Gloo(EndingsCase):
    STRATEGY = ("--strategy", "gloo")


@unittest.skipIf(lacks("mpi", "libopenmpi-dev"), "no MPI")
class Mpi(EndingsCase):
    """Each generation is a separate mpirun, which continues from the last checkpoint."""
    STRATEGY = ("--strategy", "mpi", "--save-steps", "1")
    ENDS_WITH_LAST = False


del EndingsCase

if __name__ == "__main__":
    main()
