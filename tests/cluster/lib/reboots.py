"""What reboots.py does inside the cluster's network."""
import collections
import os
import random
import signal
import time

from lib.kube import Kube, Timeout, gpu_pod, until
from lib.node import Node

GPUS = 8
PODS = 8
LONGEST_DELAY_S = 4  # of the kubelet or the agent after the other
REJECTED = ("UnexpectedAdmissionError", "OutOfnvidia.com/gpu")


class Reboots:
    def __init__(self, state, seed):
        self.kube, self.node = Kube(state), Node(state, 1, "hgx-h100")
        self.random = random.Random(seed)
        self.rejected = set()

    def start(self):
        self.node.driver_up()
        self.start_agent()
        self.node.wait_allocatable(self.kube, GPUS)
        pod = gpu_pod("training", 1)
        pod["spec"]["restartPolicy"] = "Always"  # the only one that a ReplicaSet allows
        pod["spec"]["containers"][0]["env"] = [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
        self.kube.call("POST", "/apis/apps/v1/namespaces/default/replicasets", {"metadata": {"name": "training"}, "spec": {
            "replicas": PODS, "selector": {"matchLabels": {"test": "gpu"}}, "template": {"metadata": pod["metadata"], "spec": pod["spec"]}}})
        self.settle()

    def start_agent(self):
        self.node.start_agent(env={"GPULET_FAULTS_DELETE_REJECTED_PODS": "true"})

    def reboot(self):
        """Ends everything at once, as a reset does, and starts kubelet and agent in one order or the other."""
        self.node.testbed("kubelet", 1, "stop")
        self.node.stop_agent(signal.SIGKILL)
        for pid in self.node.processes():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass  # with its parent
        until("every container has ended", lambda: not self.node.environments(), 30)
        starts = [("kubelet", lambda: self.node.testbed("kubelet", 1, "start")), ("agent", self.start_agent)]
        self.random.shuffle(starts)
        delay = self.random.uniform(0, LONGEST_DELAY_S)
        starts[0][1]()
        time.sleep(delay)  # part of the disturbance
        starts[1][1]()
        return f"{starts[0][0]} {delay:.1f} s before the {starts[1][0]}"

    def settle(self):
        """Until every replica runs with a GPU of its own, and nothing is left of Pods that were rejected."""
        def holders():
            pods, containers = self.kube.pods(), self.node.containers()
            self.rejected |= {pod["metadata"]["uid"] for pod in pods.values() if pod["status"].get("reason") in REJECTED}
            running = [name for name, pod in pods.items() if pod["status"]["phase"] == "Running" and name in containers
                       and all(status["ready"] for status in pod["status"].get("containerStatuses", []))]
            return containers if len(running) == len(pods) == len(containers) == PODS else None
        try:
            found = until("all Pods run", holders, 120)
        except Timeout as error:
            states = [(name, pod["status"]["phase"], pod["status"].get("reason")) for name, pod in self.kube.pods().items()]
            raise Timeout(f"{error}: {states}") from None
        gpus = collections.Counter(gpu for held in found.values() for gpu in held)
        assert set(gpus) == set(self.node.gpus) and set(gpus.values()) == {1}, f"GPUs by the number of their Pods: {gpus}"


def inside(state, rounds, seed):
    reboots = Reboots(state, seed)
    reboots.start()
    passed = failed = 0
    for number in range(rounds):
        before = len(reboots.rejected)
        order = reboots.reboot()
        started = time.monotonic()
        try:
            reboots.settle()
        except AssertionError as error:
            failed += 1
            print(f"FAIL reboot {number}: {order}: {error}", flush=True)
        else:
            passed += 1
            print(f"ok reboot {number}: {order}, {len(reboots.rejected) - before} Pods rejected, all run after {time.monotonic() - started:.1f} s", flush=True)
    if rounds > 10 and not reboots.rejected:
        failed += 1
        print("FAIL no Pod was ever rejected: nothing was tested", flush=True)
    print(f"{len(reboots.rejected)} Pods were rejected\n{passed} passed, {failed} failed")
    return 1 if failed else 0
