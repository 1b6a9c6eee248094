#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Asks questions about the templates of the clusters: the permissions of each role."""
import itertools
import re
import unittest

from posture import as_list, of_type, PLAIN, Questions, STATEMENTS, statements, TEMPLATES
from templates import DELETE, INFRA, Stack

questions = Questions()


# The permissions of Session Manager's agent. AmazonSSMManagedInstanceCore would also let a host read every parameter of
# SSM.
SESSIONS = {"ssm:UpdateInstanceInformation", "ssmmessages:CreateControlChannel", "ssmmessages:CreateDataChannel",
            "ssmmessages:OpenControlChannel", "ssmmessages:OpenDataChannel"}


@questions.ask
def session_manager_is_the_way_in(stack):
    for role in ("MasterRole", "WorkerRole"):
        if not any(SESSIONS == set(actions) for name, _, actions in statements(stack) if name == role):
            yield role


@questions.ask
def no_policy_of_aws_gives_more(stack):
    for name, p in of_type(stack, "AWS::IAM::Role").items():
        if p.get("ManagedPolicyArns"):
            yield name


@questions.ask
def actions_are_named_one_by_one(stack):
    for name, statement, actions in statements(stack):
        if not actions or any("*" in action for action in actions) or statement.keys() & {"NotAction", "NotResource", "NotPrincipal"}:
            yield name


@questions.ask
def all_resources_only_where_aws_knows_no_other(stack):
    lists = {"autoscaling:DescribeAutoScalingGroups", "autoscaling:DescribeScalingActivities", "ec2:DescribeInstances"} | SESSIONS
    for name, statement, actions in statements(stack):
        if "*" in as_list(statement["Resource"]) and not set(actions) <= lists:
            yield name


@questions.ask
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
    allowed["MasterRole"] |= {("cloudformation:DescribeStackResource", stack.reference("AWS::StackId")),
                              ("autoscaling:DescribeAutoScalingGroups", "*"), ("ec2:DescribeInstances", "*")}
    for role in ("MasterRole", "WorkerRole"):
        allowed[role] |= {(action, "*") for action in SESSIONS}
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


@questions.ask
def only_elastic_workers_are_tagged_and_terminated(stack):
    for name, statement, actions in statements(stack):
        condition = statement.get("Condition", {})
        own = condition.get("StringEquals") == {"aws:ResourceTag/aws:ec2launchtemplate:id": "<ElasticWorkerLaunchTemplate>"}
        if set(actions) & {"ec2:TerminateInstances", "ec2:CreateTags", "ec2:DeleteTags"} and not own:
            yield f"{name}: {actions}"
        if "ec2:CreateTags" in actions and condition.get("ForAllValues:StringEquals") != {"aws:TagKeys": ["elastic_worker_status", "Name"]}:
            yield f"{name}: any tag"


@questions.ask
def roles_are_taken_by_their_service_alone(stack):
    for name, p in of_type(stack, "AWS::IAM::Role").items():
        principals = [s.get("Principal") for s in p["AssumeRolePolicyDocument"]["Statement"]]
        if principals != [{"Service": "lambda.amazonaws.com" if name.startswith("Lambda") else "ec2.amazonaws.com"}]:
            yield name


@questions.ask
def names_of_iam_are_left_to_aws(stack):
    for kind, key in (("AWS::IAM::Role", "RoleName"), ("AWS::IAM::InstanceProfile", "InstanceProfileName")):
        for name, p in of_type(stack, kind).items():
            if key in p:
                yield name


@questions.ask
def the_function_is_called_by_this_topic_alone(stack):
    for name, p in of_type(stack, "AWS::Lambda::Permission").items():
        if (p["Principal"], p.get("SourceArn"), p["Action"]) != ("sns.amazonaws.com", "<ResourceMetadataSNSTopic>", "lambda:InvokeFunction"):
            yield name


class Posture(questions.case([
    ("session_manager_is_the_way_in", "elastic", f"Resources/WorkerRole/{STATEMENTS}/1/Action/2", DELETE),
    ("no_policy_of_aws_gives_more", "cluster", "Resources/WorkerRole/Properties/ManagedPolicyArns",
     ["arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"]),
    ("no_policy_of_aws_gives_more", "cluster", "Resources/LambdaExecutionRole/Properties/ManagedPolicyArns", ["arn:aws:iam::aws:policy/AdministratorAccess"]),
    ("actions_are_named_one_by_one", "cluster", f"Resources/WorkerRole/{STATEMENTS}/0/Action", "sqs:*"),
    ("actions_are_named_one_by_one", "cluster", f"Resources/WorkerRole/{STATEMENTS}/0/NotResource", "x"),
    ("all_resources_only_where_aws_knows_no_other", "cluster", f"Resources/LambdaExecutionRole/{STATEMENTS}/2/Resource", "*"),
    ("hosts_may_do_what_they_need_and_no_more", "elastic", f"Resources/MasterRole/{STATEMENTS}/3/Action/2", "ec2:RunInstances"),
    ("hosts_may_do_what_they_need_and_no_more", "cluster", "Resources/PackagePolicy/Properties/PolicyDocument/Statement/0/Resource", "arn:aws:s3:::my-bucket/*"),
    ("only_elastic_workers_are_tagged_and_terminated", "elastic", f"Resources/MasterRole/{STATEMENTS}/5/Condition", DELETE),
    ("only_elastic_workers_are_tagged_and_terminated", "elastic", f"Resources/MasterRole/{STATEMENTS}/6/Condition/ForAllValues:StringEquals", DELETE),
    ("roles_are_taken_by_their_service_alone", "cluster", "Resources/WorkerRole/Properties/AssumeRolePolicyDocument/Statement/0/Principal", {"AWS": "*"}),
    ("names_of_iam_are_left_to_aws", "cluster", "Resources/MasterRole/Properties/RoleName", "master"),
    ("the_function_is_called_by_this_topic_alone", "cluster", "Resources/PermissionForSNSToInvokeLambda/Properties/SourceArn", DELETE),
])):
    pass


class Bootstrap(unittest.TestCase):
    """Tests that the permissions of roles match the calls of the hosts' programs."""

    def actions(self, which, role):
        """Returns the permitted actions of a role, without those of Session Manager: its agent is not part of tutti."""
        return {action for name, _, actions in statements(Stack(TEMPLATES[which], **PLAIN)) if name == role for action in actions} - SESSIONS

    def test_hosts_use_exactly_the_permissions_of_their_role(self):
        asked = {}
        for role, files in (("MasterRole", ("host", "master")), ("WorkerRole", ("host", "worker", "elastic_worker"))):
            code = "".join((INFRA / f"bootstrap/{name}_setup.py").read_text() for name in files)
            asked[role] = {f"{service}:{action}" for service, action in re.findall(r'\.call\("(\w+)", "(\w+)"', code)}
            self.assertGreaterEqual(len(asked[role]), 3)
            self.assertEqual(self.actions("cluster", role), asked[role])
        manager = re.findall(r'\.call\("(\w+)", self\.ec2\.', (INFRA / "bootstrap/elastic_manager.py").read_text())
        self.assertGreaterEqual(len(manager), 3)
        self.assertEqual(self.actions("elastic", "MasterRole"), asked["MasterRole"] | {f"ec2:{action}" for action in manager})
        self.assertEqual(self.actions("elastic", "WorkerRole"), self.actions("cluster", "WorkerRole"))


if __name__ == "__main__":
    unittest.main()
