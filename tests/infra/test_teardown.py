#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Deletes stacks of cluster.yaml and elastic.yaml in orders that CloudFormation may use. The only remaining resource
that costs money is a new file system; an existing one is unchanged. An elastic worker that still runs prevents the
deletion of the network."""
import random
import unittest

import boto3

import teardown as model
from fake_cloud import IMAGE, REGION, fake_services
from teardown import StillInUse, hosts, teardown
from templates import INFRA, changed, load

PATHS = {name: INFRA / f"cloudformation/{name}.yaml" for name in ("cluster", "elastic")}
TEMPLATES = {name: load(path) for name, path in PATHS.items()}
PLAIN = {"TuttiPackage": "s3://my-bucket/tutti.tar", "WorkerCount": 2, "AmiId": IMAGE}
WITH_EFA = {**PLAIN, "InstanceType": "p4d.24xlarge", "WorkerCount": 1}


def inventory():
    """Returns {kind: ids} of all resources, including those that moto puts into an empty account."""
    def ids(service, operation, key, name, keep=lambda x: True, **arguments):
        return {x[name] for x in getattr(model.aws(service), operation)(**arguments)[key] if keep(x)}
    return {
        "vpcs": ids("ec2", "describe_vpcs", "Vpcs", "VpcId"), "subnets": ids("ec2", "describe_subnets", "Subnets", "SubnetId"),
        "gateways": ids("ec2", "describe_internet_gateways", "InternetGateways", "InternetGatewayId"),
        "nat": {g["NatGatewayId"] for g in model.nat_gateways()}, "addresses": ids("ec2", "describe_addresses", "Addresses", "AllocationId"),
        "tables": ids("ec2", "describe_route_tables", "RouteTables", "RouteTableId"),
        "groups": ids("ec2", "describe_security_groups", "SecurityGroups", "GroupId"),
        "templates": ids("ec2", "describe_launch_templates", "LaunchTemplates", "LaunchTemplateId"),
        "endpoints": ids("ec2", "describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId", lambda e: e["State"] != "deleted"),
        "hosts": {h["InstanceId"] for h in hosts()}, "targets": {t["MountTargetId"] for t in model.mount_targets()},
        "files": ids("efs", "describe_file_systems", "FileSystems", "FileSystemId"),
        "queues": set(model.aws("sqs").list_queues().get("QueueUrls", [])),
        "topics": ids("sns", "list_topics", "Topics", "TopicArn"), "subscriptions": ids("sns", "list_subscriptions", "Subscriptions", "SubscriptionArn"),
        "functions": ids("lambda", "list_functions", "Functions", "FunctionName"), "logs": ids("logs", "describe_log_groups", "logGroups", "logGroupName"),
        "roles": ids("iam", "list_roles", "Roles", "RoleName"), "profiles": ids("iam", "list_instance_profiles", "InstanceProfiles", "InstanceProfileName"),
        "scaling": ids("autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups", "AutoScalingGroupName"),
    }


class HostsLast:
    """Chooses the order that is most likely to be refused: groups of hosts and NAT gateways first."""

    @staticmethod
    def choice(names):
        return min(names, key=lambda name: (name.endswith("AutoScalingGroup") or name.startswith("NAT"), name))


class Deleted(unittest.TestCase):
    def test_only_a_new_file_system_remains(self):
        with fake_services() as aws:
            boto3.client("ec2", REGION).create_key_pair(KeyName="my-key")
            old = boto3.client("efs", REGION).create_file_system(CreationToken="old")["FileSystemId"]
            with_ssh = {"TuttiPackage": "tutti.tar", "KeyName": "my-key", "SSHLocation": "203.0.113.7/32", "EFSFileSystemId": old, "AmiId": IMAGE}
            for k, (which, parameters, order) in enumerate([("cluster", PLAIN, HostsLast()), ("elastic", with_ssh, HostsLast()),
                                                            ("elastic", PLAIN, random.Random(1)), ("cluster", WITH_EFA, HostsLast())]):
                with self.subTest(template=which, parameters=parameters):
                    before = inventory()
                    created = aws.create(f"stack-{k}", PATHS[which], **parameters)
                    self.assertNotEqual(inventory(), before)
                    teardown(created, TEMPLATES[which], parameters, order)
                    after = inventory()
                    new_files = {created.outputs["FileSystemID"]} - {old}
                    self.assertEqual({k: v - before[k] for k, v in after.items() if v - before[k]}, {"files": new_files} if new_files else {})
                    self.assertEqual({k: before[k] - v for k, v in after.items() if before[k] - v}, {})

    def test_failed_creation_leaves_no_resource(self):
        for which in TEMPLATES:
            with self.subTest(which), fake_services() as aws:
                before = inventory()
                created = aws.create("train", PATHS[which], **PLAIN)
                teardown(created, TEMPLATES[which], PLAIN, HostsLast(), rollback=True)
                self.assertEqual(inventory(), before)
                # Shows that the test detects a policy that always keeps the file system.
                created = aws.create("again", PATHS[which], **PLAIN)
                kept = changed(TEMPLATES[which], "Resources/FileSystem/DeletionPolicy", "Retain")
                teardown(created, kept, PLAIN, HostsLast(), rollback=True)
                self.assertEqual(inventory()["files"] - before["files"], {created.outputs["FileSystemID"]})

    def test_an_elastic_worker_keeps_the_network(self):
        with fake_services() as aws:
            created = aws.create("train", PATHS["elastic"], **PLAIN)
            worker, = boto3.client("ec2", REGION).run_instances(
                LaunchTemplate={"LaunchTemplateId": created.outputs["ElasticWorkerLaunchTemplate"]}, MinCount=1, MaxCount=1,
                SubnetId=created.resources["PrivateSubnet"])["Instances"]
            with self.assertRaisesRegex(StillInUse, worker["InstanceId"]):
                teardown(created, TEMPLATES["elastic"], PLAIN, HostsLast())

    def test_hosts_keep_their_placement_group(self):
        with fake_services() as aws:
            created = aws.create("train", PATHS["cluster"], **PLAIN)
            # If the launch templates do not refer to the group by its name, CloudFormation may delete the group before
            # the hosts.
            apart = TEMPLATES["cluster"]
            for name in ("MasterLaunchTemplate", "WorkerLaunchTemplate"):
                apart = changed(apart, f"Resources/{name}/Properties/LaunchTemplateData/Placement/Fn::If/1/GroupName",
                                created.resources["HostsPlacement"])
            with self.assertRaisesRegex(StillInUse, r"HostsPlacement-\w+ is used by"):
                teardown(created, apart, PLAIN, HostsLast())

    def test_template_without_its_order_is_refused(self):
        order = "Resources/{}/DependsOn"
        hosts_first = changed(TEMPLATES["cluster"], order.format("MasterAutoScalingGroup"), [])
        gateways_first = changed(changed(TEMPLATES["cluster"], order.format("NATGateway"), []), order.format("NATGatewayEIP"), [])
        for template, what in ((hosts_first, r"is used by \['i-"), (gateways_first, "the gateway to the internet is used by")):
            with self.subTest(what), fake_services() as aws, self.assertRaisesRegex(StillInUse, what):
                teardown(aws.create("train", PATHS["cluster"], **PLAIN), template, PLAIN, HostsLast())


if __name__ == "__main__":
    unittest.main()
