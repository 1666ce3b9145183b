"""A HorizontalPodAutoscaler on GPU utilization: the shipped agents and metrics API, Kubernetes' own controllers."""
import http.client
import json
import ssl
import time

from lib.kube import ApiError, Kube, gpu_pod, until
from lib.kubectl import kubectl
from lib.node import DRIVER_ROOT, GPULET_SIM

NAME = "inference"
GROUP = "/apis/custom.metrics.k8s.io/v1beta2"
APISERVICE = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta2.custom.metrics.k8s.io"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
AUTOSCALERS = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
PORT = 8443
# The service's total load in percent of one GPU, and the autoscaler's replicas for each: a load of 140 makes one of
# two (100 is more than 50), three of two (70 is), and stays (47 is near enough).
TARGET, BUSY, QUIET = 50, 140, 20
SCALED_S = 60.0  # for replicas to come and run; the controllers look each second
STEADY_S = 5.0


def deployment():
    template = gpu_pod(NAME, 1)
    template["metadata"] = {"labels": {"app": NAME}}
    template["spec"]["restartPolicy"] = "Always"
    template["spec"]["containers"][0]["env"] = [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    return {"metadata": {"name": NAME}, "spec": {"replicas": 1, "selector": {"matchLabels": {"app": NAME}}, "template": template}}


def autoscaler():
    at_once = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 8, "periodSeconds": 1}]}
    return {"metadata": {"name": NAME}, "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME}, "minReplicas": 1, "maxReplicas": 8,
        "metrics": [{"type": "Pods", "pods": {"metric": {"name": "gpu_utilization"},
                                              "target": {"type": "AverageValue", "averageValue": str(TARGET)}}}],
        "behavior": {"scaleUp": at_once, "scaleDown": at_once}}}


class AutoscalingChecks:
    server_arguments = ["--interval=500ms", "--oldest=5s"]

    def __init__(self, checks, tag):
        self.checks, self.kube, self.tag = checks, checks.kube, tag
        self.loads = {}  # (node, index of its GPU) → percent

    def run(self):
        return [
            ("the manifests' agents and metrics API, without a missing right", self.deploy),
            ("discovery, and values by kubectl get --raw", self.values),
            ("unauthenticated and unauthorised requests are refused", self.refusals),
            (f"a load of {BUSY} % of a GPU: from 1 replica to 3, and no further", self.rise),
            (f"a load of {QUIET} %: back to 1", self.fall),
            ("a missing agent affects only its own Pods' values", self.agent_gone),
            ("everything is removed", self.end),
        ]

    def deploy(self):
        self.checks.load_images([self.tag])
        self.checks.apply_manifest(self.tag)
        kubectl("-n", "gpulet", "set", "env", "daemonset/gpulet", "GPULET_METRICS_INTERVAL=1s")
        kubectl("-n", "gpulet", "rollout", "status", "daemonset/gpulet", "--timeout=60s")
        for node in self.checks.nodes:
            node.nvml("gpus")
            node.wait_allocatable(self.kube, 8)
        manifest = (self.checks.root / "deploy/static/metrics-api.yaml").read_text()
        kubectl("apply", "-f", "-", text=manifest.replace("image: localhost/gpulet:0.1.0", f"image: localhost/gpulet:{self.tag}").replace(
            "            - metrics-api\n", "".join(f"            - {word}\n" for word in ["metrics-api", *self.server_arguments])))
        kubectl("-n", "gpulet", "rollout", "status", "deployment/gpulet-metrics-api", "--timeout=60s")
        kubectl("wait", "--for=condition=Available", "apiservice/v1beta2.custom.metrics.k8s.io", "--timeout=60s")
        self.checks.no_missing_right()
        for verb in ("get", "patch"):  # what the forecast has learned
            kubectl("-n", "gpulet", "auth", "can-i", verb, "configmaps/gpulet-metrics-api-record",
                    "--as=system:serviceaccount:gpulet:gpulet-metrics-api")

    def values(self):
        reported = json.loads(kubectl("get", "--raw", GROUP))
        assert [thing["name"] for thing in reported["resources"]] == [
            "pods/gpu_utilization", "pods/gpu_utilization_forecast", "pods/gpu_memory_used", "pods/gpu_memory_utilization",
            "pods/gpu_power_watts"], reported
        groups = {group["name"] for group in self.kube.get("/apis")["groups"]}
        assert "custom.metrics.k8s.io" in groups, groups
        self.kube.call("POST", DEPLOYMENTS, deployment())
        until("one replica runs", lambda: len(self.held()) == 1, SCALED_S)
        pod, (node, gpu) = next(iter(self.held().items()))
        self.sim(node, gpu, 37, "--memory", "1024")
        # Either server may respond, each with its last scrape.
        for what in ("*/gpu_utilization", f"{pod}/gpu_utilization"):
            until(f"{what} is 37 %", lambda what=what: self.asked(what, f"app={NAME}" if "*" in what else None) == {pod: "37"})
        until("its memory", lambda: int(self.asked("*/gpu_memory_used").get(pod, 0)) >= 1 << 30)
        assert set(self.asked("*/gpu_power_watts")) == {pod}
        assert self.asked("*/gpu_utilization", "app=other") == {}
        for path, status in (("absent/gpu_utilization", 404), (f"{pod}/no_metric", 404), ("*/gpu_utilization?labelSelector=%21%21", 400)):
            try:
                self.kube.get(f"{GROUP}/namespaces/default/pods/{path}")
            except ApiError as error:
                assert error.status == status, f"{path}: {error}"
            else:
                raise AssertionError(f"{path} was answered")
        self.sim(node, gpu, 0)

    def refusals(self):
        """At the server itself, and through the API server."""
        self.kube.call("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "stranger"}})
        token = self.kube.call("POST", "/api/v1/namespaces/default/serviceaccounts/stranger/token",
                               {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})["status"]["token"]
        path = f"{GROUP}/namespaces/default/pods/*/gpu_utilization"
        server = self.servers()[0]

        def status(fields):
            return self.asked_at(server, path, fields).status
        reported = {what: status(fields) for what, fields in {
            "nothing": {}, "a user's name": {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"},
            "a wrong token": {"Authorization": "Bearer guessed"}, "a stranger's token": {"Authorization": f"Bearer {token}"},
            "an admin's token": {"Authorization": f"Bearer {self.kube.token}"}}.items()}
        assert reported == {"nothing": 401, "a user's name": 401, "a wrong token": 401, "a stranger's token": 403, "an admin's token": 200}, reported
        stranger = Kube(self.checks.n1.state)
        stranger.token = token
        try:
            stranger.get(path)
        except ApiError as error:
            assert error.status == 403, error
        else:
            raise AssertionError("the API server let a stranger read")

    def rise(self):
        self.kube.call("POST", AUTOSCALERS, autoscaler())
        started = time.monotonic()
        self.until_replicas(3, BUSY)
        took = time.monotonic() - started
        steady = time.monotonic() + STEADY_S
        while time.monotonic() < steady:
            assert self.wanted(BUSY) == 3, f"after three: {self.wanted(BUSY)}; {self.status()}"
            time.sleep(0.3)
        print(f"   from 1 to 3 in {took:.1f} s; each at {sorted(self.asked('*/gpu_utilization').values())} %", flush=True)

    def fall(self):
        started = time.monotonic()
        self.until_replicas(1, QUIET)
        print(f"   from 3 to 1 in {time.monotonic() - started:.1f} s", flush=True)

    def agent_gone(self):
        """One Pod per node; the values of one stop and come back with its agent."""
        self.kube.call("DELETE", f"{AUTOSCALERS}/{NAME}")
        for node in self.checks.nodes:
            self.checks.run_pod(f"on-{node.name}", 1, node.name)
        both = {"on-n1", "on-n2"}
        # Each server scrapes on request: one may be ahead of the other.
        until("values of both, of each server", lambda: all(both <= reported for reported in self.reported_by_each()))
        self.choose_n2("false")

        def only_one():
            each = self.reported_by_each()
            assert all("on-n1" in reported for reported in each), f"n1's is missing too: {each}"
            return not any("on-n2" in reported for reported in each)
        until("only n1's value is left", only_one, SCALED_S)
        self.choose_n2(None)
        until("values of both again", lambda: all(both <= reported for reported in self.reported_by_each()), SCALED_S)

    def end(self):
        self.kube.call("DELETE", f"{DEPLOYMENTS}/{NAME}", {"propagationPolicy": "Background"})
        self.undeploy()
        self.kube.call("DELETE", "/api/v1/namespaces/default/serviceaccounts/stranger")
        self.checks.remove_pods()

    def undeploy(self):
        """Undoes deploy() and the loads."""
        kubectl("delete", "-f", str(self.checks.root / "deploy/static/metrics-api.yaml"))
        for node, gpu in self.loads:
            self.sim(node, gpu, 0)
        kubectl("delete", "--ignore-not-found", "-f", str(self.checks.root / "deploy/static/gpulet.yaml"))  # one may have had its namespace
        for node in self.checks.nodes:
            node.wait_allocatable(self.kube, 0)
        until("Kubernetes knows no such API", lambda: "custom.metrics.k8s.io" not in {
            group["name"] for group in self.kube.get("/apis")["groups"]}, SCALED_S)

    # Helpers of the checks.
    def servers(self):
        """Addresses of the metrics API's Pods."""
        return [pod["status"]["podIP"] for name, pod in self.checks.agent_pods().items() if name.startswith("gpulet-metrics-api")]

    @staticmethod
    def asked_at(server, path, fields):
        connection = http.client.HTTPSConnection(server, PORT, context=ssl._create_unverified_context(), timeout=10)
        connection.request("GET", path, headers=fields)
        return connection.getresponse()

    def reported_by_each(self):
        """Returns, per server, the Pods with a utilization value."""
        path = f"{GROUP}/namespaces/default/pods/*/gpu_utilization?labelSelector=test%3Dgpu"
        answers = [json.loads(self.asked_at(server, path, {"Authorization": f"Bearer {self.kube.token}"}).read()) for server in self.servers()]
        return [{item["describedObject"]["name"] for item in answer["items"]} for answer in answers]

    def choose_n2(self, value):
        """Whether the DaemonSet has an agent there."""
        self.kube.patch("/api/v1/nodes/n2", {"metadata": {"labels": {"nvidia.com/gpu.present": value}}})

    def sim(self, node, gpu, percent, *more):
        node.run(GPULET_SIM, "load", node.gpus[gpu]["index"], percent, *more, "--root", DRIVER_ROOT)

    def held(self, services=(NAME,)):
        """Running Pod of the Deployments → its node and its GPU."""
        running = {name for name, pod in self.kube.pods().items() if name.startswith(tuple(f"{service}-" for service in services)) and
                   pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]}
        return {pod: (node, ids[0]) for node in self.checks.nodes for pod, ids in node.resources.held().items() if pod in running}

    def asked(self, what, selector=None):
        """Pod → its value by kubectl."""
        query = f"?labelSelector={selector.replace('=', '%3D')}" if selector else ""
        try:
            reported = json.loads(kubectl("get", "--raw", f"{GROUP}/namespaces/default/pods/{what}{query}"))
        except AssertionError as error:
            if "NotFound" in str(error):
                return {}
            raise
        return {item["describedObject"]["name"]: item["value"] for item in reported["items"]}

    def status(self):
        return json.dumps(self.kube.get(f"{AUTOSCALERS}/{NAME}").get("status"))

    def wanted(self, total):
        """Spreads the load over the running replicas. Returns the autoscaler's desired replicas."""
        held = self.held()
        self.set_loads({place: min(100, round(total / len(held))) for place in held.values()})
        return self.kube.get(f"{AUTOSCALERS}/{NAME}").get("status", {}).get("desiredReplicas")

    def set_loads(self, loads):
        """The load of these GPUs; all others have none."""
        for node, gpu in {*self.loads, *loads}:
            percent = loads.get((node, gpu), 0)
            if percent != self.loads.get((node, gpu), 0):
                self.sim(node, gpu, percent)
        self.loads = loads

    def until_replicas(self, count, total):
        try:
            until(f"{count} replicas run", lambda: self.wanted(total) == count and len(self.held()) == count, SCALED_S, 0.3)
        except AssertionError as error:
            events = [event["message"] for event in self.kube.events_about(NAME)][-5:]
            raise AssertionError(f"{error}; {self.status()}; {events}") from None
