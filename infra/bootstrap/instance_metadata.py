# SPDX-License-Identifier: MIT
"""The metadata of an instance, by version 2 of the service's protocol: a token first."""
import os
import time
import urllib.error
import urllib.request

LIFE = 21600  # seconds of a token; it is renewed after half of them


class Metadata:
    def __init__(self, base=None):
        self.base = (base or os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254").rstrip("/")
        # A proxy must not see this traffic.
        self.open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        self.token, self.renew = None, 0.0

    def get(self, path):
        """Returns the text at latest/meta-data/PATH, or `None` if it does not exist. Raises OSError if the service does not answer."""
        for again in (True, False):
            if self.token is None or time.monotonic() >= self.renew:
                ask = urllib.request.Request(f"{self.base}/latest/api/token", method="PUT",
                                             headers={"X-aws-ec2-metadata-token-ttl-seconds": str(LIFE)})
                with self.open(ask, timeout=5) as answer:
                    self.token = answer.read().decode()
                self.renew = time.monotonic() + LIFE / 2
            ask = urllib.request.Request(f"{self.base}/latest/meta-data/{path}", headers={"X-aws-ec2-metadata-token": self.token})
            try:
                with self.open(ask, timeout=5) as answer:
                    return answer.read().decode()
            except urllib.error.HTTPError as e:
                if e.code == 404:
                    return None
                # The token is older than a stop of the instance.
                self.token = None
                if e.code != 401 or not again:
                    raise
        return None
