#!/usr/bin/python3
"""A runtime for containerd that gives a container the devices of CDI that its variable NVIDIA_VISIBLE_DEVICES asks for, then runs runc.

It plays NVIDIA's container runtime in its CDI mode, for the containers that manage GPUs: every other value than none is the device `all`
of the node's management spec. The simulated driver's state comes with it, in place of a real driver's kernel module.
"""
import json
import os
import pathlib
import sys

import yaml

SPEC = pathlib.Path("/var/run/cdi/management.nvidia.com-gpu.yaml")
DRIVER_ROOT = "/run/gpulet-sim"
STATE = {"hostPath": f"{DRIVER_ROOT}/run/gpulet-sim", "containerPath": "/run/gpulet-sim", "options": ["rbind", "rw"]}
NONE = ("", "void", "none")


def edits_of(spec, device):
    """The edits of a CDI spec for one of its devices."""
    return [next(one for one in spec["devices"] if one["name"] == device).get("containerEdits", {}), spec.get("containerEdits", {})]


def add_node(config, node):
    real = os.stat(node.get("hostPath", node["path"]))
    number = {"type": "c", "major": os.major(real.st_rdev), "minor": os.minor(real.st_rdev)}
    linux = config["linux"]
    linux.setdefault("devices", []).append({"path": node["path"], "fileMode": real.st_mode & 0o777, "uid": 0, "gid": 0, **number})
    linux.setdefault("resources", {}).setdefault("devices", []).append({"allow": True, "access": "rwm", **number})


def apply(config, edits):
    config["process"].setdefault("env", []).extend(edits.get("env", []))
    for node in edits.get("deviceNodes", []):
        add_node(config, node)
    for mount in edits.get("mounts", []):
        config.setdefault("mounts", []).append(
            {"type": "bind", "source": mount["hostPath"], "destination": mount["containerPath"], "options": mount["options"]})
    for hook in edits.get("hooks", []):
        config.setdefault("hooks", {}).setdefault(hook["hookName"], []).append({key: hook[key] for key in ("path", "args", "env") if key in hook})


def prepare(bundle):
    path = pathlib.Path(bundle) / "config.json"
    config = json.loads(path.read_text())
    env = dict(word.partition("=")[::2] for word in config["process"].get("env", []))
    if env.get("NVIDIA_VISIBLE_DEVICES", "") in NONE:
        return
    for edits in [*edits_of(yaml.safe_load(SPEC.read_text()), "all"), {"mounts": [STATE]}]:
        apply(config, edits)
    path.write_text(json.dumps(config))


if __name__ == "__main__":
    if "create" in sys.argv:
        prepare(sys.argv[sys.argv.index("--bundle") + 1])
    os.execvp("runc", ["runc", *sys.argv[1:]])
