"""Trains a classifier with PyTorch's DistributedDataParallel, one process per GPU, started by torchrun.

The checkpoint is one file on storage that every node mounts. It is replaced atomically every --save-every steps and at SIGTERM
(an eviction), and holds what the next Pod continues from, on whatever node: model, optimizer and step. Each step
draws its rows by the step's own number, so that a resumed run sees the data that an uninterrupted one would.

An interrupted run ends with 143, never 0: a Job that is told of success does not start another Pod.
"""
import argparse
import datetime
import os
import pathlib
import signal
import sys

import torch
from torch import distributed, nn

from dataset import load, write_atomically

EXIT_INTERRUPTED = 128 + signal.SIGTERM
MOST_WAITED = datetime.timedelta(minutes=10)  # for another rank, before the run fails


def arguments():
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--data", type=pathlib.Path, required=True, help="directory with train.npz")
    options.add_argument("--checkpoints", type=pathlib.Path, required=True, help="directory on shared storage")
    options.add_argument("--steps", type=int, default=20000)
    options.add_argument("--save-every", type=int, default=500, metavar="STEPS")
    options.add_argument("--batch", type=int, default=64, help="rows per process and step")
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cuda fails where there is no GPU")
    options.add_argument("--memory-fraction", type=float, default=1.0, help="largest part of each GPU's memory to use")
    return options.parse_args()


def model_of(columns, classes):
    return nn.Sequential(nn.Linear(columns, 64), nn.ReLU(), nn.Linear(64, classes))


def choose_device(options, local_rank):
    """This process's device. Lists the GPUs that the container has."""
    if options.device == "cpu":
        print(f"rank {os.environ['RANK']}: on the CPU", flush=True)
        return torch.device("cpu")
    count = torch.cuda.device_count()
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(count))
    print(f"rank {os.environ['RANK']}: {count} GPUs: {names}", flush=True)
    if local_rank >= count:
        sys.exit(f"process {local_rank} of this Pod has no GPU: --nproc-per-node is more than its nvidia.com/gpu, or the driver fails")
    torch.cuda.set_device(local_rank)
    torch.cuda.set_per_process_memory_fraction(options.memory_fraction, local_rank)
    return torch.device("cuda", local_rank)


def save(path, step, model, optimizer):
    # The optimizer's tensors alone: its settings are this program's, and weights_only reads nothing but tensors everywhere.
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()["state"]}
    write_atomically(path, lambda file: torch.save(state, file))


def restore(path, model, optimizer, device):
    """The step to continue after: 0 without a checkpoint."""
    if not path.exists():
        return 0
    state = torch.load(path, map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state["optimizer"]})
    return state["step"]


def train(options, rank, device):
    x, y = (torch.from_numpy(array).to(device) for array in load(options.data, "train"))
    torch.manual_seed(1)
    model = model_of(x.shape[1], int(y.max()) + 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    path = options.checkpoints / "pytorch.pt"
    options.checkpoints.mkdir(parents=True, exist_ok=True)
    step = restore(path, model, optimizer, device)
    distributed.barrier()  # nobody replaces the checkpoint before all have read it
    if rank == 0:
        print(f"resumes after step {step} of {options.steps}" if step else f"starts at step 0 of {options.steps}", flush=True)
    wrapped = nn.parallel.DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    # The ranks agree on when to stop: one that left alone would leave the others waiting for its gradients.
    stop = torch.zeros(1, device=device)
    while step < options.steps and not stop.item():
        generator = torch.Generator().manual_seed(step * distributed.get_world_size() + rank)
        rows = torch.randint(len(x), (options.batch,), generator=generator).to(device)
        loss = nn.functional.cross_entropy(wrapped(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        stop.fill_(1 if asked else 0)
        distributed.all_reduce(stop, op=distributed.ReduceOp.MAX)
        if rank == 0 and (step % options.save_every == 0 or step == options.steps or stop.item()):
            save(path, step, model, optimizer)
            print(f"saved step {step} of {options.steps}, loss {loss.item():.4f}", flush=True)
    distributed.barrier()  # the checkpoint is there before any rank ends
    if step < options.steps:
        print(f"rank {rank}: SIGTERM after step {step}", flush=True)
        return EXIT_INTERRUPTED
    return 0


def main():
    options = arguments()
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = choose_device(options, local_rank)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=MOST_WAITED)
    status = train(options, rank, device)
    distributed.destroy_process_group()
    sys.exit(status)


if __name__ == "__main__":
    main()
