"""The load of tests/cluster/soak.py, its measurements and their evaluation."""
import collections
import concurrent.futures
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
import traceback
import urllib.request

from lib.footprint import COUNTED, HEADINGS, Sample, children, descriptors, medians, slope_a_minute, steady_in_use
from lib.kube import Kube, gpu_pod, until
from lib.kubectl import kubectl
from lib.node import DRIVER_ROOT, GPULET, GPULET_SIM, ROOT, Node
from lib.storm import Storm

SHARED = "nvidia.com/gpu.shared"
PORT = 9400
STEPS = 25        # of a round, before it settles
MOST_BROKEN = 3   # GPUs of a node at once
MOST_VISITORS = 6
TIMELINE, EVENTS = 200, 100  # lines of the node page that are kept (src/agent/observe/page_json.h)
SAMPLE_S = 2.0
REST_SAMPLES, REST_S = 5, 0.4
ANONYMOUS_KIB = 256       # more, from the second quarter to the last
IN_USE_KIB_A_MINUTE = 16  # in the last half
ROWS = (10, 25, 50, 75, 100)  # per cent of the time
# A bound Pod is refused if its GPU is broken or not yet known to the kubelet: the scheduler only sees the Node.
REFUSALS = {"UnexpectedAdmissionError", "OutOfnvidia.com/gpu", "TopologyAffinityError"}
# Faults by GPU index: one per way of detection, and application errors, which are not faults.
FAULTS = [*(("xid", code) for code in (13, 31, 48, 62, 74, 79, 94, 95)), ("lost", "--event"), ("hang",), ("fail", 999), ("fail", 15),
          ("slow", 20000), ("ecc", "threshold"), ("remap", "pending"), ("nvlink", 0, "down")]
CONFIG = """version: v1
gpulet:
  driverCallTimeout: 300ms
  health: {{livenessInterval: 1s, pollInterval: 1s, unhealthyPollInterval: 200ms, recoveryActionDelay: 500ms, recoveryHold: 500ms, holdGrowthFactor: 1}}
  metrics: {{interval: {metrics_s}s}}
  faults: {{podAnnotations: true, eviction: {{enabled: true, barePods: true, maxEvictions: 1000, quarantined: evict, lost: evict}}}}
"""
SHARING = "sharing: {{timeSlicing: {{renameByDefault: true, resources: [{{name: nvidia.com/gpu, replicas: {}}}]}}}}\n"
BAD_CONFIG = "version: v1\ngpulet: {metricks: {interval: 1s}}\n"


class SoakStorm(Storm):
    """With GPU faults under the Pods, and evictions."""

    def mistake(self, node):
        """A Pod that ended, or that its kubelet refused, holds nothing."""
        pods = self.kube.pods()
        self.leaving |= {name for name, pod in pods.items() if "deletionTimestamp" in pod["metadata"]}
        reported = self.leaving
        self.leaving = reported | {name for name, pod in pods.items() if pod["status"]["phase"] in ("Failed", "Succeeded")}
        try:
            found = super().mistake(node)
        finally:
            self.leaving = reported
        if not found:
            return None
        return f"{found} (with containers: {sorted(node.containers())}; {[(name, pod['status']) for name, pod in pods.items() if name in found]})"

    def refused(self, name, pod):
        if "deletionTimestamp" in pod["metadata"]:
            self.leaving.add(name)
        elif pod["status"].get("reason") in REFUSALS:
            self.delete(name)
        else:
            super().refused(name, pod)


class Sampler(threading.Thread):
    """Samples each process during the load, for the peaks."""

    def __init__(self, watched):
        super().__init__(daemon=True)
        self.watched, self.ended = watched, threading.Event()
        self.seen = {who: [] for who in watched}

    def run(self):
        while not self.ended.wait(SAMPLE_S):
            for who, pid in self.watched.items():
                try:
                    self.seen[who].append(Sample(pid))
                except (OSError, TypeError):
                    pass  # it has ended: the loop reports that


class Soak:
    def __init__(self, state, seed):
        self.state, self.kube, self.dice = state, Kube(state), random.Random(seed)
        self.nodes = [Node(state, 1, "hgx-h100"), Node(state, 2, "l40s")]
        self.storm = SoakStorm(self.kube, self.nodes, seed)
        self.broken = {node.name: {} for node in self.nodes}  # index → its fault
        self.visitors = []                                    # sockets and processes of clients
        self.jobs = set()
        self.counts = collections.Counter()
        self.watched, self.at_rest, self.kinds, self.first = {}, {}, {}, {}
        self.commands = [["list"], ["topo"], ["health"], ["health", "-o", "json"], ["top", "--batch", "-n", "2", "-d", "0.2"]]
        if re.search(r"^  doctor\b", subprocess.run([GPULET, "--help"], capture_output=True, text=True, check=True).stdout, re.M):
            self.commands.append(["doctor"])

    # The node's agent and its clients.
    def environment(self, node):
        return {"NODE_NAME": node.name, "KUBECONFIG": str(self.state / "kubeconfig"), "DRIVER_ROOT_CTR_PATH": DRIVER_ROOT,
                "NVIDIA_DRIVER_ROOT": DRIVER_ROOT, "GPULET_STATE_DIR": str(node.kept), "GPULET_HEALTH_FILE": str(node.kept / "health.json"),
                "GPULET_SOCKET": str(node.kept / "agent.sock"), "GPULET_KERNEL_LOG": ""}

    def start(self):
        text = (ROOT / "deploy/static/scheduler.yaml").read_text()
        kind = next(part for part in text.split("\n---\n") if "kind: CustomResourceDefinition" in part)
        kubectl("apply", "-f", "-", text=kind)
        for node in self.nodes:
            node.driver_up()
            node.kept.mkdir(parents=True, exist_ok=True)
            self.configure(node)
            node.start_agent(arguments=["--config-file", node.config], env=self.environment(node))
        for node in self.nodes:
            node.wait_allocatable(self.kube, 8)
            self.watched[f"{node.name} agent"] = node.agent.pid
            self.watched[f"{node.name} listener"] = until("the listener runs", lambda: children(node.agent.pid))[0]
            for word in ("cordon", "uncordon"):  # leaves its files, as any later one does
                self.command(node, word, 0)
        with concurrent.futures.ThreadPoolExecutor() as both:
            list(both.map(self.fill, self.nodes))
        self.at_rest = {who: [] for who in self.watched}
        until("the nodes are well, and stay as they are", self.settled, 30, 1)
        self.kinds = {who: descriptors(pid) for who, pid in self.watched.items()}

    def fill(self, node):
        """Fills the history of the node page to its limit."""
        def full():
            page = json.loads(self.fetch(node, "/api/node"))
            if len(page["timeline"]) == TIMELINE and len(page["events"]) == EVENTS:
                return True
            for word in ("cordon", "uncordon"):
                for index in range(8):
                    self.command(node, word, index)
            return False
        until(f"{node.name}'s page has all its lines", full, 300, 0)

    def settled(self):
        """Returns whether the nodes are healthy and unchanged since the last call."""
        before, self.first = self.first, {node.name: self.state_of(node) for node in self.nodes}
        return self.first == before and all(set(state["health"].values()) == {"healthy"} and state["condition"] == "True"
                                            for state in self.first.values())

    def configure(self, node, more="", metrics_s=2):
        node.write_config(CONFIG.format(metrics_s=metrics_s) + more)

    def fetch(self, node, path):
        with urllib.request.urlopen(f"http://10.77.0.1{node.number}:{PORT}{path}", timeout=10) as page:
            return page.read().decode()

    def metric(self, node, name):
        return float(re.search(rf"^{name} (\S+)", self.fetch(node, "/metrics"), re.M)[1])

    def command(self, node, *words):
        done = subprocess.run(node.enter(GPULET, *words), env={**os.environ, **self.environment(node)}, capture_output=True, text=True,
                              timeout=60, check=False)
        assert 0 <= done.returncode < 10, f"gpulet {' '.join(map(str, words))}: exit status {done.returncode}: {done.stderr}"
        return done.stdout

    def sim(self, node, *words):
        node.run(GPULET_SIM, *words, "--root", DRIVER_ROOT)

    def health(self, node):
        return json.loads(self.command(node, "health", "-o", "json"))["devices"]

    def state_of(self, node):
        """State that must be restored once there is no fault and no Pod."""
        reported = self.kube.get(f"/api/v1/nodes/{node.name}")
        return {
            "kubelet": {name: sorted(ids) for name, ids in node.resources.every_allocatable().items() if name.startswith("nvidia.com/")},
            "node": {name: count for name, count in reported["status"]["allocatable"].items() if name.startswith("nvidia.com/") and count != "0"},
            "labels": {key: value for key, value in reported["metadata"]["labels"].items() if key != "nvidia.com/gfd.timestamp"},
            "taints": reported["spec"].get("taints", []),
            "condition": next((one["status"] for one in reported["status"]["conditions"] if one["type"] == "GpuHealthy"), None),
            "health": {device["uuid"]: device["state"] for device in self.health(node)},
            "kept": sorted(str(path.relative_to(node.kept)) for path in node.kept.rglob("*")),
            "containers": node.containers(),
        }

    # Events beside the Pods.
    def break_gpu(self, node):
        whole = [index for index in range(8) if index not in self.broken[node.name]]
        if len(whole) <= 8 - MOST_BROKEN:
            return self.heal_gpu(node)
        index, (fault, *more) = self.dice.choice(whole), self.dice.choice(FAULTS)
        if fault == "nvlink" and not node.gpu(index)["links"]:
            fault, more = "remap", ["pending"]
        self.broken[node.name][index] = fault
        self.sim(node, fault, index, *more)
        self.counts[f"fault {fault}"] += 1

    def heal_gpu(self, node):
        if self.broken[node.name]:
            index = self.dice.choice(sorted(self.broken[node.name]))
            self.sim(node, "heal", index)
            del self.broken[node.name][index]
            self.counts["healed"] += 1

    def hang_driver(self, node):
        """Hangs the driver until the agent detects it, or slightly longer than its call timeout."""
        self.sim(node, "hang", "all")
        try:
            until(f"{node.name}'s agent sees calls that hang", lambda: self.metric(node, "gpulet_driver_calls_hanging") > 0)
        finally:
            self.sim(node, "heal")
            self.broken[node.name].clear()
        self.counts["driver hung"] += 1

    def cordon(self, node):
        index = self.dice.randrange(8)
        self.command(node, "cordon", index, "--reason", "soak")
        self.broken[node.name].setdefault(index, "cordoned")
        self.counts["cordoned"] += 1

    def measure_otherwise(self, node):
        self.configure(node, metrics_s=self.dice.choice((1, 2, 5)))
        self.counts["config changed"] += 1

    def refuse_config(self, node):
        node.write_config(BAD_CONFIG)
        until("the bad config is refused", lambda: self.metric(node, "gpulet_config_last_reload_successful") == 0)
        self.configure(node)
        until("the good one is taken", lambda: self.metric(node, "gpulet_config_last_reload_successful") == 1)
        self.counts["config refused"] += 1

    def restart_kubelet(self, node):
        node.restart_kubelet()
        self.counts["kubelet restarted"] += 1

    def job(self, node):
        """A Pod that ends by itself."""
        name = f"job-{self.counts['job']}"
        self.kube.create_pod(gpu_pod(name, 1, node.name, script="sleep 0.5"))
        self.jobs.add(name)
        self.counts["job"] += 1

    def reap_jobs(self):
        pods = self.kube.pods()
        for name in sorted(self.jobs):
            if name in pods and pods[name]["status"]["phase"] in ("Succeeded", "Failed") and "deletionTimestamp" not in pods[name]["metadata"]:
                self.storm.delete(name)
        self.jobs &= set(pods)

    def ask(self, node):
        # Programs that call the driver hang with it.
        hangs = "hang" in self.broken[node.name].values()
        words = self.dice.choice([words for words in self.commands if not hangs or words[0] in ("health", "top")])
        said = self.command(node, *words)
        assert said, f"gpulet {' '.join(words)} prints nothing"
        self.counts[f"gpulet {words[0]}"] += 1

    def scrape(self, node):
        path = self.dice.choice(("/metrics", "/metrics", "/metrics", "/", "/api/now", "/api/node", "/api/use", "/api/history", "/healthz"))
        assert self.fetch(node, path), f"{node.name}: {path} is empty"
        self.counts["page fetched"] += 1

    def visit(self, node):
        """Opens the node page or a health watch; some close while others open."""
        if len(self.visitors) >= MOST_VISITORS or (self.visitors and self.dice.random() < 0.4):
            return self.leave(self.visitors.pop(self.dice.randrange(len(self.visitors))))
        if self.dice.random() < 0.3:
            self.visitors.append(subprocess.Popen(node.enter(GPULET, "health", "--watch"), env={**os.environ, **self.environment(node)},
                                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
        else:
            browser = socket.create_connection((f"10.77.0.1{node.number}", PORT), timeout=10)
            browser.sendall(b"GET /api/events HTTP/1.1\r\nHost: node\r\nAccept-Encoding: gzip\r\n\r\n")
            assert browser.recv(64).startswith(b"HTTP/1.1 200"), f"{node.name}'s page does not tell of events"
            self.visitors.append(browser)
        self.counts["visitor"] += 1

    @staticmethod
    def leave(visitor):
        if isinstance(visitor, subprocess.Popen):
            visitor.terminate()
            visitor.wait(timeout=10)
        else:
            visitor.close()

    # The loop.
    def busy(self, number):
        actions = [self.break_gpu] * 6 + [self.heal_gpu] * 4 + [self.job] * 4 + [self.ask] * 3 + [self.scrape] * 6 + [self.visit] * 4 + [
            self.measure_otherwise] * 2 + [self.refuse_config, self.cordon, self.hang_driver]
        kubelet_at = self.dice.randrange(STEPS) if number % 3 == 2 else None
        for step in range(STEPS):
            node = self.dice.choice(self.nodes)
            action = self.restart_kubelet if step == kubelet_at else self.dice.choice(actions)
            self.storm.disturb(lambda: action(node))
            self.storm.step()
            self.reap_jobs()
            self.alive()

    def alive(self):
        """The same processes as at the start."""
        for node in self.nodes:
            assert node.agent.poll() is None, f"{node.name}'s agent ended with {node.agent.returncode}"
            listener = self.watched[f"{node.name} listener"]
            assert listener in children(node.agent.pid), f"{node.name}'s listener {listener} has ended"

    def drain(self):
        while self.visitors:
            self.leave(self.visitors.pop())
        for node in self.nodes:
            self.configure(node)
            self.sim(node, "heal")
            self.broken[node.name].clear()
        self.storm.drain()

        def gone():
            self.reap_jobs()
            return not self.jobs
        until("every job has gone", gone, 60)

    def uncordon(self, node):
        """Uncordons everything unhealthy: a pending reset or reboot counts as done."""
        for device in self.health(node):
            if device["state"] != "healthy":
                self.command(node, "uncordon", device["index"])

    def share(self, node):
        """Shares each GPU, changes the replicas under the Pods, then removes sharing."""
        self.configure(node, SHARING.format(4))
        names = [f"share-{number}" for number in range(3)]
        for name in names:
            self.kube.create_pod(gpu_pod(name, 1, node.name, resource=SHARED))
        until(f"Pods run on shares of {node.name}", lambda: all(self.kube.pod(name)["status"]["phase"] == "Running" for name in names), 60)
        self.configure(node, SHARING.format(6))
        until("there are more shares", lambda: len(node.resources.allocatable(SHARED)) == 48)
        held = [device for pod, ids in node.resources.held().items() if pod in names for device in ids]
        assert len(held) == len(set(held)) == len(names), f"shares {held} for {names}"
        for name in names:
            self.kube.delete_pod(name)
        until("they have gone", lambda: not set(names) & set(self.kube.pods()), 60)
        self.configure(node)
        self.counts["shared and whole again"] += 1

    def restore(self):
        """Restores each node to its initial state."""
        for node in self.nodes:
            self.uncordon(node)
            tried, different = time.monotonic(), {}

            def restored():
                nonlocal tried, different
                now, first = self.state_of(node), self.first[node.name]
                different = {key: (first[key], now[key]) for key in now if now[key] != first[key]}
                if different and time.monotonic() - tried > 3:
                    self.uncordon(node)
                    tried = time.monotonic()
                return not different
            try:
                until(f"{node.name} is as at the start", restored, 60, 0.2)
            except AssertionError as error:
                raise AssertionError(f"{error}: at the start, and now: {different}") from None
        self.alive()

    def rest(self):
        """The usage of the processes, sampled a few times, because some threads, connections and documents outlive their work for a
        moment. Of the used heap, the least sample counts."""
        self.restore()
        time.sleep(REST_S)
        now = {who: [] for who in self.watched}
        in_use = {who: [] for who in self.watched}
        for _ in range(REST_SAMPLES):
            for who, pid in self.watched.items():
                now[who].append(Sample(pid))
                in_use[who].append(steady_in_use(pid))
            time.sleep(REST_S)
        for node in self.nodes:
            lines = len(self.fetch(node, "/api/history")) / 1024
            for process in ("agent", "listener"):
                who = f"{node.name} {process}"
                for sample in now[who]:
                    sample.values |= {"in use KiB": min(in_use[who]), "lines KiB": lines if process == "listener" else 0}
                self.at_rest[who] += now[who]
        self.counts["at rest, as at the start"] += 1

    def run(self, minutes):
        self.start()
        sampler = Sampler(self.watched)
        sampler.start()
        self.began, self.length = time.monotonic(), minutes * 60
        number = 0
        try:
            while time.monotonic() < self.began + self.length:
                self.busy(number)
                self.drain()
                self.restore()
                self.share(self.nodes[number % 2])
                self.rest()
                number += 1
        finally:
            sampler.ended.set()
            sampler.join()
            self.peaks = sampler.seen
        self.counts["looks for a device with two holders"] = self.storm.checks
        self.counts["Pods"] = self.storm.number + self.counts["job"] + 3 * self.counts["shared and whole again"]

    # The evaluation.
    def table(self):
        print(f"{'at':>5}  {'process':12}" + "".join(f"{heading:>15}" for heading in HEADINGS) +
              "   highest under load: RSS KiB, descriptors, threads")
        for part in ROWS:
            for who, samples in self.at_rest.items():
                limit = self.began + self.length * part / 100
                last = [sample for sample in samples if part == 100 or sample.at <= limit][-REST_SAMPLES:] or samples[:REST_SAMPLES]
                loaded = [sample.values for sample in self.peaks[who] if part == 100 or sample.at <= limit]
                high = [str(max(values[heading] for values in loaded)) for heading in ("RSS KiB", "descriptors", "threads") if loaded]
                now = medians(last)
                print(f"{part:>4}%  {who:12}" + "".join(f"{now[heading]:15.0f}" for heading in HEADINGS) + "   " + ", ".join(high))

    def judge(self):
        """Returns (name, error or None) of each comparison."""
        for who, samples in self.at_rest.items():
            quarters = [[], [], [], []]
            for sample in samples:
                quarters[min(3, int(4 * (sample.at - self.began) / self.length))].append(sample)
            half = quarters[2] + quarters[3]
            if not quarters[1] or not quarters[3] or len(half) < 3 * REST_SAMPLES:
                yield f"{who}", "was at rest in the second quarter and after it too seldom: more minutes are needed"
                continue
            early, late = medians(quarters[1]), medians(quarters[3])
            yield self.judge_anonymous(who, early, late)
            yield self.judge_in_use(who, half)
            reported = f"{early['file KiB']:.0f} → {late['file KiB']:.0f} KiB of {late['mapped KiB']:.0f} KiB that are mapped"
            yield f"{who}: pages of files {reported}", "more than the mapped files" if late["file KiB"] > late["mapped KiB"] else None
            for heading in COUNTED:
                wrong = "not equal" if early[heading] != late[heading] else None
                if wrong and heading == "descriptors":
                    wrong = f"now {dict(descriptors(self.watched[who]))}, at the start {dict(self.kinds[who])}"
                yield f"{who}: {heading} {early[heading]:g} → {late[heading]:g}", wrong

    @staticmethod
    def judge_anonymous(who, early, late):
        lines = late["lines KiB"] - early["lines KiB"]
        more = late["anonymous KiB"] - early["anonymous KiB"] - lines
        reported = f"{early['anonymous KiB']:.0f} → {late['anonymous KiB']:.0f} KiB, {lines:.0f} of them the page's lines"
        return f"{who}: anonymous memory {reported}", f"{more:.0f} KiB more, {ANONYMOUS_KIB} are allowed" if more > ANONYMOUS_KIB else None

    @staticmethod
    def judge_in_use(who, samples):
        # Once per rest: its samples share a number.
        slope = slope_a_minute(samples[::REST_SAMPLES], "in use KiB") - slope_a_minute(samples[::REST_SAMPLES], "lines KiB")
        return (f"{who}: in use of the heap {slope:+.1f} KiB a minute in the last half",
                f"{IN_USE_KIB_A_MINUTE} KiB are allowed" if slope > IN_USE_KIB_A_MINUTE else None)

    def close(self):
        for visitor in self.visitors:
            self.leave(visitor)
        for node in self.nodes:
            node.end()


def inside(state, minutes, seed):
    """Runs the soak inside the cluster's network. Returns the exit status."""
    soak = Soak(state, seed)
    results = []
    try:
        try:
            soak.run(minutes)
            rests = soak.counts["at rest, as at the start"]
            results.append((f"{rests} times as at the start, by the same processes; no device had two holders", None))
        except Exception as error:
            traceback.print_exc(file=sys.stdout)
            for log in sorted((state / "log").glob("*-agent")):
                print(f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:]))
            results.append(("the loop", f"{type(error).__name__}: {' '.join(str(error).split())}"))
        print(", ".join(f"{name}: {count}" for name, count in sorted(soak.counts.items())))
        if any(soak.at_rest.values()):
            soak.table()
            results += soak.judge()
    finally:
        soak.close()
    for name, wrong in results:
        print(f"FAIL {name}: {wrong}" if wrong else f"ok {name}")
    failed = sum(wrong is not None for _, wrong in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0
