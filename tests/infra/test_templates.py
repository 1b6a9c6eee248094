#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests the templates below infra/: generated from their source, accepted by cfn-lint, with parameters that refuse bad
values; and the user data that they give to hosts."""
import ast
import base64
import gzip
import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import moto
import yaml
from templates import INFRA, Loader, Stack, all_templates, load, refusals, unproved_constraints

FOLDER = INFRA / "cloudformation"
sys.path.insert(0, str(FOLDER / "source"))
import generate as generator  # noqa: E402

TEMPLATES = {name: load(FOLDER / f"{name}.yaml") for name in ("cluster", "elastic")}
PACKAGE = {"TuttiPackage": "s3://my-bucket/tutti-1.0.tar.xz"}
ZONE = {"AvailabilityZone": "us-east-1b"}


def generate(folder, *options):
    return subprocess.run([sys.executable, folder / "source/generate.py", *options], text=True, capture_output=True, timeout=300)


class Generated(unittest.TestCase):
    def test_templates_equal_the_generated_ones(self):
        done = generate(FOLDER, "--check")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_change_in_either_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            infra = Path(folder) / "infra"
            shutil.copytree(FOLDER, infra / "cloudformation")
            shutil.copytree(INFRA / "bootstrap", infra / "bootstrap")
            copied = infra / "cloudformation"
            self.assertEqual(generate(copied, "--check").returncode, 0)
            (copied / "elastic.yaml").write_text((copied / "elastic.yaml").read_text() + "\n")
            self.assertIn("expected elastic.yaml as generated", generate(copied, "--check").stderr)
            self.assertEqual(generate(copied).returncode, 0)
            script = infra / "bootstrap/user_data.sh"
            script.write_text(script.read_text() + "echo one more line\n")
            self.assertIn("expected cluster.yaml and elastic.yaml as generated", generate(copied, "--check").stderr)
            script.write_text(script.read_text() + "echo\n" * 10000)
            self.assertIn("expected at most 51200 bytes", generate(copied).stderr)

    def test_narrow_lines_have_the_same_meaning(self):
        for name in TEMPLATES:

            with unittest.mock.patch.object(generator, "narrowed", lambda lines: lines), unittest.mock.patch.object(generator, "LARGEST", 1 << 20):
                wide = generator.generate(name)
            narrow = generator.generate(name)
            self.assertLess(len(narrow), 0.95 * len(wide))
            self.assertEqual(yaml.load(narrow, Loader), yaml.load(wide, Loader))
            self.assertNotIn("#:", narrow)

    def test_wrong_directive_is_named(self):
        for wrong in ("#: end", "#: if batch", "#: if elastic\n#: if elastic", "#: nothing"):
            with tempfile.TemporaryDirectory() as folder:
                copied = Path(folder) / "cloudformation"
                shutil.copytree(FOLDER, copied)
                (copied / "source/template.yaml").write_text(wrong + "\n")
                done = generate(copied)
                self.assertEqual(done.returncode, 1, wrong)
                self.assertIn("[generate] expected", done.stderr)


class Lint(unittest.TestCase):
    def lint(self, *paths):
        return subprocess.run([Path(sys.executable).parent / "cfn-lint", "--format", "parseable", *paths], text=True,
                              capture_output=True, timeout=300)

    def test_every_template_is_clean(self):
        self.assertGreaterEqual(len(all_templates()), 2)
        done = self.lint(*all_templates())
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stdout + done.stderr)

    def test_broken_template_is_not_clean(self):
        with tempfile.TemporaryDirectory() as folder:
            broken = Path(folder) / "broken.yaml"
            broken.write_text((FOLDER / "cluster.yaml").read_text().replace("Runtime: python3.13", "Runtime: python2.7")
                              .replace("CidrBlock: !FindInMap", "CidrBlok: !FindInMap"))
            done = self.lint(broken)
            self.assertIn("E2533", done.stdout)
            self.assertIn("E3002", done.stdout)

    def test_each_fits_into_a_request(self):
        for name in TEMPLATES:
            self.assertLessEqual((FOLDER / f"{name}.yaml").stat().st_size, 51200)


SYSTEM_FOLDERS = "bin boot dev etc home lib lib64 opt proc root run sbin sys tmp usr var".split()
# For each parameter: its default (`None` if it is required), values to accept, values to refuse.
PARAMETERS = {
    "KeyName": ("", ["", "my-key", "a key of mine", "k" * 255], ["k" * 256, " key", "clé", "key\n"]),
    "WorkerCount": ("1", ["1", "31"], ["0", "-1", "many", ""]),
    "InstanceType": ("g5.xlarge", ["g4dn.xlarge", "p4d.24xlarge", "c5.18xlarge", "t3.large", "c7g.16xlarge", "m8g.48xlarge"],
                     ["p3.2xlarge", "x1.16large", "p2.xlarge", "g5g.xlarge", "c7g.48xlarge", "hpc7g.16xlarge", "", "G5.xlarge"]),
    "ImageType": ("Ubuntu", ["Ubuntu", "Ubuntu2204", "AmazonLinux", "AmazonLinux2023"],
                  ["AmazonLinux2", "ubuntu", "Ubuntu2004", "Windows", ""]),
    "AmiId": ("", ["", "ami-12345678", "ami-0123456789abcdef0"], ["ami-1234567", "ami-0123456789ABCDEF0", "latest", "ami-"]),
    "RootVolumeSize": ("100", ["100", "16384"], ["99", "16385", "big"]),
    "AvailabilityZone": ("", ["", "us-east-1a", "ap-southeast-2c", "us-gov-west-1b"], ["us-east-1", "a", "us-east-1a,us-east-1b"]),
    "PlacementGroup": ("true", ["true", "false"], ["True", ""]),
    "Efa": ("true", ["true", "false"], ["yes", ""]),
    "PurchaseOption": ("on-demand", ["on-demand", "spot-workers", "capacity-block"], ["spot", ""]),
    "CapacityReservationId": ("", ["", "cr-12345678", "cr-0123456789abcdef0"], ["cr-1234567", "ami-12345678", "cr-0123456789ABCDEF0"]),
    "SSHLocation": ("", ["", "203.0.113.7/32", "10.0.0.0/8", "0.0.0.0/0"],
                    ["203.0.113.7", "1.2.3/24", "256.0.0.1/32", "10.0.0.0/33", "::/0", "my house", "1.2.3.4/32; rm -r /"]),
    "EFSFileSystemId": ("", ["", "fs-12345678", "fs-0123456789abcdef0"], ["fs-1234567", "fs-123456789", "12345678", "fs-1234567G"]),
    "EFSThroughputMode": ("elastic", ["elastic", "bursting"], ["provisioned", "Elastic", ""]),
    "EFSMountPoint": ("myEFSvolume", ["myEFSvolume", "mnt/efs", "data_1"],
                      ["", "/efs", "../etc", "a//b", "a/", "it's", "a b", "$(reboot)", "a/../b", "x" * 201, *SYSTEM_FOLDERS]),
    "TuttiPackage": (None, ["s3://my-bucket/tutti.tar", "s3",  "s3://my.bucket/a/b+c=d/tutti-1.0.tar.xz", "tutti.tar", "/myEFSvolume/tutti.tar"],
                     ["", "s3://", "s3://bucket", "s3://bucket/", "s3://Bucket/key", "http://host/tutti.tar", "it's.tar", "a b.tar",
                      "../tutti.tar", "s3://bucket/a'b", "s3://bucket/*", "s3://bucket/${AWS::Region}", "x" * 1001]),
}
ELASTIC = {
    "EnableElasticTraining": ("true", ["true", "false"], ["True", "yes", ""]),
    "PrepareDataScriptPath": ("/myEFSvolume/prepare-data.py", ["/myEFSvolume/prepare-data.py", "/efs/a_b/c.sh"],
                              ["", "prepare-data.py", "/efs/../etc/passwd", "/efs/it's", "/efs/a b", "/", "/efs/", "/" + "x" * 1000]),
}


class Parameters(unittest.TestCase):
    def each(self):
        for name, template in TEMPLATES.items():
            yield template, {**PARAMETERS, **(ELASTIC if name == "elastic" else {})}

    def test_names_and_defaults(self):
        for template, expected in self.each():
            self.assertEqual(set(template["Parameters"]), set(expected))
            for name, (default, _, _) in expected.items():
                found = template["Parameters"][name].get("Default")
                self.assertEqual(None if found is None else str(found), default, name)

    def test_each_description_names_its_values(self):
        for template, _ in self.each():
            for name, p in template["Parameters"].items():
                self.assertRegex(p["ConstraintDescription"], r"^must be .*\.$", name)
                self.assertTrue(p["Description"].endswith((".", ")")), name)

    def test_good_values_are_accepted(self):
        for template, expected in self.each():
            for name, (_, good, _) in expected.items():
                for value in good:
                    given = {**PACKAGE, name: value}
                    if name == "SSHLocation" and value:
                        given["KeyName"] = "my-key"
                    if name == "CapacityReservationId" and value:
                        given.update(ZONE)
                    if value == "capacity-block":
                        given.update(ZONE, CapacityReservationId="cr-12345678")
                    self.assertEqual(refusals(template, given), [], f"{name}={value}")
                    Stack(template, **given)  # its functions can be evaluated

    def test_bad_values_are_refused_with_the_description(self):
        for template, expected in self.each():
            for name, (_, _, bad) in expected.items():
                for value in bad:
                    said = refusals(template, {**PACKAGE, name: value})
                    self.assertEqual(len(said), 1, f"{name}={value!r}")
                    self.assertTrue(said[0].startswith(f"{name} must be "), said)

    def test_every_constraint_refuses_some_value(self):
        for template, expected in self.each():
            self.assertEqual(unproved_constraints(template, PACKAGE, {name: bad for name, (_, _, bad) in expected.items()}), [])

    def test_package_is_required(self):
        for template, _ in self.each():
            self.assertEqual(refusals(template, {}), ["TuttiPackage must have a value"])

    def test_ssh_from_outside_needs_a_key(self):
        for template, _ in self.each():
            said = refusals(template, {**PACKAGE, "SSHLocation": "203.0.113.7/32"})
            self.assertEqual(len(said), 1)
            self.assertIn("without a KeyName", said[0])
            self.assertEqual(refusals(template, {**PACKAGE, "KeyName": "my-key"}), [])

    def test_every_parameter_has_an_effect(self):
        other = {"KeyName": "my-key", "WorkerCount": "3", "InstanceType": "c5.large", "ImageType": "AmazonLinux", "AmiId": "ami-12345678",
                 "RootVolumeSize": "200", **ZONE, "PlacementGroup": "false", "Efa": "false", "PurchaseOption": "spot-workers",
                 "CapacityReservationId": "cr-12345678", "SSHLocation": "203.0.113.7/32", "EFSFileSystemId": "fs-12345678",
                 "EFSThroughputMode": "bursting", "EFSMountPoint": "efs", "TuttiPackage": "tutti.tar", "EnableElasticTraining": "false",
                 "PrepareDataScriptPath": "/efs/other.py"}
        for template, expected in self.each():
            plain = {**PACKAGE, "InstanceType": "p4d.24xlarge"}
            for name in expected:
                self.assertNotEqual(Stack(template, **{**plain, name: other[name]}).resources, Stack(template, **plain).resources, name)


class Images(unittest.TestCase):
    def image(self, **parameters):
        stack = Stack(TEMPLATES["elastic"], **PACKAGE, **parameters)
        found = {r["Properties"]["LaunchTemplateData"]["ImageId"] for r in stack.resources.values() if r["Type"] == "AWS::EC2::LaunchTemplate"}
        self.assertEqual(len(found), 1)
        return found.pop()

    def test_one_image_for_each_type_of_host(self):
        prefix = "{{resolve:ssm:/aws/service/"
        gpu = prefix + "deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-"
        self.assertEqual(self.image(), gpu + "ubuntu-24.04/latest/ami-id}}")
        self.assertEqual(self.image(ImageType="Ubuntu2204"), gpu + "ubuntu-22.04/latest/ami-id}}")
        self.assertEqual(self.image(ImageType="AmazonLinux", InstanceType="p5.48xlarge"), gpu + "amazon-linux-2023/latest/ami-id}}")
        self.assertEqual(self.image(InstanceType="c5.large"),
                         prefix + "canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id}}")
        self.assertEqual(self.image(InstanceType="c5.large", ImageType="Ubuntu2204"),
                         prefix + "canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id}}")
        self.assertEqual(self.image(ImageType="AmazonLinux2023", InstanceType="t3.large"),
                         prefix + "ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64}}")

    def test_arm_processors_have_images_of_their_own(self):
        prefix = "{{resolve:ssm:/aws/service/"
        self.assertEqual(self.image(InstanceType="c8g.large"), prefix + "canonical/ubuntu/server/24.04/stable/current/arm64/hvm/ebs-gp3/ami-id}}")
        self.assertEqual(self.image(InstanceType="m7g.large", ImageType="Ubuntu2204"),
                         prefix + "canonical/ubuntu/server/22.04/stable/current/arm64/hvm/ebs-gp2/ami-id}}")
        for name in ("AmazonLinux", "AmazonLinux2023"):
            self.assertEqual(self.image(InstanceType="c7g.large", ImageType=name),
                             prefix + "ami-amazon-linux-latest/al2023-ami-kernel-default-arm64}}")

    def test_image_has_the_processor_of_the_type(self):
        """Compares the image of each type with the answer of DescribeInstanceTypes in moto."""
        with gzip.open(Path(moto.__file__).parent / "ec2/resources/instance_types.json.gz") as file:
            types = json.load(file)
        for name, kind in generator.instance_types():
            if name in types:
                processor, = types[name]["ProcessorInfo"]["SupportedArchitectures"]
                self.assertEqual(kind == "arm", processor == "arm64", name)
            for system in ("Ubuntu", "Ubuntu2204", "AmazonLinux", "AmazonLinux2023"):
                self.assertEqual("arm64" in self.image(InstanceType=name, ImageType=system), kind == "arm", name)

    def test_image_of_the_user(self):
        self.assertEqual(self.image(AmiId="ami-12345678"), "ami-12345678")

    def test_every_allowed_type_has_an_image(self):
        for template in TEMPLATES.values():
            for name, kind in generator.instance_types():
                self.assertEqual(refusals(template, {**PACKAGE, "InstanceType": name}), [])
                self.assertEqual(Stack(template, **PACKAGE, InstanceType=name).condition("HasGpus"), kind == "gpu", name)

    def test_images_are_chosen_by_family_of_the_type(self):
        types = [name for name, _ in generator.instance_types()]
        self.assertEqual(len(types), len(set(types)))
        sizes = {name.split(".")[1] for name in types}
        families = {name.split(".")[0] for name in types}
        self.assertLessEqual({"p6-b200", "p6-b300", "g7", "g7e", "c7a", "m8i", "c7g", "c8g"}, families)
        for template in TEMPLATES.values():
            taken = [name for name in (f"{f}.{s}" for f in families | {"p3", "g5g", "c6g", "hpc7g", "x1"} for s in sizes | {"16large", "nano", ""})
                     if not refusals(template, {**PACKAGE, "InstanceType": name})]
            self.assertEqual(sorted(taken), sorted(types))
            for family in families:
                self.assertRegex(template["Parameters"]["InstanceType"]["ConstraintDescription"], rf"[ ,]{family}\b")

    def test_aws_has_every_type(self):
        """Compares the instance types with the list in botocore's model of EC2's API."""
        import botocore.session
        known = botocore.session.get_session().get_service_model("ec2").shape_for("InstanceType").enum
        self.assertEqual([name for name, _ in generator.instance_types() if name not in known], [])


def user_data(stack):
    """Returns {role: script in the user data}."""
    found = {}
    for name, resource in stack.resources.items():
        if resource["Type"] == "AWS::EC2::LaunchTemplate":
            text = base64.b64decode(resource["Properties"]["LaunchTemplateData"]["UserData"]).decode()
            found[name.replace("LaunchTemplate", "")] = text
    return found


def exports(script):
    return dict(re.findall(r"^export (\w+)='([^'\n]*)'$", script, re.M))


class UserData(unittest.TestCase):
    CASES = [dict(zip(("ImageType", "InstanceType", "EFSFileSystemId", "KeyName", "TuttiPackage"), values))
             for values in itertools.product(("Ubuntu", "Ubuntu2204", "AmazonLinux2023"), ("g5.xlarge", "c5.large"), ("", "fs-12345678"), ("", "my-key"),
                                             ("s3://my-bucket/tutti.tar", "tutti.tar"))]

    def test_exported_variables(self):
        common = {"AWS_DL_DEFAULT_USER": "ubuntu", "AWS_DL_STACK_ID": Stack(TEMPLATES["cluster"], **PACKAGE).reference("AWS::StackId"),
                  "AWS_DL_FORWARD_AGENT": "false", "AWS_REGION": "us-east-1", "AWS_DL_URL_SUFFIX": "amazonaws.com", "EFS_FILE_SYSTEM_ID": "<FileSystem>",
                  "EFS_MOUNT": "/myEFSvolume", "TUTTI_PACKAGE": PACKAGE["TuttiPackage"]}
        queues = {"AWS_DL_MASTER_QUEUE": "<MasterQueue.QueueName>", "AWS_DL_WORKER_QUEUE": "<WorkerQueue.QueueName>",
                  "AWS_DL_WAITCONDITION_TIMEOUT": "3300", "AWS_DL_MASTERLAUNCH_TIMEOUT": "600"}
        master = {**common, **queues, "AWS_DL_NODE_TYPE": "Master", "AWS_DL_ROLE_NAME": "<MasterRole>", "AWS_DL_WAIT_HANDLE": "<myWaitHandle>"}
        worker = {**common, **queues, "AWS_DL_NODE_TYPE": "Worker", "AWS_DL_ROLE_NAME": "<WorkerRole>"}
        scripts = user_data(Stack(TEMPLATES["cluster"], **PACKAGE))
        self.assertEqual({role: exports(text) for role, text in scripts.items()}, {"Master": master, "Worker": worker})
        scripts = user_data(Stack(TEMPLATES["elastic"], **PACKAGE))
        elastic = {"AWS_DL_ENABLE_ELASTIC_TRAINING": "true", "WORKER_LAUNCH_TEMPLATE_ID": "<ElasticWorkerLaunchTemplate>",
                   "ELASTIC_WORKER_TAG": "train-aws-dl-cfn-elastic-worker"}
        self.assertEqual({role: exports(text) for role, text in scripts.items()},
                         {"Master": {**master, **elastic}, "Worker": worker,
                          "ElasticWorker": {**common, "AWS_DL_NODE_TYPE": "ElasticWorker",
                                            "PREPARE_DATA_SCRIPT": "/myEFSvolume/prepare-data.py"}})

    def test_values_follow_the_parameters(self):
        for case, template in itertools.product(self.CASES, TEMPLATES.values()):
            for text in user_data(Stack(template, **case)).values():
                found = exports(text)
                self.assertEqual(found["AWS_DL_DEFAULT_USER"], "ubuntu" if case["ImageType"].startswith("Ubuntu") else "ec2-user")
                self.assertEqual(found["AWS_DL_FORWARD_AGENT"], "true" if case["KeyName"] else "false")
                self.assertEqual(found["EFS_FILE_SYSTEM_ID"], case["EFSFileSystemId"] or "<FileSystem>")
                self.assertEqual(found["TUTTI_PACKAGE"], case["TuttiPackage"])

    def test_user_data_is_the_script_of_the_bootstrap(self):
        script = (INFRA / "bootstrap/user_data.sh").read_text()
        code = [line for line in script.splitlines()[1:] if not line.lstrip().startswith("#")]
        for template in TEMPLATES.values():
            for text in user_data(Stack(template, **PACKAGE)).values():
                self.assertTrue(text.startswith("#!/bin/bash\nexport "))
                self.assertEqual([line for line in text.splitlines() if not line.startswith(("#", "export AWS_", "export EFS_", "export TUTTI_",
                                  "export WORKER_", "export ELASTIC_", "export PREPARE_"))], code)

    def test_names_of_aws_follow_the_partition(self):
        for template in TEMPLATES.values():
            for text in user_data(Stack(template, **PACKAGE)).values():
                self.assertEqual([line for line in text.splitlines() if "amazonaws.com" in line], ["export AWS_DL_URL_SUFFIX='amazonaws.com'"])
                self.assertIn("$EFS_FILE_SYSTEM_ID.efs.$AWS_REGION.$AWS_DL_URL_SUFFIX:/", text)

    def test_user_data_fits_into_ec2(self):
        for name, template in TEMPLATES.items():
            for role, text in user_data(Stack(template, **PACKAGE)).items():
                self.assertLess(len(text.encode()), 16384 - 1024, f"{name} {role}")  # leaves room for long names

    def check(self, command, text):
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
            file.write(text)
            file.flush()
            done = subprocess.run([*command, file.name], text=True, capture_output=True, timeout=900)
            return done.returncode, done.stdout + done.stderr

    def test_bash_reads_it(self):
        for case in self.CASES[::5]:
            for text in user_data(Stack(TEMPLATES["elastic"], **case)).values():
                self.assertEqual(self.check(["bash", "-n"], text), (0, ""))
                self.assertNotEqual(self.check(["bash", "-n"], text.replace("fi\n", "\n", 1))[0], 0)

    @unittest.skipUnless(shutil.which("shellcheck"), "no shellcheck (Debian: apt-get install shellcheck)")
    def test_shellcheck_is_clean(self):
        for text in user_data(Stack(TEMPLATES["elastic"], **PACKAGE)).values():
            self.assertEqual(self.check(["shellcheck", "-S", "warning"], text), (0, ""))
        self.assertNotEqual(self.check(["shellcheck", "-S", "warning"], text + "\nfor f in $(cat x | grep y) ; do\n  rm -rf \"$STEAMROOT/\"*\ndone\ncd /x\n")[0], 0)


class Code(unittest.TestCase):
    def test_function_needs_only_modules_of_lambda(self):
        for template in TEMPLATES.values():
            code = template["Resources"]["ResourceMetadataLambdaFunction"]["Properties"]["Code"]["ZipFile"]
            tree = ast.parse(code, feature_version=(3, 9))
            imported = {n.name for node in ast.walk(tree) if isinstance(node, ast.Import) for n in node.names}
            self.assertEqual(imported, {"json", "logging", "os", "boto3"})
            self.assertFalse([node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)])


if __name__ == "__main__":
    unittest.main()
