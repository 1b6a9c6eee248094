# SPDX-License-Identifier: MIT
"""Checks resources as CloudFormation does, by the schemas of its resource providers, which cfn-lint includes.

    check_resource("AWS::SQS::Queue", {"QueueName": "q"})      raises Refusal, with a sentence for each fault
    check_template(template)                                   the same for the sections of a template and a resource's attributes
"""
import functools
import re

import jsonschema
from cfnlint.schema import ResourceNotFoundError
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

from service_models import Refusal, compiled

REGION = "us-east-1"
SECTIONS = {"AWSTemplateFormatVersion", "Description", "Metadata", "Parameters", "Rules", "Mappings", "Conditions", "Transform", "Resources", "Outputs"}
ATTRIBUTES = {"Type", "Properties", "Condition", "DependsOn", "CreationPolicy", "UpdatePolicy", "DeletionPolicy", "UpdateReplacePolicy", "Metadata"}
POLICIES = {"DeletionPolicy": ("Delete", "Retain", "RetainExceptOnCreate", "Snapshot"), "UpdateReplacePolicy": ("Delete", "Retain", "Snapshot")}
CREATION = {"ResourceSignal": {"Count", "Timeout"}, "AutoScalingCreationPolicy": {"MinSuccessfulInstancesPercent"}}


def without_none(v):
    """Returns a value without None, which moto leaves in lists for AWS::NoValue."""
    if isinstance(v, list):
        return [without_none(x) for x in v if x is not None]
    return {k: without_none(x) for k, x in v.items() if x is not None} if isinstance(v, dict) else v


def _as_number(value):
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _type(validator, types, instance, schema):
    """Checks a type as CloudFormation does, which accepts numbers and booleans as text, and text as a number."""
    types = [types] if isinstance(types, str) else types
    fits = {"string": isinstance(instance, (str, int, float)), "array": isinstance(instance, list), "object": isinstance(instance, dict),
            "boolean": isinstance(instance, bool) or str(instance).lower() in ("true", "false"),
            "integer": not isinstance(instance, bool) and bool(re.fullmatch(r"-?\d+", str(instance))),
            "number": not isinstance(instance, bool) and isinstance(_as_number(instance), (int, float)), "null": instance is None}
    if not any(fits[t] for t in types):
        yield jsonschema.ValidationError(f"{str(instance)[:100]!r} is no {' or '.join(types)}")


def _enum(validator, values, instance, schema):
    if str(instance) not in [str(v) for v in values]:
        yield jsonschema.ValidationError(f"{str(instance)[:100]!r} is not one of {', '.join(map(str, values))}")


def _enum_of_any_case(validator, values, instance, schema):
    if str(instance).lower() not in [str(v).lower() for v in values]:
        yield jsonschema.ValidationError(f"{str(instance)[:100]!r} is not one of {', '.join(map(str, values))}")


def _pattern(validator, pattern, instance, schema):
    known = compiled(pattern)
    if isinstance(instance, str) and known is not None and not known.search(instance):
        yield jsonschema.ValidationError(f"{instance[:100]!r} does not match {pattern}")


def _bound(name, holds, word):
    def bound(validator, limit, instance, schema):
        number = _as_number(instance)
        if isinstance(number, (int, float)) and not isinstance(number, bool) and not holds(number, limit):
            yield jsonschema.ValidationError(f"{instance} is {word} {limit}")
    return bound


Validator = jsonschema.validators.extend(jsonschema.Draft7Validator, {
    "type": _type, "enum": _enum, "enumCaseInsensitive": _enum_of_any_case, "pattern": _pattern,
    "minimum": _bound("minimum", lambda a, b: a >= b, "less than"), "maximum": _bound("maximum", lambda a, b: a <= b, "more than")})


@functools.lru_cache(maxsize=None)
def schema_of(kind):
    try:
        return PROVIDER_SCHEMA_MANAGER.get_resource_schema(REGION, kind).schema
    except ResourceNotFoundError:
        raise Refusal("ValidationError", f"there is no resource type {kind}") from None


def check_resource(kind, properties):
    """Raises Refusal unless the schema of the provider allows these properties and values."""
    schema, properties = schema_of(kind), without_none(properties)
    faults = [f"{kind}: {'/'.join(map(str, e.absolute_path))}: {e.message}" for e in sorted(Validator(schema).iter_errors(properties), key=str)]
    for pointer in schema.get("readOnlyProperties", []):
        name = pointer.removeprefix("/properties/")
        if name in properties and f"/properties/{name}" not in schema.get("createOnlyProperties", []):
            faults.append(f"{kind}: {name} is read-only")
    if faults:
        raise Refusal("ValidationError", "; ".join(faults))


def check_template(template):
    faults = [f"there is no section {name}" for name in template.keys() - SECTIONS]
    for name, resource in template["Resources"].items():
        faults += [f"{name}: there is no attribute {a}" for a in resource.keys() - ATTRIBUTES]
        faults += [f"{name}: {p} {resource[p]} is not one of {', '.join(values)}" for p, values in POLICIES.items() if resource.get(p, values[0]) not in values]
        for policy, fields in resource.get("CreationPolicy", {}).items():
            if policy not in CREATION or fields.keys() - CREATION[policy]:
                faults.append(f"{name}: CreationPolicy has no {policy} of {sorted(fields)}")
        if not re.fullmatch(r"[A-Za-z0-9]{1,255}", name):
            faults.append(f"{name} is no name of a resource")
    if faults:
        raise Refusal("ValidationError", "; ".join(faults))
