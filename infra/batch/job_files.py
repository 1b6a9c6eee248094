#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fetches the key and the input of a Batch job, and uploads its output.

    job_files.py key NAME FILE                     a parameter of SSM or a secret of Secrets Manager, into a new FILE
    job_files.py fetch s3://BUCKET/KEY FOLDER      archives are unpacked; with "/" at the end all objects below it
    job_files.py upload [--newest-checkpoint] FOLDER s3://BUCKET/PREFIX NAME SCRATCH     as NAME.tar.gz

Exit codes: 0 done, 2 usage, 3 a file or an object cannot be read or written; the message names the action that the job's role lacks.
"""
import os
import re
import sys
import tarfile
import tempfile
from pathlib import Path

ARCHIVES = (".tar", ".tar.gz", ".tgz")


class Failure(Exception):
    pass


def fail(where, expected, got, hint=""):
    raise Failure(f"[{where}] expected {expected}, got {got}." + (f" hint: {hint}" if hint else ""))


def client(service, region=None):
    import boto3
    from botocore.config import Config
    settings = {"retries": {"max_attempts": 5, "mode": "standard"}, "connect_timeout": 10, "read_timeout": 60}
    region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return boto3.client(service, region_name=region, config=Config(**settings))


def calling(where, expected, action, resource, call):
    """Returns the result of call(). Its error names the action that it needs. Values never appear in a message."""
    from boto3.exceptions import S3UploadFailedError
    from botocore.exceptions import BotoCoreError, ClientError
    try:
        return call()
    except ClientError as e:
        got = e.response.get("Error", {}).get("Code", "an error")
    except S3UploadFailedError as e:
        found = re.search(r"\((\w+)\) when calling", str(e))
        got = found.group(1) if found else "an error"
    except BotoCoreError as e:
        got = type(e).__name__
    fail(where, expected, got, f"the job's role needs {action} on {resource}, which must exist")


def key(name, path):
    arn = name.split(":", 5) if name.startswith("arn:") else None
    if arn is not None and len(arn) == 6 and arn[2] == "secretsmanager":
        secret = calling(f"key {name}", "the job's ssh key", "secretsmanager:GetSecretValue", name,
                         lambda: client("secretsmanager", arn[3]).get_secret_value(SecretId=name)).get("SecretString")
    elif arn is None or (len(arn) == 6 and arn[2] == "ssm" and arn[5].startswith("parameter/")):
        parameter = name if arn is None else arn[5][len("parameter"):]
        if "/" not in parameter[1:]:
            parameter = parameter.lstrip("/")
        secret = calling(f"key {name}", "the job's ssh key", "ssm:GetParameter", name,
                         lambda: client("ssm", arn and arn[3]).get_parameter(Name=parameter, WithDecryption=True)
                         )["Parameter"]["Value"]
    else:
        fail(f"key {name}", "the name or ARN of a parameter of SSM, or the ARN of a secret", "another ARN")
    if not secret:
        fail(f"key {name}", "a private key as text", "nothing")
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(secret.replace("\r\n", "\n").rstrip("\n") + "\n")


def bucket_and_key(url, where):
    match = re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?", url)
    if not match:
        fail(where, "s3://BUCKET/KEY", f'"{url}"')
    return match[1], match[2] or ""


def below(folder, name, where):
    """Returns folder/name, which must be below folder."""
    target = (folder / name).resolve()
    if folder.resolve() not in (target, *target.parents):
        fail(where, "names below the folder", f'"{name}"')
    return target


def unpack(archive, folder, where):
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                target = below(folder, member.name, where)
                if member.isdir():
                    target.mkdir(parents=True, exist_ok=True)
                elif member.isfile():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    source = tar.extractfile(member)
                    # A file of the archive replaces a link of the same name; the link is not followed.
                    if target.is_symlink():
                        target.unlink()
                    with open(target, "wb") as out:
                        while piece := source.read(1 << 20):
                            out.write(piece)
                    os.chmod(target, 0o755 if member.mode & 0o100 else 0o644)
                elif member.issym() or member.islnk():
                    fail(where, "files and folders", f'the link "{member.name}"')
                else:
                    fail(where, "files and folders", f'"{member.name}"')
    except (tarfile.TarError, EOFError, OSError) as e:
        fail(where, "a complete tar archive and room for its files", str(e) or type(e).__name__)


def fetch(url, folder):
    bucket, name = bucket_and_key(url, "S3_INPUT")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    s3 = client("s3")
    where = f"S3_INPUT {url}"
    names = [name]
    if name == "" or name.endswith("/"):
        def listed():
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=name)
            return [o["Key"] for page in pages for o in page.get("Contents", [])]
        names = [n for n in calling(where, "to list it", "s3:ListBucket", f"arn:aws:s3:::{bucket}", listed)
                 if not n.endswith("/")]
        if not names:
            fail(where, "objects below it", "none")
    for n in names:
        target = below(folder, n[len(name):] if n != name else n.rsplit("/", 1)[-1], where)
        target.parent.mkdir(parents=True, exist_ok=True)
        calling(where, "to read it", "s3:GetObject", f"arn:aws:s3:::{bucket}/{n}",
                lambda n=n, target=target: s3.download_file(bucket, n, str(target)))
        if n.endswith(ARCHIVES):
            unpack(target, target.parent, where)
            target.unlink()
    print(f"job_files: fetched {len(names)} objects of {url} to {folder}", flush=True)


def kept(folder, newest_only):
    """Returns a filter for tarfile. With newest_only it drops all checkpoints except the newest complete one."""
    whole = sorted(p.parent.name for p in (folder / "checkpoints").glob("step-*/COMPLETE"))

    def choose(member):
        parts = Path(member.name).parts
        if newest_only and len(parts) > 2 and parts[1] == "checkpoints" and parts[2].startswith("step-"):
            return member if whole and parts[2] == whole[-1] else None
        if newest_only and len(parts) == 3 and parts[1:] == ("checkpoints", "best.json"):
            return None
        return member
    return choose


def upload(folder, url, name, scratch, newest_only):
    bucket, prefix = bucket_and_key(url, "S3_OUTPUT")
    folder = Path(folder)
    target = f"{prefix.rstrip('/')}/{name}.tar.gz".lstrip("/")
    where = f"S3_OUTPUT s3://{bucket}/{target}"
    Path(scratch).mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=scratch, suffix=".tar.gz") as packed:
        try:
            # Compression makes text smaller, but not weights.
            with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
                tar.add(folder, arcname=folder.name, filter=kept(folder, newest_only))
            packed.flush()
        except OSError as e:
            fail(where, f"to pack {folder} in {scratch}", str(e))
        calling(where, "to write it", "s3:PutObject", f"arn:aws:s3:::{bucket}/{target}",
                lambda: client("s3").upload_file(packed.name, bucket, target))
    print(f"job_files: uploaded {folder} to s3://{bucket}/{target}", flush=True)


def main(arguments):
    newest_only = "--newest-checkpoint" in arguments
    words = [a for a in arguments if a != "--newest-checkpoint"]
    try:
        if words[:1] == ["key"] and len(words) == 3 and not newest_only:
            key(*words[1:])
        elif words[:1] == ["fetch"] and len(words) == 3 and not newest_only:
            fetch(*words[1:])
        elif words[:1] == ["upload"] and len(words) == 5:
            upload(*words[1:], newest_only)
        else:
            print(__doc__, file=sys.stderr)
            return 2
    except Failure as e:
        print(f"job_files: {e}", file=sys.stderr)
        return 3
    except OSError as e:
        print(f"job_files: [{words[0]}] expected files that can be written, got {e}.", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
