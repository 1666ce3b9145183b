"""The agents as the chart installs them: values switched, upgraded under load, NVIDIA's values, and uninstalled."""
import json
import pathlib
import re
import subprocess
import tempfile
import threading
import time

from lib.health import HealthChecks
from lib.kube import Kube, gpu_pod, until
from lib.kubectl import kubectl
from lib.node import DRIVER_ROOT, GPULET
from lib.nvidia_chart import BY_MPS, MPS_ROOT, NvidiaChart, mps_directory
from lib.own_node import OwnNodeCheck
from lib.partition import LOOK_MPS, PartitionChecks

GPU = "nvidia.com/gpu"
NAMESPACE, RELEASE = "gpulet", "gpulet"
EVERY_S = 0.2     # a Pod that requests a GPU
TIMED_LIMIT_S = 60
LOAD_ENDS_S = 180  # Pods wait while one node of two is upgraded
KEPT = ("keep-1", "keep-2")  # one Pod on each node
SWITCHED_S = 40  # the kubelet brings a changed ConfigMap into a Pod after a while
PRESENT = "nvidia.com/gpu.present"  # set by the operator (run.py)
SHARED = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
OURS = ("nvidia.com/", "gpulet.io/", "feature.node.kubernetes.io/")


class ChartChecks:
    def __init__(self, checks, images, steps):
        self.checks, self.kube, self.images, self.steps = checks, checks.kube, images, steps
        self.nodes, self.n1 = checks.nodes, checks.n1
        self.chart = checks.root / "deploy" / "helm" / "gpulet"
        self.values = {}

    def run(self):
        return [
            ("an image from make image", lambda: self.checks.load_images(self.images)),
            ("leftovers of earlier agents are removed", self.clean),
            ("the API server accepts everything rendered", self.dry_runs),
            ("helm install to the first GPU Pod", self.install),
            ("the kubelet has each GPU and its NUMA node", self.checks.allocatable),
            ("a Pod for 2 gets a linked pair and only it", self.checks.linked_pair),
            ("the chart's permissions suffice for MIG by label", self.checks.label_rights),
            ("and to tell of the GPUs' health", HealthChecks(self.checks).reported),
            ("an agent's token is bound to its own node", OwnNodeCheck(self.kube, *[node.name for node in self.nodes]).run),
            ("kubelet restart", lambda: self.checks.survives(self.checks.restart_kubelets)),
            ("agent killed with -9", lambda: self.checks.survives(self.checks.kill_containers)),
            ("switched values: time-slicing on and off, without a restart", self.switch_values),
            (f"{self.steps} random steps", lambda: self.checks.storm(self.steps, lambda: None)),
            ("upgrade under load, and to the chart's CDI", self.upgrade),
            ("NVIDIA's values, with CDI by annotations", self.nvidias_values),
            ("GPUs shared by MPS, also after the agent was replaced", self.mps),
            ("helm uninstall leaves nothing", self.uninstall),
            ("what NVIDIA's chart makes, with only the image changed", NvidiaChart(self.checks, self.n1, f"localhost/gpulet:{self.images[1]}").with_ours),
        ]

    # Helpers of the checks.
    def helm(self, *arguments):
        done = subprocess.run(["helm", *map(str, arguments), "--namespace", NAMESPACE], capture_output=True, text=True)
        assert done.returncode == 0, f"helm {' '.join(map(str, arguments[:3]))}: {done.stderr.strip() or done.stdout.strip()}"
        return done.stdout

    def apply(self, command, values, *more):
        self.values = values
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(values, file)
            file.flush()
            return self.helm(*command, RELEASE, self.chart, *more, "--values", file.name)

    def testbeds(self, tag, **values):
        """Values by which the testbed differs from a node: image, driver root with a writable state, one hook for both nodes, a kubelet
        that reports its devices each second; and device nodes passed on and listed in the environment, so that tests can read a
        container's devices: by `envvar`, whose runtime the testbed does not have, hence privileged."""
        state = {"name": "sim-state", "mountPath": "/driver-root/run/gpulet-sim"}
        return {"image": {"tag": tag, "pullPolicy": "Never"}, "nvidiaDriverRoot": DRIVER_ROOT, "deviceListStrategy": "envvar", "compatWithCPUManager": True, "privileged": True,
                "cdi": {"hookDir": str(self.checks.cdi.hooks)}, "extraVolumeMounts": [state], "minReadySeconds": 2,
                "extraVolumes": [{"name": "sim-state", "hostPath": {"path": f"{DRIVER_ROOT}/run/gpulet-sim"}}], **values}

    def wait_agents(self, tag):
        self.helm_kubectl("rollout", "status", f"daemonset/{RELEASE}", "--timeout=180s")
        pods = [pod for name, pod in self.kube.pods(NAMESPACE).items() if "cleanup" not in name]
        images = {pod["spec"]["containers"][0]["image"] for pod in pods if "deletionTimestamp" not in pod["metadata"]}
        assert images == {f"localhost/gpulet:{tag}"}, images

    def helm_kubectl(self, *arguments):
        return kubectl("-n", NAMESPACE, *arguments)

    def seen(self):
        """Everything that an agent may leave: on the Node objects, on the nodes, in the cluster."""
        found = {}
        for node in self.nodes:
            reported = self.kube.get(f"/api/v1/nodes/{node.name}")
            found[node.name] = {
                "labels": {key: value for key, value in reported["metadata"]["labels"].items() if key.startswith(OURS)},
                "annotations": sorted(key for key in reported["metadata"].get("annotations", {}) if key.startswith(OURS)),
                "taints": reported["spec"].get("taints", []),
                "conditions": sorted(condition["type"] for condition in reported["status"]["conditions"]),
                "files": sorted(node.run("find", "/var/run/cdi", "/etc/cdi", "/var/lib/gpulet", "/run/gpulet", "/var/lib/kubelet/device-plugins",
                                         self.checks.cdi.hooks, "-not", "-type", "d", "-not", "-name", "kubelet*",
                                         "-not", "-name", ".[0-9]*").split()),  # the kubelet's checkpoint while it is written
                "agents": node.agents(),
                "mps": [*node.run("find", MPS_ROOT, "-mindepth", "1").split(), *self.daemons(node)],
                "mounts": [line.split()[4] for line in node.run("cat", "/proc/self/mountinfo").splitlines() if f" {MPS_ROOT}/" in line],
            }
        found["cluster"] = self.cluster_objects()
        return found

    @staticmethod
    def cluster_objects():
        kinds = ("clusterroles", "clusterrolebindings", "customresourcedefinitions", "validatingadmissionpolicies", "validatingadmissionpolicybindings",
                 "apiservices")
        return sorted(name for kind in kinds for name in kubectl("get", kind, "-o", "name").split() if "gpulet" in name)

    def remove_cluster_objects(self):
        for name in self.cluster_objects():
            kubectl("delete", name)
        kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=true")

    @staticmethod
    def daemons(node):
        """Pids of the MPS control daemons that the node's Pods have started, and of their servers."""
        def name(pid):
            try:
                return pathlib.Path(f"/proc/{pid}/comm").read_text()
            except OSError:
                return ""  # the process has just ended
        return sorted(int(pid) for pid in node.processes() if name(pid).startswith("nvidia-cuda-mps"))

    @staticmethod
    def own_mps_root(node):
        mps_directory(node).mkdir()
        node.run("mkdir", "-p", MPS_ROOT)
        node.run("mount", "--bind", mps_directory(node), MPS_ROOT)

    # The checks.
    def clean(self):
        """Removes leftovers of earlier runs: labels of agents as processes, and CRDs and RBAC objects with the chart's names."""
        self.checks.cdi.hooks.mkdir(exist_ok=True)
        for node in self.nodes:
            self.own_mps_root(node)
        self.remove_cluster_objects()
        for node in self.nodes:
            reported = node.run(GPULET, "cleanup", "--state-dir", node.kept, "--cdi-hook-dir", self.checks.cdi.hooks,
                            env={"NODE_NAME": node.name, "KUBECONFIG": str(node.state / "kubeconfig")})
            assert f"of {node.name}" in reported, reported
            node.nvml("gpus")
        self.before = self.seen()
        for node in self.nodes:
            labels = {PRESENT: "true"} if node is self.n1 else {}
            assert self.before[node.name]["labels"] == labels and not self.before[node.name]["files"], self.before

    def dry_runs(self):
        """All options at once, and the static manifests, validated by the API server (names, schemas, defaults)."""
        if not any(item["metadata"]["name"] == NAMESPACE for item in self.kube.get("/api/v1/namespaces")["items"]):
            kubectl("create", "namespace", NAMESPACE)
        everything = {"scheduler": {"enabled": True, "page": {"enabled": True}}, "metricsApi": {"enabled": True}, "networkPolicy": {"enabled": True, "from": [{"podSelector": {}}]},
                      "crds": {"keep": False}, "mps": {"enabled": True}, "extraEnv": [{"name": "A", "value": "b"}], "gpulet": {"logLevel": "info"},
                      "pools": {"a": {"nodeSelector": {"pool": "a"}}}, "webConfig": {"secretName": "web"}, "rbac": {"eviction": True, "podAnnotations": True,
                                                                                                                 "nodeFeatures": True}}
        text = self.apply(["template", "--kube-version", "1.31"], everything)
        reported = kubectl("apply", "--dry-run=server", "-f", "-", text=text)
        wanted = sum(line.startswith("kind: ") for line in text.splitlines())
        assert wanted > 30 and reported.count("(server dry run)") == wanted, f"{wanted} objects: {reported}"
        for name in ("gpulet", "scheduler", "metrics-api", "cleanup"):
            kubectl("apply", "--dry-run=server", "-f", str(self.checks.root / "deploy/static" / f"{name}.yaml"))

    def install(self):
        self.kube.create_pod(gpu_pod("first", 1, "n1"))
        started = time.monotonic()
        notes = self.apply(["install"], self.testbeds(self.images[0], crds={"install": True}))
        for line in ("labels announce a GPU: 1 (n1)", "the agent looks:       1 (n2)", "labels announce none:  0"):
            assert line in notes and "WARNING: by its labels" not in notes, notes
        self.checks.wait_running("first")
        print(f"   helm install to the first GPU Pod running: {time.monotonic() - started:.1f} s", flush=True)
        self.wait_agents(self.images[0])
        for node in self.nodes:
            node.wait_allocatable(self.kube, 8)
        self.checks.remove_pods()

    def switch_values(self):
        agents = self.checks.facts_of(self.kube.pods(NAMESPACE))
        for replicas, config in ((32, SHARED), (8, "version: v1\n")):
            started = time.monotonic()
            self.apply(["upgrade"], {**self.values, "config": {"map": {"default": config}}})
            for node in self.nodes:
                until(f"{node.name} has {replicas}", lambda node=node: len(node.resources.allocatable(GPU)) == replicas, SWITCHED_S)
            print(f"   {replicas} on each node {time.monotonic() - started:.1f} s after helm upgrade", flush=True)
            if replicas == 32:
                self.wait_agents(self.images[0])
                agents = self.checks.facts_of(self.kube.pods(NAMESPACE))
        assert self.checks.facts_of(self.kube.pods(NAMESPACE)) == agents, "another config has restarted an agent"
        for node in self.nodes:
            node.wait_allocatable(self.kube, 8)

    def kubelets_report_every(self, seconds):
        """How often each kubelet writes its Node's status."""
        for node in self.nodes:
            config = node.state / node.name / "kubelet.yaml"
            config.write_text(re.sub(r"(?m)^nodeStatusUpdateFrequency: .*$", f"nodeStatusUpdateFrequency: {seconds}s", config.read_text()))
        self.checks.restart_kubelets()

    def wait_kubelets(self):
        """Until each has its devices and its Pods again: a Pod that is among the first that it reads is rejected, because GPUs of Pods
        deleted before the restart still count as used."""
        for name, node in zip(KEPT, self.nodes, strict=True):
            until(f"the kubelet of {node.name} knows {name}", lambda name=name, node=node: name in node.resources.held(), TIMED_LIMIT_S)
            node.wait_allocatable(self.kube, 8)

    def upgrade(self):
        """With the kubelet's default of 10 s, which the agent's shutdown counts on: each write of the kubelet in the middle of it offers
        GPUs until the agent has corrected it."""
        for name, node in zip(KEPT, self.nodes, strict=True):
            self.checks.run_pod(name, 2, node.name)
        self.kubelets_report_every(10)
        try:
            self.wait_kubelets()
            self.upgrade_under_load()
        finally:
            self.kubelets_report_every(1)
        self.wait_kubelets()
        self.checks.remove_pods()
        self.checks.cdi.load_image()
        self.checks.cdi.one_pod("shipped")

    def upgrade_under_load(self):
        """Creates a GPU Pod every 200 ms on any node; longer running Pods keep their GPUs."""
        before = self.checks.facts(KEPT)
        load = Load(Kube(self.n1.state))
        with load:
            load.wait(5)
            started = time.monotonic()
            self.apply(["upgrade"], {**self.values, "image": {"tag": self.images[1], "pullPolicy": "Never"}, "deviceListStrategy": None,
                                     "compatWithCPUManager": None, "minReadySeconds": 10})
            self.wait_agents(self.images[1])
            took = time.monotonic() - started
            load.wait(load.count + 5)
        load.settle()
        self.checks.assert_undisturbed(before)
        print(f"   upgraded in {took:.1f} s under {load.count} Pods, the longest wait for a GPU {load.longest:.1f} s", flush=True)
        assert not load.failed, f"{len(load.failed)} of {load.count} Pods failed: {load.failed[:3]}"

    def nvidias_values(self):
        """An unchanged values file of NVIDIA's chart, with the testbed's image and driver root."""
        # MPS has its own check; there is no such runtime class here, and both nodes share one machine.
        values = {"config": {"map": {"shared": "version: v1\n"}}, "runtimeClassName": None, "devicePlugin": {"enableHostNetwork": False}}
        testbeds = self.testbeds(self.images[1])
        values.update({key: testbeds[key] for key in ("image", "nvidiaDriverRoot", "extraVolumes", "extraVolumeMounts", "minReadySeconds", "privileged")})
        values["cdi"] = {"nvidiaHookPath": None, **testbeds["cdi"]}
        # That file selects nodes by these labels.
        labels = {"pool": "gpu", PRESENT: "true"}
        for node in self.nodes:
            self.kube.patch(f"/api/v1/nodes/{node.name}", {"metadata": {"labels": labels}})
        reported = self.apply(["upgrade"], values, "--values", self.checks.root / "tests/chart/nvidia-values.yaml")
        assert "nfd.*" in reported and "have no effect" in reported, reported
        self.wait_agents(self.images[1])
        for node in self.nodes:
            node.wait_allocatable(self.kube, 8)
        self.checks.cdi.one_pod("by-nvidias")
        self.kube.patch("/api/v1/nodes/n2", {"metadata": {"labels": {PRESENT: None}}})

    def mps(self):
        """Daemons under the chart's path end with the agent's container; clients then get a new one with the same limits."""
        values = self.testbeds(self.images[1], mps={"enabled": True}, config={"map": {"default": BY_MPS}})
        started = time.monotonic()
        self.apply(["upgrade"], values)
        for node in self.nodes:
            node.wait_allocatable(self.kube, 16)
        print(f"   16 on each node {time.monotonic() - started:.1f} s after helm upgrade", flush=True)
        looks = PartitionChecks(self.checks)
        looks.mps_root = mps_directory(self.n1)
        self.checks.run_pod("by-mps", 1, "n1", script=LOOK_MPS)
        gpu = self.n1.nvml("gpus")[self.n1.resources.held()["by-mps"][0].partition("::")[0]]
        limit = looks.mebibytes(gpu["index"], 50)
        before, daemons, agents = self.checks.facts(["by-mps"]), self.daemons(self.n1), self.n1.agents()
        assert len(daemons) == 1, daemons

        def works():
            _, environment = self.n1.environments()["by-mps"]
            assert environment["CUDA_MPS_PIPE_DIRECTORY"] == f"/mps/{GPU}/pipe", environment
            looks.assert_mounted("by-mps", environment)
            looks.assert_memory_limit(looks.daemon_directory(environment), limit)
            looks.cuda_client("by-mps", "threads 50.0" + "".join(f" memory {index}={limit}M" for index in range(8)))
        works()
        for name, pod in self.kube.pods(NAMESPACE).items():
            if pod["spec"]["nodeName"] == "n1" and "cleanup" not in name:
                self.kube.delete_pod(name, NAMESPACE)
        until("another agent of n1", lambda: set(self.n1.agents()) - set(agents), TIMED_LIMIT_S)
        self.n1.wait_allocatable(self.kube, 16)
        self.checks.assert_undisturbed(before)
        again = self.daemons(self.n1)
        assert len(again) == 1 and again != daemons, f"daemon {daemons} before the agent was replaced, {again} after"
        works()
        self.checks.remove_pods()

    def uninstall(self):
        self.kube.patch("/api/v1/nodes/n1", {"metadata": {"labels": {"nvidia.com/mig.config": "all-disabled"}}})
        left = self.seen()
        assert any(left[node.name]["labels"] != self.before[node.name]["labels"] for node in self.nodes) and left["n1"]["files"], left
        assert left["n1"]["mps"] and left["n1"]["mounts"], left
        started = time.monotonic()
        self.helm("uninstall", RELEASE, "--wait", "--timeout=90s")
        print(f"   helm uninstall, all nodes cleaned: {time.monotonic() - started:.1f} s", flush=True)
        self.kube.patch("/api/v1/nodes/n1", {"metadata": {"labels": {"nvidia.com/mig.config": None}}})
        # The CRD GpuNode is kept, unless requested.
        crd = "customresourcedefinition.apiextensions.k8s.io/gpunodes.gpulet.io"
        after = self.seen()
        if crd in after["cluster"]:
            objects = self.kube.get("/apis/gpulet.io/v1alpha1/gpunodes")["items"]
            assert not objects, f"GpuNodes are left: {[item['metadata']['name'] for item in objects]}"
            kubectl("delete", "crd", "gpunodes.gpulet.io")
            after = self.seen()
        for node in self.nodes:
            self.kube.patch(f"/api/v1/nodes/{node.name}", {"metadata": {"labels": {"pool": None}}})
        assert after == self.before, f"left: {json.dumps(after)}; before: {json.dumps(self.before)}"
        things = self.helm_kubectl("get", "all,serviceaccounts,configmaps,roles,rolebindings", "-o", "name").split()
        strange = [name for name in things if "gpulet" in name]
        assert not strange, f"in the namespace: {strange}"
        for node in self.nodes:
            assert self.kube.allocatable(node.name, GPU) == 0


class Load(threading.Thread):
    """Creates Pods that request a GPU, hold it for a moment and end; a context manager."""

    def __init__(self, kube):
        super().__init__(daemon=True)
        self.kube, self.count, self.failed, self.longest = kube, 0, [], 0.0
        self.ends, self.more = threading.Event(), threading.Condition()
        self.error = None

    def run(self):
        try:
            while not self.ends.wait(EVERY_S):
                pod = gpu_pod(f"load-{self.count}", 1, script="true")
                pod["metadata"]["labels"] = {"load": "gpu"}
                self.kube.create_pod(pod)
                with self.more:
                    self.count += 1
                    self.more.notify_all()
        except Exception as error:
            self.error = error
            with self.more:
                self.more.notify_all()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.join()
        assert not self.error, self.error

    def wait(self, count):
        with self.more:
            assert self.more.wait_for(lambda: self.count >= count or self.error, 60) and not self.error, self.error

    def settle(self):
        def pods():
            return [pod for pod in self.kube.pods().values() if pod["metadata"]["labels"].get("load")]
        until("all Pods of the load have ended", lambda: all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in pods()), LOAD_ENDS_S)
        for pod in pods():
            status = pod["status"]
            if status["phase"] == "Failed":
                self.failed.append((pod["metadata"]["name"], status.get("reason"), status.get("message"), pod["spec"].get("nodeName")))
                continue
            scheduled = next(condition for condition in status["conditions"] if condition["type"] == "PodScheduled")
            self.longest = max(self.longest, moment(scheduled["lastTransitionTime"]) - moment(pod["metadata"]["creationTimestamp"]))


def moment(text):
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))
