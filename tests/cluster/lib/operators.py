"""Unmodified third-party operators: the examples for them, and the chart's objects for the Prometheus operator."""
import base64
import gzip
import json
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import urllib.request

import yaml

from lib.chart import NAMESPACE, ChartChecks
from lib.examples import EXAMPLES, OPERATORS, SAY, STAY, ExamplesChecks, templates, with_stand_in
from lib.images import libraries_of
from lib.kube import ApiError, until
from lib.kubectl import kubectl
from lib.testbed import CACHE, TESTBED

IMAGE = "localhost/operators:1"
MONITORING = "monitoring"  # of Prometheus and its operator
LIMIT_S = 120.0
SAY_ENV = SAY + "env | grep -E '^(PET_|WORLD_SIZE|TF_CONFIG)'; true"
# Signals the MPI launcher that the test has seen its workers.
GO = "/tmp/go"
LAUNCH = f"{SAY}cat $OMPI_MCA_orte_default_hostfile; until [ -e {GO} ]; do sleep 0.2; done"
# The operator's default makes workers wait for the master's DNS name, and there is no DNS here.
NO_WAIT = "- name: init-pytorch\n  image: localhost/busybox:1\n  imagePullPolicy: Never\n  command: ['true']\n"
NOTEBOOK = ("kubeflow/notebook.yaml is left to a stand-in of its kind: the notebook controller's Go module has no release, and Go's checksum "
            "database did not know the commit that was asked for")


def module(operator):
    """The directory of its built source."""
    return pathlib.Path(subprocess.run([TESTBED, "module", operator], check=True, capture_output=True, text=True).stdout.strip())


def make_image(tar):
    """Builds an image of the programs and of Debian's Prometheus with its libraries and loader."""
    programs = pathlib.Path(subprocess.run([TESTBED, "bin", "operators"], check=True, capture_output=True, text=True).stdout.strip())
    prometheus = CACHE / "bin" / "prometheus"
    with tempfile.TemporaryDirectory() as work:
        root = pathlib.Path(work) / "root"
        files = {root / "bin" / path.name: path for path in [*programs.iterdir(), prometheus]}
        files.update({root / path.relative_to("/"): path for path in libraries_of(prometheus)})
        for place, path in files.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path.resolve(), place)
        for directory in ("tmp", "etc", "proc", "sys", "dev"):
            (root / directory).mkdir(exist_ok=True)
        image = f"{work}/oci:1"
        for command in (["init", "--layout", f"{work}/oci"], ["new", "--image", image], ["insert", "--image", image, root, "/"],
                        ["config", "--image", image, "--config.entrypoint", "/bin/prometheus", "--config.env", "PATH=/bin"]):
            subprocess.run(["umoci", *map(str, command)], check=True, capture_output=True)
        subprocess.run(["skopeo", "--insecure-policy", "copy", "-q", f"oci:{image}", f"oci-archive:{tar}:{IMAGE}"], check=True)


def differs(ours, real, path=""):
    """Differences of the test's CRD schema from the real one."""
    if real.get("x-kubernetes-preserve-unknown-fields") and "properties" not in real:
        return
    if ours.get("type") != real.get("type"):
        yield f"{path} is {real.get('type')}, not {ours.get('type')}"
    if set(ours.get("enum", ())) - set(real.get("enum", ours.get("enum", ()))):
        yield f"{path} may be {real['enum']}"
    for name, field in ours.get("properties", {}).items():
        found = real.get("properties", {}).get(name) or real.get("additionalProperties")
        if found is None:
            yield f"{path}.{name} is unknown"
        else:
            yield from differs(field, found, f"{path}.{name}")


def discovered(pod):
    """Prometheus' discovered labels of a gpulet Pod and of its headless Service."""
    meta = pod["metadata"]
    port = next(port for port in pod["spec"]["containers"][0]["ports"] if port["name"] == "http")
    words = {"namespace": meta["namespace"], "pod_name": meta["name"], "pod_node_name": pod["spec"]["nodeName"], "pod_phase": pod["status"]["phase"],
             "pod_container_name": pod["spec"]["containers"][0]["name"], "pod_container_port_name": port["name"], "service_name": "gpulet",
             "endpoint_port_name": port["name"], "endpointslice_port_name": port["name"]}
    for key, value in meta["labels"].items():
        key = re.sub(r"[^a-zA-Z0-9_]", "_", key)
        for of in ("pod", "service"):
            words.update({f"{of}_label_{key}": value, f"{of}_labelpresent_{key}": "true"})
    return {f"__meta_kubernetes_{word}": value for word, value in words.items()}


class Prometheus:
    """Debian's Prometheus with one configuration; a context manager."""

    def __init__(self, config):
        self.directory = tempfile.TemporaryDirectory()
        path = pathlib.Path(self.directory.name)
        (path / "config.yaml").write_text(yaml.safe_dump(config))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.log = open(path / "log", "wb")
        self.command = [CACHE / "bin" / "prometheus", f"--config.file={path / 'config.yaml'}", f"--storage.tsdb.path={path / 'data'}",
                        f"--web.listen-address=127.0.0.1:{self.port}"]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log)
        until("Prometheus answers", self.ready, LIMIT_S)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()
        self.directory.cleanup()

    def ready(self):
        assert self.process.poll() is None, (pathlib.Path(self.directory.name) / "log").read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def ask(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}", timeout=5) as response:
            return json.load(response)["data"]


class OperatorsChecks:
    def __init__(self, checks, tag):
        self.checks, self.kube, self.tag = checks, checks.kube, tag
        self.chart, self.examples = ChartChecks(checks, [tag], 0), ExamplesChecks(checks)

    def run(self):
        return [
            ("images of the agent and of the operators", self.images),
            ("the operators start", self.begin),
            ("the stand-in CRDs match the real ones", self.stand_ins),
            ("the chart's rules: accepted, and evaluated without an error", self.rules),
            ("the chart with a PodMonitor: accepted, and each node scraped", lambda: self.scraped("podMonitor")),
            ("the chart with a ServiceMonitor: accepted, and each node scraped", lambda: self.scraped("serviceMonitor")),
            ("kubeflow/pytorchjob.yaml", self.pytorch),
            ("kubeflow/tfjob.yaml", self.tensorflow),
            ("mpi-job.yaml", self.mpi),
            ("an example with a container by another name is refused", self.refused),
        ]

    # Helpers of the checks.
    def apply_operator(self, items, command, *arguments, volumes=()):
        """The operator's objects, with the program in the test's image and without probes."""
        for item in items:
            if item["kind"] != "Deployment":
                continue
            pod = item["spec"]["template"]["spec"]
            container = pod["containers"][0]
            container.update(image=IMAGE, imagePullPolicy="Never", command=[command], args=[*container.get("args", []), *arguments])
            container.pop("resources", None)
            if "readinessProbe" in container:
                container["readinessProbe"].update(initialDelaySeconds=1, periodSeconds=1)
            for volume, path in volumes:
                pod["volumes"].append(volume)
                container["volumeMounts"].append({"name": volume["name"], "mountPath": path})
        items.sort(key=lambda item: item["kind"] != "Namespace")
        kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", items=items)
        return next((item["metadata"].get("namespace", "default"), item["metadata"]["name"]) for item in items if item["kind"] == "Deployment")

    def kustomized(self, operator):
        text = kubectl("kustomize", module(operator) / "manifests" / "overlays" / "standalone")
        return [item for item in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if item]

    # The checks.
    def images(self):
        self.checks.load_images([self.tag])
        with tempfile.TemporaryDirectory() as work:
            make_image(f"{work}/operators.tar")
            subprocess.run([TESTBED, "image", f"{work}/operators.tar"], check=True, capture_output=True, text=True)

    def begin(self):
        self.checks.cdi.hooks.mkdir(exist_ok=True)
        self.examples.volume()
        print(f"   {NOTEBOOK}", flush=True)
        # Its MPIJob has the same name as mpi-operator's, in an older version: a cluster can have only one.
        training = [item for item in self.kustomized("training-operator") if item["metadata"]["name"] != "mpijobs.kubeflow.org"]
        template = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "init-container", "namespace": "kubeflow"},
                    "data": {"initContainer.yaml": NO_WAIT}}
        mounted = ({"name": "init-container", "configMap": {"name": "init-container"}}, "/etc/config")
        source = module("prometheus-operator") / "example"
        kubectl("apply", "--server-side", "-f", source / "prometheus-operator-crd")
        rights = [yaml.safe_load(path.read_text()) for path in sorted((source / "rbac/prometheus-operator").glob("*.yaml"))]
        rights = json.loads(json.dumps([item for item in rights if item["kind"] != "ServiceMonitor"]).replace('"default"', f'"{MONITORING}"'))
        for namespace in (NAMESPACE, MONITORING):
            kubectl("create", "namespace", namespace)
        deployments = [
            self.apply_operator([template, *training], "/bin/training-operator", "--enable-scheme=tfjob", "--enable-scheme=pytorchjob", volumes=[mounted]),
            self.apply_operator(self.kustomized("mpi-operator"), "/bin/mpi-operator"),
            self.apply_operator(rights, "/bin/prometheus-operator", f"--prometheus-config-reloader={IMAGE}"),
        ]
        kubectl("apply", "-f", "-", items=self.prometheus(source))
        for namespace, name in deployments:
            kubectl("-n", namespace, "rollout", "status", f"deployment/{name}", f"--timeout={LIMIT_S:.0f}s")

    @staticmethod
    def prometheus(source):
        """A Prometheus that selects every monitor and rule, with the permissions of the operator's example."""
        role = yaml.safe_load((source / "rbac/prometheus/prometheus-cluster-role.yaml").read_text())
        spec = {"serviceAccountName": "prometheus", "image": IMAGE, "version": "v2.42.0", "scrapeInterval": "2s", "evaluationInterval": "2s",
                "securityContext": {"runAsUser": 65534, "runAsNonRoot": True, "fsGroup": 65534},
                **{f"{kind}{what}": {} for kind in ("podMonitor", "serviceMonitor", "rule") for what in ("Selector", "NamespaceSelector")}}
        return [role,
                {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "prometheus", "namespace": MONITORING}},
                {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "prometheus"},
                 "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role["metadata"]["name"]},
                 "subjects": [{"kind": "ServiceAccount", "name": "prometheus", "namespace": MONITORING}]},
                {"apiVersion": "monitoring.coreos.com/v1", "kind": "Prometheus", "metadata": {"name": "all", "namespace": MONITORING}, "spec": spec}]

    def stand_ins(self):
        wrong = []
        for kind in OPERATORS:
            name = kind["metadata"]["name"]
            if name.startswith("notebooks."):
                continue
            real = json.loads(kubectl("get", "crd", name, "-o", "json"))["spec"]
            ours = kind["spec"]
            version = next(version for version in real["versions"] if version["name"] == ours["versions"][0]["name"])
            assert version["served"] and real["names"]["kind"] == ours["names"]["kind"] and real["scope"] == ours["scope"], name
            wrong += differs(ours["versions"][0]["schema"]["openAPIV3Schema"], version["schema"]["openAPIV3Schema"], name)
        assert not wrong, wrong

    def rules(self):
        """Checks rules in the operator's Prometheus. Debian's build has no Kubernetes discovery, so it reads rules only."""
        self.chart.apply(["install"], self.chart.testbeds(self.tag, crds={"install": True}, prometheusRule={"enabled": True}))
        self.chart.wait_agents(self.tag)
        wanted = yaml.safe_load((self.checks.root / "deploy/prometheus/prometheusrule.yaml").read_text())["spec"]["groups"]

        def all_evaluated():
            try:
                reported = self.kube.get(f"/api/v1/namespaces/{MONITORING}/pods/prometheus-all-0:9090/proxy/api/v1/rules")["data"]
            except ApiError as error:
                if error.status not in (404, 503):  # its Pod starts
                    raise
                return False
            groups = {group["name"]: group["rules"] for group in reported["groups"]}
            rules = [rule for group in wanted for rule in groups.get(group["name"], [])]
            wrong = [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] == "err"]
            assert not wrong, wrong
            return len(rules) == sum(len(group["rules"]) for group in wanted) and all(rule["health"] == "ok" for rule in rules)
        until("each rule is evaluated", all_evaluated, LIMIT_S)

    def scraped(self, monitor):
        """Scrapes with the operator's job of this monitor, over the agents as discovery would name them."""
        values = self.chart.testbeds(self.tag, crds={"install": True}, prometheusRule={"enabled": True}, **{monitor: {"enabled": True, "interval": "2s"}})
        self.chart.apply(["upgrade"], values)
        name = f"{monitor}/{NAMESPACE}/gpulet/0"

        def generated():
            data = self.kube.get(f"/api/v1/namespaces/{MONITORING}/secrets/prometheus-all")["data"]["prometheus.yaml.gz"]
            config = gzip.decompress(base64.b64decode(data)).decode().replace("$(SHARD)", "0")
            jobs = {job["job_name"]: job for job in yaml.safe_load(config)["scrape_configs"]}
            return jobs[name] if set(jobs) == {name} else None
        job = until(f"the operator's Secret has the job {name} alone", generated, LIMIT_S)
        assert job["scrape_interval"] == "2s" and "scrape_timeout" not in job, job  # a longer one is refused
        [discovery] = job.pop("kubernetes_sd_configs")
        assert discovery["namespaces"]["names"] == [NAMESPACE], discovery
        job["static_configs"] = [{"targets": [f"{pod['status']['podIP']}:9400"], "labels": discovered(pod)} for pod in self.kube.pods(NAMESPACE).values()]
        with Prometheus({"scrape_configs": [job]}) as prometheus:
            def targets():
                active = prometheus.ask("targets?state=active")["activeTargets"]
                return [target["health"] for target in active] == ["up", "up"] and active
            active = until(f"Prometheus scrapes both nodes by {name}", targets, LIMIT_S)
            labels = [{key: target["labels"].get(key) for key in ("job", "node")} for target in active]
            assert sorted(label["node"] for label in labels) == ["n1", "n2"] and all(label["job"] == "gpulet" for label in labels), labels
            strange = {label for target in active for label in target["labels"]} - {"job", "node", "instance"}
            assert not strange, f"labels that push the metrics' own aside: {strange}"

            def per_node():
                result = prometheus.ask("query?query=count%20by(node)(DCGM_FI_DEV_GPU_TEMP)")["result"]
                return {series["metric"]["node"]: int(series["value"][1]) for series in result} == {"n1": 8, "n2": 8}
            until("eight GPUs of each node in Prometheus", per_node, LIMIT_S)

    def job(self, name, scripts):
        """Applies the example strictly with `scripts` for its roles' programs and checks each Pod's devices. Returns (objects, Pods)."""
        items = with_stand_in(self.examples.read(name))
        for item in items:
            for role, template, _ in templates(item):
                for container in template["spec"]["containers"]:
                    container["command"] = ["/bin/sh", "-c", scripts[role]]
        return items, self.examples.apply(items)

    def succeeded(self, item):
        group, plural = item["apiVersion"], f"{item['kind'].lower()}s"
        path = f"/apis/{group}/namespaces/default/{plural}/{item['metadata']['name']}"

        def is_so():
            conditions = self.kube.get(path).get("status", {}).get("conditions", [])
            return any(condition["type"] == "Succeeded" and condition["status"] == "True" for condition in conditions)
        until(f"{item['metadata']['name']} has succeeded", is_so, LIMIT_S)

    def said(self, pod):
        return self.kube.log(pod)

    def pytorch(self):
        items, pods = self.job("kubeflow/pytorchjob", {"master": SAY_ENV, "worker": SAY_ENV})
        self.succeeded(items[0])
        names = sorted(name for _, name in pods)
        assert names == ["pytorch-two-nodes-master-0", "pytorch-two-nodes-worker-0"], names
        for rank, name in enumerate(names):
            said = dict(line.partition("=")[::2] for line in self.said(name).splitlines() if line.startswith("PET_"))
            reported = {key: said.get(f"PET_{key}") for key in ("NPROC_PER_NODE", "NNODES", "NODE_RANK", "MASTER_ADDR")}
            assert reported == {"NPROC_PER_NODE": "2", "NNODES": "2", "NODE_RANK": str(rank), "MASTER_ADDR": names[0]}, f"torchrun of {name} is reported {said}"
        self.examples.take_away(items)

    def tensorflow(self):
        items, pods = self.job("kubeflow/tfjob", {"chief": SAY_ENV, "worker": SAY_ENV})
        self.succeeded(items[0])
        for _, name in pods:
            line = next(line for line in self.said(name).splitlines() if line.startswith("TF_CONFIG="))
            config = json.loads(line.partition("=")[2])
            sizes = {role: len(members) for role, members in config["cluster"].items()}
            assert sizes == {"chief": 1, "worker": 2}, config
        self.examples.take_away(items)

    def mpi(self):
        items, pods = self.job("mpi-job", {"launcher": LAUNCH, "worker": STAY})
        launcher = next(name for _, name in pods if "launcher" in name)
        hosts = [line.split() for line in self.said(launcher).splitlines() if "slots" in line]
        assert hosts == [[f"hpc-worker-{number}.hpc.default.svc", "slots=4"] for number in range(2)], hosts
        kubectl("exec", launcher, "--", "touch", GO)
        self.succeeded(items[0])
        until("cleanPodPolicy takes the workers away", lambda: not any("worker" in name for name in self.kube.pods()), LIMIT_S)
        self.examples.take_away(items)

    def refused(self):
        item = yaml.safe_load((EXAMPLES / "kubeflow/pytorchjob.yaml").read_text())
        item["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["name"] = "trainer"
        try:
            kubectl("apply", "-f", "-", items=[item])
        except AssertionError as error:
            assert "container with name pytorch" in str(error), error
        else:
            raise AssertionError("an operator that looks for containers by name takes any")
        self.examples.remove_volume()
