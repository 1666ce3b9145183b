#!/usr/bin/python3
"""How long Kubernetes' own allocator, which is what the scheduler's Filter runs for each node, takes for claims on our ResourceSlices
and on those of NVIDIA's DRA driver, and what it chooses.

  bench/allocator_bench.py SLICES    SLICES: a ResourceSliceList of eight whole GPUs, by claim_bench

NVIDIA's layout is made of the same GPUs: its attributes only, in an order that is random at each publication. The judge
(tests/cluster/testbed/kube/claim-judge) validates both as the API server does.
"""
import copy
import json
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "judges"))
import run  # noqa: E402
from slices import CLASSES, PAIR, QUAD, build_judge, claim  # noqa: E402

ROUNDS = 2001
SEED = 1
# Size, devices held before, and the attribute that the best set shares.
CASES = ((1, 0, None), (2, 0, PAIR), (2, 3, PAIR), (4, 0, QUAD), (4, 2, QUAD), (8, 0, None))


def nvidia_layout(slices):
    changed = copy.deepcopy(slices)
    for one in changed:
        random.Random(SEED).shuffle(one["spec"]["devices"])
        for device in one["spec"]["devices"]:
            device["attributes"] = {name: value for name, value in device["attributes"].items() if not name.startswith("gpulet.io/")}
    return changed


def judge(program, directory, slices, cases):
    file = directory / "input.json"
    file.write_text(json.dumps({"slices": slices, "classes": CLASSES, "cases": cases}))
    printed = subprocess.run([program, file], check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in printed.splitlines()]


def main(path):
    ours = json.loads(pathlib.Path(path).read_text())["items"]
    layouts = {"ours": ours, "NVIDIA's": nvidia_layout(ours)}
    devices = [device for one in ours for device in one["spec"]["devices"]]
    heads = ("one Filter: claim for", *layouts)
    print(f"{heads[0]:46} {heads[1]:>11} {heads[2]:>11}   chosen of ours")
    with tempfile.TemporaryDirectory(prefix="gpulet-allocator-") as name:
        directory = pathlib.Path(name)
        program = build_judge(directory, run.go_environment())
        found = {}
        for layout, slices in layouts.items():
            found[layout] = judge(program, directory, slices, [
                {"name": f"{size} of {len(devices)}, {held} held", "rounds": ROUNDS, "held": [device["name"] for device in devices[:held]],
                 "claims": [claim(count=size, match=match if layout == "ours" else None)]} for size, held, match in CASES])
        for (size, _, match), mine, theirs in zip(CASES, found["ours"], found["NVIDIA's"]):
            what = mine["name"] + (f", {match}" if match else "")
            [chosen] = mine["devices"] or [[]]
            assert len(chosen) == size, f"{what}: {chosen} were chosen"
            print(f"{what:46} {mine['nanoseconds'] / 1000:8.0f} µs {theirs['nanoseconds'] / 1000:8.0f} µs   {' '.join(chosen)}")


if __name__ == "__main__":
    main(sys.argv[1])
