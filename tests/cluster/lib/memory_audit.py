"""What memory_audit.py does inside the cluster's network."""
import os
import pathlib
import random
import re
import statistics
import time

from lib.footprint import Sample, children
from lib.kube import Kube, gpu_pod, until
from lib.node import DRIVER_ROOT, GPULET_SIM, Node

SHARED = "nvidia.com/gpu.shared"
PODS, GPUS, REPLICAS = 30, 8, 4
LIMIT_MIB = 8192
AT_REST_S = 60.0
MAX_CPU_MS, MAX_MEMORY_KIB = 20, 2048  # more than without the audit, in a minute
ACTED_S = 2.0
PATIENCE_S = 60.0


class MemoryAudit:
    def __init__(self, state, seed):
        self.kube, self.node = Kube(state), Node(state, 1, "hgx-h100")
        self.random = random.Random(seed)
        self.number = 0
        self.pids = {}   # Pod → pid of its process
        self.acted = []  # seconds

    def config(self, action):
        self.node.write_config(f"""version: v1
sharing: {{timeSlicing: {{renameByDefault: true, resources: [{{name: nvidia.com/gpu, replicas: {REPLICAS}}}]}}}}
gpulet: {{fraction: {{onExceeded: {action}}}}}
""")

    def add_pod(self):
        name = f"limited-{self.number}"
        self.number += 1
        pod = gpu_pod(name, 1, script="exec sleep 100000", resource=SHARED)
        pod["metadata"]["annotations"] = {"gpulet.io/gpu-memory": f"{LIMIT_MIB}Mi"}
        self.kube.create_pod(pod)
        return name

    def use(self, name, mebibytes):
        pid, environment = until(f"the process of {name}", lambda: self.node.environments().get(name), PATIENCE_S)
        gpu = environment["NVIDIA_VISIBLE_DEVICES"]
        self.node.run(GPULET_SIM, "load", gpu, 1, "--memory", mebibytes, "--pid", pid, "--root", DRIVER_ROOT)
        self.pids[name] = pid
        return time.monotonic()

    def limits(self):
        return set(re.findall(r'^gpulet_container_gpu_memory_limit_bytes{[^}]*pod="([^"]*)"', self.node.metrics(), re.MULTILINE))

    def start(self):
        self.node.driver_up()
        self.config("none")
        self.node.start_agent(arguments=["--config-file", self.node.config])
        self.node.wait_allocatable(self.kube, GPUS * REPLICAS, resource=SHARED)
        names = [self.add_pod() for _ in range(PODS)]
        for name in names:
            self.use(name, LIMIT_MIB)

    def cpu_ms(self):
        """Of every thread of the agent and its children, in the kernel's nanoseconds."""
        total = 0
        for pid in (self.node.agent.pid, *children(self.node.agent.pid)):
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
                total += int((task / "schedstat").read_text().split()[0])
        return total / 1e6

    def at_rest(self):
        """CPU time in ms a minute, and anonymous memory in KiB."""
        before, started = self.cpu_ms(), time.monotonic()
        time.sleep(AT_REST_S)  # measured, not waited for
        spent = (self.cpu_ms() - before) * 60 / (time.monotonic() - started)
        return spent, Sample(self.node.agent.pid).values["anonymous KiB"]

    def cost(self):
        without, memory_without = self.at_rest()
        self.config("kill")
        until("the agent knows the limits", lambda: len(self.limits()) == PODS, PATIENCE_S)
        cpu, memory = self.at_rest()
        print(f"   CPU {without:.0f} and {cpu:.0f} ms a minute, anonymous memory {memory_without} and {memory} KiB, without and with the audit", flush=True)
        assert cpu - without <= MAX_CPU_MS and memory - memory_without <= MAX_MEMORY_KIB, "the audit costs more"

    def round(self):
        name = self.random.choice(sorted(self.pids))
        exceeded = self.use(name, LIMIT_MIB + 1)
        pid = self.pids.pop(name)
        until(f"the process of {name} has ended", lambda: not os.path.exists(f"/proc/{pid}"), PATIENCE_S, 0.01)
        self.acted.append(time.monotonic() - exceeded)
        until(f"{name} has failed", lambda: self.kube.pod(name)["status"]["phase"] == "Failed", PATIENCE_S)
        self.kube.delete_pod(name)
        gone = [other for other, pid in self.pids.items() if not os.path.exists(f"/proc/{pid}")]
        assert not gone, f"processes of other Pods have ended: {gone}"
        assert self.acted[-1] <= ACTED_S, f"acted after {self.acted[-1]:.2f} s"
        successor = self.add_pod()
        self.use(successor, LIMIT_MIB)
        until("the agent knows the successor's limit", lambda: successor in self.limits(), PATIENCE_S)

    def storm(self, rounds):
        for _ in range(rounds):
            self.round()
        print(f"   {rounds} processes ended after {statistics.median(self.acted):.2f} s (median), at most {max(self.acted):.2f} s", flush=True)


def inside(state, rounds, seed):
    audit = MemoryAudit(state, seed)
    passed = failed = 0
    for name, check in (("thirty Pods within their limits", audit.start), ("what the audit costs", audit.cost),
                        ("each Pod above its limit is killed, no other", lambda: audit.storm(rounds))):
        try:
            check()
        except AssertionError as error:
            failed += 1
            print(f"FAIL {name}: {error}", flush=True)
        else:
            passed += 1
            print(f"ok {name}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0
