"""What claim_updates.py does inside the cluster's network."""
import collections
import random
import signal
import threading
import time
import uuid

from lib.dra import API, CLASSES, CONFIG, TEMPLATES
from lib.kube import Kube, Watch, gpu_pod, until
from lib.node import Node

GPUS = 8
PODS_AT_ONCE = 12  # more than the node has GPUs for
STALL_S = 120
READY_S = 30
PAUSE_S = (0, 3)  # between two updates
TEMPLATE = "one-gpu"
SLICES = f"{API}/resourceslices"
PORTS = (9400, 9401)  # of the agents, in turn
FAILED_PREPARE = "FailedPrepareDynamicResources"


class Updater(threading.Thread):
    """Replaces the agent again and again, as a DaemonSet with maxSurge: 1 does."""

    def __init__(self, node, kill_every, seed):
        super().__init__(daemon=True)
        self.node, self.kill_every, self.random = node, kill_every, random.Random(seed)
        self.ended, self.updates, self.kills, self.slowest_s, self.problem = threading.Event(), 0, 0, 0.0, None

    def start_agent(self):
        self.port = PORTS[self.updates % 2]
        self.node.start_agent(arguments=["--config-file", self.node.config, "--dra"],
                              env={"GPULET_DRA_RECORD_DIR": str(self.node.state / "claims"), "GPULET_LISTEN": f"127.0.0.1:{self.port}",
                                   "POD_UID": str(uuid.uuid4())})

    def is_ready(self):
        try:
            return self.node.run("curl", "-sf", f"http://127.0.0.1:{self.port}/readyz") is not None
        except AssertionError:
            return False

    def run(self):
        try:
            while not self.ended.wait(self.random.uniform(*PAUSE_S)):
                self.update()
        except Exception as error:  # pylint: disable=broad-except  # reported as a failure
            self.problem = f"update {self.updates}: {error!r}"

    def update(self):
        old = self.node.agent
        self.updates += 1
        kill = self.kill_every > 0 and self.updates % self.kill_every == 0
        self.kills += kill
        self.start_agent()
        until("the new agent is ready", self.is_ready, READY_S)
        started = time.monotonic()
        old.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        status = old.wait(timeout=READY_S)
        assert kill or status == 0, f"the old agent exits with {status}"
        self.slowest_s = max(self.slowest_s, time.monotonic() - started)


class ClaimUpdates:
    def __init__(self, state, pods, kill_every, seed):
        self.kube, self.node = Kube(state), Node(state, 1, "hgx-h100")
        self.random = random.Random(seed)
        self.total, self.created, self.succeeded, self.failed = pods, 0, 0, []
        self.updater = Updater(self.node, kill_every, seed)

    def start(self):
        self.node.driver_up()
        for name, kind in CLASSES.items():
            self.kube.call("POST", f"{API}/deviceclasses", {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {
                "expression": f"device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == '{kind}'"}}]}})
        self.kube.call("POST", TEMPLATES, {"metadata": {"name": TEMPLATE}, "spec": {"spec": {"devices": {"requests": [
            {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}}})
        self.node.write_config(CONFIG.format(hooks=self.node.state / "hook", mps=self.node.state / "mps", rules=""))
        self.updater.start_agent()
        until("the node's slice has its GPUs", lambda: sum(len(item["spec"].get("devices", [])) for item in self.kube.get(SLICES)["items"]) == GPUS, 60)

    def create(self):
        pod = gpu_pod(f"pod-{self.created}", 0, self.node.name, script=f"sleep {self.random.uniform(0.1, 2):.2f}")
        pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": TEMPLATE}]
        pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        self.kube.create_pod(pod)
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
            else:
                self.failed.append((name, status.get("reason"), status.get("message")))
            self.kube.delete_pod(name)
        return len(pods)

    def run(self):
        last, last_change = 0, time.monotonic()
        while (done := self.succeeded + len(self.failed)) < self.total:
            left = self.collect()
            for _ in range(min(PODS_AT_ONCE - left, self.total - self.created)):
                self.create()
            assert not self.updater.problem, self.updater.problem
            if done != last:
                last, last_change = done, time.monotonic()
            assert time.monotonic() - last_change < STALL_S, f"no Pod has ended for {STALL_S} s: {self.states()}"
            time.sleep(0.1)

    def states(self):
        return [(name, pod["status"]["phase"], pod["status"].get("conditions", [{}])[0].get("message")) for name, pod in self.kube.pods().items()]

    def problems(self, slices, events):
        found = [f"{len(self.failed)} Pods failed: {self.failed[:5]}"] if self.failed else []
        messages = {event["metadata"]["uid"]: event["message"] for _, _, event in events if event.get("reason") == FAILED_PREPARE}
        failed = [f"a prepare failed: {message}" for message in sorted(messages.values())]
        # A call in progress ends with the agent that is killed.
        found += failed[self.updater.kills:]
        changes = collections.Counter(kind for _, kind, _ in slices)
        found += [f"ResourceSlices changed while the agent was updated: {dict(changes)}"] if changes else []
        return found


def inside(state, pods, kill, seed):
    test = ClaimUpdates(state, pods, kill, seed)
    test.start()
    started, problems = time.monotonic(), []
    with Watch(test.kube, SLICES) as slices, Watch(test.kube, "/api/v1/events") as events:
        test.updater.start()
        try:
            test.run()
        except AssertionError as error:
            problems.append(str(error))
        test.updater.ended.set()
        test.updater.join()
        problems += [test.updater.problem] if test.updater.problem else []
        try:
            until("no record is left", lambda: not list((test.node.state / "claims").glob("*.json")), 60)
        except AssertionError as error:
            problems.append(str(error))
        problems += test.problems(list(slices.seen), list(events.seen))
    print(f"{test.succeeded} Pods succeeded in {time.monotonic() - started:.0f} s over {test.updater.updates} updates, {test.updater.kills} of them by "
          f"SIGKILL; an agent took at most {test.updater.slowest_s:.1f} s to end")
    if test.updater.updates < pods / 50:
        problems.append("too few updates")
    for problem in problems:
        print(f"FAIL {problem}")
    print(f"{test.succeeded} passed, {len(problems)} failed")
    return 1 if problems else 0
