"""NVIDIA's chart as a node sees it: names, programs, variables and mounts, with any image.

Written for this test with the names of k8s-device-plugin 0.17 to 0.20: three DaemonSets, each with config-manager as an init container
and as a sidecar, a ConfigMap of configs, and the permissions. On n1 only.
"""

from lib.kube import until
from lib.kubectl import kubectl
from lib.labels import MODEL, NODE_CONFIG
from lib.node import DRIVER_ROOT
from lib.partition import LOOK_MPS, PartitionChecks

GPU = "nvidia.com/gpu"
NAMESPACE = "nvidia-device-plugin"
MPS_ROOT = "/run/nvidia/mps"  # gpulet's chart has it too
BY_MPS = "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"
CONFIGS = {"default": "version: v1\n", "shared": BY_MPS}
FEATURES = "/etc/kubernetes/node-feature-discovery/features.d"
LIMIT_S = 60


def mps_directory(node):
    """The host directory at MPS_ROOT: one per node, because the nodes share /run."""
    return node.state / node.name / "mps-of-chart"


def env(**variables):
    return [{"name": name, "value": value} for name, value in variables.items()] + [
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]


def static_plugin(image, node, runtime):
    """NVIDIA's static manifest of the plugin: no driver, no variable that asks for it, no rights."""
    name, directory = "nvidia-device-plugin-daemonset", "/var/lib/kubelet/device-plugins"
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name, "namespace": "kube-system"}, "spec": {
        "selector": {"matchLabels": {"name": name}}, "template": {"metadata": {"labels": {"name": name}}, "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node}, "runtimeClassName": runtime, "containers": [{
                "name": "nvidia-device-plugin-ctr", "image": image, "imagePullPolicy": "Never", "command": ["nvidia-device-plugin"],
                "env": [{"name": "FAIL_ON_INIT_ERROR", "value": "false"}],
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [{"name": "device-plugin", "mountPath": directory}]}],
            "volumes": [{"name": "device-plugin", "hostPath": {"path": directory}}]}}}}


class NvidiaChart:
    def __init__(self, checks, node, image, runtime=None):
        """`runtime`: the RuntimeClass by which the Pods get the driver, as in the chart itself; else it is mounted."""
        self.checks, self.kube, self.node, self.image, self.runtime = checks, checks.kube, node, image, runtime
        self.mps_directory, self.features = mps_directory(node), node.state / node.name / "features.d"

    def manager(self, process, once):
        """config-manager, as an init container and as a sidecar."""
        return {"name": "config-manager-init" if once else "config-manager-sidecar", "image": self.image, "imagePullPolicy": "Never", "command": ["config-manager"],
                "env": env(ONESHOT="true" if once else "false", KUBECONFIG="", NODE_LABEL=NODE_CONFIG, CONFIG_FILE_SRCDIR="/available-configs",
                           CONFIG_FILE_DST="/config/config.yaml", DEFAULT_CONFIG="default", FALLBACK_STRATEGIES="named,single",
                           SEND_SIGNAL="false" if once else "true", SIGNAL="" if once else "1", PROCESS_TO_SIGNAL="" if once else process),
                "volumeMounts": [{"name": "available-configs", "mountPath": "/available-configs"}, {"name": "config", "mountPath": "/config"}]}

    def daemon_set(self, name, program, variables, host, init=(), signal_to=None, **pod):
        """`host`: (path in the container, path on the node, optionally the mount propagation)."""
        mounts = [{"name": f"host-{at}", "mountPath": place[0], **({"mountPropagation": place[2]} if place[2:] else {})} for at, place in enumerate(host)]
        volumes = [{"name": f"host-{at}", "hostPath": {"path": place[1]}} for at, place in enumerate(host)]
        configs = [{"name": "available-configs", "configMap": {"name": "nvdp-configs"}}, {"name": "config", "emptyDir": {}}]
        container = {"name": f"{program}-ctr", "image": self.image, "imagePullPolicy": "Never", "command": [program], "securityContext": {"privileged": True},
                     "env": env(CONFIG_FILE="/config/config.yaml", NVIDIA_MIG_MONITOR_DEVICES="all", FAIL_ON_INIT_ERROR="false", **variables),
                     "volumeMounts": [*mounts, *self.manager(program, True)["volumeMounts"]]}
        more = [{**container, "name": f"{program}-{words[-1]}", "command": words} for words in init]
        return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": name}}, "template": {"metadata": {"labels": {"app.kubernetes.io/name": name}}, "spec": {
                "serviceAccountName": "nvdp", "terminationGracePeriodSeconds": 5, **(pod or {"shareProcessNamespace": True}),
                **({"runtimeClassName": self.runtime} if self.runtime else {}),
                "nodeSelector": {"kubernetes.io/hostname": self.node.name}, "volumes": [*volumes, *configs],
                "initContainers": [*more, self.manager(program, True)], "containers": [self.manager(signal_to or program, False), container]}}}}

    def objects(self, programs):
        """The objects of every release, and the DaemonSets of these programs."""
        driver, shm = [("/driver-root", DRIVER_ROOT)], ("/dev/shm", f"{MPS_ROOT}/shm")
        # With `auto`, NVIDIA's plugin searches the driver in its own image, where NVIDIA's runtime would inject it.
        ctr_root = {"CONTAINER_DRIVER_ROOT": "/driver-root", "DEVICE_DISCOVERY_STRATEGY": "nvml"}
        if self.runtime:
            driver, ctr_root = [], {}
        kubelet, cdi = (("/var/lib/kubelet/device-plugins",) * 2), (("/var/run/cdi",) * 2)
        found = {
            "nvidia-device-plugin": lambda name: self.daemon_set(
                f"nvdp-{name}", name, {**ctr_root, "MPS_ROOT": MPS_ROOT, "DEVICE_LIST_STRATEGY": "envvar", "PASS_DEVICE_SPECS": "true",
                                       "NVIDIA_VISIBLE_DEVICES": "all", **({} if self.runtime else {"NVIDIA_DRIVER_ROOT": DRIVER_ROOT})},
                [*driver, shm, ("/mps", MPS_ROOT), kubelet, cdi]),
            "gpu-feature-discovery": lambda name: self.daemon_set(
                f"nvdp-{name}", name, {**ctr_root, "USE_NODE_FEATURE_API": "false"}, [*driver, (FEATURES, str(self.features))]),
            "mps-control-daemon": lambda name: self.daemon_set(
                f"nvdp-{name}", name, {**ctr_root, "NVIDIA_VISIBLE_DEVICES": "all"}, [*driver, shm, ("/mps", MPS_ROOT, "Bidirectional")],
                init=[[name, "mount-shm"]], signal_to=f"/usr/bin/{name}", hostPID=True),
        }
        named = {"name": "nvdp", "namespace": NAMESPACE}
        return [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named},
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "nvdp"},
             "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}]},
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "nvdp"},
             "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "nvdp"}, "subjects": [{"kind": "ServiceAccount", **named}]},
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "nvdp-configs", "namespace": NAMESPACE}, "data": CONFIGS},
            *(found[program](program) for program in programs)]

    def apply(self, programs):
        (self.mps_directory / "shm").mkdir(parents=True, exist_ok=True)
        self.features.mkdir(exist_ok=True)
        self.items = self.objects(programs)
        kubectl("apply", "-f", "-", items=self.items)

    def remove(self):
        self.label(None)
        kubectl("delete", "-f", "-", "--ignore-not-found", items=self.items)

    def label(self, config):
        self.kube.patch(f"/api/v1/nodes/{self.node.name}", {"metadata": {"labels": {NODE_CONFIG: config}}})

    def with_ours(self):
        """Runs every program of the chart from gpulet's image: a config by label reaches all three, no share is allocatable before its MPS
        daemon answers, and a Pod gets its share."""
        self.apply(["nvidia-device-plugin", "gpu-feature-discovery"])
        try:
            self.node.wait_allocatable(self.kube, 8, LIMIT_S)
            self.features_say({"gpu.count": "8", "gpu.replicas": "1", "gpu.product": MODEL, "mps.capable": "false"})
            self.label("shared")
            until("16 shares, none allocatable without a daemon",
                  lambda: (self.capacity(), self.kube.allocatable(self.node.name, GPU)) == (16, 0), LIMIT_S)
            self.apply(["nvidia-device-plugin", "gpu-feature-discovery", "mps-control-daemon"])
            self.node.wait_allocatable(self.kube, 16, LIMIT_S)
            self.features_say({"gpu.replicas": "2", "gpu.product": f"{MODEL}-SHARED", "gpu.sharing-strategy": "mps", "mps.capable": "true"})
            looks = PartitionChecks(self.checks)
            looks.mps_root = self.mps_directory
            self.checks.run_pod("by-names", 1, self.node.name, script=LOOK_MPS)
            _, environment = self.node.environments()["by-names"]
            assert environment["CUDA_MPS_PIPE_DIRECTORY"] == f"/mps/{GPU}/pipe", environment
            looks.assert_mounted("by-names", environment)
            limit = self.node.gpu(0)["memory"] // 2 >> 20
            looks.cuda_client("by-names", "threads 50.0" + "".join(f" memory {index}={limit}M" for index in range(8)))
            self.checks.remove_pods()
            self.label("default")
            self.node.wait_allocatable(self.kube, 8, LIMIT_S)
            self.features_say({"gpu.replicas": "1", "gpu.product": MODEL, "mps.capable": "false"})
        finally:
            self.remove()
        until("no plugin, no GPU", lambda: self.kube.allocatable(self.node.name, GPU) == 0, LIMIT_S)

    def capacity(self):
        return int(self.kube.get(f"/api/v1/nodes/{self.node.name}")["status"]["capacity"].get(GPU, 0))

    def features_say(self, wanted):
        def said():
            files = list(self.features.iterdir())
            lines = dict(line.partition("=")[::2] for file in files for line in file.read_text().splitlines())
            return {key: lines.get(f"nvidia.com/{key}") for key in wanted} == wanted or None
        until(f"gpu-feature-discovery says {wanted}", said, LIMIT_S)
