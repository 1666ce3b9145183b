"""One agent's token against the cluster, with every right that RBAC can give: the admission policies bind it to its own node."""
import copy

from lib.kube import ApiError, gpu_pod, until

NAMESPACE = "gpulet"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
EVENTS = "/api/v1/namespaces/default/events"
STOLEN = "gpulet-stolen"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
FAULT = {"key": "gpulet.io/gpu-fault", "value": "lost", "effect": "NoSchedule"}


class OwnNodeCheck:
    def __init__(self, kube, own, other):
        self.kube, self.own, self.other = kube, own, other

    def run(self):
        agent = next(pod for pod in self.kube.pods(NAMESPACE).values() if pod["spec"].get("nodeName") == self.own and "cleanup" not in pod["metadata"]["name"])
        self.holder = copy.copy(self.kube)
        self.holder.connection, self.holder.token = None, self.token_of(agent)
        self.kube.call("POST", BINDINGS, {
            "metadata": {"name": STOLEN}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": agent["spec"]["serviceAccountName"], "namespace": NAMESPACE}]})
        try:
            until("the role is in effect", self.may_list_secrets)
            assert not self.kube.pods(), "the next check needs a namespace without Pods"
            self.permits("POST", EVENTS, self.event(self.node_reference(self.own)))
            self.pods = {node: self.start_pod(node) for node in (self.own, self.other)}
            self.writes_nodes()
            self.writes_objects()
            self.writes_events()
            self.writes_pods()
        finally:
            self.kube.call("DELETE", f"{BINDINGS}/{STOLEN}")
            for name in self.kube.pods():
                self.kube.delete_pod(name, grace_s=0)
            until("the Pods are gone", lambda: not self.kube.pods())

    def token_of(self, agent):
        name = agent["spec"]["serviceAccountName"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": agent["metadata"]["name"], "uid": agent["metadata"]["uid"]}
        return self.kube.call("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{name}/token",
                              {"spec": {"expirationSeconds": 600, "boundObjectRef": bound}})["status"]["token"]

    def may_list_secrets(self):
        try:
            return self.holder.get("/api/v1/secrets") is not None
        except ApiError:
            return False

    def start_pod(self, node):
        pod = gpu_pod(f"held-{node}", 0, script="trap 'exit 0' TERM; sleep 1000 & wait")
        pod["spec"]["nodeName"] = node
        return self.kube.create_pod(pod)

    def call(self, method, path, body, kind="application/json"):
        return self.holder.call(method, path + "?dryRun=All", body, kind)

    def permits(self, *request):
        self.call(*request)

    def refuses(self, why, *request):
        try:
            self.call(*request)
        except ApiError as error:
            assert error.status in (403, 422) and why in str(error), f"{request}: {error}"
            return
        raise AssertionError(f"not refused: {request}")

    def writes_nodes(self):
        own, other = f"/api/v1/nodes/{self.own}", f"/api/v1/nodes/{self.other}"
        node = self.kube.get(own)
        taints = node["spec"].get("taints", [])
        condition = {"type": "GpuHealthy", "status": "False", "reason": "Fault", "message": "GPU 0", "lastTransitionTime": "2026-01-02T03:04:05Z"}
        self.permits("PATCH", own, {"metadata": {"labels": {"nvidia.com/gpu.count": "7", "gpulet.io/x": "y"}}}, MERGE)
        self.permits("PATCH", own, {"spec": {"taints": [*taints, FAULT]}}, MERGE)
        self.permits("PATCH", own + "/status", {"status": {"conditions": [condition]}}, STRATEGIC)
        self.permits("PATCH", own + "/status", {"status": {"allocatable": {"nvidia.com/gpu": "0"}}}, STRATEGIC)

        not_own = "its own Node only"
        self.refuses(not_own, "PATCH", other, {"metadata": {"labels": {"nvidia.com/gpu.count": "7"}}}, MERGE)
        self.refuses(not_own, "PATCH", other, {"spec": {"taints": [FAULT]}}, MERGE)
        self.refuses(not_own, "PATCH", other, {"spec": {"unschedulable": True}}, MERGE)
        self.refuses(not_own, "PATCH", other + "/status", {"status": {"conditions": [condition]}}, STRATEGIC)
        self.refuses(not_own, "PATCH", other + "/status", {"status": {"allocatable": {"nvidia.com/gpu": "0"}}}, STRATEGIC)
        self.refuses("cordon", "PATCH", own, {"spec": {"unschedulable": True}}, MERGE)
        self.refuses("labels", "PATCH", own, {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}, MERGE)
        self.refuses("labels", "PATCH", own, {"metadata": {"labels": {"kubernetes.io/hostname": None}}}, MERGE)
        self.refuses("annotations", "PATCH", own, {"metadata": {"annotations": {"gpulet.io/a": "b"}}}, MERGE)
        self.refuses("finalizers", "PATCH", own, {"metadata": {"finalizers": ["gpulet.io/stays"]}}, MERGE)
        self.refuses("taints", "PATCH", own, {"spec": {"taints": [*taints, {**FAULT, "key": "node.kubernetes.io/not-ready"}]}}, MERGE)
        for status, why in (({"conditions": [{**condition, "type": "Ready"}]}, "GpuHealthy"),
                            ({"allocatable": {"cpu": "0"}}, "allocatable"),
                            ({"allocatable": {"nvidia.com/gpu": "1k"}}, "allocatable"),
                            ({"capacity": {"nvidia.com/gpu": "0"}}, "allocatable"),
                            ({"addresses": [{"type": "InternalIP", "address": "10.77.0.99"}]}, "kubelet"),
                            ({"nodeInfo": {"kubeletVersion": "v9"}}, "kubelet")):
            self.refuses(why, "PATCH", own + "/status", {"status": status}, STRATEGIC)

    def writes_objects(self):
        nodes = "/apis/gpulet.io/v1alpha1/gpunodes"
        self.refuses("publish its own node", "POST", nodes, {"apiVersion": "gpulet.io/v1alpha1", "kind": "GpuNode", "metadata": {"name": self.other}})

    def event(self, about, host=None, **more):
        return {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "stolen", "namespace": "default"}, "involvedObject": about,
                "type": "Warning", "reason": "GpuFault", "message": "x", "source": {"component": "gpulet", "host": host or self.own},
                "reportingComponent": "gpulet", "reportingInstance": host or self.own, **more}

    @staticmethod
    def node_reference(name):
        return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}

    def pod_reference(self, node):
        pod = self.pods[node]["metadata"]
        return {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": pod["name"], "uid": pod["uid"]}

    def writes_events(self):
        own, other = self.node_reference(self.own), self.node_reference(self.other)
        self.permits("POST", EVENTS, self.event(own))
        self.permits("POST", EVENTS, self.event(self.pod_reference(self.own)))
        self.refuses("its own Node", "POST", EVENTS, self.event(other))
        self.refuses("of its own node", "POST", EVENTS, self.event(own, host=self.other))
        self.refuses("own Node and the Pods", "POST", EVENTS, self.event({"apiVersion": "v1", "kind": "Secret", "name": "x", "namespace": "default"}))
        self.refuses("Pods of its own node", "POST", EVENTS, self.event(self.pod_reference(self.other)))

    def writes_pods(self):
        for node, attempt in ((self.own, self.permits), (self.other, lambda *request: self.refuses("its own node", *request))):
            path = f"/api/v1/namespaces/default/pods/held-{node}"
            attempt("POST", path + "/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": f"held-{node}", "namespace": "default"}})
            attempt("PATCH", path, {"metadata": {"annotations": {"gpulet.io/gpu-fault": "GPU 0"}}}, MERGE)
        own = f"/api/v1/namespaces/default/pods/held-{self.own}"
        self.refuses("annotations of gpulet.io", "PATCH", own, {"metadata": {"annotations": {"a": "b"}}}, MERGE)
        self.refuses("annotations of gpulet.io", "PATCH", own, {"metadata": {"labels": {"app": "x"}}}, MERGE)
        self.refuses("annotations of gpulet.io", "PATCH", own,
                     {"spec": {"containers": [{"name": self.pods[self.own]["spec"]["containers"][0]["name"], "image": "other"}]}}, STRATEGIC)
