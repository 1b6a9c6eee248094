# SPDX-License-Identifier: MIT
"""Creates stacks with moto in this process, with models for the resources that moto lacks. Refuses the parameters that
AWS would refuse.

    with fake_services() as aws:
        stack = aws.create("train", INFRA / "cloudformation/cluster.yaml", TuttiPackage="s3://b/k")
        stack.outputs, stack.resources   # by name: values, physical ids
"""
import contextlib
import json
import os
import unittest.mock
import warnings

import boto3
from moto import mock_aws
from moto.cloudformation import parsing
from moto.cloudformation.models import Stack
from moto.core import DEFAULT_ACCOUNT_ID
from moto.core.common_models import CloudFormationModel
from moto.ec2.models.subnets import Subnet

from resource_schemas import check_resource, check_template
from service_models import Refusal
from strict_moto import strict
from templates import load, refusals

REGION = "us-east-1"
IMAGE = "ami-12c6146b"  # one of moto's images for x86_64
ARM_IMAGE = "ami-0e9271c829888680e"  # and for arm64
os.environ.update(AWS_ACCESS_KEY_ID="testing", AWS_SECRET_ACCESS_KEY="testing", AWS_DEFAULT_REGION=REGION)
os.environ.pop("AWS_PROFILE", None)


class Refused(Exception):
    """CloudFormation would not create the stack."""


class Model(CloudFormationModel):
    """A resource that moto lacks: accepts the properties that it knows and stores them."""
    __module__ = "moto.cloudformation.models"  # the metaclass of moto's models reads the service from this name
    TYPE, REQUIRED, OPTIONAL, ATTRIBUTES = "", set(), set(), {}

    def __init__(self, name, properties):
        unknown, missing = properties.keys() - self.REQUIRED - self.OPTIONAL, self.REQUIRED - properties.keys()
        if unknown or missing:
            raise Refused(f"{self.TYPE}: unknown {sorted(unknown)}, missing {sorted(missing)}")
        self.properties, self.physical_resource_id = properties, self.identify(name)
        self.check()

    def identify(self, name):
        return name

    def check(self):
        """Raises Refused if properties contradict each other."""

    @staticmethod
    def cloudformation_name_type():
        return ""

    @classmethod
    def has_cfn_attr(cls, attr):
        return attr in cls.ATTRIBUTES

    def get_cfn_attribute(self, name):
        return self.ATTRIBUTES[name]

    @classmethod
    def create_from_cloudformation_json(cls, resource_name, cloudformation_json, account_id, region_name, **_):
        return cls(resource_name, cloudformation_json.get("Properties", {}))

    @classmethod
    def delete_from_cloudformation_json(cls, *_):
        pass

    def is_created(self):
        return True


class WaitConditionHandle(Model):
    __module__ = Model.__module__
    TYPE = "AWS::CloudFormation::WaitConditionHandle"

    @staticmethod
    def cloudformation_type():
        return WaitConditionHandle.TYPE

    def identify(self, name):
        return f"https://cloudformation-waitcondition-{REGION}.s3.amazonaws.com/{name}?Signature=a%2Bsecret"


class WaitCondition(Model):
    __module__ = Model.__module__
    TYPE, REQUIRED, OPTIONAL = "AWS::CloudFormation::WaitCondition", {"Handle", "Timeout"}, {"Count"}

    @staticmethod
    def cloudformation_type():
        return WaitCondition.TYPE

    def check(self):
        if not str(self.properties["Handle"]).startswith("https://cloudformation-waitcondition-"):
            raise Refused(f"{self.TYPE}: {self.properties['Handle']} is no handle")
        if not 0 < int(self.properties["Timeout"]) <= 43200:
            raise Refused(f"{self.TYPE}: Timeout is at most 43200, not {self.properties['Timeout']}")


class PlacementGroup(Model):
    __module__ = Model.__module__
    TYPE, OPTIONAL = "AWS::EC2::PlacementGroup", {"Strategy", "Tags"}

    @staticmethod
    def cloudformation_type():
        return PlacementGroup.TYPE

    def check(self):
        if self.properties.get("Strategy") not in ("cluster", "spread", "partition"):
            raise Refused(f"no strategy {self.properties.get('Strategy')}")


class SecurityGroupEgress(Model):
    __module__ = Model.__module__
    TYPE, REQUIRED = "AWS::EC2::SecurityGroupEgress", {"GroupId", "IpProtocol"}
    OPTIONAL = {"Description", "FromPort", "ToPort", "CidrIp", "DestinationSecurityGroupId"}

    @staticmethod
    def cloudformation_type():
        return SecurityGroupEgress.TYPE

    def check(self):
        if ("CidrIp" in self.properties) == ("DestinationSecurityGroupId" in self.properties):
            raise Refused(f"{self.TYPE}: one destination")


class Created:
    """A stack in moto."""

    def __init__(self, name):
        client = boto3.client("cloudformation", REGION)
        described = client.describe_stacks(StackName=name)["Stacks"][0]
        self.name, self.id, self.status = name, described["StackId"], described["StackStatus"]
        self.outputs = {o["OutputKey"]: o["OutputValue"] for o in described.get("Outputs", [])}
        # Resources with a false condition are listed without a name.
        listed = [r for r in client.describe_stack_resources(StackName=name)["StackResources"] if "LogicalResourceId" in r]
        self.resources = {r["LogicalResourceId"]: r.get("PhysicalResourceId") for r in listed}
        self.statuses = {r["LogicalResourceId"]: r["ResourceStatus"] for r in listed}


class FakeCloud:
    @staticmethod
    def create(stack_name, path, **parameters):
        """Creates a stack of the template. moto has no images in SSM, so AmiId is one of moto's images unless it is
        given."""
        template = load(path)
        if "AmiId" in template["Parameters"]:
            parameters = {"AmiId": IMAGE, **parameters}
        said = refusals(template, parameters)
        if said:
            raise Refused("\n".join(said))
        try:
            check_template(template)
        except Refusal as e:
            raise Refused(e.message) from None
        with warnings.catch_warnings():
            # Each type must have a model. Otherwise moto would skip resources of this type.
            warnings.filterwarnings("error", message="Tried to parse")
            boto3.client("cloudformation", REGION).create_stack(
                StackName=stack_name, TemplateBody=json.dumps(template), Capabilities=["CAPABILITY_IAM"],
                Parameters=[{"ParameterKey": k, "ParameterValue": str(v)} for k, v in parameters.items()])
        return Created(stack_name)


def checked(parse):
    """Wraps moto's reader of a resource, and refuses properties that the schema of its provider does not have."""
    def parse_and_check(logical_id, resource, resources):
        found = parse(logical_id, resource, resources)
        if found:
            try:
                check_resource(resource["Type"], found[1].get("Properties", {}))
            except Refusal as e:
                raise Refused(f"{logical_id}: {e.message}") from None
        return found
    return parse_and_check


def parsed(parse):
    """Wraps moto's reader of templates, which reads even JSON by the slow reader of YAML."""
    def parse_json_or(template):
        try:
            return json.loads(template)
        except ValueError:
            return parse(template)
    return staticmethod(parse_json_or)


@contextlib.contextmanager
def fake_services(models=()):
    """Yields an empty AWS in moto, with the models above and further models."""
    tables = (parsing.get_model_list, parsing.get_model_map, parsing.get_name_type_map)
    known = [m for m in CloudFormationModel.__subclasses__() if m is not Model]
    for table in tables:
        table.cache_clear()
    with contextlib.ExitStack() as patches:
        patches.enter_context(strict())
        for owner, name, value in ((parsing, "NULL_MODELS", []),
                                   (parsing, "get_model_list", lambda: [*known, WaitConditionHandle, WaitCondition, PlacementGroup, SecurityGroupEgress, *models]),
                                   (parsing, "parse_resource_and_generate_name", checked(parsing.parse_resource_and_generate_name)),
                                   (Stack, "parse_template", parsed(Stack.parse_template)),
                                   (Subnet, "get_cfn_attribute", lambda self, name: getattr(self, ATTRIBUTES_OF_SUBNETS[name]))):
            patches.enter_context(unittest.mock.patch.object(owner, name, value))
        patches.enter_context(mock_aws(config={"lambda": {"use_docker": False}, "iam": {"load_aws_managed_policies": True}}))
        yield FakeCloud()
    for table in tables:
        table.cache_clear()


ATTRIBUTES_OF_SUBNETS = {"AvailabilityZone": "availability_zone"}
ACCOUNT = DEFAULT_ACCOUNT_ID
