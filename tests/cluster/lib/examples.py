"""examples/: each is applied strictly to the real API server; its Pods run with a stand-in image and get the requested GPUs. lib/workloads.py
runs their programs."""
import copy
import re

import yaml

from lib.kube import ApiError, until
from lib.kubectl import kubectl
from lib.machine_python import on_this_machine
from lib.node import ROOT

EXAMPLES = ROOT / "examples"
CLAIM_EXAMPLES = EXAMPLES / "dra"  # of the run `dra`
GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
SLICE = "nvidia.com/mig-1g.10gb"
SAY = 'echo "devices $NVIDIA_VISIBLE_DEVICES"; '
STAY = SAY + "trap 'exit 0' TERM; sleep 100000 & wait"
LIMIT_S = 90.0
JOBS = "/apis/batch/v1/namespaces/default/jobs"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
TEMPLATE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}  # checked by itself, as a PodTemplate


def crd(group, version, kind, plural, spec):
    """A CRD of another operator, with the documented fields that the examples use."""
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": f"{plural}.{group}"},
            "spec": {"group": group, "scope": "Namespaced", "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
                     "versions": [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": {
                         "type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}}}]}}


def replicas(*names):
    one = {"type": "object", "properties": {"replicas": {"type": "integer"}, "template": TEMPLATE,
                                            "restartPolicy": {"type": "string", "enum": ["Always", "OnFailure", "Never", "ExitCode"]}}}
    return {"type": "object", "properties": {name: one for name in names}}


OPERATORS = [
    crd("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs", {"nprocPerNode": {"type": "string"}, "pytorchReplicaSpecs": replicas("Master", "Worker")}),
    crd("kubeflow.org", "v1", "TFJob", "tfjobs", {"tfReplicaSpecs": replicas("Chief", "Master", "PS", "Worker", "Evaluator")}),
    crd("kubeflow.org", "v1", "Notebook", "notebooks", {"template": TEMPLATE}),
    crd("kubeflow.org", "v2beta1", "MPIJob", "mpijobs", {
        "slotsPerWorker": {"type": "integer"}, "mpiReplicaSpecs": replicas("Launcher", "Worker"),
        "runPolicy": {"type": "object", "properties": {"cleanPodPolicy": {"type": "string", "enum": ["None", "Running", "All"]}}}}),
]


def templates(item):
    """(name, Pod template, Pods of it) of an object of any kind; the controllers of Jobs and Deployments create those themselves."""
    spec = item.get("spec") or {}
    if item["kind"] == "Pod":
        return [("", item, 1)]
    if item["kind"] in ("Job", "Deployment", "StatefulSet", "DaemonSet"):
        count = 2 if item["kind"] == "DaemonSet" else spec.get("completions") or spec.get("replicas") or 1
        return [("", spec["template"], count)]
    found = [(name.lower(), one["template"], one.get("replicas", 1)) for key, roles in spec.items() if key.endswith("ReplicaSpecs")
             for name, one in roles.items()]
    return found or ([("", spec["template"], 1)] if item["kind"] == "Notebook" else [])


def with_stand_in(items):
    """Deep copies with containers that print their devices; a Job's then exit, all others keep running. NFS becomes a directory of the node."""
    items = copy.deepcopy(items)
    for item in items:
        for _, template, _ in templates(item):
            template["spec"]["terminationGracePeriodSeconds"] = 1
            for container in template["spec"]["containers"]:
                for field in ("args", "startupProbe", "readinessProbe", "livenessProbe"):
                    container.pop(field, None)
                container.update(image="localhost/busybox:1", imagePullPolicy="Never",
                                 command=["/bin/sh", "-c", SAY if item["kind"] == "Job" else STAY])
        if item["kind"] == "PersistentVolume":
            assert item["spec"].pop("nfs")["server"] and item["spec"].pop("mountOptions")
            item["spec"]["hostPath"] = {"path": "/var/lib/gpulet/nfs", "type": "DirectoryOrCreate"}
    return items


def submit(items):
    """Applies the objects with strict field validation."""
    kubectl("apply", "-f", "-", "--server-side", "--validate=strict", items=items)


def create_programs():
    """The ConfigMap of programs, as README.md says."""
    kubectl("create", "configmap", "example-programs", f"--from-file={EXAMPLES / 'programs'}")


class ExamplesChecks:
    def __init__(self, checks):
        self.checks, self.kube = checks, checks.kube
        self.n1, self.n2 = checks.nodes
        self.seen = set()

    def run(self):
        whole = ["tensorflow-training", "pytorch-multi-gpu", "inference", "video-analytics", "rendering", "priorities", "edge"]
        return [
            ("the agents start", self.begin),
            ("training-volume.yaml: valid with NFS, bound with a directory", self.volume),
            *((f"{name}.yaml", lambda name=name: self.example(name)) for name in whole),
            ("video-analytics.yaml has its autoscaler's minimum of replicas", self.autoscaled),
            ("pipeline.yaml: the shipped program runs the stages in order", self.pipeline),
            ("mixed-cluster.yaml: Pods without a GPU stay away from a tainted node", self.mixed),
            ("node-pools.yaml: each on its pool", self.node_pools),
            ("restricted.yaml: less restricted Pods are refused", self.restricted),
            ("kubeflow/ and mpi-job.yaml: their objects, and the Pods of their templates", self.operators),
            ("mig-tenants.yaml with values/mig.yaml: each tenant gets its quota", self.tenants),
            ("time-sliced-notebooks.yaml with values/time-slicing.yaml", lambda: self.shared("time-slicing", "time-sliced-notebooks", 64)),
            ("mps-inference.yaml with values/mps.yaml", lambda: self.shared("mps", "mps-inference", 4)),
            ("every example was tested", self.all_seen),
        ]

    # Helpers of the checks.
    def read(self, name):
        path = EXAMPLES / f"{name}.yaml"
        self.seen.add(path)
        return [item for item in yaml.safe_load_all(path.read_text()) if item]

    def config(self, name, **flags):
        values = EXAMPLES / "values" / f"{name}.yaml"
        self.seen.add(values)
        config = yaml.safe_load(yaml.safe_load(values.read_text())["config"]["map"]["default"])
        config.setdefault("flags", {}).update(flags)
        self.n1.write_config(yaml.safe_dump(config))

    def pods_of(self, items):
        """The Pods in the namespaces of these objects that are not terminating."""
        spaces = {item["metadata"].get("namespace", "default") for item in items if templates(item)}
        return {(space, name): pod for space in spaces for name, pod in self.kube.pods(space).items() if "deletionTimestamp" not in pod["metadata"]}

    def wait_for(self, items, count, but=()):
        def there():
            pods = {(space, name): pod for (space, name), pod in self.pods_of(items).items() if name not in but}
            phases = [pod["status"]["phase"] for pod in pods.values()]
            assert "Failed" not in phases, {name: pod["status"] for name, pod in pods.items() if pod["status"]["phase"] == "Failed"}
            return pods if len(pods) == count and all(phase in ("Running", "Succeeded") for phase in phases) else None
        return until(f"{count} Pods run or have run", there, LIMIT_S)

    def assert_devices(self, pods):
        """Checks that each container's own environment names as many devices as it requests. Returns Pod → devices."""
        given = {}
        for (space, name), pod in pods.items():
            for container in pod["spec"]["containers"]:
                wanted = sum(int(count) for resource, count in (container["resources"].get("limits") or {}).items() if resource.startswith("nvidia.com/"))

                def said(space=space, name=name, container=container):
                    text = self.kube.call("GET", f"/api/v1/namespaces/{space}/pods/{name}/log?container={container['name']}", text=True)
                    return next((line for line in text.splitlines() if line.startswith("devices")), None)
                line = until(f"{name} says its devices", said)
                devices = line.split(" ", 1)[1].split(",") if line.strip() != "devices" else []
                assert len(devices) == wanted and all(device.startswith(("GPU-", "MIG-")) for device in devices), f"{name} wants {wanted}: {line}"
                given.setdefault(name, []).extend(devices)
        return given

    def apply(self, items):
        """Applies strictly: an unknown field is an error. Returns the running Pods with checked devices."""
        submit(items)
        pods = self.wait_for(items, sum(count for item in items for _, _, count in templates(item)))
        self.devices = self.assert_devices(pods)
        return pods

    def take_away(self, items):
        kubectl("delete", "-f", "-", "--ignore-not-found", items=items)
        until("their Pods have gone", lambda: not any(self.kube.pods(item["metadata"].get("namespace", "default")) for item in items), LIMIT_S)

    # The checks.
    def begin(self):
        self.n1.write_config("version: v1\n")
        self.n1.start_agent(arguments=["--config-file", self.n1.config])
        self.n2.start_agent()
        for node in self.checks.nodes:
            node.wait_allocatable(self.kube, 8)

    def volume(self):
        """The volume and the programs that other examples mount, until the end."""
        items = self.read("training-volume")
        kubectl("apply", "-f", "-", "--server-side", "--validate=strict", "--dry-run=server", items=items)
        create_programs()
        items = with_stand_in(items)
        self.apply(items)
        self.shared_objects = [item for item in items if item["kind"] != "Job"]
        self.take_away([item for item in items if item["kind"] == "Job"])
        until("the claim is bound", lambda: self.kube.get(f"{CLAIMS}/training-data")["status"].get("phase") == "Bound")

    def remove_volume(self):
        self.take_away(self.shared_objects)
        kubectl("delete", "configmap", "example-programs")

    def pipeline(self):
        """The stages are stand-ins; pipeline.py runs with this machine's Python."""
        items = self.read("pipeline")
        staged = with_stand_in(items)
        for item, real in zip(staged, items):
            if item["metadata"]["name"] == "pipeline" and item["kind"] == "Job":
                item["spec"]["template"] = copy.deepcopy(real["spec"]["template"])
                on_this_machine(item["spec"]["template"])
        submit(staged)
        stages = ["pipeline-prepare", "pipeline-train", "pipeline-evaluate"]

        def complete():
            status = self.kube.get(f"{JOBS}/pipeline").get("status", {})
            assert not status.get("failed"), [self.kube.log(name) for name in self.kube.pods() if re.fullmatch("pipeline-[a-z0-9]{5}", name)]
            return status.get("succeeded") == 1
        until("the pipeline is complete", complete, LIMIT_S)
        statuses = [self.kube.get(f"{JOBS}/{stage}")["status"] for stage in stages]
        assert all(one["completionTime"] <= other["startTime"] for one, other in zip(statuses, statuses[1:])), statuses
        train = {("default", name): pod for name, pod in self.kube.pods().items() if name.startswith("pipeline-train-")}
        self.assert_devices(train)
        self.take_away(staged)

    def mixed(self):
        node = "/api/v1/nodes/n1"
        items = with_stand_in(self.read("mixed-cluster"))
        self.kube.patch(node, {"spec": {"taints": [{"key": GPU, "value": "present", "effect": "NoSchedule"}]}})
        # n2 has no room for a GPU: it is the cluster's node without one.
        self.checks.run_pod("all-of-n2", 8, "n2")
        submit(items)
        pods = self.wait_for(items, sum(count for item in items for _, _, count in templates(item)), but=("all-of-n2",))
        nodes = {(pod["metadata"]["labels"]["app"], pod["spec"]["nodeName"]) for pod in pods.values()}
        assert nodes == {("needs-gpu", "n1"), ("without-gpu", "n2")}, nodes
        self.assert_devices(pods)
        self.kube.delete_pod("all-of-n2", grace_s=0)
        self.take_away(items)
        self.kube.patch(node, {"spec": {"taints": None}})

    def example(self, name):
        items = with_stand_in(self.read(name))
        if any(item["kind"] == "HorizontalPodAutoscaler" for item in items):
            next(item for item in items if item["kind"] == "Deployment")["spec"]["replicas"] = 1
            items = [item for item in items if item["kind"] != "HorizontalPodAutoscaler"]
        self.apply(items)
        self.take_away(items)

    def autoscaled(self):
        items = with_stand_in(self.read("video-analytics"))
        submit(items)
        least = next(item for item in items if item["kind"] == "HorizontalPodAutoscaler")["spec"]["minReplicas"]
        assert least == 2
        self.assert_devices(self.wait_for(items, least))
        self.take_away(items)

    def node_pools(self):
        items = with_stand_in(self.read("node-pools"))
        pods = self.apply(items)
        nodes = {(pod["metadata"]["labels"]["app"], pod["spec"]["nodeName"]) for pod in pods.values()}
        assert nodes == {("on-linked-80g", "n1"), ("on-l40s", "n2")}, nodes
        self.take_away(items)

    def refused(self, namespace, pod, why):
        try:
            self.kube.call("POST", f"/api/v1/namespaces/{namespace}/pods", pod)
        except ApiError as error:
            assert error.status == 403 and why in str(error), error
        else:
            raise AssertionError(f"{pod['metadata']['name']} was let into {namespace}")

    def restricted(self):
        items = with_stand_in(self.read("restricted"))
        pods = self.apply(items)
        pod = next(iter(pods.values()))
        lax = {"metadata": {"name": "lax"}, "spec": copy.deepcopy(pod["spec"])}
        del lax["spec"]["nodeName"]
        lax["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
        self.refused("restricted-gpu", lax, "violates PodSecurity")
        self.take_away(items)

    def operators(self):
        submit(OPERATORS)
        for kind in OPERATORS:
            kubectl("wait", "--for=condition=Established", f"crd/{kind['metadata']['name']}", "--timeout=30s")
        for name in ("kubeflow/pytorchjob", "kubeflow/tfjob", "kubeflow/notebook", "mpi-job"):
            items = self.read(name)
            submit(items)
            of_templates, pods = [], []
            for item in items:
                for role, template, _ in templates(item):
                    of_templates.append({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": f"{item['metadata']['name']}-{role or 'it'}"},
                                         "template": template})
            submit(of_templates)
            for item in with_stand_in(items):
                for role, template, count in templates(item):
                    pods += [{"apiVersion": "v1", "kind": "Pod", "spec": template["spec"], "metadata": {
                        **template.get("metadata", {}), "name": f"{item['metadata']['name']}-{role or 'it'}-{number}"}} for number in range(count)]
            self.apply(pods)
            self.take_away([*pods, *of_templates, *items])
        kubectl("delete", "-f", "-", items=OPERATORS)

    def tenants(self):
        self.config("mig")
        self.n1.wait_allocatable(self.kube, 14, resource=SLICE)
        items = with_stand_in(self.read("mig-tenants"))
        pods = self.apply(items)
        assert len({device for devices in self.devices.values() for device in devices}) == 2, self.devices
        red = pods["tenant-red", "model"]
        assert red["spec"]["containers"][0]["resources"]["limits"]["memory"] == "16Gi", "what the LimitRange gives"
        more = next(copy.deepcopy(item) for item in items if item["kind"] == "Pod" and item["metadata"]["namespace"] == "tenant-red")
        for name, space in (("second", "tenant-red"), ("third", "tenant-red"), ("second", "tenant-blue")):
            more["metadata"] = {"name": name, "namespace": space}
            if (name, space) == ("second", "tenant-red"):
                self.kube.call("POST", f"/api/v1/namespaces/{space}/pods", more)
            else:
                self.refused(space, more, "exceeded quota")
        whole = copy.deepcopy(more)
        whole["metadata"]["name"] = "whole"
        whole["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1"}}
        self.refused("tenant-blue", whole, "exceeded quota")
        self.take_away(items)
        self.n1.write_config("version: v1\n")
        for index in self.n1.partitioned():
            self.n1.change_mig("whole", index)
        self.n1.wait_allocatable(self.kube, 8)

    def shared(self, values, name, count):
        self.config(values, **({"mpsRoot": str(self.n1.state / self.n1.name / "mps")} if values == "mps" else {}))
        self.n1.wait_allocatable(self.kube, count, resource=SHARED)
        items = with_stand_in(self.read(name))
        self.apply(items)
        self.take_away(items)
        self.n1.write_config("version: v1\n")
        self.n1.wait_allocatable(self.kube, 8)

    def all_seen(self):
        self.seen.add(EXAMPLES / "values" / "edge.yaml")  # the chart's tests render it; its config is checked here
        config = yaml.safe_load((EXAMPLES / "values" / "edge.yaml").read_text())["config"]["map"]["default"]
        path = self.n1.state / "edge.yaml"
        path.write_text(config)
        self.n1.run(ROOT / "out/bin/gpulet", "config", "check", path)
        missed = set(EXAMPLES.rglob("*.yaml")) - set(CLAIM_EXAMPLES.glob("*.yaml")) - self.seen
        assert not missed, sorted(missed)
        self.remove_volume()
        for node in self.checks.nodes:
            node.stop_agent()
