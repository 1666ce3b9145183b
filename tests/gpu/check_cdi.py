"""The CDI spec of this machine, and programs in a root file system that is made as it says."""
import json
import os
import re
import stat
import sys

import nvml
from machine import HERE, run
from report import Skip, same


def check_cdi(report, machine):
    if not machine.has_nodes:
        raise Skip("without root, the simulated driver has no device nodes")
    spec = generate(machine)
    path = machine.directory / "spec.json"
    path.write_text(json.dumps(spec))
    with report.check("cdi: every host path exists, every device node has its number"):
        check_paths(spec)
    with report.check("cdi: a device for each GPU by index and UUID, and `all`"):
        gpus = machine.gpulet_json("list")["gpus"]
        same({device["name"] for device in spec["devices"]}, {name for gpu in gpus for name in (str(gpu["index"]), gpu["uuid"])} | {"all"})
    report.figure("cdi", {"mounts": len(spec["containerEdits"].get("mounts", [])),
                          "device_nodes": [node["path"] for node in spec["containerEdits"]["deviceNodes"]]})
    with report.check("cdi: NVML in a container sees exactly the GPU given"):
        found = contained(machine, path, "0", "/test/cdi_probe.py")
        same(found["uuids"], [gpus[0]["uuid"]], "UUIDs")
        report.figure("cdi.nvml_library", found["library"])
    with report.check("cdi: a CUDA program in a container computes right on exactly the GPU given"):
        found = contained(machine, path, "0", "/test/cuda.py", "saxpy")
        same(found["uuids"], [gpus[0]["uuid"]], "UUIDs")
        if machine.simulated:
            raise Skip("the simulated libcuda sees exactly the GPU given, but computes nothing")
        same(found["wrong"], 0, "wrong elements")
        report.figure("cdi.cuda_library", found["library"])
    with report.check("cdi: without /dev/nvidia-uvm, CUDA fails with an error"):
        found = contained(machine, path, "0", "/test/cuda.py", "saxpy", without="/dev/nvidia-uvm")
        report.figure("cdi.cuda_without_uvm", found.get("error"))
        if not re.match(r"cu\w+: CUDA_ERROR", found.get("error") or ""):
            raise AssertionError(f"no CUDA error: {found}")


def generate(machine):
    words = [machine.gpulet, "cdi", "generate", "--format", "json", "--nvidia-cdi-hook-path", machine.hook]
    return json.loads(run(*words, "--driver-root", machine.root).stdout)


def check_paths(spec):
    everywhere = [spec["containerEdits"]] + [device["containerEdits"] for device in spec["devices"]]
    missing = [one["hostPath"] for edits in everywhere for one in edits.get("mounts", []) if not os.path.exists(one["hostPath"])]
    same(missing, [], "host paths that do not exist")
    for edits in everywhere:
        for node in edits.get("deviceNodes", []):
            status = os.stat(node.get("hostPath", node["path"]))
            same(stat.S_ISCHR(status.st_mode), True, node["path"])
            same((node.get("major"), node.get("minor", 0)), (os.major(status.st_rdev), os.minor(status.st_rdev)), node["path"])
        for hook in edits.get("hooks", []):
            same(os.access(hook["path"], os.X_OK), True, hook["path"])


def contained(machine, spec, device, *program, without=None):
    if os.geteuid() != 0:
        raise Skip("needs root: mount namespace, device nodes and chroot")
    work = machine.directory / "bundle"
    work.mkdir(exist_ok=True)
    options = ["--without", without] if without else []
    if machine.simulated:
        options += ["--bind", f"{machine.root}/run/gpulet-sim:/run/gpulet-sim"]
    answer = run(sys.executable, "-B", HERE / "container.py", spec, device, work, *options, "--", *program, check=False, limit_s=60)
    if not answer.stdout.strip():
        raise AssertionError(f"exit status {answer.returncode}: {answer.stderr.strip()[-600:]}")
    return json.loads(answer.stdout.splitlines()[-1])
