# SPDX-License-Identifier: MIT
"""Asks questions about cluster.yaml and elastic.yaml that cfn-lint does not ask. Each question is also asked about
broken copies, in which it must find a fault.

    questions = Questions()

    @questions.ask
    def nothing_is_open(stack):      # yields the faults
        ...

    class Posture(questions.case([("nothing_is_open", "cluster", "Resources/Group/Properties/Ports", [22]), ...])):
        pass
"""
import base64
import unittest

from templates import INFRA, Stack, changed, load

TEMPLATES = {name: load(INFRA / f"cloudformation/{name}.yaml") for name in ("cluster", "elastic")}
PLAIN = {"TuttiPackage": "s3://my-bucket/tutti.tar"}
WITH_SSH = {"TuttiPackage": "tutti.tar", "KeyName": "my-key", "SSHLocation": "203.0.113.7/32", "EFSFileSystemId": "fs-12345678"}
WITH_EFA = {"TuttiPackage": "s3://my-bucket/tutti.tar", "InstanceType": "p4d.24xlarge"}
# Paths in the templates.
MASTER = "Resources/MasterLaunchTemplate/Properties/LaunchTemplateData"
STATEMENTS = "Properties/Policies/0/PolicyDocument/Statement"


def of_type(stack, kind):
    return {name: r["Properties"] for name, r in stack.resources.items() if r["Type"] == kind}


def launch_templates(stack):
    return {name: p["LaunchTemplateData"] for name, p in of_type(stack, "AWS::EC2::LaunchTemplate").items()}


def has_ssh(stack):
    return bool(stack.values["SSHLocation"])


def has_efa(stack):
    return stack.values["Efa"] == "true" and stack.values["InstanceType"].startswith("p")


def as_list(value):
    return value if isinstance(value, list) else [value]


def statements(stack):
    """Returns triples (name of the resource, statement, its actions)."""
    for kind in ("AWS::IAM::Role", "AWS::IAM::Policy"):
        for name, p in of_type(stack, kind).items():
            documents = [x["PolicyDocument"] for x in p.get("Policies", [])] + ([p["PolicyDocument"]] if "PolicyDocument" in p else [])
            for document in documents:
                for statement in as_list(document["Statement"]):
                    yield name, statement, as_list(statement.get("Action", []))


def ingress(stack):
    """Returns tuples (group, protocol, from, to, source) of each rule in the template."""
    for name, p in of_type(stack, "AWS::EC2::SecurityGroup").items():
        for rule in p.get("SecurityGroupIngress", []):
            yield name, rule
    for p in of_type(stack, "AWS::EC2::SecurityGroupIngress").values():
        yield p["GroupId"].strip("<>"), p


def text_of(data):
    return base64.b64decode(data["UserData"]).decode()


class Questions:
    def __init__(self):
        self.all = {}

    def ask(self, question):
        self.all[question.__name__] = question
        return question

    def faults(self, name, template):
        return [fault for parameters in (PLAIN, WITH_SSH, WITH_EFA) for fault in self.all[name](Stack(template, **parameters))]

    def case(self, broken):
        """broken: list of (question, template, path, value at the path in the broken copy)."""
        questions = self

        class Asked(unittest.TestCase):
            def test_templates_have_no_fault(self):
                for which, template in TEMPLATES.items():
                    for name in questions.all:
                        with self.subTest(template=which, question=name):
                            self.assertEqual(questions.faults(name, template), [])

            def test_each_question_finds_its_fault(self):
                for name, which, path, value in broken:
                    with self.subTest(question=name, path=path):
                        self.assertNotEqual(questions.faults(name, changed(TEMPLATES[which], path, value)), [])
                self.assertEqual({name for name, *_ in broken}, set(questions.all))
        return Asked
