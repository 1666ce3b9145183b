"""Rebalancing: two Deployments share a hot GPU of one node, the other GPU is idle."""
import re

from lib.kube import gpu_pod, until
from lib.node import DRIVER_ROOT, GPULET_SIM

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"
HIGH, LOW = "hot-high", "hot-low"
LOADS = {HIGH: 60, LOW: 40}  # percent of the GPU
BUSY_S = 30.0


class RebalanceChecks:
    """On a node whose agent follows its config file and samples each second. `resource` is unused by others."""

    def __init__(self, checks, node, resource, write_config):
        self.checks, self.kube, self.node, self.resource, self.write_config = checks, checks.kube, node, resource, write_config
        self.loads = {}  # process → its GPU

    def run(self):
        """The Pod of the lowest priority leaves the hot GPU for the idle one, once, and only when it may."""
        hot, idle = (self.node.gpu(index)["uuid"] for index in (0, 1))
        self.config([0])
        self.node.wait_allocatable(self.kube, 2, resource=self.resource)
        self.kube.call("POST", PRIORITIES, {"metadata": {"name": HIGH}, "value": 1000})
        for name in LOADS:
            self.kube.call("POST", DEPLOYMENTS, self.deployment(name))
        held = until("both share the first GPU", lambda: (held := self.held()) and set(held) == set(LOADS) and held, BUSY_S)
        assert {gpu for _, gpu in held.values()} == {hot}, held
        (high, _), (low, _) = held[HIGH], held[LOW]
        for name, (pod, gpu) in held.items():
            self.load(pod, gpu, LOADS[name])
        self.config([0, 1], "dryRun: true")
        self.wait_event(low, "GpuRebalanceEviction", "would be evicted (dry run)", hot, idle)
        self.budget()
        self.config([0, 1])
        self.wait_event(low, "GpuRebalanceEvictionWaits", "budget")
        assert self.held() == held, f"a dry run or a budget did not hold: {held} became {self.held()}"
        self.kube.call("DELETE", f"{BUDGETS}/{LOW}")
        until(f"{low} has gone", lambda: low not in self.kube.pods(), BUSY_S)
        self.unload()
        self.load(high, hot, LOADS[HIGH])
        now = until("its successor runs", lambda: (held := self.held()) and set(held) == set(LOADS) and held, BUSY_S)
        assert now[HIGH] == (high, hot) and now[LOW][1] == idle, f"{held} became {now}"
        until("the agent has sampled that", lambda: self.is_relieved(hot), BUSY_S)
        # The page is as of the agent's last sample.
        until("the metric counts one eviction", lambda: 'gpulet_pods_rebalanced_total{result="evicted"} 1\n' in self.node.metrics(), BUSY_S)
        others = [event for name in (high, now[LOW][0]) for event in self.kube.events_about(name) if "Rebalance" in event["reason"]]
        assert not others, others
        self.end()

    def config(self, devices, *rebalance):
        """Without the second GPU, nothing is to be rebalanced."""
        settings = ["gpulet:", "  rebalance:", "    enabled: true", "    hotFor: 1s", "    horizon: 1s",
                    *(f"    {line}" for line in rebalance)] if len(devices) > 1 else []
        self.write_config("sharing:", "  timeSlicing:", "    resources:",
                          f"      - {{name: gpu, rename: {self.resource}, devices: {devices}, replicas: 2}}", *settings)

    def deployment(self, name):
        template = gpu_pod(name, 1, self.node.name, resource=self.resource)
        template["metadata"] = {"labels": {"app": name}}
        template["spec"]["restartPolicy"] = "Always"
        template["spec"]["containers"][0]["env"] = [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
        if name == HIGH:
            template["spec"]["priorityClassName"] = HIGH
        return {"metadata": {"name": name}, "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}}

    def held(self):
        """Deployment → its running Pod and that Pod's GPU."""
        running = {name: pod["metadata"]["labels"].get("app") for name, pod in self.kube.pods().items()
                   if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]}
        return {running[pod]: (pod, ids[0].partition("::")[0]) for pod, ids in self.node.resources.held().items() if pod in running}

    def is_relieved(self, gpu):
        """Whether the GPU's last sample is what the one Pod uses."""
        return re.search(rf'DCGM_FI_DEV_GPU_UTIL{{[^}}]*UUID="{gpu}"[^}}]*}} {LOADS[HIGH]}\b', self.node.metrics())

    def load(self, pod, gpu, percent):
        pid = until(f"the process of {pod}", lambda: self.node.environments().get(pod), BUSY_S)[0]
        self.node.run(GPULET_SIM, "load", gpu, percent, "--pid", pid, "--root", DRIVER_ROOT)
        self.loads[pid] = gpu

    def unload(self):
        for pid, gpu in self.loads.items():
            self.node.run(GPULET_SIM, "load", gpu, 0, "--pid", pid, "--root", DRIVER_ROOT)
        self.loads = {}

    def budget(self):
        self.kube.call("POST", BUDGETS, {"metadata": {"name": LOW}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": LOW}}}})
        until("the budget counts the Pod", lambda: self.kube.get(f"{BUDGETS}/{LOW}")["status"].get("currentHealthy") == 1)

    def wait_event(self, pod, reason, *parts):
        until(f"{reason} about {pod} with {parts}", lambda: any(
            event["reason"] == reason and all(part in event["message"] for part in parts)
            for event in self.kube.events_about(pod, "Pod")), BUSY_S)

    def end(self):
        self.unload()
        for name in LOADS:
            self.kube.call("DELETE", f"{DEPLOYMENTS}/{name}", {"propagationPolicy": "Background"})
        self.kube.call("DELETE", f"{PRIORITIES}/{HIGH}")
        until("their Pods have gone", lambda: not self.kube.pods(), BUSY_S)
