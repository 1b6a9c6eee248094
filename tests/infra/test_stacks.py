#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Creates stacks of cluster.yaml and elastic.yaml in moto and tests their resources: with and without SSH, with an
existing file system, and elastic workers."""
import base64
import re
import subprocess
import unittest

import boto3

import fake_cloud
from aws_command import check_command
from fake_cloud import ARM_IMAGE, IMAGE, REGION, Refused, WaitCondition, WaitConditionHandle, fake_services
from templates import INFRA, load

CLUSTER, ELASTIC = INFRA / "cloudformation/cluster.yaml", INFRA / "cloudformation/elastic.yaml"
LOCATION = "203.0.113.7/32"
plain = ssh = grows = old_file_system = None


def setUpModule():
    global plain, ssh, grows, old_file_system
    opened = fake_services()
    aws = opened.__enter__()
    unittest.addModuleCleanup(opened.__exit__, None, None, None)
    boto3.client("ec2", REGION).create_key_pair(KeyName="my-key")
    old_file_system = boto3.client("efs", REGION).create_file_system(CreationToken="old")["FileSystemId"]
    plain = aws.create("plain", CLUSTER, WorkerCount=3, TuttiPackage="s3://my-bucket/tutti.tar")
    ssh = aws.create("ssh", CLUSTER, WorkerCount=1, TuttiPackage="tutti.tar", KeyName="my-key", SSHLocation=LOCATION,
                     EFSFileSystemId=old_file_system, EFSMountPoint="efs", InstanceType="c5.large", ImageType="AmazonLinux2023",
                     AvailabilityZone="us-east-1c", RootVolumeSize=120)
    grows = aws.create("grows", ELASTIC, WorkerCount=1, TuttiPackage="s3://my-bucket/tutti.tar", InstanceType="c5.large")


def ec2(operation, key, **arguments):
    return getattr(boto3.client("ec2", REGION), operation)(**arguments)[key]


def group_of(stack, role):
    return boto3.client("autoscaling", REGION).describe_auto_scaling_groups(
        AutoScalingGroupNames=[stack.outputs[f"{role}AutoScalingGroup"]])["AutoScalingGroups"][0]


def instances_of(stack, role):
    ids = [i["InstanceId"] for i in group_of(stack, role)["Instances"]]
    return [i for r in ec2("describe_instances", "Reservations", InstanceIds=ids) for i in r["Instances"]]


def template_data(stack, name):
    return ec2("describe_launch_template_versions", "LaunchTemplateVersions",
               LaunchTemplateId=stack.resources[name])[0]["LaunchTemplateData"]


def script_of(stack, name):
    return base64.b64decode(template_data(stack, name)["UserData"]).decode()


class Stacks(unittest.TestCase):
    def test_each_stack_is_complete(self):
        for stack in (plain, ssh, grows):
            self.assertEqual(stack.status, "CREATE_COMPLETE")
            self.assertEqual(set(stack.statuses.values()), {"CREATE_COMPLETE"})

    def test_outputs_name_existing_resources(self):
        for stack in (plain, ssh, grows):
            for output, resource in (("AdminSSHSecurityGroup", "AdminSSHSecurityGroup"), ("MountTargetID", "MountTarget"),
                                     ("MasterAutoScalingGroup", "MasterAutoScalingGroup"), ("WorkerAutoScalingGroup", "WorkerAutoScalingGroup")):
                self.assertEqual(stack.outputs[output], stack.resources[resource])
        self.assertEqual(grows.outputs["ElasticWorkerLaunchTemplate"], grows.resources["ElasticWorkerLaunchTemplate"])
        self.assertIn(grows.outputs["ElasticWorkerLaunchTemplate"], grows.outputs["AddWorkerCommand"])
        self.assertNotIn("ElasticWorkerLaunchTemplate", plain.outputs)
        check_command(grows.outputs["AddWorkerCommand"])
        # EC2 would use the default version otherwise, which stays the first one.
        self.assertRegex(grows.outputs["AddWorkerCommand"], r"'LaunchTemplateId=lt-\w+,Version=\$Latest'")

    def test_outputs_have_the_inputs_of_a_batch_job(self):
        for stack in (plain, ssh, grows):
            self.assertEqual((stack.outputs["VpcId"], stack.outputs["SubnetId"]), (stack.resources["Vpc"], stack.resources["PrivateSubnet"]))
        self.assertLessEqual({"VpcId", "SubnetId"}, set(load(INFRA / "batch/batch.yaml")["Parameters"]))

    def test_the_login_command_finds_the_master(self):
        for stack in (plain, ssh, grows):
            command = stack.outputs["LoginCommand"]
            filters = [{"Name": name, "Values": [value]} for name, value in re.findall(r"Name=(\S+),Values=(\S+)", command)]
            found = [i["InstanceId"] for r in ec2("describe_instances", "Reservations", Filters=filters) for i in r["Instances"]]
            self.assertEqual(found, [i["InstanceId"] for i in instances_of(stack, "Master")])
            inner = re.search(r"\$\((.*)\)", command)
            check_command(inner[1])
            check_command(command.replace(inner[0], "INSTANCE"))
            fake = 'aws() { if [ "$1" = ec2 ]; then echo "$FOUND"; else echo "$*"; fi; }; eval "$COMMAND"'
            done = subprocess.run(["bash", "-euc", fake], env={"FOUND": found[0], "COMMAND": command}, text=True, capture_output=True, timeout=300)
            self.assertEqual(done.stdout, f"ssm start-session --region us-east-1 --target {found[0]}\n", done.stderr)

    def test_refused_parameters(self):
        for path, bad, sentence in ((CLUSTER, {"WorkerCount": 0}, "WorkerCount must be a number of workers, at least 1"),
                                    (CLUSTER, {"SSHLocation": "everywhere"}, "SSHLocation must be empty or an IPv4 range"),
                                    (CLUSTER, {"PrepareDataScriptPath": "/efs/a.py"}, "PrepareDataScriptPath is no parameter"),
                                    (ELASTIC, {"EnableElasticTraining": "perhaps"}, "EnableElasticTraining must be true or false.")):
            with self.assertRaisesRegex(Refused, sentence):
                fake_cloud.FakeCloud.create("refused", path, TuttiPackage="tutti.tar", **bad)
        names = [s["StackName"] for s in boto3.client("cloudformation", REGION).list_stacks()["StackSummaries"]]
        self.assertNotIn("refused", names)

    def test_image_for_another_processor(self):
        for image, name, words in ((IMAGE, "c8g.large", "architecture 'arm64' of the specified instance type does not match the architecture 'x86_64'"),
                                   (ARM_IMAGE, "c5.large", "architecture 'x86_64' of the specified instance type does not match the architecture 'arm64'")):
            with self.assertRaisesRegex(Exception, f"You must use a valid fully-formed launch template. The {words}"):
                fake_cloud.FakeCloud.create(f"wrong-{name[:2]}", CLUSTER, TuttiPackage="tutti.tar", InstanceType=name, AmiId=image)
        stack = fake_cloud.FakeCloud.create("arm", CLUSTER, TuttiPackage="tutti.tar", InstanceType="c8g.large", AmiId=ARM_IMAGE)
        self.assertEqual(stack.status, "CREATE_COMPLETE")
        self.assertEqual({(i["InstanceType"], i["Architecture"]) for i in instances_of(stack, "Worker")}, {("c8g.large", "arm64")})

    def test_our_models_refuse_contradictions(self):
        handle = WaitConditionHandle("h", {}).physical_resource_id
        WaitCondition("c", {"Handle": handle, "Timeout": "3300"})
        for bad in ({"Handle": handle}, {"Handle": handle, "Timeout": "43201"}, {"Handle": "<h>", "Timeout": "1"},
                    {"Handle": handle, "Timeout": "1", "Color": "red"}):
            self.assertRaises(Refused, WaitCondition, "c", bad)
        self.assertRaises(Refused, WaitConditionHandle, "h", {"Url": handle})


class Network(unittest.TestCase):
    def subnets(self, stack):
        found = {s["SubnetId"]: s for s in ec2("describe_subnets", "Subnets")}
        return found[stack.resources["PublicSubnet"]], found[stack.resources["PrivateSubnet"]]

    def test_two_subnets_in_one_zone(self):
        for stack in (plain, ssh, grows):
            public, private = self.subnets(stack)
            self.assertEqual(public["AvailabilityZone"], private["AvailabilityZone"])
            self.assertEqual((public["CidrBlock"], private["CidrBlock"]), ("10.0.0.0/24", "10.0.1.0/24"))
        self.assertEqual(self.subnets(ssh)[0]["AvailabilityZone"], "us-east-1c")

    def test_routes(self):
        for stack in (plain, ssh, grows):
            # moto does not store the route table of a subnet. test_posture_network.py checks the templates.
            for name, target, gateway in (("Public", "GatewayId", "InternetGateway"), ("Private", "NatGatewayId", "NATGateway")):
                table, = ec2("describe_route_tables", "RouteTables", RouteTableIds=[stack.resources[f"{name}RouteTable"]])
                out = [r for r in table["Routes"] if r.get("DestinationCidrBlock") == "0.0.0.0/0"]
                self.assertEqual([r[target] for r in out], [stack.resources[gateway]])

    def test_s3_is_reached_without_the_nat_gateway(self):
        for stack in (plain, ssh, grows):
            endpoint, = ec2("describe_vpc_endpoints", "VpcEndpoints", VpcEndpointIds=[stack.resources["S3Endpoint"]])
            self.assertEqual((endpoint["VpcEndpointType"], endpoint["ServiceName"], endpoint["VpcId"]),
                             ("Gateway", "com.amazonaws.us-east-1.s3", stack.resources["Vpc"]))
            self.assertEqual(set(endpoint["RouteTableIds"]), {stack.resources[f"{n}RouteTable"] for n in ("Public", "Private")})

    def rules(self, stack, name):
        names = {v: k for k, v in stack.resources.items() if k.endswith("SecurityGroup")}
        group, = ec2("describe_security_groups", "SecurityGroups", GroupIds=[stack.resources[name]])
        return {(p["IpProtocol"], p.get("FromPort"), p.get("ToPort"), source)
                for p in group["IpPermissions"]
                for source in [names[s["GroupId"]] for s in p["UserIdGroupPairs"]] + [r["CidrIp"] for r in p["IpRanges"]]}

    def test_ports_are_exact(self):
        hosts = {(protocol, low, high, f"{role}SecurityGroup") for role in ("Master", "Worker")
                 for protocol, low, high in (("tcp", 0, 65535), ("icmp", -1, -1))}
        nfs = {("tcp", 2049, 2049, f"{role}SecurityGroup") for role in ("Master", "Worker")}
        for stack in (plain, ssh, grows):
            self.assertEqual(self.rules(stack, "MasterSecurityGroup"), hosts)
            self.assertEqual(self.rules(stack, "WorkerSecurityGroup"), hosts)
            self.assertEqual(self.rules(stack, "MountTargetSecurityGroup"), nfs)
        self.assertEqual(self.rules(plain, "AdminSSHSecurityGroup"), set())
        self.assertEqual(self.rules(ssh, "AdminSSHSecurityGroup"), {("tcp", 22, 22, LOCATION)})


class FileSystem(unittest.TestCase):
    def described(self, stack):
        efs = boto3.client("efs", REGION)
        target, = efs.describe_mount_targets(MountTargetId=stack.outputs["MountTargetID"])["MountTargets"]
        groups = efs.describe_mount_target_security_groups(MountTargetId=stack.outputs["MountTargetID"])["SecurityGroups"]
        self.assertEqual(target["SubnetId"], stack.resources["PrivateSubnet"])
        self.assertEqual(groups, [stack.resources["MountTargetSecurityGroup"]])
        return efs.describe_file_systems(FileSystemId=target["FileSystemId"])["FileSystems"][0]

    def test_new_file_system_is_encrypted(self):
        for stack in (plain, grows):
            found = self.described(stack)
            self.assertEqual((found["Encrypted"], found["PerformanceMode"], found["FileSystemId"]),
                             (True, "generalPurpose", stack.outputs["FileSystemID"]))
            self.assertEqual(found["ThroughputMode"], "elastic")

    def test_old_file_system_is_used(self):
        self.assertEqual(self.described(ssh)["FileSystemId"], old_file_system)
        self.assertNotIn("FileSystem", {k for k, v in ssh.resources.items() if v})
        self.assertEqual(ssh.outputs["FileSystemID"], old_file_system)


class Hosts(unittest.TestCase):
    def test_groups(self):
        for stack, workers in ((plain, 3), (ssh, 1), (grows, 1)):
            for role, low, high in (("Master", 1, 1), ("Worker", 0, workers)):
                group = group_of(stack, role)
                self.assertEqual((group["MinSize"], group["MaxSize"], group["DesiredCapacity"], len(group["Instances"])),
                                 (low, high, high, high))
                tags = {t["Key"]: t["Value"] for t in group["Tags"] if t["PropagateAtLaunch"]}
                self.assertEqual(tags, {"Name": f"{stack.name}-{role}", "NodeType": role})
                in_public = role == "Master" and stack is ssh
                self.assertEqual(group["VPCZoneIdentifier"], stack.resources["PublicSubnet" if in_public else "PrivateSubnet"])
                self.assertEqual(group["LaunchTemplate"]["LaunchTemplateId"], stack.resources[f"{role}LaunchTemplate"])
                for instance in instances_of(stack, role):
                    self.assertEqual((instance["ImageId"], instance["InstanceType"]), (IMAGE, "g5.xlarge" if stack is plain else "c5.large"))

    def test_launch_templates(self):
        for stack in (plain, ssh, grows):
            for role in ("Master", "Worker") + (("ElasticWorker",) if stack is grows else ()):
                data = template_data(stack, f"{role}LaunchTemplate")
                self.assertEqual(data["Placement"], {"GroupName": stack.resources["HostsPlacement"]})
                self.assertEqual(data["MetadataOptions"]["HttpTokens"], "required")
                self.assertEqual(data.get("KeyName"), "my-key" if stack is ssh else None)
                self.assertTrue(data["BlockDeviceMappings"][0]["Ebs"]["Encrypted"])
                self.assertEqual(data["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"], 120 if stack is ssh else 100)
                self.assertEqual(data["BlockDeviceMappings"][0]["DeviceName"], "/dev/xvda" if stack is ssh else "/dev/sda1")
                card, = data["NetworkInterfaces"]
                public = role == "Master" and stack is ssh
                self.assertEqual(str(card["AssociatePublicIpAddress"]).lower(), str(public).lower())
                names = ["MasterSecurityGroup", "AdminSSHSecurityGroup"] if role == "Master" else ["WorkerSecurityGroup"]
                self.assertEqual(card["Groups"], [stack.resources[name] for name in names])

    def test_user_data_names_the_created_resources(self):
        for stack in (plain, ssh, grows):
            for role in ("Master", "Worker"):
                script = script_of(stack, f"{role}LaunchTemplate")
                self.assertIn(f"export AWS_DL_MASTER_QUEUE='{stack.name}-aws-dl-cfn-master'\n", script)
                self.assertIn(f"export AWS_DL_WORKER_QUEUE='{stack.name}-aws-dl-cfn-worker'\n", script)
                self.assertIn(f"export AWS_DL_STACK_ID='{stack.id}'\n", script)
                self.assertIn(f"export EFS_FILE_SYSTEM_ID='{stack.outputs['FileSystemID']}'\n", script)
                self.assertIn(f"export AWS_DL_FORWARD_AGENT='{'true' if stack is ssh else 'false'}'\n", script)
                self.assertIn(f"export AWS_DL_DEFAULT_USER='{'ec2-user' if stack is ssh else 'ubuntu'}'\n", script)
                self.assertEqual(stack.resources["myWaitHandle"] in script, role == "Master")
        script = script_of(grows, "MasterLaunchTemplate")
        self.assertIn(f"export WORKER_LAUNCH_TEMPLATE_ID='{grows.outputs['ElasticWorkerLaunchTemplate']}'\n", script)
        self.assertIn("export ELASTIC_WORKER_TAG='grows-aws-dl-cfn-elastic-worker'\n", script)

    def test_an_elastic_worker(self):
        """Runs the command of the output AddWorkerCommand."""
        instance, = boto3.client("ec2", REGION).run_instances(
            LaunchTemplate={"LaunchTemplateId": grows.outputs["ElasticWorkerLaunchTemplate"]}, MinCount=1, MaxCount=1)["Instances"]
        tags = {t["Key"]: t["Value"] for t in instance["Tags"]}
        self.assertLessEqual({"grows-aws-dl-cfn-elastic-worker": "", "NodeType": "Worker", "Name": "grows-ElasticWorker"}.items(), tags.items())
        name = ec2("describe_launch_templates", "LaunchTemplates",
                   LaunchTemplateIds=[grows.outputs["ElasticWorkerLaunchTemplate"]])[0]["LaunchTemplateName"]
        self.assertEqual(name, "grows-aws-dl-cfn-worker-ec2-launch-template")


class Messages(unittest.TestCase):
    def test_queues(self):
        for stack in (plain, ssh, grows):
            for role in ("master", "worker"):
                url = boto3.client("sqs", REGION).get_queue_url(QueueName=f"{stack.name}-aws-dl-cfn-{role}")["QueueUrl"]
                self.assertEqual(url, stack.resources[f"{role.capitalize()}Queue"])

    def test_the_topic_calls_the_function(self):
        for stack in (plain, ssh, grows):
            topic = stack.resources["ResourceMetadataSNSTopic"]
            self.assertTrue(topic.endswith(f":{stack.name}-aws-dl-cfn"))
            subscription, = boto3.client("sns", REGION).list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
            function = boto3.client("lambda", REGION).get_function_configuration(FunctionName=stack.resources["ResourceMetadataLambdaFunction"])
            self.assertEqual((subscription["Protocol"], subscription["Endpoint"]), ("lambda", function["FunctionArn"]))
            self.assertEqual(function["Environment"]["Variables"],
                             {"AWS_DL_STACK_ID": stack.name, "AWS_DL_MASTER_SQS_URL": stack.resources["MasterQueue"]})
            policy = boto3.client("lambda", REGION).get_policy(FunctionName=function["FunctionName"])["Policy"]
            self.assertIn(topic, policy)


if __name__ == "__main__":
    unittest.main()
