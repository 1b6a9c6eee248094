#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests that each stand-in for a service of AWS refuses requests that the service's published model does not list. A
row has a wrong request and words of its refusal. Without the checks, no request is refused with these words."""
import contextlib
import functools
import http.client
import json
import sys
import unittest
import unittest.mock
from pathlib import Path

try:
    import boto3
    import yaml  # noqa: F401
    from botocore.config import Config
    from botocore.exceptions import ClientError
    from moto.server import ThreadedMotoServer  # noqa: F401
except ImportError as e:
    print(f"SKIP: no {e.name} (./test.sh installs tests/infra/requirements.txt)")
    sys.exit(77)

import aws_command
import cloud
import service_models
import states_language
import strict_moto
import test_batch_state_machine
from cloud import HANDLE_SECRET, TOKEN, Cloud
from service_models import Refusal
from fake_cloud import ARM_IMAGE, IMAGE, REGION, Refused, fake_services
from state_machine import Execution, TaskError
from templates import DELETE, changed

SIGNAL = {"Status": "FAILURE", "UniqueId": "u", "Reason": "r", "Data": "d"}
HANDLE = f"/handle?{HANDLE_SECRET}"


@functools.lru_cache(maxsize=None)
def client_of(service, endpoint):
    """Returns a client that does not check the parameters that it sends."""
    return boto3.client(service, REGION, endpoint_url=endpoint, config=Config(parameter_validation=False, retries={"total_max_attempts": 1}))


def http_refusal(url, method, path, headers=(), body=b"", length=True, chunked=False):
    connection = http.client.HTTPConnection(url.split("//")[1], timeout=60)
    with contextlib.closing(connection):
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in dict(headers).items():
            connection.putheader(name, value)
        if chunked:
            connection.putheader("Transfer-Encoding", "chunked")
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        elif length:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body if length or chunked else None)
        answer = connection.getresponse()
        text = answer.read().decode()
        return "taken" if answer.status < 300 else f"{answer.status} {text}"


# (service, operation, parameters, words of the refusal): botocore's own checks are off, so that the request is sent.
OF_SERVICES = [
    ("autoscaling", "set_desired_capacity", {"AutoScalingGroupName": "", "DesiredCapacity": 1}, "AutoScalingGroupName has 1 characters at least"),
    ("autoscaling", "suspend_processes", {"ScalingProcesses": ["Launch"]}, "missing parameter AutoScalingGroupName"),
    ("autoscaling", "set_desired_capacity", {"AutoScalingGroupName": "g", "DesiredCapacity": "many"}, "of another type"),
    ("autoscaling", "create_auto_scaling_group", {"AutoScalingGroupName": "g", "MinSize": 0}, "missing parameter MaxSize"),
    ("batch", "submit_job", {"jobName": "j", "jobQueue": "q"}, "missing parameter jobDefinition"),
    ("batch", "register_job_definition", {"jobDefinitionName": "d", "type": "cluster"}, "type is not one of container, multinode, but 'cluster'"),
    ("batch", "terminate_job", {"jobId": "j"}, "missing parameter reason"),
    ("batch", "create_job_queue", {"jobQueueName": "q", "priority": "high", "computeEnvironmentOrder": []}, "priority is no integer, but 'high'"),
    ("cloudformation", "signal_resource", {"StackName": "s", "LogicalResourceId": "r", "UniqueId": 65 * "u", "Status": "SUCCESS"},
     "UniqueId has 64 characters at most, not 65"),
    ("cloudformation", "signal_resource", {"StackName": "s", "LogicalResourceId": "r", "UniqueId": "u", "Status": "OK"}, "Status is not one of SUCCESS, FAILURE"),
    ("cloudformation", "create_stack", {"StackName": "s", "TemplateBody": ""}, "TemplateBody has 1 characters at least"),
    ("cloudformation", "create_stack", {"StackName": "s", "TemplateBody": "{}", "Capabilities": ["CAPABILITY_ALL"]}, "not one of CAPABILITY_IAM"),
    ("cloudformation", "describe_stack_resource", {"StackName": "s"}, "missing parameter LogicalResourceId"),
    ("ec2", "run_instances", {"ImageId": "ami-1", "InstanceType": "g5.tiny", "MinCount": 1, "MaxCount": 1}, "InstanceType is not one of"),
    ("ec2", "run_instances", {"ImageId": "ami-1", "MinCount": 1}, "missing parameter MaxCount"),
    ("ec2", "run_instances", {"ImageId": IMAGE, "InstanceType": "c8g.large", "MinCount": 1, "MaxCount": 1},
     "InvalidParameterValue.*The architecture 'arm64' of the specified instance type does not match the architecture 'x86_64' of the specified AMI"),
    ("ec2", "run_instances", {"ImageId": ARM_IMAGE, "InstanceType": "c7a.large", "MinCount": 1, "MaxCount": 1},
     "The architecture 'x86_64' of the specified instance type does not match the architecture 'arm64' of the specified AMI"),
    ("ec2", "create_tags", {"Resources": ["i-1"]}, "missing parameter Tags"),
    ("ec2", "run_instances", {"ImageId": "ami-1", "MinCount": "one", "MaxCount": 1}, "of another type"),
    ("efs", "create_mount_target", {"FileSystemId": "efs-1", "SubnetId": "subnet-0123456789abcdef0"}, "FileSystemId does not match"),
    ("efs", "create_file_system", {"CreationToken": "t", "ThroughputMode": "fast"}, "ThroughputMode is not one of bursting, provisioned, elastic"),
    ("fsx", "create_file_system", {"FileSystemType": "NTFS", "SubnetIds": ["subnet-0123456789abcdef0"]}, "FileSystemType is not one of WINDOWS, LUSTRE"),
    ("fsx", "create_data_repository_task", {"Type": "EXPORT_TO_REPOSITORY", "FileSystemId": "fs-0123456789abcdef0"}, "missing parameter Report"),
    ("iam", "create_role", {"RoleName": "a/b", "AssumeRolePolicyDocument": "{}"}, "RoleName does not match"),
    ("lambda", "create_function", {"FunctionName": "f", "Role": "arn:aws:iam::123456789012:role/r", "Code": {}, "Runtime": "python2.6"},
     "Runtime is not one of"),
    ("lambda", "invoke", {"FunctionName": "f", "InvocationType": "Later"}, "InvocationType is not one of Event, RequestResponse, DryRun"),
    ("logs", "create_log_group", {"logGroupName": "a b?"}, "logGroupName does not match"),
    ("s3", "put_object", {"Bucket": "b", "Key": "k", "ACL": "mine"}, "ACL is not one of private"),
    ("s3", "put_object", {"Bucket": "b", "Key": "k", "StorageClass": "FREE"}, "StorageClass is not one of"),
    ("secretsmanager", "get_secret_value", {"SecretId": ""}, "SecretId has 1 characters at least"),
    ("sns", "publish", {"TopicArn": "arn:aws:sns:us-east-1:123456789012:t"}, "missing parameter Message"),
    ("sqs", "send_message", {"QueueUrl": "http://localhost/1/q"}, "missing parameter MessageBody"),
    ("sqs", "receive_message", {"QueueUrl": "http://localhost/1/q", "MaxNumberOfMessages": "ten"}, "MaxNumberOfMessages is no integer, but 'ten'"),
    ("sqs", "get_queue_attributes", {"QueueUrl": "http://localhost/1/q", "AttributeNames": ["Length"]}, "is not one of All, Policy"),
    ("ssm", "put_parameter", {"Name": "/a", "Value": "v", "Type": "Secret"}, "Type is not one of String, StringList, SecureString"),
    ("stepfunctions", "create_state_machine", {"name": "", "definition": "{}", "roleArn": "arn:aws:iam::123456789012:role/r"}, "name has 1 characters at least")]

# (service, method, path, headers, body, words of the refusal): requests that no client of AWS would send.
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}
_JSON = {"Content-Type": "application/x-amz-json-1.0"}
OF_PROTOCOLS = [
    ("ec2", "POST", "/", _FORM, b"Action=DescribeInstances&Version=2016-11-15&InstanceIds=i-1", "unknown parameter InstanceIds"),
    ("ec2", "POST", "/", _FORM, b"Action=LaunchInstances&Version=2016-11-15", "there is no operation LaunchInstances"),
    ("ec2", "POST", "/", _FORM, b"Action=DescribeInstances&Version=2016-11-15&Filter.1.Name=a&Filter.1.Values=b", "unknown parameter Filter.1.Values"),
    ("autoscaling", "POST", "/", _FORM, b"Action=SetDesiredCapacity&Version=2011-01-01&AutoScalingGroupName=g&DesiredCapacity=1&Force=true",
     "unknown parameter Force"),
    ("cloudformation", "POST", "/", _FORM, b"Action=SignalResource&Version=2010-05-15&StackName=s&LogicalResourceId=r&UniqueId=u&Status=SUCCESS&Reason=x",
     "unknown parameter Reason"),
    ("sns", "POST", "/", _FORM, b"Action=Publish&Version=2010-03-31&TopicArn=t&Message=m&Priority=1", "unknown parameter Priority"),
    ("sqs", "POST", "/", {**_JSON, "X-Amz-Target": "AmazonSQS.SendMessage"}, b'{"QueueUrl": "q", "Body": "x"}', "unknown parameter Body"),
    ("sqs", "POST", "/", {**_JSON, "X-Amz-Target": "AmazonSQS.SendMessage"}, b'{"QueueUrl": "q", "MessageBody": 7}', "MessageBody is no string, but '7'"),
    ("sqs", "POST", "/", {**_JSON, "X-Amz-Target": "AmazonSQS.SendMessage"}, b'{"QueueUrl"', "the body is no JSON"),
    ("sqs", "POST", "/", {**_JSON, "X-Amz-Target": "AmazonSQS.PeekMessage"}, b"{}", "there is no operation PeekMessage"),
    ("ssm", "POST", "/", {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": "AmazonSSM.GetParameter"}, b'{"Name": "n", "Decrypt": true}',
     "unknown parameter Decrypt"),
    ("batch", "POST", "/v1/submitjob", {"Content-Type": "application/json"},
     b'{"jobName": "j", "jobQueue": "q", "jobDefinition": "d", "nodes": 4}', "unknown parameter nodes"),
    ("batch", "POST", "/v1/submitjob", {"Content-Type": "application/json"},
     b'{"jobName": "j", "jobQueue": "q", "jobDefinition": "d", "nodeOverrides": {"numNodes": "4"}}', "nodeOverrides.numNodes is no integer"),
    ("s3", "PUT", "/bucket/key", "chunked", b"a body", "501 .*NotImplemented"),
    ("s3", "PUT", "/bucket/key", "no length", b"", "411 .*MissingContentLength")]

# (method, path, headers, body, words of the refusal) for a host's metadata and for a stack's wait handle.
_TOKEN = {"X-aws-ec2-metadata-token": TOKEN}
_PUT = "/host/latest/api/token"
OF_HOSTS = [
    ("PUT", HANDLE, "chunked", SIGNAL, "501 .*NotImplemented"),
    ("PUT", HANDLE, "no length", "", "411 .*MissingContentLength"),
    ("PUT", HANDLE, {"Content-Type": "application/json"}, SIGNAL, "403 .*SignatureDoesNotMatch"),
    ("PUT", "/handle?Signature=another", {}, SIGNAL, "403 .*SignatureDoesNotMatch"),
    ("PUT", "/somewhere", {}, SIGNAL, "403 .*AccessDenied"),
    ("PUT", HANDLE, {}, "no JSON", "400 .*InvalidSignal"),
    ("PUT", HANDLE, {}, [SIGNAL], "400 .*a signal is an object"),
    ("PUT", HANDLE, {}, {**SIGNAL, "Status": "OK"}, "400 .*Status is SUCCESS or FAILURE"),
    ("PUT", HANDLE, {}, {**SIGNAL, "Why": "x"}, "400 .*unknown field Why"),
    ("PUT", HANDLE, {}, {k: v for k, v in SIGNAL.items() if k != "UniqueId"}, "400 .*UniqueId is missing"),
    ("PUT", HANDLE, {}, {**SIGNAL, "Data": 4097 * "d"}, "400 .*4096 characters at most"),
    ("PUT", _PUT, {}, "", "400 .*ttl-seconds is 1 to 21600"),
    ("PUT", _PUT, {"X-aws-ec2-metadata-token-ttl-seconds": "0"}, "", "400 .*ttl-seconds is 1 to 21600"),
    ("PUT", _PUT, {"X-aws-ec2-metadata-token-ttl-seconds": "21601"}, "", "400 .*ttl-seconds is 1 to 21600"),
    ("PUT", _PUT, {"X-aws-ec2-metadata-token-ttl-seconds": "60", "X-Forwarded-For": "10.0.0.1"}, "", "403 .*proxy"),
    ("GET", "/host/latest/meta-data/instance-id", {}, "", "401 .*no token"),
    ("GET", "/host/latest/meta-data/nothing", _TOKEN, "", "404 .*NotFound")]

MACHINE = {"StartAt": "A", "States": {
    "A": {"Type": "Pass", "Parameters": {"Seconds": 1}, "ResultPath": "$.B", "Next": "W"},
    "W": {"Type": "Wait", "Seconds": 1, "Next": "T"},
    "T": {"Type": "Task", "Resource": "arn:aws:states:::aws-sdk:batch:describeJobs", "Parameters": {"Jobs": ["j"]}, "ResultPath": None,
          "Retry": [{"ErrorEquals": ["States.ALL"], "IntervalSeconds": 1, "MaxAttempts": 1, "BackoffRate": 2}],
          "Catch": [{"ErrorEquals": ["States.ALL"], "Next": "F"}], "Next": "C"},
    "C": {"Type": "Choice", "Choices": [{"Variable": "$.B.Seconds", "NumericEquals": 1, "Next": "S"}], "Default": "F"},
    "F": {"Type": "Fail", "Error": "E", "CausePath": "States.Format('{}', $.B)"}, "S": {"Type": "Succeed"}}}
SYNC = "arn:aws:states:::batch:submitJob.sync"
JOB = {"JobName": "j", "JobQueue": "q", "JobDefinition": "d"}
# (path in MACHINE, another value, words of the refusal)
OF_DEFINITIONS = [
    ("Limit", 1, "unknown field Limit"),
    ("QueryLanguage", "SQL", "QueryLanguage is JSONPath here"),
    ("StartAt", "Z", "there is no state Z"),
    ("States/A/Next", DELETE, "either Next or End"),
    ("States/A/Next", "C", "no state leads to"),
    ("States/A/Type", "Loop", "there is no Type Loop"),
    ("States/A/Timeout", 1, "unknown field Timeout"),
    ("States/A/ResultPath", "$.B[*]", "is no reference path"),
    ("States/A/Parameters", {"Seconds.$": "B"}, "must be a path or an intrinsic function"),
    ("States/A/Parameters", {"Seconds.$": "States.MathMultiply($.B, 2)"}, "there is no function States.MathMultiply"),
    ("States/A/Parameters", {"Seconds.$": "States.MathAdd($.B)"}, "States.MathAdd takes 2 to 2 arguments, not 1"),
    ("States/A/Parameters", {"Seconds.$": "States.MathAdd($.B, 1"}, "does not end"),
    ("States/W/Seconds", 1.5, "Seconds is a whole number"),
    ("States/W/Timestamp", "2026-01-01T00:00:00Z", "one of Seconds, SecondsPath"),
    ("States/C/Choices/0/NumericEquals", "1", "NumericEquals of '1'"),
    ("States/C/Choices/0/NumericIs", 1, "a choice has one test"),
    ("States/C/Choices/0", {"Variable": "$.B", "NumericIs": 1, "Next": "S"}, "there is no test NumericIs"),
    ("States/C/Choices/0/Next", DELETE, "a choice needs a Next"),
    ("States/F/CausePath", "States.MathAdd(1, 2)", "there is no function States.MathAdd here"),
    ("States/F/ErrorPath", "$.B", "either Error or ErrorPath"),
    ("States/T/Retry/0/MaxAttempts", -1, "MaxAttempts of a Retry"),
    ("States/T/Retry/0/BackoffRate", 0.5, "BackoffRate is 1 at least"),
    ("States/T/Retry/0/Delay", 1, "unknown field Delay"),
    ("States/T/Retry/0/ErrorEquals", ["States.ALL", "X"], "States.ALL stands alone"),
    ("States/T/Catch/0/Retry", [], "unknown field Retry"),
    ("States/T/TimeoutSeconds", 0, "TimeoutSeconds is a whole number from 1"),
    ("States/T/Parameters/Queue", "q", "the field Queue is not supported by Step Functions"),
    ("States/T/Parameters", {"jobs": ["j"]}, "the field jobs is not supported by Step Functions"),
    ("States/T/Parameters", {}, "the field Jobs is required"),
    ("States/T/Resource", "arn:aws:states:::aws-sdk:batch:waitForJob", "batch has no operation WaitForJob"),
    ("States/T/Resource", "arn:aws:states:::aws-sdk:batches:describeJobs", "there is no service batches"),
    ("States/T/Resource", "arn:aws:states:::aws-sdk:batch:describeJobs.sync", "an integration of the SDK has no .sync"),
    ("States/T/Resource", "arn:aws:states:::batch:describeJobs", "not among the optimised integrations"),
    ("States/T/Resource", "describeJobs", "is no resource of a task"),
    ("States/T", {"Type": "Task", "Resource": SYNC, "Parameters": {**JOB, "NodeOverrides": {"NumNodes": 2}}, "Catch": MACHINE["States"]["T"]["Catch"], "Next": "C"},
     "the field NodeOverrides is not supported by Step Functions")]

# (resource, parameters when the task runs, words of the refusal)
_SDK = "arn:aws:states:::aws-sdk:"
OF_TASKS = [
    (SYNC, {**JOB, "NodeOverrides": {}}, r"does not support \['NodeOverrides'\]"),
    (_SDK + "batch:submitJob", {"JobName": "j", "JobQueue": "q"}, "missing parameter jobDefinition"),
    (_SDK + "batch:submitJob", {**JOB, "NodeOverrides": {"NodePropertyOverrides": [{"TargetNodes": "0:", "ContainerOverrides": {
        "Environment": [{"Name": "A", "Value": 1}]}}]}}, "Value|value.* is no string"),
    (_SDK + "batch:submitJob", {**JOB, "NodeOverrides": {"NodePropertyOverrides": [{"TargetNodes": "0:", "ContainerOverrides": {
        "Environment": {"A": "1"}}}]}}, "environment is no list"),
    (_SDK + "cloudformation:createStack", {"StackName": "s", "RoleARN": "role"}, "RoleARN has 20 characters at least"),
    (_SDK + "cloudformation:createStack", {"StackName": "s", "OnFailure": "WAIT"}, "OnFailure is not one of DO_NOTHING, ROLLBACK, DELETE"),
    (_SDK + "fsx:createDataRepositoryTask", {"FileSystemId": "1", "Type": "EXPORT_TO_REPOSITORY", "Report": {"Enabled": False}},
     "FileSystemId .* 11|FileSystemId does not match"),
    (_SDK + "fsx:describeDataRepositoryTasks", {"TaskIds": ["mine"]}, "TaskIds.*does not match|TaskIds.*at least")]
# (resource, an answer of the stand-in that the service could not give, words of the refusal)
OF_ANSWERS = [(_SDK + "batch:describeJobs", {"Jobs": [{"Status": "RUNNING", "State": "x"}]}, "DescribeJobs.Jobs has no State"),
              (_SDK + "batch:describeJobs", {"jobs": []}, "DescribeJobs has no jobs")]

# (command, words of the refusal)
OF_COMMANDS = [
    ("aws ec2 launch-instances --count 1", "aws ec2 has no launch-instances"),
    ("aws ec9 run-instances --count 1", "there is no service ec9"),
    ("aws ec2 run-instances --count 1 --template lt-1", "has no option --template"),
    ("aws ec2 run-instances --launch-template LaunchTemplateId=lt-1", "needs --max-count, --min-count"),
    ("aws ec2 run-instances --count 1 --launch-template Id=lt-1", "--launch-template has no Id"),
    ("aws ec2 run-instances --count 1 --instance-type g5.tiny", "--instance-type is not one of"),
    ("aws autoscaling set-desired-capacity --auto-scaling-group-name g --desired-capacity many", "--desired-capacity is a number"),
    ("aws cloudformation wait stack-created --stack-name s", "wait has no stack-created"),
    ("aws cloudformation delete-stack s", "'s' is no option"),
    ("aws s3 cp a s3://b/c --fast", "aws s3 cp has no option --fast"),
    ("aws efs delete-file-system --file-system-id efs-1", "--file-system-id does not match"),
    ("aws ssm start-session --target i-1 --region", "--region has 1 values, not 0")]

QUEUE = {"Type": "AWS::SQS::Queue"}
# (path in a template, another value, words of the refusal)
OF_TEMPLATES = [
    ("Resources/Queue/Properties/Name", "q", "'Name' was unexpected"),
    ("Resources/Queue/Properties/DelaySeconds", "soon", "'soon' is no integer"),
    ("Resources/Queue/Properties/SqsManagedSseEnabled", "yes", "'yes' is no boolean"),
    ("Resources/Queue/Properties/Tags", [{"Key": "a"}], "'Value' is a required property"),
    ("Resources/Queue/Properties/QueueUrl", "https://q", "QueueUrl is read-only"),
    ("Resources/Group", {"Type": "AWS::AutoScaling::AutoScalingGroup", "Properties": {"MinSize": "0"}}, "'MaxSize' is a required property"),
    ("Resources/Target", {"Type": "AWS::EFS::MountTarget", "Properties": {"SubnetId": "s"}}, "'FileSystemId' is a required property"),
    ("Resources/Definition", {"Type": "AWS::Batch::JobDefinition", "Properties": {"Type": "multinode", "Nodes": 4}}, "'Nodes' was unexpected"),
    ("Resources/Function", {"Type": "AWS::Lambda::Function", "Properties": {"Code": {"ZipFile": "x"}, "Role": "r", "Runtime": "python3.13",
                                                                           "Handler": "index.handler", "Timeout": 0}}, "0 is less than 1"),
    ("Resources/Queue/DependOn", "X", "there is no attribute DependOn"),
    ("Resources/Queue/DeletionPolicy", "Keep", "DeletionPolicy Keep is not one of Delete"),
    ("Resources/Queue/CreationPolicy", {"ResourceSignals": {"Count": 1}}, "CreationPolicy has no ResourceSignals"),
    ("Resource", {}, "there is no section Resource")]


class Refuses(unittest.TestCase):
    ROWS = 60

    @classmethod
    def setUpClass(cls):
        cls.cloud = Cloud()
        cls.addClassCleanup(cls.cloud.close)
        cls.cloud.web.add_host("host", "i-1", "10.0.0.1")

    def setUp(self):
        self.aws, self.count = None, 0

    def of_services(self, service, operation, parameters):
        try:
            getattr(client_of(service, self.cloud.endpoint), operation)(**parameters)
        except ClientError as e:
            return str(e)
        return "taken"

    def of_protocols(self, service, method, path, headers, body):
        scope = f"AWS4-HMAC-SHA256 Credential=key/20261125/{REGION}/{service}/aws4_request, SignedHeaders=host, Signature=0"
        more = {} if isinstance(headers, str) else headers
        return http_refusal(self.cloud.endpoint, method, path, {"Authorization": scope, **more}, body, length=headers != "no length",
                            chunked=headers == "chunked")

    def of_hosts(self, method, path, headers, body):
        body = (body if isinstance(body, str) else json.dumps(body)).encode()
        more = {} if isinstance(headers, str) else headers
        return http_refusal(self.cloud.web.url, method, path, more, body, length=headers != "no length" and method == "PUT",
                            chunked=headers == "chunked")

    def of_definitions(self, path, value):
        try:
            states_language.check_definition(changed(MACHINE, path, value))
        except Refusal as e:
            return str(e)
        return "taken"

    def execution(self, answer):
        run = Execution.__new__(Execution)
        run.call, run.trail = (lambda resource, parameters: answer), ["T"]
        return run

    def of_tasks(self, resource, parameters):
        try:
            self.execution({}).ask(resource, parameters)
        except (Refusal, TaskError) as e:
            return str(e)
        return "taken"

    def of_answers(self, resource, answer):
        try:
            self.execution(answer).ask(resource, {"Jobs": ["j"]})
        except Refusal as e:
            return str(e)
        return "taken"

    def of_commands(self, command):
        try:
            aws_command.check_command(command)
        except Refusal as e:
            return str(e)
        return "taken"

    def of_templates(self, path, value):
        if self.aws is None:
            self.aws = self.enterContext(fake_services())
        self.count += 1
        template = changed({"Parameters": {}, "Resources": {"Queue": {**QUEUE, "Properties": {"QueueName": f"q-{self.count}"}}}}, path, value)
        with unittest.mock.patch("fake_cloud.load", lambda _: template):
            try:
                self.aws.create(f"stack-{self.count}", Path("template"))
            except Refused as e:
                return str(e)
        return "taken"

    TABLES = {of_services: OF_SERVICES, of_protocols: OF_PROTOCOLS, of_hosts: OF_HOSTS, of_definitions: OF_DEFINITIONS, of_tasks: OF_TASKS,
              of_answers: OF_ANSWERS, of_commands: OF_COMMANDS, of_templates: OF_TEMPLATES}

    def rows(self):
        for ask, table in self.TABLES.items():
            for row in table:
                yield ask, row[:-1], row[-1]

    def test_every_wrong_request_is_refused(self):
        count = 0
        for ask, request, words in self.rows():
            with self.subTest(ask.__name__, request=str(request)[:200]):
                self.assertRegex(ask(self, *request), f"(?s){words}")
            count += 1
        print(count, "wrong requests")
        self.assertGreaterEqual(count, self.ROWS)

    def test_checks_cause_the_refusals(self):
        def take(handler, *_):
            handler.answer(200)
        with contextlib.ExitStack() as patches:
            for owner, name, value in ((strict_moto, "check_request", lambda *_: None), (strict_moto, "processor_fault", lambda *_: None), (cloud.Handler, "refuse", take),
                                       (service_models, "shape_faults", lambda *_: []), (states_language.Checker, "fault", lambda *_: None),
                                       (aws_command, "check_command", lambda *_: None)):
                patches.enter_context(unittest.mock.patch.object(owner, name, value))
            patches.enter_context(unittest.mock.patch("fake_cloud.check_resource", lambda *_: None))
            patches.enter_context(unittest.mock.patch("fake_cloud.check_template", lambda *_: None))
            patches.enter_context(unittest.mock.patch("state_machine.task_shape", lambda r: states_language.task_shape(r) if "aws-sdk" in r else {*JOB, "NodeOverrides"}))
            patches.enter_context(unittest.mock.patch("state_machine.check_answer", lambda *_: None))
            for ask, request, words in self.rows():
                with self.subTest(ask.__name__, request=str(request)[:200]):
                    try:
                        said = ask(self, *request)
                    except Exception as e:  # the result of a request without checks
                        said = f"taken, and then {type(e).__name__}"
                    self.assertNotRegex(said, f"(?s){words}")

    def test_right_requests_are_accepted(self):
        """Tests that the requests are accepted without their mistakes, so the mistakes are what is refused above."""
        for service, operation, parameters in (
                ("sqs", "create_queue", {"QueueName": "right"}), ("s3", "create_bucket", {"Bucket": "bucket"}),
                ("ec2", "describe_instances", {"Filters": [{"Name": "instance-state-name", "Values": ["running"]}]}),
                ("s3", "put_object", {"Bucket": "bucket", "Key": "k", "Body": b"x"}),
                ("ec2", "run_instances", {"ImageId": ARM_IMAGE, "InstanceType": "c8g.large", "MinCount": 1, "MaxCount": 1}), ("batch", "describe_jobs", {"jobs": ["j"]})):
            self.assertEqual(self.of_services(service, operation, parameters), "taken")
        self.assertEqual(self.of_hosts("PUT", HANDLE, {}, SIGNAL), "taken")
        self.assertEqual(self.of_hosts("PUT", _PUT, {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, ""), "taken")
        self.assertEqual(self.of_hosts("GET", "/host/latest/meta-data/instance-id", _TOKEN, ""), "taken")
        states_language.check_definition(MACHINE)
        states_language.check_definition(test_batch_state_machine.definition(test_batch_state_machine.TEMPLATE))
        self.assertEqual(self.of_tasks(_SDK + "batch:submitJob", JOB), "taken")
        self.assertEqual(self.of_templates("Resources/Queue/Properties/DelaySeconds", "5"), "taken")


if __name__ == "__main__":
    unittest.main(verbosity=2)
