#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests how elastic jobs with asynchronous parameter servers end."""
import unittest

from endings_case import EndingsCase, lacks
from launch_case import main


@unittest.skipIf(lacks("ps", "libzmq3-dev"), "no ZeroMQ")
class OneServer(EndingsCase):
    STRATEGY = ("--strategy", "ps_async")
    SERVERS = 1
    ENDS_WITH_LAST = False


class TwoServers(OneServer):
    SERVERS = 2


del EndingsCase

if __name__ == "__main__":
    main()
