#!/usr/bin/env python3
"""GPU nodes that come and go with the Pods that need them: `make node-autoscaling`.

Karpenter with its kwok provider starts and removes nodes of 8 GPUs; the real kube-scheduler with `gpulet scheduler` as its extender places the
Pods; each node has a real agent on the simulated driver, as its DaemonSet would start one. Nothing but a Node without GPUs is there at first.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import urllib.request

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from lib.kube import ApiError, Kube, Watch, gpu_pod, is_ready, until  # noqa: E402
from lib.kube_scheduler import configuration  # noqa: E402
from lib.kubectl import kubectl  # noqa: E402
from lib.testbed import TESTBED, kwok_cluster  # noqa: E402
from outcome import report_checks, same  # noqa: E402

ROOT = HERE.parent.parent
BIN = ROOT / "out" / "bin"
GPU, GPUS, PORT, PROBES, ROUNDS = "nvidia.com/gpu", 8, 9410, 18081, 20
NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/default/pods"
GPU_NODES, CLAIMS = "/apis/gpulet.io/v1alpha1/gpunodes", "/apis/karpenter.sh/v1/nodeclaims"
STARTED_S, GONE_S = 90, 90
TAINT = {"key": "gpulet.io/not-ready", "effect": "NoSchedule"}  # until a node's agent removes it
OUTLIVES_S = 3.0  # that an agent's process lives longer than its Node
NODE_POOL = {
    "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "gpus"},
    "spec": {"limits": {GPU: "80"}, "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "1s", "budgets": [{"nodes": "100%"}]},
             "template": {"spec": {"expireAfter": "Never", "startupTaints": [TAINT], "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
                                   "requirements": [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]}}}}
NODE_CLASS = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"},
              "spec": {"nodeRegistrationDelay": "1s"}}


def instance_type(name, price, gpus):
    resources = {"cpu": "128", "memory": "1Ti", "ephemeral-storage": "1Ti", "pods": "110", **({GPU: str(gpus)} if gpus else {})}
    place = [{"key": key, "operator": "In", "values": [value]}
             for key, value in (("karpenter.sh/capacity-type", "on-demand"), ("topology.kubernetes.io/zone", "a"))]
    return {"name": name, "architecture": "amd64", "operatingSystems": ["linux"], "resources": resources,
            "offerings": [{"Price": price, "Available": True, "Requirements": place}]}


class Agents(threading.Thread):
    """A DaemonSet's part: an agent for each Node with GPUs, which ends a little after its Node."""

    def __init__(self, state, start):
        super().__init__(daemon=True)
        self.kube, self.start_agent, self.agents, self.over, self.error = Kube(state), start, {}, threading.Event(), None

    def run(self):
        try:
            while not self.over.wait(0.3):
                names = {node["metadata"]["name"] for node in gpu_nodes(self.kube)}
                for name in names - set(self.agents):
                    self.agents[name] = [self.start_agent(name), None]
                for name in set(self.agents) - names:
                    self.end_later(name)
        except Exception as error:  # a thread that stops silently would pass
            self.error = error
        finally:
            for process, _ in self.agents.values():
                process.kill()
                process.wait()

    def end_later(self, name):
        process, timer = self.agents[name]
        if timer is None:
            self.agents[name][1] = timer = threading.Timer(OUTLIVES_S, process.terminate)
            timer.start()
        elif process.poll() is not None:
            del self.agents[name]


def gpu_nodes(kube):
    return [node for node in kube.get(NODES)["items"] if int(node["status"].get("allocatable", {}).get(GPU, "0"))]


class NodeAutoscaling:
    def __init__(self, state, rounds):
        self.state, self.rounds, self.kube = state, rounds, Kube(state)
        self.kubeconfig, self.driver, self.processes, self.agents = state / "kubeconfig", state / "driver", [], None

    def checks(self):
        return [
            ("Karpenter, kube-scheduler and the extender start; no node has a GPU", self.begin),
            ("a Pod of four GPUs: one node, which its agent publishes", self.first_pod),
            ("two Pods of two GPUs: the same node, no other", self.more_pods),
            ("three Pods of eight GPUs: three more nodes", self.whole_nodes),
            ("a node is drained: its Pod runs on another one", self.drained),
            ("without Pods the nodes go, and nothing is left of them", self.down),
            (f"one Pod starts exactly one node, {self.rounds} of {self.rounds} times", self.one_each),
        ]

    def begin(self):
        text = (ROOT / "deploy/static/scheduler.yaml").read_text()
        kind = next(part for part in text.split("\n---\n") if "kind: CustomResourceDefinition" in part)
        kubectl("apply", "-f", "-", text=kind)
        source = pathlib.Path(self.testbed("module", "karpenter"))
        kubectl("apply", "--server-side", "-f", source / "kwok" / "charts" / "crds", "-f", source / "kwok" / "apis" / "crds")
        kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        subprocess.run([BIN / "gpulet-sim", "up", "hgx-h100", "--root", self.driver, "--no-device-nodes"], check=True, stdout=subprocess.DEVNULL)
        os.kill(int((self.state / "pid" / "cp-kube-scheduler").read_text()), 15)
        configured = self.state / "kube-scheduler.yaml"
        configured.write_text(configuration(self.kubeconfig, PORT, backoff=True))
        self.start("extender", BIN / "gpulet", "scheduler", f"--listen=127.0.0.1:{PORT}", "--shutdown-seconds=0")
        self.start("kube-scheduler", "kube-scheduler", f"--config={configured}")
        types = self.state / "instance-types.json"
        types.write_text(json.dumps([instance_type("hgx.h100", 90.0, GPUS), instance_type("cpu.large", 2.0, 0)]))
        self.start("karpenter", pathlib.Path(self.testbed("bin", "karpenter")) / "karpenter", DISABLE_LEADER_ELECTION="true",
                   INSTANCE_TYPES_FILE_PATH=str(types), SYSTEM_NAMESPACE="kube-system", METRICS_PORT=str(PROBES - 1), HEALTH_PROBE_PORT=str(PROBES))
        until("the extender is ready", lambda: is_ready(PORT))
        until("Karpenter is ready", lambda: is_ready(PROBES), 60)
        kubectl("create", "-f", "-", text=json.dumps(NODE_CLASS))
        kubectl("create", "-f", "-", text=json.dumps(NODE_POOL))
        until("the node pool is ready", lambda: "True" in kubectl("get", "nodepool", "gpus", "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].status}"))
        self.agents = Agents(self.state, self.start_agent)
        self.agents.start()
        same(gpu_nodes(self.kube), [])

    def testbed(self, *words):
        return subprocess.run([TESTBED, *words], check=True, capture_output=True, text=True).stdout.strip()

    def start(self, name, *command, **env):
        with open(self.state / "log" / name, "a", encoding="utf-8") as log:
            process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       env={**os.environ, "KUBECONFIG": str(self.kubeconfig), **env})
        self.processes.append(process)
        return process

    def start_agent(self, node):
        return self.start(f"agent-{node}", BIN / "gpulet", "agent", NODE_NAME=node, DRIVER_ROOT_CTR_PATH=str(self.driver),
                          NVIDIA_DRIVER_ROOT=str(self.driver), GPULET_KUBELET_DIR=str(self.state / "no-kubelet"), GPULET_STATE_DIR="",
                          GPULET_HEALTH_FILE="", GPULET_KERNEL_LOG="", GPULET_LISTEN="", GPULET_SOCKET="", GPULET_PUBLISH_GPU_NODE="true", GPULET_STARTUP_TAINT=TAINT["key"])

    def end(self):
        if self.agents and self.agents.is_alive():
            self.agents.over.set()
            self.agents.join()
        for process in reversed(self.processes):
            process.terminate()
            process.wait(timeout=60)
        subprocess.run([BIN / "gpulet-sim", "down", "--root", self.driver], check=False, stdout=subprocess.DEVNULL)

    # What is there.
    def names(self, path):
        return sorted(item["metadata"]["name"] for item in self.kube.get(path)["items"])

    def node_of(self, pod):
        """The node of a Pod that runs; None before."""
        if self.agents.error:
            raise self.agents.error
        found = self.kube.pod(pod)
        return found["spec"].get("nodeName") if found["status"].get("phase") == "Running" else None

    def run_pod(self, name, gpus):
        self.kube.create_pod(gpu_pod(name, gpus))

    def runs_on(self, name):
        return until(f"{name} runs", lambda: self.node_of(name), STARTED_S)

    def published(self, name):
        """Whether the node's agent has published its eight GPUs and labelled it."""
        try:
            node = self.kube.get(f"{GPU_NODES}/{name}")
        except ApiError:
            return False
        labels = self.kube.get(f"{NODES}/{name}")["metadata"]["labels"]
        return len(node["spec"]["gpus"]) == GPUS and labels.get("nvidia.com/gpu.count") == str(GPUS)

    def metric(self, pattern):
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=10) as page:
            return sum(float(value) for value in re.findall(rf"^{pattern} (\S+)$", page.read().decode(), re.M))

    # The checks.
    def first_pod(self):
        self.run_pod("four", 4)
        self.first = self.runs_on("four")
        until("its agent publishes the node", lambda: self.published(self.first), STARTED_S)
        same(len(self.names(CLAIMS)), 1, "nodes that Karpenter started")
        log = (self.state / "log" / f"agent-{self.first}").read_text()
        assert "StartupTaintRemoved" in log, "Karpenter set no startup taint, or somebody else removed it"
        assert self.metric(r'gpulet_scheduler_decision_seconds_count\{verb="filter"\}') > 0, "the extender was not asked"
        until("the extender knows the node", lambda: self.metric("gpulet_scheduler_nodes") == 1)

    def more_pods(self):
        for name in ("two-a", "two-b"):
            self.run_pod(name, 2)
        same({self.runs_on("two-a"), self.runs_on("two-b")}, {self.first}, "nodes of the Pods")
        same(len(self.names(CLAIMS)), 1, "nodes that Karpenter started")

    def whole_nodes(self):
        pods = ["eight-a", "eight-b", "eight-c"]
        for name in pods:
            self.run_pod(name, GPUS)
        nodes = {self.runs_on(name) for name in pods}
        same((len(nodes), self.first in nodes, len(self.names(CLAIMS))), (3, False, 4), "(their nodes, the first among them, started)")
        until("the agents publish all", lambda: all(self.published(node) for node in nodes), STARTED_S)

    def drained(self):
        kubectl("create", "-f", "-", text=json.dumps({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "served"}, "spec": {
                "selector": {"matchLabels": {"app": "served"}}, "template": {
                    "metadata": {"labels": {"app": "served"}},
                    "spec": {**gpu_pod("served", GPUS)["spec"], "restartPolicy": "Always"}}}}))
        before = until("it runs", self.served_on, STARTED_S)
        claim = until("Karpenter knows its node", lambda: self.claim_of(before))
        kubectl("delete", "nodeclaim", claim, "--wait=false")
        after = until("its Pod runs on another node", lambda: self.served_on(but=before), STARTED_S)
        until("the drained node is gone", lambda: before not in self.names(NODES), GONE_S)
        until("nothing is left of it", lambda: before not in self.names(GPU_NODES), GONE_S)
        assert after in self.names(NODES)
        kubectl("delete", "deployment", "served", "--wait=true")

    def claim_of(self, node):
        claims = self.kube.get(CLAIMS)["items"]
        return next((claim["metadata"]["name"] for claim in claims if claim.get("status", {}).get("nodeName") == node), None)

    def served_on(self, but=None):
        pods = self.kube.get(f"{PODS}?labelSelector=app=served")["items"]
        return next((pod["spec"]["nodeName"] for pod in pods if pod["status"].get("phase") == "Running"
                     and not pod["metadata"].get("deletionTimestamp") and pod["spec"].get("nodeName") not in (None, but)), None)

    def down(self):
        kubectl("delete", "pods", "--all", "--grace-period=0", "--force")
        self.gone()

    def gone(self):
        until("the nodes with GPUs are gone", lambda: not gpu_nodes(self.kube) and not self.names(CLAIMS), GONE_S)
        until("their agents have ended", lambda: not self.agents.agents, GONE_S)
        until("their objects are gone", lambda: not self.names(GPU_NODES), GONE_S)
        until("the extender knows no node", lambda: self.metric("gpulet_scheduler_nodes") == 0)

    def one_each(self):
        for number in range(self.rounds):
            with Watch(self.kube, CLAIMS) as watch:
                self.run_pod(f"one-{number}", GPUS if number % 2 else 1)
                self.runs_on(f"one-{number}")
                self.kube.delete_pod(f"one-{number}", grace_s=0)
                self.gone()
                same(sum(kind == "ADDED" for _, kind, _ in watch.seen), 1, f"nodes started for Pod {number}")


def run(state, rounds):
    autoscaling = NodeAutoscaling(state, rounds)
    failed = False

    def until_one_fails():
        nonlocal failed
        for name, check in autoscaling.checks():
            yield name, (lambda: "not reached") if failed else guarded(check)

    def guarded(check):
        def checked():
            nonlocal failed
            failed = True
            check()
            failed = False
        return checked
    try:
        return report_checks(until_one_fails())
    finally:
        autoscaling.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of the last check (default {ROUNDS})")
    parser.add_argument("--inside", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return run(options.inside, options.rounds)
    with kwok_cluster(1, 0, "karpenter") as cluster:
        return cluster.run(HERE / "node_autoscaling.py", *sys.argv[1:]).returncode


if __name__ == "__main__":
    sys.exit(main())
