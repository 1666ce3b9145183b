"""GPUs by claims of Dynamic Resource Allocation: the agent as the driver gpu.nvidia.com, with the real scheduler and kubelet."""
import time

from lib.cdi import cdi_pod
from lib.kube import until
from lib.node import DRIVER_ROOT, GPULET_SIM

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
CLASSES = {"gpu.nvidia.com": "gpu", "mig.nvidia.com": "mig"}
CONFIG = "version: v1\nflags: {{migStrategy: mixed}}\ngpulet: {{health: {{livenessInterval: 1s, unhealthyPollInterval: 200ms, recoveryActionDelay: 500ms, recoveryHold: 1s}}, cdi: {{hookDir: {hooks}}}}}\n"


class DraChecks:
    def __init__(self, checks):
        self.checks, self.kube, self.node = checks, checks.kube, checks.n1

    def run(self):
        return [
            ("the node's GPUs are in one slice, and in no resource", self.slices),
            ("a Pod with a claim sees only its GPU", self.one_gpu),
            ("two Pods share a claim", self.shared),
            ("a prioritized list takes the first alternative that there is", self.prioritized),
            ("a MIG device of a layout", self.static_mig),
            ("an agent that starts again writes no slice, and a claim goes on", self.restart),
            ("a slice that somebody deletes is there again", self.deleted),
            ("a fault taints exactly its GPU, and the taint goes", self.fault),
            ("no slice and no record are left", self.end),
        ]

    def shown(self):
        slices = self.kube.get(f"{API}/resourceslices")["items"]
        return [item for item in slices if item["spec"].get("nodeName") == self.node.name]

    def devices(self):
        return {device["name"]: device for item in self.shown() for device in item["spec"].get("devices", [])}

    def start(self):
        self.node.write_config(CONFIG.format(hooks=self.node.state / "hook"))
        self.node.start_agent(arguments=["--config-file", self.node.config, "--dra"],
                              env={"GPULET_DRA_RECORD_DIR": str(self.node.state / "claims")})

    def slices(self):
        self.checks.cdi.load_image()
        for name, kind in CLASSES.items():
            self.kube.call("POST", f"{API}/deviceclasses", {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {
                "expression": f"device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == '{kind}'"}}]}})
        started = time.monotonic()
        self.start()
        until("the GPUs are in a slice", lambda: len(self.devices()) == 8, 10, 0.01)
        print(f"   the slice was there after {(time.monotonic() - started) * 1000:.0f} ms", flush=True)
        assert len(self.shown()) == 1, self.shown()
        devices = self.devices()
        assert set(devices) == {f"gpu-{gpu['minor']}" for gpu in self.node.gpus.values()}, devices
        assert {device["attributes"]["uuid"]["string"] for device in devices.values()} == set(self.node.gpus), devices
        assert self.kube.allocatable(self.node.name, "nvidia.com/gpu") == 0

    def claim(self, name, request, template=False):
        spec = {"devices": {"requests": [{"name": "gpu", **request}]}}
        if template:
            return self.kube.call("POST", f"{API}/namespaces/default/resourceclaimtemplates", {"metadata": {"name": name}, "spec": {"spec": spec}})
        return self.kube.call("POST", CLAIMS, {"metadata": {"name": name}, "spec": spec})

    def pod(self, name, **source):
        pod = cdi_pod(name, 0, self.node.name)
        pod["spec"]["resourceClaims"] = [{"name": "gpu", **source}]
        pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        self.kube.create_pod(pod)
        self.checks.wait_running(name)

    def held(self):
        """Name of a claim → its devices."""
        return {item["metadata"]["name"]: [result["device"] for result in item["status"]["allocation"]["devices"]["results"]]
                for item in self.kube.get(CLAIMS)["items"] if item.get("status", {}).get("allocation")}

    def uuid(self, device):
        return self.devices()[device]["attributes"]["uuid"]["string"]

    def end_pods(self, *claims):
        self.checks.remove_pods()
        for name in claims:
            self.kube.call("DELETE", f"{CLAIMS}/{name}")
        until("the claims are gone", lambda: not self.kube.get(CLAIMS)["items"])
        until("the records are gone", lambda: not list((self.node.state / "claims").glob("*.json")))

    def one_gpu(self):
        self.claim("one-gpu", {"exactly": {"deviceClassName": "gpu.nvidia.com"}}, template=True)
        self.pod("one", resourceClaimTemplateName="one-gpu")
        [[device]] = self.held().values()
        self.checks.cdi.assert_sees("one", [self.uuid(device)])
        self.checks.cdi.assert_driver("one", self.checks.cdi.version())
        self.end_pods()

    def shared(self):
        self.claim("shared", {"exactly": {"deviceClassName": "gpu.nvidia.com"}})
        for name in ("one", "two"):
            self.pod(name, resourceClaimName="shared")
        [device] = self.held()["shared"]
        for name in ("one", "two"):
            self.checks.cdi.assert_sees(name, [self.uuid(device)])
        # The other Pod keeps it.
        self.kube.delete_pod("one")
        until("the Pod is gone", lambda: "one" not in self.kube.pods())
        assert list((self.node.state / "claims").glob("*.json"))
        self.end_pods("shared")

    def prioritized(self):
        self.claim("prioritized", {"firstAvailable": [{"name": "partition", "deviceClassName": "mig.nvidia.com"},
                                                      {"name": "whole", "deviceClassName": "gpu.nvidia.com"}]})
        self.pod("one", resourceClaimName="prioritized")
        [device] = self.held()["prioritized"]
        assert "mig" not in device, device
        self.checks.cdi.assert_sees("one", [self.uuid(device)])
        self.end_pods("prioritized")

    def static_mig(self):
        self.node.change_mig("cut", 7, "3@4", "2@0", "1@2", "1@3")
        until("the MIG devices are in the slice", lambda: len(self.devices()) == 11)
        self.claim("mig", {"exactly": {"deviceClassName": "mig.nvidia.com", "selectors": [{"cel": {
            "expression": "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"}}]}})
        self.pod("one", resourceClaimName="mig")
        [device] = self.held()["mig"]
        assert device.startswith("gpu-7-mig-1g10gb-"), device
        uuid = self.uuid(device)
        assert uuid in {mig["uuid"] for mig in self.node.gpu(7)["mig"]}, uuid
        nodes = {node for line in self.checks.cdi.words("one", "node") for node in line}
        assert len([node for node in nodes if "nvidia-caps" in node]) == 2, nodes
        self.end_pods("mig")
        self.node.change_mig("whole", 7)
        until("the GPU is whole again", lambda: len(self.devices()) == 8)

    def restart(self):
        self.pod("one", resourceClaimTemplateName="one-gpu")
        before = [item["metadata"]["resourceVersion"] for item in self.shown()]
        self.node.stop_agent(9)
        self.start()
        self.pod("two", resourceClaimTemplateName="one-gpu")  # the agent serves again
        assert [item["metadata"]["resourceVersion"] for item in self.shown()] == before
        first, second = self.held().values()
        assert first != second
        self.end_pods()

    def deleted(self):
        [item] = self.shown()
        self.kube.call("DELETE", f"{API}/resourceslices/{item['metadata']['name']}")
        started = time.monotonic()
        until("the slice is there again", lambda: len(self.devices()) == 8, 5, 0.01)
        print(f"   after {(time.monotonic() - started) * 1000:.0f} ms", flush=True)

    def fault(self):
        gpu = self.node.gpu(3)
        name = f"gpu-{gpu['minor']}"
        started = time.monotonic()
        self.node.run(GPULET_SIM, "xid", 3, 79, "--root", DRIVER_ROOT)
        until("the GPU is tainted", lambda: self.devices()[name].get("taints"), 5, 0.005)
        print(f"   tainted after {(time.monotonic() - started) * 1000:.0f} ms", flush=True)
        taints = {(taint["key"], taint["value"], taint["effect"]) for taint in self.devices()[name]["taints"]}
        assert ("gpu.nvidia.com/xid", "79", "NoSchedule") in taints, taints
        assert [other for other, device in self.devices().items() if device.get("taints")] == [name]
        self.node.run(GPULET_SIM, "heal", 3, "--root", DRIVER_ROOT)
        until("the taint is gone", lambda: not self.devices()[name].get("taints"), 60)

    def end(self):
        self.kube.call("DELETE", f"{API}/namespaces/default/resourceclaimtemplates/one-gpu")
        self.checks.stop_agent_of(self.node)
        # The kubelet deletes the slices of a driver that is gone.
        until("the slices are gone", lambda: not self.shown(), 60)
        for name in CLASSES:
            self.kube.call("DELETE", f"{API}/deviceclasses/{name}")
