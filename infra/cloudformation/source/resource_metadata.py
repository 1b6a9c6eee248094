# SPDX-License-Identifier: MIT
"""Follows the launches of the stack's Auto Scaling groups and sends the master's queue a message when a group is complete.

If a group cannot launch all its instances, it is made smaller, but never below its minimum, so that the stack continues without
the missing ones. If EC2 refuses to launch the master, the stack gets the reason and rolls back. Events may arrive late, twice and
in any order: each action depends only on the current state of the group.
"""
import json
import logging
import os

import boto3

log = logging.getLogger()
log.setLevel(logging.INFO)
NOT_YET_LISTED = ("PendingSpotBidPlacement", "WaitingForSpotInstanceRequestId", "WaitingForSpotInstanceId",
                  "WaitingForInstanceId", "PreInService", "InProgress")
# Words of refusals that repeat on every attempt: quotas, types that a zone lacks, images.
REFUSED = ("vcpu limit", "vcpulimit", "instance limit", "instancelimit", "not supported", "longer supported", "unsupported", "image id",
           "invalidami", "smaller than snapshot", "not eligible", "key pair", "subscribe")
PATIENCE = 300  # seconds of launches that fail for other reasons; the stack itself gives up after 600


def role_of(group_name):
    """Master or Worker; `None` for groups that are not of this stack."""
    for role in ("Master", "Worker"):
        if group_name.startswith(f"{os.environ['AWS_DL_STACK_ID']}-{role}AutoScalingGroup"):
            return role
    return None


def healthy_instances(group):
    return [i["InstanceId"] for i in group["Instances"]
            if i["HealthStatus"].lower() == "healthy" and i["LifecycleState"] in ("InService", "Pending")]


def send_setup(group, launched):
    body = {"event": "asg-setup", "status": "success", "asg": group["AutoScalingGroupName"], "min": group["MinSize"],
            "desired": group["DesiredCapacity"], "max": group["MaxSize"], "launched": launched}
    boto3.client("sqs").send_message(QueueUrl=os.environ["AWS_DL_MASTER_SQS_URL"], MessageBody=json.dumps(body))
    log.info("sent %s", body)


def keep_size(group):
    """Ends replacements: a new instance would not be set up, and workers must not change while a job runs."""
    boto3.client("autoscaling").suspend_processes(
        AutoScalingGroupName=group["AutoScalingGroupName"], ScalingProcesses=["ReplaceUnhealthy"])


def is_launching(group, event):
    """Returns whether there is a launch other than the event's, with an instance that the group does not list yet."""
    listed = [i["InstanceId"] for i in group["Instances"]]
    activities = boto3.client("autoscaling").describe_scaling_activities(
        AutoScalingGroupName=group["AutoScalingGroupName"])["Activities"]
    return any(a["StatusCode"] in NOT_YET_LISTED and a["ActivityId"] != event.get("ActivityId")
               and a.get("Description", "").startswith("Launching") and not any(i in a["Description"] for i in listed)
               for a in activities)


def signal_stack(status, unique_id):
    """Ends the stack's wait for its master. Its events show the id of the signal."""
    try:
        boto3.client("cloudformation").signal_resource(
            StackName=os.environ["AWS_DL_STACK_ID"], LogicalResourceId="MasterAutoScalingGroup", UniqueId=unique_id, Status=status)
    except Exception as e:  # Expects no signal after the first one: the stack no longer waits.
        log.info("no signal: %s", e)


def on_refusal(group, event):
    """Tells the stack, in EC2's words, that the master cannot be launched."""
    message = event.get("StatusMessage")
    words = " ".join("".join(c if " " <= c <= "~" else " " for c in message).split()) if isinstance(message, str) else ""
    if not any(word in words.lower() for word in REFUSED):
        activities = boto3.client("autoscaling").describe_scaling_activities(
            AutoScalingGroupName=group["AutoScalingGroupName"])["Activities"]
        times = [a["StartTime"] for a in activities if a["StatusCode"] == "Failed"]
        if not times or (max(times) - min(times)).total_seconds() < PATIENCE:
            log.info("the group may try again")
            return
    if words:
        signal_stack("FAILURE", words[:64].strip())  # 64 characters are the most that a signal's id may have


def on_launch(group, role, event):
    launched = len(healthy_instances(group))
    if launched != group["DesiredCapacity"]:
        log.info("%d of %d run", launched, group["DesiredCapacity"])
        return
    send_setup(group, launched)
    if role == "Worker":
        keep_size(group)
        return
    signal_stack("SUCCESS", event["EC2InstanceId"])


def on_launch_error(group, role, event):
    launched = len(healthy_instances(group))
    log.info("launch failed: %s", event.get("StatusMessage"))
    if launched < group["MinSize"]:
        log.info("%d is below the minimum of %d", launched, group["MinSize"])
        if role == "Master":
            on_refusal(group, event)
        return
    if launched < group["DesiredCapacity"]:
        if is_launching(group, event):
            log.info("another launch is running")
            return
        keep_size(group)
        boto3.client("autoscaling").set_desired_capacity(
            AutoScalingGroupName=group["AutoScalingGroupName"], DesiredCapacity=launched, HonorCooldown=False)
    send_setup(group, launched)


ACTIONS = {"autoscaling:EC2_INSTANCE_LAUNCH": on_launch, "autoscaling:EC2_INSTANCE_LAUNCH_ERROR": on_launch_error}


def handle(message):
    try:
        event = json.loads(message)
        action = ACTIONS.get(event.get("Event"))
        role = role_of(event["AutoScalingGroupName"]) if action else None
        if action is on_launch and not isinstance(event["EC2InstanceId"], str):
            raise TypeError("EC2InstanceId is no text")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        log.warning("not an event: %s: %s", type(e).__name__, e)
        return
    log.info("%s of %s", event.get("Event"), event.get("AutoScalingGroupName"))
    if role is None:
        return
    groups = boto3.client("autoscaling").describe_auto_scaling_groups(
        AutoScalingGroupNames=[event["AutoScalingGroupName"]])["AutoScalingGroups"]
    if not groups:
        log.info("there is no such group")
        return
    action(groups[0], role, event)


def lambda_handler(event, context):
    for record in event.get("Records") or []:
        handle((record.get("Sns") or {}).get("Message"))
