#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Questions to the templates of the clusters: who may reach whom."""
import itertools
import unittest

from posture import has_ssh, ingress, launch_templates, MASTER, of_type, Questions
from templates import DELETE

questions = Questions()
OPEN = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "CidrIp": "0.0.0.0/0", "Description": "SSH"}


@questions.ask
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


@questions.ask
def nothing_is_open_to_the_world(stack):
    for group, rule in ingress(stack):
        if rule.get("CidrIp") == "0.0.0.0/0" or rule.get("CidrIpv6") == "::/0" or rule["IpProtocol"] in ("-1", -1):
            yield group


@questions.ask
def every_rule_says_what_it_is_for(stack):
    for group, rule in ingress(stack):
        if not rule.get("Description"):
            yield group
    for name, p in of_type(stack, "AWS::EC2::SecurityGroup").items():
        if not p.get("GroupDescription") or not all(r.get("Description") for r in p.get("SecurityGroupEgress", [])):
            yield name


@questions.ask
def only_hosts_may_reach_out(stack):
    for name, p in of_type(stack, "AWS::EC2::SecurityGroup").items():
        out = [r["CidrIp"] for r in p.get("SecurityGroupEgress", [{"CidrIp": "0.0.0.0/0"}])]
        if out != (["0.0.0.0/0"] if name in ("MasterSecurityGroup", "WorkerSecurityGroup") else ["127.0.0.1/32"]):
            yield name


@questions.ask
def only_the_master_has_the_group_of_ssh(stack):
    for name, data in launch_templates(stack).items():
        groups = [g for card in data["NetworkInterfaces"] for g in card["Groups"]]
        want = ["<MasterSecurityGroup>", "<AdminSSHSecurityGroup>"] if name == "MasterLaunchTemplate" else ["<WorkerSecurityGroup>"]
        if groups != want or "SecurityGroupIds" in data:
            yield name


@questions.ask
def public_addresses_only_for_ssh(stack):
    for name, data in launch_templates(stack).items():
        for card in data["NetworkInterfaces"]:
            if card.get("AssociatePublicIpAddress") is not (name == "MasterLaunchTemplate" and has_ssh(stack)):
                yield name
    for name, p in of_type(stack, "AWS::EC2::Subnet").items():
        if p.get("MapPublicIpOnLaunch") is not False:
            yield name


@questions.ask
def hosts_stand_in_the_private_subnet(stack):
    for name, p in of_type(stack, "AWS::AutoScaling::AutoScalingGroup").items():
        public = name == "MasterAutoScalingGroup" and has_ssh(stack)
        if p["VPCZoneIdentifier"] != ["<PublicSubnet>" if public else "<PrivateSubnet>"]:
            yield name
    for name, data in launch_templates(stack).items():
        if any(card.get("SubnetId", "<PrivateSubnet>") != "<PrivateSubnet>" for card in data["NetworkInterfaces"]):
            yield name


@questions.ask
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


class Posture(questions.case([
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
    ("public_addresses_only_for_ssh", "cluster", f"{MASTER}/NetworkInterfaces/0/AssociatePublicIpAddress", True),
    ("public_addresses_only_for_ssh", "cluster", "Resources/PublicSubnet/Properties/MapPublicIpOnLaunch", True),
    ("hosts_stand_in_the_private_subnet", "cluster", "Resources/WorkerAutoScalingGroup/Properties/VPCZoneIdentifier/0", {"Ref": "PublicSubnet"}),
    ("subnets_share_a_zone_and_have_their_routes", "cluster", "Resources/PublicSubnet/Properties/AvailabilityZone", DELETE),
    ("subnets_share_a_zone_and_have_their_routes", "cluster", "Resources/PrivateSubnetRouteAssociation/Properties/RouteTableId", {"Ref": "PublicRouteTable"}),
    ("subnets_share_a_zone_and_have_their_routes", "cluster", "Resources/NATGateway/Properties/SubnetId", {"Ref": "PrivateSubnet"}),
])):
    pass


if __name__ == "__main__":
    unittest.main()
