"""A node that starts: no Pod before its GPUs, and Pods that were rejected before the agent was there. The agent has the rights of the
chart and the token of a Pod of its node, so that the admission policies count."""
import json
import subprocess
import tempfile

from lib.kube import ApiError, Watch, gpu_pod, token_kubeconfig, until
from lib.kubectl import kubectl, objects

GPU = "nvidia.com/gpu"
TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/gpulet"  # not below gpulet.io/: only the chart's value allows it
NAMESPACE, RELEASE = "gpulet-startup", "startup"
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
VALUES = {"gpulet": {"startupTaint": TAINT, "faults": {"deleteRejectedPods": True}}}
NODES = "/api/v1/nodes"
OWNERS = "/api/v1/namespaces/default/configmaps"
REASONS = {"UnexpectedAdmissionError", f"OutOf{GPU}"}


class StartupChecks:
    def __init__(self, checks):
        self.checks, self.kube, self.node = checks, checks.kube, checks.n2
        self.config = self.node.state / self.node.name / "kubelet.yaml"
        self.kubeconfig = self.node.state / "startup.kubeconfig"

    def run(self):
        return [
            ("a node registers with the startup taint, and its agent gets a token", self.register),
            ("a Pod comes only when its GPUs are allocatable", self.taint_goes),
            ("the token cannot set the taint, nor delete a Pod that runs", self.bound),
            ("a rejected Pod with a controller is deleted, one without stays", self.rejected),
        ]

    # Helpers of the checks.
    def taints(self):
        return {taint["key"] for taint in self.kube.get(f"{NODES}/{self.node.name}")["spec"].get("taints", [])}

    def is_registered(self):
        try:
            return TAINT in self.taints()
        except ApiError:
            return False

    def rights(self):
        """The chart's objects for its agents' rights."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(VALUES, file)
            file.flush()
            text = subprocess.run(["helm", "template", RELEASE, self.checks.root / "deploy/helm/gpulet", "--namespace", NAMESPACE, "--kube-version", "1.31",
                                   "--values", file.name], check=True, capture_output=True, text=True).stdout
        return [item for item in objects(kubectl("create", "--dry-run=client", "-o", "json", "-f", "-", text=text)) if item["kind"] in RIGHTS]

    def start_agent(self):
        self.node.start_agent(env={"KUBECONFIG": str(self.kubeconfig), "GPULET_STARTUP_TAINT": TAINT, "GPULET_FAULTS_DELETE_REJECTED_PODS": "true"})

    def refused(self, why, *command):
        done = subprocess.run(["kubectl", "--kubeconfig", self.kubeconfig, *command, "--dry-run=server"], capture_output=True, text=True, check=False)
        assert done.returncode != 0 and why in done.stderr, done

    # The checks.
    def register(self):
        text = self.config.read_text()
        self.node.testbed("kubelet", self.node.number, "stop")
        self.config.write_text(text + f"registerWithTaints: [{{key: {TAINT}, effect: NoSchedule}}]\n")
        try:
            self.kube.call("DELETE", f"{NODES}/{self.node.name}")
            self.node.testbed("kubelet", self.node.number, "start")
            until("the node has the taint", self.is_registered)
        finally:
            self.config.write_text(text)
        kubectl("create", "namespace", NAMESPACE)
        self.objects = self.rights()
        kubectl("apply", "-f", "-", items=self.objects)
        account = next(item["metadata"]["name"] for item in self.objects if item["kind"] == "ServiceAccount")
        pod = gpu_pod("agent", 0)
        pod["spec"].update(nodeName=self.node.name, serviceAccountName=account)
        until("the service account is there", lambda: account in [item["metadata"]["name"] for item in self.kube.get(
            f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts")["items"]])
        pod = self.kube.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod)
        token = self.kube.call("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token", {"spec": {
            "expirationSeconds": 3600, "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "agent", "uid": pod["metadata"]["uid"]}}})
        self.kubeconfig.write_text(token_kubeconfig(self.node.state, token["status"]["token"]))

    def taint_goes(self):
        self.kube.create_pod(gpu_pod("waits", 1, self.node.name))
        with Watch(self.kube, NODES) as watch:
            self.start_agent()
            self.node.wait_allocatable(self.kube, 8)
            until("the taint is gone", lambda: TAINT not in self.taints())
            seen = [node for _, _, node in watch.seen if node["metadata"]["name"] == self.node.name]
        free = [node["status"]["allocatable"].get(GPU) for node in seen if TAINT not in [taint["key"] for taint in node["spec"].get("taints", [])]]
        assert set(free) <= {"8"}, f"without the taint, allocatable was {free}"
        self.checks.wait_running("waits")
        until("an event tells of it", lambda: any(event["reason"] == "StartupTaintRemoved" for event in self.kube.events_about(self.node.name)))
        log = (self.node.state / "log" / f"{self.node.name}-agent").read_text(errors="replace")
        assert "the startup taint stays" in log, "the log does not say why it stays"

    def bound(self):
        taints = self.kube.get(f"{NODES}/{self.node.name}")["spec"].get("taints", [])
        change = {"spec": {"taints": [*taints, {"key": TAINT, "effect": "NoSchedule"}]}}
        self.refused("and not set it", "patch", "node", self.node.name, "--type=merge", "-p", json.dumps(change))
        self.refused("rejected Pods of its own node only", "delete", "pod", "waits", "--wait=false")
        self.checks.remove_pods()
        self.checks.stop_agent_of(self.node)

    def rejected(self):
        owner = self.kube.call("POST", OWNERS, {"metadata": {"name": "owner"}})["metadata"]
        self.node.restart_kubelet()
        for name in ("owned", "bare"):
            pod = gpu_pod(name, 1)
            pod["spec"]["nodeName"] = self.node.name
            if name == "owned":
                pod["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"], "controller": True}]
            self.kube.create_pod(pod)
        for name in ("owned", "bare"):
            status = until(f"{name} is rejected", lambda: (status := self.kube.pod(name)["status"])["phase"] == "Failed" and status)
            assert status["reason"] in REASONS, status
        self.start_agent()
        until("the owned Pod is deleted", lambda: list(self.kube.pods()) == ["bare"], 60)
        until("an event tells of it", lambda: any(event["reason"] == "RejectedPodDeleted" for event in self.kube.events_about("owned")))
        until("the page counts it", lambda: "gpulet_rejected_pods_deleted_total 1\n" in self.node.metrics())
        assert not self.taints(), f"an agent that starts again set a taint: {self.taints()}"
        self.end()

    def end(self):
        self.checks.remove_pods()
        self.kube.call("DELETE", f"{OWNERS}/owner")
        self.checks.stop_agent_of(self.node)
        kubectl("delete", "-f", "-", items=self.objects)
        kubectl("delete", "namespace", NAMESPACE)
