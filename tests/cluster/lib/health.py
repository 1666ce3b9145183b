"""GPU faults under a Deployment's Pods: the GPU is withdrawn and reported, its Pod evicted, the GPU offered again; nothing else is disturbed."""
import json
import time

from lib.kube import Watch, gpu_pod, until
from lib.node import DRIVER_ROOT, GPULET_SIM

GPU = "nvidia.com/gpu"
NAME = "model"
REPLICAS = 6
PODS = "/api/v1/namespaces/default/pods"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
CONDITION = "GpuHealthy"
NOTE = "gpulet.io/gpu-fault"

OWN_S = 1.0    # gpulet's part: from the event until the API server has accepted the eviction
MOVED_S = 5.0  # from the event until a Pod runs on another GPU
HOLD_S = 1.0
# Beyond recoveryHold: the next probe, the condition delay, and the polling of the kubelet.
RETURN_SLACK_S = 1.5
BUSY_S = 30.0  # for asynchronous effects
CONFIG = """version: v1
gpulet:
  driverCallTimeout: 300ms
  healthFile: {directory}/health.json
  health: {{livenessInterval: 1s, unhealthyPollInterval: 200ms, recoveryActionDelay: 500ms, recoveryHold: {hold_ms}ms}}
  faults: {{podAnnotations: true, eviction: {{enabled: true, quarantined: evict, lost: evict}}}}
"""
REPAIR = "  repair: {reset: {enabled: true, cooldown: 1s}, rebootRequest: {enabled: true}}\n"
REBOOT_CONDITION = "GpuRebootRequired"


def deployment():
    template = gpu_pod(NAME, 1)
    template["metadata"] = {"labels": {"app": NAME}}
    template["spec"]["restartPolicy"] = "Always"
    template["spec"]["containers"][0]["env"] = [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    return {"metadata": {"name": NAME}, "spec": {"replicas": REPLICAS, "selector": {"matchLabels": {"app": NAME}}, "template": template}}


def runs(pod):
    return pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]


class HealthChecks:
    def __init__(self, checks):
        self.checks, self.kube = checks, checks.kube
        self.n1, self.n2 = checks.nodes
        self.fallen = None  # the GPU of n1 that failed first
        self.healed = set()  # which would be held longer after a relapse

    def run(self):
        return [
            (f"a Deployment of {REPLICAS} Pods with one GPU each, on both nodes", self.deploy),
            ("XID 79 on one: withdrawn, reported, its Pod on another GPU", self.fall),
            ("healed: offered again after its checks", lambda: self.heal(self.n1, self.fallen, HOLD_S)),
            ("a disruption budget keeps a Pod on a faulty GPU", self.budget),
            ("XID 13 evicts nothing", self.application),
            ("a driver call that hangs on one GPU", self.hang),
            ("three relapses lengthen its hold", self.relapse),
            ("a faulty GPU is reset once its Pod has ended", self.reset),
            ("XID 79 requests a reboot until the GPU is healed", self.reboot_request),
            ("the agents exit and leave nothing", self.end),
        ]

    # Helpers of the checks.
    def sim(self, node, command, gpu, *more):
        node.run(GPULET_SIM, command, node.gpus[gpu]["index"], *more, "--root", DRIVER_ROOT)

    def offered(self):
        """UUIDs that each kubelet offers."""
        return {node.name: set(node.resources.allocatable(GPU)) for node in self.checks.nodes}

    def all_but(self, *broken):
        return {node.name: set(node.gpus) - set(broken) for node in self.checks.nodes}

    def wait_offered(self, *broken, limit_s=OWN_S):
        """Waits until exactly these are withdrawn; no other GPU may be, at any moment."""
        wanted = self.all_but(*broken)

        def only_these():
            offered = self.offered()
            for name, gpus in wanted.items():
                assert gpus <= offered[name], f"{name} has withdrawn {gpus - offered[name]} beside {broken}"
            return offered == wanted
        until(f"all GPUs but {list(broken)} are offered", only_these, limit_s, 0.02)

    def held(self, node):
        """Running Pod of the Deployment → its GPU on the node."""
        running = [name for name, pod in self.kube.pods().items() if name.startswith(f"{NAME}-") and runs(pod)]
        return {name: ids[0] for name, ids in node.resources.held().items() if name in running}

    def all_run(self):
        pods = self.kube.pods().values()
        return len(pods) == REPLICAS and all(map(runs, pods))

    def condition(self, node, kind=CONDITION):
        conditions = self.kube.get(f"/api/v1/nodes/{node.name}")["status"]["conditions"]
        return next((condition for condition in conditions if condition["type"] == kind), None)

    def wait_condition(self, node, status, *parts):
        """Waits until its message has all these parts."""
        until(f"{CONDITION} of {node.name} is {status} and says {parts}", lambda: (reported := self.condition(node)) and
              reported["status"] == status and all(part in reported["message"] for part in parts), BUSY_S)

    def wait_event(self, kind, name, *parts):
        """An event about that object whose message has all these parts."""
        def reported():
            return any(all(part in event.get("message", "") for part in parts) for event in self.kube.events_about(name, kind))
        until(f"an event about {kind} {name} with {parts}", reported, BUSY_S)

    def moves(self, node, gpu, victim, break_it):
        """Breaks the GPU and follows, by the API server, the end of its Pod and the start of another."""
        names = set(self.kube.pods())
        before = self.checks.facts(names - {victim})
        with Watch(self.kube, PODS) as watch:
            started = time.monotonic()
            break_it()
            self.wait_offered(gpu)
            withdrawn = time.monotonic()
            asked, _ = watch.first(f"{victim} is asked to leave", lambda pod: pod["metadata"]["name"] == victim and
                                   "deletionTimestamp" in pod["metadata"], BUSY_S)
            moved, pod = watch.first(f"another Pod runs in place of {victim}", lambda pod:
                                     pod["metadata"]["name"] not in names and runs(pod), BUSY_S)
        name, place = pod["metadata"]["name"], next(node for node in self.checks.nodes if node.name == pod["spec"]["nodeName"])
        now = until(f"the kubelet says what {name} holds", lambda: place.resources.held().get(name))
        assert len(now) == 1 and now[0] != gpu, f"{name} has {now}, and {gpu} is broken"
        until(f"{victim} has gone", lambda: victim not in self.kube.pods(), BUSY_S)
        self.checks.assert_undisturbed(before)
        print(f"   the kubelet knew after {(withdrawn - started) * 1000:.0f} ms; gpulet's part, until the eviction was taken: "
              f"{(asked - started) * 1000:.0f} ms; Kubernetes', until {name} ran on {place.name}: {(moved - asked) * 1000:.0f} ms; "
              f"together {moved - started:.2f} s", flush=True)
        return asked - started, moved - started

    def heal(self, node, gpu, least_s):
        """The GPU is offered again, but not before its checks have passed for the hold time."""
        started = time.monotonic()
        self.sim(node, "heal", gpu)
        until(f"{gpu} is offered again", lambda: self.offered() == self.all_but(), least_s + RETURN_SLACK_S + OWN_S, 0.02)
        took = time.monotonic() - started
        assert least_s <= took <= least_s + RETURN_SLACK_S, f"{gpu} came back after {took:.2f} s, with a hold of {least_s} s"
        self.healed.add(gpu)
        print(f"   offered again {took:.2f} s after it was healed, of which its checks {least_s:.0f} s", flush=True)
        self.wait_condition(node, "True")
        return took

    def reported(self):
        """By the running agents."""
        for node in self.checks.nodes:
            self.wait_condition(node, "True")

    # The checks.
    def deploy(self):
        for node in self.checks.nodes:
            node.nvml("gpus")
            node.write_config(CONFIG.format(directory=node.state / node.name, hold_ms=int(HOLD_S * 1000)))
            node.start_agent(arguments=["--config-file", node.config])
        for node in self.checks.nodes:
            node.wait_allocatable(self.kube, 8)
        self.kube.call("POST", DEPLOYMENTS, deployment())
        until("the Deployment's Pods run", self.all_run, 60)
        for node in self.checks.nodes:
            until(f"two Pods or more on {node.name}", lambda: len(self.held(node)) >= 2, BUSY_S)
        self.reported()

    def fall(self):
        victim, self.fallen = min(self.held(self.n1).items())
        own, moved = self.moves(self.n1, self.fallen, victim, lambda: self.sim(self.n1, "lost", self.fallen, "--event"))
        assert own <= OWN_S, f"gpulet took {own:.2f} s to have {victim} evicted"
        assert moved <= MOVED_S, f"the Pod ran elsewhere only after {moved:.2f} s"
        self.wait_condition(self.n1, "False", self.fallen)
        self.wait_condition(self.n2, "True")
        self.wait_event("Node", "n1", self.fallen)
        self.wait_event("Pod", victim, self.fallen)

    def budget(self):
        """A disruption budget blocks the eviction, which is reported and retried once the budget allows."""
        victim, gpu = max(item for item in self.held(self.n1).items() if item[1] not in self.healed)
        before = self.checks.facts(self.kube.pods())
        self.kube.call("POST", BUDGETS, {"metadata": {"name": "hold"}, "spec": {
            "minAvailable": REPLICAS, "selector": {"matchLabels": {"app": NAME}}}})
        until("the budget counts the Pods", lambda: self.kube.get(f"{BUDGETS}/hold")["status"].get("currentHealthy") == REPLICAS)
        self.sim(self.n1, "xid", gpu, 79)
        self.wait_offered(gpu)
        self.wait_event("Pod", victim, "budget")
        until(f"a note on {victim}", lambda: NOTE in self.kube.pod(victim)["metadata"].get("annotations", {}), BUSY_S)
        self.checks.assert_undisturbed(before)
        assert runs(self.kube.pod(victim)), self.kube.pod(victim)["status"]
        started = time.monotonic()
        self.kube.call("DELETE", f"{BUDGETS}/hold")
        until(f"{victim} has gone", lambda: victim not in self.kube.pods(), BUSY_S)
        print(f"   {victim} had left {time.monotonic() - started:.1f} s after the budget allowed it", flush=True)
        until("the Deployment's Pods run", self.all_run, 60)
        del before[victim]
        self.checks.assert_undisturbed(before)
        self.heal(self.n1, gpu, HOLD_S)

    def application(self):
        """An application XID on every GPU in use; a later XID on an idle GPU proves that they were handled."""
        held = self.held(self.n1)
        before = self.checks.facts(self.kube.pods())
        idle = next(gpu for gpu in self.n1.gpus if gpu not in held.values() and gpu not in self.healed)
        for gpu in held.values():
            self.sim(self.n1, "xid", gpu, 13)
        self.sim(self.n1, "xid", idle, 79)
        self.wait_offered(idle)
        self.heal(self.n1, idle, HOLD_S)
        assert self.held(self.n1) == held, f"{held} became {self.held(self.n1)}"
        self.checks.assert_undisturbed(before)

    def hang(self):
        """Its Pod is evicted, while the node's other GPUs fail, recover and are allocated as usual."""
        victim, gpu = min(self.held(self.n2).items())
        self.moves_from_hanging(victim, gpu)
        held = self.held(self.n2)
        other = next(uuid for uuid in self.n2.gpus if uuid != gpu and uuid not in held.values())
        self.sim(self.n2, "xid", other, 79)
        self.wait_offered(gpu, other)
        self.sim(self.n2, "heal", other)
        until(f"{other} is offered again beside {gpu}", lambda: self.offered() == self.all_but(gpu),
              HOLD_S + RETURN_SLACK_S + OWN_S, 0.02)
        self.checks.run_pod("meanwhile", 1, "n2")
        self.kube.delete_pod("meanwhile")
        until("that Pod has gone", lambda: "meanwhile" not in self.kube.pods(), BUSY_S)
        self.heal(self.n2, gpu, HOLD_S)

    def moves_from_hanging(self, victim, gpu):
        """No event reports it: the next poll detects it after the driver call's timeout."""
        names = set(self.kube.pods())
        before = self.checks.facts(names - {victim})
        started = time.monotonic()
        self.sim(self.n2, "hang", gpu)
        self.wait_offered(gpu, limit_s=BUSY_S)
        print(f"   a GPU that hangs was withdrawn after {time.monotonic() - started:.2f} s", flush=True)
        until(f"{victim} has gone", lambda: victim not in self.kube.pods(), BUSY_S)
        until("the Deployment's Pods run", self.all_run, 60)
        self.checks.assert_undisturbed(before)
        self.wait_condition(self.n2, "False", gpu)

    def relapse(self):
        """A relapse of the GPU that has recovered once. It has no Pods: only the GPU is checked."""
        self.remove()
        times = []
        for number in (1, 2, 3):
            self.sim(self.n1, "xid", self.fallen, 79)
            self.wait_offered(self.fallen)
            times.append(self.heal(self.n1, self.fallen, HOLD_S * 2 ** number))
        assert times == sorted(times), times

    def reset(self):
        """The agent waits for the Pod, resets the GPU by nvidia-smi, and offers it again after its checks."""
        node = self.n2
        directory = node.state / node.name
        node.write_config(CONFIG.format(directory=directory, hold_ms=int(HOLD_S * 1000)) + REPAIR)
        until("the agent repairs GPUs", lambda: (self.condition(node, REBOOT_CONDITION) or {}).get("status") == "False", BUSY_S)
        self.checks.run_pod("trainer", 1, node.name)
        gpu = until("the kubelet says what the Pod holds", lambda: node.resources.held().get("trainer"))[0]
        self.sim(node, "xid", gpu, 95)
        self.wait_offered(gpu)

        def waits():
            devices = json.loads((node.kept / "health.json").read_text())["devices"]
            return any(device["uuid"] == gpu and "default/trainer" in device.get("repair", "") for device in devices)
        until("the report names the Pod that it waits for", waits, BUSY_S)
        started = time.monotonic()
        self.kube.delete_pod("trainer")
        self.wait_event("Node", node.name, gpu, "has been reset")
        until(f"{gpu} is offered again", lambda: self.offered() == self.all_but(), BUSY_S, 0.02)
        print(f"   offered again {time.monotonic() - started:.1f} s after its Pod was deleted", flush=True)

    def reboot_request(self):
        node = self.n2
        gpu = next(iter(node.gpus))
        self.sim(node, "xid", gpu, 79)
        self.wait_offered(gpu)

        def is_requested(wanted):
            labels = self.kube.get(f"/api/v1/nodes/{node.name}")["metadata"].get("annotations", {})
            condition = self.condition(node, REBOOT_CONDITION)
            return condition["status"] == str(wanted) and (labels.get("gpulet.io/reboot-required") == "true") == wanted
        until("the reboot is requested", lambda: is_requested(True), BUSY_S)
        self.sim(node, "heal", gpu)
        until("the request is taken back", lambda: is_requested(False), BUSY_S)
        until(f"{gpu} is offered again", lambda: self.offered() == self.all_but(), BUSY_S, 0.02)

    def remove(self):
        self.kube.call("DELETE", f"{DEPLOYMENTS}/{NAME}", {"propagationPolicy": "Background"})
        until("its Pods have gone", lambda: not self.kube.pods(), 60)

    def end(self):
        for node in self.checks.nodes:
            self.checks.stop_agent_of(node)
