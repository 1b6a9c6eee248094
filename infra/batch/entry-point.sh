#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The first process of a node's container. It sets up ssh between the nodes, runs mpi-run.sh, and exits with its code.
#   entry-point.sh [--one-node] [--key NAME] [PROGRAM ARGUMENT...]
# --one-node is for a job of a single container, for which Batch sets no number of nodes. The container shares the host's network:
# sshd listens on port 2222, and the interface is that of the default route.
# NAME is the job's private ssh key: a parameter of SSM, its ARN, or the ARN of a secret of Secrets Manager. The variable SSH_KEY
# may hold NAME too. PROGRAM and the variables of the job: see mpi-run.sh.
#   BATCH_STATE_DIR  folder of hostfile and batch-exit-code               /tmp
#   SSH_PORT         of the nodes                                          22, or 2222 with --one-node
# Exit codes: the training's, or 1 if it left no code, 2 usage, 3 a key or a file that cannot be read, 5 a node that
# did not report, 143 stopped by Batch with the state saved.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
say() { printf 'entry-point: %s\n' "$*" >&2; }

export BATCH_STATE_DIR=${BATCH_STATE_DIR:-/tmp} BATCH_SSH_DIR=/run/batch-ssh
one_node=
key=${SSH_KEY:-}
while (($#)); do
  case $1 in
    --key)
      (($# >= 2)) || { say "[--key] expected the name of a parameter or a secret, got no name." && exit 2; }
      key=$2
      shift 2
      ;;
    --one-node) one_node=1 && shift ;;
    --key=*) key=${1#--key=} && shift ;;
    --) shift && break ;;
    -*) say "[$1] expected --key NAME, --one-node or a program, got an option that does not exist." && exit 2 ;;
    *) break ;;
  esac
done
export SSH_PORT=${SSH_PORT:-${one_node:+22}22}
if [[ -n $one_node ]]; then
  export AWS_BATCH_JOB_NODE_INDEX=0 AWS_BATCH_JOB_NUM_NODES=1 AWS_BATCH_JOB_MAIN_NODE_INDEX=0
  if [[ -z ${INTERFACE:-} ]]; then
    route=$(ip -4 route show default 2>/dev/null | head -n 1) || true
    if [[ $route =~ \ dev\ ([^\ ]+) ]]; then export INTERFACE=${BASH_REMATCH[1]}; fi
  fi
fi
if [[ -z $key || $key == Ref::* ]]; then
  say "[key] expected the name of the job's ssh key, got no name." \
    "hint: give the job definition's parameter SshKey, or the variable SSH_KEY, a parameter of SSM or the ARN of a secret."
  exit 2
fi
rm -f "$BATCH_STATE_DIR"/{hostfile,hostfile-deduped,batch-exit-code}
mkdir -p "$BATCH_STATE_DIR" /run/sshd
rm -rf "$BATCH_SSH_DIR"
mkdir -m 0700 "$BATCH_SSH_DIR"
"${PYTHON:-python3}" "$here/job_files.py" key "$key" "$BATCH_SSH_DIR/key"
if ! ssh-keygen -y -P '' -f "$BATCH_SSH_DIR/key" >"$BATCH_SSH_DIR/key.pub" 2>/dev/null; then
  say "[key $key] expected a private key without a passphrase, as ssh-keygen writes it, got something else."
  exit 3
fi

# The job's key identifies its nodes: it is both the key for logging in and the host key, so that no other host can pose as
# a node.
public=$(cut -d ' ' -f 1,2 "$BATCH_SSH_DIR/key.pub")
echo "$public" >"$BATCH_SSH_DIR/authorized_keys"
echo "batch-job $public" >"$BATCH_SSH_DIR/known_hosts"
cat >"$BATCH_SSH_DIR/ssh_config" <<SSH
Host *
  Port $SSH_PORT
  User $(id -un)
  IdentityFile $BATCH_SSH_DIR/key
  IdentitiesOnly yes
  HostKeyAlias batch-job
  StrictHostKeyChecking yes
  UserKnownHostsFile $BATCH_SSH_DIR/known_hosts
  GlobalKnownHostsFile /dev/null
  BatchMode yes
  ConnectTimeout 10
  ServerAliveInterval 30
  ForwardAgent no
  ForwardX11 no
  LogLevel ERROR
SSH
cat >"$BATCH_SSH_DIR/sshd_config" <<SSHD
Port $SSH_PORT
HostKey $BATCH_SSH_DIR/key
AuthorizedKeysFile $BATCH_SSH_DIR/authorized_keys
PidFile $BATCH_SSH_DIR/sshd.pid
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
UseDNS no
StrictModes no
AllowAgentForwarding no
AllowTcpForwarding no
MaxStartups 1024
LogLevel ERROR
SetEnv BATCH_STATE_DIR=$BATCH_STATE_DIR
SSHD

# Restarts sshd if it ends.
keep_sshd() {
  local child=
  trap '[[ -z $child ]] || kill "$child" 2>/dev/null; exit' TERM
  while :; do
    /usr/sbin/sshd -D -e -f "$BATCH_SSH_DIR/sshd_config" &
    child=$!
    wait "$child" || true
    sleep 1 &
    wait $!
  done
}
keep_sshd &
sshd=$!
"$here/mpi-run.sh" "$@" &
run=$!
trap 'kill -TERM "$run" 2>/dev/null || true' TERM INT
while kill -0 "$run" 2>/dev/null; do wait "$run" || true; done
kill -TERM "$sshd" 2>/dev/null || true
# Deletes the key with the job: a container may be kept.
rm -rf "$BATCH_SSH_DIR"
if ! code=$(cat "$BATCH_STATE_DIR/batch-exit-code" 2>/dev/null) || ! [[ $code =~ ^[0-9]{1,3}$ ]] || ((10#$code > 255)); then
  say "[$BATCH_STATE_DIR/batch-exit-code] expected the training's exit code, got no file."
  exit 1
fi
exit "$((10#$code))"
