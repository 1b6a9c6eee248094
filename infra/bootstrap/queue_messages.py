# SPDX-License-Identifier: MIT
"""The messages in the queues by which a cluster forms: from the Lambda function when a group has been launched, and
from the master with all addresses."""
import ipaddress
import json


def parsed(body):
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_asg_setup(body):
    """Returns the message, or raises a ValueError that says what is wrong with it."""
    message = parsed(body)
    if not isinstance(message, dict) or message.get("event") != "asg-setup":
        raise ValueError("no asg-setup")
    if not isinstance(message.get("asg"), str):
        raise ValueError("asg is no name")
    if not isinstance(message.get("status"), str) or message["status"].lower() != "success":
        raise ValueError("its status is not success")
    for name in ("min", "desired", "max", "launched"):
        if type(message.get(name)) is not int or message[name] < 0:
            raise ValueError(f"{name} is no count")
    return message


def check_worker_setup(body):
    message = parsed(body)
    if not isinstance(message, dict) or message.get("event") != "worker-setup":
        raise ValueError("no worker-setup")
    ips = message.get("worker-ips")
    if not isinstance(ips, list) or not all(isinstance(ip, str) for ip in [*ips, message.get("master-ip")]):
        raise ValueError("its addresses are no strings")
    for ip in ips:
        ipaddress.ip_address(ip)
    if len(set(ips)) != len(ips) or ips != sorted(ips):
        raise ValueError("worker-ips is not sorted, or has one twice")
    if message["master-ip"] not in ips:
        raise ValueError("master-ip is not in worker-ips")
    return message
