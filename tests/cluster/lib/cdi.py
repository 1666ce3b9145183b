"""What a container gets by CDI alone: without NVIDIA's runtime; the kubelet passes device names and containerd reads gpulet's specs."""
import json
import os
import pathlib
import re
import subprocess
import time

from lib.driver_limits import DriverLimitChecks
from lib.images import NAME, make_glibc_image
from lib.kube import gpu_pod, until
from lib.node import CGROUPS, DRIVER_ROOT, GPULET, GPULET_SIM
from lib.testbed import TESTBED

GPU = "nvidia.com/gpu"
SPECS = pathlib.Path("var/run/cdi")
# Prints the container's driver files, one line each, then sleeps.
LOOK = """
echo "env $NVIDIA_VISIBLE_DEVICES"
find /dev -name 'nvidia*' -type c | while read -r node; do echo "node $node"; done
for minor in 0 1 2 3 4 5 6 7; do
  [ -c /dev/nvidia$minor ] || mknod /tmp/gpu$minor c 195 $minor 2>/dev/null || continue
  node=/dev/nvidia$minor; [ -c $node ] || node=/tmp/gpu$minor
  echo "open $minor $( (: <$node) 2>&1)"
done
if [ -x /usr/sbin/ldconfig ]; then
  ldconfig -p | sed -n 's/^[[:space:]]*\\(libcuda\\.so\\.1\\|libnvidia-ml\\.so\\.1\\) .*=> /\\1 /p' |
    while read -r name path; do echo "cache $name $(readlink -f "$path")"; done
  probe libcuda.so.1 libcuda.so libnvidia-ml.so.1 libnvidia-ptxjitcompiler.so.1
  for link in /usr/lib/*/libcuda.so /usr/lib/*/libcuda.so.1; do echo "link $link $(readlink "$link")"; done
  nvidia-smi -L | sed 's/^/smi /'
fi
echo "left $(ls -A /run /tmp | grep -i hook)"
echo "user $(id -u)"
echo done
trap 'exit 0' TERM; sleep 100000 & wait
"""


def cdi_pod(name, gpus, node, image=NAME, resource=GPU, security=None):
    pod = gpu_pod(name, gpus, node, script=LOOK, resource=resource)
    container = pod["spec"]["containers"][0]
    container["image"] = image
    if image != NAME:
        container["command"][0] = "/bin/sh"
    container["volumeMounts"] = [{"name": "machine", "mountPath": "/run/gpulet-sim"}]
    if security:
        container["securityContext"] = security
        container["volumeMounts"].append({"name": "tmp", "mountPath": "/tmp"})
    # The simulated driver's state, in place of a real driver's kernel module.
    pod["spec"]["volumes"] = [{"name": "machine", "hostPath": {"path": f"{DRIVER_ROOT}/run/gpulet-sim"}},
                              {"name": "tmp", "emptyDir": {}}]
    return pod


class CdiChecks:
    def __init__(self, checks):
        self.checks, self.kube, self.node = checks, checks.kube, checks.n1
        self.hooks = self.node.state / "hook"

    def run(self):
        return [
            ("specs exist before GPUs are offered", self.specs),
            ("two Pods: each sees only its GPU and the driver", self.two_pods),
            ("a rewritten cgroup keeps the devices", self.cgroup_rewritten),
            ("a Pod whose cgroup has lost its GPU is told, and evicted where the config asks for it", self.cut_off),
            ("read-only, not root, confined by seccomp", self.restricted),
            ("an image without a dynamic loader", self.static_image),
            ("a Pod without a request sees nothing", self.no_request),
            ("an image that needs a newer driver is refused", self.requirement),
            ("a MIG Pod sees only its capabilities", self.mig),
            ("a driver upgrade is in the specs within a second", self.upgrade),
            ("a container starts with the driver's memory limit of its Pod, or not at all", DriverLimitChecks(self.checks, self).run),
        ]

    def spec_file(self, device_class="gpu"):
        return self.node.state / self.node.name / SPECS / f"k8s.device-plugin.nvidia.com-{device_class}.json"

    def spec(self):
        return json.loads(self.spec_file().read_text())

    def words(self, name, kind):
        return [line[1:] for line in self.checks.look(name) if line[0] == kind]

    def start(self, name, gpus=1, **more):
        self.kube.create_pod(cdi_pod(name, gpus, self.node.name, **more))
        self.checks.wait_running(name)

    def load_image(self):
        image = self.node.state / "glibc.tar"
        if image.exists():
            return
        make_glibc_image(image)
        subprocess.run([TESTBED, "image", image], check=True, capture_output=True, text=True)

    def specs(self):
        self.load_image()
        self.hooks.mkdir()
        self.node.write_config("version: v1\nflags: {migStrategy: mixed, plugin: {deviceListStrategy: [cdi-cri]}}\n"
                               f"gpulet: {{health: {{livenessInterval: 1s}}, cdi: {{hookDir: {self.hooks}}}}}\n")
        self.node.start_agent(arguments=["--config-file", self.node.config])
        self.node.wait_allocatable(self.kube, 8)
        assert {device["name"] for device in self.spec()["devices"]} >= set(self.node.gpus), self.spec()
        reported = self.node.run(GPULET, "cdi", "validate", self.spec_file())
        assert "error" not in reported.lower(), reported

    def assert_driver(self, name, version):
        """Programs find the driver's libraries by the loader's cache."""
        cache = {line[0]: pathlib.Path(line[1]).name for line in self.words(name, "cache")}
        assert cache == {"libcuda.so.1": f"libcuda.so.{version}", "libnvidia-ml.so.1": f"libnvidia-ml.so.{version}"}, cache
        opened = {line[0]: line[1] for line in self.words(name, "dlopen")}
        assert all(path.startswith("/") for path in opened.values()), opened
        links = {pathlib.Path(line[0]).name: line[1] for line in self.words(name, "link")}
        assert links == {"libcuda.so": "libcuda.so.1", "libcuda.so.1": f"libcuda.so.{version}"}, links
        assert not "".join(word for line in self.words(name, "left") for word in line).strip(), self.words(name, "left")

    def assert_sees(self, name, uuids):
        minors = {self.node.gpus[uuid]["minor"] for uuid in uuids}
        nodes = {node for line in self.words(name, "node") for node in line}
        assert {node for node in nodes if re.fullmatch(r"/dev/nvidia\d+", node)} == {f"/dev/nvidia{minor}" for minor in minors}, nodes
        assert "/dev/nvidiactl" in nodes and "/dev/nvidia-uvm" in nodes, nodes
        for line in self.words(name, "open"):
            wanted = "No such device or address" if int(line[0]) in minors else "Operation not permitted"
            assert wanted in line[1], f"{name}: GPU {line}, with {minors} given"

    def version(self):
        return (self.node.sim / "sys/module/nvidia/version").read_text().strip()

    def assert_has(self, name, uuid):
        self.assert_sees(name, [uuid])
        self.assert_driver(name, self.version())
        listed = self.words(name, "smi")
        assert len(listed) == 1 and uuid in " ".join(listed[0]), f"{name} holds {uuid}, nvidia-smi lists {listed}"

    def one_pod(self, name):
        self.start(name)
        [uuid] = self.node.resources.held()[name]
        self.assert_has(name, uuid)
        self.checks.remove_pods()

    def two_pods(self):
        for name in ("one", "two"):
            self.start(name)
        held = self.node.resources.held()
        assert set(held["one"]).isdisjoint(held["two"]), held
        for name in ("one", "two"):
            [uuid] = held[name]
            self.assert_has(name, uuid)
        self.kube.delete_pod("one")

    def cgroup_rewritten(self):
        """Rewrites every container's device rules from its runtime's config, as `systemctl daemon-reload` does."""
        pod = self.kube.pod("two")
        container = pod["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
        self.node.run("runc", "--root", "/run/containerd/runc/k8s.io", "update", "--cpu-share", "512", container)
        minor = self.node.gpus[self.node.resources.held()["two"][0]]["minor"]
        reported = self.node.run("runc", "--root", "/run/containerd/runc/k8s.io", "exec", container, "/bin/sh", "-c",
                             f"exec 2>&1; (: </dev/nvidia{minor}); (: </dev/nvidia-uvm); true")
        assert reported.count("No such device or address") == 2, reported

    def cut_off(self):
        """What `systemctl daemon-reload` leaves of the rules that a runtime has added behind the engine's back."""
        container = self.kube.pod("two")["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
        minor = self.node.gpus[self.node.resources.held()["two"][0]]["minor"]
        found = [pathlib.Path(path) for path, _, _ in os.walk(CGROUPS / "devices") if path.endswith(container)]
        if not found:
            print("   not tested: cgroup v2 has no file of rules; agent_test asks a program of its own", flush=True)
            return self.checks.remove_pods()
        (found[0] / "devices.deny").write_text(f"c 195:{minor} rwm")
        self.node.stop_agent()
        self.node.start_agent(arguments=["--config-file", self.node.config])

        def told():
            return [event["message"] for event in self.kube.events_about("two", "Pod") if event["reason"] == "GpuAccessLost"]
        [message] = until("the Pod has the event", told, 60)
        assert f"/dev/nvidia{minor}: its device cgroup refuses it" in message, message
        assert not [event for event in self.kube.events() if event["reason"] == "GpuAccessLost" and event["involvedObject"]["name"] != "two"]
        text = self.node.config.read_text()
        self.node.write_config(text.replace("gpulet: {", "gpulet: {faults: {eviction: {enabled: true, barePods: true, accessLost: evict}}, "))
        until("the Pod is evicted", lambda: "two" not in self.kube.pods(), 120)
        self.node.write_config(text)
        self.node.wait_allocatable(self.kube, 8)
        self.checks.remove_pods()

    def restricted(self):
        self.start("restricted", security={
            "readOnlyRootFilesystem": True, "runAsNonRoot": True, "runAsUser": 1000, "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}})
        assert self.words("restricted", "user") == [["1000"]]
        self.assert_driver("restricted", self.version())
        listed = self.words("restricted", "smi")
        assert len(listed) == 1, listed
        self.checks.remove_pods()

    def static_image(self):
        self.start("static", image="localhost/busybox:1")
        self.assert_sees("static", self.node.resources.held()["static"])
        self.checks.remove_pods()

    def no_request(self):
        self.start("none", gpus=0)
        assert not self.words("none", "node"), self.words("none", "node")
        assert not self.words("none", "cache") and all("not permitted" in line[1] for line in self.words("none", "open"))
        self.checks.remove_pods()

    def requirement(self):
        """An unmet requirement is in the Pod's Events before it starts; NVIDIA_DISABLE_REQUIRE overrides it."""
        for name, more in (("newer-cuda", {}), ("newer-cuda-anyway", {"NVIDIA_DISABLE_REQUIRE": "1"})):
            pod = cdi_pod(name, 1, self.node.name)
            pod["spec"]["containers"][0]["env"] += [
                {"name": key, "value": value} for key, value in {"NVIDIA_REQUIRE_CUDA": "cuda>=99.0", **more}.items()]
            self.kube.create_pod(pod)
        self.checks.wait_running("newer-cuda-anyway")

        def reported():
            return [event["message"] for event in self.kube.events_about("newer-cuda") if event["reason"] == "Failed"]
        message = until("the Pod's Event has the reason", lambda: next((text for text in reported() if "cuda>=99.0" in text), None))
        print(f"   {message[-160:].strip()}", flush=True)
        assert self.version() in message, message
        self.checks.remove_pods()

    def mig(self):
        self.node.change_mig("cut", 7, "3@4", "2@0", "1@2", "1@3")
        self.node.wait_allocatable(self.kube, 2, resource="nvidia.com/mig-1g.10gb")
        self.start("mig", resource="nvidia.com/mig-1g.10gb")
        uuid = self.node.resources.held()["mig"][0]
        device = next(mig for mig in self.node.gpu(7)["mig"] if mig["uuid"] == uuid)
        numbers = dict(line.split() for line in (self.node.sim / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines())
        minor = self.node.gpu(7)["minor"]
        caps = {"/dev/nvidia-caps/nvidia-cap" + numbers[f"gpu{minor}/gi{device['gi']}/{what}access"]
                for what in ("", f"ci{device['ci']}/")}
        nodes = {node for line in self.words("mig", "node") for node in line}
        assert {node for node in nodes if "nvidia-caps" in node} == caps, nodes
        assert {node for node in nodes if re.fullmatch(r"/dev/nvidia\d+", node)} == {f"/dev/nvidia{minor}"}, nodes
        self.checks.remove_pods()
        self.node.change_mig("whole", 7)
        self.node.wait_allocatable(self.kube, 8)

    def upgrade(self):
        newer = "575.57.08"
        before = self.version()
        assert before != newer and f".so.{before}" in self.spec_file().read_text()
        started = time.monotonic()
        self.node.run(GPULET_SIM, "driver-reload", "--force", "--version", newer, "--root", DRIVER_ROOT)
        until("the specs name the new driver", lambda: f"libcuda.so.{newer}" in self.spec_file().read_text(), 5, 0.02)
        took = time.monotonic() - started
        print(f"   the specs had it after {took * 1000:.0f} ms", flush=True)
        assert took < 1.5 and f".so.{before}" not in self.spec_file().read_text()
        self.node.wait_allocatable(self.kube, 8)
        self.start("newer")
        self.assert_driver("newer", newer)
        self.checks.remove_pods()
        self.checks.stop_agent_of(self.node)
