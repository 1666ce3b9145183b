"""Memory limits of Pods on one time-sliced GPU: processes of a container above its limit are killed, or its Pod is evicted."""
import os
import re
import time

from lib.kube import gpu_pod, until
from lib.node import DRIVER_ROOT, GPULET_SIM

LIMIT_MIB = 8192
NAMES = ("limit-over", "limit-within", "limit-later")
SEEN_S, ACTED_S = 1.5, 2.5  # one and two readings, and the time to look
PATIENCE_S = 30.0


class MemoryLimitChecks:
    """On a node whose agent follows its config file. `resource` is unused by others."""

    def __init__(self, checks, node, resource, write_config):
        self.checks, self.kube, self.node, self.resource, self.write_config = checks, checks.kube, node, resource, write_config
        self.gpu = None
        self.loaded = []  # pids

    def run(self):
        self.gpu = self.node.gpu(0)["uuid"]
        self.config("kill")
        self.node.wait_allocatable(self.kube, 4, resource=self.resource)
        for name in NAMES:
            self.kube.create_pod(self.pod(name))
        for name in NAMES:
            self.checks.wait_running(name)
        until("the agent knows the limits", lambda: len(self.limits()) == len(NAMES), PATIENCE_S, 0.1)
        assert self.limits() == {name: LIMIT_MIB << 20 for name in NAMES}, self.limits()
        within = self.checks.facts(["limit-within", "limit-later"])
        self.use("limit-within", LIMIT_MIB)
        self.killed()
        self.checks.assert_undisturbed(within)
        self.config("evict")
        self.evicted()
        within.pop("limit-later")
        self.checks.assert_undisturbed(within)
        for pid in self.loaded:
            self.node.run(GPULET_SIM, "load", self.gpu, 0, "--pid", pid, "--root", DRIVER_ROOT)
        self.checks.remove_pods()

    def config(self, action):
        self.write_config("sharing:", "  timeSlicing:", "    resources:",
                          f"      - {{name: gpu, rename: {self.resource}, devices: [0], replicas: 4}}",
                          "gpulet:", f"  fraction: {{onExceeded: {action}}}")

    def pod(self, name):
        pod = gpu_pod(name, 1, self.node.name, resource=self.resource)
        pod["metadata"]["annotations"] = {"gpulet.io/gpu-memory": f"{LIMIT_MIB}Mi"}
        return pod

    def limits(self):
        found = re.findall(r'^gpulet_container_gpu_memory_limit_bytes{[^}]*pod="([^"]*)"[^}]*} (\S+)$', self.node.metrics(), re.MULTILINE)
        return {pod: int(float(value)) for pod, value in found}

    def use(self, name, mebibytes):
        """Memory of a process of the Pod, as its CUDA calls would take it. Returns its pid."""
        pid = until(f"the process of {name}", lambda: self.node.environments().get(name), PATIENCE_S)[0]
        self.node.run(GPULET_SIM, "load", self.gpu, 10, "--memory", mebibytes, "--pid", pid, "--root", DRIVER_ROOT)
        self.loaded.append(pid)
        return pid

    def reasons(self, name):
        return [event["reason"] for event in self.kube.events_about(name, "Pod") if event["reason"].startswith("GpuMemory")]

    def killed(self):
        started = time.monotonic()
        pid = self.use("limit-over", LIMIT_MIB + 1)
        until("the event GpuMemoryExceeded", lambda: self.reasons("limit-over"), SEEN_S + 1, 0.05)
        until("its process has ended", lambda: not os.path.exists(f"/proc/{pid}"), ACTED_S, 0.01)
        print(f"   killed {time.monotonic() - started:.2f} s after it had the memory", flush=True)
        until("the Pod has failed", lambda: self.kube.pods()["limit-over"]["status"]["phase"] == "Failed", PATIENCE_S)
        ended = self.kube.pods()["limit-over"]["status"]["containerStatuses"][0]["state"]["terminated"]
        assert ended["exitCode"] == 137, ended
        until("the event GpuMemoryKilled", lambda: "GpuMemoryKilled" in self.reasons("limit-over"), PATIENCE_S)
        message = next(event["message"] for event in self.kube.events_about("limit-over", "Pod") if event["reason"] == "GpuMemoryKilled")
        assert message == (f"container main uses {LIMIT_MIB + 1} MiB of {self.gpu}, its limit is {LIMIT_MIB} MiB "
                           "(annotation gpulet.io/gpu-memory): killed 1 process"), message

    def evicted(self):
        self.use("limit-later", LIMIT_MIB + 1)
        until("the Pod is evicted", lambda: "limit-later" not in self.kube.pods() or
              "deletionTimestamp" in self.kube.pods()["limit-later"]["metadata"], PATIENCE_S)
        until("the event GpuMemoryEviction", lambda: "GpuMemoryEviction" in self.reasons("limit-later"), PATIENCE_S)
        assert not self.reasons("limit-within"), self.reasons("limit-within")
