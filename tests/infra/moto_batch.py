# SPDX-License-Identifier: MIT
"""Models of AWS that infra/batch/batch.yaml needs and moto lacks: file systems, their repositories, key pairs and
multi-node jobs. They refuse the same requests as AWS."""
import re

import boto3
from resource_schemas import without_none
from fake_cloud import REGION, Model, Refused


def fsx_faults(p):
    """Returns the faults, as sentences, in the properties of an AWS::FSx::FileSystem by FSx's rules, without those that
    cfn-lint finds."""
    lustre = p.get("LustreConfiguration", {})
    kind, found = lustre.get("DeploymentType", "SCRATCH_1"), []
    throughput = {"PERSISTENT_1": ("50", "100", "200"), "PERSISTENT_2": ("125", "250", "500", "1000")}.get(kind)
    given = lustre.get("PerUnitStorageThroughput")
    if p.get("FileSystemType") != "LUSTRE":
        found.append("FileSystemType is LUSTRE")
    if kind not in ("SCRATCH_1", "SCRATCH_2", "PERSISTENT_1", "PERSISTENT_2"):
        found.append(f"no DeploymentType {kind}")
    if throughput is None and given is not None:
        found.append(f"PerUnitStorageThroughput is not for {kind}")
    if throughput is not None and str(given) not in throughput:
        found.append(f"PerUnitStorageThroughput of {kind} is {', '.join(throughput)}, not {given}")
    size = int(p.get("StorageCapacity", 0))
    if size != 1200 and (size <= 0 or size % (3600 if kind == "SCRATCH_1" else 2400)):
        found.append(f"StorageCapacity {size}")
    if kind == "PERSISTENT_2" or p.get("FileSystemTypeVersion", "2.15") != "2.10":
        for name in ("ImportPath", "ExportPath", "AutoImportPolicy", "ImportedFileChunkSize"):
            if name in lustre:
                found.append(f"{name} is not for a file system with associations")
    if len(p.get("SubnetIds", [])) != 1:
        found.append("one subnet")
    return found


def association_faults(associations):
    """Returns the faults in the properties of the associations of a file system."""
    found = []
    for i, a in enumerate(associations):
        if not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?", a["DataRepositoryPath"]):
            found.append(f"DataRepositoryPath {a['DataRepositoryPath']}")
        for policy in a.get("S3", {}).values():
            if not policy["Events"] or set(policy["Events"]) - {"NEW", "CHANGED", "DELETED"}:
                found.append(f"Events {policy['Events']}")
        for b in associations[:i]:
            for name in ("FileSystemPath", "DataRepositoryPath"):
                x, y = (c[name].rstrip("/") + "/" for c in (a, b))
                if x.startswith(y) or y.startswith(x):
                    found.append(f"{name} {x} and {y} overlap")
    return found


class FileSystem(Model):
    __module__ = Model.__module__
    TYPE = "AWS::FSx::FileSystem"
    REQUIRED = {"FileSystemType", "SubnetIds", "StorageCapacity", "LustreConfiguration"}
    OPTIONAL = {"FileSystemTypeVersion", "StorageType", "SecurityGroupIds", "Tags", "KmsKeyId"}
    ATTRIBUTES = {"LustreMountName": "abcdefgh", "DNSName": f"fs-0123456789abcdef0.fsx.{REGION}.amazonaws.com"}
    ASSOCIATIONS = []

    @staticmethod
    def cloudformation_type():
        return FileSystem.TYPE

    def identify(self, name):
        return "fs-0123456789abcdef0"

    def check(self):
        FileSystem.ASSOCIATIONS.clear()
        if fsx_faults(self.properties):
            raise Refused("; ".join(fsx_faults(self.properties)))


class DataRepositoryAssociation(Model):
    __module__ = Model.__module__
    TYPE = "AWS::FSx::DataRepositoryAssociation"
    REQUIRED = {"FileSystemId", "FileSystemPath", "DataRepositoryPath"}
    OPTIONAL = {"BatchImportMetaDataOnCreate", "ImportedFileChunkSize", "S3", "Tags"}

    @staticmethod
    def cloudformation_type():
        return DataRepositoryAssociation.TYPE

    def identify(self, name):
        return f"dra-{name}"

    def check(self):
        FileSystem.ASSOCIATIONS.append(self.properties)
        if association_faults(FileSystem.ASSOCIATIONS):
            raise Refused("; ".join(association_faults(FileSystem.ASSOCIATIONS)))


class KeyPair(Model):
    __module__ = Model.__module__
    TYPE, REQUIRED, OPTIONAL = "AWS::EC2::KeyPair", {"KeyName"}, {"KeyType", "KeyFormat", "PublicKeyMaterial", "Tags"}
    ATTRIBUTES = {"KeyPairId": "key-0123456789abcdef0"}

    @staticmethod
    def cloudformation_type():
        return KeyPair.TYPE

    def check(self):
        self.physical_resource_id = self.properties["KeyName"]


def job_faults(p):
    """Returns the faults in a job definition for several nodes or for one container."""
    found = []
    if p["Type"] == "container":
        nodes = {"MainNode": 0, "NumNodes": 1, "NodeRangeProperties": [{"Container": p["ContainerProperties"]}]}
    else:
        nodes = p["NodeProperties"]
    if p.get("PlatformCapabilities", ["EC2"]) != ["EC2"]:
        found.append("multi-node jobs run on EC2 alone")
    if not 0 <= int(nodes["MainNode"]) < int(nodes["NumNodes"]) <= 1000:
        found.append(f"main node {nodes['MainNode']} of {nodes['NumNodes']}")
    if len(p.get("RetryStrategy", {}).get("EvaluateOnExit", [])) > 5:
        found.append("five conditions of a retry at most")
    for group in nodes["NodeRangeProperties"]:
        c = group["Container"]
        kinds = [r["Type"] for r in c.get("ResourceRequirements", [])]
        if {"Vcpus", "Memory", "InstanceType"} & c.keys() or "VCPU" not in kinds or "MEMORY" not in kinds or len(set(kinds)) != len(kinds):
            found.append("processors and memory by ResourceRequirements, once")
        mounted, volumes = ({v[k] for v in c.get(n, [])} for n, k in (("MountPoints", "SourceVolume"), ("Volumes", "Name")))
        if mounted != volumes:
            found.append(f"volumes {volumes}, mounted {mounted}")
        if "SharedMemorySize" not in c.get("LinuxParameters", {}):
            found.append("no SharedMemorySize: /dev/shm would have 64 MiB")
        for word in c.get("Command", []):
            if word.startswith("Ref::") and word[5:] not in p.get("Parameters", {}):
                found.append(f"{word} is no parameter")
        if any(not isinstance(v.get("Value"), (str, int)) for v in c.get("Environment", [])):
            found.append("a variable without a value")
    return found


def lowered(v):
    """Returns a value with CloudFormation's names in the form of Batch's API, and with text numbers as numbers."""
    if isinstance(v, list):
        return [lowered(x) for x in v]
    if not isinstance(v, dict):
        return int(v) if isinstance(v, str) and v.lstrip("-").isdigit() else v
    text = ("Value", "OnExitCode", "Version")
    return {k[0].lower() + k[1:]: x if k in ("Parameters", "Options", "Tags") else str(x) if k in text else lowered(x)
            for k, x in v.items()}


class ComputeEnvironment(Model):
    """A compute environment that is made by Batch's API, because moto's CloudFormation requires a role, which Batch
    does not."""
    __module__ = Model.__module__
    TYPE, REQUIRED = "AWS::Batch::ComputeEnvironment", {"Type", "ComputeResources"}
    OPTIONAL = {"State", "ReplaceComputeEnvironment"}

    @staticmethod
    def cloudformation_type():
        return ComputeEnvironment.TYPE

    def check(self):
        role = boto3.client("iam").create_role(RoleName="AWSServiceRoleForBatch", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
        group = boto3.client("ec2", REGION).describe_security_groups()["SecurityGroups"][0]["GroupId"]
        made = boto3.client("batch", REGION).create_compute_environment(
            computeEnvironmentName="environment", type=self.properties["Type"], state=self.properties["State"], serviceRole=role,
            # With EFA the launch template has the groups, and moto does not read it.
            computeResources={"securityGroupIds": [group], **lowered(self.properties["ComputeResources"])})
        self.physical_resource_id = made["computeEnvironmentArn"]


class JobDefinition(Model):
    """A job that is registered by Batch's API in moto, because moto's CloudFormation makes every job one of a single
    container."""
    __module__ = Model.__module__
    TYPE, REQUIRED = "AWS::Batch::JobDefinition", {"Type", "JobDefinitionName"}
    OPTIONAL = {"NodeProperties", "ContainerProperties", "Parameters", "RetryStrategy", "Timeout"}

    @staticmethod
    def cloudformation_type():
        return JobDefinition.TYPE

    def check(self):
        self.properties = without_none(self.properties)
        if ("NodeProperties" in self.properties) == ("ContainerProperties" in self.properties) or job_faults(self.properties):
            raise Refused("; ".join(job_faults(self.properties)) or "nodes or a container")

        answer = boto3.client("batch", REGION).register_job_definition(
            **{**lowered(self.properties), "jobDefinitionName": self.properties["JobDefinitionName"]})
        self.physical_resource_id = answer["jobDefinitionArn"]


MODELS = [FileSystem, DataRepositoryAssociation, KeyPair, ComputeEnvironment, JobDefinition]
