# SPDX-License-Identifier: MIT
"""Rules for stacks of infra/batch/batch.yaml and job.yaml that cfn-lint does not check. Each check_ function returns a list
of faults, empty if the stack follows its rules."""
import re

import moto_batch


def container_of(stack):
    p = stack.resources["JobDefinition"]["Properties"]
    return p["ContainerProperties"] if p["Type"] == "container" else p["NodeProperties"]["NodeRangeProperties"][0]["Container"]


def statements(stack):
    """Returns each role with all its statements."""
    for name, r in stack.resources.items():
        if r["Type"] == "AWS::IAM::Role":
            for policy in r["Properties"].get("Policies", []):
                for s in policy["PolicyDocument"]["Statement"]:
                    yield name, s
        elif r["Type"] == "AWS::IAM::Policy":
            for s in r["Properties"]["PolicyDocument"]["Statement"]:
                yield r["Properties"]["Roles"][0].strip("<>"), s


def as_list(v):
    return v if isinstance(v, list) else [v]


def check_file_system(stack):
    found = moto_batch.fsx_faults(stack.resources["FileSystem"]["Properties"])
    found += moto_batch.association_faults([r["Properties"] for r in stack.resources.values()
                                            if r["Type"] == "AWS::FSx::DataRepositoryAssociation"])
    runs = stack.resources["RunsAssociation"]["Properties"]
    if "NEW" not in runs["S3"].get("AutoExportPolicy", {}).get("Events", []):
        found.append("what a run writes is not exported")
    if "AutoExportPolicy" in stack.resources["DataAssociation"]["Properties"]["S3"]:
        found.append("the data set is written to")
    if stack.resources["FileSystem"].get("DeletionPolicy") != "Delete":
        found.append("the file system stays")
    return found


def check_network(stack):
    found, group = [], "<SecurityGroup.GroupId>"
    own = stack.resources["SecurityGroup"]["Properties"]
    if own.get("SecurityGroupIngress"):
        found.append("somebody outside gets in")
    if any((e["FromPort"], e["ToPort"], e["IpProtocol"]) != (443, 443, "tcp") for e in own["SecurityGroupEgress"]):
        found.append("outwards only by HTTPS")
    for name, other in (("IngressFromNodes", "SourceSecurityGroupId"), ("EgressToNodes", "DestinationSecurityGroupId")):
        p = stack.resources[name]["Properties"]
        if (p["GroupId"], p.get(other), p["IpProtocol"]) != (group, group, "-1"):
            found.append(f"{name}: everything among the nodes")
    return found


def check_nodes(stack):
    found, c = [], stack.resources["ComputeEnvironment"]["Properties"]
    r, data = c["ComputeResources"], stack.resources["LaunchTemplate"]["Properties"]["LaunchTemplateData"]
    spot = stack.values["PurchaseOption"] == "spot"
    if (r["Type"], c["Type"]) != ("SPOT" if spot else "EC2", "MANAGED") or (spot and r["AllocationStrategy"] != "SPOT_CAPACITY_OPTIMIZED"):
        found.append("multi-node jobs run on On-Demand instances of a managed environment, and one node on Spot where it was asked for")
    # A single node needs no placement group, and a capacity reservation has its own place.
    close = not spot and not stack.values["CapacityReservationId"]
    if ("PlacementGroup" in stack.resources, r.get("PlacementGroup")) != (close, "<PlacementGroup>" if close else None):
        found.append("one placement group")
    if close and stack.resources["PlacementGroup"]["Properties"]["Strategy"] != "cluster":
        found.append("one placement group")
    target = {"CapacityReservationTarget": {"CapacityReservationId": stack.values["CapacityReservationId"]}} if stack.values["CapacityReservationId"] else None
    block = {"MarketType": "capacity-block"} if stack.values["PurchaseOption"] == "capacity-block" else None
    if (data.get("CapacityReservationSpecification"), data.get("InstanceMarketOptions")) != (target, block):
        found.append("the reservation")
    if len(r["Subnets"]) != 1:
        found.append("one zone")
    if (r["MinvCpus"], r["DesiredvCpus"]) != (0, 0):
        found.append("idle instances")
    if data["MetadataOptions"]["HttpTokens"] != "required" or data["MetadataOptions"]["HttpPutResponseHopLimit"] != 1:
        found.append("instance metadata without a token")
    if not all(b["Ebs"]["Encrypted"] for b in data["BlockDeviceMappings"]):
        found.append("a disk in clear")
    efa = [i for i in data.get("NetworkInterfaces", []) if i["InterfaceType"].startswith("efa")]
    container = container_of(stack)
    # With EFA the interface has the groups, otherwise the environment. AWS refuses groups in both.
    if bool(efa) != (stack.values["Efa"] == "true") or bool(efa) == ("SecurityGroupIds" in r):
        found.append("groups in two places, or in no place")
    devices = [d["HostPath"] for d in container.get("LinuxParameters", {}).get("Devices", [])]
    if devices != [f"/dev/infiniband/uverbs{i}" for i in range(len(efa))]:
        found.append("a device for each adapter")
    gpus = stack.template["Mappings"]["Instances"][stack.values["InstanceType"]]["Gpus"]
    image = r["Ec2Configuration"][0]["ImageType"]
    given = [q["Value"] for q in container["ResourceRequirements"] if q["Type"] == "GPU"]
    if (image, given) != (("ECS_AL2023_NVIDIA", [gpus]) if gpus != "0" else ("ECS_AL2023", [])):
        found.append("image and GPUs")
    return found


def check_job(stack):
    p = stack.resources["JobDefinition"]["Properties"]
    found, c = moto_batch.job_faults(p), container_of(stack)
    one = p["Type"] == "container"
    if one != (stack.values["PurchaseOption"] == "spot") or one == ("NodeProperties" in p):
        found.append("one container on Spot, nodes elsewhere")
    if not one and p["NodeProperties"]["NodeRangeProperties"][0]["TargetNodes"] != "0:":
        found.append("all nodes")
    if c["Command"][:3 + one] != ["--one-node"] * one + ["--key", "Ref::SshKey", "--"]:
        found.append("the key by a parameter")
    variables = {v["Name"]: v["Value"] for v in c["Environment"]}
    if (variables.get("JOB_DIR"), variables.get("RUNS_DIR"), variables.get("SCRATCH_DIR")) != ("/fsx/data", "/fsx/runs", "/scratch"):
        found.append("folders")
    if any(re.search("(?i)secret|password|private|key", v) for v in variables):
        found.append("a secret in the job's definition")
    first, *others = p["RetryStrategy"]["EvaluateOnExit"]
    if first != {"OnStatusReason": "Host EC2*", "Action": "RETRY"}:
        found.append("an instance that AWS takes away is no fault of the job, whatever code its end had")
    ends = {e["OnExitCode"] for e in others if e["Action"] == "EXIT"}
    if not {"2", "3", "6"} <= ends:
        found.append("errors that the same start repeats are tried again")
    actions = stack.resources["JobQueue"]["Properties"].get("JobStateTimeLimitActions", [])
    if {(a["State"], a["Action"], str(a["MaxTimeSeconds"]), a["Reason"]) for a in actions} != {
            ("RUNNABLE", "CANCEL", stack.values["RunnableSeconds"], reason) for reason in REASONS}:
        found.append("a job that can never run waits for its time limit")
    if c.get("Privileged") or c.get("User"):
        found.append("more rights than it needs")
    if not any(u["Name"] == "memlock" and u["HardLimit"] == -1 for u in c["Ulimits"]):
        found.append("memory that is not locked")
    return found


# Reasons for which Batch cancels a waiting job:
# https://docs.aws.amazon.com/batch/latest/userguide/job_stuck_in_runnable.html
REASONS = ("CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY", "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE",
           "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT")


def check_roles(stack):
    found = []
    looks = re.compile(r"[a-z0-9]+:(Describe|List)\w+$")
    sessions = {"ssm:UpdateInstanceInformation", "ssmmessages:CreateControlChannel", "ssmmessages:CreateDataChannel",
                "ssmmessages:OpenControlChannel", "ssmmessages:OpenDataChannel"}
    deliveries = {"logs:CreateLogDelivery", "logs:GetLogDelivery", "logs:UpdateLogDelivery", "logs:DeleteLogDelivery",
                  "logs:ListLogDeliveries", "logs:PutResourcePolicy", "logs:DescribeResourcePolicies", "logs:DescribeLogGroups"}
    for role, s in statements(stack):
        actions = as_list(s["Action"])
        if any("*" in a for a in actions):
            found.append(f"{role}: {actions}")
        if "*" in as_list(s["Resource"]) and not all(looks.match(a) or a in deliveries | sessions for a in actions):
            found.append(f"{role}: {actions} on everything")
        if "iam:PassRole" in actions and "iam:PassedToService" not in str(s.get("Condition")):
            found.append(f"{role} passes roles to whomever")
        if any(a.startswith("iam:") for a in actions) and any(x.endswith(":role/*") for x in as_list(s["Resource"])):
            found.append(f"{role}: any role")
        if "iam:AttachRolePolicy" in actions and "iam:PolicyARN" not in str(s.get("Condition")) and "aws-service-role" not in str(s["Resource"]):
            found.append(f"{role} attaches any policy")
    return found
