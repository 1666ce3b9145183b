"""The API server starts again with the feature gates of claims off, and on again, while the agent goes on."""
import time

from lib.kube import until
from lib.node import DRIVER_ROOT, GPULET_SIM

API = "/apis/resource.k8s.io/v1"
GATES = ("DRADeviceTaints", "DRAPartitionableDevices", "DRAConsumableCapacity")
SHARED, SICK, PARTITIONED = 0, 3, 7  # indices of GPUs
RULES = f"{{devices: [{SHARED}], whole: {{consumableShares: memory}}}}, {{devices: [{PARTITIONED}], dynamicMig: {{profiles: [1g.10gb]}}}}"


class FeatureGateChecks:
    def __init__(self, dra):
        self.dra, self.kube, self.node = dra, dra.kube, dra.node

    def run(self):
        """What the server drops silently is offered in a form that needs no gate, and in full as soon as the gate is on."""
        # With MIG on, and a MIG device of another program: four of the seven places are free.
        self.node.change_mig("cut", PARTITIONED, "2@0")
        self.dra.write_config(RULES)
        self.node.run(GPULET_SIM, "xid", SICK, 79, "--root", DRIVER_ROOT)
        self.wait_offer("everything", self.is_whole_offer)
        self.restart_api_server(*(f"{gate}=false" for gate in GATES))
        # A server keeps what a slice has already: only a new one shows that it drops.
        for item in self.dra.shown():
            self.kube.call("DELETE", f"{API}/resourceslices/{item['metadata']['name']}")
        self.wait_offer("what needs no gate", self.is_plain_offer)
        self.dra.pod("ungated", resourceClaimTemplateName="one-gpu")
        self.dra.end_pods()
        assert self.is_plain_offer(), self.dra.devices()
        self.restart_api_server()
        self.wait_offer("everything again", self.is_whole_offer)
        self.dra.pod("gated", resourceClaimTemplateName="one-gpu")
        self.dra.end_pods()
        self.node.run(GPULET_SIM, "heal", SICK, "--root", DRIVER_ROOT)
        self.dra.write_config()
        self.node.change_mig("whole", PARTITIONED)
        until("the GPUs are whole and well", lambda: len(self.dra.devices()) == 8 and not any(device.get("taints") for device in self.dra.devices().values()), 60)

    def restart_api_server(self, *gates):
        started = time.monotonic()
        self.node.testbed("apiserver", "stop")
        self.node.testbed("apiserver", "start", *([f"--feature-gates={','.join(gates)}"] if gates else []))
        print(f"   the API server is back after {time.monotonic() - started:.1f} s", flush=True)

    def wait_offer(self, what, is_offered):
        started = time.monotonic()
        until(f"the slices have {what}", is_offered, 60, 0.05)
        print(f"   {what} after {(time.monotonic() - started) * 1000:.0f} ms", flush=True)

    def name(self, index):
        return f"gpu-{self.node.gpu(index)['minor']}"

    def is_whole_offer(self):
        devices = self.dra.devices()
        partitions = [device for name, device in devices.items() if name.startswith(f"{self.name(PARTITIONED)}-mig-")]
        counters = [one for item in self.dra.shown() for one in item["spec"].get("sharedCounters", [])]
        return (len(devices) - len(partitions) == 7 and bool(devices.get(self.name(SICK), {}).get("taints")) and bool(counters)
                and partitions != [] and all(device.get("consumesCounters") for device in partitions)
                and bool(devices.get(self.name(SHARED), {}).get("allowMultipleAllocations")))

    def is_plain_offer(self):
        """The sick GPU and the partitions are left out; the shared GPU is for one claim."""
        devices = self.dra.devices()
        names = {self.name(index) for index in range(8) if index not in (SICK, PARTITIONED)}
        return set(devices) == names and not any(device.get(field) for device in devices.values()
                                                 for field in ("taints", "consumesCounters", "allowMultipleAllocations"))
