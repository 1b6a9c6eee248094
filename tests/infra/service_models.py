# SPDX-License-Identifier: MIT
"""Checks requests by the models of AWS's services, which AWS publishes in botocore. The stand-ins of the tests refuse
all other requests.

    check("cloudformation", "SignalResource", {...})      raises Refusal, with a sentence for each fault
"""
import datetime
import functools
import re

import botocore.loaders
import botocore.model

NUMBERS = {"integer": int, "long": int, "float": (int, float), "double": (int, float)}


class Refusal(Exception):
    """A request that the service's model does not allow. code: the name of AWS's error."""

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


@functools.lru_cache(maxsize=None)
def service_model(service):
    try:
        description = botocore.loaders.create_loader().load_service_model(service, "service-2")
    except botocore.exceptions.UnknownServiceError:
        raise Refusal("UnknownService", f"there is no service {service}") from None
    return botocore.model.ServiceModel(description, service_name=service)


def operation_model(service, operation):
    try:
        return service_model(service).operation_model(operation)
    except botocore.model.OperationNotFoundError:
        raise Refusal("InvalidAction", f"{service} has no operation {operation}") from None


def check(service, operation, parameters):
    """Raises Refusal unless the operation's model allows these parameters and values."""
    shape = operation_model(service, operation).input_shape
    faults = shape_faults(shape, parameters, "") if shape is not None else [f"unknown parameter {n}" for n in parameters]
    if faults:
        raise Refusal("ValidationError", f"{service}:{operation}: {'; '.join(faults)}")


@functools.lru_cache(maxsize=None)
def compiled(pattern):
    """Compiles a pattern. AWS's patterns are for Java, and those that Python cannot read are not checked."""
    try:
        return re.compile(pattern)
    except re.error:
        return None


def shape_faults(shape, value, path):
    """Returns the faults of a value by the model, as sentences that name the place in the value."""
    kind, name = shape.type_name, path or shape.name
    if kind == "structure":
        return structure_faults(shape, value, path)
    if kind == "list":
        if not isinstance(value, (list, tuple)):
            return [f"{name} is no list"]
        return size_faults(shape, len(value), name, "members") + [
            f for i, v in enumerate(value) for f in shape_faults(shape.member, v, f"{name}[{i}]")]
    if kind == "map":
        if not isinstance(value, dict):
            return [f"{name} is no map"]
        found = size_faults(shape, len(value), name, "entries")
        for key, v in value.items():
            found += shape_faults(shape.key, key, f"{name} (key)") + shape_faults(shape.value, v, f"{name}.{key}")
        return found
    if kind == "string":
        return string_faults(shape, value, name)
    if kind in NUMBERS:
        if isinstance(value, bool) or not isinstance(value, NUMBERS[kind]):
            return [f"{name} is no {kind}, but {value!r}"]
        return size_faults(shape, value, name, "")
    if kind == "boolean":
        return [] if isinstance(value, bool) else [f"{name} is no boolean, but {value!r}"]
    if kind == "blob":
        if not isinstance(value, (bytes, bytearray, str)) and not hasattr(value, "read"):
            return [f"{name} is no blob"]
        return [] if hasattr(value, "read") else size_faults(shape, len(value), name, "bytes")
    if kind == "timestamp":
        return [] if isinstance(value, (datetime.datetime, int, float, str)) and not isinstance(value, bool) else [f"{name} is no time"]
    raise AssertionError(f"{kind} of {name} is not understood")


def structure_faults(shape, value, path):
    name = path or shape.name
    if shape.is_document_type:
        return []
    if not isinstance(value, dict):
        return [f"{name} is no structure"]
    found = [f"unknown parameter {path + '.' if path else ''}{n}" for n in value if n not in shape.members]
    found += [f"missing parameter {path + '.' if path else ''}{n}" for n in shape.required_members if value.get(n) is None]
    if shape.is_tagged_union and len(value) != 1:
        found.append(f"{name} has one member, not {sorted(value)}")
    for n, v in value.items():
        if n in shape.members:
            found += shape_faults(shape.members[n], v, f"{path}.{n}" if path else n)
    return found


def string_faults(shape, value, name):
    if not isinstance(value, str):
        return [f"{name} is no string, but {value!r}"]
    found = size_faults(shape, len(value), name, "characters")
    if shape.enum and value not in shape.enum:
        found.append(f"{name} is not one of {', '.join(shape.enum[:40])}, but {value!r}")
    pattern = compiled(shape.metadata["pattern"]) if "pattern" in shape.metadata else None
    if pattern is not None and not pattern.fullmatch(value):
        found.append(f"{name} does not match {pattern.pattern}, but is {value[:100]!r}")
    return found


def size_faults(shape, size, name, unit):
    found = []
    if "min" in shape.metadata and size < shape.metadata["min"]:
        found.append(f"{name} has {shape.metadata['min']} {unit} at least, not {size}")
    if "max" in shape.metadata and size > shape.metadata["max"]:
        found.append(f"{name} has {shape.metadata['max']} {unit} at most, not {size}")
    return found
