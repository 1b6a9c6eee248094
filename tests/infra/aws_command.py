# SPDX-License-Identifier: MIT
"""Checks a command of AWS's command line against the models of the services: its service, operation, options and
constants.

    check_command("aws ec2 run-instances --count 1")     raises Refusal; words in capitals are placeholders for the user's values
"""
import re
import shlex

import botocore.loaders
from botocore import xform_name

from service_models import Refusal, operation_model, service_model, shape_faults

# Options of each command, and whether they have a value.
GLOBAL = {"--region": True, "--query": True, "--output": True, "--profile": True, "--endpoint-url": True, "--no-cli-pager": False, "--cli-input-json": True,
          "--no-paginate": False, "--max-items": True, "--starting-token": True, "--page-size": True}
# Commands that the command line itself has.
OWN = {("s3", "cp"): {"--recursive", "--quiet"}, ("s3", "sync"): {"--delete", "--quiet"}, ("s3", "ls"): {"--recursive"}, ("s3", "mb"): set(),
       ("ecr", "get-login-password"): set()}
# For each operation, options that only the command line has, and the parameters that they replace.
MORE = {("ec2", "run-instances"): {"--count": ("--min-count", "--max-count")}}


def check_command(text, whole=True):
    """Raises Refusal if a command is wrong. whole: the command must have all options that the operation needs."""
    words = shlex.split(re.sub(r"\\\n", " ", text), comments=True)
    if words[:1] != ["aws"] or len(words) < 3:
        raise Refusal("InvalidCommand", f"{text!r} is no command of aws")
    service, operation, rest = words[1], words[2], words[3:]
    if (service, operation) in OWN:
        for word in rest:
            if word.startswith("--") and word.split("=")[0] not in OWN[service, operation] | GLOBAL.keys():
                raise Refusal("InvalidCommand", f"aws {service} {operation} has no option {word}")
        return
    if operation == "wait":
        operation, rest = operation_of_waiter(service, rest[0] if rest else ""), rest[1:]
    names = {xform_name(n, "-"): n for n in service_model(service).operation_names}
    if operation not in names:
        raise Refusal("InvalidCommand", f"aws {service} has no {operation}")
    check_options(service, operation, operation_model(service, names[operation]).input_shape, rest, whole)


def operation_of_waiter(service, name):
    waiters = botocore.loaders.create_loader().load_service_model(service, "waiters-2")["waiters"]
    found = {xform_name(n, "-"): w["operation"] for n, w in waiters.items()}
    if name not in found:
        raise Refusal("InvalidCommand", f"aws {service} wait has no {name}")
    return xform_name(found[name], "-")


def check_options(service, operation, shape, words, whole):
    members = {"--" + xform_name(n, "-"): s for n, s in shape.members.items()} if shape is not None else {}
    required = {"--" + xform_name(n, "-") for n in shape.required_members} if shape is not None else set()
    added = MORE.get((service, operation), {})
    given, i = set(), 0
    while i < len(words):
        option, values, i = words[i], [], i + 1
        if not option.startswith("--"):
            raise Refusal("InvalidCommand", f"{option!r} is no option of aws {service} {operation}")
        while i < len(words) and not words[i].startswith("--"):
            values.append(words[i])
            i += 1
        if option in GLOBAL:
            if len(values) != GLOBAL[option]:
                raise Refusal("InvalidCommand", f"{option} has {int(GLOBAL[option])} values, not {len(values)}")
            continue
        plain = "--" + option[5:] if option.startswith("--no-") and "--" + option[5:] in members else option
        if plain not in members and option not in added:
            raise Refusal("InvalidCommand", f"aws {service} {operation} has no option {option}")
        given |= {plain, *added.get(option, ())}
        if plain in members:
            check_values(option, members[plain], values)
    if whole and "--cli-input-json" not in words and required - given:
        raise Refusal("InvalidCommand", f"aws {service} {operation} needs {', '.join(sorted(required - given))}")


def check_values(option, shape, values):
    """Checks constants, and the names in values of the form Name=value,Name=value."""
    if shape.type_name != "boolean" and not values:
        raise Refusal("InvalidCommand", f"{option} has no value")
    if shape.type_name not in ("list", "boolean") and len(values) > 1:
        raise Refusal("InvalidCommand", f"{option} has one value, not {values}")
    for value in values:
        if value.startswith(("file://", "{", "[", "$")) or re.search("[A-Z]{4}", value):
            continue
        member = shape.member if shape.type_name == "list" else shape
        if member.type_name in ("structure", "map") and "=" in value:
            check_pairs(option, member, value)
        elif member.type_name == "string" and shape_faults(member, value, option):
            raise Refusal("InvalidCommand", "; ".join(shape_faults(member, value, option)))
        elif member.type_name in ("integer", "long") and not re.fullmatch(r"-?\d+", value):
            raise Refusal("InvalidCommand", f"{option} is a number, not {value!r}")


def check_pairs(option, shape, value):
    for name in re.findall(r"(?:^|,)([A-Za-z]+)=", value):
        if shape.type_name == "structure" and name not in shape.members:
            raise Refusal("InvalidCommand", f"{option} has no {name}")


def commands_of(text):
    """Returns the commands of aws in the blocks of a page, and those in its sentences, which may lack options.
    """
    whole = []
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            for command in re.findall(r"(?:^|&& |\$\(|; )(aws [a-z0-9]+ [a-z].*)", re.sub(r"\s+#.*", "", line)):
                whole += [c for c in re.split(r" && | \| (?=docker)|\)\"$", command) if c.startswith("aws ")]
    sentences = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return whole, re.findall(r"`(aws [a-z0-9]+ [a-z][^`|&]*)`", sentences)
