"""What claim_switch.py does inside the cluster's network."""
import calendar
import collections
import pathlib
import random
import re
import signal
import threading
import time

from lib.dra import API, CLASSES, CONFIG
from lib.kube import Kube, gpu_pod, until
from lib.node import Node

GPU = "nvidia.com/gpu"
GPUS = 8
PODS_AT_ONCE = 20  # more than the node has GPUs for
STALL_S = 120
AGENT_AWAY_S = 3  # from its kill until the kubelet has its list, on a busy machine
API_AWAY_S = 60
SAMPLE_INTERVAL_S = 0.02
ALL_BY_PLUGIN = "{whole: {}, offer: devicePlugin}"
ALL_BY_CLAIMS = ""


class Sampler(threading.Thread):
    """Looks at the device nodes of every running container, again and again."""

    def __init__(self, node):
        super().__init__(daemon=True)
        self.node, self.ended = node, threading.Event()
        self.samples, self.busy, self.double = 0, 0, set()

    def run(self):
        while not self.ended.wait(SAMPLE_INTERVAL_S):
            self.sample()

    def sample(self):
        holders = collections.defaultdict(list)
        for pod, (pid, _) in self.node.environments().items():
            try:
                names = [node.name for node in pathlib.Path("/proc", pid, "root/dev").iterdir()]
            except OSError:
                continue  # it has ended meanwhile
            for name in names:
                if re.fullmatch(r"nvidia\d+", name):
                    holders[name].append((pod, pid))
        self.samples += 1
        self.busy += len(holders)
        for name, found in holders.items():
            # A container that ended while the others were looked at does not count.
            alive = sorted(pod for pod, pid in found if pathlib.Path("/proc", pid).exists())
            if len(alive) > 1:
                self.double.add((name, *alive))


class ClaimSwitch:
    def __init__(self, state, pods, seed):
        self.kube, self.node = Kube(state), Node(state, 1, "hgx-h100")
        self.random = random.Random(seed)
        self.total, self.created = pods, 0
        self.succeeded, self.by_claims, self.rejected, self.cancelled, self.failed = 0, 0, 0, 0, []
        self.during, self.killed = "before the first move", 0.0

    def write_config(self, rules):
        self.node.write_config(CONFIG.format(hooks=self.node.state / "hook", mps=self.node.state / "mps", rules=rules))

    def start_agent(self):
        self.node.start_agent(arguments=["--config-file", self.node.config, "--dra"],
                              env={"GPULET_DRA_RECORD_DIR": str(self.node.state / "claims")})

    def start(self):
        self.node.driver_up()
        for name, kind in CLASSES.items():
            resource = {"extendedResourceName": GPU} if kind == "gpu" else {}
            self.kube.call("POST", f"{API}/deviceclasses", {"metadata": {"name": name}, "spec": {**resource, "selectors": [{"cel": {
                "expression": f"device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == '{kind}'"}}]}})
        self.write_config(ALL_BY_PLUGIN)
        self.start_agent()
        self.node.wait_allocatable(self.kube, GPUS)

    def restart_agent(self):
        self.killed = time.time()
        self.node.stop_agent(signal.SIGKILL)
        self.start_agent()

    def move(self, rules):
        """The agent is killed in the middle of it."""
        self.write_config(rules)
        time.sleep(self.random.uniform(0, 5))  # part of the disturbance
        self.restart_agent()

    def take_api_server_away(self):
        self.node.testbed("apiserver", "stop")
        time.sleep(API_AWAY_S)  # the disturbance
        self.node.testbed("apiserver", "start")

    def disturbances(self):
        """(share of the Pods that have ended, what happens then)"""
        return [(0.05, "the agent restarts", self.restart_agent),
                (0.10, "the kubelet restarts", self.node.restart_kubelet),
                (0.20, "the GPUs move to claims", lambda: self.move(ALL_BY_CLAIMS)),
                (0.30, "the API server is away", self.take_api_server_away),
                (0.40, "the agent restarts", self.restart_agent),
                (0.45, "the kubelet restarts", self.node.restart_kubelet),
                (0.60, "the GPUs move to the device plugin", lambda: self.move(ALL_BY_PLUGIN)),
                (0.80, "the agent restarts", self.restart_agent),
                (0.90, "the kubelet restarts", self.node.restart_kubelet)]

    def create(self):
        gpus, script = self.random.choice((1, 1, 1, 1, 2)), f"sleep {self.random.uniform(0.2, 6):.2f}"
        self.kube.create_pod(gpu_pod(f"pod-{self.created}", gpus, script=script))
        self.created += 1

    def collect(self):
        """Deletes the Pods that have ended. Returns how many there are still."""
        pods = self.kube.pods()
        for name, pod in pods.items():
            status = pod["status"]
            if status["phase"] not in ("Succeeded", "Failed") or pod["metadata"].get("deletionTimestamp"):
                continue
            if status["phase"] == "Succeeded":
                self.succeeded += 1
                self.by_claims += "extendedResourceClaimStatus" in status
            elif self.is_without_agent(status):
                self.rejected += 1
            elif self.is_cancelled(status):
                self.cancelled += 1
            else:
                containers = [one.get("state") for one in status.get("containerStatuses", [])]
                self.failed.append(name)
                print(f"   {name} failed after: {self.during}: {status.get('reason')}: {status.get('message')}; {containers}", flush=True)
            self.kube.delete_pod(name)
        return len(pods)

    def is_without_agent(self, status):
        """Whether the kubelet had the Pod to admit while there was no agent: it rejects it, whatever the device plugin is."""
        if status.get("reason") != "UnexpectedAdmissionError":
            return False
        began = calendar.timegm(time.strptime(status["startTime"], "%Y-%m-%dT%H:%M:%SZ"))
        return self.killed - 1 <= began <= self.killed + AGENT_AWAY_S

    def is_cancelled(self, status):
        """Whether the kubelet ended while containerd started the container for it, which is not tried again with restartPolicy Never."""
        ended = [one["state"].get("terminated", {}) for one in status.get("containerStatuses", [])]
        return self.during == "the kubelet restarts" and any(
            one.get("reason") == "StartError" and one.get("message", "").endswith("context canceled") for one in ended)

    def run(self):
        waiting = collections.deque(self.disturbances())
        last, last_change = 0, time.monotonic()
        while (done := self.succeeded + self.rejected + self.cancelled + len(self.failed)) < self.total:
            left = self.collect()
            for _ in range(min(PODS_AT_ONCE - left, self.total - self.created)):
                self.create()
            if waiting and done >= waiting[0][0] * self.total:
                _, self.during, disturb = waiting.popleft()
                print(f"   {done} Pods have ended: {self.during}", flush=True)
                disturb()
            if done != last:
                last, last_change = done, time.monotonic()
            assert time.monotonic() - last_change < STALL_S, f"no Pod has ended for {STALL_S} s: {self.states()}"
            time.sleep(0.1)
        assert not waiting, waiting

    def states(self):
        return [(name, pod["status"]["phase"], pod["status"].get("conditions", [{}])[0].get("message")) for name, pod in self.kube.pods().items()]


def inside(state, pods, seed):
    switch = ClaimSwitch(state, pods, seed)
    switch.start()
    sampler = Sampler(switch.node)
    sampler.start()
    started = time.monotonic()
    problems = []
    try:
        switch.run()
        until("the node has its GPUs again", lambda: switch.kube.allocatable(switch.node.name, GPU) == GPUS, 60)
        until("no record is left", lambda: not list((switch.node.state / "claims").glob("*.json")), 30)
    except AssertionError as error:
        problems.append(str(error))
    sampler.ended.set()
    sampler.join()
    print(f"{switch.succeeded} Pods succeeded in {time.monotonic() - started:.0f} s, {switch.by_claims} of them by claims; the kubelet rejected "
          f"{switch.rejected} while there was no agent, and cancelled {switch.cancelled} starts when it ended; {sampler.samples} samples, "
          f"{sampler.busy / max(sampler.samples, 1):.1f} GPUs busy in the mean")
    problems += [f"one GPU in two containers: {double}" for double in sorted(sampler.double)]
    problems += [f"{len(switch.failed)} Pods failed"] if switch.failed else []
    if not pods / 5 < switch.by_claims < pods * 4 / 5:
        problems.append("too few Pods by claims or by the device plugin: the moves were not tested")
    for problem in problems:
        print(f"FAIL {problem}")
    print(f"{switch.succeeded} passed, {len(problems)} failed")
    return 1 if problems else 0
