"""gpulet's manifest on a real Kubernetes of this machine alone: kubelet, containerd and runc give Pods the real GPUs.

The cluster is tests/cluster/testbed; `tests/cluster/testbed/tb build` builds its programs once.
"""
import hashlib
import io
import json
import os
import pathlib
import signal
import sys
import tarfile
import tempfile
import time

import container
import nvml
from agent import samples
from check_claims import ClaimChecks
from machine import HERE, run
from report import Skip, same, wait_until

ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cluster"))
from lib.kubectl import objects  # noqa: E402

TESTBED = ROOT / "tests" / "cluster" / "testbed" / "tb"
GPULET_IMAGE = ROOT / "out" / "image" / "gpulet.tar"
IMAGE = "localhost/gpu-test:1"
GPU = "nvidia.com/gpu"
HOLD_S = 5
REPLACED_S = 40
CONTROL_NODES = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}
# What a container can see and open of the driver, also by device nodes that it makes: one line each.
LOOK = """
find /dev -name 'nvidia*' -type c
for name in nvidia-frontend nvidia nvidia-uvm; do
  major=$(awk -v name="$name" '$2 == name {print $1}' /proc/devices | head -n 1)
  [ -n "$major" ] || continue
  for minor in 0 255; do
    mknod "/tmp/$name-$minor" c "$major" "$minor" && if (: <"/tmp/$name-$minor") 2>/dev/null; then echo "opens $name $minor"; fi
  done
done
echo end
"""
# The config that shares each GPU by time-slicing, and kills what uses more memory than it requests.
SHARES = 4
SHARED = json.dumps({"version": "v1", "sharing": {"timeSlicing": {"resources": [{"name": GPU, "replicas": SHARES}]}},
                     "gpulet": {"fraction": {"onExceeded": "kill"}}})


def check_cluster(report, machine):
    if os.geteuid() != 0:
        raise Skip("needs root: namespaces and cgroups")
    programs = pathlib.Path(run(TESTBED, "bin").stdout.strip())
    if not (programs / "pause.tar").exists():
        raise Skip("the test cluster is not built: tests/cluster/testbed/tb build")
    if not GPULET_IMAGE.exists():
        raise Skip("no out/image/gpulet.tar: make image")
    with tempfile.TemporaryDirectory(prefix="gpulet-cluster-") as state:
        cluster = Cluster(machine, pathlib.Path(state))
        try:
            cluster.start()
            ClusterChecks(report, machine, cluster).run()
        except BaseException:
            cluster.show_logs()
            raise
        finally:
            cluster.stop()


class Cluster:
    """One node, n1, whose kubelet and containerd are this machine's."""

    def __init__(self, machine, state):
        self.machine = machine
        self.state = state / "tb"
        self.env = {"TB_STATE": str(self.state), "TB_KUBELET_CONFIG": "syncFrequency: 5s"}
        self.image = state / "image.tar"

    def start(self):
        run(TESTBED, "up", "1", env=self.env, limit_s=180)
        write_image(self.image)
        for image in (GPULET_IMAGE, self.image):
            run(TESTBED, "image", image, env=self.env, limit_s=120)

    def stop(self):
        run(TESTBED, "down", env=self.env, limit_s=120, check=False)

    def kubectl(self, *words, items=None, check=True, limit_s=60):
        text = None if items is None else json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        return run(TESTBED, "cp", "kubectl", *words, env=self.env, stdin=text, check=check, limit_s=limit_s).stdout

    def get(self, *words):
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def show_logs(self):
        for log in sorted([*self.state.glob("n*/var/log/pods/*/*/*.log"), *self.state.glob("log/n1-*")]):
            print(f"--- {log.relative_to(self.state)}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-25:]), flush=True)

    # The agent.
    def manifest(self, name="gpulet.yaml", **environment):
        """A shipped manifest, with the settings of these checks; on a simulated node also its driver root."""
        items = objects(self.kubectl("create", "--dry-run=client", "-o", "json", "-f", ROOT / "deploy/static" / name))
        agent = next(item for item in items if item["kind"] == "DaemonSet")["spec"]["template"]["spec"]
        settings = {"GPULET_METRICS_INTERVAL": "1s", "GPULET_HEALTH_RECOVERY_HOLD": f"{HOLD_S}s", **environment}
        agent["containers"][0]["imagePullPolicy"] = "Never"
        if self.machine.simulated:
            settings["NVIDIA_DRIVER_ROOT"] = self.machine.root
            next(volume for volume in agent["volumes"] if volume["name"] == "driver-root")["hostPath"]["path"] = self.machine.root
            agent["volumes"].append({"name": "sim", "hostPath": {"path": f"{self.machine.root}/run/gpulet-sim"}})
            agent["containers"][0]["volumeMounts"].append({"name": "sim", "mountPath": "/driver-root/run/gpulet-sim"})
        agent["containers"][0]["env"] += [{"name": name, "value": value} for name, value in settings.items()]
        return items

    def apply(self, items):
        self.kubectl("apply", "-f", "-", items=items)

    def agents(self):
        """Names of the agents' Pods that are ready and not ending."""
        pods = self.get("pods", "-n", "gpulet", "-l", "app.kubernetes.io/name=gpulet")["items"]
        return [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]
                and all(state["ready"] for state in pod["status"].get("containerStatuses", [{"ready": False}]))]

    @staticmethod
    def processes():
        """Pids of the agent and its listener."""
        def command(directory):
            try:
                return (directory / "cmdline").read_bytes()
            except OSError:  # it has just ended
                return b""
        processes = [one for one in pathlib.Path("/proc").iterdir() if one.name.isdigit()]
        return {int(one.name) for one in processes if command(one).startswith(b"/usr/bin/gpulet\0agent\0")}

    def metrics(self):
        name = wait_until(self.agents, 30, "an agent that is ready", 0.1)[0]
        return samples(self.kubectl("get", "--raw", f"/api/v1/namespaces/gpulet/pods/{name}:9400/proxy/metrics"))

    def metric(self, name, **labels):
        return next((value for found, have, value in self.metrics() if found == name and labels.items() <= have.items()), None)

    def allocatable(self):
        return int(self.get("node", "n1")["status"]["allocatable"].get(GPU, "0"))

    def wait_allocatable(self, count, limit_s=30):
        return wait_until(lambda: self.allocatable() == count, limit_s, f"{count} {GPU} allocatable", 0.05)

    # Pods.
    def start_pod(self, name, *program, gpus=1, shell=None, claim=None, annotations=None):
        """A Pod without any privilege that runs Python's `program`, or `shell` in busybox with an image's usual rights.

        `claim`: a ResourceClaimTemplate that it gets its GPU by."""
        main = {"name": "main", "image": "localhost/busybox:1" if shell else IMAGE, "imagePullPolicy": "Never",
                "command": ["sh", "-c", shell] if shell else [container.PYTHON, "-B", "-I", "-S", *map(str, program)],
                "resources": {"claims": [{"name": "gpu"}]} if claim else {"limits": {GPU: str(gpus)}} if gpus else {}}
        if not shell:
            main["securityContext"] = {"runAsUser": container.USER, "runAsNonRoot": True, "allowPrivilegeEscalation": False,
                                       "capabilities": {"drop": ["ALL"]}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False, "containers": [main]}}
        if annotations:
            pod["metadata"]["annotations"] = annotations
        if claim:
            pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": claim}]
        if self.machine.simulated and not shell:
            path = f"{self.machine.root}/run/gpulet-sim"
            pod["spec"]["volumes"] = [{"name": "sim", "hostPath": {"path": path}}]
            main["volumeMounts"] = [{"name": "sim", "mountPath": "/run/gpulet-sim"}]
        self.kubectl("create", "-f", "-", items=[pod])

    def phase(self, name):
        return self.get("pod", name)["status"]

    def wait_pod(self, name, *phases, limit_s=30):
        try:
            return wait_until(lambda: (status := self.phase(name))["phase"] in phases and status, limit_s,
                              f"Pod {name} is {phases[0]}", 0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}: {json.dumps(self.phase(name))[:800]}") from None

    def result(self, name):
        """The last line that a Pod has printed, as JSON, once it has ended."""
        self.wait_pod(name, "Succeeded", "Failed")
        lines = self.kubectl("logs", name).splitlines()
        try:
            return json.loads(lines[-1])
        except (ValueError, IndexError):
            raise AssertionError(f"Pod {name}: {self.phase(name)['phase']}: {lines[-5:]}") from None

    def first_line(self, name):
        """The first line that a running Pod has printed, as JSON."""
        self.wait_pod(name, "Running", "Succeeded", "Failed")
        found = json.loads(wait_until(lambda: self.kubectl("logs", name), 30, f"Pod {name} prints a line", 0.05).splitlines()[0])
        if found.get("error"):
            raise AssertionError(f"Pod {name}: {found['error']}")
        return found

    def delete_pods(self, *names):
        self.kubectl("delete", "pod", "--wait", "--timeout=30s", *names)


class ClusterChecks:
    def __init__(self, report, machine, cluster):
        self.report, self.machine, self.cluster = report, machine, cluster
        with nvml.Nvml(machine.library) as library:
            self.uuids = [library.text("nvmlDeviceGetUUID", device) for device in library.devices()]

    def run(self):
        for name, check in (
                ("the kubelet has every GPU", self.install),
                ("the node's labels are those of `gpulet labels`", self.labels),
                ("`gpulet doctor` in the agent's Pod finds no failure", self.doctor),
                ("a Pod without a GPU has no device node and opens none", self.no_gpu),
                ("a Pod gets the control nodes and exactly its GPU", self.own_nodes),
                ("NVML in an unprivileged Pod sees exactly its GPU", self.nvml),
                ("CUDA in an unprivileged Pod computes right on its GPU", self.cuda),
                ("metrics of a busy Pod have its name, and another Pod waits", self.busy),
                ("the agent killed: the Pod computes on, its GPU stays its own", self.killed),
                ("the kubelet restarted: the Pod computes on, its GPU stays its own", self.kubelet_restarted),
                ("an XID of a Pod: the metric; the GPU stays", self.xid),
                ("the third failing Pod withdraws the GPU, which returns", self.third),
                ("time-slicing: four Pods compute on one GPU at once", self.shared),
                ("memory limits: the Pod above its own is killed, the others compute on", self.limited),
                ("the agent replaced while Pods start on shares: none fails", self.replaced),
                ("the agents removed: no GPU is offered", self.remove),
                *ClaimChecks(self).all()):
            with self.report.check(f"kubernetes: {name}"):
                check()

    def need_cuda(self):
        if self.machine.simulated:
            raise Skip("needs CUDA, which the simulated driver does not have")

    def install(self):
        started = time.monotonic()
        self.cluster.apply(self.cluster.manifest())
        self.cluster.wait_allocatable(len(self.uuids), 60)
        self.report.figure("kubernetes.apply_to_allocatable_s", round(time.monotonic() - started, 2))

    def labels(self):
        def reported():
            labels = self.cluster.get("node", "n1")["metadata"]["labels"]
            return {key: value for key, value in labels.items() if key.startswith(("nvidia.com/", "gpulet.io/"))}
        expected = dict(line.split("=", 1) for line in
                        run(self.machine.gpulet, "labels", env=self.machine.gpulet_env).stdout.splitlines())
        volatile = {"nvidia.com/gfd.timestamp"}
        wait_until(lambda: "nvidia.com/gpu.product" in reported(), 20, "nvidia.com/gpu.product", 0.1)
        found = reported()
        wrong = {key: (found.get(key), value) for key, value in expected.items() if key not in volatile and found.get(key) != value}
        same(wrong, {}, "labels (node, gpulet labels)")
        self.report.figure("kubernetes.labels", {key: value for key, value in found.items() if key not in volatile})

    def doctor(self):
        name = wait_until(self.cluster.agents, 30, "an agent that is ready", 0.1)[0]
        text = self.cluster.kubectl("exec", "-n", "gpulet", name, "--", "/usr/bin/gpulet", "doctor", "-o", "json", check=False)
        checks = json.loads(text)["checks"]
        self.report.figure("kubernetes.doctor", {one["id"]: f"{one['verdict']}: {one['found']}" for one in checks})
        same([one for one in checks if one["verdict"] == "fail"], [], "failed checks")

    def looked(self, name, gpus):
        self.cluster.start_pod(name, shell=LOOK, gpus=gpus)
        self.cluster.wait_pod(name, "Succeeded", "Failed")
        lines = self.cluster.kubectl("logs", name).splitlines()
        same(lines[-1:], ["end"], "\n".join(lines))
        self.cluster.delete_pods(name)
        return {line for line in lines if line.startswith("/dev/")}, [line for line in lines if line.startswith("opens")]

    def no_gpu(self):
        same(self.looked("stranger", 0), (set(), []), "(device nodes, opened nodes)")

    def own_nodes(self):
        nodes, opened = self.looked("owner", 1)
        gpus = {node for node in nodes if node.removeprefix("/dev/nvidia").isdigit()}
        same(len(gpus), 1, f"GPUs among {sorted(nodes)}")
        same(nodes - gpus - CONTROL_NODES, set(), "other device nodes")
        if not self.machine.simulated:  # its numbers belong to no driver
            same(len(opened) > 0, True, "the Pod opens its own device nodes")
        self.report.figure("kubernetes.device_nodes", sorted(nodes))

    def nvml(self):
        self.cluster.start_pod("nvml", "/test/cdi_probe.py")
        found = self.cluster.result("nvml")
        same((len(found["uuids"]), set(found["uuids"]) <= set(self.uuids)), (1, True), str(found))
        self.report.figure("kubernetes.nvml_library", found["library"])
        self.cluster.delete_pods("nvml")

    def cuda(self):
        self.need_cuda()
        self.cluster.start_pod("cuda", "/test/cuda.py", "saxpy")
        found = self.cluster.result("cuda")
        same((found["wrong"], len(found["uuids"]), set(found["uuids"]) <= set(self.uuids)), (0, 1, True), str(found))
        self.report.figure("kubernetes.cuda_library", found["library"])
        self.cluster.delete_pods("cuda")

    def busy(self):
        self.need_cuda()
        self.cluster.start_pod("busy", "/test/cuda.py", "busy", 600, 2048, gpus=len(self.uuids))
        self.cluster.first_line("busy")
        self.used_by_busy()
        self.cluster.start_pod("waiting", "/test/cuda.py", "saxpy")
        wait_until(lambda: any(one["type"] == "PodScheduled" and one["status"] == "False" and GPU in one.get("message", "")
                               for one in self.cluster.phase("waiting").get("conditions", [])), 10, f"too few {GPU} for a second Pod", 0.1)
        self.cluster.delete_pods("waiting")

    def used_by_busy(self):
        """The metrics attribute the load to the Pod."""
        def found():
            return {name: value for name, labels, value in self.cluster.metrics() if labels.get("pod") == "busy"
                    and labels.get("namespace") == "default" and labels.get("UUID", self.uuids[0]) == self.uuids[0]}
        used = wait_until(lambda: (now := found()).get("DCGM_FI_DEV_GPU_UTIL", 0) > 80 and now.get("DCGM_FI_DEV_FB_USED", 0) > 2048 and now,
                          20, "DCGM_FI_DEV_GPU_UTIL > 80 of the Pod `busy`", 0.2)
        self.report.figure("kubernetes.busy", {name: used[name] for name in sorted(used)})

    def kill_agent(self):
        """Kills the agent and its listener; another one is ready then."""
        before = self.cluster.processes()
        same(len(before) > 0, True, "an agent to kill")
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: set(self.cluster.processes()) - before and self.cluster.agents(), 40, "another agent that is ready", 0.1)

    def killed(self):
        self.need_cuda()
        self.kill_agent()
        self.still_busy()

    def still_busy(self):
        """The GPU is offered, and is still that of the Pod `busy` alone."""
        self.cluster.wait_allocatable(len(self.uuids), 20)
        self.used_by_busy()
        same(self.cluster.phase("busy")["phase"], "Running", "phase of the Pod `busy`")
        self.cluster.start_pod("waiting", "/test/cuda.py", "saxpy")
        time.sleep(1)  # it would be bound and started by now
        same(self.cluster.phase("waiting")["phase"], "Pending", "phase of a second Pod")
        self.cluster.delete_pods("waiting")

    def restart_kubelet(self):
        for verb in ("stop", "start"):
            run(TESTBED, "kubelet", "1", verb, env=self.cluster.env)
        wait_until(lambda: self.cluster.agents(), 40, "an agent that is ready", 0.1)

    def kubelet_restarted(self):
        self.need_cuda()
        self.restart_kubelet()
        self.still_busy()
        self.cluster.delete_pods("busy")

    def fault(self, kind):
        name = f"fault-{kind}"
        self.cluster.start_pod(name, "/test/cuda.py", "fault", kind)
        found = self.cluster.result(name)
        if not found.get("fault"):
            raise AssertionError(f"the kernel {kind} does not fail: {found}")
        return found

    def xid(self):
        self.need_cuda()
        found = self.fault("illegal-address")
        uuid = self.uuids[0] if len(self.uuids) == 1 else None
        labels = {"UUID": uuid} if uuid else {}
        wait_until(lambda: self.cluster.metric("DCGM_FI_DEV_XID_ERRORS", **labels) == 31, 10, "DCGM_FI_DEV_XID_ERRORS 31", 0.1)
        self.report.figure("kubernetes.xid", found["fault"])
        same(self.cluster.allocatable(), len(self.uuids), "allocatable")

    def third(self):
        self.need_cuda()
        if len(self.uuids) > 1:
            raise Skip("on several GPUs, the Pods fail on different ones")
        self.fault("out-of-range-shared")
        self.fault("misaligned")
        started = time.monotonic()
        self.cluster.wait_allocatable(0, 10)
        self.report.figure("kubernetes.withdrawn_s", round(time.monotonic() - started, 2))
        self.cluster.wait_allocatable(1, HOLD_S + 40)
        self.report.figure("kubernetes.returned_s", round(time.monotonic() - started, 2))
        events = [event for event in self.cluster.get("events", "-A")["items"]
                  if "gpulet" in json.dumps(event.get("source", {})) + str(event.get("reportingComponent"))]
        self.report.figure("kubernetes.events", sorted({f"{event['reason']}: {event['message']}" for event in events}))
        self.cluster.delete_pods("fault-illegal-address", "fault-out-of-range-shared", "fault-misaligned")

    def shared(self):
        self.cluster.kubectl("create", "-f", "-", items=[{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
            "name": "shared", "namespace": "gpulet"}, "data": {"config.yaml": SHARED}}])
        items = self.cluster.manifest(CONFIG_FILE="/config/config.yaml")
        agent = next(item for item in items if item["kind"] == "DaemonSet")["spec"]["template"]["spec"]
        kept = next(one for one in agent["containers"][0]["env"] if one["name"] == "GPULET_KEEP_CAPABILITIES")
        kept["value"] += ",KILL"  # as the chart does
        agent["volumes"].append({"name": "config", "configMap": {"name": "shared"}})
        agent["containers"][0]["volumeMounts"].append({"name": "config", "mountPath": "/config"})
        self.cluster.apply(items)
        self.cluster.wait_allocatable(SHARES * len(self.uuids), 60)
        self.need_cuda()
        if len(self.uuids) > 1:
            raise Skip("on several GPUs, the Pods are spread")
        names = [f"share-{number}" for number in range(SHARES)]
        for name in names:
            self.cluster.start_pod(name, "/test/cuda.py", "busy", 600, 1024)
        for name in names:
            self.cluster.first_line(name)
        wait_until(lambda: {labels.get("pod") for _, labels, _ in self.cluster.metrics()} >= set(names), 20, "metrics of each Pod", 0.2)
        self.report.figure("kubernetes.shared", [[name, labels["pod"], value] for name, labels, value in self.cluster.metrics()
                                                 if labels.get("pod", "").startswith("share-")])
        same([self.cluster.phase(name)["phase"] for name in names], ["Running"] * SHARES, "phases")
        self.cluster.delete_pods(*names)

    def limited(self):
        """A Pod within its limit, one without, and one above: a CUDA context is part of what is used."""
        self.need_cuda()
        if len(self.uuids) > 1:
            raise Skip("on several GPUs, the Pods are spread")
        self.cluster.start_pod("within", "/test/cuda.py", "busy", 600, 2048, annotations={"gpulet.io/gpu-memory": "3Gi"})
        self.cluster.start_pod("free", "/test/cuda.py", "busy", 600, 4096)
        for name in ("within", "free"):
            self.cluster.first_line(name)
        self.cluster.start_pod("over", "/test/cuda.py", "busy", 600, 2048, annotations={"gpu-memory": "2048"})
        self.cluster.first_line("over")
        started = time.monotonic()
        status = self.cluster.wait_pod("over", "Failed", limit_s=10)
        self.report.figure("kubernetes.memory_limit.printed_to_failed_s", round(time.monotonic() - started, 2))
        same(status["containerStatuses"][0]["state"]["terminated"]["exitCode"], 128 + signal.SIGKILL, "exit code of `over`")
        messages = wait_until(lambda: {event["reason"]: event["message"] for event in self.cluster.get("events")["items"]
                                       if event["involvedObject"]["name"] == "over" and event["reason"] == "GpuMemoryKilled"},
                              10, "the event GpuMemoryKilled", 0.1)
        self.report.figure("kubernetes.memory_limit.events", messages)
        used = {labels["pod"]: int(value) >> 20 for name, labels, value in self.cluster.metrics()
                if name == "gpulet_container_gpu_memory_used_bytes"}
        self.report.figure("kubernetes.memory_limit.used_mib", used)
        same(2048 < used.get("within", 0) < 3072, True, f"MiB of `within`: {used}")
        same([self.cluster.phase(name)["phase"] for name in ("within", "free")], ["Running"] * 2, "phases of the others")
        self.cluster.delete_pods("within", "free", "over")

    def replaced(self):
        """As in an update of gpulet: a Pod starts and ends every moment."""
        before = wait_until(self.cluster.agents, 30, "an agent that is ready", 0.1)
        self.cluster.kubectl("rollout", "restart", "-n", "gpulet", "daemonset/gpulet")
        names, done, until = [], False, time.monotonic() + REPLACED_S
        while time.monotonic() < until:
            names.append(f"load-{len(names)}")
            self.cluster.start_pod(names[-1], "/test/cdi_probe.py")
            if not done and set(self.cluster.agents()) - set(before):
                done, until = True, time.monotonic() + 3  # some Pods for the new agent
        same(done, True, "the agent is replaced")
        ended = {name: self.cluster.wait_pod(name, "Succeeded", "Failed", limit_s=60) for name in names}
        self.report.figure("kubernetes.replaced_under_pods", len(names))
        failed = {name: status.get("reason") or status for name, status in ended.items() if status["phase"] == "Failed"}
        same(failed, {}, f"failed of {len(names)}")
        self.cluster.delete_pods(*names)

    def remove(self):
        started = time.monotonic()
        self.cluster.kubectl("delete", "daemonset", "-n", "gpulet", "gpulet", "--wait")
        self.cluster.wait_allocatable(0, 30)
        self.report.figure("kubernetes.removed_s", round(time.monotonic() - started, 2))


def write_image(path):
    """An image archive with this machine's Python and tests/gpu as /test, and nothing of the driver."""
    with tempfile.TemporaryDirectory(prefix="gpulet-image-") as directory:
        root = pathlib.Path(directory)
        container.make_image(root, bind_modules=False)
        (root / "test").mkdir()
        for source in HERE.glob("*.py"):
            (root / "test" / source.name).write_bytes(source.read_bytes())
        (root / "tmp").chmod(0o1777)
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as archive:
            archive.add(root, ".", filter=owned_by_root)
    config = json.dumps({"architecture": "amd64" if os.uname().machine == "x86_64" else "arm64", "os": "linux", "config": {},
                         "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer.getvalue()).hexdigest()]}}).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(path, "w") as archive:
        for name, content in (("layer.tar", layer.getvalue()), ("config.json", config), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def owned_by_root(entry):
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
