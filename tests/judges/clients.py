"""gpustat and nvitop, as their users run them."""
import json
import os
import pathlib
import re
import subprocess
import sys

import judge
from judge import check, machine, same

SCRIPTS = pathlib.Path(sys.executable).parent


def run(*command):
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False,
                         env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "200"})
    if ran.returncode != 0:
        raise AssertionError(f"{command[0]} exits {ran.returncode}: {ran.stderr.strip()[-300:]}")
    return ran.stdout


def control(*words):
    run(os.environ["JUDGE_CONTROL"], *words, "--root", os.environ["JUDGE_ROOT"])


@check
def gpustat_shows_every_gpu():
    seen = json.loads(run(str(SCRIPTS / "gpustat"), "--json"))["gpus"]
    same(len(seen), len(machine()["gpus"]))
    for gpu, wanted in zip(seen, machine()["gpus"]):
        same(gpu["name"], wanted["name"])
        same(gpu["memory.total"], wanted["memory"]["total_mib"])
        same(gpu["temperature.gpu"], wanted["temperature_c"]["idle"])
        same(gpu["enforced.power.limit"], wanted["power_w"]["limit"])
        same(gpu["utilization.gpu"], 0)
        same(gpu["processes"], [])


@check
def gpustat_sees_a_load():
    control("load", "1", "60", "--memory", "1000", "--pid", str(os.getpid()))
    try:
        gpu = json.loads(run(str(SCRIPTS / "gpustat"), "--json"))["gpus"][1]
        same(gpu["utilization.gpu"], 60)
        same([process["pid"] for process in gpu["processes"]], [os.getpid()])
        same(gpu["processes"][0]["gpu_memory_usage"], 1000)
    finally:
        control("load", "1", "0", "--pid", str(os.getpid()))


@check
def nvitop_shows_every_gpu():
    shown = re.sub(r"\x1b\[[0-9;]*m", "", run(str(SCRIPTS / "nvitop"), "--once", "--ascii"))
    gpus = machine()["gpus"]
    for wanted in gpus:
        bus_id = "0000" + wanted["pci"].upper()
        if bus_id not in shown:
            raise AssertionError(f"{bus_id} is not in {shown[:400]!r}")
    watts = f"{gpus[0]['power_w']['idle']}W / {gpus[0]['power_w']['limit']}W"
    same(shown.count(watts), len(gpus), watts)


@check
def nvidia_smi_stand_in():
    smi = os.environ["JUDGE_ROOT"] + "/usr/bin/nvidia-smi"
    listed = run(smi, "-L").splitlines()
    same(len(listed), len(machine()["gpus"]))
    same(listed[0].split(" (UUID: ")[0], f"GPU 0: {machine()['gpus'][0]['name']}")
    uuid = listed[0].split("UUID: ")[1].rstrip(")")
    run(smi, "-i", uuid, "-c", "EXCLUSIVE_PROCESS")
    run(smi, "-i", uuid, "-c", "DEFAULT")
    run(smi, "-r")  # before Ampere, GPUs that NVLinks join are reset together
    matrix = run(smi, "topo", "-m").splitlines()
    for i, wanted in enumerate(machine()["gpus"]):
        row = matrix[i + 1].split()
        for j, direct in enumerate(wanted["links_to"]):
            if i != j and (direct or wanted["switched"]):
                same(row[j + 1], f"NV{direct or wanted['links']}")


if __name__ == "__main__":
    judge.main()
