"""Random Pods start and end while the node's programs restart; no device may be allocated twice."""
import random
import time

from lib.kube import ApiError, Timeout, gpu_pod, until

SIZES = [1, 1, 1, 1, 2, 2, 4]
MAX_WAITING = 8  # Pods that are created and do not run yet


class Storm:
    def __init__(self, kube, nodes, seed):
        self.kube, self.nodes, self.random = kube, nodes, random.Random(seed)
        self.live = {}     # name → GPUs, until the API server reports its deletion
        self.leaving = set()
        self.number = 0
        self.checks = 0
        self.shaken = []   # (from, to) of each disturbance, while which the kubelet may refuse a new Pod
        self.made_at = {}

    def check(self):
        """Compares the kubelets' allocations with the containers' devices.

        Neither is read in one instant: a Pod may end, and its device go to the next one, between the reading of the
        first and of the second (the kubelet's own List does so too). So a mismatch counts only if it is seen twice.
        """
        for node in self.nodes:
            mistake = self.mistake(node)
            if mistake and (again := self.mistake(node)):
                raise AssertionError(f"{mistake}; and read again: {again}")
            self.checks += 1

    def mistake(self, node):
        """A terminating Pod whose container has ended holds no device: another Pod may have it, while the
        kubelet's List still names the old one until its cleanup."""
        containers = node.containers()
        held = {pod: ids for pod, ids in node.resources.held().items()
                if pod in containers or (pod in self.live and pod not in self.leaving)}
        for source, holders in (("PodResources", held), ("containers", containers)):
            owner = {}
            for pod, ids in holders.items():
                for device in ids:
                    if device not in node.gpus:
                        return f"{source}: {pod} holds {device}, which {node.name} does not have"
                    if device in owner:
                        return f"{source}: {device} is held by {owner[device]} and {pod}"
                    owner[device] = pod
        for pod, ids in containers.items():
            if pod in held and sorted(ids) != sorted(held[pod]):
                return f"{pod} has {ids}, and its kubelet says {held[pod]}"
            if self.live.get(pod) not in (None, len(ids)):
                return f"{pod} asked for {self.live[pod]} and has {ids}"
        return None

    def step(self):
        pods = {name: pod for name, pod in self.kube.pods().items() if name.startswith("storm-")}
        for name in [name for name in self.live if name not in pods]:
            del self.live[name]
            self.leaving.discard(name)
        for name, pod in pods.items():
            if pod["status"]["phase"] == "Failed" and name not in self.leaving:
                self.refused(name, pod)
        waiting = sum(pod["status"]["phase"] == "Pending" for pod in pods.values())
        staying = [name for name in self.live if name not in self.leaving]
        if staying and (waiting >= MAX_WAITING or self.random.random() < 0.5):
            self.delete(self.random.choice(staying))
        else:
            self.create()
        self.check()

    def create(self):
        name = f"storm-{self.number}"
        self.number += 1
        self.live[name] = self.random.choice(SIZES)
        self.made_at[name] = time.monotonic()
        node = self.random.choice([None, *self.nodes])
        self.kube.create_pod(gpu_pod(name, self.live[name], node and node.name))

    def delete(self, name):
        self.leaving.add(name)
        try:
            self.kube.delete_pod(name)
        except ApiError as error:
            if error.status != 404:
                raise

    def refused(self, name, pod):
        """A failed Pod is acceptable only if the restricted Topology Manager refused it, the kubelet allocated a GPU of
        another Pod (double_allocation.py) that the agent refused, or its kubelet was stopped meanwhile (between
        admission and registration, or in the middle of starting the container)."""
        reason = pod["status"].get("reason")
        ends = [status.get("state", {}).get("terminated", {}) for status in pod["status"].get("containerStatuses", [])]
        cut_short = any(end.get("reason") == "StartError" and "context canceled" in end.get("message", "") for end in ends)
        shaken = any(start - 10 <= self.made_at[name] <= end for start, end in self.shaken)
        held = reason == "UnexpectedAdmissionError" and "kubernetes/kubernetes#137534" in pod["status"].get("message", "")
        excused = reason == "TopologyAffinityError" or held or (shaken and (reason == "UnexpectedAdmissionError" or cut_short))
        if not excused:
            raise AssertionError(f"{name} failed: {reason}: {pod['status'].get('message')} {ends}")
        self.delete(name)

    def disturb(self, action):
        start = time.monotonic()
        self.shaken.append((start, start + 3600))
        action()
        self.shaken[-1] = (start, time.monotonic() + 2)

    def run(self, steps, disturbances):
        """`disturbances`: step → action at that step."""
        for number in range(steps):
            if number in disturbances:
                self.disturb(disturbances[number])
            self.step()
        self.drain()

    def drain(self):
        for name in [name for name in self.live if name not in self.leaving]:
            self.delete(name)
        try:
            until("every storm Pod has gone", lambda: not [name for name in self.kube.pods() if name.startswith("storm-")], 60)
        except Timeout:
            left = {name: pod["status"] for name, pod in self.kube.pods().items() if name.startswith("storm-")}
            raise AssertionError(f"Pods that do not go: {left}") from None
        self.check()
