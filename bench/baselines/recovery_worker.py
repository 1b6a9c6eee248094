#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A worker of recovery.py in PyTorch, under torchrun, torchft or Ray Train: ResNet-20 on images in memory.

usage: recovery_worker.py torchrun|torchft|ray FOLDER EPOCHS TIMEOUT

Each worker appends a line of JSON to FOLDER/steps-PID.jsonl before a step, with the samples that it was given, and after
it. Under torchrun and Ray Train rank 0 saves a checkpoint after each step, and a restarted job continues in the middle of
the epoch. The samples that are left are dealt among the ranks as ElasticDistributedSampler does in the example of
PyTorch's elastic documents (pytorch/elastic, examples/imagenet/main.py). Under torchft the program follows
torchft/train_ddp.py: a shard for each replica group, and the position of the data is saved at each step.
"""
import json
import os
import socket
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "golden"))

IMAGES, BATCH = 1024, 16


def torch_net():
    import torch
    from torchvision_resnet import CifarResNet
    torch.set_num_threads(1)
    torch.manual_seed(1)
    net = CifarResNet(20)
    return net, torch.randn(IMAGES, 3, 32, 32), torch.randint(10, (IMAGES,))


def order(epoch):
    import torch
    return torch.randperm(IMAGES, generator=torch.Generator().manual_seed(epoch)).tolist()


class Audit:
    """Writes what this worker was given. A line is in the file when the call returns, so a kill loses no line."""

    def __init__(self, folder, rank, world, generation):
        self.out = os.open(Path(folder) / f"steps-{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.write(event="start", rank=rank, world=world, generation=generation, pid=os.getpid(), host=socket.gethostname())

    def write(self, **line):
        os.write(self.out, (json.dumps(line) + "\n").encode())


def part(epoch, seen, rank, world):
    """Returns the samples of this rank's next step, and how many samples the epoch has had after it."""
    rest = order(epoch)[seen:seen + BATCH * world]
    mine = rest[rank::world]
    if len(mine) < -(-len(rest) // world):  # as DistributedSampler, which repeats samples so that all ranks have as many
        mine.append(rest[(rank + len(rest)) % len(rest)] if len(rest) else 0)
    return mine, min(seen + BATCH * world, IMAGES)


def restarting(folder, epochs, audit, rank, world, state, save, wrap):
    """Trains from `state` on. save(state): called by every rank after each step."""
    import torch
    net, images, labels = torch_net()
    model = wrap(net)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    epoch, seen, step = 0, 0, 0
    if state:
        net.load_state_dict(state["model"])
        sgd.load_state_dict(state["sgd"])
        epoch, seen, step = state["at"]
    while epoch < epochs:
        mine, after = part(epoch, seen, rank, world)
        audit.write(event="given", step=step, epoch=epoch, samples=mine)
        loss = torch.nn.functional.cross_entropy(model(images[mine]), labels[mine])
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        step += 1
        seen, epoch = (after, epoch) if after < IMAGES else (0, epoch + 1)
        save({"model": net.state_dict(), "sgd": sgd.state_dict(), "at": (epoch, seen, step)})
        audit.write(event="done", step=step, loss=loss.item())


def generation():
    """Returns a number that is the same on all ranks, and greater than that of the ranks before a restart."""
    import torch.distributed as dist
    number = [time.time()]
    dist.broadcast_object_list(number)
    return number[0]


def torchrun(folder, epochs, timeout):
    import torch
    import torch.distributed as dist
    file = Path(folder) / "checkpoint.pt"
    # The ranks of a restarted job begin at different times, so connecting may take longer than a step.
    dist.init_process_group("gloo", timeout=timedelta(seconds=max(60, timeout)))
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout))
    rank, world = dist.get_rank(), dist.get_world_size()
    audit = Audit(folder, rank, world, generation())
    state = torch.load(file, map_location="cpu") if file.exists() else None

    def save(state):
        if rank == 0:
            torch.save(state, file.with_suffix(".new"))
            os.replace(file.with_suffix(".new"), file)

    restarting(folder, epochs, audit, rank, world, state, save, torch.nn.parallel.DistributedDataParallel)
    dist.destroy_process_group()


def ray_worker(config):
    """The train_func of Ray Train."""
    import ray.train
    import torch
    from ray.train.torch import prepare_model
    folder = config["folder"]
    torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=config["timeout"]))
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    audit = Audit(folder, rank, world, generation())
    state, found = None, ray.train.get_checkpoint()
    if found:
        with found.as_directory() as at:
            state = torch.load(Path(at) / "state.pt", map_location="cpu")

    def save(state):
        with tempfile.TemporaryDirectory() as at:
            if rank == 0:
                torch.save(state, Path(at) / "state.pt")
            ray.train.report({"step": state["at"][2]}, checkpoint=ray.train.Checkpoint.from_directory(at) if rank == 0 else None)

    restarting(folder, config["epochs"], audit, rank, world, state, save, prepare_model)


def ray_driver(folder, epochs, timeout):
    import ray
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
    TorchTrainer(ray_worker, train_loop_config={"folder": folder, "epochs": epochs, "timeout": timeout},
                 torch_config=TorchConfig(backend="gloo", timeout_s=int(max(60, timeout))),
                 scaling_config=ScalingConfig(num_workers=(1, 4), elastic_resize_monitor_interval_s=timeout),
                 run_config=RunConfig(name="race", storage_path=str(Path(folder) / "storage"), checkpoint_config=CheckpointConfig(num_to_keep=2),
                                      failure_config=FailureConfig(max_failures=-1))).fit()


def torchft(folder, epochs, timeout):
    import torch
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
    replica, groups = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["NUM_REPLICA_GROUPS"])
    audit = Audit(folder, replica, groups, time.time())
    net, images, labels = torch_net()
    wait = timedelta(seconds=timeout)

    def load(state):
        net.load_state_dict(state["model"])
        sgd.load_state_dict(state["optim"])

    manager = Manager(pg=ProcessGroupGloo(timeout=wait), min_replica_size=1, load_state_dict=load, timeout=wait, connect_timeout=wait,
                      state_dict=lambda: {"model": net.state_dict(), "optim": sgd.state_dict()}, replica_id=f"race_{replica}")
    model = DistributedDataParallel(manager, net)
    sgd = Optimizer(manager, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
    file = Path(folder) / f"data-{replica}"
    at = int(file.read_text()) if file.exists() else 0
    shard = IMAGES // groups
    while manager.current_step() < epochs * IMAGES // (BATCH * groups):
        epoch, seen = divmod(at, shard)
        mine = order(epoch)[replica::groups][seen:seen + BATCH]
        audit.write(event="given", step=manager.current_step(), epoch=epoch, samples=mine)
        sgd.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[mine]), labels[mine])
        loss.backward()
        before = manager.current_step()
        sgd.step()
        at += len(mine)
        file.with_suffix(".new").write_text(str(at))
        os.replace(file.with_suffix(".new"), file)
        counted = manager.current_step() > before
        audit.write(event="done" if counted else "dropped", step=manager.current_step(), loss=loss.item())
    manager.shutdown()


if __name__ == "__main__":
    {"torchrun": torchrun, "torchft": torchft, "ray": ray_driver}[sys.argv[1]](sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
