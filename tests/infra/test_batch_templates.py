#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests infra/batch/batch.yaml and job.yaml: cfn-lint, rules that cfn-lint does not check, and stacks of them. Each
assertion fails on a broken copy. test_batch_user_data.py tests the script of a node."""
import gzip
import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

try:
    import boto3
    import cfnlint  # noqa: F401
    import moto  # noqa: F401
except ImportError as e:
    print(f"SKIP: no {e.name} (./test.sh installs tests/infra/requirements.txt)")
    sys.exit(77)

import moto_batch
from batch_checks import (as_list, check_file_system, check_job, check_network, check_nodes,
                          check_roles, statements)
from batch_stack import BATCH, GIVEN, JOB, JOB_GIVEN
from fake_cloud import REGION, Refused, fake_services
from templates import DELETE, Stack, changed, load, refusals, unproved_constraints

R = "Resources/"
SETTINGS = ({}, {"Efa": "true"}, {"InstanceType": "c6i.8xlarge"}, {"S3Input": "s3://input/x.tar.gz", "S3Output": "s3://output/y"},
            {"FileSystemType": "PERSISTENT_2", "FileSystemThroughput": "250", "FileSystemGiB": "4800"},
            {"SshKeySecretArn": "arn:aws:secretsmanager:us-east-1:123456789012:secret:ssh-AbCdEf"},
            {"PurchaseOption": "spot", "NumNodes": 1, "InstanceType": "g5.xlarge"},
            {"PurchaseOption": "capacity-block", "CapacityReservationId": "cr-12345678", "Efa": "true", "InstanceType": "p5en.48xlarge"},
            {"CapacityReservationId": "cr-12345678"}, {"InstanceType": "c8g.8xlarge"})
SPOT, BLOCK = SETTINGS[6:8]


CHECKS = {check_file_system: BATCH, check_network: BATCH, check_nodes: BATCH, check_job: BATCH, check_roles: None}
BROKEN = [
    (check_file_system, R + "FileSystem/Properties/LustreConfiguration/PerUnitStorageThroughput", "125", {}),
    (check_file_system, R + "FileSystem/Properties/LustreConfiguration/PerUnitStorageThroughput", "100", SETTINGS[4]),
    (check_file_system, R + "FileSystem/Properties/LustreConfiguration/PerUnitStorageThroughput", DELETE, SETTINGS[4]),
    (check_file_system, R + "FileSystem/Properties/LustreConfiguration/ImportPath", "s3://data", {}),
    (check_file_system, R + "FileSystem/Properties/StorageCapacity", 3000, {}),
    (check_file_system, R + "FileSystem/DeletionPolicy", "Retain", {}),
    (check_file_system, R + "RunsAssociation/Properties/FileSystemPath", "/data/runs", {}),
    (check_file_system, R + "RunsAssociation/Properties/DataRepositoryPath", "s3://data/imagenet/runs", {}),
    (check_file_system, R + "RunsAssociation/Properties/S3/AutoExportPolicy/Events", ["MADE"], {}),
    (check_file_system, R + "DataAssociation/Properties/S3/AutoExportPolicy", {"Events": ["NEW"]}, {}),
    (check_network, R + "SecurityGroup/Properties/SecurityGroupIngress", [{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}], {}),
    (check_network, R + "SecurityGroup/Properties/SecurityGroupEgress/0/ToPort", 65535, {}),
    (check_network, R + "EgressToNodes/Properties/IpProtocol", "tcp", {}),
    (check_nodes, R + "ComputeEnvironment/Properties/ComputeResources/Type", "SPOT", {}),
    (check_nodes, R + "PlacementGroup/Properties/Strategy", "spread", {}),
    (check_nodes, R + "ComputeEnvironment/Properties/ComputeResources/MinvCpus", 8, {}),
    (check_nodes, R + "ComputeEnvironment/Properties/ComputeResources/Subnets", ["a", "b"], {}),
    (check_nodes, R + "ComputeEnvironment/Properties/ComputeResources/SecurityGroupIds", ["sg"], {"Efa": "true"}),
    (check_nodes, R + "ComputeEnvironment/Properties/ComputeResources/Ec2Configuration/0/ImageType", "ECS_AL2023", {}),
    (check_nodes, R + "LaunchTemplate/Properties/LaunchTemplateData/MetadataOptions/HttpTokens", "optional", {}),
    (check_nodes, R + "LaunchTemplate/Properties/LaunchTemplateData/BlockDeviceMappings/0/Ebs/Encrypted", False, {}),
    (check_job, R + "JobDefinition/Properties/NodeProperties/Fn::If/2/MainNode", 20, {}),
    (check_job, R + "JobDefinition/Properties/NodeProperties/Fn::If/2/NodeRangeProperties/0/Container/LinuxParameters/SharedMemorySize", DELETE, {}),
    (check_job, R + "JobDefinition/Properties/NodeProperties/Fn::If/2/NodeRangeProperties/0/Container/MountPoints/1", DELETE, {}),
    (check_job, R + "JobDefinition/Properties/NodeProperties/Fn::If/2/NodeRangeProperties/0/Container/Vcpus", 62, {}),
    (check_job, R + "JobDefinition/Properties/NodeProperties/Fn::If/2/NodeRangeProperties/0/TargetNodes", "0:19", {}),
    (check_job, R + "JobDefinition/Properties/NodeProperties/Fn::If/2/NodeRangeProperties/0/Container/Environment/0", {"Name": "SSH_KEY", "Value": "x"}, {}),
    (check_job, R + "JobDefinition/Properties/Parameters", {}, {}),
    (check_job, R + "JobDefinition/Properties/RetryStrategy/EvaluateOnExit/1", DELETE, {}),
    (check_job, R + "JobDefinition/Properties/RetryStrategy/EvaluateOnExit/0", DELETE, SPOT),
    (check_job, R + "JobDefinition/Properties/ContainerProperties/Fn::If/1/Command", ["--key", "Ref::SshKey", "--", "train_imagenet"], SPOT),
    (check_job, R + "JobDefinition/Properties/ContainerProperties/Fn::If/1/MountPoints/0", DELETE, SPOT),
    (check_job, R + "JobQueue/Properties/JobStateTimeLimitActions", DELETE, {}),
    (check_job, R + "JobQueue/Properties/JobStateTimeLimitActions/2", DELETE, {}),
    (check_nodes, R + "ComputeEnvironment/Properties/ComputeResources/Type", "EC2", SPOT),
    (check_nodes, R + "ComputeEnvironment/Properties/ComputeResources/PlacementGroup", {"Ref": "PlacementGroup"}, BLOCK),
    (check_nodes, R + "LaunchTemplate/Properties/LaunchTemplateData/InstanceMarketOptions", DELETE, BLOCK),
    (check_nodes, R + "LaunchTemplate/Properties/LaunchTemplateData/CapacityReservationSpecification", DELETE, SETTINGS[8]),
    (check_nodes, R + "LaunchTemplate/Properties/LaunchTemplateData/NetworkInterfaces/Fn::If/1/3", DELETE, BLOCK),
    (check_roles, R + "JobRole/Properties/Policies/0/PolicyDocument/Statement/0", {"Effect": "Allow", "Action": "ssm:GetParameter", "Resource": "*"}, {}),
    (check_roles, R + "JobRole/Properties/Policies/0/PolicyDocument/Statement/0", {"Effect": "Allow", "Action": "s3:*", "Resource": "arn"}, {}),
]
JOB_BROKEN = [
    (R + "StackRole/Properties/Policies/0/PolicyDocument/Statement/12/Condition", DELETE),
    (R + "StackRole/Properties/Policies/0/PolicyDocument/Statement/10/Condition", DELETE),
    (R + "StackRole/Properties/Policies/0/PolicyDocument/Statement/9/Resource", "arn:aws:iam::1:role/*"),
    (R + "StateMachineRole/Properties/Policies/0/PolicyDocument/Statement/0/Action", ["cloudformation:*"]),
    (R + "StateMachineRole/Properties/Policies/0/PolicyDocument/Statement/3/Resource", "*"),
]
# Values that each constraint must refuse.
REFUSED = {"NumNodes": ["0", "1001", "many"], "InstanceType": ["p3.16xlarge", ""], "MaxvCpus": ["0", "200001"], "AmiId": ["ami-12", "x"],
           "ScratchGiB": ["10", "99999"], "Efa": ["yes"], "SharedMemoryMiB": ["1", "1048577"], "BatchSize": ["0", "65537"], "Attempts": ["0", "11"],
           "Image": ["tutti", "tutti; reboot", "x.com/tutti"], "TimeLimitSeconds": ["30", "1209601"], "JoinTimeoutSeconds": ["1", "86401"],
           "S3Input": ["/data", "s3://B/x", "s3://bucket/*"], "S3Output": ["http://x/y"], "SshKeySecretArn": ["mine", "arn:aws:ssm:x"],
           "DataRepository": ["data", ""], "RunsRepository": ["s3://", "s3://data/imagenet"], "FileSystemType": ["SCRATCH_1"],
           "FileSystemGiB": ["3600", "1000"],
           "PurchaseOption": ["reserved", ""], "CapacityReservationId": ["cr-1", "ami-12345678"], "RunnableSeconds": ["599", "86401"], "FileSystemThroughput": ["125", "50"]}
JOB_REFUSED = {"TemplateUrl": ["http://bucket.s3.amazonaws.com/x", "https://example.com/x"], "TemplateArn": ["arn:aws:s3:::bucket"],
               "DataBucket": ["s3://b"], "RunsBucket": ["A"], "Prefix": ["9", "UP", "a" * 31]}


class Templates(unittest.TestCase):
    def test_cfn_lint(self):
        done = subprocess.run([Path(sys.executable).with_name("cfn-lint"), "--regions", "us-east-1", "--", BATCH, JOB], text=True,
                              capture_output=True, timeout=900)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stdout)

    def test_text(self):
        for path in (BATCH, JOB):
            self.assertLess(path.stat().st_size, 51200, "--template-body takes no more")
            # CloudFormation does not support aliases of YAML.
            self.assertIsNone(re.search(r"(?m)(^|[:\s\[])[&*][A-Za-z]\w*\s*$", path.read_text()), path)

    def test_checks(self):
        for path, given, settings in ((BATCH, GIVEN, SETTINGS), (JOB, JOB_GIVEN, [{}])):
            template = load(path)
            for setting in settings:
                self.assertEqual(refusals(template, {**given, **setting}), [])
                for check, where in CHECKS.items():
                    if where in (None, path):
                        self.assertEqual(check(Stack(template, **given, **setting)), [], f"{check.__name__} {setting}")

    def test_checks_fail_on_broken_copies(self):
        template = load(BATCH)
        for check, path, value, setting in BROKEN:
            with self.subTest(path):
                self.assertNotEqual(check(Stack(changed(template, path, value), **GIVEN, **setting)), [])
        self.assertEqual({c for c, *_ in BROKEN}, set(CHECKS))
        for path, value in JOB_BROKEN:
            with self.subTest(path):
                self.assertNotEqual(check_roles(Stack(changed(load(JOB), path, value), **JOB_GIVEN)), [])

    def test_refused_values(self):
        for path, given, refused in ((BATCH, GIVEN, REFUSED), (JOB, JOB_GIVEN, JOB_REFUSED)):
            template = load(path)
            for name, values in refused.items():
                for value in values:
                    said = refusals(template, {**given, name: value})
                    self.assertEqual(len(said), 1, f"{name} {value!r}: {said}")
                    self.assertRegex(said[0], r"must|cannot")
            self.assertEqual(unproved_constraints(template, given, refused), [])
        said = refusals(load(BATCH), {**GIVEN, "Efa": "true", "InstanceType": "c6i.8xlarge"})
        self.assertEqual(said, ["Efa true needs an InstanceType that has an Elastic Fabric Adapter"])
        said = refusals(load(BATCH), {**GIVEN, "FileSystemType": "PERSISTENT_2"})
        self.assertEqual(said, ["PERSISTENT_2 needs a FileSystemThroughput of 125, 250, 500 or 1000"])
        for given, sentence in (({**SPOT, "NumNodes": 2}, "must have NumNodes 1"), ({**SPOT, "CapacityReservationId": "cr-12345678"}, "Spot instances cannot run"),
                                ({**SPOT, "InstanceType": "p5.48xlarge", "Efa": "true"}, "Efa must be false"),
                                ({**BLOCK, "CapacityReservationId": ""}, "must have the CapacityReservationId")):
            said = refusals(load(BATCH), {**GIVEN, **given})
            self.assertEqual(len(said), 1, said)
            self.assertIn(sentence, said[0])

    def test_every_parameter_has_an_effect(self):
        other = {"VpcId": "vpc-2", "SubnetId": "subnet-2", "NumNodes": 3, "InstanceType": "c6i.2xlarge", "MaxvCpus": 64, "AmiId": "ami-12345678",
                 "ScratchGiB": 200, "Efa": "true", "SharedMemoryMiB": 64, "Image": "x.com/other:1", "Command": "train_cifar10,--epochs,15",
                 "BatchSize": 32, "ExtraMpiParams": "-x A=b", "Attempts": 1, "TimeLimitSeconds": 60, "JoinTimeoutSeconds": 60,
                 "S3Input": "s3://input/x", "S3Output": "s3://output/x", "SshKeySecretArn": SETTINGS[5]["SshKeySecretArn"],
                 "DataRepository": "s3://other", "RunsRepository": "s3://others", "FileSystemType": "PERSISTENT_2", "FileSystemGiB": 2400,
                 "FileSystemThroughput": "500", "PurchaseOption": "spot", "CapacityReservationId": "cr-12345678", "RunnableSeconds": 600}
        job = {"TemplateUrl": "https://other.s3.amazonaws.com/x", "TemplateArn": "arn:aws:s3:::other/x", "DataBucket": "other", "RunsBucket": "other",
               "Prefix": "other"}
        for path, given, values in ((BATCH, {**GIVEN, **SETTINGS[4]}, other), (JOB, JOB_GIVEN, job)):
            template = load(path)
            self.assertEqual(set(values), set(template["Parameters"]))
            plain = Stack(template, **given).resources
            for name, value in {**values, "FileSystemType": "SCRATCH_2"}.items() if path == BATCH else values.items():
                self.assertNotEqual(Stack(template, **{**given, name: value}).resources, plain, name)

    def test_all_instance_types(self):
        template = load(BATCH)
        self.assertEqual(set(template["Parameters"]["InstanceType"]["AllowedValues"]), set(template["Mappings"]["Instances"]))

    def test_adapters_are_those_of_the_type(self):
        """Compares the template with the answer of DescribeInstanceTypes in moto."""
        with gzip.open(Path(moto.__file__).parent / "ec2/resources/instance_types.json.gz") as file:
            types = json.load(file)
        template = load(BATCH)
        for name in template["Mappings"]["Instances"]:
            network, mapped = types[name]["NetworkInfo"], template["Mappings"]["Instances"][name]
            said = refusals(template, {**GIVEN, "InstanceType": name, "Efa": "true"})
            self.assertEqual(said == [], network["EfaSupported"], name)
            self.assertEqual(int(mapped["Vcpus"]), types[name]["VCpuInfo"]["DefaultVCpus"])
            self.assertEqual(int(mapped["Gpus"]), sum(g["Count"] for g in types[name].get("GpuInfo", {}).get("Gpus", [])))
            self.assertTrue(0.8 < int(mapped["MemoryMiB"]) / types[name]["MemoryInfo"]["SizeInMiB"] < 0.97, name)
            if said:
                continue
            stack = Stack(template, **GIVEN, InstanceType=name, Efa="true")
            self.assertEqual(check_nodes(stack), [], name)
            cards = stack.resources["LaunchTemplate"]["Properties"]["LaunchTemplateData"]["NetworkInterfaces"]
            adapters = [c for c in cards if c["InterfaceType"] != "interface"]
            if name.startswith("p"):
                self.assertEqual((len(cards), len(adapters)), (network["MaximumNetworkCards"], network["EfaInfo"]["MaximumEfaInterfaces"]), name)
            self.assertEqual([c.get("NetworkCardIndex", 0) for c in cards], list(range(len(cards))), name)

    def test_job_may_read_and_write_its_data(self):
        stack = Stack(load(BATCH), **GIVEN, **SETTINGS[3])
        granted = {(a, s["Resource"]) for role, s in statements(stack) if role == "JobRole" for a in as_list(s["Action"])}
        self.assertEqual(granted, {
            ("ssm:GetParameter", "arn:aws:ssm:us-east-1:123456789012:parameter/ec2/keypair/<JobKey.KeyPairId>"),
            ("s3:GetObject", "arn:aws:s3:::input/x.tar.gz*"), ("s3:ListBucket", "arn:aws:s3:::input"),
            ("s3:PutObject", "arn:aws:s3:::output/y*"), ("s3:AbortMultipartUpload", "arn:aws:s3:::output/y*")})
        stack = Stack(load(BATCH), **GIVEN, **SETTINGS[5])
        self.assertNotIn("JobKey", stack.resources)
        self.assertEqual([(s["Action"], s["Resource"]) for role, s in statements(stack) if role == "JobRole"],
                         [("secretsmanager:GetSecretValue", SETTINGS[5]["SshKeySecretArn"])])


    def test_no_host_reads_parameters_of_ssm(self):
        stack = Stack(load(BATCH), **GIVEN)
        given = stack.resources["InstanceRole"]["Properties"]
        self.assertEqual(given["ManagedPolicyArns"], ["arn:aws:iam::aws:policy/service-role/AmazonEC2ContainerServiceforEC2Role"])
        self.assertFalse([a for role, s in statements(stack) for a in as_list(s["Action"]) if role == "InstanceRole" and "Parameter" in a])

    def test_stack_role_covers_the_requests_of_the_providers(self):
        """Compares the role with the permissions that CloudFormation's schemas list for the handlers of these types."""
        role = {a for name, s in statements(Stack(load(JOB), **JOB_GIVEN)) if name == "StackRole" for a in as_list(s["Action"])}
        log_group = {"logs:CreateLogGroup", "logs:DeleteLogGroup", "logs:PutRetentionPolicy", "logs:TagResource", "logs:ListTagsForResource",
                     "logs:GetDataProtectionPolicy", "logs:DescribeLogGroups"}
        association = {"fsx:CreateDataRepositoryAssociation", "fsx:DescribeDataRepositoryAssociations", "fsx:DeleteDataRepositoryAssociation",
                       "fsx:TagResource", "s3:GetBucketPolicy", "s3:PutBucketPolicy", "s3:GetBucketNotification", "s3:PutBucketNotification",
                       "s3:GetBucketAcl", "s3:ListBucket", "s3:GetObject", "s3:PutObject", "iam:CreateServiceLinkedRole", "iam:PutRolePolicy",
                       "iam:AttachRolePolicy"}
        self.assertEqual((log_group | association) - role, set())

    def test_failed_creation_leaves_no_log_group(self):
        self.assertEqual(load(BATCH)["Resources"]["LogGroup"]["DeletionPolicy"], "RetainExceptOnCreate")


class Stacks(unittest.TestCase):
    def network(self):
        ec2 = boto3.client("ec2", REGION)
        vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        return {"VpcId": vpc, "SubnetId": ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24")["Subnet"]["SubnetId"]}

    def test_batch(self):
        for setting in ({}, {**SETTINGS[3], **SETTINGS[4], "Efa": "true"}, SPOT, BLOCK):
            with self.subTest(str(setting)), fake_services(moto_batch.MODELS) as aws:
                stack = aws.create("tutti-job-run-1", BATCH, **{**GIVEN, **self.network(), **setting})
                self.assertEqual(stack.status, "CREATE_COMPLETE")
                self.assertEqual(set(stack.statuses.values()), {"CREATE_COMPLETE"})
                self.assertEqual(stack.outputs["FileSystem"], "fs-0123456789abcdef0")
                self.assertEqual(stack.outputs["MountSource"],
                                 "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com@tcp:/abcdefgh")
                batch = boto3.client("batch", REGION)
                queue, = batch.describe_job_queues(jobQueues=["tutti-job-run-1"])["jobQueues"]
                self.assertEqual(len(queue["computeEnvironmentOrder"]), 1)
                job, = batch.describe_job_definitions(jobDefinitionName="tutti-job-run-1")["jobDefinitions"]
                self.assertEqual(job["type"], "container" if setting is SPOT else "multinode")
                key = "/ec2/keypair/key-0123456789abcdef0"
                self.assertEqual(job["parameters"], {"SshKey": key})
                environment, = batch.describe_compute_environments()["computeEnvironments"]
                self.assertEqual(environment["computeResources"]["maxvCpus"], 4096)

    def test_refused_and_job(self):
        with fake_services(moto_batch.MODELS) as aws:
            for setting in ({"NumNodes": 0}, {"RunsRepository": "s3://data/imagenet/runs"}, {"FileSystemThroughput": "250"}):
                with self.subTest(str(setting)), self.assertRaises(Refused):
                    aws.create("x", BATCH, **{**GIVEN, **self.network(), **setting})
            stack = aws.create("tutti-jobs", JOB, **JOB_GIVEN)
            self.assertEqual(set(stack.statuses.values()), {"CREATE_COMPLETE"})
            # moto does not read a definition that is not text. test_batch_state_machine.py runs the definition.
            made = boto3.client("stepfunctions", REGION).describe_state_machine(stateMachineArn=stack.outputs["StateMachine"])
            self.assertEqual(made["name"], "tutti-jobs")


if __name__ == "__main__":
    unittest.main(verbosity=2)
