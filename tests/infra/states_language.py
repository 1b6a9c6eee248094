# SPDX-License-Identifier: MIT
"""Checks the definition of a state machine as Step Functions does when it is created. Refuses fields, operators,
functions and resources that AWS's documents do not list.

    check_definition(definition)      raises Refusal, with a sentence for each fault
"""
import re

from service_models import Refusal, operation_model, service_model

COMMON = {"Type", "Comment", "InputPath", "OutputPath", "QueryLanguage", "Assign"}
STEP = {"Next", "End"}
FIELDS = {
    "Pass": {"Result", "ResultPath", "Parameters"} | STEP,
    "Task": {"Resource", "Parameters", "Credentials", "ResultPath", "ResultSelector", "Retry", "Catch", "TimeoutSeconds", "TimeoutSecondsPath",
             "HeartbeatSeconds", "HeartbeatSecondsPath"} | STEP,
    "Choice": {"Choices", "Default"},
    "Wait": {"Seconds", "SecondsPath", "Timestamp", "TimestampPath"} | STEP,
    "Succeed": set(),
    "Fail": {"Error", "ErrorPath", "Cause", "CausePath"},
    "Parallel": {"Branches", "Parameters", "ResultPath", "ResultSelector", "Retry", "Catch"} | STEP,
    "Map": {"ItemProcessor", "Iterator", "ItemsPath", "ItemSelector", "ItemReader", "ItemBatcher", "ResultWriter", "MaxConcurrency",
            "MaxConcurrencyPath", "ToleratedFailurePercentage", "ToleratedFailurePercentagePath", "ToleratedFailureCount",
            "ToleratedFailureCountPath", "Label", "Parameters", "ResultPath", "ResultSelector", "Retry", "Catch"} | STEP}
RETRY = {"ErrorEquals", "IntervalSeconds", "MaxAttempts", "BackoffRate", "MaxDelaySeconds", "JitterStrategy", "Comment"}
CATCH = {"ErrorEquals", "Next", "ResultPath", "Comment", "Assign", "Output"}
TESTS = {"IsPresent": bool, "IsNull": bool, "IsBoolean": bool, "IsNumeric": bool, "IsString": bool, "IsTimestamp": bool, "StringMatches": str,
         "BooleanEquals": bool, "BooleanEqualsPath": str}
for _kind, _type in (("String", str), ("Numeric", (int, float)), ("Timestamp", str)):
    for _order in ("Equals", "LessThan", "GreaterThan", "LessThanEquals", "GreaterThanEquals"):
        TESTS[_kind + _order], TESTS[_kind + _order + "Path"] = _type, str
# The minimum and maximum number of arguments of each intrinsic function.
FUNCTIONS = {"Array": (0, 99), "ArrayPartition": (2, 2), "ArrayContains": (2, 2), "ArrayRange": (3, 3), "ArrayGetItem": (2, 2), "ArrayLength": (1, 1),
             "ArrayUnique": (1, 1), "Base64Encode": (1, 1), "Base64Decode": (1, 1), "Hash": (2, 2), "JsonMerge": (3, 3), "StringToJson": (1, 1),
             "JsonToString": (1, 1), "MathRandom": (2, 3), "MathAdd": (2, 2), "StringSplit": (2, 2), "UUID": (0, 0), "Format": (1, 99)}
# Functions that the fields Error and Cause of a Fail state may use.
FUNCTIONS_OF_FAIL = {"Format", "JsonToString", "ArrayGetItem", "Base64Encode", "Base64Decode", "Hash", "UUID"}
# For each optimised integration: the ways to call it, and the parameters that its page lists.
OPTIMISED = {
    "batch:submitJob": (("", ".sync"), {"ArrayProperties", "ContainerOverrides", "DependsOn", "JobDefinition", "JobName", "JobQueue", "Parameters",
                                        "RetryStrategy", "Tags", "PropagateTags", "Timeout"}),
    "sns:publish": (("", ".waitForTaskToken"), {"Message", "MessageAttributes", "MessageDeduplicationId", "MessageGroupId", "MessageStructure",
                                                "PhoneNumber", "Subject", "TargetArn", "TopicArn"}),
    "sqs:sendMessage": (("", ".waitForTaskToken"), {"DelaySeconds", "MessageAttribute", "MessageBody", "MessageDeduplicationId", "MessageGroupId",
                                                    "QueueUrl"})}
PATH = re.compile(r"\$\$?((\.[\w-]+)|(\[(\d+|\*)\]))*")
REFERENCE = re.compile(r"\$((\.[\w-]+)|(\[\d+\]))*")
CALL = re.compile(r"\s*States\.(\w+)\(")


def upper(name):
    """Returns the spelling of a service's parameter in Step Functions."""
    return name[:1].upper() + name[1:]


def parse_call(text):
    """Returns the tree of an intrinsic function: a name with arguments, each a number, a text in quotes, a path or a
    call."""
    tree, rest = _parse_value(text)
    if rest.strip():
        raise ValueError(f"{rest!r} after the function {text!r}")
    return tree


def _parse_value(text):
    call = CALL.match(text)
    if call:
        arguments, rest = [], text[call.end():].lstrip()
        while not rest.startswith(")"):
            argument, rest = _parse_value(rest)
            arguments.append(argument)
            rest = rest.lstrip()
            if rest.startswith(","):
                rest = rest[1:].lstrip()
                if rest.startswith(")"):
                    raise ValueError(f"a comma before the end of {text!r}")
            elif not rest.startswith(")"):
                raise ValueError(f"{text!r} does not end")
        return ("call", call[1], arguments), rest[1:]
    for kind, pattern in (("text", r"'((?:[^'\\]|\\.)*)'"), ("path", PATH.pattern), ("literal", r"-?\d+(\.\d+)?|true|false|null")):
        match = re.match(pattern, text)
        if match and match[0]:
            return (kind, match[1] if kind == "text" else match[0]), text[match.end():]
    raise ValueError(f"{text!r} is no argument of a function")


class Checker:
    def __init__(self):
        self.faults = []

    def fault(self, where, text):
        self.faults.append(f"{where}: {text}")

    def fields(self, where, value, known):
        for name in value.keys() - known:
            self.fault(where, f"unknown field {name}")

    def machine(self, where, machine, more):
        self.fields(where, machine, {"Comment", "StartAt", "States", "QueryLanguage"} | more)
        if machine.get("QueryLanguage", "JSONPath") != "JSONPath":
            self.fault(where, "QueryLanguage is JSONPath here")
        states = machine.get("States")
        if not isinstance(states, dict) or not states:
            self.fault(where, "no States")
            return
        reached = [machine.get("StartAt")]
        for name, state in states.items():
            place = f"{where}/{name}" if where else name
            if len(name) > 80:
                self.fault(place, "a name has 80 characters at most")
            reached += self.state(place, state)
        for name in reached:
            if name not in states:
                self.fault(where or "StartAt", f"there is no state {name}")
        for name in states.keys() - set(reached):
            self.fault(where or name, f"no state leads to {name}")

    def state(self, where, state):
        """Returns the names of the states that may follow."""
        kind = state.get("Type")
        if kind not in FIELDS:
            self.fault(where, f"there is no Type {kind}")
            return []
        self.fields(where, state, FIELDS[kind] | COMMON)
        following = [state["Next"]] if "Next" in state else []
        if "Next" in FIELDS[kind] and ("Next" in state) == (state.get("End") is True):
            self.fault(where, "either Next or End")
        for name in ("Parameters", "ResultSelector", "ItemSelector"):
            if name in state:
                self.template(where, state[name])
        for name in ("InputPath", "OutputPath", "ItemsPath", "TimeoutSecondsPath", "HeartbeatSecondsPath", "SecondsPath", "TimestampPath"):
            if name in state and not (isinstance(state[name], str) and PATH.fullmatch(state[name])) and state[name] is not None:
                self.fault(where, f"{name} {state[name]!r} is no path")
        self.result_path(where, state)
        for rule in state.get("Retry", []):
            self.retry(where, rule)
        for i, rule in enumerate(state.get("Retry", []) + state.get("Catch", [])):
            self.errors(where, rule, last=i + 1 in (len(state.get("Retry", [])), len(state.get("Retry", []) + state.get("Catch", []))))
        for rule in state.get("Catch", []):
            self.fields(where, rule, CATCH)
            self.result_path(where, rule)
            following.append(rule.get("Next"))
        getattr(self, f"of_{kind.lower()}", lambda *_: None)(where, state)
        if kind == "Choice":
            following += [rule.get("Next") for rule in state.get("Choices", [])] + [state[n] for n in ("Default",) if n in state]
        return following

    def result_path(self, where, value):
        path = value.get("ResultPath", "$")
        if path is not None and not (isinstance(path, str) and REFERENCE.fullmatch(path)):
            self.fault(where, f"ResultPath {path!r} is no reference path")

    def retry(self, where, rule):
        self.fields(where, rule, RETRY)
        for name, least, most in (("IntervalSeconds", 1, 99999999), ("MaxAttempts", 0, 99999999), ("MaxDelaySeconds", 1, 31622399)):
            value = rule.get(name, most)
            if type(value) is not int or not least <= value <= most:
                self.fault(where, f"{name} of a Retry is {least} to {most}, not {value!r}")
        rate = rule.get("BackoffRate", 2)
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or rate < 1:
            self.fault(where, f"BackoffRate is 1 at least, not {rate!r}")
        if rule.get("JitterStrategy", "NONE") not in ("NONE", "FULL"):
            self.fault(where, f"there is no JitterStrategy {rule['JitterStrategy']}")

    def errors(self, where, rule, last):
        names = rule.get("ErrorEquals")
        if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
            self.fault(where, "ErrorEquals is a list of names")
        elif "States.ALL" in names and (len(names) > 1 or not last):
            self.fault(where, "States.ALL stands alone, in the last rule")

    def template(self, where, value):
        if isinstance(value, list):
            for v in value:
                self.template(where, v)
        if not isinstance(value, dict):
            return
        for name, v in value.items():
            if name.endswith(".$"):
                self.expression(where, v, FUNCTIONS, name)
            else:
                self.template(where, v)

    def expression(self, where, text, functions, name):
        if not isinstance(text, str) or not text.startswith(("$", "States.")):
            self.fault(where, f"{name} must be a path or an intrinsic function, not {text!r}")
            return
        try:
            self.call(where, parse_call(text), functions)
        except ValueError as e:
            self.fault(where, f"{name}: {e}")

    def call(self, where, tree, functions, depth=0):
        if tree[0] != "call":
            return
        _, name, arguments = tree
        least, most = FUNCTIONS.get(name, (0, 0))
        if name not in functions:
            self.fault(where, f"there is no function States.{name}" + (" here" if name in FUNCTIONS else ""))
        elif not least <= len(arguments) <= most:
            self.fault(where, f"States.{name} takes {least} to {most} arguments, not {len(arguments)}")
        if depth >= 10:
            self.fault(where, "functions may be nested ten times")
        for argument in arguments:
            self.call(where, argument, functions, depth + 1)

    def of_wait(self, where, state):
        given = state.keys() & {"Seconds", "SecondsPath", "Timestamp", "TimestampPath"}
        if len(given) != 1:
            self.fault(where, f"one of Seconds, SecondsPath, Timestamp and TimestampPath, not {sorted(given)}")
        if "Seconds" in state and (type(state["Seconds"]) is not int or not 0 <= state["Seconds"] <= 99999999):
            self.fault(where, f"Seconds is a whole number from 0 to 99999999, not {state['Seconds']!r}")

    def of_fail(self, where, state):
        for name in ("Error", "Cause"):
            if name in state and f"{name}Path" in state:
                self.fault(where, f"either {name} or {name}Path")
            if f"{name}Path" in state:
                self.expression(where, state[f"{name}Path"], FUNCTIONS_OF_FAIL, f"{name}Path")

    def of_choice(self, where, state):
        if not state.get("Choices"):
            self.fault(where, "no Choices")
        for rule in state.get("Choices", []):
            self.rule(where, rule, top=True)

    def rule(self, where, rule, top=False):
        if ("Next" in rule) != top:
            self.fault(where, "a choice needs a Next, and a part of a choice must not have a Next")
        tests = rule.keys() - {"Next", "Variable", "Comment", "Assign"}
        if len(tests) != 1:
            self.fault(where, f"a choice has one test, not {sorted(tests)}")
            return
        test, = tests
        if test in ("And", "Or"):
            for part in rule[test] or [{}]:
                self.rule(where, part)
        elif test == "Not":
            self.rule(where, rule[test])
        elif test not in TESTS:
            self.fault(where, f"there is no test {test}")
        else:
            if not PATH.fullmatch(str(rule.get("Variable"))):
                self.fault(where, f"Variable {rule.get('Variable')!r} is no path")
            of_bool = TESTS[test] is bool
            if not isinstance(rule[test], TESTS[test]) or isinstance(rule[test], bool) != of_bool:
                self.fault(where, f"{test} of {rule[test]!r}")

    def of_map(self, where, state):
        processor = state.get("ItemProcessor") or state.get("Iterator")
        if not isinstance(processor, dict):
            self.fault(where, "no ItemProcessor")
            return
        mode = processor.get("ProcessorConfig", {}).get("Mode", "INLINE")
        if mode not in ("INLINE", "DISTRIBUTED"):
            self.fault(where, f"there is no Mode {mode}")
        self.machine(where, processor, {"ProcessorConfig"})

    def of_parallel(self, where, state):
        for branch in state.get("Branches") or [{}]:
            self.machine(where, branch, set())

    def of_task(self, where, state):
        for name in ("TimeoutSeconds", "HeartbeatSeconds"):
            if name in state and f"{name}Path" in state:
                self.fault(where, f"either {name} or {name}Path")
            if name in state and (type(state[name]) is not int or not 0 < state[name] <= 99999999):
                self.fault(where, f"{name} is a whole number from 1, not {state[name]!r}")
        try:
            self.parameters(where, state.get("Parameters", {}), task_shape(state.get("Resource")))
        except Refusal as e:
            self.fault(where, e.message)

    def parameters(self, where, given, shape):
        """Checks names and constants. Values of paths are checked when the task runs."""
        if isinstance(shape, set):
            for name in {n.removesuffix(".$") for n in given} - shape:
                self.fault(where, f"the field {name} is not supported by Step Functions")
            return
        if shape.type_name == "list" and isinstance(given, list):
            for v in given:
                self.parameters(where, v, shape.member)
        if shape.type_name != "structure" or not isinstance(given, dict):
            return
        members = {upper(n): s for n, s in shape.members.items()}
        names = {n.removesuffix(".$"): n for n in given}
        for name in names.keys() - members.keys():
            self.fault(where, f"the field {name} is not supported by Step Functions")
        for name in {upper(n) for n in shape.required_members} - names.keys():
            self.fault(where, f"the field {name} is required")
        for name in names.keys() & members.keys():
            if not names[name].endswith(".$"):
                self.parameters(where, given[name], members[name])


def split_resource(resource):
    """Returns the service, the operation and the way to call it, of arn:aws:states:::aws-sdk:batch:submitJob or
    arn:aws:states:::batch:submitJob.sync."""
    match = re.fullmatch(r"arn:aws:states:::(aws-sdk:)?(\w+):([a-z]\w*)(\.\w+)?", str(resource))
    if not match:
        raise Refusal("InvalidDefinition", f"{resource} is no resource of a task")
    return bool(match[1]), match[2], match[3], match[4] or ""


def task_shape(resource):
    """Returns the parameters of a resource: the shape of its operation, or the names that an optimised integration
    lists."""
    sdk, service, action, way = split_resource(resource)
    if not sdk:
        ways, names = OPTIMISED.get(f"{service}:{action}", ((), set()))
        if way not in ways:
            raise Refusal("InvalidDefinition", f"{resource} is not among the optimised integrations")
        return names
    if way not in ("", ".waitForTaskToken"):
        raise Refusal("InvalidDefinition", f"{resource}: an integration of the SDK has no {way}")
    service_model(service)
    return operation_model(service, upper(action)).input_shape


def check_definition(definition):
    checker = Checker()
    checker.machine("", definition, {"TimeoutSeconds", "Version"})
    if checker.faults:
        raise Refusal("InvalidDefinition", "; ".join(checker.faults))
