# SPDX-License-Identifier: MIT
"""Walks through a state machine of Step Functions: the part of the Amazon States Language that our definitions use, and
an error for any other. Time passes without waiting."""
import copy
import fnmatch
import json
import re


class TaskError(Exception):
    """What a task fails with: its error's name and its cause."""

    def __init__(self, error, cause=""):
        super().__init__(f"{error}: {cause}")
        self.error, self.cause = error, cause


KEYS = {"Pass": {"Result", "ResultPath", "Parameters", "Next", "End"},
        "Task": {"Resource", "Parameters", "ResultSelector", "ResultPath", "Retry", "Catch", "TimeoutSecondsPath", "Next"},
        "Choice": {"Choices", "Default"}, "Wait": {"Seconds", "Next"}, "Succeed": set(),
        "Fail": {"Error", "Cause", "ErrorPath", "CausePath"}, "Map": {"ItemsPath", "ItemProcessor", "ResultPath", "Next"}}
COMMENTS = {"Type", "Comment"}


class Execution:
    """One run. call(resource, parameters) is AWS: it returns a result or raises TaskError."""

    def __init__(self, definition, call, given, name="run-1", steps=10000):
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
            self.seconds += state["Seconds"]
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
        """Each item goes through states of its own; the first that fails ends it all."""
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
                if "TimeoutSecondsPath" in state:
                    limit = self.get(state["TimeoutSecondsPath"], data)
                    if type(limit) is not int or not 0 < limit <= 99999999:
                        raise TaskError("States.Runtime", "a time limit is a whole number from 1")
                result = self.call(state["Resource"], self.filled(state["Parameters"], data))
                if "ResultSelector" in state:
                    result = self.filled(state["ResultSelector"], result)
                return self.placed(state.get("ResultPath", "$"), data, result), state["Next"]
            except KeyError as e:
                failure = TaskError("States.ParameterPathFailure", str(e))
            except TaskError as e:
                failure = e
            for i, retry in enumerate(state.get("Retry", [])):
                if self.matches(failure, retry) and tries[i] < retry["MaxAttempts"]:
                    self.seconds += retry["IntervalSeconds"] * retry["BackoffRate"] ** tries[i]
                    tries[i] += 1
                    break
            else:
                for catch in state.get("Catch", []):
                    if self.matches(failure, catch):
                        said = {"Error": failure.error, "Cause": failure.cause}
                        return self.placed(catch.get("ResultPath", "$"), data, said), catch["Next"]
                self.status, self.error, self.cause = "FAILED", failure.error, failure.cause
                return data, None

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
        """The value of a path, or of an intrinsic function."""
        call = re.fullmatch(r"States\.(\w+)\((.*)\)", path, re.S)
        if call:
            words = re.findall(r"'(?:[^'\\]|\\.)*'|[^,]+", call[2])
            arguments = [self.argument(w.strip(), data) for w in words if w.strip()]
            return {"Format": self.format, "MathAdd": lambda a, b: round(a) + round(b), "Array": lambda *a: list(a),
                    "JsonMerge": lambda a, b, deep: {**a, **b}}[call[1]](*arguments)
        if path.startswith("$$"):
            data, path = self.context, path[1:]
        if not re.fullmatch(r"\$((\.\w+)|(\[\d+\]))*", path):
            raise AssertionError(f"{path} is not understood")
        for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
            if name and (not isinstance(data, dict) or name not in data):
                raise KeyError(path)
            if index and len(data) <= int(index):
                raise KeyError(path)
            data = data[name] if name else data[int(index)]
        return copy.deepcopy(data)

    def argument(self, word, data):
        if word.startswith("'"):
            return word[1:-1]
        return self.get(word, data) if word.startswith("$") else json.loads(word)

    @staticmethod
    def format(text, *values):
        parts = text.split("{}")
        if len(parts) != len(values) + 1:
            raise AssertionError(f"{text!r} has other places than values")
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
