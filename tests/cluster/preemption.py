#!/usr/bin/env python3
"""Random preemptions by the real kube-scheduler, its extender and kwok nodes: `make preemption`.

In each trial the GPUs of three nodes, linked in groups, are held by Pods of random sizes, priorities and disruption budgets; then comes a Pod
of a higher priority, which may need linked GPUs. A plain reference names the cheapest set of Pods on any node whose eviction makes it fit, in
kube-scheduler's order: fewest violated budgets, lowest highest priority, lowest sum of priorities. Exactly a set of that cost must be evicted,
and nothing where no set is enough. --without-extender counts the trials that evict others.
"""
import argparse
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import threading
import urllib.request

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from lib.kube import ApiError, Kube, Timeout, gpu_pod, is_ready, until  # noqa: E402
from lib.kube_scheduler import configuration  # noqa: E402
from lib.kubectl import kubectl  # noqa: E402
from lib.testbed import kwok_cluster  # noqa: E402

ROOT = HERE.parent.parent
GPULET = ROOT / "out" / "bin" / "gpulet"
GPU, GPUS, NODES = "nvidia.com/gpu", 8, 3  # GPUs of a node, nodes of a lane
GPU_NODES = "/apis/gpulet.io/v1alpha1/gpunodes"
PODS, BUDGETS = "/api/v1/namespaces/default/pods", "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
LANES, TRIALS, PORT = 8, 200, 9410
PRIORITIES = (-10, 0, 5, 100, 1000)
LIMIT_S = 120.0
UNASKED_LIMIT_S = 15.0  # without the extender's word about victims some Pods are nominated where they never fit


def gpu_node(name, group, holders):
    """The GpuNode of GPUs that are linked in groups. `holders`: Pod → GPUs."""
    pairs = "".join("B" if a // group == b // group else "A" for a, b in itertools.combinations(range(GPUS), 2))
    return {"apiVersion": "gpulet.io/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}, "spec": {
        "version": 1, "summary": "", "driver": "570.124.06", "cuda": "12.8",
        "models": [{"name": "Tesla V100-SXM2-32GB", "architecture": "volta", "compute": "7.0", "memoryMiB": 32768}],
        "gpus": [{"uuid": f"GPU-{name}-{gpu}", "model": 0, "state": "healthy"} for gpu in range(GPUS)],
        "links": {"classes": ["SYS", "PIX+NV2"], "pairs": pairs},
        "resources": [{"name": GPU, "sharing": "none", "units": [{"gpu": gpu} for gpu in range(GPUS)]}],
        "holders": [{"pod": f"default/{pod}", "holds": [[0, gpu, 1] for gpu in gpus]} for pod, gpus in holders.items()]}}


class Trial:
    """What one trial creates, and what it expects."""

    def __init__(self, number, lane):
        dice = random.Random(number)
        self.name, self.nodes = f"t{number}", [f"kwok-{lane * NODES + node}" for node in range(NODES)]
        self.groups = {node: dice.choice((1, 2, 4, 4, 8)) for node in self.nodes}
        self.pods = {}  # name → (node, GPUs, priority, whether a budget covers it)
        for node in self.nodes:
            free = list(range(GPUS))
            if dice.random() < 0.5:
                dice.shuffle(free)
            while free:
                size = min(len(free), dice.choice((1, 1, 1, 2, 4)))
                gpus, free = free[:size], free[size:]
                if dice.random() > 0.12:
                    self.pods[f"{self.name}-{len(self.pods)}"] = (node, gpus, dice.choice(PRIORITIES[:-1]), dice.random() < 0.2)
        self.budget_allows = dice.choice((0, 1, 2))
        self.wanted = dice.choice((1, 2, 2, 4, 4))
        self.linked = dice.random() < 0.75
        self.priority = dice.choice(PRIORITIES[2:])

    def fits(self, node, gone=()):
        held = {gpu for name, (on, gpus, _, _) in self.pods.items() if on == node and name not in gone for gpu in gpus}
        free = [gpu for gpu in range(GPUS) if gpu not in held]
        if not self.linked or self.wanted == 1:
            return len(free) >= self.wanted
        group = self.groups[node]
        return any(sum(gpu // group == number for gpu in free) >= self.wanted for number in range(GPUS // group))

    def free(self, node):
        return GPUS - sum(len(gpus) for on, gpus, _, _ in self.pods.values() if on == node)

    def cost(self, gone):
        covered = sum(self.pods[name][3] for name in gone)
        priorities = [self.pods[name][2] for name in gone]
        return (max(0, covered - self.allowed()), max(priorities), sum(priority + 2**31 for priority in priorities))

    def covered(self):
        return sum(covered for _, _, _, covered in self.pods.values())

    def allowed(self):
        return min(self.budget_allows, self.covered())

    def expected(self):
        """None where the Pod fits at once, else the least cost, or () where no eviction helps."""
        if any(self.fits(node) for node in self.nodes):
            return None
        least = ()
        for node in self.nodes:
            # Where kube-scheduler counts enough free GPUs it looks for no victims.
            if self.free(node) >= self.wanted:
                continue
            lower = [name for name, (on, _, priority, _) in self.pods.items() if on == node and priority < self.priority]
            for size in range(1, len(lower) + 1):
                for gone in itertools.combinations(lower, size):
                    cost = self.cost(gone)
                    if (not least or cost < least) and self.fits(node, gone):
                        least = cost
        return least


class Lane(threading.Thread):
    """Runs its trials one after the other, on nodes of its own."""

    def __init__(self, state, lane, trials, limit_s):
        super().__init__(daemon=True)
        self.limit_s = limit_s
        self.kube, self.lane, self.trials = Kube(state), lane, trials
        self.counts, self.wrong, self.error = {}, [], None

    def run(self):
        try:
            for number in self.trials:
                self.run_trial(Trial(number, self.lane))
        except Exception as error:  # told by the main thread
            self.error = error

    def explained(self, pod):
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/explain?namespace=default&pod={pod}&format=json", timeout=30) as page:
            return json.load(page)

    def pod(self, name, gpus, priority_class, labels, nodes):
        pod = gpu_pod(name, gpus)
        pod["metadata"]["labels"] = {"trial": name.split("-")[0], **labels}
        pod["spec"].update(priorityClassName=priority_class, tolerations=[{"operator": "Exists"}], affinity={"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in nodes]}}})
        return pod

    def create(self, trial):
        for node in trial.nodes:
            holders = {name: gpus for name, (on, gpus, _, _) in trial.pods.items() if on == node}
            body = gpu_node(node, trial.groups[node], holders)
            self.kube.call("PATCH", f"{GPU_NODES}/{node}?fieldManager=trial&force=true", body, kind="application/apply-patch+yaml")
        for name, (node, gpus, priority, covered) in trial.pods.items():
            labels = {"covered": trial.name} if covered else {}
            # Bound by kube-scheduler, so that it knows them too.
            self.kube.create_pod(self.pod(name, len(gpus), f"low{PRIORITIES.index(priority)}", labels, [node]))
        if trial.covered():
            self.kube.call("POST", BUDGETS, {"metadata": {"name": trial.name}, "spec": {
                "minAvailable": trial.covered() - trial.allowed(), "selector": {"matchLabels": {"covered": trial.name}}}})
            until(f"the budget of {trial.name}", lambda: self.kube.get(f"{BUDGETS}/{trial.name}").get("status", {}).get(
                "currentHealthy") == trial.covered(), LIMIT_S)
            status = self.kube.get(f"{BUDGETS}/{trial.name}")["status"]
            assert status["disruptionsAllowed"] == trial.allowed(), (trial.name, status)
        for name, (_, gpus, _, _) in trial.pods.items():
            devices = f"GPU {', '.join(map(str, sorted(gpus)))}"
            until(f"the extender knows {name} on {devices}", lambda name=name, devices=devices: self.explained(name)["devices"].split(
                ", linked")[0] == devices, LIMIT_S)

    def remaining(self, trial):
        pods = self.kube.get(f"{PODS}?labelSelector=trial%3D{trial.name}")["items"]
        return {pod["metadata"]["name"]: pod for pod in pods}

    def delete(self, pod):
        try:
            self.kube.delete_pod(pod, grace_s=0)
        except ApiError as error:
            if error.status != 404:  # evicted
                raise

    def run_trial(self, trial):
        self.create(trial)
        name = f"{trial.name}-high"
        pod = self.pod(name, trial.wanted, f"high{PRIORITIES.index(trial.priority)}", {}, trial.nodes)
        if trial.linked:
            pod["metadata"]["annotations"] = {"gpulet.io/gpu-links": "NV"}
        self.kube.create_pod(pod)

        def decided():
            found = self.kube.pod(name)
            if found["spec"].get("nodeName"):
                return found
            refused = next((one for one in found.get("status", {}).get("conditions", []) if one["type"] == "PodScheduled"), None)
            settled = refused and "preemption:" in refused.get("message", "") and not found["status"].get("nominatedNodeName")
            return found if settled else None
        try:
            node = until(f"kube-scheduler decides about {name}", decided, self.limit_s)["spec"].get("nodeName")
        except Timeout:
            node = None  # nominated where it does not fit, for ever
        left = self.remaining(trial)
        gone = sorted(one for one in trial.pods if one not in left or left[one]["metadata"].get("deletionTimestamp"))
        expected, evicted = trial.expected(), trial.cost(gone) if gone else ()
        right = (bool(node) == (expected != ()) and (evicted == (expected or ())) and all(trial.pods[one][0] == node for one in gone))
        kind = "fits" if expected is None else "evicts" if expected else "no set of Pods is enough"
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if not right:
            self.wrong.append(f"{trial.name}: {trial.wanted} GPUs{', linked' if trial.linked else ''}, priority {trial.priority}: bound to {node}, evicted "
                              f"{ {one: trial.pods[one] for one in gone} } of cost {evicted}, expected {expected}; groups {trial.groups}")
        for one in left:
            self.delete(one)
        if trial.covered():
            self.kube.call("DELETE", f"{BUDGETS}/{trial.name}")
        until("its Pods have gone", lambda: not self.remaining(trial), LIMIT_S)


def run_trials(state, options):
    kubeconfig = state / "kubeconfig"
    text = (ROOT / "deploy/static/scheduler.yaml").read_text()
    kind = next(part for part in text.split("\n---\n") if "kind: CustomResourceDefinition" in part)
    kubectl("--kubeconfig", kubeconfig, "apply", "-f", "-", text=kind)
    kubectl("--kubeconfig", kubeconfig, "wait", "--for=condition=Established", "crd/gpunodes.gpulet.io", "--timeout=60s")
    kube = Kube(state)
    for number, value in enumerate(PRIORITIES):
        for name, policy in (("low", "Never"), ("high", "PreemptLowerPriority")):
            kube.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {
                "metadata": {"name": f"{name}{number}"}, "value": value, "preemptionPolicy": policy})
    pid = state / "pid" / "cp-kube-scheduler"
    os.kill(int(pid.read_text()), 15)
    configured = state / "kube-scheduler.yaml"
    configured.write_text(configuration(kubeconfig, PORT, qps=1000, backoff=True, extender=[
        *([] if options.without_extender else ["preemptVerb: preempt"]), "ignorable: true"]))
    processes = []
    env = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    try:
        for name, command in (("extender", [GPULET, "scheduler", f"--listen=127.0.0.1:{PORT}", "--shutdown-seconds=0"]),
                              ("kube-scheduler", ["kube-scheduler", f"--config={configured}"])):
            with open(state / "log" / name, "a", encoding="utf-8") as log:
                processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env))
        until("the extender is ready", lambda: is_ready(PORT), LIMIT_S)
        lanes = [Lane(state, lane, range(options.seed + lane, options.seed + options.trials, LANES),
                      UNASKED_LIMIT_S if options.without_extender else LIMIT_S) for lane in range(LANES)]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
            if lane.error:
                raise lane.error
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=30) as page:
            print("".join(line for line in page.read().decode().splitlines(True) if line.startswith("gpulet_scheduler_preemption")), end="")
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(timeout=60)
    counts = {kind: sum(lane.counts.get(kind, 0) for lane in lanes) for kind in ("fits", "evicts", "no set of Pods is enough")}
    wrong = [line for lane in lanes for line in lane.wrong]
    print(f"{options.trials} trials: {counts}; {len(wrong)} with a needless eviction, or without a possible one", flush=True)
    for line in wrong[:None if not options.without_extender else 5]:
        print(f"  {line}", flush=True)
    return 1 if wrong and not options.without_extender else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without-extender", action="store_true", help="kube-scheduler does not ask the extender about victims")
    parser.add_argument("--inside", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return run_trials(options.inside, options)
    with kwok_cluster(LANES * NODES, GPUS) as cluster:
        return cluster.run(HERE / "preemption.py", *sys.argv[1:]).returncode


if __name__ == "__main__":
    sys.exit(main())
