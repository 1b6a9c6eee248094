#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Extracts the function of the templates and runs it against stacks in moto with the events of Auto Scaling: launches, failures,
and repeated, late, foreign and invalid events."""
import datetime
import functools
import itertools
import json
import os
import random
import types
import unittest
import unittest.mock

import boto3
from moto.autoscaling.models import autoscaling_backends

from auto_scaling_events import LAUNCH, LAUNCH_ERROR, REFUSALS, TERMINATE, TERMINATE_ERROR, TEST, TRANSIENT
from service_models import check
from fake_cloud import ACCOUNT, REGION, fake_services
from templates import INFRA, load

TEMPLATE = INFRA / "cloudformation/cluster.yaml"
stack = None


def setUpModule():
    global stack
    opened = fake_services()
    aws = opened.__enter__()
    unittest.addModuleCleanup(opened.__exit__, None, None, None)
    stack = aws.create("train", TEMPLATE, WorkerCount=4, TuttiPackage="tutti.tar")


@functools.lru_cache
def client_of(service):
    """Returns a client, which is stored, because it takes a tenth of a second to make one."""
    return boto3.client(service, REGION)


class Boto:
    """boto3 for the function: the services of moto, and stand-ins for activities of groups and for signals, which moto
    lacks."""

    def __init__(self):
        self.activities, self.signals, self.fails, self.changes = [], [], False, []

    def client(self, service):
        overridden = {"cloudformation": {"signal_resource": self.signal_resource},
                      "autoscaling": {"describe_scaling_activities": self.describe_scaling_activities,
                                      "set_desired_capacity": self.set_desired_capacity}}
        return Client(client_of(service), overridden.get(service, {}))

    def signal_resource(self, **arguments):
        check("cloudformation", "SignalResource", arguments)
        if self.fails:
            raise RuntimeError("ValidationError: the stack is complete")
        self.signals.append(arguments)

    def describe_scaling_activities(self, **arguments):
        check("autoscaling", "DescribeScalingActivities", arguments)
        return {"Activities": self.activities}

    def set_desired_capacity(self, **arguments):
        check("autoscaling", "SetDesiredCapacity", arguments)
        self.changes.append(arguments["DesiredCapacity"])
        return client_of("autoscaling").set_desired_capacity(**arguments)


class Client:
    def __init__(self, real, overridden):
        self.real, self.overridden = real, overridden

    def __getattr__(self, name):
        return self.overridden.get(name) or getattr(self.real, name)


class Function(unittest.TestCase):
    def setUp(self):
        self.stack, self.boto = stack, Boto()
        function = load(TEMPLATE)["Resources"]["ResourceMetadataLambdaFunction"]["Properties"]
        self.assertEqual(function["Handler"], "index.lambda_handler")
        variables = boto3.client("lambda", REGION).get_function_configuration(
            FunctionName=self.stack.resources["ResourceMetadataLambdaFunction"])["Environment"]["Variables"]
        patched = unittest.mock.patch.dict(os.environ, variables)
        patched.start()
        self.addCleanup(patched.stop)
        self.index = types.ModuleType("index")
        exec(compile(function["Code"]["ZipFile"], "index.py", "exec"), self.index.__dict__)
        self.index.boto3 = self.boto
        self.names = {role: self.stack.outputs[f"{role}AutoScalingGroup"] for role in ("Master", "Worker")}
        self.groups = {role: autoscaling_backends[ACCOUNT][REGION].autoscaling_groups[name] for role, name in self.names.items()}
        self.states = {role: list(group.instance_states) for role, group in self.groups.items()}
        self.sent()

    def tearDown(self):
        for role, group in self.groups.items():
            for state in self.states[role]:
                state.lifecycle_state, state.health_status = "InService", "Healthy"
            group.instance_states, group.suspended_processes = self.states[role], []
            group.desired_capacity, group.min_size = (4, 0) if role == "Worker" else (1, 1)

    def launched(self, role, count, pending=0):
        """Sets the number of instances of a group that are in service (`count`) and that start (`pending`)."""
        self.groups[role].instance_states = self.states[role][:count + pending]
        for state in self.groups[role].instance_states[count:]:
            state.lifecycle_state = "Pending"

    def event(self, message, role="Worker", group=None, instance="i-0123456789abcdef0", activity="a-1"):
        text = message
        if isinstance(message, str):
            text = message.replace("GROUP", self.names[role] if group is None else group).replace("INSTANCE\"", f"{instance}\"").replace("ACTIVITY", activity)
        return {"Records": [{"EventSource": "aws:sns", "EventVersion": "1.0", "EventSubscriptionArn": "arn:aws:sns:us-east-1:1:t:s",
                             "Sns": {"Type": "Notification", "MessageId": "m-1", "TopicArn": "arn:aws:sns:us-east-1:1:t",
                                     "Subject": "Auto Scaling", "Message": text, "MessageAttributes": {}}}]}

    def send(self, *arguments, **named):
        self.index.lambda_handler(self.event(*arguments, **named), None)

    def sent(self):
        client, found = client_of("sqs"), []
        while messages := client.receive_message(QueueUrl=self.stack.resources["MasterQueue"], MaxNumberOfMessages=10).get("Messages"):
            for message in messages:
                found.append(json.loads(message["Body"]))
                client.delete_message(QueueUrl=self.stack.resources["MasterQueue"], ReceiptHandle=message["ReceiptHandle"])
        return found

    def setup(self, role, desired, launched):
        low, high = (1, 1) if role == "Master" else (0, 4)
        return {"event": "asg-setup", "status": "success", "asg": self.names[role], "min": low, "desired": desired, "max": high,
                "launched": launched}

    def suspended(self, role):
        return [p["ProcessName"] for p in self.groups[role].suspended_processes]

    def nothing_happened(self):
        self.assertEqual((self.sent(), self.boto.signals, self.boto.changes), ([], [], []))
        self.assertEqual((self.suspended("Worker"), self.suspended("Master")), ([], []))

    def test_the_master_is_launched(self):
        self.send(LAUNCH, "Master", instance="i-master")
        self.assertEqual(self.sent(), [self.setup("Master", 1, 1)])
        self.assertEqual(self.boto.signals, [{"StackName": self.stack.name, "LogicalResourceId": "MasterAutoScalingGroup",
                                              "UniqueId": "i-master", "Status": "SUCCESS"}])
        self.assertEqual(self.suspended("Master"), [])

    def test_unexpected_signal_is_no_failure(self):
        self.boto.fails = True
        self.send(LAUNCH, "Master")
        self.assertEqual(self.sent(), [self.setup("Master", 1, 1)])

    def test_all_workers_are_launched(self):
        for count in (1, 2, 3):
            self.launched("Worker", count)
            self.send(LAUNCH)
        self.nothing_happened()
        self.launched("Worker", 3, pending=1)
        self.send(LAUNCH)
        self.assertEqual(self.sent(), [self.setup("Worker", 4, 4)])
        self.assertEqual((self.suspended("Worker"), self.boto.signals), (["ReplaceUnhealthy"], []))

    def test_worker_that_cannot_be_launched(self):
        self.launched("Worker", 2, pending=1)
        self.send(LAUNCH_ERROR)
        self.assertEqual(self.boto.changes, [3])
        self.assertEqual(self.groups["Worker"].desired_capacity, 3)
        self.assertEqual(self.sent(), [self.setup("Worker", 4, 3)])
        self.assertEqual(self.suspended("Worker"), ["ReplaceUnhealthy"])

    def test_no_worker_can_be_launched(self):
        self.launched("Worker", 0)
        self.send(LAUNCH_ERROR)
        self.assertEqual((self.groups["Worker"].desired_capacity, self.sent()), (0, [self.setup("Worker", 4, 0)]))

    def test_group_never_shrinks_below_its_minimum(self):
        self.groups["Worker"].min_size = 3
        self.launched("Worker", 2)
        self.send(LAUNCH_ERROR)
        self.nothing_happened()
        self.assertEqual(self.groups["Worker"].desired_capacity, 4)

    def refused(self, message):
        """Sends the event of a launch of the master that EC2 refuses with this message."""
        self.launched("Master", 0)
        self.send(LAUNCH_ERROR.replace('"StatusMessage":"There is no capacity."', f'"StatusMessage":{json.dumps(message)}'), "Master")

    def test_refused_launch_of_the_master_is_reported_to_the_stack(self):
        for message, words in REFUSALS.items():
            with self.subTest(message):
                self.boto.signals.clear()
                self.refused(message)
                self.assertEqual(self.boto.signals, [{"StackName": self.stack.name, "LogicalResourceId": "MasterAutoScalingGroup",
                                                      "UniqueId": words, "Status": "FAILURE"}])
        self.assertEqual((self.sent(), self.boto.changes), ([], []))
        self.assertEqual(self.groups["Master"].desired_capacity, 1)

    def test_group_retries_temporary_failures(self):
        """Within the first minutes the group retries. If the launches still fail, the stack gets a signal of the last
        failure before its time-out."""
        begin = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
        for message, words in TRANSIENT.items():
            with self.subTest(message):
                self.boto.signals.clear()
                for seconds in (0, 100, 299):
                    self.boto.activities = [{"ActivityId": f"a-{n}", "StatusCode": "Failed", "StartTime": begin + datetime.timedelta(seconds=n),
                                             "Description": "Launching a new EC2 instance."} for n in (seconds, 0)]
                    self.refused(message)
                self.nothing_happened()
                self.boto.activities[0]["StartTime"] = begin + datetime.timedelta(seconds=300)
                self.refused(message)
                self.assertEqual([(s["Status"], s["UniqueId"]) for s in self.boto.signals], [("FAILURE", words)])

    def test_refused_launch_of_a_worker_is_not_reported_to_the_stack(self):
        self.launched("Worker", 2)
        self.send(LAUNCH_ERROR.replace("There is no capacity.", next(iter(REFUSALS))))
        self.assertEqual((self.boto.signals, self.boto.changes), ([], [2]))

    def test_texts_that_are_invalid_in_a_signal(self):
        """A signal's reason has only valid characters, and an id of 1 to 64 characters."""
        for message in ("vCPU limit \u2603\x00\n" + 100 * "x", "\u2603 vCPU limit"):
            self.refused(message)
        self.assertEqual([s["UniqueId"] for s in self.boto.signals], ["vCPU limit " + 53 * "x", "vCPU limit"])
        self.launched("Master", 0)
        for text in ("null", "7", "{}", '""'):
            self.send(LAUNCH_ERROR.replace('"StatusMessage":"There is no capacity."', f'"StatusMessage":{text}'), "Master")
        self.assertEqual(len(self.boto.signals), 2)

    def test_stack_that_accepts_no_signal(self):
        self.boto.fails = True
        self.refused(next(iter(REFUSALS)))
        self.nothing_happened()

    def test_unhealthy_instances_do_not_count(self):
        one, two = self.states["Worker"][:2]
        one.health_status = "Unhealthy"
        self.send(LAUNCH)
        one.health_status, two.lifecycle_state = "Healthy", "Terminating"
        self.send(LAUNCH)
        self.nothing_happened()

    def test_failure_waits_for_other_launches(self):
        """At this moment the list of the group does not contain the instances that Auto Scaling is starting."""
        self.launched("Worker", 1)
        one = self.states["Worker"][0].instance.id
        going = {"ActivityId": "a-2", "StatusCode": "InProgress", "Description": "Launching a new EC2 instance: i-0aaaaaaaaaaaaaaaa"}
        self.boto.activities = [going]
        self.send(LAUNCH_ERROR)
        self.nothing_happened()
        for no_matter in ({**going, "ActivityId": "a-1"}, {**going, "StatusCode": "Failed"}, {**going, "Description": "Terminating EC2 instance: i-1"},
                          {**going, "Description": f"Launching a new EC2 instance: {one}"}):
            self.boto.activities, self.boto.changes = [no_matter], []
            self.groups["Worker"].desired_capacity = 4
            self.send(LAUNCH_ERROR)
            self.assertEqual((self.boto.changes, self.sent()), ([1], [self.setup("Worker", 4, 1)]), no_matter)

    def test_repeated_events_have_no_further_effect(self):
        self.launched("Worker", 3)
        for _ in range(3):
            self.send(LAUNCH_ERROR)
        self.assertEqual(self.boto.changes, [3])
        self.assertEqual(self.sent(), [self.setup("Worker", 4, 3)] + 2 * [self.setup("Worker", 3, 3)])
        for _ in range(2):
            self.send(LAUNCH, "Master", instance="i-master")
        self.assertEqual(self.sent(), 2 * [self.setup("Master", 1, 1)])
        self.assertEqual({s["UniqueId"] for s in self.boto.signals}, {"i-master"})

    def test_events_in_every_order(self):
        """Three of four workers exist. For any order of events, the group ends with three, and the master gets the
        number three."""
        for order in sorted(set(itertools.permutations([LAUNCH, LAUNCH_ERROR, LAUNCH, TERMINATE]))):
            self.groups["Worker"].desired_capacity = 4
            self.launched("Worker", 2, pending=1)
            self.boto.changes = []
            for message in order:
                self.send(message)
            sent = self.sent()
            self.assertEqual((self.boto.changes, self.groups["Worker"].desired_capacity), ([3], 3))
            self.assertEqual({m["launched"] for m in sent}, {3})

    def test_late_failure_does_not_change_a_complete_group(self):
        self.send(LAUNCH_ERROR)
        self.assertEqual((self.boto.changes, self.groups["Worker"].desired_capacity), ([], 4))
        self.assertEqual(self.sent(), [self.setup("Worker", 4, 4)])

    def test_unrelated_events(self):
        for message in (TERMINATE, TERMINATE_ERROR, TEST, LAUNCH.replace("EC2_INSTANCE_LAUNCH", "EC2_INSTANCE_LAUNCH_2"),
                        LAUNCH.replace("autoscaling:EC2_INSTANCE_LAUNCH", ""), '{"Event": null}', "{}"):
            for role in ("Master", "Worker"):
                self.send(message, role)
        self.nothing_happened()

    def test_groups_of_others(self):
        """Events of unrelated groups have no effect, even if such a group exists and is complete."""
        boto3.client("autoscaling", REGION).create_auto_scaling_group(
            AutoScalingGroupName="other-WorkerAutoScalingGroup-1ABC", MinSize=1, MaxSize=1, DesiredCapacity=1,
            LaunchTemplate={"LaunchTemplateId": self.stack.resources["WorkerLaunchTemplate"]},
            VPCZoneIdentifier=self.stack.resources["PrivateSubnet"])
        for name in ("other-WorkerAutoScalingGroup-1ABC", "WorkerAutoScalingGroup", "web", "", f"x{self.names['Worker']}"):
            self.send(LAUNCH, group=name)
            self.send(LAUNCH_ERROR, group=name)
        self.send(LAUNCH_ERROR, group=f"{self.stack.name}-WorkerAutoScalingGroup-GONE")
        self.nothing_happened()

    def test_invalid_events(self):
        for message in (None, 7, [], {}, "", "null", "[]", "7", '"text"', "{", "\x00", "a" * 100000, '{"Event": []}', '{"Event": {}}',
                        '{"Event": "autoscaling:EC2_INSTANCE_LAUNCH"}',
                        '{"Event": "autoscaling:EC2_INSTANCE_LAUNCH", "AutoScalingGroupName": 7}',
                        '{"Event": "autoscaling:EC2_INSTANCE_LAUNCH", "AutoScalingGroupName": null, "EC2InstanceId": null}',
                        LAUNCH.replace('"EC2InstanceId":"INSTANCE"', '"EC2InstanceId":null'), "[" * 100000):
            self.send(message)
        for event in ({}, {"Records": []}, {"Records": None}, {"Records": [{}]}, {"Records": [{"Sns": None}]}):
            self.index.lambda_handler(event, None)
        self.nothing_happened()

    def test_damaged_events_at_random(self):
        generator = random.Random(7)
        for _ in range(300):
            text = list(generator.choice((LAUNCH, LAUNCH_ERROR)).replace("GROUP", "other"))
            for _ in range(generator.randrange(1, 8)):
                text[generator.randrange(len(text))] = generator.choice('{}[]",:\\0a\n')
            self.send("".join(text[:generator.randrange(len(text))] if generator.random() < 0.3 else text))
        self.nothing_happened()

    def test_bad_record_does_not_hide_the_next(self):
        both = {"Records": self.event("{")["Records"] + self.event(LAUNCH)["Records"]}
        self.index.lambda_handler(both, None)
        self.assertEqual(self.sent(), [self.setup("Worker", 4, 4)])

    def test_failed_call_is_tried_again(self):
        """Lambda repeats a call that ends with an error, so a call that fails must end with an error: no event may be
        lost."""
        self.launched("Worker", 3)
        real = self.boto.client
        with unittest.mock.patch.object(self.boto, "client", side_effect=RuntimeError("Throttling")):
            self.assertRaises(RuntimeError, self.send, LAUNCH_ERROR)
        self.assertIs(self.boto.client.__func__, real.__func__)
        self.send(LAUNCH_ERROR)
        self.assertEqual((self.boto.changes, self.sent()), ([3], [self.setup("Worker", 4, 3)]))


class Both(unittest.TestCase):
    def test_elastic_has_the_same_function(self):
        for name in ("ResourceMetadataLambdaFunction", "LambdaExecutionRole", "ResourceMetadataSNSTopic"):
            one, other = (load(INFRA / f"cloudformation/{which}.yaml")["Resources"][name] for which in ("cluster", "elastic"))
            self.assertEqual(one, other)


if __name__ == "__main__":
    unittest.main()
