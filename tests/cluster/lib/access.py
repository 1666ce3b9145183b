"""The agent's access to the driver's device nodes, and its rights, as the chart ships them: MIG works with these, and without them
the agent says what is missing."""
import pathlib
import time

from lib.chart import ChartChecks
from lib.kube import gpu_pod, until
from lib.kubectl import kubectl
from lib.network_policy import NetworkPolicyCheck
from lib.node import CGROUPS, DRIVER_ROOT, GPULET_SIM

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
NAMESPACE = "gpulet"
CUT = 7  # the GPU of n1 with MIG
XID = 46
# So that the XID is all that the driver says, as before R565, which asks for a reset of the whole GPU in field 230.
FIELDS, NOT_SUPPORTED = "nvmlDeviceGetFieldValues", 3
PARTITIONED = f"version: v1\nflags: {{migStrategy: mixed}}\ngpulet: {{partition: [{{devices: [{CUT}], mig: {{devices: {{1g.10gb: 7}}}}}}]}}\n"
WATCHED = "version: v1\nflags: {migStrategy: mixed}\ngpulet: {mig: {manage: false}}\n"
# By number: <linux/capability.h>.
SETGID, SETUID, SYS_ADMIN, MKNOD, SYSLOG = 6, 7, 21, 27, 34
LIMIT_S = 60.0
WITHDRAWN_S = 5.0
UPTIME_S = 10.0  # DeviceAccessWatcher's kMinimumUptime
DEVICE_CGROUPS = CGROUPS / "devices"
NVIDIA_DEVICES = "c 195:* rwm"

# A container whose Pod asks for this device by the annotation of CDI.
KIND, DEVICE = "gpulet.io/driver", "agent"
LOOK = """
for node in /dev/nvidiactl /nodes/nvidiactl /nodes/nvidia0; do echo "open $node $( (: <$node) 2>&1)"; done
echo done
"""


class AccessChecks:
    def __init__(self, checks, tag):
        self.checks, self.kube, self.tag = checks, checks.kube, tag
        self.n1 = checks.n1
        self.chart = ChartChecks(checks, [tag], 0)
        self.installed = 0.0  # when helm install began

    def run(self):
        return [
            ("only a privileged container, or one that the kubelet gives devices, opens the nodes", self.who_opens),
            ("the chart's agent has the capabilities of its config, and no others", self.install),
            ("MIG on, with the rights as shipped: seven MIG devices", self.seven),
            ("the NetworkPolicy, enforced: Prometheus and neighbours reach the agent, strangers do not", self.network_policy),
            ("an XID of one instance withdraws that one only", lambda: self.xid(6)),
            ("the same without CAP_SYS_ADMIN, where layouts are not managed, and with parts of the driver root", self.watched),
            # A test can take access away only from cgroup v1, where rules are files.
            *([("a container that loses access is replaced once", self.lost)] if DEVICE_CGROUPS.is_dir() else []),
            ("neither privileged nor NVIDIA's runtime: said, and no GPU offered", self.unprivileged),
            ("everything is removed", self.end),
        ]

    # Helpers of the checks.
    def values(self, config, **more):
        """As shipped, with what the testbed needs: image, driver root, hook directory; and the driver root's dev as a mount of its own,
        as devtmpfs is, which the read-only mount of a root does not cover. Only n1 has an agent."""
        values = self.chart.testbeds(self.tag, config={"map": {"default": config}}, nodeSelector={"kubernetes.io/hostname": self.n1.name})
        for name in ("deviceListStrategy", "compatWithCPUManager", "privileged"):
            del values[name]
        values["extraVolumeMounts"] = [*values["extraVolumeMounts"], {"name": "sim-dev", "mountPath": "/driver-root/dev"}]
        values["extraVolumes"] = [*values["extraVolumes"], {"name": "sim-dev", "hostPath": {"path": f"{DRIVER_ROOT}/dev"}}]
        return {**values, **more}

    def upgrade(self, values):
        before = set(self.n1.agents())
        self.chart.apply(["upgrade"], values)
        kubectl("-n", NAMESPACE, "rollout", "status", "daemonset/gpulet", "--timeout=90s")
        return until("another agent runs", lambda: sorted(set(self.n1.agents()) - before), LIMIT_S)[0]

    @staticmethod
    def capabilities(pid):
        """Of a process: the numbers of its permitted, effective and bounding capabilities."""
        status = dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
        sets = {name: int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")}
        assert status["NoNewPrivs"] == "1" and int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0, status
        assert len(set(sets.values())) == 1, sets
        return {number for number in range(64) if sets["CapBnd"] >> number & 1}

    def wait_devices(self, whole, mig):
        self.n1.wait_allocatable(self.kube, whole, resource=GPU)
        self.n1.wait_allocatable(self.kube, mig, resource=MIG)

    def mig_uuids(self):
        self.n1.nvml("gpus")
        return {mig["uuid"]: mig for mig in self.n1.gpu(CUT)["mig"]}

    def reported(self, reason, *parts):
        """Messages of the agent's events with all these parts, since the last call of forget_events()."""
        return [event["message"] for event in self.kube.events() if event["reason"] == reason and all(part in event["message"] for part in parts)]

    def forget_events(self):
        self.kube.call("DELETE", "/api/v1/namespaces/default/events")

    def device_cgroups(self):
        """Those of the agents' containers."""
        found = []
        for pid in self.n1.agents():
            path = next(line.split(":", 2)[2] for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines() if ":devices:" in line)
            found.append(DEVICE_CGROUPS / path.lstrip("/"))
        return found

    # The checks.
    def who_opens(self):
        self.checks.load_images([self.tag])
        spec = self.n1.state / self.n1.name / "var/run/cdi/test-access.json"
        nodes = [{"path": f"/dev/{name}", "hostPath": f"{DRIVER_ROOT}/dev/{name}"} for name in ("nvidiactl", "nvidia0")]
        text = f'{{"cdiVersion": "0.5.0", "kind": "{KIND}", "devices": [{{"name": "{DEVICE}", "containerEdits": {{"deviceNodes": {nodes}}}}}]}}'
        spec.write_text(text.replace("'", '"'))
        for name, security in (("by-annotation", {}), ("privileged", {"privileged": True, "capabilities": {"drop": ["ALL"]}})):
            pod = gpu_pod(name, 0, self.n1.name, script=LOOK)
            pod["metadata"]["annotations"] = {"cdi.k8s.io/gpulet": f"{KIND}={DEVICE}"}
            pod["spec"]["containers"][0].update(securityContext=security, volumeMounts=[{"name": "nodes", "mountPath": "/nodes"}])
            pod["spec"]["volumes"] = [{"name": "nodes", "hostPath": {"path": f"{DRIVER_ROOT}/dev"}}]
            self.kube.create_pod(pod)
            until(f"{name} has ended", lambda name=name: self.kube.pod(name)["status"]["phase"] == "Succeeded", LIMIT_S)
            opened = {line[1]: line[2] for line in self.checks.look(name) if line[0] == "open"}
            # The kubelet passes no annotation of a Pod to its containers, so containerd adds no device.
            assert "no such file" in opened["/dev/nvidiactl"].lower(), opened
            # A simulated node has no driver behind it: that it is missing means that the node may be opened.
            wanted = "No such device or address" if security else "Operation not permitted"
            assert all(wanted in opened[f"/nodes/{node}"] for node in ("nvidiactl", "nvidia0")), f"{name}: {opened}"
        spec.unlink()
        self.checks.remove_pods()

    def install(self):
        self.checks.cdi.hooks.mkdir(exist_ok=True)
        self.forget_events()
        self.installed = time.monotonic()
        self.chart.apply(["install"], self.values(PARTITIONED), "--create-namespace")
        kubectl("-n", NAMESPACE, "rollout", "status", "daemonset/gpulet", "--timeout=90s")
        pid = until("the agent runs", self.n1.agents, LIMIT_S)[0]
        found = self.capabilities(pid)
        assert found == {SETGID, SETUID, SYSLOG, MKNOD, SYS_ADMIN}, found

    def seven(self):
        self.wait_devices(7, 7)
        print(f"   seven MIG devices {time.monotonic() - self.installed:.1f} s after helm install", flush=True)
        assert set(self.n1.resources.allocatable(MIG)) == set(self.mig_uuids()) and len(self.mig_uuids()) == 7
        self.checks.run_pod("tenant", 1, self.n1.name, resource=MIG)
        self.checks.remove_pods()

    def network_policy(self):
        NetworkPolicyCheck(self.kube, self.n1, self.checks.nodes[1],
                           lambda enabled: self.chart.apply(["upgrade"], self.values(PARTITIONED, networkPolicy={"enabled": enabled}))).run()

    def xid(self, left):
        """The event reaches the agent only with the right to monitor MIG."""
        before, offered = self.mig_uuids(), set(self.n1.resources.allocatable(MIG))
        hit = sorted(offered)[len(offered) // 2]
        self.n1.run(GPULET_SIM, "answer", FIELDS, NOT_SUPPORTED, CUT, "--root", DRIVER_ROOT)
        started = time.monotonic()
        self.n1.run(GPULET_SIM, "xid", CUT, XID, "--gi", before[hit]["gi"], "--ci", before[hit]["ci"], "--root", DRIVER_ROOT)

        def only_it():
            now = set(self.n1.resources.allocatable(MIG))
            assert now >= offered - {hit}, f"withdrawn beside {hit}: {offered - {hit} - now}"
            return now == offered - {hit}
        until(f"{hit} is withdrawn", only_it, WITHDRAWN_S, 0.02)
        print(f"   the kubelet knew after {(time.monotonic() - started) * 1000:.0f} ms", flush=True)
        self.wait_devices(7, left)
        missing = self.reported("MissingDriverRight", "MIG")
        assert not missing, missing

    def watched(self):
        """Also without the rest of the driver root, whose proc and sys stand for the node's."""
        parts = ["/usr", "/proc", "/sys"]
        pid = self.upgrade(self.values(WATCHED, driverRootPaths=parts))
        seen = {entry.name: entry for entry in pathlib.Path(f"/proc/{pid}/root/driver-root").iterdir()}
        # run and dev are the testbed's own mounts; the image has the links of a merged root.
        assert {name for name, entry in seen.items() if not entry.is_symlink()} == {"usr", "proc", "sys", "run", "dev"}, sorted(seen)
        assert [entry.name for entry in seen["run"].iterdir()] == ["gpulet-sim"], "the driver root's own run is seen"
        found = self.capabilities(pid)
        assert found == {SETGID, SETUID, SYSLOG, MKNOD}, found
        self.wait_devices(7, 6)
        self.xid(5)

    def lost(self):
        """Its device cgroup forgets the driver's nodes, as after `systemctl daemon-reload` under NVIDIA's runtime."""
        pods = self.kube.pods(NAMESPACE)
        [agent] = self.n1.agents()
        self.forget_events()
        for cgroup in self.device_cgroups():
            (cgroup / "devices.deny").write_text(NVIDIA_DEVICES)
        self.n1.run(GPULET_SIM, "device-node", "remove", "nvidia-modeset", "--root", DRIVER_ROOT)  # for the agent to notice
        until("another agent runs", lambda: set(self.n1.agents()) - {agent}, UPTIME_S + LIMIT_S)
        until("the agent has said why", lambda: self.reported("DeviceAccessDenied", "/dev/nvidiactl", "next container gets access"))
        self.wait_devices(7, 5)
        again = self.kube.pods(NAMESPACE)
        assert set(pods) == set(again), "the Pod was replaced, not its container"
        [status] = [pod["status"]["containerStatuses"][0] for pod in again.values()]
        assert status["restartCount"] == 1 and status["lastState"]["terminated"]["exitCode"] == 0, status

    def unprivileged(self):
        self.forget_events()
        self.chart.apply(["upgrade"], self.values(WATCHED, privileged=False))
        until("the agent says what is missing", lambda: self.reported("DeviceAccessDenied", "/dev/nvidiactl", "run the agent privileged"), LIMIT_S)
        self.wait_devices(0, 0)
        [pod] = until("one agent", lambda: len(self.kube.pods(NAMESPACE)) == 1 and self.kube.pods(NAMESPACE).values(), LIMIT_S)
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0, pod["status"]

    def end(self):
        self.chart.helm("uninstall", "gpulet", "--wait", "--timeout=90s")
        kubectl("delete", "crd", "gpunodes.gpulet.io", "--ignore-not-found")
        self.n1.run(GPULET_SIM, "device-node", "add", "nvidia-modeset", "--root", DRIVER_ROOT)
        self.n1.run(GPULET_SIM, "answer", FIELDS, 0, CUT, "--root", DRIVER_ROOT)
        self.n1.run(GPULET_SIM, "heal", CUT, "--root", DRIVER_ROOT)
        self.n1.change_mig("whole", CUT)
