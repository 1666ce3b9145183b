"""Node labels that take effect while the agent runs: the MIG layout, and the config of a directory."""
import shutil
import time

from lib.kube import LOOK, Timeout, until
from lib.node import DRIVER_ROOT, GPULET

GPU = "nvidia.com/gpu"
MODEL = "NVIDIA-H100-80GB-HBM3"
SLICED = "nvidia.com/gpu.sliced"
MIG_CONFIG, MIG_STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
NODE_CONFIG = "nvidia.com/device-plugin.config"
MIG_LIMIT_S = 60  # eight GPUs one after the other
COUNT = "nvidia.com/mig-{}.count"
PRESENT = "nvidia.com/gpu.present"  # set by the operator (run.py)
LIVE_S = 1.0      # from a changed label or file until the kubelet has the devices


def mig(profile):
    return f"nvidia.com/mig-{profile}"


class LabelChecks:
    def __init__(self, checks):
        self.checks, self.kube, self.node = checks, checks.kube, checks.n1
        self.directory = self.node.state / "configs"

    def run(self):
        return [
            ("all-1g.10gb by label", self.cut_small),
            ("the Node has GPU labels without NFD", self.described),
            ("all-balanced by label, under a Pod that holds one instance", self.cut_again),
            ("and its labels follow at once", self.described_anew),
            ("a layout that conflicts with a Pod waits for it", self.wait_for_pod),
            ("with drain the Pod is evicted, within its disruption budget", self.drain),
            ("MIG off by label", self.whole_again),
            ("the labels outlive the agent", self.described_for_good),
            ("a node's own config by label", self.own_config),
            ("the label changes, the directory changes", self.another_config),
            ("a label that names no config", self.unknown_config),
        ]

    # Helpers of the checks.
    def label(self, name, value):
        self.kube.patch(f"/api/v1/nodes/{self.node.name}", {"metadata": {"labels": {name: value}}})

    def labels(self):
        return self.kube.get(f"/api/v1/nodes/{self.node.name}")["metadata"]["labels"]

    def offered(self):
        """Returns resource → count of the kubelet's devices, without empty resources."""
        return {name: len(ids) for name, ids in self.node.resources.every_allocatable().items() if ids}

    def cut(self, layout, wanted, always=lambda offered: None):
        """Labels the node and waits for success; `always` checks the offered devices meanwhile."""
        self.label(MIG_CONFIG, layout)
        states = []

        def done():
            state = self.labels().get(MIG_STATE)
            if state and (not states or states[-1] != state):
                states.append(state)
            always(self.offered())
            return "pending" in states and states[-1] == "success"
        until(f"{layout} on all GPUs", done, MIG_LIMIT_S, 0.02)
        assert states[-2:] == ["pending", "success"], f"{MIG_STATE} has been {states}"
        until(f"the kubelet has {wanted}", lambda: self.offered() == wanted)
        self.node.nvml("gpus")

    def event(self, reason, *parts):
        """Waits for an event of the agent that has all these parts."""
        def found():
            messages = [event.get("message", "") for event in self.kube.events() if event.get("reason") == reason]
            return any(all(part in message for part in parts) for message in messages)
        until(f"an event {reason} with {parts}", found)

    def instance(self, uuid):
        """Returns a current MIG device and its GPU's index by NVML, or None."""
        return next(({"gpu": gpu["index"], **device} for gpu in self.node.gpus.values() for device in gpu["mig"]
                     if device["uuid"] == uuid), None)

    # MIG.
    def cut_small(self):
        self.node.write_config("version: v1\nflags: {migStrategy: mixed}\n")
        self.node.start_agent(arguments=["--config-file", self.node.config])
        self.node.wait_allocatable(self.kube, 8)
        self.cut("all-1g.10gb", {mig("1g.10gb"): 56})

    # The Node's GPU labels.
    def says(self, wanted, absent=()):
        """Waits for these Node labels; a MIG profile means its count."""
        found = {}

        def so():
            found.clear()
            found.update(self.labels())
            return all(found.get(key) == value for key, value in wanted.items()) and not set(absent) & set(found)
        try:
            until(f"labels {wanted} and none of {absent}", so)
        except Timeout:
            print({key: value for key, value in found.items() if key.startswith(("nvidia.com/", "gpulet.io/"))})
            raise
        return found

    # With MIG off again.
    whole = ({"nvidia.com/gpu.count": "8", "nvidia.com/gpu.replicas": "1", PRESENT: "true"},
             [COUNT.format(profile) for profile in ("1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb")])

    def described(self):
        labels = self.says({COUNT.format("1g.10gb"): "56", "nvidia.com/mig.strategy": "mixed", "nvidia.com/gpu.count": "8",
                            "nvidia.com/gpu.product": MODEL, "nvidia.com/gpu.replicas": "0",
                            f"gpulet.io/model.{MODEL}.count": "8"})
        said = self.node.run(GPULET, "labels", "--mig-strategy", "mixed", "--driver-root", DRIVER_ROOT)
        for line in said.splitlines():
            key, value = line.split("=", 1)
            assert labels.get(key) == value, f"the Node's {key} is {labels.get(key)}, gpulet labels says {value}"
        # A removed label is restored, and foreign labels are kept.
        self.label("nvidia.com/gpu.count", None)
        self.says({"nvidia.com/gpu.count": "8", PRESENT: "true"})

    def described_anew(self):
        started = time.monotonic()
        self.says({COUNT.format(profile): count for profile, count in (("3g.40gb", "8"), ("2g.20gb", "8"), ("1g.10gb", "16"))})
        print(f"   the Node said so {(time.monotonic() - started) * 1000:.0f} ms after the kubelet", flush=True)

    def described_for_good(self):
        """After the agent has ended, the labels stay."""
        self.says(*self.whole)

    def cut_again(self):
        self.checks.run_pod("tenant", 1, self.node.name, script=LOOK, resource=mig("1g.10gb"))
        held = self.node.resources.held()["tenant"]
        before, instance, nodes = self.checks.facts(["tenant"]), self.instance(held[0]), self.checks.look("tenant")
        # In the upper half only another of its kind would fit beside it.
        assert instance["start"] == 0, f"the Pod got {instance}"

        def only_one_gpu_is_away(offered):
            assert sum(offered.values()) >= 7 * 4, f"only {offered}: more than one GPU is withdrawn"
        self.cut("all-balanced", {mig("3g.40gb"): 8, mig("2g.20gb"): 8, mig("1g.10gb"): 16}, only_one_gpu_is_away)
        self.checks.assert_undisturbed(before)
        assert self.instance(held[0]) == instance, f"{held} was {instance} and is {self.instance(held[0])}"
        assert self.node.resources.held()["tenant"] == held and held[0] in self.node.resources.allocatable(mig("1g.10gb"))
        assert self.checks.look("tenant") == nodes
        self.checks.run_pod("larger", 1, self.node.name, resource=mig("3g.40gb"))
        self.kube.delete_pod("larger")

    def wait_for_pod(self):
        """All other GPUs get the new layout; the Pod's GPU keeps the old one, with an Event that names the Pod, until it ends."""
        gpu = self.instance(self.node.resources.held()["tenant"][0])["gpu"]
        before = self.checks.facts(["tenant"])
        until("the larger Pod has gone", lambda: "larger" not in self.kube.pods(), 60)
        self.label(MIG_CONFIG, "all-7g.80gb")
        until("seven GPUs have the new layout", lambda: self.offered().get(mig("7g.80gb")) == 7, MIG_LIMIT_S)
        self.event("MigBlocked", "default/tenant", f"GPU {gpu}")
        assert self.labels()[MIG_STATE] == "pending", self.labels()
        assert self.offered() == {mig("7g.80gb"): 7, mig("3g.40gb"): 1, mig("2g.20gb"): 1, mig("1g.10gb"): 2}, self.offered()
        self.checks.assert_undisturbed(before)
        self.checks.remove_pods()
        until("the eighth too", lambda: self.offered() == {mig("7g.80gb"): 8}, MIG_LIMIT_S)
        until("success is reported", lambda: self.labels()[MIG_STATE] == "success")

    def drain(self):
        self.checks.run_pod("evicted", 1, self.node.name, resource=mig("7g.80gb"))
        budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        self.kube.call("POST", budgets, {"metadata": {"name": "hold"}, "spec": {
            "minAvailable": 1, "selector": {"matchLabels": {"test": "gpu"}}}})
        until("the budget counts the Pod", lambda: self.kube.get(f"{budgets}/hold")["status"].get("currentHealthy") == 1)
        self.node.write_config("version: v1\nflags: {migStrategy: mixed}\ngpulet: {mig: {drain: true}}\n")
        self.label(MIG_CONFIG, "all-1g.10gb")
        until("seven GPUs have the new layout", lambda: self.offered().get(mig("1g.10gb")) == 49, MIG_LIMIT_S)
        assert self.kube.pod("evicted")["status"]["phase"] == "Running"
        self.kube.call("DELETE", f"{budgets}/hold")
        until("it has left, and its GPU is cut too", lambda: self.offered() == {mig("1g.10gb"): 56}, MIG_LIMIT_S)
        until("the Pod has gone", lambda: "evicted" not in self.kube.pods())
        until("success is reported", lambda: self.labels()[MIG_STATE] == "success")

    def whole_again(self):
        self.cut("all-disabled", {GPU: 8})
        self.label(MIG_CONFIG, None)
        self.label(MIG_STATE, None)
        self.says(*self.whole)
        self.checks.stop_agent_of(self.node)

    # The node's own config.
    def own_config(self):
        self.directory.mkdir()
        (self.directory / "plain").write_text("version: v1\n")
        self.write_slices(4)
        self.label(NODE_CONFIG, "sliced")
        self.node.start_agent(arguments=["--config-file-srcdir", self.directory, "--default-config", "plain"])
        self.node.wait_allocatable(self.kube, 4, resource=SLICED)
        self.node.wait_allocatable(self.kube, 7)

    def write_slices(self, replicas):
        """As the kubelet updates a ConfigMap: writes another directory and swaps the link of all entries."""
        data = self.directory / f"..{replicas}"
        data.mkdir()
        (data / "sliced").write_text("version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, rename: gpu.sliced, "
                                     f"devices: [0], replicas: {replicas}}}]}}}}\n")
        link = self.directory / "..data_tmp"
        link.symlink_to(data.name)
        link.replace(self.directory / "..data")
        entry = self.directory / "sliced"
        if not entry.is_symlink():
            entry.symlink_to("..data/sliced")

    def within_a_second(self, wanted):
        """Measures from now on."""
        started = time.monotonic()
        until(f"the kubelet has {wanted}", lambda: self.offered() == wanted, LIVE_S, 0.02)
        print(f"   the kubelet had {wanted} after {(time.monotonic() - started) * 1000:.0f} ms", flush=True)

    def another_config(self):
        self.checks.run_pod("slice", 1, self.node.name, resource=SLICED)
        held, before = self.node.resources.held()["slice"], self.checks.facts(["slice"])
        self.write_slices(8)
        self.within_a_second({GPU: 7, SLICED: 8})
        self.label(NODE_CONFIG, "plain")
        self.within_a_second({GPU: 8})
        self.label(NODE_CONFIG, "sliced")
        self.within_a_second({GPU: 7, SLICED: 8})
        assert self.node.resources.held()["slice"] == held
        self.checks.assert_undisturbed(before)
        self.checks.remove_pods()

    def unknown_config(self):
        self.label(NODE_CONFIG, "slised")
        self.within_a_second({GPU: 8})
        self.event("NodeConfig", "slised", "plain")
        self.label(NODE_CONFIG, None)
        self.checks.stop_agent_of(self.node)
        shutil.rmtree(self.directory)
