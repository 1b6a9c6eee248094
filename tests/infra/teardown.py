# SPDX-License-Identifier: MIT
"""Deletes a cluster's stack in moto as CloudFormation does: each resource after the resources that name it, by AWS's
own calls, which refuse resources in use. moto's delete_stack leaves half of these types and checks little, so the
checks of AWS are made here.

    teardown(created, template, parameters, random.Random(1))     choice() selects the order; may raise StillInUse
    teardown(..., rollback=True)                                  as after a creation that failed
"""
import functools
import re

import boto3

from fake_cloud import REGION
from templates import Stack


class StillInUse(Exception):
    """The error that AWS calls a DependencyViolation."""


def refuse(users, what):
    if users:
        raise StillInUse(f"{what} is used by {users}")


@functools.lru_cache
def aws(service):
    """Returns a client, which is stored, because it takes a tenth of a second to make one."""
    return boto3.client(service, REGION)


def names_in(value):
    """Returns the names that a part of a template refers to."""
    if isinstance(value, list):
        return set().union(*map(names_in, value))
    if not isinstance(value, dict):
        return set()
    found = set().union(*map(names_in, value.values()))
    if "Ref" in value:
        found.add(value["Ref"])
    if "Fn::GetAtt" in value:
        found.add(value["Fn::GetAtt"][0])
    if "Fn::Sub" in value:
        text = value["Fn::Sub"] if isinstance(value["Fn::Sub"], str) else value["Fn::Sub"][0]
        found.update(name.split(".")[0] for name in re.findall(r"\$\{(\w[\w.]*)\}", text))
    return found


def hosts():
    """Returns the instances that are not terminated."""
    return [i for r in aws("ec2").describe_instances()["Reservations"] for i in r["Instances"] if i["State"]["Name"] != "terminated"]


def mount_targets():
    return [t for f in aws("efs").describe_file_systems()["FileSystems"]
            for t in aws("efs").describe_mount_targets(FileSystemId=f["FileSystemId"])["MountTargets"]]


def nat_gateways():
    return [g for g in aws("ec2").describe_nat_gateways()["NatGateways"] if g["State"] != "deleted"]


class Teardown:
    def __init__(self, created, template, parameters, rollback):
        self.kept = ("Retain",) if rollback else ("Retain", "RetainExceptOnCreate")
        self.stack = Stack(template, **parameters)
        self.ids = {name: physical for name, physical in created.resources.items() if name in self.stack.resources}
        self.needs = {}
        for name in self.stack.resources:
            resource = template["Resources"][name]
            after = resource.get("DependsOn", [])
            self.needs[name] = (names_in(resource) | set([after] if isinstance(after, str) else after)) & self.stack.resources.keys() - {name}

    def properties(self, name):
        """Returns the properties of a resource, with ids in place of names of resources."""
        def filled(v):
            if isinstance(v, list):
                return [filled(x) for x in v]
            if isinstance(v, dict):
                return {k: filled(x) for k, x in v.items()}
            match = re.fullmatch(r"<(\w+)>", v) if isinstance(v, str) else None
            return self.ids[match[1]] if match else v
        return filled(self.stack.resources[name].get("Properties", {}))

    def template_of(self, host):
        """Returns the data of an instance's launch template from the template, because moto stores only half of it."""
        template = next((t["Value"] for t in host.get("Tags", []) if t["Key"] == "aws:ec2launchtemplate:id"), None)
        return next((self.properties(name)["LaunchTemplateData"] for name, physical in self.ids.items() if physical == template), {})

    def groups_of(self, host):
        """Returns the security groups of an instance."""
        return [g for card in self.template_of(host).get("NetworkInterfaces", []) for g in card["Groups"]]

    def run(self, generator):
        left = set(self.stack.resources)
        while left:
            free = sorted(name for name in left if not any(name in self.needs[other] for other in left))
            name = generator.choice(free)
            resource = self.stack.resources[name]
            if resource.get("DeletionPolicy") not in self.kept:
                kind = resource["Type"].replace("AWS::", "").replace("::", "_").lower()
                getattr(self, kind)(name, self.ids[name])
            left.remove(name)

    # One method for each type of resource.
    def ec2_vpc(self, _, i):
        refuse([s["SubnetId"] for s in aws("ec2").describe_subnets(Filters=[{"Name": "vpc-id", "Values": [i]}])["Subnets"]], i)
        refuse([g["GroupId"] for g in aws("ec2").describe_security_groups(Filters=[{"Name": "vpc-id", "Values": [i]}])["SecurityGroups"]
                if g["GroupName"] != "default"], i)
        refuse([e["VpcEndpointId"] for e in aws("ec2").describe_vpc_endpoints()["VpcEndpoints"] if e["VpcId"] == i and e["State"] != "deleted"], i)
        refuse([g["InternetGatewayId"] for g in aws("ec2").describe_internet_gateways()["InternetGateways"]
                if i in [a["VpcId"] for a in g["Attachments"]]], i)
        aws("ec2").delete_vpc(VpcId=i)

    def ec2_subnet(self, _, i):
        refuse([h["InstanceId"] for h in hosts() if h["SubnetId"] == i], i)
        refuse([t["MountTargetId"] for t in mount_targets() if t["SubnetId"] == i], i)
        refuse([g["NatGatewayId"] for g in nat_gateways() if g["SubnetId"] == i], i)
        aws("ec2").delete_subnet(SubnetId=i)

    def ec2_internetgateway(self, _, i):
        aws("ec2").delete_internet_gateway(InternetGatewayId=i)

    def ec2_vpcgatewayattachment(self, name, _):
        refuse([g["NatGatewayId"] for g in nat_gateways()], "the gateway to the internet")
        p = self.properties(name)
        aws("ec2").detach_internet_gateway(InternetGatewayId=p["InternetGatewayId"], VpcId=p["VpcId"])

    def ec2_routetable(self, _, i):
        refuse([e["VpcEndpointId"] for e in aws("ec2").describe_vpc_endpoints()["VpcEndpoints"]
                if i in e.get("RouteTableIds", []) and e["State"] != "deleted"], i)
        aws("ec2").delete_route_table(RouteTableId=i)

    def ec2_route(self, name, _):
        p = self.properties(name)
        # Hosts that shut down still use their queues and logs.
        if p.get("NatGatewayId"):
            refuse([h["InstanceId"] for h in hosts()], "the way out")
        aws("ec2").delete_route(RouteTableId=p["RouteTableId"], DestinationCidrBlock=p["DestinationCidrBlock"])

    def ec2_subnetroutetableassociation(self, name, _):
        p = self.properties(name)
        for table in aws("ec2").describe_route_tables(RouteTableIds=[p["RouteTableId"]])["RouteTables"]:
            for association in table["Associations"]:
                if association.get("SubnetId") == p["SubnetId"]:
                    aws("ec2").disassociate_route_table(AssociationId=association["RouteTableAssociationId"])

    def ec2_eip(self, _, i):
        found, = [a for a in aws("ec2").describe_addresses()["Addresses"] if a["PublicIp"] == i]
        refuse([g["NatGatewayId"] for g in nat_gateways() if found["AllocationId"] in [a["AllocationId"] for a in g["NatGatewayAddresses"]]], i)
        if "AssociationId" in found:
            aws("ec2").disassociate_address(AssociationId=found["AssociationId"])
        aws("ec2").release_address(AllocationId=found["AllocationId"])

    def ec2_natgateway(self, _, i):
        aws("ec2").delete_nat_gateway(NatGatewayId=i)

    def ec2_placementgroup(self, _, i):
        refuse([h["InstanceId"] for h in hosts() if self.template_of(h).get("Placement", {}).get("GroupName") == i], i)

    def ec2_securitygroupegress(self, *_):
        pass  # exists only as a model

    def ec2_securitygroupingress(self, name, _):
        p = self.properties(name)
        ports = {k: p[k] for k in ("FromPort", "ToPort") if k in p}
        aws("ec2").revoke_security_group_ingress(GroupId=p["GroupId"], IpPermissions=[{
            "IpProtocol": p["IpProtocol"], **ports, "UserIdGroupPairs": [{"GroupId": p["SourceSecurityGroupId"]}]}])

    def ec2_securitygroup(self, _, i):
        refuse([h["InstanceId"] for h in hosts() if i in self.groups_of(h)], i)
        for t in mount_targets():
            refuse([t["MountTargetId"]] if i in aws("efs").describe_mount_target_security_groups(
                MountTargetId=t["MountTargetId"])["SecurityGroups"] else [], i)
        refuse([g["GroupId"] for g in aws("ec2").describe_security_groups()["SecurityGroups"] if g["GroupId"] != i
                and i in [p["GroupId"] for r in g["IpPermissions"] for p in r["UserIdGroupPairs"]]], i)
        aws("ec2").delete_security_group(GroupId=i)

    def ec2_launchtemplate(self, _, i):
        aws("ec2").delete_launch_template(LaunchTemplateId=i)

    def ec2_vpcendpoint(self, _, i):
        aws("ec2").delete_vpc_endpoints(VpcEndpointIds=[i])

    def efs_filesystem(self, _, i):
        refuse([t["MountTargetId"] for t in mount_targets() if t["FileSystemId"] == i], i)
        aws("efs").delete_file_system(FileSystemId=i)

    def efs_mounttarget(self, _, i):
        # A host that has mounted it would hang.
        refuse([h["InstanceId"] for h in hosts()], i)
        aws("efs").delete_mount_target(MountTargetId=i)

    def sqs_queue(self, _, i):
        aws("sqs").delete_queue(QueueUrl=i)

    def iam_role(self, _, i):
        iam = aws("iam")
        refuse([p["InstanceProfileName"] for p in iam.list_instance_profiles_for_role(RoleName=i)["InstanceProfiles"]], i)
        # CloudFormation removes the policies of the role itself. Policies that other resources have added must be
        # deleted before.
        own = {p["PolicyName"] for name, physical in self.ids.items() if physical == i for p in self.properties(name).get("Policies", [])}
        refuse(set(iam.list_role_policies(RoleName=i)["PolicyNames"]) - own, i)
        for policy in own:
            iam.delete_role_policy(RoleName=i, PolicyName=policy)
        for policy in iam.list_attached_role_policies(RoleName=i)["AttachedPolicies"]:
            iam.detach_role_policy(RoleName=i, PolicyArn=policy["PolicyArn"])
        iam.delete_role(RoleName=i)

    def iam_policy(self, name, _):
        p = self.properties(name)
        for role in p["Roles"]:
            aws("iam").delete_role_policy(RoleName=role, PolicyName=p["PolicyName"])

    def iam_instanceprofile(self, _, i):
        for role in aws("iam").get_instance_profile(InstanceProfileName=i)["InstanceProfile"]["Roles"]:
            aws("iam").remove_role_from_instance_profile(InstanceProfileName=i, RoleName=role["RoleName"])
        aws("iam").delete_instance_profile(InstanceProfileName=i)

    def sns_topic(self, _, i):
        for s in aws("sns").list_subscriptions_by_topic(TopicArn=i)["Subscriptions"]:
            aws("sns").unsubscribe(SubscriptionArn=s["SubscriptionArn"])
        aws("sns").delete_topic(TopicArn=i)

    def lambda_permission(self, *_):
        pass  # AWS deletes it with its function

    def lambda_function(self, _, i):
        aws("lambda").delete_function(FunctionName=i)

    def logs_loggroup(self, _, i):
        aws("logs").delete_log_group(logGroupName=i)

    def autoscaling_autoscalinggroup(self, _, i):
        aws("autoscaling").delete_auto_scaling_group(AutoScalingGroupName=i, ForceDelete=True)

    def cloudformation_waitcondition(self, *_):
        pass

    def cloudformation_waitconditionhandle(self, *_):
        pass


def teardown(created, template, parameters, generator, rollback=False):
    Teardown(created, template, parameters, rollback).run(generator)
