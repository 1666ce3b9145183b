"""GPUs by claims of Dynamic Resource Allocation: the agent as the driver gpu.nvidia.com, with the real scheduler and kubelet."""
import json
import os
import pathlib
import re
import subprocess
import time

import yaml

from lib.cdi import cdi_pod
from lib.examples import CLAIM_EXAMPLES, submit
from lib.feature_gates import FeatureGateChecks
from lib.kube import until
from lib.kubectl import kubectl, manifest
from lib.node import DRIVER_ROOT, GPULET, GPULET_SIM
from lib.partition import COMPUTE_MODE_DEFAULT, COMPUTE_MODE_EXCLUSIVE_PROCESS

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
TEMPLATES = f"{API}/namespaces/default/resourceclaimtemplates"
GPU_NODES = "/apis/gpulet.io/v1alpha1/gpunodes"
CLASSES = {"gpu.nvidia.com": "gpu", "mig.nvidia.com": "mig"}
HEALTH_TIMEOUT_S = 35  # the kubelet's, and a little more
CONFIG = "version: v1\nflags: {{migStrategy: mixed, mpsRoot: {mps}, plugin: {{deviceListStrategy: cdi-cri}}}}\ngpulet: {{health: {{livenessInterval: 1s, unhealthyPollInterval: 200ms, recoveryActionDelay: 500ms, recoveryHold: 1s}}, cdi: {{hookDir: {hooks}}}, dra: {{featureGates: {{MPSSupport: true}}}}, partition: [{rules}]}}\n"


class DraChecks:
    def __init__(self, checks):
        self.checks, self.kube, self.node = checks, checks.kube, checks.n1
        self.seen = set()
        self.mps_root = self.node.state / self.node.name / "mps"

    def run(self):
        return [
            ("the node's GPUs are in one slice, and in no resource", self.slices),
            ("dra/one-gpu.yaml: a Pod with a claim sees only its GPU", self.one_gpu),
            ("dra/linked-gpus.yaml: a pair that is whole, while another is broken", self.linked_gpus),
            ("dra/shared-claim.yaml: two Pods share a claim", self.shared),
            ("dra/shared-mps.yaml: two Pods share a GPU by MPS", self.shared_by_mps),
            ("dra/prioritized.yaml takes the first alternative that there is", self.prioritized),
            ("dra/mig-device.yaml: a MIG device of a layout", self.static_mig),
            ("dra/dynamic-mig.yaml: MIG devices that are made for a claim, beside one of another program", self.dynamic_mig),
            ("dra/shared-memory.yaml: two claims on one GPU, and a third that waits for memory", self.shared_by_memory),
            ("dra/extended-resource.yaml: an unchanged Pod gets its GPU by a claim", self.extended_resource),
            ("the GpuNode and kubectl gpulet list name the Pods that hold a claim", self.holders),
            ("every example of claims was tested", self.all_seen),
            ("an agent that starts again writes no slice, and a claim goes on", self.restart),
            ("a slice that somebody deletes is there again", self.deleted),
            ("a fault taints exactly its GPU, and the taint goes", self.fault),
            ("a Pod shows the health of the GPU that it holds", self.pod_health),
            ("the metrics count and time the claims", self.metrics),
            ("GPUs move to the device plugin and back while Pods hold them", self.moved_live),
            ("the API server restarts with the feature gates off, and on again", FeatureGateChecks(self).run),
            ("no slice and no record are left", self.end),
        ]

    def shown(self):
        slices = self.kube.get(f"{API}/resourceslices")["items"]
        return [item for item in slices if item["spec"].get("nodeName") == self.node.name]

    def devices(self):
        return {device["name"]: device for item in self.shown() for device in item["spec"].get("devices", [])}

    def write_config(self, rules=""):
        self.node.write_config(CONFIG.format(hooks=self.node.state / "hook", mps=self.mps_root, rules=rules))

    def start(self):
        self.start_with("")

    def start_with(self, rules):
        self.write_config(rules)
        self.node.start_agent(arguments=["--config-file", self.node.config, "--dra"],
                              env={"GPULET_DRA_RECORD_DIR": str(self.node.state / "claims")})

    def slices(self):
        self.checks.cdi.load_image()
        for name, kind in CLASSES.items():
            resource = {"extendedResourceName": "nvidia.com/gpu"} if kind == "gpu" else {}
            self.kube.call("POST", f"{API}/deviceclasses", {"metadata": {"name": name}, "spec": {**resource, "selectors": [{"cel": {
                "expression": f"device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == '{kind}'"}}]}})
        crd = next(item for item in manifest(self.checks.root / "deploy/static/scheduler.yaml") if item["kind"] == "CustomResourceDefinition")
        kubectl("apply", "-f", "-", text=json.dumps(crd))
        kubectl("wait", "--for=condition=Established", "crd/gpunodes.gpulet.io", "--timeout=60s")
        # A Pod that waits for the node's first GPU comes as soon as there is one.
        [waiting] = self.create("one-gpu", wait=False)
        started = time.monotonic()
        self.start()
        # Not before the Node shows that the device plugin is gone, which the kubelet writes every 10 s.
        until("the GPUs are in a slice", lambda: len(self.devices()) == 8, 25, 0.01)
        print(f"   the slice was there after {(time.monotonic() - started) * 1000:.0f} ms", flush=True)
        self.checks.wait_running(waiting)
        print(f"   the Pod that waited runs after {(time.monotonic() - started) * 1000:.0f} ms", flush=True)
        failed = [event for event in self.kube.events_about(waiting, "Pod") if event["reason"] == "FailedPrepareDynamicResources"]
        assert not failed, failed
        self.end_pods()
        self.kube.call("DELETE", f"{TEMPLATES}/one-gpu")
        assert len(self.shown()) == 1, self.shown()
        devices = self.devices()
        assert set(devices) == {f"gpu-{gpu['minor']}" for gpu in self.node.gpus.values()}, devices
        assert {device["attributes"]["uuid"]["string"] for device in devices.values()} == set(self.node.gpus), devices
        assert self.kube.allocatable(self.node.name, "nvidia.com/gpu") == 0

    def create(self, example, wait=True):
        """Applies examples/dra/EXAMPLE.yaml strictly. Its Pods run, with a stand-in image; returns their names."""
        path = CLAIM_EXAMPLES / f"{example}.yaml"
        self.seen.add(path)
        items = list(yaml.safe_load_all(path.read_text()))
        pods = [item for item in items if item["kind"] == "Pod"]
        for pod in pods:
            stand_in = cdi_pod(pod["metadata"]["name"], 0, self.node.name)["spec"]
            [container], [replaced] = stand_in["containers"], pod["spec"]["containers"]
            pod["spec"].update(stand_in, containers=[{**container, "resources": replaced["resources"]}])
        submit(items)
        names = [pod["metadata"]["name"] for pod in pods]
        for name in names if wait else []:
            self.checks.wait_running(name)
        return names

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
        [pod] = self.create("one-gpu")
        [[device]] = self.held().values()
        self.checks.cdi.assert_sees(pod, [self.uuid(device)])
        self.checks.cdi.assert_driver(pod, self.checks.cdi.version())
        self.end_pods()

    def linked_gpus(self):
        """The best pairs are neighbours in the slice; the first device is taken, so first fit alone would take two halves of pairs."""
        listed = list(self.devices().values())
        pairs = [device["attributes"]["gpulet.io/bestPair"]["string"] for device in listed]
        assert pairs[::2] == pairs[1::2] and len(set(pairs)) == len(pairs) / 2, pairs
        assert len({device["attributes"]["gpulet.io/bestQuad"]["string"] for device in listed}) == len(listed) / 4, listed
        assert len({device["attributes"]["gpulet.io/nvlinkIsland"]["string"] for device in listed}) == 1, listed
        self.pod("single", resourceClaimTemplateName="one-gpu")
        [[taken]] = self.held().values()
        assert taken == listed[0]["name"], taken
        [pod] = self.create("linked-gpus")
        [first, second] = next(devices for devices in self.held().values() if devices != [taken])
        assert [first, second] == [listed[2]["name"], listed[3]["name"]], (first, second)
        self.checks.cdi.assert_sees(pod, [self.uuid(first), self.uuid(second)])
        self.end_pods()

    def shared(self):
        pods = self.create("shared-claim")
        [device] = self.held()["shared-gpu"]
        for name in pods:
            self.checks.cdi.assert_sees(name, [self.uuid(device)])
        # The other Pod keeps it.
        self.kube.delete_pod(pods[0])
        until("the Pod is gone", lambda: pods[0] not in self.kube.pods())
        assert list((self.node.state / "claims").glob("*.json"))
        self.end_pods("shared-gpu")

    def shared_by_mps(self):
        pods = self.create("shared-mps")
        [device] = self.held()["shared-mps"]
        uuid = self.uuid(device)
        [record] = (self.node.state / "claims").glob("*.json")
        daemon = self.mps_root / "claims" / record.stem
        assert (daemon / ".started").exists(), list(self.mps_root.rglob("*"))
        environments = until("both containers run", lambda: (found := self.node.environments()).keys() >= set(pods) and found)
        for name in pods:
            self.checks.cdi.assert_sees(name, [uuid])
            pid, environment = environments[name]
            assert environment["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/nvidia-mps", environment
            assert pathlib.Path("/proc", str(pid), "root/tmp/nvidia-mps/control").exists(), name
        shared = {(found.st_dev, found.st_ino) for pid, _ in (environments[name] for name in pods)
                  for found in [pathlib.Path("/proc", str(pid), "root/dev/shm").stat()]}
        assert len(shared) == 1, "the containers of one claim share their memory"
        assert self.node.nvml("gpus")[uuid]["compute_mode"] == COMPUTE_MODE_EXCLUSIVE_PROCESS
        # The other Pod keeps it.
        self.kube.delete_pod(pods[0])
        until("the Pod is gone", lambda: pods[0] not in self.kube.pods())
        assert (daemon / ".started").exists()
        self.end_pods("shared-mps")
        until("the daemon has ended", lambda: not daemon.exists(), 20)
        assert self.node.nvml("gpus")[uuid]["compute_mode"] == COMPUTE_MODE_DEFAULT

    def prioritized(self):
        [pod] = self.create("prioritized")
        [[device]] = self.held().values()
        assert "mig" not in device, device
        self.checks.cdi.assert_sees(pod, [self.uuid(device)])
        self.end_pods()

    def static_mig(self):
        self.node.change_mig("cut", 7, "3@4", "2@0", "1@2", "1@3")
        until("the MIG devices are in the slice", lambda: len(self.devices()) == 11)
        [pod] = self.create("mig-device")
        [[device]] = self.held().values()
        assert device.startswith("gpu-7-mig-1g10gb-"), device
        uuid = self.uuid(device)
        assert uuid in {mig["uuid"] for mig in self.node.gpu(7)["mig"]}, uuid
        nodes = {node for line in self.checks.cdi.words(pod, "node") for node in line}
        assert len([node for node in nodes if "nvidia-caps" in node]) == 2, nodes
        until("the GpuNode names the Pod of the MIG device", lambda: self.held_in_gpu_node() == {(pod, 7, "1g.10gb")}, 5)
        self.end_pods()
        self.node.change_mig("whole", 7)
        until("the GPU is whole again", lambda: len(self.devices()) == 8)

    def dynamic_mig(self):
        """Seven 1g.10gb and two 3g.40gb are offered; another program's 2g.20gb is in the place of three of them, and stays."""
        self.node.change_mig("cut", 7, "2@0")
        migs = lambda: {mig["uuid"] for gpu in self.node.nvml("gpus").values() if gpu["index"] == 7 for mig in gpu["mig"]}
        [other] = migs()
        self.write_config("{devices: [7], dynamicMig: {profiles: [1g.10gb, 3g.40gb]}}")
        partitions = lambda: {name for name in self.devices() if name.startswith("gpu-7-mig-")}
        until("the partitions are offered", lambda: len(partitions()) == 6, 20)
        sets = [one["name"] for item in self.shown() for one in item["spec"].get("sharedCounters", [])]
        assert sets == ["gpu-7-counter-set"], sets
        before = [item["metadata"]["resourceVersion"] for item in self.shown()]
        started = time.monotonic()
        [pod] = self.create("dynamic-mig")
        print(f"   the Pod runs after {(time.monotonic() - started) * 1000:.0f} ms", flush=True)
        [names] = self.held().values()
        assert len(names) == 2 and "gpu-7-mig-3g40gb-9-4" in names, names
        made = migs() - {other}
        assert len(made) == 2, made
        nodes = {node for line in self.checks.cdi.words(pod, "node") for node in line}
        assert len([node for node in nodes if "nvidia-caps" in node]) == 4, nodes
        # A killed agent knows them again.
        self.node.stop_agent(9)
        self.start_with("{devices: [7], dynamicMig: {profiles: [1g.10gb, 3g.40gb]}}")
        until("the agent has registered", lambda: len(partitions()) == 6, 20)
        assert migs() == made | {other}
        assert [item["metadata"]["resourceVersion"] for item in self.shown()] == before, "making them changes no slice"
        self.end_pods()
        until("only the other program's is left", lambda: migs() == {other}, 20)
        assert [item["metadata"]["resourceVersion"] for item in self.shown()] == before, "removing them changes no slice"
        self.write_config()
        self.node.change_mig("whole", 7)
        until("the GPU is whole again", lambda: len(self.devices()) == 8 and not partitions(), 20)

    def shared_by_memory(self):
        """The GPU has memory for two claims of the example; the third Pod runs once one of them has ended."""
        gpu, rule = self.node.gpu(0), "{devices: [0], whole: {consumableShares: memory}}"
        name, uuid = f"gpu-{gpu['minor']}", next(uuid for uuid, one in self.node.gpus.items() if one["index"] == gpu["index"])
        shared = lambda: [device["name"] for device in self.devices().values() if device.get("allowMultipleAllocations")]
        records = lambda: [device for path in (self.node.state / "claims").glob("*.json") for device in json.loads(path.read_text())["devices"]]
        self.write_config(rule)
        until("the GPU is offered to several claims", lambda: shared() == [name], 20)
        pods = self.create("shared-memory")
        assert list(self.held().values()) == [[name], [name]], self.held()
        for pod in pods:
            self.checks.cdi.assert_sees(pod, [uuid])
        assert len({record["shareID"] for record in records()}) == 2, records()
        assert {record["consumedCapacity"]["memory"] for record in records()} == {32 << 30}, records()
        until("the GpuNode names both Pods", lambda: self.held_in_gpu_node() == {(pod, gpu["index"], "") for pod in pods}, 5, 0.05)
        third = cdi_pod("third", 0, self.node.name)
        third["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "shared-memory"}]
        third["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        self.kube.create_pod(third)
        until("the third Pod does not fit", lambda: any("cannot allocate all claims" in event["message"] for event in self.kube.events_about("third", "Pod")))
        assert len(self.held()) == 2, self.held()
        # A killed agent knows the shares again.
        before = [item["metadata"]["resourceVersion"] for item in self.shown()]
        self.node.stop_agent(9)
        self.start_with(rule)
        self.kube.delete_pod(pods[0])
        self.checks.wait_running("third")
        assert list(self.held().values()) == [[name], [name]], self.held()
        self.checks.cdi.assert_sees("third", [uuid])
        assert [item["metadata"]["resourceVersion"] for item in self.shown()] == before, "shares change no slice"
        self.end_pods()
        self.write_config()
        until("the GPU is offered to one claim again", lambda: not shared(), 20)

    def extended_resource(self):
        [pod] = self.create("extended-resource")
        [(claim, [device])] = self.held().items()
        assert self.kube.pod(pod)["status"]["extendedResourceClaimStatus"]["resourceClaimName"] == claim
        self.checks.cdi.assert_sees(pod, [self.uuid(device)])
        self.end_pods()

    def held_in_gpu_node(self):
        """(Pod, GPU, MIG profile) of each device that the GpuNode shows as held."""
        found = set()
        for item in self.kube.get(GPU_NODES)["items"]:
            resources = item["spec"]["resources"]
            for holder in item["spec"].get("holders", []):
                for resource, unit, _ in holder["holds"]:
                    assert resources[resource]["name"] == "gpu.nvidia.com", item["spec"]
                    one = resources[resource]["units"][unit]
                    found.add((holder["pod"].removeprefix("default/"), one["gpu"], one.get("profile", "")))
        return found

    def holders(self):
        pods = self.create("shared-claim")
        index = int(self.node.gpus[self.uuid(self.held()["shared-gpu"][0])]["index"])
        started = time.monotonic()
        until("the GpuNode names both Pods", lambda: self.held_in_gpu_node() == {(pod, index, "") for pod in pods}, 5, 0.05)
        print(f"   {(time.monotonic() - started) * 1000:.0f} ms after they ran", flush=True)
        done = subprocess.run(["kubectl", "gpulet", "list", self.node.name, "-o", "json"], check=True, capture_output=True, text=True,
                              env={**os.environ, "PATH": f"{GPULET.parent}:{os.environ['PATH']}"})
        gpus = json.loads(done.stdout)["gpus"]
        assert len(gpus) == 8, gpus
        for gpu in gpus:
            is_held = gpu["index"] == index
            assert gpu["shares"] == {"total": 1, "held": int(is_held), "unavailable": 0}, gpu
            assert {(holder["pod"], holder["resource"]) for holder in gpu["heldBy"]} == {(pod, "gpu.nvidia.com") for pod in pods if is_held}, gpu
        self.end_pods("shared-gpu")
        until("the GpuNode shows the GPU as free", lambda: not self.held_in_gpu_node(), 5, 0.05)

    def all_seen(self):
        missed = set(CLAIM_EXAMPLES.glob("*.yaml")) - self.seen
        assert not missed, sorted(missed)

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

    def health(self, pod):
        """What the kubelet shows of the Pod's only device: health, CDI id, message."""
        [status] = self.kube.pod(pod)["status"].get("containerStatuses") or [{}]
        shown = [(resource["health"], resource["resourceID"], resource.get("message", "")) for allocated in status.get("allocatedResourcesStatus", [])
                 if allocated["name"] == "claim:gpu" for resource in allocated["resources"]]
        return shown[0] if len(shown) == 1 else ("", "", shown)

    def pod_health(self):
        self.pod("one", resourceClaimTemplateName="one-gpu")
        [[device]] = self.held().values()
        until("the Pod's GPU is healthy", lambda: self.health("one")[0] == "Healthy", 30)
        _, name, message = self.health("one")
        assert name.endswith(f"-{device}") and message == "", (name, message)
        index = self.node.gpus[self.uuid(device)]["index"]
        started = time.monotonic()
        self.node.run(GPULET_SIM, "xid", index, 79, "--root", DRIVER_ROOT)
        until("the Pod's GPU is unhealthy", lambda: self.health("one")[0] == "Unhealthy", 10, 0.01)
        print(f"   unhealthy in the Pod's status after {(time.monotonic() - started) * 1000:.0f} ms", flush=True)
        assert "XID 79" in self.health("one")[2], self.health("one")
        until("an event of the Pod names the fault", lambda: any("XID 79" in event["message"] for event in self.kube.events_about("one", "Pod")))
        # It does not become unknown while nothing changes.
        seen = set()
        until("the kubelet's timeout has passed", lambda: seen.add(self.health("one")[0]) or time.monotonic() > started + HEALTH_TIMEOUT_S, 60, 0.5)
        assert seen == {"Unhealthy"}, seen
        self.node.run(GPULET_SIM, "heal", index, "--root", DRIVER_ROOT)
        until("the Pod's GPU is healthy again", lambda: self.health("one")[0] == "Healthy", 60)
        self.end_pods()

    def metrics(self):
        """Of the agent since its restart: it has prepared two claims, and unprepared one more."""
        def value(name, **labels):
            text = ",".join(f'{key}="{value}"' for key, value in labels.items())
            return int(re.search(rf"^{re.escape(f'{name}{{{text}}}' if text else name)} (\d+)$", self.node.metrics(), re.M)[1])

        def wait_value(count, name, **labels):
            """The page is a moment old."""
            until(f"{name} is {count}", lambda: value(name, **labels) == count, 20)

        driver = {"driver": "gpu.nvidia.com"}
        wait_value(0, "gpulet_prepared_claims")
        wait_value(0, "nvidia_dra_requests_inflight", **driver, operation="prepare")
        until("three claims are unprepared", lambda: value("nvidia_dra_requests_total", **driver, operation="unprepare") >= 3, 20)
        prepared = value("nvidia_dra_requests_total", **driver, operation="prepare")
        assert prepared >= 2, prepared  # the kubelet may repeat a request
        assert value("nvidia_dra_request_duration_seconds_count", **driver, operation="prepare") == prepared
        assert value("nvidia_dra_request_duration_seconds_bucket", **driver, operation="prepare", le="+Inf") == prepared
        self.pod("one", resourceClaimTemplateName="one-gpu")
        wait_value(1, "gpulet_prepared_claims")
        wait_value(1, "nvidia_dra_prepared_devices", node=self.node.name, **driver, device_type="gpu")
        assert value("nvidia_dra_requests_total", **driver, operation="prepare") > prepared
        [[device]] = self.held().values()
        series = re.compile(rf'^DCGM_FI_DEV_FB_USED{{[^}}]*UUID="{self.uuid(device)}"[^}}]*pod="one"', re.M)
        until("the GPU's metrics name its Pod", lambda: series.search(self.node.metrics()), 20)
        self.end_pods()

    def moved_live(self):
        """Four GPUs of eight to the device plugin, one of them held by a claim; and back, one of them held by a Pod."""
        self.pod("claims", resourceClaimTemplateName="one-gpu")
        [[held]] = self.held().values()
        claimed = self.uuid(held)
        of_moved = {claimed, *sorted(set(self.node.gpus) - {claimed})[:3]}
        moved = sorted(self.node.gpus[uuid]["index"] for uuid in of_moved)
        uuids = lambda: {device["attributes"]["uuid"]["string"] for device in self.devices().values()}
        allocatable = lambda: self.kube.allocatable(self.node.name, "nvidia.com/gpu")
        started = time.monotonic()
        self.write_config(f"{{devices: [{', '.join(map(str, moved))}], whole: {{}}, offer: devicePlugin}}")
        until("the GPUs are in no slice", lambda: not uuids() & (of_moved - {claimed}), 10, 0.01)
        until("the device plugin offers all but the one that a claim holds", lambda: allocatable() == 3, 40)
        print(f"   offered by the device plugin after {time.monotonic() - started:.1f} s", flush=True)
        assert uuids() - {claimed} == set(self.node.gpus) - of_moved, uuids()
        self.kube.create_pod(cdi_pod("plugin", 1, self.node.name))
        self.checks.wait_running("plugin")
        nodes = {node for line in self.checks.cdi.words("plugin", "node") for node in line}
        [visible] = [uuid for uuid, gpu in self.node.gpus.items() if f"/dev/nvidia{gpu['minor']}" in nodes]
        assert visible in of_moved - {claimed}, (visible, nodes)
        self.kube.delete_pod("claims")
        until("the GPU of the ended claim has moved too", lambda: allocatable() == 4, 40)
        started = time.monotonic()
        self.write_config()
        until("all but the GPU of the Pod are back in the slice", lambda: uuids() == set(self.node.gpus) - {visible}, 60)
        print(f"   offered by claims after {time.monotonic() - started:.1f} s", flush=True)
        assert allocatable() == 0
        self.end_pods()
        until("the last GPU is back", lambda: uuids() == set(self.node.gpus), 60)

    def end(self):
        for item in self.kube.get(TEMPLATES)["items"]:
            self.kube.call("DELETE", f"{TEMPLATES}/{item['metadata']['name']}")
        self.checks.stop_agent_of(self.node)
        kubectl("delete", "crd", "gpunodes.gpulet.io")
        # The kubelet deletes the slices of a driver that is gone.
        until("the slices are gone", lambda: not self.shown(), 60)
        for name in CLASSES:
            self.kube.call("DELETE", f"{API}/deviceclasses/{name}")
