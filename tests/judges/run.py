#!/usr/bin/python3
"""Checks every simulated machine with third-party judges: nvidia-ml-py, gpustat, nvitop, cuda-bindings, numba, NVIDIA's header, and the CDI
project's schema and library; and what they offer to claims with Kubernetes' validation and allocator (slices.py).

  tests/judges/run.py [--bin out/bin] [--lib out/lib] [--machine NAME...]

Prints a line `ok NAME` or `FAIL NAME: why` per check, and ends in `N passed, N failed`.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import slices
import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MACHINES = ROOT / "sim" / "machines"
CACHE = pathlib.Path(os.environ.get("GPULET_CACHE", pathlib.Path.home() / ".cache" / "gpulet"))
# `up` takes well under a second; a busy machine may take it longer.
UP_LIMIT_S = 5
MAY_MAKE_NODES = os.geteuid() == 0


def cpus(text):
    found = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def merged(base, over):
    return {**base, **{key: merged(base[key], value) if isinstance(value, dict) and key in base else value for key, value in over.items()}}


def expected(name, text=None):
    """Expands the machine's YAML, independently of gpulet's code: one mapping per GPU."""
    text = text or yaml.safe_load((MACHINES / f"{name}.yaml").read_text())
    count = text["gpus"]["count"]
    model = yaml.safe_load((MACHINES / "models" / f"{text['gpus']['model']}.yaml").read_text())
    fabric = text.get("links", {}).get("nvswitch")
    fabric = {"links": fabric} if isinstance(fabric, int) else fabric
    matrix = text.get("links", {}).get("matrix", [[0] * count] * count)
    gpus = []
    for i in range(count):
        numa = text["gpus"]["numa"][i]
        gpu = merged(model, {"pci": text["gpus"]["pci"][i], "numa": numa, "cpus": cpus(text["numa_cpus"][numa]),
                             "links_to": matrix[i], "switched": bool(fabric), "switches": (fabric or {}).get("switches", []),
                             "links": fabric["links"] if fabric else sum(matrix[i])})
        if "memory_numa" in text["gpus"]:
            gpu["memory_numa"] = text["gpus"]["memory_numa"][i]
        gpus.append(gpu)
    return {"name": name, "gpus": gpus, "topology": text.get("topology", {}), "fabric": text.get("fabric"),
            "driver": {"version": "570.124.06", "nvml": "12.570.124.06", "cuda": 12080}}


def go_environment():
    return {**os.environ, "PATH": f"{os.environ['PATH']}:{CACHE / 'go' / 'bin'}:/usr/local/go/bin"}


class Court:
    """Runs judges and counts their results."""

    def __init__(self, arguments):
        self.control = arguments.bin.resolve() / "gpulet-sim"
        directory = next((f for f in (arguments.lib / "gpulet" / "sim", arguments.lib) if f.is_dir()), arguments.lib)
        directory = directory.resolve()
        self.library = directory / "libnvidia-ml.so.1"
        self.smi = directory / "nvidia-smi"
        self.python = CACHE / "venv" / "bin" / "python"
        self.cdi = None
        self.go_environment = go_environment()
        self.passed = self.failed = 0

    def build_cdi_judge(self, directory):
        """Builds a Go program around the CDI project's modules; cached after the first time."""
        built = subprocess.run(["go", "build", "-o", directory / "cdi-judge", "."], cwd=HERE / "cdi", env=self.go_environment, capture_output=True,
                               text=True, timeout=200, check=False)
        self.cdi = directory / "cdi-judge"
        self.say("the CDI's own library builds", built.stderr.strip() if built.returncode else None)

    def say(self, name, why=None):
        print(f"FAIL {name}: {why}" if why else f"ok {name}", flush=True)
        self.passed, self.failed = self.passed + (not why), self.failed + bool(why)

    def judge(self, script, prefix, environment):
        """Forwards a judge's lines; a judge that crashes or prints nothing has failed."""
        ran = subprocess.run([self.python, HERE / script, prefix], capture_output=True, text=True, timeout=120, check=False,
                             env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment})
        said = [line for line in ran.stdout.splitlines() if line.startswith(("ok ", "FAIL "))]
        for line in said:
            print(line, flush=True)
        failures = sum(line.startswith("FAIL ") for line in said)
        self.passed, self.failed = self.passed + len(said) - failures, self.failed + failures
        if ran.returncode != 0 or not said:
            self.say(f"{prefix} {script}", f"exit status {ran.returncode}: {' '.join(ran.stderr.split())[-400:]}")

    def sit(self, name, directory):
        root, facts = directory / "root", directory / "machine.json"
        wanted = expected(name)
        facts.write_text(json.dumps(wanted))
        nodes = [] if MAY_MAKE_NODES else ["--no-device-nodes"]
        started = time.monotonic()
        up = subprocess.run([self.control, "up", name, "--root", root, "--library", self.library,
                             "--nvidia-smi", self.smi, *nodes], capture_output=True,
                            text=True, timeout=60, check=False)
        took = time.monotonic() - started
        self.say(f"{name} up", up.stderr.strip() if up.returncode else f"took {took:.1f} s" if took > UP_LIMIT_S else None)
        if up.returncode:
            return
        environment = {"JUDGE_MACHINE": str(facts), "JUDGE_ROOT": str(root), "JUDGE_CONTROL": str(self.control),
                       "JUDGE_NODES": str(int(MAY_MAKE_NODES)), "JUDGE_CDI": str(self.cdi), "LD_LIBRARY_PATH": str(next(root.glob("usr/lib/*-linux-gnu")))}
        scripts = ["values.py", "clients.py", "specs.py"] + (["mig.py"] if "mig" in wanted["gpus"][0] else []) + ["faults.py", "cuda_values.py"]
        for script in scripts:
            self.judge(script, name, environment)
        down = subprocess.run([self.control, "down", "--root", root], capture_output=True, text=True, timeout=60, check=False)
        left = [str(path.relative_to(root)) for path in root.rglob("*")]
        self.say(f"{name} down", down.stderr.strip() if down.returncode else f"leaves {left[:5]}" if left else None)


def judge_slices(court, names, directory):
    """Each machine in each layout, and one of sixteen GPUs with partitions."""
    machines = []
    for name in [*names, slices.LARGE["name"]]:
        place = directory / name
        place.mkdir()
        is_large = name == slices.LARGE["name"]
        if is_large:
            (directory / "large.yaml").write_text(yaml.safe_dump(slices.LARGE))
        facts = expected(name, slices.LARGE if is_large else None)
        machines.append(slices.Simulated(court, place, name, facts, directory / "large.yaml" if is_large else name))
    for name, why in slices.checks(court, directory, machines):
        court.say(name, why)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "out" / "bin")
    parser.add_argument("--lib", type=pathlib.Path, default=ROOT / "out" / "lib")
    parser.add_argument("--machine", nargs="*", default=sorted(path.stem for path in MACHINES.glob("*.yaml")))
    arguments = parser.parse_args()
    court = Court(arguments)
    version = re.search(r"^NVML_DEV_VERSION=(.*)$", (ROOT / "scripts" / "versions").read_text(), re.MULTILINE)[1]
    court.judge("structs.py", "header", {"JUDGE_NVML_INCLUDE": str(CACHE / f"nvml-{version}")})
    with tempfile.TemporaryDirectory(prefix="gpulet-judges-") as directory:
        court.build_cdi_judge(pathlib.Path(directory))
        sit_all(court, arguments.machine)
        judge_slices(court, arguments.machine, pathlib.Path(directory))
    print(f"{court.passed} passed, {court.failed} failed")
    return 1 if court.failed or not court.passed else 0


def sit_all(court, machines):
    for name in machines:
        with tempfile.TemporaryDirectory(prefix="gpulet-judges-") as directory:
            court.sit(name, pathlib.Path(directory))


if __name__ == "__main__":
    sys.exit(main())
