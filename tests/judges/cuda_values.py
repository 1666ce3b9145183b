"""cuda-bindings and numba on the simulated libcuda, without and with a limit of the driver on their memory."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import judge
import pynvml
from judge import check, machine, same

MIB, CONTEXT_MIB, PIECE_MIB, LIMIT_MIB = 1 << 20, 518, 64, 2048
CLIENT = pathlib.Path(__file__).resolve().parent / "cuda_client.py"


def control(*words):
    subprocess.run([os.environ["JUDGE_CONTROL"], *words, "--root", os.environ["JUDGE_ROOT"]], check=True, timeout=60)


@contextlib.contextmanager
def client_of(kind, **environment):
    """A client with what it has seen; it ends with the block."""
    process = subprocess.Popen([sys.executable, CLIENT, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, env={**os.environ, **environment})
    try:
        line = process.stdout.readline()
        if not line:
            raise AssertionError(f"{kind}: {' '.join(process.stderr.read().split())[-400:]}")
        yield json.loads(line)
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def nvml():
    pynvml.nvmlInit()
    try:
        yield pynvml.nvmlDeviceGetHandleByIndex(0)
    finally:
        pynvml.nvmlShutdown()


def listed(device):
    return {process.pid: process.usedGpuMemory // MIB for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device)}


def uses_the_whole_gpu(kind):
    with nvml() as device, client_of(kind) as seen:
        gpus = machine()["gpus"]
        same(seen["names"], [gpu["name"] for gpu in gpus])
        uuids = [pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(at)) for at in range(len(gpus))]
        same(seen["uuids"], [uuid.removeprefix("GPU-").replace("-", "") for uuid in uuids])
        memory = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
        same(seen["total"], memory.total - memory.reserved)
        same(seen["device_total"], seen["total"])
        same(seen["free"], seen["total"] - CONTEXT_MIB * MIB)
        same(seen["pieces"], seen["free"] // (PIECE_MIB * MIB))
        same([seen["copied"], seen["code"]], [True, 2])
        same(listed(device), {seen["pid"]: CONTEXT_MIB + PIECE_MIB})
        os.kill(seen["pid"], signal.SIGKILL)
        os.waitid(os.P_PID, seen["pid"], os.WEXITED | os.WNOWAIT)
        same(listed(device), {})


def is_held_to_the_limit(kind):
    control("driver-reload", "--force", "--version", "615.71.09")
    try:
        with tempfile.TemporaryDirectory() as cgroup, nvml() as device:
            limits = pynvml.c_nvmlSetMemoryLimits_v1_t(cgroup.encode(), LIMIT_MIB * MIB, LIMIT_MIB * MIB)
            pynvml.nvmlDeviceSetMemoryLimits_v1(device, limits)
            with client_of(kind, GPULET_SIM_CGROUP=cgroup) as seen:
                same(seen["total"], LIMIT_MIB * MIB)
                same(seen["device_total"], LIMIT_MIB * MIB)
                same(seen["free"], (LIMIT_MIB - CONTEXT_MIB) * MIB)
                same(seen["pieces"], (LIMIT_MIB - CONTEXT_MIB) // PIECE_MIB)
                same([seen["copied"], seen["code"]], [True, 2])
                if "OUT_OF_MEMORY" not in seen["error"]:
                    raise AssertionError(seen["error"])
    finally:
        control("driver-reload", "--force", "--version", machine()["driver"]["version"])


@check
def cuda_bindings_uses_the_whole_gpu():
    uses_the_whole_gpu("bindings")


@check
def numba_uses_the_whole_gpu():
    uses_the_whole_gpu("numba")


@check
def cuda_bindings_is_held_to_the_limit():
    is_held_to_the_limit("bindings")


@check
def numba_is_held_to_the_limit():
    is_held_to_the_limit("numba")


def initialised():
    """The result of cuInit in a process of its own, and how many devices it finds."""
    program = "import ctypes; l = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int(); print(l.cuInit(0), l.cuDeviceGetCount(ctypes.byref(n)), n.value)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return [int(word) for word in ran.stdout.split()]


@contextlib.contextmanager
def without_node(name):
    node = pathlib.Path(os.environ["JUDGE_ROOT"]) / "dev" / name
    away = node.with_suffix(".away")
    node.rename(away)
    try:
        yield
    finally:
        away.rename(node)


@check
def missing_nodes_give_the_codes_of_hardware():
    count = len(machine()["gpus"])
    same(initialised(), [0, 0, count])
    if os.environ["JUDGE_NODES"] != "1":
        return
    for name, wanted in (("nvidia-uvm", [999, 3, 0]), ("nvidiactl", [100, 3, 0]), ("nvidia0", [0, 0, count - 1] if count > 1 else [100, 3, 0])):
        with without_node(name):
            same(initialised(), wanted, f"without {name}")


if __name__ == "__main__":
    judge.main()
