#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Asks questions about the templates of the clusters: the data of hosts, and the time at which they start."""
import json
import re
import sys
import unittest

from posture import as_list, launch_templates, MASTER, of_type, PLAIN, Questions, TEMPLATES, text_of
from templates import DELETE, INFRA, Stack

sys.path.insert(0, str(INFRA / "bootstrap"))
import host_setup  # noqa: E402
import setup_host  # noqa: E402

questions = Questions()


@questions.ask
def metadata_wants_a_token(stack):
    for name, data in launch_templates(stack).items():
        if data.get("MetadataOptions", {}).get("HttpTokens") != "required":
            yield name


@questions.ask
def metadata_stays_on_the_host(stack):
    for name, data in launch_templates(stack).items():
        if data.get("MetadataOptions", {}).get("HttpPutResponseHopLimit") != 1:
            yield name


@questions.ask
def disks_are_encrypted_and_go_with_their_host(stack):
    for name, data in launch_templates(stack).items():
        disks = [d["Ebs"] for d in data.get("BlockDeviceMappings", [])]
        if not disks or not all(d.get("Encrypted") is True and d.get("DeleteOnTermination") is True for d in disks):
            yield name


@questions.ask
def launch_templates_not_configurations(stack):
    if of_type(stack, "AWS::AutoScaling::LaunchConfiguration"):
        yield "LaunchConfiguration"
    for name, p in of_type(stack, "AWS::AutoScaling::AutoScalingGroup").items():
        if not str(p.get("LaunchTemplate", {}).get("Version", "")).endswith("LatestVersionNumber>"):
            yield name


@questions.ask
def a_key_only_where_one_is_named(stack):
    for name, data in launch_templates(stack).items():
        if data.get("KeyName", "") != stack.values["KeyName"]:
            yield name
        if ("AWS_DL_FORWARD_AGENT='true'" in text_of(data)) != bool(stack.values["KeyName"]):
            yield name


@questions.ask
def the_wait_handle_is_the_masters_secret(stack):
    for name, data in launch_templates(stack).items():
        if ("<myWaitHandle>" in text_of(data)) != (name == "MasterLaunchTemplate"):
            yield name
    if "<myWaitHandle>" in json.dumps(stack.outputs) or "<myWaitHandle>" in json.dumps(of_type(stack, "AWS::Lambda::Function")):
        yield "outputs or function"


@questions.ask
def the_stack_waits_as_long_as_it_should(stack):
    if stack.resources["MasterAutoScalingGroup"].get("CreationPolicy") != {"ResourceSignal": {"Count": 1, "Timeout": "PT600S"}}:
        yield "MasterAutoScalingGroup"
    wait = stack.resources["myWaitCondition"]
    if wait["Properties"] != {"Handle": "<myWaitHandle>", "Timeout": "3300", "Count": 1} or wait.get("DependsOn") != "WorkerAutoScalingGroup":
        yield "myWaitCondition"


@questions.ask
def hosts_come_when_all_they_need_is_there(stack):
    needed = {"MountTarget", "PrivateRoute", "PrivateSubnetRouteAssociation", "PermissionForSNSToInvokeLambda", "MasterQueue", "WorkerQueue"}
    if not needed <= set(as_list(stack.resources["MasterAutoScalingGroup"].get("DependsOn", []))):
        yield "MasterAutoScalingGroup"
    if stack.resources["WorkerAutoScalingGroup"].get("DependsOn") != "MasterAutoScalingGroup":
        yield "WorkerAutoScalingGroup"


@questions.ask
def groups_tell_of_all_that_happens(stack):
    want = {f"autoscaling:EC2_INSTANCE_{what}" for what in ("LAUNCH", "LAUNCH_ERROR", "TERMINATE", "TERMINATE_ERROR")}
    for name, p in of_type(stack, "AWS::AutoScaling::AutoScalingGroup").items():
        told = [(n["TopicARN"], set(n["NotificationTypes"])) for n in p.get("NotificationConfigurations", [])]
        if told != [("<ResourceMetadataSNSTopic>", want)]:
            yield name


@questions.ask
def the_stack_can_do_with_fewer_workers(stack):
    sizes = {name: (str(p["MinSize"]), str(p["DesiredCapacity"]), str(p["MaxSize"]))
             for name, p in of_type(stack, "AWS::AutoScaling::AutoScalingGroup").items()}
    count = stack.values["WorkerCount"]
    if sizes != {"MasterAutoScalingGroup": ("1", "1", "1"), "WorkerAutoScalingGroup": ("0", count, count)}:
        yield str(sizes)


class Posture(questions.case([
    ("metadata_wants_a_token", "elastic", "Resources/ElasticWorkerLaunchTemplate/Properties/LaunchTemplateData/MetadataOptions", DELETE),
    ("metadata_wants_a_token", "cluster", f"{MASTER}/MetadataOptions/HttpTokens", "optional"),
    ("metadata_stays_on_the_host", "cluster", f"{MASTER}/MetadataOptions/HttpPutResponseHopLimit", 2),
    ("disks_are_encrypted_and_go_with_their_host", "cluster", f"{MASTER}/BlockDeviceMappings/0/Ebs/Encrypted", False),
    ("disks_are_encrypted_and_go_with_their_host", "cluster", f"{MASTER}/BlockDeviceMappings", DELETE),
    ("launch_templates_not_configurations", "cluster", "Resources/WorkerAutoScalingGroup/Properties/LaunchTemplate/Version", "$Latest"),
    ("launch_templates_not_configurations", "cluster", "Resources/Old", {"Type": "AWS::AutoScaling::LaunchConfiguration", "Properties": {}}),
    ("a_key_only_where_one_is_named", "cluster", f"{MASTER}/KeyName", "somebodys-key"),
    ("the_wait_handle_is_the_masters_secret", "cluster", "Outputs/Handle", {"Value": {"Ref": "myWaitHandle"}}),
    ("the_stack_waits_as_long_as_it_should", "cluster", "Resources/myWaitCondition/Properties/Timeout", "600"),
    ("the_stack_waits_as_long_as_it_should", "cluster", "Resources/MasterAutoScalingGroup/CreationPolicy", DELETE),
    ("hosts_come_when_all_they_need_is_there", "cluster", "Resources/MasterAutoScalingGroup/DependsOn", ["MountTarget"]),
    ("hosts_come_when_all_they_need_is_there", "cluster", "Resources/WorkerAutoScalingGroup/DependsOn", DELETE),
    ("groups_tell_of_all_that_happens", "elastic", "Resources/WorkerAutoScalingGroup/Properties/NotificationConfigurations/0/NotificationTypes/1", DELETE),
    ("the_stack_can_do_with_fewer_workers", "cluster", "Resources/WorkerAutoScalingGroup/Properties/MinSize", "1"),
])):
    pass


class Bootstrap(unittest.TestCase):
    def test_every_needed_variable_is_set(self):
        head = re.search(r"^for name in ([A-Z_ ]+); do$", (INFRA / "bootstrap/user_data.sh").read_text(), re.M)[1].split()
        for which in TEMPLATES:
            for name, data in launch_templates(Stack(TEMPLATES[which], **PLAIN)).items():
                given = set(re.findall(r"^export (\w+)='[^']", text_of(data), re.M))
                needed = setup_host.ROLES[name.replace("LaunchTemplate", "").lower()].NEEDED
                self.assertLessEqual({*head, *host_setup.ALWAYS, *needed}, given, name)


if __name__ == "__main__":
    unittest.main()
