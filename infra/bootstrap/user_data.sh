#!/bin/bash
# SPDX-License-Identifier: MIT
# Runs on a host of the cluster at its first boot. The template puts lines `export NAME=value` before it:
#   AWS_DL_NODE_TYPE (Master, Worker or ElasticWorker), AWS_DL_DEFAULT_USER, AWS_DL_STACK_ID, AWS_REGION, AWS_DL_URL_SUFFIX, EFS_FILE_SYSTEM_ID,
#   EFS_MOUNT, TUTTI_PACKAGE (s3://bucket/key, or a path, which begins at EFS_MOUNT unless it begins with /), and the
#   variables of setup_host.py.
# No `set -x`: the address of the wait handle is a secret. No braces after a dollar sign: the template must not contain them.
set -uo pipefail

log=/var/log/dl_cfn_setup.log

say() { echo "$(date -u +%FT%TZ) user_data: $*" | tee -a "$log"; }

# fail WHAT: ends this host's boot. Without a master there is no cluster, so the stack gets the failure at once.
fail() {
  say "error: $1"
  if [ "$(printenv AWS_DL_NODE_TYPE | tr '[:upper:]' '[:lower:]')" = master ] && [ -n "$(printenv AWS_DL_WAIT_HANDLE)" ]; then
    reason=$(printf '%s' "$1" | tr -d '\042\134' | tr -c '[:print:]' ' ' | cut -c 1-400)
    printf '{"Status": "FAILURE", "UniqueId": "user_data", "Reason": "%s", "Data": "%s"}' "$reason" "$log" |
      # --data-binary sends a Content-Length. -T - would send chunks, which S3 answers with 501.
      curl -sS --fail --max-time 60 --retry 3 -X PUT --data-binary @- -H 'Content-Type:' "$AWS_DL_WAIT_HANDLE" >/dev/null 2>&1 ||
      say 'error: the stack could not be told of it'
  fi
  exit 1
}

# quietly COMMAND...: runs it; its output goes only to the log.
quietly() { "$@" >>"$log" 2>&1; }

# apt_install NAME: tries for some minutes. apt-daily runs when an image first boots and holds the lock of the package lists, for
# which DPkg::Lock::Timeout does not wait. If one source stays broken, the others can still be used: from the tenth attempt on the
# package is installed even if the update fails.
apt_install() {
  export DEBIAN_FRONTEND=noninteractive
  for attempt in $(seq 30); do
    if quietly timeout 600 apt-get update || [ "$attempt" -ge 10 ]; then
      quietly timeout 900 apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$1" && return 0
    fi
    say "apt-get cannot install $1 yet, attempt $attempt of 30"
    sleep 10
  done
  return 1
}

# install APT-NAME DNF-NAME
install() {
  if command -v apt-get >/dev/null; then
    apt_install "$1"
  elif command -v dnf >/dev/null; then
    quietly timeout 900 dnf install -y "$2"
  else
    say "neither apt-get nor dnf is available to install $1"
    return 1
  fi
}

# errors_of_install: prints the last error line of apt-get or dnf, for the stack.
errors_of_install() { grep -E '^(E|Error): ' "$log" | tail -n 1; }

mount_efs() {
  kind=nfs4 source=$EFS_FILE_SYSTEM_ID.efs.$AWS_REGION.$AWS_DL_URL_SUFFIX:/
  options=nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2
  if [ -x /sbin/mount.efs ]; then
    kind=efs source=$EFS_FILE_SYSTEM_ID:/ options=tls
  fi
  # Mounts the file system after a reboot: user data does not run again.
  grep -q " $EFS_MOUNT " /etc/fstab 2>/dev/null || echo "$source $EFS_MOUNT $kind $options,_netdev,nofail 0 0" >>/etc/fstab
  mountpoint -q "$EFS_MOUNT" && return 0
  for attempt in 1 2 3 4 5 6; do
    quietly timeout 180 mount -t "$kind" -o "$options" "$source" "$EFS_MOUNT" && return 0
    # It takes a while until the name of a new mount target can be resolved.
    say "$EFS_FILE_SYSTEM_ID is not mounted yet, attempt $attempt"
    sleep 20
  done
  return 1
}

fetch() {
  timeout 600 "$python" - "$TUTTI_PACKAGE" "$1" "$AWS_REGION" <<'PYTHON'
import shutil
import sys
package, file, region = sys.argv[1:]
try:
    if package.startswith("s3://"):
        import boto3
        bucket, _, key = package[len("s3://"):].partition("/")
        boto3.client("s3", region_name=region).download_file(bucket, key, file)
    else:
        shutil.copyfile(package, file)
except Exception as e:
    needs = "; is it there, and does the role allow s3:GetObject on it?" if package.startswith("s3://") else ""
    sys.exit(f"{type(e).__name__}: {e}{needs}")
PYTHON
}

mkdir -p "$(dirname "$log")" /opt/deeplearning && touch "$log" || exit 1
for name in AWS_DL_NODE_TYPE AWS_DL_DEFAULT_USER AWS_DL_STACK_ID AWS_REGION AWS_DL_URL_SUFFIX EFS_FILE_SYSTEM_ID EFS_MOUNT TUTTI_PACKAGE; do
  [ -n "$(printenv "$name")" ] || fail "the environment has no $name"
done
say "$AWS_DL_NODE_TYPE of $AWS_DL_STACK_ID"
python=$(printenv AWS_DL_PYTHON || echo python3)

"$python" -c 'import boto3' 2>/dev/null || install python3-boto3 python3-boto3 || fail "python3-boto3 cannot be installed: $(errors_of_install)"
if ! mountpoint -q "$EFS_MOUNT" && [ ! -x /sbin/mount.efs ] && [ ! -x /sbin/mount.nfs4 ]; then
  install nfs-common nfs-utils || fail "the NFS client cannot be installed: $(errors_of_install)"
fi
mkdir -p "$EFS_MOUNT" || fail "no folder $EFS_MOUNT"
mount_efs || fail "$EFS_FILE_SYSTEM_ID cannot be mounted at $EFS_MOUNT: does port 2049 of its mount target let this host in?"
chown "$AWS_DL_DEFAULT_USER:" "$EFS_MOUNT" || fail "$EFS_MOUNT cannot be given to $AWS_DL_DEFAULT_USER"
say "$EFS_FILE_SYSTEM_ID is at $EFS_MOUNT"

case $TUTTI_PACKAGE in
  s3://* | /*) ;;
  *) TUTTI_PACKAGE=$EFS_MOUNT/$TUTTI_PACKAGE ;;
esac
package=/opt/deeplearning/package.tar
# It takes a while until the role of a new instance is known.
fetched=
for pause in 5 15 30 60 0; do
  why=$(fetch "$package" 2>&1) && fetched=yes && break
  sleep "$pause"
done
[ -n "$fetched" ] || fail "$TUTTI_PACKAGE cannot be fetched: $(echo "$why" | grep . || echo 'not within 600 s')"
rm -rf /opt/tutti.new
mkdir /opt/tutti.new || fail 'no folder /opt/tutti.new'
quietly tar -x -f "$package" -C /opt/tutti.new --strip-components=1 --no-same-owner || fail "$TUTTI_PACKAGE is no archive, or /opt is full"
[ -f /opt/tutti.new/share/tutti/bootstrap/setup_host.py ] || fail "$TUTTI_PACKAGE has no share/tutti/bootstrap/setup_host.py"
rm -rf /opt/tutti "$package"
mv /opt/tutti.new /opt/tutti || fail '/opt/tutti cannot be replaced'
say "$TUTTI_PACKAGE is in /opt/tutti"

# setup_host.py reports its own failures to the stack.
cd /opt/deeplearning && exec "$python" /opt/tutti/share/tutti/bootstrap/setup_host.py
