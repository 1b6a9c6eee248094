# SPDX-License-Identifier: MIT
"""Makes moto refuse requests that the published models do not allow: unknown operations, parameters, types, values, and
missing parameters; and instances whose image is for another processor than their type.

    with strict(): ...      the same for moto in this process and for its server
"""
import contextlib
import functools
import json
import unittest.mock
from xml.sax.saxutils import escape

import botocore.exceptions
from moto.autoscaling.exceptions import ValidationError
from moto.autoscaling.models import FakeAutoScalingGroup
from moto.core.parse import PROTOCOL_PARSERS
from moto.core.request import determine_request_protocol
from moto.core.responses import BaseResponse
from moto.core.routing import get_service_router
from moto.core.utils import get_service_model
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import InstanceBackend
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound

from service_models import shape_faults

router_of = functools.lru_cache(maxsize=None)(get_service_router)
# Parameters of the query protocol and of signed addresses.
ENVELOPE = {"Action", "Version", "AWSAccessKeyId", "Signature", "SignatureMethod", "SignatureVersion", "Timestamp", "SecurityToken", "Expires"}
JSON_TYPES = {"structure": dict, "map": dict, "list": list, "string": str, "boolean": bool, "integer": int, "long": int,
              "float": (int, float), "double": (int, float), "blob": str, "timestamp": (int, float, str)}


class Answer(HTTPException):
    """An error in the form of the service's protocol."""

    def __init__(self, service, protocol, status, code, message):
        super().__init__(message)
        self.code, self.json = status, "json" in protocol
        error = f"<Error><Code>{escape(code)}</Code><Message>{escape(message)}</Message></Error>"
        if self.json:
            self.body = json.dumps({"__type": code, "message": message, "Message": message})
        elif protocol == "ec2":
            self.body = f"<Response><Errors>{error}</Errors><RequestID>r</RequestID></Response>"
        else:
            self.body = error if service == "s3" else f"<ErrorResponse>{error}<RequestId>r</RequestId></ErrorResponse>"
        self.headers = [("Content-Type", "application/x-amz-json-1.1" if self.json else "text/xml"), ("x-amzn-errortype", code)]

    def get_headers(self, *_, **__):
        return self.headers

    def get_body(self, *_, **__):
        return self.body


class Asked:
    """The parameters of a query. Records which parameters were read by the service's model."""

    def __init__(self, values):
        self.values, self.names = values, set()

    def get(self, name, default=None):
        self.names.add(name)
        return self.values.get(name, default)

    def getlist(self, name):
        self.names.add(name)
        return self.values.getlist(name)

    def to_dict(self, **options):
        self.names.update(self.values)
        return self.values.to_dict(**options)

    def __iter__(self):
        return iter(self.values)

    def left(self):
        return [n for n in self.values if n not in self.names and n not in ENVELOPE and not n.lower().startswith("x-amz-") and n != "x-id"]


def json_faults(shape, value, path):
    """Returns the faults of a JSON body: names that its model does not have, and types that a parser would convert."""
    if value is None or getattr(shape, "is_document_type", False):
        return []
    wanted = JSON_TYPES[shape.type_name]
    if not isinstance(value, wanted) or (isinstance(value, bool) and shape.type_name != "boolean"):
        return [f"{path or shape.name} is no {shape.type_name}, but {str(value)[:100]!r}"]
    found = []
    if shape.type_name == "structure":
        members = {s.serialization.get("name", n): s for n, s in shape.members.items() if s.serialization.get("location") is None}
        for name, v in value.items():
            if name not in members:
                found.append(f"unknown parameter {path + '.' if path else ''}{name}")
            else:
                found += json_faults(members[name], v, f"{path}.{name}" if path else name)
    elif shape.type_name == "list":
        found += [f for v in value for f in json_faults(shape.member, v, path)]
    elif shape.type_name == "map":
        found += [f for v in value.values() for f in json_faults(shape.value, v, path)]
    return found


def operation_of(response, request, service, protocol):
    """Returns the name of the operation, and the parameters that are in the address."""
    if not protocol.startswith("rest"):
        return response._get_action(), {}
    try:
        operation, parameters = router_of(service.service_name).match(request)
    except (NotFound, MethodNotAllowed):
        return None, {}
    return operation.name, parameters


def request_faults(url_parameters, request, protocol, operation):
    """Returns the faults of a request as sentences, or an empty list if the model allows the request."""
    shape, values = operation.input_shape, Asked(request.values)
    if shape is None:
        return [f"unknown parameter {n}" for n in values.left()]
    found = []
    if "json" in protocol and request.data and "payload" not in shape.serialization:
        try:
            found += json_faults(shape, json.loads(request.data), "")
        except ValueError as e:
            return [f"the body is no JSON: {e}"]
    if found:
        return found
    parser = PROTOCOL_PARSERS[protocol](operation, map_type=dict)
    try:
        parsed = parser.parse({"method": request.method, "values": values, "headers": request.headers, "body": request.data,
                               "url_path": request.path, "url_params": url_parameters})
    except (ValueError, TypeError) as e:
        return [f"a value of another type: {e}"]
    if protocol in ("query", "ec2"):
        found += [f"unknown parameter {n}" for n in values.left()]
    return found + shape_faults(shape, parsed, "")


def check_request(response, request):
    try:
        service = get_service_model(response.boto3_service_name)
    except botocore.exceptions.UnknownServiceError:
        return  # moto's own page
    protocol = determine_request_protocol(service, request.content_type)
    length = request.headers.get("Content-Length")
    error = functools.partial(Answer, service.service_name, protocol)
    if service.service_name == "s3":
        if "chunked" in request.headers.get("Transfer-Encoding", "") and not request.headers.get("X-Amz-Decoded-Content-Length"):
            raise error(501, "NotImplemented", "A header you provided implies functionality that is not implemented: Transfer-Encoding")
        if request.method == "PUT" and length is None and not request.headers.get("Transfer-Encoding"):
            raise error(411, "MissingContentLength", "You must provide the Content-Length HTTP header.")
    name, url_parameters = operation_of(response, request, service, protocol)
    if name not in service.operation_names:
        raise error(404 if protocol.startswith("rest") else 400, "InvalidAction" if protocol in ("query", "ec2") else "UnknownOperationException",
                    f"there is no operation {name or request.method + ' ' + request.path}")
    faults = request_faults(url_parameters, request, protocol, service.operation_model(name))
    if faults:
        raise error(400, "ValidationError" if "json" not in protocol else "ValidationException", f"{name}: {'; '.join(faults)}")


def _setup_class(original):
    @functools.wraps(original)
    def setup_class(self, request, *arguments, **named):
        try:
            return original(self, request, *arguments, **named)
        finally:
            # Also checks a request that moto failed to read, so that the answer is a refusal instead of status 500.
            check_request(self, request)
    return setup_class


def processor_fault(backend, instance_type, image_id):
    """Returns EC2's words if the type and the image are for different processors, else `None`. An unknown type or image is for none."""
    known = INSTANCE_TYPES.get(instance_type, {}).get("ProcessorInfo", {}).get("SupportedArchitectures", [])
    images = [image for image in backend.amis.values() if image.id == image_id]
    if not known or not images or images[0].architecture in known:
        return None
    return (f"The architecture '{known[0]}' of the specified instance type does not match the architecture '{images[0].architecture}' of the "
            "specified AMI. Specify an instance type and an AMI that have matching architectures, and try again. You can use "
            "'describe-instance-types' or 'describe-images' to discover the architecture of the instance type or AMI.")


def _run_instances(original):
    @functools.wraps(original)
    def run_instances(self, image_id, count, user_data, security_group_names, **named):
        template, instance_type = named.get("launch_template"), named.get("instance_type")
        image = image_id
        if template:
            version = self._get_template_from_args(template)
            image = image or version.image_id
            instance_type = (named.get("is_instance_type_default") and version.data.get("InstanceType")) or instance_type
        fault = processor_fault(self, instance_type, image)
        if fault:
            raise EC2ClientError("InvalidParameterValue", fault)
        return original(self, image_id, count, user_data, security_group_names, **named)
    return run_instances


def _set_launch_configuration(original):
    @functools.wraps(original)
    def set_launch_configuration(self, *arguments, **named):
        original(self, *arguments, **named)
        if self.ec2_launch_template is not None:
            version = self.ec2_launch_template.get_version(self.launch_template_version)
            fault = processor_fault(self.ec2_backend, version.data.get("InstanceType"), version.image_id)
            if fault:
                raise ValidationError(f"You must use a valid fully-formed launch template. {fault}")
    return set_launch_configuration


@contextlib.contextmanager
def strict():
    with contextlib.ExitStack() as patches:
        for owner, name, wrap in ((BaseResponse, "setup_class", _setup_class), (InstanceBackend, "run_instances", _run_instances),
                                  (FakeAutoScalingGroup, "_set_launch_configuration", _set_launch_configuration)):
            patches.enter_context(unittest.mock.patch.object(owner, name, wrap(getattr(owner, name))))
        yield
