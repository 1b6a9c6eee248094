#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Asks questions about the templates of the clusters: the permitted connections."""
import gzip
import itertools
import json
import unittest
from pathlib import Path

import moto
from posture import has_efa, has_ssh, ingress, launch_templates, MASTER, of_type, Questions, TEMPLATES, WITH_EFA
from templates import DELETE, Stack, refusals

questions = Questions()
OPEN = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "CidrIp": "0.0.0.0/0", "Description": "SSH"}


@questions.ask
def ports_are_exact(stack):
    found = sorted((group, r["IpProtocol"], r.get("FromPort", -1), r.get("ToPort", -1),
                    r.get("SourceSecurityGroupId", r.get("CidrIp", r.get("CidrIpv6", "?"))).strip("<>")) for group, r in ingress(stack))
    hosts = ("MasterSecurityGroup", "WorkerSecurityGroup")
    expected = [(a, *rule, b) for a, b in itertools.product(hosts, hosts) for rule in (("tcp", 0, 65535), ("icmp", -1, -1))]
    expected += [("MountTargetSecurityGroup", "tcp", 2049, 2049, b) for b in hosts]
    if has_ssh(stack):
        expected.append(("AdminSSHSecurityGroup", "tcp", 22, 22, "203.0.113.7/32"))
    if has_efa(stack):
        expected.append(("EfaGroup", "-1", -1, -1, "EfaGroup"))
    if found != sorted(expected):
        yield f"{set(found) ^ set(expected)}"


@questions.ask
def nothing_is_open_to_the_world(stack):
    for group, rule in ingress(stack):
        if rule.get("CidrIp") == "0.0.0.0/0" or rule.get("CidrIpv6") == "::/0" or (rule["IpProtocol"] in ("-1", -1) and group != "EfaGroup"):
            yield group


@questions.ask
def adapters_reach_each_other_and_nothing_else(stack):
    """EFA needs a group that allows all traffic from itself and to itself."""
    if ("EfaGroup" in stack.resources) != has_efa(stack):
        yield "EfaGroup"
    out = [p for p in of_type(stack, "AWS::EC2::SecurityGroupEgress").values()]
    if [(p["GroupId"], p.get("DestinationSecurityGroupId"), p["IpProtocol"]) for p in out] != [("<EfaGroup>", "<EfaGroup>", "-1")] * has_efa(stack):
        yield "EfaEgress"


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
        first, *others = data["NetworkInterfaces"]
        want = ["<MasterSecurityGroup>", "<AdminSSHSecurityGroup>"] if name == "MasterLaunchTemplate" else ["<WorkerSecurityGroup>"]
        if first["Groups"] != want or "SecurityGroupIds" in data or any(card["Groups"] != ["<EfaGroup>"] for card in others):
            yield name


@questions.ask
def public_addresses_only_for_ssh(stack):
    for name, data in launch_templates(stack).items():
        first, *others = data["NetworkInterfaces"]
        # EC2 refuses this field, whatever its value, for a host with several interfaces.
        want = None if others else name == "MasterLaunchTemplate" and has_ssh(stack)
        if first.get("AssociatePublicIpAddress") is not want or any("AssociatePublicIpAddress" in card for card in others):
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
        # AddWorkerCommand gives no subnet, so each interface of the elastic worker's template must name one.
        want = "<PrivateSubnet>" if name == "ElasticWorkerLaunchTemplate" else None
        if any(card.get("SubnetId") != want for card in data["NetworkInterfaces"]):
            yield name


@questions.ask
def hosts_stand_close_together(stack):
    close = "HostsPlacement" in stack.resources
    if close and stack.resources["HostsPlacement"]["Properties"]["Strategy"] != "cluster":
        yield "HostsPlacement"
    for name, data in launch_templates(stack).items():
        if not close or data.get("Placement") != {"GroupName": "<HostsPlacement>"}:
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
    ("ports_are_exact", "cluster", "Resources/EfaIngress", DELETE),
    ("adapters_reach_each_other_and_nothing_else", "cluster", "Resources/EfaEgress/Properties/IpProtocol", "tcp"),
    ("adapters_reach_each_other_and_nothing_else", "elastic", "Resources/EfaGroup/Condition", "HasGpus"),
    ("hosts_stand_close_together", "elastic", "Resources/ElasticWorkerLaunchTemplate/Properties/LaunchTemplateData/Placement", DELETE),
    ("hosts_stand_close_together", "cluster", "Resources/HostsPlacement/Properties/Strategy", "spread"),
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


def types_of_aws():
    """Returns the answer of DescribeInstanceTypes in moto."""
    with gzip.open(Path(moto.__file__).parent / "ec2/resources/instance_types.json.gz") as file:
        return json.load(file)


class Cards(unittest.TestCase):
    """Tests that each host has an adapter on each network card that AWS lists for its type."""

    def interfaces(self, which, **parameters):
        given = {**WITH_EFA, **parameters}
        self.assertEqual(refusals(TEMPLATES[which], given), [])
        found = {json.dumps([(c.get("NetworkCardIndex", 0), c["DeviceIndex"], c.get("InterfaceType", "interface")) for c in data["NetworkInterfaces"]])
                 for data in launch_templates(Stack(TEMPLATES[which], **given)).values()}
        self.assertEqual(len(found), 1)
        return [tuple(x) for x in json.loads(found.pop())]

    def test_every_type(self):
        types = types_of_aws()
        for which, most in (("cluster", 32), ("elastic", 8)):
            for name in ("p4d.24xlarge", "p4de.24xlarge", "p5.4xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge",
                         "p6-b300.48xlarge", "g5.xlarge", "c7a.large", "c8g.large"):
                network = types[name]["NetworkInfo"]
                cards, adapters = network["MaximumNetworkCards"], network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
                # The first network card of p6-b300 has no adapter.
                expected = [(0, 1, "efa-only")] * (adapters == cards) + [(card, 0, "efa-only") for card in range(1, cards)] if adapters else []
                found = self.interfaces(which, InstanceType=name)
                self.assertEqual(found, [(0, 0, "interface")] + [i for i in expected if i[0] < most], name)
                self.assertLessEqual(len(found), network["MaximumNetworkInterfaces"])
                if which == "cluster" and name.startswith("p"):
                    self.assertEqual(len(found) - 1, adapters, name)

    def test_no_adapter_unless_requested(self):
        for which in TEMPLATES:
            self.assertEqual(self.interfaces(which, InstanceType="p5.48xlarge", Efa="false"), [(0, 0, "interface")])

    def test_no_public_address_for_several_cards(self):
        ssh = {**WITH_EFA, "KeyName": "my-key", "SSHLocation": "203.0.113.7/32"}
        for template in TEMPLATES.values():
            said = refusals(template, ssh)
            self.assertEqual(len(said), 1)
            self.assertIn("gets no public address", said[0])
            self.assertEqual(refusals(template, {**ssh, "Efa": "false"}), [])
            self.assertEqual(refusals(template, {**ssh, "InstanceType": "g5.xlarge"}), [])


class Places(unittest.TestCase):
    def test_placement_group_only_if_aws_accepts_it(self):
        types = types_of_aws()
        for template in TEMPLATES.values():
            for name in ("t3.large", "c5.large", "c7a.xlarge", "g5.xlarge", "p4d.24xlarge", "m8i.large", "m7g.large"):
                takes = "cluster" in types[name]["PlacementGroupInfo"]["SupportedStrategies"]
                for asked in ("true", "false"):
                    stack = Stack(template, **{**WITH_EFA, "InstanceType": name, "PlacementGroup": asked})
                    self.assertEqual("HostsPlacement" in stack.resources, takes and asked == "true", name)
                    for data in launch_templates(stack).values():
                        self.assertEqual("Placement" in data, takes and asked == "true", name)


class Capacity(unittest.TestCase):
    ID = "cr-0123456789abcdef0"

    def test_capacity_block(self):
        for template in TEMPLATES.values():
            given = {**WITH_EFA, "PurchaseOption": "capacity-block", "CapacityReservationId": self.ID, "AvailabilityZone": "us-east-1b"}
            self.assertEqual(refusals(template, given), [])
            stack = Stack(template, **given)
            for data in launch_templates(stack).values():
                self.assertEqual(data["InstanceMarketOptions"], {"MarketType": "capacity-block"})
                self.assertEqual(data["CapacityReservationSpecification"], {"CapacityReservationTarget": {"CapacityReservationId": self.ID}})
                # A capacity block has its own place.
                self.assertNotIn("Placement", data)
            self.assertNotIn("HostsPlacement", stack.resources)
            self.assertIn("needs the CapacityReservationId", "".join(refusals(template, {**given, "CapacityReservationId": ""})))
            self.assertIn("needs the AvailabilityZone", "".join(refusals(template, {**given, "AvailabilityZone": ""})))

    def test_capacity_reservation(self):
        for template in TEMPLATES.values():
            given = {**WITH_EFA, "CapacityReservationId": self.ID, "AvailabilityZone": "us-east-1b"}
            self.assertEqual(refusals(template, given), [])
            for data in launch_templates(Stack(template, **given)).values():
                self.assertNotIn("InstanceMarketOptions", data)
                self.assertEqual(data["CapacityReservationSpecification"], {"CapacityReservationTarget": {"CapacityReservationId": self.ID}})
            self.assertIn("Spot instances cannot run", "".join(refusals(template, {**given, "PurchaseOption": "spot-workers"})))

    def test_spot_is_for_workers(self):
        for template in TEMPLATES.values():
            for name, data in launch_templates(Stack(template, **WITH_EFA, PurchaseOption="spot-workers")).items():
                self.assertEqual(data.get("InstanceMarketOptions"), None if name == "MasterLaunchTemplate" else {"MarketType": "spot"})
                self.assertNotIn("CapacityReservationSpecification", data)


if __name__ == "__main__":
    unittest.main()
