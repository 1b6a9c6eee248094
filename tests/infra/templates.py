# SPDX-License-Identifier: MIT
"""Reads CloudFormation templates: evaluates their functions, and checks parameters.
"""
import base64
import copy
import functools
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
NO_VALUE = object()
PSEUDO = {"AWS::StackName": "train", "AWS::Region": "us-east-1", "AWS::AccountId": "123456789012", "AWS::Partition": "aws",
          "AWS::URLSuffix": "amazonaws.com", "AWS::NoValue": NO_VALUE,
          "AWS::StackId": "arn:aws:cloudformation:us-east-1:123456789012:stack/train/5f2f7c10-0000-11f0-a000-0e1234567890"}


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Reads !Ref and similar tags in their long form."""


def _function(loader, suffix, node):
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_mapping(node, deep=True)
    if suffix in ("Ref", "Condition"):
        return {suffix: value}
    if suffix == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    return {f"Fn::{suffix}": value}


Loader.add_multi_constructor("!", _function)


@functools.lru_cache(maxsize=None)
def _parsed(text):
    return yaml.load(text, Loader)


def load(path):
    """Returns a template that the caller may change."""
    return copy.deepcopy(_parsed(Path(path).read_text()))


def all_templates():
    """Returns the paths of all templates below infra/."""
    return [p for p in sorted(INFRA.rglob("*.yaml")) if "source" not in p.parts and "AWSTemplateFormatVersion" in p.read_text()]


class Stack:
    """A template with values for its parameters. References to resources become <Name>, and their attributes
    <Name.Attribute>."""

    def __init__(self, template, **parameters):
        self.template = template
        self.values = {name: str(p["Default"]) for name, p in template["Parameters"].items() if "Default" in p}
        self.values.update({name: str(value) for name, value in parameters.items()})
        self.resources = {name: self.value(resource) for name, resource in template["Resources"].items()
                          if "Condition" not in resource or self.condition(resource["Condition"])}
        self.outputs = {name: self.value(o["Value"]) for name, o in template.get("Outputs", {}).items()}

    def condition(self, name):
        return self.value(self.template["Conditions"][name])

    def reference(self, name):
        if name in PSEUDO:
            return PSEUDO[name]
        if name in self.values:
            of_list = self.template["Parameters"][name]["Type"] == "CommaDelimitedList"
            return self.values[name].split(",") if of_list else self.values[name]
        if name in self.template["Resources"]:
            return f"<{name}>"
        raise KeyError(f"Ref {name}")

    def attribute(self, name, attribute):
        if name not in self.template["Resources"]:
            raise KeyError(f"GetAtt {name}")
        return f"<{name}.{attribute}>"

    def substituted(self, argument):
        text, names = (argument[0], self.value(argument[1])) if isinstance(argument, list) else (argument, {})

        def replace(match):
            name = match[1]
            if name.startswith("!"):
                return "${" + name[1:] + "}"
            if name in names:
                return str(names[name])
            return self.attribute(*name.split(".", 1)) if "." in name else str(self.reference(name))
        return re.sub(r"\$\{([^}]*)\}", replace, text)

    def value(self, v):
        if isinstance(v, list):
            return [w for w in (self.value(x) for x in v) if w is not NO_VALUE]
        if not isinstance(v, dict):
            return v
        if len(v) == 1:
            (key, argument), = v.items()
            if key == "Ref":
                return self.reference(argument)
            if key == "Condition" and isinstance(argument, str):
                return self.condition(argument)
            if key == "Fn::If":
                return self.value(argument[1] if self.condition(argument[0]) else argument[2])
            if key == "Fn::Sub":
                return self.substituted(argument)
            if key.startswith("Fn::"):
                return self.function(key[4:], self.value(argument))
        return {k: w for k, w in ((k, self.value(x)) for k, x in v.items()) if w is not NO_VALUE}

    def function(self, name, a):
        if name == "GetAtt":
            return self.attribute(*a)
        if name == "Join":
            return a[0].join(str(x) for x in a[1])
        if name == "Select":
            return a[1][int(a[0])]
        if name == "Split":
            return a[1].split(a[0])
        if name == "FindInMap":
            return self.template["Mappings"][a[0]][a[1]][a[2]]
        if name == "Base64":
            return base64.b64encode(a.encode()).decode()
        if name == "Equals":
            return str(a[0]) == str(a[1])
        if name == "Contains":
            return str(a[1]) in [str(x) for x in a[0]]
        if name == "Not":
            return not a[0]
        if name == "And":
            return all(a)
        if name == "Or":
            return any(a)
        raise KeyError(f"Fn::{name}")


def refusals(template, parameters):
    """Returns CloudFormation's reasons to refuse these values, as sentences, or an empty list if it would create the
    stack. created."""
    found = []
    for name in parameters.keys() - template["Parameters"].keys():
        found.append(f"{name} is no parameter")
    for name, p in template["Parameters"].items():
        if name not in parameters and "Default" not in p:
            found.append(f"{name} must have a value")
            continue
        value = str(parameters.get(name, p.get("Default")))
        if p["Type"] == "Number" and not re.fullmatch(r"-?\d+(\.\d+)?", value):
            found.append(f"{name} must be a number")
            continue
        bad = (("AllowedValues" in p and value not in [str(x) for x in p["AllowedValues"]])
               or ("AllowedPattern" in p and not re.fullmatch(p["AllowedPattern"], value, re.ASCII))
               or len(value) < int(p.get("MinLength", 0)) or len(value) > int(p.get("MaxLength", 4096))
               or (p["Type"] == "Number" and not float(p.get("MinValue", value)) <= float(value) <= float(p.get("MaxValue", value))))
        if bad:
            found.append(f"{name} {p['ConstraintDescription']}")
    if not found:
        stack = Stack.__new__(Stack)
        stack.template = template
        stack.values = {name: str(parameters.get(name, p.get("Default"))) for name, p in template["Parameters"].items()}
        for rule in template.get("Rules", {}).values():
            if stack.value(rule.get("RuleCondition", True)):
                found += [a["AssertDescription"] for a in rule["Assertions"] if not stack.value(a["Assert"])]
    return found


CONSTRAINTS = {"AllowedPattern", "AllowedValues", "MinValue", "MaxValue", "MinLength", "MaxLength"}


def unproved_constraints(template, given, bad):
    """Returns each constraint that refuses no value of `bad` when it is the only constraint of its parameter."""
    found = []
    for name, p in template["Parameters"].items():
        for constraint in p.keys() & CONSTRAINTS:
            alone = {k: v for k, v in p.items() if k not in CONSTRAINTS or k == constraint}
            one = changed(template, f"Parameters/{name}", alone)
            if not any(refusals(one, {**given, name: value}) for value in bad.get(name, [])):
                found.append(f"{name}: {constraint}")
    return found


def changed(template, path, value):
    """Returns a copy with another value at a path such as "Resources/Vpc/Properties/CidrBlock". DELETE removes the
    value."""
    copied = copy.deepcopy(template)
    *way, last = [int(p) if p.isdigit() else p for p in path.split("/")]
    at = copied
    for part in way:
        at = at[part]
    if value is DELETE:
        del at[last]
    elif isinstance(at, list) and last == len(at):
        at.append(value)
    else:
        at[last] = value
    return copied


DELETE = object()
