"""The GPU operator's Pods with gpulet's image: a GPU Pod, its metrics, a config by label and a MIG change, as the operator runs them.

The test plays the parts that stay NVIDIA's: the container toolkit, the validator, node feature discovery, and the operator's labels.
"""
import re
import shutil
import subprocess

import yaml

from lib.gpu_operator import DEPLOY, NAMESPACE, NFD, PORT, RUNTIME, GpuOperator
from lib.images import NAME as PROBE
from lib.kube import Watch, gpu_pod, until
from lib.kubectl import kubectl
from lib.labels import MIG_CONFIG, MIG_STATE, MODEL, NODE_CONFIG, mig
from lib.node import DRIVER_ROOT, GPULET, ROOT
from lib.testbed import TESTBED
from lib.nvidia_chart import NvidiaChart, static_plugin

GPU = "nvidia.com/gpu"
PROFILE = "1g.10gb"
NODE = "/api/v1/nodes/n1"
FEATURES = f"/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/{NAMESPACE}/nodefeatures"
PAUSED = "paused-for-mig-change"
OPERANDS = {"device-plugin": "nvidia-device-plugin-daemonset", "gpu-feature-discovery": "gpu-feature-discovery", "dcgm-exporter": "nvidia-dcgm-exporter"}
MIG_MANAGER, VALIDATOR = "nvidia-mig-manager", "nvidia-operator-validator"
LIMIT_S = 60.0
CHANGE_S = 120.0  # MIG on eight GPUs, between the end and the start of every operand
READY_S = 90.0    # the exporter's probes begin after 45 s
# What the operator's cuda-validation does: a Pod by the RuntimeClass, without a GPU of the device plugin's, uses the driver.
CUDA = "nvidia-smi -L && probe libcuda.so.1"


def management_spec(node):
    return node.state / node.name / "var/run/cdi/management.nvidia.com-gpu.yaml"


class OperandsChecks:
    def __init__(self, checks):
        self.checks, self.kube, self.node = checks, checks.kube, checks.n1
        self.toolkit = self.node.state / "toolkit"

    def run(self):
        return [
            ("the container toolkit, and an image from make image-operator", self.prepare),
            ("the operands wait for the validator, then offer the GPUs", self.start),
            ("GPU feature discovery describes the node, so the MIG manager starts", self.describe),
            ("a Pod gets its GPU, and the exporter names the Pod", self.serve),
            ("a config by label reaches the operands, and is taken back", self.configure),
            ("a MIG change: operands stopped, MIG devices offered, operands back", self.partition),
            ("a Pod gets its MIG device, and the exporter names the Pod", lambda: self.serve(mig(PROFILE))),
            ("the validator's checks pass", self.validate),
            ("MIG off again", self.whole),
            ("every operand is available, without a restart", self.available),
            ("the same image in NVIDIA's chart and static manifest, where nothing asks for the GPUs but the image", self.by_runtime),
            ("everything is removed", self.remove),
        ]

    # Helpers of the checks.
    def image(self):
        made = subprocess.run([ROOT / "deploy/image/build", "--operator"], check=True, capture_output=True, text=True).stdout
        subprocess.run([TESTBED, "image", ROOT / "out/image/gpulet-operator.tar"], check=True, capture_output=True, text=True)
        return re.search(r"localhost/\S+-operator", made)[0]

    def label(self, **labels):
        self.kube.patch(NODE, {"metadata": {"labels": labels}})

    def labels(self):
        return self.kube.get(NODE)["metadata"]["labels"]

    def deploy(self, *names, value="true"):
        self.label(**{DEPLOY + name: value for name in names})

    def pods(self, app):
        """Pods of a DaemonSet that are not being deleted: name → Pod."""
        return {name: pod for name, pod in self.kube.pods(NAMESPACE).items()
                if pod["metadata"]["labels"].get("app") == app and "deletionTimestamp" not in pod["metadata"]}

    def running(self, app):
        """The one Pod of a DaemonSet, once all its containers run."""
        def found():
            pods = list(self.pods(app).values())
            return pods[0] if len(pods) == 1 and pods[0]["status"]["phase"] == "Running" and all(
                "running" in status["state"] for status in pods[0]["status"]["containerStatuses"]) else None
        return until(f"a Pod of {app} runs", found, LIMIT_S)

    def uids(self):
        return {app: self.running(app)["metadata"]["uid"] for app in (*OPERANDS.values(), MIG_MANAGER, VALIDATOR)}

    def features(self):
        """The labels that GPU feature discovery publishes for node feature discovery."""
        return self.kube.get(f"{FEATURES}/nvidia-features-for-n1")["spec"]["labels"]

    def capabilities(self):
        """The device nodes of MIG in the node's management spec."""
        nodes = yaml.safe_load(management_spec(self.node).read_text())["devices"][0]["containerEdits"]["deviceNodes"]
        return {node["path"] for node in nodes if node["path"].startswith("/dev/nvidia-caps/")}

    def metrics(self, address):
        return self.node.run("curl", "-s", "--max-time", "5", f"http://{address}:{PORT}/metrics").splitlines()

    # The checks.
    def prepare(self):
        self.checks.cdi.load_image()
        self.toolkit.mkdir()
        shutil.copy(ROOT / "out/bin/gpulet-hook", self.toolkit / "nvidia-cdi-hook")  # of the toolkit, with its command lines
        shutil.copy(ROOT / "tests/cluster/lib/toolkit_runtime.py", self.node.state / "nvidia-container-runtime")
        self.node.run(GPULET, "cdi", "generate", "--mode", "management", "--vendor", "management.nvidia.com", "--driver-root", DRIVER_ROOT,
                      "--nvidia-cdi-hook-path", self.toolkit / "nvidia-cdi-hook", "--output", "/var/run/cdi/management.nvidia.com-gpu.yaml")
        own = self.node.state / self.node.name / "run-nvidia"  # the nodes share /run
        own.mkdir()
        self.node.run("mkdir", "-p", "/run/nvidia")
        self.node.run("mount", "--bind", own, "/run/nvidia")
        (own / "validations").mkdir()
        self.objects = GpuOperator(self.image(), "localhost/busybox:1", self.toolkit)
        kubectl("apply", "-f", "-", items=[
            NFD, {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": RUNTIME}, "handler": RUNTIME},
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}])
        kubectl("wait", "--for=condition=Established", "crd/nodefeatures.nfd.k8s-sigs.io", "--timeout=30s")

    def start(self):
        kubectl("apply", "-f", "-", items=self.objects.operands())
        self.deploy(*OPERANDS, "operator-validator")
        until("the operands wait for the toolkit", lambda: all(
            any("running" in status["state"] for pod in self.pods(app).values() for status in pod["status"].get("initContainerStatuses", []))
            for app in OPERANDS.values()), LIMIT_S)
        assert self.kube.allocatable("n1", GPU) == 0
        kubectl("apply", "-f", "-", items=[self.objects.validator(PROBE)])
        self.node.wait_allocatable(self.kube, 8, LIMIT_S)

    def describe(self):
        until("GPU feature discovery publishes its labels", lambda: self.kube.get(FEATURES)["items"], LIMIT_S)
        labels = self.features()
        assert labels["nvidia.com/gpu.count"] == "8" and labels["nvidia.com/mig.capable"] == "true", labels
        self.label(**labels)  # node feature discovery's part
        self.deploy("mig-manager")
        self.running(MIG_MANAGER)

    def serve(self, resource=GPU):
        self.checks.cdi.start("served", resource=resource)
        [uuid] = self.node.resources.held()["served"]
        if resource == GPU:
            self.checks.cdi.assert_has("served", uuid)
        else:
            assert any(uuid in " ".join(line) for line in self.checks.cdi.words("served", "smi")), self.checks.cdi.words("served", "smi")
        [gpu] = [gpu for gpu in self.node.nvml("gpus").values() if uuid == gpu["uuid"] or uuid in [one["uuid"] for one in gpu["mig"]]]
        profile = f'GPU_I_PROFILE="{PROFILE}"' if uuid != gpu["uuid"] else f'UUID="{gpu["uuid"]}"'
        address = self.running(OPERANDS["dcgm-exporter"])["status"]["podIP"]
        parts = ('pod="served"', 'namespace="default"', 'container="main"', f'gpu="{gpu["index"]}"', 'Hostname="n1"', profile)
        until(f"metrics with {parts}", lambda: any(
            line.startswith("DCGM_FI_DEV_FB_USED{") and all(part in line for part in parts) for line in self.metrics(address)), LIMIT_S)
        self.checks.remove_pods()

    def configure(self):
        before = self.uids()
        for config, count in (("sliced", 16), ("default", 8)):
            self.label(**{NODE_CONFIG: config})
            self.node.wait_allocatable(self.kube, count, LIMIT_S)
            until("the labels follow", lambda count=count: self.features()["nvidia.com/gpu.replicas"] == str(count // 8), LIMIT_S)
        self.label(**{NODE_CONFIG: None})
        assert self.uids() == before, "a Pod was replaced"

    def change(self, layout):
        """Asks for a MIG layout by label. Returns the Node's labels after each of its changes until the layout is applied. Only watches:
        a client of the driver would be in the way of the change."""
        with Watch(self.kube, "/api/v1/nodes") as nodes:
            self.label(**{MIG_CONFIG: layout})
            nodes.first("the change begins", lambda node: node["metadata"]["labels"].get(MIG_STATE) == "pending", LIMIT_S)
            begun = len(nodes.seen)
            until("the change succeeds", lambda: any(
                node["metadata"]["labels"].get(MIG_STATE) == "success" for _, _, node in nodes.seen[begun:]), CHANGE_S)
            states = [node["metadata"]["labels"] for _, _, node in list(nodes.seen) if node["metadata"]["name"] == "n1"]
        history = [labels[MIG_STATE] for labels in states if MIG_STATE in labels]
        assert "failed" not in history, history
        return states

    def partition(self):
        before, without = self.uids(), self.capabilities()
        states = self.change(f"all-{PROFILE}")
        for name in OPERANDS:
            values = [labels[DEPLOY + name] for labels in states]
            assert PAUSED in values and values[-1] == "true", f"{name}: {values}"
        assert not {f"{DEPLOY}{name}" for name in ("dcgm", "nvsm", "client")} & set(self.labels()), "absent labels stay absent"
        self.node.wait_allocatable(self.kube, 56, LIMIT_S, mig(PROFILE))
        self.node.wait_allocatable(self.kube, 0, LIMIT_S)
        after = self.uids()
        same = {app for app in before if before[app] == after[app]}
        assert same == {MIG_MANAGER}, f"not replaced: {same}"
        # Of each device its GPU instance's and its compute instance's, in the spec by which the operands get the driver.
        assert len(self.capabilities() - without) == 2 * 56, (without, self.capabilities())

    def validate(self):
        pod = gpu_pod("nvidia-cuda-validator", 0, "n1", script=CUDA)
        pod["spec"].update(runtimeClassName=RUNTIME)
        pod["spec"]["containers"][0].update(image=PROBE, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
        self.kube.create_pod(pod)
        until("cuda-validation ends", lambda: self.kube.pod("nvidia-cuda-validator")["status"]["phase"] in ("Succeeded", "Failed"), LIMIT_S)
        lines = self.kube.log("nvidia-cuda-validator").splitlines()
        assert self.kube.pod("nvidia-cuda-validator")["status"]["phase"] == "Succeeded" and len([line for line in lines if "MIG" in line]) >= 56, lines
        assert "libcuda.so" in lines[-1].split(maxsplit=2)[2] and "/" in lines[-1].split(maxsplit=2)[2], lines[-1]
        self.checks.remove_pods()
        capacity = self.kube.get(NODE)["status"]["capacity"]
        assert any(name.startswith(("nvidia.com/gpu", "nvidia.com/mig-")) and int(count) > 0 for name, count in capacity.items()), capacity

    def whole(self):
        self.change("all-disabled")
        assert not any(gpu["mig"] for gpu in self.node.nvml("gpus").values()), self.node.gpus
        self.node.wait_allocatable(self.kube, 8, LIMIT_S)
        self.node.wait_allocatable(self.kube, 0, LIMIT_S, mig(PROFILE))

    def available(self):
        """What the operator calls ready; and Prometheus reaches the exporter by its Service."""
        def ready():
            sets = {one["metadata"]["name"]: one["status"] for one in self.kube.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets")["items"]}
            return len(sets) == 5 and all(status.get("numberAvailable") == status["desiredNumberScheduled"] == 1 for status in sets.values())
        until("all DaemonSets are available", ready, READY_S)
        restarts = {name: status["restartCount"] for name, pod in self.kube.pods(NAMESPACE).items() for status in pod["status"]["containerStatuses"]}
        assert set(restarts.values()) == {0}, restarts
        address = self.kube.get(f"/api/v1/namespaces/{NAMESPACE}/services/nvidia-dcgm-exporter")["spec"]["clusterIP"]

        def answers():
            try:
                return self.node.run("curl", "-s", "--max-time", "5", f"http://{address}:{PORT}/health").strip() == "OK"
            except AssertionError:
                return False  # kube-proxy follows a ready Pod a moment later
        until("the exporter answers by its Service", answers, LIMIT_S)
        assert sum(line.startswith("DCGM_FI_DEV_GPU_TEMP{") for line in self.metrics(address)) == 8

    def by_runtime(self):
        self.deploy(*OPERANDS, "mig-manager", "operator-validator", value=None)
        self.node.wait_allocatable(self.kube, 0, LIMIT_S)
        chart = NvidiaChart(self.checks, self.node, self.objects.image, RUNTIME)
        chart.apply(["nvidia-device-plugin", "gpu-feature-discovery"])
        try:
            self.node.wait_allocatable(self.kube, 8, LIMIT_S)
            chart.features_say({"gpu.count": "8", "gpu.product": MODEL})
        finally:
            chart.remove()
        self.node.wait_allocatable(self.kube, 0, LIMIT_S)
        static = [static_plugin(self.objects.image, self.node.name, RUNTIME)]
        kubectl("apply", "-f", "-", items=static)
        try:
            self.node.wait_allocatable(self.kube, 8, LIMIT_S)
        finally:
            kubectl("delete", "-f", "-", items=static)

    def remove(self):
        kubectl("delete", "namespace", NAMESPACE, "--timeout=90s")
        kubectl("delete", "crd/nodefeatures.nfd.k8s-sigs.io", f"runtimeclass/{RUNTIME}")
        accounts = ("nvidia-device-plugin", "nvidia-gpu-feature-discovery", "nvidia-dcgm-exporter", MIG_MANAGER)
        kubectl("delete", *(f"{kind}/{name}" for kind in ("clusterrole", "clusterrolebinding") for name in accounts))
        self.label(**{key: None for key in self.labels() if key.startswith("nvidia.com/") and key != "nvidia.com/gpu.present"})
        management_spec(self.node).unlink()
        self.node.run("umount", "/run/nvidia")
        self.node.wait_allocatable(self.kube, 0, LIMIT_S)
