"""The GPUs of the cluster of check_cluster.py by claims (Dynamic Resource Allocation), with the shipped manifest."""
import time

from report import Skip, same, wait_until

MANIFEST = "gpulet-dra.yaml"
TEMPLATE = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "one-gpu"},
            "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}}}
FAULTS = ("illegal-address", "out-of-range-shared", "misaligned")
# The kubelet deletes the slices of a driver that is gone after 30 s.
WIPE_S = 45


class ClaimChecks:
    """`checks`: the checks by the device plugin, whose Pods these use too."""

    def __init__(self, checks):
        self.checks, self.report, self.cluster, self.uuids = checks, checks.report, checks.cluster, checks.uuids

    def all(self):
        return [("claims: every GPU is in the node's slice", self.install),
                ("claims: a Pod with a claim sees exactly its GPU", self.one_gpu),
                ("claims: CUDA in an unprivileged Pod computes right", self.cuda),
                ("claims: a Pod that asks for nvidia.com/gpu gets a claim", self.extended_resource),
                ("claims: a Pod without a claim has no device node and opens none", self.checks.no_gpu),
                ("claims: a Pod gets the control nodes and exactly its GPU", self.checks.own_nodes),
                ("claims: the agent killed, the kubelet restarted: the Pod computes on, another waits", self.restarts),
                ("claims: failing Pods taint the GPU, and the taint goes", self.taint),
                ("claims: the agents removed: no slice is left", self.remove)]

    def devices(self):
        """Name of a device → the device, as the node's slices have it."""
        slices = self.cluster.get("resourceslices")["items"]
        return {device["name"]: device for item in slices for device in item["spec"].get("devices", [])}

    def taints(self):
        return [(taint["key"], taint.get("value", ""), taint["effect"]) for device in self.devices().values()
                for taint in device.get("taints", [])]

    def unschedulable(self):
        return any(effect != "None" for _, _, effect in self.taints())

    def install(self):
        started = time.monotonic()
        self.cluster.apply(self.cluster.manifest(MANIFEST))
        wait_until(lambda: len(self.devices()) == len(self.uuids), 60, f"{len(self.uuids)} devices in slices", 0.05)
        self.report.figure("claims.apply_to_slice_s", round(time.monotonic() - started, 2))
        devices = self.devices()
        same({device["attributes"]["uuid"]["string"] for device in devices.values()}, set(self.uuids), "UUIDs of the devices")
        same(self.cluster.allocatable(), 0, "nvidia.com/gpu of the device plugin")
        self.report.figure("claims.slice", [{"name": name, **{part: {key: next(iter(value.values())) for key, value in device[part].items()}
                                                              for part in ("attributes", "capacity")}} for name, device in devices.items()])
        self.cluster.kubectl("create", "-f", "-", items=[TEMPLATE])

    def claims(self):
        return self.cluster.get("resourceclaims")["items"]

    def wait_no_claim(self):
        wait_until(lambda: not self.claims(), 20, "the claims of ended Pods are gone", 0.1)

    def one_gpu(self):
        started = time.monotonic()
        self.cluster.start_pod("claim", "/test/cdi_probe.py", 600, claim="one-gpu")
        found = self.cluster.first_line("claim")
        self.report.figure("claims.pod_s", round(time.monotonic() - started, 2))
        [claim] = self.claims()
        [result] = claim["status"]["allocation"]["devices"]["results"]
        same(found["uuids"], [self.devices()[result["device"]]["attributes"]["uuid"]["string"]], "UUIDs in the Pod")
        self.cluster.delete_pods("claim")
        self.wait_no_claim()

    def cuda(self):
        self.checks.need_cuda()
        self.cluster.start_pod("claim", "/test/cuda.py", "saxpy", claim="one-gpu")
        found = self.cluster.result("claim")
        same((found["wrong"], len(found["uuids"]), set(found["uuids"]) <= set(self.uuids)), (0, 1, True), str(found))
        self.cluster.delete_pods("claim")
        self.wait_no_claim()

    def extended_resource(self):
        self.cluster.start_pod("resource", "/test/cdi_probe.py")
        found = self.cluster.result("resource")
        same((len(found["uuids"]), set(found["uuids"]) <= set(self.uuids)), (1, True), str(found))
        same("extendedResourceClaimStatus" in self.cluster.phase("resource"), True, "the Pod's status names a claim")
        self.cluster.delete_pods("resource")
        self.wait_no_claim()

    def restarts(self):
        self.checks.need_cuda()
        if len(self.uuids) > 1:
            raise Skip("on several GPUs, the second Pod has one too")
        self.cluster.start_pod("busy", "/test/cuda.py", "busy", 600, 2048, claim="one-gpu")
        self.cluster.first_line("busy")
        self.checks.used_by_busy()
        self.checks.kill_agent()
        self.checks.restart_kubelet()
        self.checks.used_by_busy()
        self.cluster.start_pod("waiting", "/test/cdi_probe.py", claim="one-gpu")
        time.sleep(1)  # it would be bound and started by now
        same(self.cluster.phase("waiting")["phase"], "Pending", "phase of a second Pod")
        self.cluster.delete_pods("busy")
        same(self.cluster.result("waiting")["uuids"], self.uuids, "the second Pod's GPU, once the first has ended")
        self.cluster.delete_pods("waiting")
        self.wait_no_claim()

    def taint(self):
        self.checks.need_cuda()
        if len(self.uuids) > 1:
            raise Skip("on several GPUs, the Pods fail on different ones")
        failed = []
        for kind in FAULTS:
            self.checks.fault(kind)
            failed.append(f"fault-{kind}")
            if self.unschedulable():
                break
        started = time.monotonic()
        wait_until(self.unschedulable, 10, "a taint NoSchedule", 0.02)
        self.report.figure("claims.tainted", {"pods": len(failed), "s": round(time.monotonic() - started, 2), "taints": self.taints()})
        self.cluster.delete_pods(*failed)
        wait_until(lambda: not self.unschedulable(), 60, "the taint goes", 0.1)
        self.report.figure("claims.untainted_s", round(time.monotonic() - started, 2))
        self.wait_no_claim()

    def remove(self):
        started = time.monotonic()
        self.cluster.kubectl("delete", "daemonset", "-n", "gpulet", "gpulet", "--wait")
        wait_until(lambda: not self.devices(), WIPE_S, "the slices are gone", 0.1)
        self.report.figure("claims.removed_s", round(time.monotonic() - started, 2))
        same(list((self.cluster.state / "n1/run/gpulet/claims").glob("*.json")), [], "records of claims")
