"""The chart's NetworkPolicy of the agents, enforced by kube-router: who reaches their port, and who does not."""
import subprocess

from lib.kube import Timeout, gpu_pod, until
from lib.kubectl import kubectl
from lib.testbed import TESTBED

NAMESPACE = "gpulet"
PORT = 9400
TIMEOUT_S = 2
LIMIT_S = 60.0
REFUSED, TIMED_OUT = 7, 28  # exit codes of curl
PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}


class NetworkPolicyCheck:
    """`apply` upgrades the release with NetworkPolicies or without."""

    def __init__(self, kube, agent_node, other_node, apply):
        self.kube, self.apply = kube, apply
        # Name → (node, namespace, labels). The policy lets Prometheus in any namespace and every Pod of the agents' namespace in.
        self.allowed = {"prometheus": (other_node, "default", PROMETHEUS), "neighbour": (agent_node, NAMESPACE, {})}
        self.forbidden = {"stranger-near": (agent_node, "default", {}), "stranger-far": (other_node, "default", {})}
        self.clients = {**self.allowed, **self.forbidden}
        self.nodes = (agent_node, other_node)
        self.url = ""

    def run(self):
        everybody = dict.fromkeys(self.clients, True)
        enforced = {name: name in self.allowed for name in self.clients}
        for name, client in self.clients.items():
            self.create_client(name, *client)
        self.url = f"http://{self.agent_address()}:{PORT}/metrics"
        self.wait_answers("a policy that nobody enforces", everybody)
        self.testbed("policies", "start")
        try:
            self.wait_answers("the policy, enforced", enforced)
            kubectl("-n", NAMESPACE, "rollout", "status", "daemonset/gpulet", "--timeout=60s")  # the kubelet's probes
            self.apply(False)
            self.wait_answers("no policy", everybody)
            self.apply(True)
            self.wait_answers("the policy again", enforced)
        finally:
            # Other checks reach agents from outside of the cluster, which the policy forbids.
            self.testbed("policies", "stop")
        self.wait_answers("the enforcer has ended", everybody)
        rules = [line for node in self.nodes for line in node.run("iptables-save").splitlines() if "KUBE-ROUTER" in line]
        assert not rules, f"left behind: {rules}"
        for name, (_, namespace, _) in self.clients.items():
            self.kube.delete_pod(name, namespace, 0)

    # Helpers.
    def testbed(self, *arguments):
        subprocess.run([TESTBED, *arguments], check=True, capture_output=True, text=True)

    def create_client(self, name, node, namespace, labels):
        pod = gpu_pod(name, 0, node.name)
        pod["metadata"]["labels"] = labels
        del pod["spec"]["hostNetwork"]
        self.kube.call("POST", f"/api/v1/namespaces/{namespace}/pods", pod)
        until(f"{name} runs", lambda: name in node.environments(), LIMIT_S)

    def agent_address(self):
        [agent] = [pod for pod in self.kube.pods(NAMESPACE).values() if pod["metadata"].get("labels", {}).get("app.kubernetes.io/name") == "gpulet"]
        assert not agent["spec"].get("hostNetwork"), "a NetworkPolicy does not apply to Pods on the network of their node"
        return agent["status"]["podIP"]

    def reaches(self, name):
        """Whether the agent answers a request from the network namespace of this Pod."""
        pid, _ = self.clients[name][0].environments()[name]
        done = subprocess.run(["nsenter", "--net", "--target", pid, "curl", "-sSf", "-o", "/dev/null", "--max-time", str(TIMEOUT_S), self.url],
                              capture_output=True, text=True, check=False)
        assert done.returncode in (0, REFUSED, TIMED_OUT), f"{name}: {done.stderr}"
        return done.returncode == 0

    def wait_answers(self, when, wanted):
        """The enforcer follows the API server, on each node by itself."""
        seen = {}

        def as_wanted():
            seen.update({name: self.reaches(name) for name in wanted})
            return seen == wanted
        try:
            until(f"{when}: who reaches the agent is {wanted}", as_wanted, LIMIT_S)
        except Timeout as error:
            raise Timeout(f"{error}; {seen}") from None
