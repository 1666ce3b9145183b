"""Power limits by rule, by node label and by Pod annotation: set live, restored at exit and after a crash (docs/power.md)."""
import signal
import time

from lib.kube import gpu_pod, until

DEFAULT_W, RULE_W, POD_W = 700, 560, 420  # an H100: 80 % and 60 % of its default
LABEL_W = 350
KUBELET_S = 30.0  # the kubelet is asked for its Pods every 10 s
LIMIT = "gpulet.io/power-limit"
REASON = "GpuPowerLimit"
CONFIG = """version: v1
gpulet:
  power:
    rules:
      - {nodeLabel: pool=quiet, limit: 350W}
      - {model: "*H100*", limit: 80%}
    podAnnotation: {enabled: true, min: 50%}
"""
WITHOUT_RULES = "version: v1\ngpulet: {power: {rules: []}}\n"


class PowerChecks:
    def __init__(self, checks):
        self.checks, self.kube, self.node = checks, checks.kube, checks.n1

    def run(self):
        return [
            ("a rule limits each GPU", self.rule),
            ("a Pod limits the GPU that it holds, until it ends", self.pod),
            ("a Pod's limit above the rule's does not count, and an event says so", self.too_high),
            ("a Node label chooses another rule", self.label),
            ("limits stay after kill -9, and an agent without rules restores them", self.crash),
            ("an agent that ends restores them", self.exit),
        ]

    # Helpers of the checks.
    def wait_limits(self, watts, limit_s=10, but=None):
        """Waits for the power limit of every GPU, by NVML; `but` has UUID → another one."""
        found = {}

        def so():
            found.update({uuid: gpu["power_limit"] / 1000 for uuid, gpu in self.node.nvml("gpus").items()})
            return found == {**dict.fromkeys(found, watts), **(but or {})}
        started = time.monotonic()
        until(f"{watts} W, but {but or {}}", so, limit_s, 0.05)
        return time.monotonic() - started

    def annotated_pod(self, name, limit):
        pod = gpu_pod(name, 1, self.node.name)
        pod["metadata"]["annotations"] = {LIMIT: limit}
        self.kube.create_pod(pod)
        self.checks.wait_running(name)
        return until("the kubelet says what the Pod holds", lambda: self.node.resources.held().get(name))[0]

    # The checks.
    def rule(self):
        self.wait_limits(DEFAULT_W)
        self.node.write_config(CONFIG)
        self.node.start_agent(arguments=["--config-file", self.node.config])
        self.node.wait_allocatable(self.kube, 8)
        self.wait_limits(RULE_W)

    def pod(self):
        gpu = self.annotated_pod("saver", "60%")
        took = self.wait_limits(RULE_W, KUBELET_S, {gpu: POD_W})
        self.kube.delete_pod("saver")
        ended = self.wait_limits(RULE_W, KUBELET_S)
        print(f"   the Pod's limit {took:.1f} s after it runs, the rule's again {ended:.1f} s after it was deleted", flush=True)

    def too_high(self):
        self.annotated_pod("greedy", "650W")

        def told():
            return [event for event in self.kube.events() if event.get("reason") == REASON and event["involvedObject"]["name"] == "greedy"]
        until("an event of the Pod", told, KUBELET_S)
        self.wait_limits(RULE_W, 0.1)
        self.checks.remove_pods()

    def label(self):
        for value, watts in (("quiet", LABEL_W), (None, RULE_W)):
            self.kube.patch(f"/api/v1/nodes/{self.node.name}", {"metadata": {"labels": {"pool": value}}})
            self.wait_limits(watts)

    def crash(self):
        self.node.stop_agent(signal.SIGKILL)
        self.wait_limits(RULE_W, 0.1)
        self.node.write_config(WITHOUT_RULES)
        self.node.start_agent(arguments=["--config-file", self.node.config])
        self.wait_limits(DEFAULT_W)

    def exit(self):
        self.node.write_config(CONFIG)
        self.wait_limits(RULE_W)
        self.checks.stop_agent_of(self.node)
        self.wait_limits(DEFAULT_W, 0.1)
