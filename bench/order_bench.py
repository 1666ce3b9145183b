#!/usr/bin/python3
"""What it would pay to write the order of the devices again after each use, because the scheduler takes the first that fit.

  bench/order_bench.py [--bin out/bin] [--lib out/lib]

Claims of 1, 2 and 4 GPUs come and end at random, and Kubernetes' allocator (tests/cluster/testbed/kube/claim-judge) serves each from
the node's ResourceSlice: in the order that the agent publishes, and in two that are written again before each claim: with those GPUs
first whose loss costs least, which are those of broken pairs and then of broken quads; and with whole pairs first, those of broken quads
before others. A claim that does not fit is dropped. Seeded.
"""
import argparse
import itertools
import json
import pathlib
import random
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "judges"))
import run  # noqa: E402
import slices  # noqa: E402

MACHINES = ("hgx-h100", "dgx1-v100", "l40s")
CLAIMS = 1000
SEED = 1
SIZES, WEIGHTS = (1, 2, 4), (5, 3, 2)
MATCH = {2: slices.PAIR, 4: slices.QUAD}
# Of the GPUs, what claims would hold if all were served.
LOADS = (0.5, 0.8)


def value(device, name):
    return slices.attribute(device, name)


def is_broken(devices, held, device, name):
    return any(other["name"] in held for other in devices if value(other, name) == value(device, name))


def fixed(devices, _):
    return devices


# Stable: the best sets remain neighbours.
def least_loss_first(devices, held):
    return sorted(devices, key=lambda one: (not is_broken(devices, held, one, slices.QUAD), not is_broken(devices, held, one, slices.PAIR)))


def whole_sets_first(devices, held):
    return sorted(devices, key=lambda one: (is_broken(devices, held, one, slices.PAIR), not is_broken(devices, held, one, slices.QUAD)))


ORDERS = {"fixed": fixed, "least loss first": least_loss_first, "whole sets first": whole_sets_first}


def is_best(gpus, devices, names, size):
    """As well linked as the best sets that the slice names; without NVLinks, one of these. Behind NVSwitches every set is."""
    if any(gpu["switched"] for gpu in gpus):
        return True
    sets = {}
    for device in devices:
        sets.setdefault(value(device, MATCH[size]), set()).add(device["name"])
    if not any(any(gpu["links_to"]) for gpu in gpus):
        return set(names) in sets.values()
    by_pci = {gpu["pci"]: index for index, gpu in enumerate(gpus)}
    index = {device["name"]: by_pci[value(device, "resource.kubernetes.io/pciBusID")] for device in devices}

    def links(some):
        return sum(gpus[index[a]]["links_to"][index[b]] for a, b in itertools.combinations(some, 2))
    return links(names) >= min(map(links, sets.values()))


class Judge:
    def __init__(self, program):
        self.process = subprocess.Popen([program, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def allocate(self, published, devices, held, claim):
        changed = {**published, "spec": {**published["spec"], "devices": devices}}
        self.process.stdin.write(json.dumps({"slices": [changed], "classes": slices.CLASSES, "cases": [
            {"name": "one", "held": sorted(held), "claims": [claim]}]}) + "\n")
        self.process.stdin.flush()
        return (json.loads(self.process.stdout.readline())["devices"] or [None])[0]

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=10)


def stream(gpus, load):
    """(arrival, end, size) of each claim. The sizes' mean, times the duration's, is `load` of the GPUs."""
    numbers = random.Random(SEED)
    mean = sum(size * weight for size, weight in zip(SIZES, WEIGHTS)) / sum(WEIGHTS)
    time = 0.0
    for _ in range(CLAIMS):
        time += numbers.expovariate(1)
        yield time, time + numbers.expovariate(mean / (load * gpus)), numbers.choices(SIZES, WEIGHTS)[0]


def simulate(judge, gpus, published, load, order, matched):
    """Of the claims of several GPUs: the share that got GPUs, and the share that got a best set."""
    devices = published["spec"]["devices"]
    running, several, placed, best = [], 0, 0, 0
    for time, end, size in stream(len(devices), load):
        running = [one for one in running if one[0] > time]
        held = {name for _, names in running for name in names}
        got = judge.allocate(published, order(devices, held), held, slices.claim(count=size, match=MATCH.get(size) if matched else None))
        if got:
            running.append((end, got))
        if size > 1:
            several += 1
            placed += bool(got)
            best += bool(got) and is_best(gpus, devices, got, size)
    return placed / several, best / several


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "out" / "bin")
    parser.add_argument("--lib", type=pathlib.Path, default=ROOT / "out" / "lib")
    court = run.Court(parser.parse_args())
    print(f"{f'claims of 2 and 4 GPUs, of {CLAIMS} claims':42} {'load':>5} {'   '.join(ORDERS)}")
    with tempfile.TemporaryDirectory(prefix="gpulet-order-") as name:
        directory = pathlib.Path(name)
        judge = Judge(slices.build_judge(directory, court.go_environment))
        for machine in MACHINES:
            (directory / machine).mkdir()
            simulated = slices.Simulated(court, directory / machine, machine, run.expected(machine), machine)
            simulated.add_layout("whole", [])
            [published] = simulated.layouts["whole"]
            for matched in (True, False):
                for load in LOADS:
                    found = [simulate(judge, simulated.facts["gpus"], published, load, order, matched) for order in ORDERS.values()]
                    for what, shares in zip(("placed", "a best set"), zip(*found)):
                        if matched and what != "placed":
                            continue
                        name = f"{machine}, {'matchAttribute' if matched else 'no constraint'}: {what}"
                        ratios = "   ".join(f"{share:7.1%} ({share / shares[0]:.2f})".rjust(len(order)) for order, share in zip(ORDERS, shares))
                        print(f"{name:42} {load:5.0%} {ratios}", flush=True)
            simulated.sim("down")
        judge.close()


if __name__ == "__main__":
    main()
