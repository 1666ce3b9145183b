"""What the GPU operator makes of a ClusterPolicy in which only the image of its operands is gpulet's: names, programs, variables, mounts,
rights and probes.

Written for this test from what each operand's Pod expects (operator 26.7): DaemonSets that follow the labels nvidia.com/gpu.deploy.*, behind
validations that run in the operator's own image. Of the policy, paths are the testbed's (`hostPaths.driverInstallDir`, `toolkit.installDir`),
and `mig.strategy` is mixed. The container toolkit is toolkit_runtime.py.
"""
from lib.labels import NODE_CONFIG
from lib.node import DRIVER_ROOT

NAMESPACE = "gpu-operator"
RUNTIME = "nvidia"
DEPLOY = "nvidia.com/gpu.deploy."
PORT = 9400
VALIDATIONS = "/run/nvidia/validations"
MPS_ROOT = "/run/nvidia/mps"
CONFIGS = {"default": "version: v1\nflags: {migStrategy: mixed}\n",
           "sliced": "version: v1\nflags: {migStrategy: mixed}\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"}
# Own words for what the operator's scripts do: wait for the validation of the driver, take over its variables, say which kernel modules
# are there, and start the program by PATH.
ENTRY = f"""#!/bin/sh
until [ -f {VALIDATIONS}/driver-ready ]; do
  echo "no driver yet"
  sleep 1
done
set -o allexport
cat {VALIDATIONS}/driver-ready
. {VALIDATIONS}/driver-ready
"""
PLUGIN_ENTRY = ENTRY + """>feature-flags.env
if [ -z "$GDRCOPY_ENABLED" ] && lsmod | grep -q '^gdrdrv '; then
  echo "GDRCOPY_ENABLED=true" >>feature-flags.env
fi
if [ -z "$GDS_ENABLED" ] && lsmod | grep -q '^nvidia_fs '; then
  echo "GDS_ENABLED=true" >>feature-flags.env
fi
. ./feature-flags.env
exec nvidia-device-plugin
"""
MIG_ENTRY = ENTRY + """export WITH_SHUTDOWN_HOST_GPU_CLIENTS=$IS_HOST_DRIVER
exec nvidia-mig-manager
"""
DRIVER_READY = (f"IS_HOST_DRIVER=false\\nNVIDIA_DRIVER_ROOT={DRIVER_ROOT}\\nDRIVER_ROOT_CTR_PATH=/driver-root\\n"
                f"NVIDIA_DEV_ROOT={DRIVER_ROOT}\\nDEV_ROOT_CTR_PATH=/driver-root\\n")
NFD = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "nodefeatures.nfd.k8s-sigs.io"}, "spec": {
    "group": "nfd.k8s-sigs.io", "scope": "Namespaced",
    "names": {"kind": "NodeFeature", "plural": "nodefeatures", "singular": "nodefeature", "listKind": "NodeFeatureList"},
    "versions": [{"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
        "type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}}}]}}


def env(*of_pod, **variables):
    """Variables, and those of the Pod: (name, field)."""
    return [{"name": name, "value": value} for name, value in variables.items()] + [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in of_pod]


NODE_NAME, POD_NAME = ("NODE_NAME", "spec.nodeName"), ("POD_NAME", "metadata.name")


def host(name, path, at, propagation=None, **more):
    """(volume, mount) of a directory of the node."""
    return ({"name": name, "hostPath": {"path": path}},
            {"name": name, "mountPath": at, **({"mountPropagation": propagation} if propagation else {}), **more})


def config_map(name, at, mode=None, **more):
    return ({"name": name, "configMap": {"name": name, **({"defaultMode": mode} if mode else {})}}, {"name": name, "mountPath": at, **more})


class GpuOperator:
    """The objects of the operator, for `image` (repository, name and version as one) and the programs of the validations in `own`."""

    def __init__(self, image, own, toolkit):
        self.image, self.own, self.toolkit = image, own, toolkit
        self.cdi = {"CDI_ENABLED": "true", "NVIDIA_CDI_HOOK_PATH": f"{toolkit}/nvidia-cdi-hook"}

    # Rights.
    def account(self, name, cluster=(), own=()):
        """A service account, with rules in the whole cluster and in the namespace: (group, resource, verbs)."""
        subject = {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}
        found = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}}]
        for prefix, place, rules in (("Cluster", {}, cluster), ("", {"namespace": NAMESPACE}, own)):
            rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name, **place}}
            found += [{**rbac, "kind": f"{prefix}Role",
                       "rules": [{"apiGroups": [group], "resources": [resource], "verbs": verbs.split()} for group, resource, verbs in rules]},
                      {**rbac, "kind": f"{prefix}RoleBinding", "subjects": [subject],
                       "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": f"{prefix}Role", "name": name}}]
        return found

    def accounts(self):
        nodes = ("", "nodes", "get list watch")
        return [
            *self.account("nvidia-device-plugin", [nodes]),
            *self.account("nvidia-gpu-feature-discovery", [nodes], [
                ("nfd.k8s-sigs.io", "nodefeatures", "get list watch create update"), ("", "pods", "get")]),
            *self.account("nvidia-dcgm-exporter"),
            *self.account("nvidia-mig-manager", [("", "nodes", "get list watch update patch"), ("", "pods", "list")], [
                ("", "pods", "delete"), ("", "configmaps", "create update patch")]),
        ]

    # Pods.
    def validation(self, which="toolkit"):
        """An init container that waits for a file of the validator."""
        return {"name": f"{which}-validation", "image": self.own, "imagePullPolicy": "Never", "securityContext": {"privileged": True},
                "command": ["sh", "-c"], "args": [f"until [ -f {VALIDATIONS}/{which}-ready ]; do echo waiting for {which}; sleep 1; done"],
                "volumeMounts": [{"name": "validations", "mountPath": VALIDATIONS, "mountPropagation": "HostToContainer"}]}

    def config_manager(self, process, once):
        return {"name": "config-manager-init" if once else "config-manager", "image": self.image, "imagePullPolicy": "Never",
                "command": ["config-manager"], **({} if once else {"securityContext": {"privileged": True}}),
                "env": env(NODE_NAME, ONESHOT="true" if once else "false", KUBECONFIG="", NODE_LABEL=NODE_CONFIG,
                           CONFIG_FILE_SRCDIR="/available-configs", CONFIG_FILE_DST="/config/config.yaml", DEFAULT_CONFIG="default",
                           FALLBACK_STRATEGIES="empty", SEND_SIGNAL="false" if once else "true", SIGNAL="" if once else "1",
                           PROCESS_TO_SIGNAL="" if once else process),
                "volumeMounts": [{"name": "plugin-configs", "mountPath": "/available-configs"}, {"name": "config", "mountPath": "/config"}]}

    def daemon_set(self, label, app, container, volumes, signal_to=None, **pod):
        """`volumes`: those of host() and config_map(). With `signal_to` a config manager follows the Node's label."""
        kinds, mounts = [list(part) for part in zip(*volumes)]
        main = {"image": self.image, "imagePullPolicy": "Never", "securityContext": {"privileged": True}, **container, "volumeMounts": mounts}
        if not any(volume["name"] == "validations" for volume in kinds):
            kinds.append({"name": "validations", "hostPath": {"path": VALIDATIONS}})
        init, containers = [self.validation()], [main]
        if signal_to:
            kinds += [{"name": "plugin-configs", "configMap": {"name": "plugin-configs"}}, {"name": "config", "emptyDir": {}}]
            main["env"] = [*main["env"], {"name": "CONFIG_FILE", "value": "/config/config.yaml"}]
            main["volumeMounts"] = [*mounts, *self.config_manager("", True)["volumeMounts"]]
            init.append(self.config_manager("", True))
            containers.append(self.config_manager(signal_to, False))
            pod["shareProcessNamespace"] = True
        return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": app, "namespace": NAMESPACE, "labels": {"app": app}}, "spec": {
            "selector": {"matchLabels": {"app": app}}, "template": {"metadata": {"labels": {"app": app}}, "spec": {
                "nodeSelector": {DEPLOY + label: "true"}, "priorityClassName": "system-node-critical", "runtimeClassName": RUNTIME,
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
                "initContainers": init, "containers": containers, "volumes": kinds, **pod}}}}

    def device_plugin(self):
        variables = env(PASS_DEVICE_SPECS="true", FAIL_ON_INIT_ERROR="true", DEVICE_LIST_STRATEGY="cdi-annotations,cdi-cri", DEVICE_ID_STRATEGY="uuid",
                        NVIDIA_VISIBLE_DEVICES="all", NVIDIA_DRIVER_CAPABILITIES="all", MPS_ROOT=MPS_ROOT, MIG_STRATEGY="mixed",
                        NVIDIA_MIG_MONITOR_DEVICES="all", CDI_ANNOTATION_PREFIX="cdi.k8s.io/", **self.cdi)
        volumes = [
            config_map("nvidia-device-plugin-entrypoint", "/bin/entrypoint.sh", 0o700, subPath="entrypoint.sh", readOnly=True),
            host("device-plugin", "/var/lib/kubelet/device-plugins", "/var/lib/kubelet/device-plugins"), host("validations", VALIDATIONS, VALIDATIONS),
            host("driver-install-dir", DRIVER_ROOT, "/driver-root", "HostToContainer"), host("host-root", "/", "/host", "HostToContainer", readOnly=True),
            host("cdi-root", "/var/run/cdi", "/var/run/cdi"), host("mps-shm", f"{MPS_ROOT}/shm", "/dev/shm"), host("mps-root", MPS_ROOT, "/mps")]
        return self.daemon_set("device-plugin", "nvidia-device-plugin-daemonset", {
            "name": "nvidia-device-plugin", "command": ["/bin/sh", "-c"], "args": ["/bin/entrypoint.sh"], "env": variables},
            volumes, "nvidia-device-plugin", serviceAccountName="nvidia-device-plugin")

    def feature_discovery(self):
        variables = env(("NAMESPACE", "metadata.namespace"), NODE_NAME, POD_NAME, GFD_SLEEP_INTERVAL="60s", GFD_FAIL_ON_INIT_ERROR="true", MIG_STRATEGY="mixed")
        volumes = [host("features", "/etc/kubernetes/node-feature-discovery/features.d", "/etc/kubernetes/node-feature-discovery/features.d"),
                   host("host-sys", "/sys", "/sys", readOnly=True)]
        return self.daemon_set("gpu-feature-discovery", "gpu-feature-discovery", {
            "name": "gpu-feature-discovery", "command": ["gpu-feature-discovery"], "env": variables},
            volumes, "gpu-feature-discovery", serviceAccountName="nvidia-gpu-feature-discovery")

    def exporter(self):
        """It has no command: the image recognizes it by its variables."""
        probe = {"httpGet": {"path": "/health", "port": PORT}, "initialDelaySeconds": 45}
        return self.daemon_set("dcgm-exporter", "nvidia-dcgm-exporter", {
            "name": "nvidia-dcgm-exporter", "ports": [{"name": "metrics", "containerPort": PORT}],
            "livenessProbe": {**probe, "periodSeconds": 5}, "readinessProbe": probe,
            "env": env(NODE_NAME, DCGM_EXPORTER_LISTEN=f":{PORT}", DCGM_EXPORTER_KUBERNETES="true",
                       DCGM_EXPORTER_COLLECTORS="/etc/dcgm-exporter/dcp-metrics-included.csv")},
            [host("pod-gpu-resources", "/var/lib/kubelet/pod-resources", "/var/lib/kubelet/pod-resources", readOnly=True)],
            serviceAccountName="nvidia-dcgm-exporter", automountServiceAccountToken=False)

    def exporter_service(self):
        return {"apiVersion": "v1", "kind": "Service", "metadata": {
            "name": "nvidia-dcgm-exporter", "namespace": NAMESPACE, "labels": {"app": "nvidia-dcgm-exporter"}, "annotations": {"prometheus.io/scrape": "true"}},
            "spec": {"selector": {"app": "nvidia-dcgm-exporter"}, "ports": [{"name": "gpu-metrics", "port": PORT, "targetPort": PORT}]}}

    def mig_manager(self):
        variables = env(NODE_NAME, POD_NAME, ("POD_NAMESPACE", "metadata.namespace"), ("DEFAULT_GPU_CLIENTS_NAMESPACE", "metadata.namespace"),
                        GPU_CLIENTS_FILE="/gpu-clients/clients.yaml", DEFAULT_CONFIG_FILE="/mig-parted-config/config-default.yaml", **self.cdi)
        volumes = [
            config_map("nvidia-mig-manager-entrypoint", "/bin/entrypoint.sh", 0o700, subPath="entrypoint.sh", readOnly=True),
            host("validations", VALIDATIONS, VALIDATIONS), host("host-sys", "/sys", "/sys"), host("host-root", "/", "/host", "HostToContainer"),
            host("driver-install-dir", DRIVER_ROOT, "/driver-root", "HostToContainer"), host("cdi-root", "/var/run/cdi", "/var/run/cdi"),
            config_map("default-gpu-clients", "/gpu-clients"), config_map("default-mig-parted-config", "/mig-parted-config")]
        return self.daemon_set("mig-manager", "nvidia-mig-manager", {
            "name": "nvidia-mig-manager", "command": ["/bin/sh", "-c"], "args": ["/bin/entrypoint.sh"], "env": variables},
            volumes, serviceAccountName="nvidia-mig-manager", hostPID=True, hostIPC=True)

    def validator(self, probe):
        """NVIDIA's part: it says that the driver is there, looks for the GPUs through the toolkit in the image `probe`, and removes its
        files at its end."""
        mount = [{"name": "validations", "mountPath": VALIDATIONS, "mountPropagation": "Bidirectional"}]
        common = {"imagePullPolicy": "Never", "securityContext": {"privileged": True}, "volumeMounts": mount}
        app = "nvidia-operator-validator"
        return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": app, "namespace": NAMESPACE}, "spec": {
            "selector": {"matchLabels": {"app": app}}, "template": {"metadata": {"labels": {"app": app}}, "spec": {
                "nodeSelector": {DEPLOY + "operator-validator": "true"}, "runtimeClassName": RUNTIME, "terminationGracePeriodSeconds": 5,
                "volumes": [{"name": "validations", "hostPath": {"path": VALIDATIONS}}],
                "initContainers": [
                    {**common, "name": "driver-validation", "image": self.own,
                     "command": ["sh", "-c", f"printf '{DRIVER_READY}' >{VALIDATIONS}/new && mv {VALIDATIONS}/new {VALIDATIONS}/driver-ready"]},
                    {**common, "name": "toolkit-validation", "image": probe, "env": env(NVIDIA_VISIBLE_DEVICES="all"),
                     "command": ["sh", "-c", f"nvidia-smi && : >{VALIDATIONS}/toolkit-ready"]}],
                "containers": [{**common, "name": app, "image": self.own, "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 100000 & wait"],
                                "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", f"rm -f {VALIDATIONS}/*-ready"]}}}}]}}}}

    def operands(self):
        def data(name, **files):
            return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}, "data": files}
        return [
            *self.accounts(),
            data("nvidia-device-plugin-entrypoint", **{"entrypoint.sh": PLUGIN_ENTRY}), data("nvidia-mig-manager-entrypoint", **{"entrypoint.sh": MIG_ENTRY}),
            data("plugin-configs", **CONFIGS),
            data("default-gpu-clients", **{"clients.yaml": "version: v1\nsystemd-services: [nvsm.service, nvidia-dcgm.service]\n"}),
            data("default-mig-parted-config", **{"config-default.yaml": "version: v1\nmig-configs:\n  all-disabled: [{devices: all, mig-enabled: false}]\n"}),
            self.device_plugin(), self.feature_discovery(), self.exporter(), self.exporter_service(), self.mig_manager()]
