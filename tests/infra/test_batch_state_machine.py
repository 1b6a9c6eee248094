#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the state machine of infra/batch/job.yaml with a failure in each step: no stack is left, and the result is that
of the job."""
import json
import re
import sys
import unittest
import unittest.mock
from pathlib import Path

try:
    import botocore  # noqa: F401
    import yaml  # noqa: F401
except ImportError as e:
    print(f"SKIP: no {e.name} (./test.sh installs tests/infra/requirements.txt)")
    sys.exit(77)

import state_machine
from state_machine import Execution, TaskError
from templates import changed, load

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = load(ROOT / "infra" / "batch" / "job.yaml")
CFN, FSX = "arn:aws:states:::aws-sdk:cloudformation:", "arn:aws:states:::aws-sdk:fsx:"
BATCH = "arn:aws:states:::aws-sdk:batch:"
INPUT = {"Parameters": [{"ParameterKey": "NumNodes", "ParameterValue": "2"}]}
SUBSTITUTIONS = {"Prefix": "tutti-job", "StackRole": "arn:aws:iam::123456789012:role/train-StackRole",
                 "TemplateUrl": "https://bucket.s3.us-east-1.amazonaws.com/batch.yaml"}
FILE_SYSTEM, TASK = "fs-0123456789abcdef0", "task-0123456789abcdef0"
LOST = TaskError("CloudFormation.SdkClientException", "connection reset")


def definition(template):
    properties = template["Resources"]["StateMachine"]["Properties"]
    text = json.dumps(properties["Definition"])
    assert set(re.findall(r"\$\{(\w+)\}", text)) == set(properties["DefinitionSubstitutions"])
    return json.loads(re.sub(r"\$\{(\w+)\}", lambda m: SUBSTITUTIONS[m[1]], text))


class Aws:
    """Stacks, a job and an export, as the state machine sees them. fail: for each call its results, each of which is an
    error, or `None` for the real answer. The last one is repeated. job: the status of the job at each check, of which
    the last one is repeated. terminated: the same for checks after the termination of the job."""

    def __init__(self, *, fail=None, job=("SUBMITTED", "STARTING", "RUNNING", "SUCCEEDED"), terminated=("RUNNING", "FAILED"), exports="SUCCEEDED", created="CREATE_COMPLETE", kept=0, foreign=False,
                 kind="multinode"):
        self.fail = {k: list(v) for k, v in (fail or {}).items()}
        self.job, self.terminated, self.reason, self.exports, self.created, self.kept = list(job), list(terminated), None, exports, created, kept
        self.stacks = {"tutti-job-run-1": ["CREATE_COMPLETE"]} if foreign else {}
        self.calls, self.exported_while, self.kind = [], None, kind

    def __call__(self, resource, p):
        name = resource.rsplit(":", 1)[1]
        self.calls.append((name, p))
        given = self.fail.get(name)
        if given:
            answer = given.pop(0) if len(given) > 1 else given[0]
            if isinstance(answer, TaskError):
                if name == "createStack" and answer is LOST:
                    self.create(p)  # the stack is created, but the answer is lost
                raise answer
        return {CFN + "createStack": self.create, CFN + "describeStacks": self.describe, CFN + "deleteStack": self.delete,
                CFN + "describeStackResource": self.describe_resource, BATCH + "submitJob": self.submit,
                BATCH + "describeJobDefinitions": self.describe_definition,
                BATCH + "describeJobs": self.describe_job, BATCH + "terminateJob": self.terminate,
                FSX + "createDataRepositoryTask": self.export,
                FSX + "describeDataRepositoryTasks": self.describe_export}[resource](p)

    def create(self, p):
        if p["StackName"] in self.stacks:
            raise TaskError("CloudFormation.AlreadyExistsException", "Stack already exists")
        assert p["Capabilities"] == ["CAPABILITY_IAM"] and p["TemplateURL"] == SUBSTITUTIONS["TemplateUrl"]
        assert p["RoleARN"] == SUBSTITUTIONS["StackRole"]
        self.stacks[p["StackName"]] = ["CREATE_IN_PROGRESS", "CREATE_IN_PROGRESS", *([self.created] if isinstance(self.created, str) else self.created)]
        return {"StackId": "arn"}

    def describe(self, p):
        states = self.stacks.get(p["StackName"])
        if not states:
            self.stacks.pop(p["StackName"], None)
            raise TaskError("CloudFormation.CloudFormationException", f"Stack with id {p['StackName']} does not exist (Status Code: 400)")
        state = states[0]
        if len(states) > 1 or state == "DELETE_IN_PROGRESS":
            states.pop(0)
        return {"Stacks": [{"StackStatus": state}]}

    def delete(self, p):
        if p["StackName"] in self.stacks:
            if self.kept:
                self.kept -= 1
                self.stacks[p["StackName"]] = ["DELETE_IN_PROGRESS", "DELETE_FAILED"]
            else:
                self.stacks[p["StackName"]] = ["DELETE_IN_PROGRESS", "DELETE_IN_PROGRESS"]
        return {}

    def describe_resource(self, p):
        assert p["LogicalResourceId"] == "FileSystem"
        return {"StackResourceDetail": {"PhysicalResourceId": FILE_SYSTEM}}

    def describe_definition(self, p):
        assert p == {"JobDefinitionName": "tutti-job-run-1", "Status": "ACTIVE"}
        return {"JobDefinitions": [{"JobDefinitionName": "tutti-job-run-1", "Type": self.kind}]}

    def submit(self, p):
        assert self.stacks[p["JobQueue"]] == ["CREATE_COMPLETE"] and p["JobDefinition"] == p["JobQueue"]
        if ("NodeOverrides" in p) != (self.kind == "multinode"):
            raise TaskError("Batch.ClientException", f"these overrides are not for a {self.kind} job")
        of_node = p["NodeOverrides"]["NodePropertyOverrides"][0] if "NodeOverrides" in p else p
        self.environment = of_node["ContainerOverrides"]["Environment"]
        return {"JobId": "job-7", "JobName": p["JobName"]}

    def describe_job(self, p):
        assert p == {"Jobs": ["job-7"]}
        job = {"JobId": "job-7", "JobName": "job", "Status": self.job[0]}
        if len(self.job) > 1:
            self.job.pop(0)
        if job["Status"] == "FAILED":
            job.update(StatusReason="Essential container in task exited", Attempts=[{"Container": {"ExitCode": 1}}, {"Container": {"ExitCode": 6}}])
        return {"Jobs": [job]}

    def terminate(self, p):
        assert p["JobId"] == "job-7"
        self.reason, self.job = p["Reason"], self.terminated
        return {}

    def export(self, p):
        assert p == {"FileSystemId": FILE_SYSTEM, "Type": "EXPORT_TO_REPOSITORY", "Paths": ["runs"], "Report": {"Enabled": False}}
        self.exported_while = list(self.stacks)
        self.lifecycles = ["PENDING", "EXECUTING", self.exports]
        return {"DataRepositoryTask": {"TaskId": TASK}}

    def describe_export(self, p):
        assert p == {"TaskIds": [TASK]}
        state = self.lifecycles[0]
        if len(self.lifecycles) > 1:
            self.lifecycles.pop(0)
        return {"DataRepositoryTasks": [{"Lifecycle": state}]}


def walk(aws, template=TEMPLATE, given=INPUT):
    return Execution(definition(template), aws, given)


class StateMachine(unittest.TestCase):
    def ends(self, aws, status, error=None, left=(), **options):
        run = walk(aws, **options)
        self.assertEqual((run.status, run.error), (status, error), f"{run.cause} {run.trail}")
        self.assertEqual(list(aws.stacks), list(left), run.trail)
        return run

    def names(self, aws):
        return [name for name, _ in aws.calls]

    def test_success(self):
        aws = Aws()
        given = {**INPUT, "Environment": [{"Name": "TUTTI_LR", "Value": "0.2"}]}
        run = self.ends(aws, "SUCCEEDED", given=given)
        self.assertEqual(aws.environment, given["Environment"])
        self.assertEqual(aws.calls[0][1]["Parameters"], INPUT["Parameters"])
        self.assertEqual(aws.exported_while, ["tutti-job-run-1"])
        names = self.names(aws)
        self.assertLess(names.index("submitJob"), names.index("createDataRepositoryTask"))
        self.assertLess(names.index("createDataRepositoryTask"), names.index("deleteStack"))
        self.assertLess(run.seconds, 4 * 120 + 400)  # four checks of the job's status

    def test_one_node(self):
        aws = Aws(kind="container")
        given = {**INPUT, "Environment": [{"Name": "TUTTI_LR", "Value": "0.2"}]}
        run = self.ends(aws, "SUCCEEDED", given=given)
        self.assertEqual(aws.environment, given["Environment"])
        self.assertIn("SubmitOneNode", run.trail)
        self.assertEqual(aws.exported_while, ["tutti-job-run-1"])
        aws = Aws(kind="container", fail={"submitJob": [LOST]})
        self.ends(aws, "FAILED", LOST.error)

    def test_failing_job(self):
        aws = Aws(job=["RUNNABLE", "FAILED"])
        run = self.ends(aws, "FAILED", "JobFailed")
        self.assertEqual(run.cause, 'Job job-7 failed with the reason ["Essential container in task exited"]; exit codes of its attempts [1,6].')
        self.assertIn("createDataRepositoryTask", self.names(aws))  # the files that the job saved are kept
        self.assertNotIn("terminateJob", self.names(aws))

    def test_time_limit(self):
        for limit, pace in ((60, 30), (21600, 30), (21601, 120), (86400, 120), (90000, 900), (700000, 3600), (2592000, 3600)):
            with self.subTest(limit):
                aws = Aws(job=["RUNNING"])
                run = self.ends(aws, "FAILED", "TimeLimitReached", given={**INPUT, "TimeLimitSeconds": limit})
                self.assertEqual(run.cause, "Job job-7 was in RUNNING when TimeLimitSeconds were over, and was terminated.")
                self.assertEqual((aws.reason, self.names(aws).count("terminateJob")), ("TimeLimitReached", 1))
                looks = self.names(aws).count("describeJobs") - len(("RUNNING", "FAILED"))
                self.assertEqual(looks, -(-limit // pace))
                # The job was stopped, then its results were exported, then its stack was deleted.
                order = [n for n in self.names(aws) if n in ("terminateJob", "createDataRepositoryTask", "deleteStack")]
                self.assertEqual(order, ["terminateJob", "createDataRepositoryTask", "deleteStack"])
        self.ends(Aws(job=["RUNNING"], terminated=["SUCCEEDED"]), "SUCCEEDED")  # the job ended just before
        self.ends(Aws(job=["RUNNING"], terminated=["RUNNING"]), "FAILED", "TimeLimitReached")  # the job does not stop

    def test_batch_does_not_answer(self):
        """If Batch does not answer for half an hour, the state machine stops the job. Otherwise the stack would cost
        money without an end."""
        lost = TaskError("Batch.ServerException", "internal error")
        aws = Aws(job=["RUNNING", "SUCCEEDED"], fail={"describeJobs": [lost] * 10 + [None]})
        self.ends(aws, "SUCCEEDED")
        aws = Aws(job=["RUNNING"], fail={"describeJobs": [lost] * 11 + [None]})
        run = self.ends(aws, "FAILED", "Batch.ServerException")
        self.assertEqual((aws.reason, run.cause), ("Batch.ServerException", "internal error"))
        self.assertGreater(run.seconds, 1800)
        self.ends(Aws(fail={"describeJobs": [lost]}), "FAILED", "Batch.ServerException")
        self.ends(Aws(job=["RUNNING"], fail={"terminateJob": [lost]}), "FAILED", "TimeLimitReached")

    def test_stack_that_is_not_created(self):
        aws = Aws(created="CREATE_FAILED")
        self.assertIn("CREATE_FAILED", self.ends(aws, "FAILED", "StackWasNotCreated").cause)
        self.assertNotIn("submitJob", self.names(aws))
        aws = Aws(created="CREATE_IN_PROGRESS")
        run = self.ends(aws, "FAILED", "StackWasNotCreated")
        self.assertLess(run.seconds, 3 * 3600)

    def test_refused_stack(self):
        refused = TaskError("CloudFormation.CloudFormationException", "Parameter NumNodes must be ...")
        self.assertEqual(self.ends(Aws(fail={"createStack": [refused]}), "FAILED", refused.error).cause, refused.cause)

    def test_stack_of_another_user(self):
        aws = Aws(foreign=True)
        self.ends(aws, "FAILED", "CloudFormation.AlreadyExistsException", left=["tutti-job-run-1"])
        self.assertNotIn("deleteStack", self.names(aws))

    def test_each_call_fails(self):
        names = {n for n in self.names_of_tasks()}
        self.assertEqual(len(names), 10)
        for name in names - {"deleteStack", "terminateJob"}:
            with self.subTest(name):
                aws = Aws(fail={name: [LOST]})
                if name == "describeStacks":
                    # The state machine cannot find out the state of the stack. It has deleted the stack, but reports
                    # that it may still exist.
                    run = walk(aws)
                    self.assertEqual((run.status, run.error), ("FAILED", "StackRemains"))
                    self.assertIn("deleteStack", self.names(aws))
                else:
                    self.ends(aws, "FAILED", LOST.error)

    def names_of_tasks(self):
        return [s["Resource"].rsplit(":", 1)[1] for s in definition(TEMPLATE)["States"].values() if s["Type"] == "Task"]

    def test_each_call_fails_for_a_while(self):
        for name in set(self.names_of_tasks()) - {"createStack", "submitJob"}:
            with self.subTest(name):
                self.ends(Aws(fail={name: [LOST, LOST, None]}), "SUCCEEDED")

    def test_answer_of_creation_is_lost(self):
        aws = Aws(fail={"createStack": [LOST]})
        self.ends(aws, "FAILED", LOST.error)
        self.assertIn("deleteStack", self.names(aws))

    def test_export(self):
        for state in ("FAILED", "CANCELED"):
            self.assertIn(state, self.ends(Aws(exports=state), "FAILED", "ResultsWereNotExported").cause)
        self.assertLess(self.ends(Aws(exports="EXECUTING"), "FAILED", "ResultsWereNotExported").seconds, 5 * 3600)
        # The failure of the job has precedence over the failure of the export.
        self.ends(Aws(exports="FAILED", job=["FAILED"]), "FAILED", "JobFailed")

    def test_stubborn_stack(self):
        self.ends(Aws(kept=3), "SUCCEEDED")
        aws = Aws(kept=10 ** 6)
        run = self.ends(aws, "FAILED", "StackRemains", left=["tutti-job-run-1"])
        self.assertIn("tutti-job-run-1", run.cause)
        self.ends(Aws(fail={"deleteStack": [LOST]}), "FAILED", "StackRemains", left=["tutti-job-run-1"])

    def test_input(self):
        self.ends(Aws(), "FAILED", "NoParameters", given={})
        aws = Aws()
        self.ends(aws, "FAILED", "NoParameters", given={"NumNodes": 3})
        self.assertEqual(aws.calls, [])

    def test_input_that_the_submission_cannot_use(self):
        """Bad input must be refused before a stack exists, because no Catch handles that error."""
        for name, values in (("TimeLimitSeconds", ("86400", 0, -1, 59.4, 2592001, 1e9, None, [60], True)),
                             ("Environment", ([{"name": "A", "value": "b"}], [{"Name": "A", "Value": 1}], [{"Name": "A"}], [7], ["A=b"], {"A": "b"},
                                              "A=b", None))):
            for value in values:
                with self.subTest(f"{name} {value!r}"):
                    aws = Aws()
                    run = walk(aws, given={**INPUT, name: value})
                    self.assertEqual((run.status, aws.calls), ("FAILED", []), run.trail)
                    self.assertIn(run.error, ("NoTimeLimit", "NoVariable", "States.Runtime"))
        aws = Aws(job=["SUCCEEDED"])
        self.ends(aws, "SUCCEEDED", given={**INPUT, "TimeLimitSeconds": 90.5, "Environment": [{"Name": "A", "Value": "b", "Type": "x"}]})
        self.assertEqual(aws.environment, [{"Name": "A", "Value": "b"}])

    def test_name_that_is_invalid_for_a_stack(self):
        wrong = TaskError("CloudFormation.CloudFormationException", "1 validation error detected: Value 'tutti-job-run_1' at 'stackName' "
                          "failed to satisfy constraint: Member must satisfy regular expression pattern")
        aws = Aws(fail={name: [wrong] for name in ("createStack", "deleteStack", "describeStacks")})
        run = self.ends(aws, "FAILED", wrong.error)
        self.assertEqual(run.cause, wrong.cause)
        self.assertLess(run.seconds, 300)

    def test_no_limit_that_would_skip_the_deletion(self):
        d = definition(TEMPLATE)
        self.assertNotIn("TimeoutSeconds", d)
        # Step Functions ends an execution after 25,000 events. Each loop runs to its limit here.
        for limit in (21600, 86400, 648000, 2592000):
            aws = Aws(created=["CREATE_IN_PROGRESS"] * 178 + ["CREATE_COMPLETE"], job=["RUNNING"], terminated=["RUNNING"], exports="EXECUTING",
                      kept=10 ** 6)
            run = self.ends(aws, "FAILED", "StackRemains", left=["tutti-job-run-1"], given={**INPUT, "TimeLimitSeconds": limit})
            self.assertGreater(run.events, 15000)  # shows that all loops have run
            self.assertLess(run.events, 25000)
            self.assertLess(run.seconds, 365 * 86400)
        # A retry of the submission would train a second time.
        self.assertNotIn("Retry", d["States"]["SubmitJob"])

    def test_broken_copies(self):
        states = "Resources/StateMachine/Properties/Definition/States"
        for path, value, aws in (
                ("SubmitJob/Catch/0/Next", "Failed", Aws(fail={"submitJob": [LOST]})),
                ("DescribeJob/Catch/0/Next", "Failed", Aws(fail={"describeJobs": [LOST]})),
                ("JobFailed/Next", "HowDidItEnd", Aws(job=["FAILED"])),
                ("TimeLimitReached/Next", "HowDidItEnd", Aws(job=["RUNNING"])),
                ("DescribeCreation/Catch", [], Aws(fail={"describeStacks": [LOST] * 6 + [None]})),
                ("Export/Catch/0/Next", "HowDidItEnd", Aws(fail={"createDataRepositoryTask": [LOST]})),
                ("CreateStack/Catch/1/Next", "Failed", Aws(fail={"createStack": [LOST]})),
                ("ExportFailed/Next", "HowDidItEnd", Aws(exports="FAILED")),
                ("IsJobFinished/Choices/0/Next", "HowDidItEnd", Aws())):
            with unittest.mock.patch.object(state_machine, "check_definition"):  # it would refuse states that are not
                                                                                 # reached
                run = walk(aws, changed(TEMPLATE, f"{states}/{path}", value))
            self.assertEqual((run.status is not None, list(aws.stacks)), (True, ["tutti-job-run-1"]), path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
