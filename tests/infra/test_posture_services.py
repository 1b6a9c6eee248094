#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Asks questions about the templates of the clusters: encryption, and the resources that are left after the deletion of
a stack."""
import json
import re
import unittest

from posture import of_type, Questions
from templates import DELETE

questions = Questions()


@questions.ask
def the_function_runs_on_a_supported_python(stack):
    for name, p in of_type(stack, "AWS::Lambda::Function").items():
        if p["Runtime"] not in ("python3.13", "python3.14") or (p.get("Timeout"), p.get("MemorySize")) != (60, 256):
            yield name


@questions.ask
def logs_do_not_stay_for_ever(stack):
    for name, p in of_type(stack, "AWS::Logs::LogGroup").items():
        if not p.get("RetentionInDays"):
            yield name
    for name, p in of_type(stack, "AWS::Lambda::Function").items():
        if p.get("LoggingConfig", {}).get("LogGroup") != "<ResourceMetadataLog>":
            yield name


@questions.ask
def queues_are_encrypted(stack):
    for name, p in of_type(stack, "AWS::SQS::Queue").items():
        if p.get("SqsManagedSseEnabled") is not True and "KmsMasterKeyId" not in p:
            yield name


@questions.ask
def a_new_file_system_is_encrypted(stack):
    for name, p in of_type(stack, "AWS::EFS::FileSystem").items():
        if p.get("Encrypted") is not True or p.get("PerformanceMode") != "generalPurpose":
            yield name


@questions.ask
def a_new_file_system_outlives_a_stack_that_was_created(stack):
    for name in of_type(stack, "AWS::EFS::FileSystem"):
        r = stack.resources[name]
        if (r.get("DeletionPolicy"), r.get("UpdateReplacePolicy")) != ("RetainExceptOnCreate", "Retain"):
            yield name
    if ("FileSystem" in stack.resources) == bool(stack.values["EFSFileSystemId"]):
        yield "FileSystem"


@questions.ask
def a_new_file_system_has_the_throughput_that_was_asked_for(stack):
    for name, p in of_type(stack, "AWS::EFS::FileSystem").items():
        if p.get("ThroughputMode") != stack.values["EFSThroughputMode"]:
            yield name


@questions.ask
def what_goes_with_the_stack_says_so(stack):
    for name, r in stack.resources.items():
        if r["Type"] in ("AWS::SQS::Queue", "AWS::Logs::LogGroup"):
            if {r.get(key) for key in ("DeletionPolicy", "UpdateReplacePolicy")} != {"Delete"}:
                yield name


@questions.ask
def it_works_in_every_region_and_partition(stack):
    for name, r in stack.template["Resources"].items():
        if re.search(r'arn:aws[^$]*?:|"[^"]*\b(us|eu|ap)-(east|west|central|south|north)[a-z]*-\d', json.dumps(r)):
            yield name


class Posture(questions.case([
    ("the_function_runs_on_a_supported_python", "cluster", "Resources/ResourceMetadataLambdaFunction/Properties/Runtime", "python3.10"),
    ("logs_do_not_stay_for_ever", "cluster", "Resources/ResourceMetadataLog/Properties/RetentionInDays", DELETE),
    ("logs_do_not_stay_for_ever", "cluster", "Resources/ResourceMetadataLambdaFunction/Properties/LoggingConfig", DELETE),
    ("queues_are_encrypted", "cluster", "Resources/WorkerQueue/Properties/SqsManagedSseEnabled", False),
    ("a_new_file_system_is_encrypted", "cluster", "Resources/FileSystem/Properties/Encrypted", DELETE),
    ("a_new_file_system_outlives_a_stack_that_was_created", "cluster", "Resources/FileSystem/DeletionPolicy", "Delete"),
    ("a_new_file_system_outlives_a_stack_that_was_created", "cluster", "Resources/FileSystem/DeletionPolicy", "Retain"),
    ("a_new_file_system_outlives_a_stack_that_was_created", "cluster", "Resources/FileSystem/Condition", DELETE),
    ("a_new_file_system_has_the_throughput_that_was_asked_for", "cluster", "Resources/FileSystem/Properties/ThroughputMode", DELETE),
    ("what_goes_with_the_stack_says_so", "cluster", "Resources/MasterQueue/DeletionPolicy", DELETE),
    ("it_works_in_every_region_and_partition", "cluster", "Resources/PrivateSubnet/Properties/AvailabilityZone", "us-east-1a"),
    ("it_works_in_every_region_and_partition", "cluster", "Resources/MasterRole/Properties/ManagedPolicyArns", ["arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"]),
])):
    pass


if __name__ == "__main__":
    unittest.main()
