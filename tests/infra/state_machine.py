# SPDX-License-Identifier: MIT
"""Runs a state machine of Step Functions. Supports the part of the Amazon States Language that tutti's definitions use,
and raises an error for other parts. Refuses definitions and calls that Step Functions or the called service would
refuse. Time passes without waiting."""
import copy
import fnmatch
import json
import re

from service_models import Refusal, check, operation_model
from states_language import check_definition, parse_call, split_resource, task_shape, upper


class TaskError(Exception):
    """The failure of a task, with the name of the error and its cause."""

    def __init__(self, error, cause=""):
        super().__init__(f"{error}: {cause}")
        self.error, self.cause = error, cause


KEYS = {"Pass": {"Result", "ResultPath", "Parameters", "Next", "End"},
        "Task": {"Resource", "Parameters", "ResultSelector", "ResultPath", "Retry", "Catch", "Next"},
        "Choice": {"Choices", "Default"}, "Wait": {"Seconds", "SecondsPath", "Next"}, "Succeed": set(),
        "Fail": {"Error", "Cause", "ErrorPath", "CausePath"}, "Map": {"ItemsPath", "ItemProcessor", "ResultPath", "Next"}}
COMMENTS = {"Type", "Comment"}
# Number of entries that a state adds to the history of an execution, which may have 25,000.
EVENTS = {"Pass": 2, "Choice": 2, "Wait": 2, "Succeed": 2, "Fail": 2, "Task": 5, "Map": 4}


def to_service(shape, value):
    """Returns a task's parameters with the names of the service's model."""
    if shape.type_name == "structure" and isinstance(value, dict):
        names = {upper(n): n for n in shape.members}
        return {names.get(k, f"{k} (no name of Step Functions)"): to_service(shape.members[names[k]], v) if k in names else v
                for k, v in value.items()}
    if shape.type_name == "list" and isinstance(value, list):
        return [to_service(shape.member, v) for v in value]
    return value


def check_answer(shape, value, path):
    """Refuses an answer of a stand-in that has names which the service's answers do not have."""
    if shape.type_name == "structure" and isinstance(value, dict):
        members = {upper(n): s for n, s in shape.members.items()}
        for name, v in value.items():
            if name not in members:
                raise Refusal("InvalidAnswer", f"{path} has no {name}")
            check_answer(members[name], v, f"{path}.{name}")
    if shape.type_name == "list" and isinstance(value, list):
        for v in value:
            check_answer(shape.member, v, path)


class Execution:
    """One run. call(resource, parameters) stands for AWS: it returns a result or raises TaskError."""

    def __init__(self, definition, call, given, name="run-1", steps=20000):
        check_definition(definition)
        self.events = 2
        self.states, self.call = definition["States"], call
        self.context = {"Execution": {"Name": name, "Input": given}}
        self.trail, self.seconds = [], 0
        self.status = self.error = self.cause = None
        data, state = copy.deepcopy(given), definition["StartAt"]
        while state is not None:
            if len(self.trail) >= steps:
                raise AssertionError(f"no end after {steps} states: {self.trail[-20:]}")
            self.trail.append(state)
            data, state = self.step(self.states[state], data)

    def step(self, state, data):
        kind = state["Type"]
        self.events += EVENTS[kind]
        unknown = state.keys() - KEYS[kind] - COMMENTS
        if unknown:
            raise AssertionError(f"{self.trail[-1]}: {sorted(unknown)} is not understood")
        if kind == "Succeed":
            self.status = "SUCCEEDED"
            return data, None
        if kind == "Fail":
            self.status = "FAILED"
            self.error = self.get(state["ErrorPath"], data) if "ErrorPath" in state else state.get("Error")
            self.cause = self.get(state["CausePath"], data) if "CausePath" in state else state.get("Cause")
            return data, None
        if kind == "Wait":
            seconds = state["Seconds"] if "Seconds" in state else self.get(state["SecondsPath"], data)
            if type(seconds) is not int or not 0 <= seconds <= 99999999:
                raise AssertionError(f"{self.trail[-1]}: waits for {seconds!r} seconds, which ends an execution")
            self.seconds += seconds
            return data, state["Next"]
        if kind == "Choice":
            for choice in state["Choices"]:
                if self.holds(choice, data):
                    return data, choice["Next"]
            if "Default" not in state:
                raise AssertionError(f"{self.trail[-1]}: no choice holds")
            return data, state["Default"]
        if kind == "Pass":
            result = state["Result"] if "Result" in state else self.filled(state.get("Parameters", data), data)
            return self.placed(state.get("ResultPath", "$"), data, result), None if state.get("End") else state["Next"]
        if kind == "Map":
            return self.map(state, data)
        return self.task(state, data)

    def map(self, state, data):
        """Runs the map's states for each item. The first failure ends the whole map."""
        items, outer, results = self.get(state["ItemsPath"], data), self.states, []
        if not isinstance(items, list):
            self.status, self.error, self.cause = "FAILED", "States.Runtime", f"{state['ItemsPath']} is no array"
            return data, None
        for item in items:
            self.states, name = state["ItemProcessor"]["States"], state["ItemProcessor"]["StartAt"]
            while name is not None and self.status is None:
                self.trail.append(name)
                item, name = self.step(self.states[name], item)
            self.states = outer
            if self.status is not None:
                return data, None
            results.append(item)
        return self.placed(state.get("ResultPath", "$"), data, results), state["Next"]

    def task(self, state, data):
        tries = [0] * len(state.get("Retry", []))
        while True:
            try:
                result = self.ask(state["Resource"], self.filled(state["Parameters"], data))
                if "ResultSelector" in state:
                    result = self.filled(state["ResultSelector"], result)
                return self.placed(state.get("ResultPath", "$"), data, result), state["Next"]
            except KeyError as e:
                failure = TaskError("States.ParameterPathFailure", str(e))
            except TaskError as e:
                failure = e
            for i, retry in enumerate(state.get("Retry", [])):
                if self.matches(failure, retry) and tries[i] < retry["MaxAttempts"]:
                    self.seconds += min(retry["IntervalSeconds"] * retry["BackoffRate"] ** tries[i], retry.get("MaxDelaySeconds", 99999999))
                    self.events += 3
                    tries[i] += 1
                    break
            else:
                for catch in state.get("Catch", []):
                    if self.matches(failure, catch):
                        said = {"Error": failure.error, "Cause": failure.cause}
                        return self.placed(catch.get("ResultPath", "$"), data, said), catch["Next"]
                self.status, self.error, self.cause = "FAILED", failure.error, failure.cause
                return data, None

    def ask(self, resource, parameters):
        """Calls AWS, after a check of the parameters by AWS's models."""
        sdk, service, action, _ = split_resource(resource)
        shape = task_shape(resource)
        if not sdk:
            if parameters.keys() - shape:
                raise Refusal("InvalidDefinition", f"{resource} does not support {sorted(parameters.keys() - shape)}")
            return self.call(resource, parameters)
        try:
            check(service, upper(action), to_service(shape, parameters))
        except Refusal as e:
            # Step Functions itself refuses wrong names and types. The service refuses wrong values.
            raise TaskError("States.Runtime" if re.search("no name of Step|is no |unknown|missing", e.message) else
                            f"{service}.{e.code}", e.message) from None
        result = self.call(resource, parameters)
        output = operation_model(service, upper(action)).output_shape
        if output is not None:
            check_answer(output, result, upper(action))
        return result

    @staticmethod
    def matches(failure, rule):
        names = rule["ErrorEquals"]
        return failure.error in names or ("States.ALL" in names and failure.error != "States.Runtime") or (
            "States.TaskFailed" in names and failure.error not in ("States.Timeout", "States.Runtime"))

    def holds(self, rule, data):
        if "And" in rule:
            return all(self.holds(r, data) for r in rule["And"])
        if "Or" in rule:
            return any(self.holds(r, data) for r in rule["Or"])
        (test, wanted), = ((k, v) for k, v in rule.items() if k not in ("Variable", "Next"))
        try:
            value = self.get(rule["Variable"], data)
        except KeyError:
            if test == "IsPresent":
                return not wanted
            raise AssertionError(f"{self.trail[-1]}: {rule['Variable']} is absent, which ends an execution") from None
        if test == "IsPresent":
            return wanted
        numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
        return {"IsString": lambda: isinstance(value, str) == wanted, "IsNumeric": lambda: numeric == wanted,
                "NumericLessThanEquals": lambda: value <= wanted, "StringEquals": lambda: value == wanted, "StringMatches": lambda: fnmatch.fnmatchcase(value, wanted),
                "NumericLessThan": lambda: value < wanted, "NumericGreaterThanEquals": lambda: value >= wanted}[test]()

    def filled(self, template, data):
        if isinstance(template, list):
            return [self.filled(v, data) for v in template]
        if not isinstance(template, dict):
            return template
        return {k[:-2] if k.endswith(".$") else k: self.get(v, data) if k.endswith(".$") else self.filled(v, data)
                for k, v in template.items()}

    def get(self, path, data):
        """Returns the value of a path, or of an intrinsic function."""
        return self.value(parse_call(path), data)

    def value(self, tree, data):
        kind, *rest = tree
        if kind == "text":
            return re.sub(r"\\(.)", r"\1", rest[0])
        if kind == "literal":
            return json.loads(rest[0])
        if kind == "path":
            return self.at(rest[0], data)
        name, arguments = rest
        known = {"Format": self.format, "MathAdd": lambda a, b: round(a) + round(b), "Array": lambda *a: list(a),
                 "JsonMerge": lambda a, b, deep: {**a, **b}, "JsonToString": lambda v: json.dumps(v, separators=(",", ":"))}
        if name not in known:
            raise AssertionError(f"States.{name} is not understood")
        return known[name](*(self.value(a, data) for a in arguments))

    def at(self, path, data):
        """Returns the value of a path. After a wildcard an absent value is left out; before a wildcard it is an
        error."""
        whole = path
        if path.startswith("$$"):
            data, path = self.context, path[1:]
        found, many = [data], False
        for name, index in re.findall(r"\.([\w-]+)|\[(\d+|\*)\]", path):
            if index == "*":
                found, many = [v for f in found if isinstance(f, list) for v in f], True
                continue
            key = name or int(index)
            there = [f for f in found if (isinstance(f, dict) and key in f if name else isinstance(f, list) and key < len(f))]
            if not many and not there:
                raise KeyError(whole)
            found = [f[key] for f in there]
        return copy.deepcopy(found if many else found[0])

    @staticmethod
    def format(text, *values):
        parts = text.split("{}")
        if len(parts) != len(values) + 1:
            raise AssertionError(f"{text!r} has other places than values")
        if any(isinstance(v, (dict, list)) for v in values):
            raise AssertionError(f"{text!r} takes text and numbers: States.JsonToString makes text of the rest")
        return "".join(a + str(b) for a, b in zip(parts, [*values, ""]))

    @staticmethod
    def placed(path, data, result):
        if path is None:
            return data
        if path == "$":
            return result
        *way, last = path[2:].split(".")
        data = copy.deepcopy(data)
        at = data
        for name in way:
            at = at.setdefault(name, {})
        at[last] = result
        return data
