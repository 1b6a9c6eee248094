#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""The scenarios of elastic training, each once, over Gloo."""
from elastic_scenarios import Scenarios  # noqa: F401
from hosts_case import main

if __name__ == "__main__":
    main(3)
