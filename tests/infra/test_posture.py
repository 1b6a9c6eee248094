#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What cfn-lint does not ask of cluster.yaml and elastic.yaml: who may reach and do what, what is encrypted, what stays when a
stack goes. Each question is also asked of a copy that is broken, and must then find fault."""
import base64
import itertools
import json
import re
import sys
import unittest

from templates import DELETE, INFRA, Stack, changed, load

sys.path.insert(0, str(INFRA / "bootstrap"))
import setup_host  # noqa: E402

TEMPLATES = {name: load(INFRA / f"cloudformation/{name}.yaml") for name in ("cluster", "elastic")}
PLAIN = {"TuttiPackage": "s3://my-bucket/tutti.tar"}
WITH_SSH = {"TuttiPackage": "tutti.tar", "KeyName": "my-key", "SSHLocation": "203.0.113.7/32", "EFSFileSystemId": "fs-12345678"}
QUESTIONS = {}


def question(ask):
    """ask(stack) yields what is wrong."""
    QUESTIONS[ask.__name__] = ask
    return ask


def of_type(stack, kind):
    return {name: r["Properties"] for name, r in stack.resources.items() if r["Type"] == kind}


def launch_templates(stack):
    return {name: p["LaunchTemplateData"] for name, p in of_type(stack, "AWS::EC2::LaunchTemplate").items()}


def has_ssh(stack):
    return bool(stack.values["SSHLocation"])


def as_list(value):
    return value if isinstance(value, list) else [value]


def statements(stack):
    """Triples (name of the resource, statement, its actions)."""
    for kind in ("AWS::IAM::Role", "AWS::IAM::Policy"):
        for name, p in of_type(stack, kind).items():
            documents = [x["PolicyDocument"] for x in p.get("Policies", [])] + ([p["PolicyDocument"]] if "PolicyDocument" in p else [])
            for document in documents:
                for statement in as_list(document["Statement"]):
                    yield name, statement, as_list(statement.get("Action", []))


def ingress(stack):
    """Tuples (group, protocol, from, to, source) of every rule, wherever it stands."""
    for name, p in of_type(stack, "AWS::EC2::SecurityGroup").items():
        for rule in p.get("SecurityGroupIngress", []):
            yield name, rule
    for p in of_type(stack, "AWS::EC2::SecurityGroupIngress").values():
        yield p["GroupId"].strip("<>"), p


def text_of(data):
    return base64.b64decode(data["UserData"]).decode()


@question
def ports_are_exact(stack):
    found = sorted((group, r["IpProtocol"], r["FromPort"], r["ToPort"],
                    r.get("SourceSecurityGroupId", r.get("CidrIp", r.get("CidrIpv6", "?"))).strip("<>")) for group, r in ingress(stack))
    hosts = ("MasterSecurityGroup", "WorkerSecurityGroup")
    expected = [(a, *rule, b) for a, b in itertools.product(hosts, hosts) for rule in (("tcp", 0, 65535), ("icmp", -1, -1))]
    expected += [("MountTargetSecurityGroup", "tcp", 2049, 2049, b) for b in hosts]
    if has_ssh(stack):
        expected.append(("AdminSSHSecurityGroup", "tcp", 22, 22, "203.0.113.7/32"))
    if found != sorted(expected):
        yield f"{set(found) ^ set(expected)}"


@question
def nothing_is_open_to_the_world(stack):
    for group, rule in ingress(stack):
        if rule.get("CidrIp") == "0.0.0.0/0" or rule.get("CidrIpv6") == "::/0" or rule["IpProtocol"] in ("-1", -1):
            yield group


@question
def every_rule_says_what_it_is_for(stack):
    for group, rule in ingress(stack):
        if not rule.get("Description"):
            yield group
    for name, p in of_type(stack, "AWS::EC2::SecurityGroup").items():
        if not p.get("GroupDescription") or not all(r.get("Description") for r in p.get("SecurityGroupEgress", [])):
            yield name


@question
def only_hosts_may_reach_out(stack):
    for name, p in of_type(stack, "AWS::EC2::SecurityGroup").items():
        out = [r["CidrIp"] for r in p.get("SecurityGroupEgress", [{"CidrIp": "0.0.0.0/0"}])]
        if out != (["0.0.0.0/0"] if name in ("MasterSecurityGroup", "WorkerSecurityGroup") else ["127.0.0.1/32"]):
            yield name


@question
def only_the_master_has_the_group_of_ssh(stack):
    for name, data in launch_templates(stack).items():
        groups = [g for card in data["NetworkInterfaces"] for g in card["Groups"]]
        want = ["<MasterSecurityGroup>", "<AdminSSHSecurityGroup>"] if name == "MasterLaunchTemplate" else ["<WorkerSecurityGroup>"]
        if groups != want or "SecurityGroupIds" in data:
            yield name


@question
def public_addresses_only_for_ssh(stack):
    for name, data in launch_templates(stack).items():
        for card in data["NetworkInterfaces"]:
            if card.get("AssociatePublicIpAddress") is not (name == "MasterLaunchTemplate" and has_ssh(stack)):
                yield name
    for name, p in of_type(stack, "AWS::EC2::Subnet").items():
        if p.get("MapPublicIpOnLaunch") is not False:
            yield name


@question
def hosts_stand_in_the_private_subnet(stack):
    for name, p in of_type(stack, "AWS::AutoScaling::AutoScalingGroup").items():
        public = name == "MasterAutoScalingGroup" and has_ssh(stack)
        if p["VPCZoneIdentifier"] != ["<PublicSubnet>" if public else "<PrivateSubnet>"]:
            yield name
    for name, data in launch_templates(stack).items():
        if any(card.get("SubnetId", "<PrivateSubnet>") != "<PrivateSubnet>" for card in data["NetworkInterfaces"]):
            yield name


@question
def subnets_share_a_zone_and_have_their_routes(stack):
    if stack.resources["PublicSubnet"]["Properties"].get("AvailabilityZone") != "<PrivateSubnet.AvailabilityZone>":
        yield "PublicSubnet"
    pairs = {(p["SubnetId"], p["RouteTableId"]) for p in of_type(stack, "AWS::EC2::SubnetRouteTableAssociation").values()}
    if pairs != {(f"<{n}Subnet>", f"<{n}RouteTable>") for n in ("Public", "Private")}:
        yield "associations"
    routes = {(p["RouteTableId"], p.get("GatewayId") or p.get("NatGatewayId")) for p in of_type(stack, "AWS::EC2::Route").values()}
    if routes != {("<PublicRouteTable>", "<InternetGateway>"), ("<PrivateRouteTable>", "<NATGateway>")}:
        yield "routes"
    if stack.resources["NATGateway"]["Properties"]["SubnetId"] != "<PublicSubnet>":
        yield "NATGateway"


@question
def metadata_wants_a_token(stack):
    for name, data in launch_templates(stack).items():
        if data.get("MetadataOptions", {}).get("HttpTokens") != "required":
            yield name


@question
def metadata_stays_on_the_host(stack):
    for name, data in launch_templates(stack).items():
        if data.get("MetadataOptions", {}).get("HttpPutResponseHopLimit") != 1:
            yield name


@question
def disks_are_encrypted_and_go_with_their_host(stack):
    for name, data in launch_templates(stack).items():
        disks = [d["Ebs"] for d in data.get("BlockDeviceMappings", [])]
        if not disks or not all(d.get("Encrypted") is True and d.get("DeleteOnTermination") is True for d in disks):
            yield name


@question
def launch_templates_not_configurations(stack):
    if of_type(stack, "AWS::AutoScaling::LaunchConfiguration"):
        yield "LaunchConfiguration"
    for name, p in of_type(stack, "AWS::AutoScaling::AutoScalingGroup").items():
        if not str(p.get("LaunchTemplate", {}).get("Version", "")).endswith("LatestVersionNumber>"):
            yield name


@question
def a_key_only_where_one_is_named(stack):
    for name, data in launch_templates(stack).items():
        if data.get("KeyName", "") != stack.values["KeyName"]:
            yield name
        if ("AWS_DL_FORWARD_AGENT='true'" in text_of(data)) != bool(stack.values["KeyName"]):
            yield name


@question
def session_manager_is_the_way_in(stack):
    for role in ("MasterRole", "WorkerRole"):
        if stack.resources[role]["Properties"].get("ManagedPolicyArns") != ["arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"]:
            yield role
    for name, p in of_type(stack, "AWS::IAM::Role").items():
        if name not in ("MasterRole", "WorkerRole") and p.get("ManagedPolicyArns"):
            yield name


@question
def actions_are_named_one_by_one(stack):
    for name, statement, actions in statements(stack):
        if not actions or any("*" in action for action in actions) or statement.keys() & {"NotAction", "NotResource", "NotPrincipal"}:
            yield name


@question
def all_resources_only_where_aws_knows_no_other(stack):
    lists = {"autoscaling:DescribeAutoScalingGroups", "autoscaling:DescribeScalingActivities", "ec2:DescribeInstances"}
    for name, statement, actions in statements(stack):
        if "*" in as_list(statement["Resource"]) and not set(actions) <= lists:
            yield name


@question
def hosts_may_do_what_they_need_and_no_more(stack):
    elastic = "ElasticWorkerLaunchTemplate" in stack.resources
    allowed = {
        "MasterRole": {("sqs:GetQueueUrl", "<MasterQueue.Arn>"), ("sqs:ReceiveMessage", "<MasterQueue.Arn>"), ("sqs:DeleteMessage", "<MasterQueue.Arn>"),
                       ("sqs:GetQueueUrl", "<WorkerQueue.Arn>"), ("sqs:SendMessage", "<WorkerQueue.Arn>")},
        "WorkerRole": {("sqs:GetQueueUrl", "<WorkerQueue.Arn>"), ("sqs:ReceiveMessage", "<WorkerQueue.Arn>"), ("sqs:DeleteMessage", "<WorkerQueue.Arn>")},
        "LambdaExecutionRole": {("sqs:SendMessage", "<MasterQueue.Arn>"), ("cloudformation:SignalResource", stack.reference("AWS::StackId")),
                                ("logs:CreateLogStream", "<ResourceMetadataLog.Arn>"), ("logs:PutLogEvents", "<ResourceMetadataLog.Arn>"),
                                ("autoscaling:DescribeAutoScalingGroups", "*"), ("autoscaling:DescribeScalingActivities", "*")},
    }
    workers = "arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:*:autoScalingGroupName/train-WorkerAutoScalingGroup*"
    allowed["LambdaExecutionRole"] |= {("autoscaling:SetDesiredCapacity", workers), ("autoscaling:SuspendProcesses", workers)}
    for role in ("MasterRole", "WorkerRole"):
        allowed[role] |= {("cloudformation:DescribeStackResource", stack.reference("AWS::StackId")),
                          ("autoscaling:DescribeAutoScalingGroups", "*"), ("ec2:DescribeInstances", "*")}
    if elastic:
        instances = "arn:aws:ec2:us-east-1:123456789012:instance/*"
        allowed["MasterRole"] |= {("ec2:TerminateInstances", instances), ("ec2:CreateTags", instances)}
    if stack.values["TuttiPackage"].startswith("s3://"):
        allowed["PackagePolicy"] = {("s3:GetObject", "arn:aws:s3:::my-bucket/tutti.tar")}
    found = {}
    for name, statement, actions in statements(stack):
        found.setdefault(name, set()).update(itertools.product(actions, as_list(statement["Resource"])))
    if found != allowed:
        yield str({name: found.get(name, set()) ^ allowed.get(name, set()) for name in found.keys() | allowed.keys()})


@question
def only_elastic_workers_are_tagged_and_terminated(stack):
    for name, statement, actions in statements(stack):
        condition = statement.get("Condition", {})
        own = condition.get("StringEquals") == {"aws:ResourceTag/aws:ec2launchtemplate:id": "<ElasticWorkerLaunchTemplate>"}
        if set(actions) & {"ec2:TerminateInstances", "ec2:CreateTags", "ec2:DeleteTags"} and not own:
            yield f"{name}: {actions}"
        if "ec2:CreateTags" in actions and condition.get("ForAllValues:StringEquals") != {"aws:TagKeys": ["elastic_worker_status", "Name"]}:
            yield f"{name}: any tag"


@question
def roles_are_taken_by_their_service_alone(stack):
    for name, p in of_type(stack, "AWS::IAM::Role").items():
        principals = [s.get("Principal") for s in p["AssumeRolePolicyDocument"]["Statement"]]
        if principals != [{"Service": "lambda.amazonaws.com" if name.startswith("Lambda") else "ec2.amazonaws.com"}]:
            yield name


@question
def names_of_iam_are_left_to_aws(stack):
    for kind, key in (("AWS::IAM::Role", "RoleName"), ("AWS::IAM::InstanceProfile", "InstanceProfileName")):
        for name, p in of_type(stack, kind).items():
            if key in p:
                yield name


@question
def the_function_is_called_by_this_topic_alone(stack):
    for name, p in of_type(stack, "AWS::Lambda::Permission").items():
        if (p["Principal"], p.get("SourceArn"), p["Action"]) != ("sns.amazonaws.com", "<ResourceMetadataSNSTopic>", "lambda:InvokeFunction"):
            yield name


@question
def the_function_runs_on_a_supported_python(stack):
    for name, p in of_type(stack, "AWS::Lambda::Function").items():
        if p["Runtime"] not in ("python3.13", "python3.14") or (p.get("Timeout"), p.get("MemorySize")) != (60, 256):
            yield name


@question
def logs_do_not_stay_for_ever(stack):
    for name, p in of_type(stack, "AWS::Logs::LogGroup").items():
        if not p.get("RetentionInDays"):
            yield name
    for name, p in of_type(stack, "AWS::Lambda::Function").items():
        if p.get("LoggingConfig", {}).get("LogGroup") != "<ResourceMetadataLog>":
            yield name


@question
def queues_are_encrypted(stack):
    for name, p in of_type(stack, "AWS::SQS::Queue").items():
        if p.get("SqsManagedSseEnabled") is not True and "KmsMasterKeyId" not in p:
            yield name


@question
def a_new_file_system_is_encrypted(stack):
    for name, p in of_type(stack, "AWS::EFS::FileSystem").items():
        if p.get("Encrypted") is not True or p.get("PerformanceMode") != "generalPurpose":
            yield name


@question
def a_new_file_system_outlives_the_stack(stack):
    for name in of_type(stack, "AWS::EFS::FileSystem"):
        if {stack.resources[name].get(key) for key in ("DeletionPolicy", "UpdateReplacePolicy")} != {"Retain"}:
            yield name
    if ("FileSystem" in stack.resources) == bool(stack.values["EFSFileSystemId"]):
        yield "FileSystem"


@question
def what_goes_with_the_stack_says_so(stack):
    for name, r in stack.resources.items():
        if r["Type"] in ("AWS::SQS::Queue", "AWS::Logs::LogGroup"):
            if {r.get(key) for key in ("DeletionPolicy", "UpdateReplacePolicy")} != {"Delete"}:
                yield name


@question
def the_wait_handle_is_the_masters_secret(stack):
    for name, data in launch_templates(stack).items():
        if ("<myWaitHandle>" in text_of(data)) != (name == "MasterLaunchTemplate"):
            yield name
    if "<myWaitHandle>" in json.dumps(stack.outputs) or "<myWaitHandle>" in json.dumps(of_type(stack, "AWS::Lambda::Function")):
        yield "outputs or function"


@question
def the_stack_waits_as_long_as_it_should(stack):
    if stack.resources["MasterAutoScalingGroup"].get("CreationPolicy") != {"ResourceSignal": {"Count": 1, "Timeout": "PT600S"}}:
        yield "MasterAutoScalingGroup"
    wait = stack.resources["myWaitCondition"]
    if wait["Properties"] != {"Handle": "<myWaitHandle>", "Timeout": "3300", "Count": 1} or wait.get("DependsOn") != "WorkerAutoScalingGroup":
        yield "myWaitCondition"


@question
def hosts_come_when_all_they_need_is_there(stack):
    needed = {"MountTarget", "PrivateRoute", "PrivateSubnetRouteAssociation", "PermissionForSNSToInvokeLambda", "MasterQueue", "WorkerQueue"}
    if not needed <= set(as_list(stack.resources["MasterAutoScalingGroup"].get("DependsOn", []))):
        yield "MasterAutoScalingGroup"
    if stack.resources["WorkerAutoScalingGroup"].get("DependsOn") != "MasterAutoScalingGroup":
        yield "WorkerAutoScalingGroup"


@question
def groups_tell_of_all_that_happens(stack):
    want = {f"autoscaling:EC2_INSTANCE_{what}" for what in ("LAUNCH", "LAUNCH_ERROR", "TERMINATE", "TERMINATE_ERROR")}
    for name, p in of_type(stack, "AWS::AutoScaling::AutoScalingGroup").items():
        told = [(n["TopicARN"], set(n["NotificationTypes"])) for n in p.get("NotificationConfigurations", [])]
        if told != [("<ResourceMetadataSNSTopic>", want)]:
            yield name


@question
def the_stack_can_do_with_fewer_workers(stack):
    sizes = {name: (str(p["MinSize"]), str(p["DesiredCapacity"]), str(p["MaxSize"]))
             for name, p in of_type(stack, "AWS::AutoScaling::AutoScalingGroup").items()}
    count = stack.values["WorkerCount"]
    if sizes != {"MasterAutoScalingGroup": ("1", "1", "1"), "WorkerAutoScalingGroup": ("0", count, count)}:
        yield str(sizes)


@question
def it_works_in_every_region_and_partition(stack):
    for name, r in stack.template["Resources"].items():
        if re.search(r'arn:aws[^$]*?:|"[^"]*\b(us|eu|ap)-(east|west|central|south|north)[a-z]*-\d', json.dumps(r)):
            yield name


# Each question's broken copy: template, path, what stands there then.
HOST = "Resources/MasterLaunchTemplate/Properties/LaunchTemplateData"
OPEN = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "CidrIp": "0.0.0.0/0", "Description": "SSH"}
SAY = "Properties/Policies/0/PolicyDocument/Statement"
BROKEN = [
    ("ports_are_exact", "cluster", "Resources/MasterSecurityIngress3/Properties/ToPort", 1024),
    ("ports_are_exact", "elastic", "Resources/MountTargetSecurityGroup/Properties/SecurityGroupIngress/1", DELETE),
    ("ports_are_exact", "cluster", "Resources/AdminSSHSecurityGroup/Properties/SecurityGroupIngress", [OPEN]),
    ("nothing_is_open_to_the_world", "cluster", "Resources/MountTargetSecurityGroup/Properties/SecurityGroupIngress/2", OPEN),
    ("every_rule_says_what_it_is_for", "cluster", "Resources/WorkerSecurityIngress2/Properties/Description", DELETE),
    ("only_hosts_may_reach_out", "cluster", "Resources/MountTargetSecurityGroup/Properties/SecurityGroupEgress", DELETE),
    ("only_the_master_has_the_group_of_ssh", "elastic",
     "Resources/WorkerLaunchTemplate/Properties/LaunchTemplateData/NetworkInterfaces/0/Groups/1", {"Ref": "AdminSSHSecurityGroup"}),
    ("public_addresses_only_for_ssh", "elastic",
     "Resources/ElasticWorkerLaunchTemplate/Properties/LaunchTemplateData/NetworkInterfaces/0/AssociatePublicIpAddress", True),
    ("public_addresses_only_for_ssh", "cluster", f"{HOST}/NetworkInterfaces/0/AssociatePublicIpAddress", True),
    ("public_addresses_only_for_ssh", "cluster", "Resources/PublicSubnet/Properties/MapPublicIpOnLaunch", True),
    ("hosts_stand_in_the_private_subnet", "cluster", "Resources/WorkerAutoScalingGroup/Properties/VPCZoneIdentifier/0", {"Ref": "PublicSubnet"}),
    ("subnets_share_a_zone_and_have_their_routes", "cluster", "Resources/PublicSubnet/Properties/AvailabilityZone", DELETE),
    ("subnets_share_a_zone_and_have_their_routes", "cluster", "Resources/PrivateSubnetRouteAssociation/Properties/RouteTableId", {"Ref": "PublicRouteTable"}),
    ("subnets_share_a_zone_and_have_their_routes", "cluster", "Resources/NATGateway/Properties/SubnetId", {"Ref": "PrivateSubnet"}),
    ("metadata_wants_a_token", "elastic", "Resources/ElasticWorkerLaunchTemplate/Properties/LaunchTemplateData/MetadataOptions", DELETE),
    ("metadata_wants_a_token", "cluster", f"{HOST}/MetadataOptions/HttpTokens", "optional"),
    ("metadata_stays_on_the_host", "cluster", f"{HOST}/MetadataOptions/HttpPutResponseHopLimit", 2),
    ("disks_are_encrypted_and_go_with_their_host", "cluster", f"{HOST}/BlockDeviceMappings/0/Ebs/Encrypted", False),
    ("disks_are_encrypted_and_go_with_their_host", "cluster", f"{HOST}/BlockDeviceMappings", DELETE),
    ("launch_templates_not_configurations", "cluster", "Resources/WorkerAutoScalingGroup/Properties/LaunchTemplate/Version", "$Latest"),
    ("launch_templates_not_configurations", "cluster", "Resources/Old", {"Type": "AWS::AutoScaling::LaunchConfiguration", "Properties": {}}),
    ("a_key_only_where_one_is_named", "cluster", f"{HOST}/KeyName", "somebodys-key"),
    ("session_manager_is_the_way_in", "elastic", "Resources/WorkerRole/Properties/ManagedPolicyArns", DELETE),
    ("session_manager_is_the_way_in", "cluster", "Resources/LambdaExecutionRole/Properties/ManagedPolicyArns", ["arn:aws:iam::aws:policy/AdministratorAccess"]),
    ("actions_are_named_one_by_one", "cluster", f"Resources/WorkerRole/{SAY}/0/Action", "sqs:*"),
    ("actions_are_named_one_by_one", "cluster", f"Resources/WorkerRole/{SAY}/0/NotResource", "x"),
    ("all_resources_only_where_aws_knows_no_other", "cluster", f"Resources/LambdaExecutionRole/{SAY}/2/Resource", "*"),
    ("hosts_may_do_what_they_need_and_no_more", "elastic", f"Resources/MasterRole/{SAY}/3/Action/2", "ec2:RunInstances"),
    ("hosts_may_do_what_they_need_and_no_more", "cluster", "Resources/PackagePolicy/Properties/PolicyDocument/Statement/0/Resource", "arn:aws:s3:::my-bucket/*"),
    ("only_elastic_workers_are_tagged_and_terminated", "elastic", f"Resources/MasterRole/{SAY}/4/Condition", DELETE),
    ("only_elastic_workers_are_tagged_and_terminated", "elastic", f"Resources/MasterRole/{SAY}/5/Condition/ForAllValues:StringEquals", DELETE),
    ("roles_are_taken_by_their_service_alone", "cluster", "Resources/WorkerRole/Properties/AssumeRolePolicyDocument/Statement/0/Principal", {"AWS": "*"}),
    ("names_of_iam_are_left_to_aws", "cluster", "Resources/MasterRole/Properties/RoleName", "master"),
    ("the_function_is_called_by_this_topic_alone", "cluster", "Resources/PermissionForSNSToInvokeLambda/Properties/SourceArn", DELETE),
    ("the_function_runs_on_a_supported_python", "cluster", "Resources/ResourceMetadataLambdaFunction/Properties/Runtime", "python3.10"),
    ("logs_do_not_stay_for_ever", "cluster", "Resources/ResourceMetadataLog/Properties/RetentionInDays", DELETE),
    ("logs_do_not_stay_for_ever", "cluster", "Resources/ResourceMetadataLambdaFunction/Properties/LoggingConfig", DELETE),
    ("queues_are_encrypted", "cluster", "Resources/WorkerQueue/Properties/SqsManagedSseEnabled", False),
    ("a_new_file_system_is_encrypted", "cluster", "Resources/FileSystem/Properties/Encrypted", DELETE),
    ("a_new_file_system_outlives_the_stack", "cluster", "Resources/FileSystem/DeletionPolicy", "Delete"),
    ("a_new_file_system_outlives_the_stack", "cluster", "Resources/FileSystem/Condition", DELETE),
    ("what_goes_with_the_stack_says_so", "cluster", "Resources/MasterQueue/DeletionPolicy", DELETE),
    ("the_wait_handle_is_the_masters_secret", "cluster", "Outputs/Handle", {"Value": {"Ref": "myWaitHandle"}}),
    ("the_stack_waits_as_long_as_it_should", "cluster", "Resources/myWaitCondition/Properties/Timeout", "600"),
    ("the_stack_waits_as_long_as_it_should", "cluster", "Resources/MasterAutoScalingGroup/CreationPolicy", DELETE),
    ("hosts_come_when_all_they_need_is_there", "cluster", "Resources/MasterAutoScalingGroup/DependsOn", ["MountTarget"]),
    ("hosts_come_when_all_they_need_is_there", "cluster", "Resources/WorkerAutoScalingGroup/DependsOn", DELETE),
    ("groups_tell_of_all_that_happens", "elastic", "Resources/WorkerAutoScalingGroup/Properties/NotificationConfigurations/0/NotificationTypes/1", DELETE),
    ("the_stack_can_do_with_fewer_workers", "cluster", "Resources/WorkerAutoScalingGroup/Properties/MinSize", "1"),
    ("it_works_in_every_region_and_partition", "cluster", "Resources/PrivateSubnet/Properties/AvailabilityZone", "us-east-1a"),
    ("it_works_in_every_region_and_partition", "cluster", "Resources/MasterRole/Properties/ManagedPolicyArns/0", "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"),
]


def faults(name, template):
    return [fault for parameters in (PLAIN, WITH_SSH) for fault in QUESTIONS[name](Stack(template, **parameters))]


class Bootstrap(unittest.TestCase):
    """What hosts run and what their roles and their user data give them fit together."""

    def actions(self, which, role):
        return {action for name, _, actions in statements(Stack(TEMPLATES[which], **PLAIN)) if name == role for action in actions}

    def test_hosts_ask_for_what_their_role_allows_and_the_role_for_nothing_else(self):
        code = (INFRA / "bootstrap/setup_host.py").read_text()
        asked = {f"{service}:{action}" for service, action in re.findall(r'\.call\("(\w+)", "(\w+)"', code)}
        self.assertGreaterEqual(len(asked), 7)
        self.assertEqual(self.actions("cluster", "MasterRole"), asked)
        self.assertEqual(self.actions("cluster", "WorkerRole"), asked - {"sqs:SendMessage"})
        manager = re.findall(r'\.call\("(\w+)", self\.ec2\.', (INFRA / "bootstrap/elastic_manager.py").read_text())
        self.assertGreaterEqual(len(manager), 3)
        self.assertEqual(self.actions("elastic", "MasterRole"), asked | {f"ec2:{action}" for action in manager})
        self.assertEqual(self.actions("elastic", "WorkerRole"), self.actions("cluster", "WorkerRole"))

    def test_every_variable_that_they_need_is_given(self):
        head = re.search(r"^for name in ([A-Z_ ]+); do$", (INFRA / "bootstrap/user_data.sh").read_text(), re.M)[1].split()
        for which in TEMPLATES:
            for name, data in launch_templates(Stack(TEMPLATES[which], **PLAIN)).items():
                given = set(re.findall(r"^export (\w+)='[^']", text_of(data), re.M))
                needed = setup_host.NEEDED[name.replace("LaunchTemplate", "").lower()]
                self.assertLessEqual({*head, *setup_host.ALWAYS, *needed}, given, name)


class Posture(unittest.TestCase):
    def test_nothing_is_found(self):
        for which, template in TEMPLATES.items():
            for name in QUESTIONS:
                with self.subTest(template=which, question=name):
                    self.assertEqual(faults(name, template), [])

    def test_each_question_finds_what_is_broken(self):
        for name, which, path, value in BROKEN:
            with self.subTest(question=name, path=path):
                self.assertNotEqual(faults(name, changed(TEMPLATES[which], path, value)), [])
        self.assertEqual({name for name, *_ in BROKEN}, set(QUESTIONS))


if __name__ == "__main__":
    unittest.main()
