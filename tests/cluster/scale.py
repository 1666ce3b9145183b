#!/usr/bin/python3
"""Measures the extender at scale: the real API server and kube-scheduler, nodes by kwok, each with 8 GPUs and a GpuNode object.

  tests/cluster/scale.py [--nodes 500,1000,2500,5000] [--pods N] [--limited] [--plot FILE.svg]

For each node count, Pods (two per node, or N; of 1, 2, 4 or 8 GPUs, seeded) are scheduled in three ways: by kube-scheduler alone,
with `gpulet scheduler`, and with an extender that passes only its best node. Then one client calls filter with the names of all
nodes, and prioritize with the passing ones. Prints one table row per node count: Pods per second for each way, the time of a decision
(by the extender's histogram during scheduling, and at the client for all nodes), and resident memory. kube-scheduler's default limit
of 50 API requests per second is lifted unless --limited is given. Takes many minutes on an otherwise idle machine.
"""
import argparse
import http.client
import json
import os
import pathlib
import random
import re
import ssl
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from lib.kube import ApiError, Kube, gpu_pod, is_ready, until  # noqa: E402
from lib.kube_scheduler import configuration  # noqa: E402
from lib.kubectl import kubectl  # noqa: E402
from lib.testbed import kwok_cluster  # noqa: E402

ROOT = HERE.parent.parent
BIN = ROOT / "out" / "bin"
GPU_NODES = "/apis/gpulet.io/v1alpha1/gpunodes"
PODS = "/api/v1/namespaces/default/pods"
PORT, GPUS, WRITERS, SEED = 9410, 8, 8, 8
SIZES = ((1, 60), (2, 20), (4, 12), (8, 8))  # GPUs of a Pod, and how many in a hundred
QUESTIONS = 300
LIMIT_S = 1800.0
UNLIMITED_QPS = 5000  # of kube-scheduler's client


def in_parallel(state, tasks):
    """Runs `tasks` in threads, each with its own Kube."""
    todo, wrong = list(reversed(tasks)), []

    def work():
        kube = Kube(state)
        while todo and not wrong:
            try:
                task = todo.pop()
            except IndexError:
                return
            try:
                task(kube)
            except Exception as error:
                wrong.append(error)
    threads = [threading.Thread(target=work) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]


def resident_mib(pid):
    return next(int(line.split()[1]) for line in open(f"/proc/{pid}/status", encoding="ascii") if line.startswith("VmRSS")) / 1024


class Scale:
    def __init__(self, state, options):
        self.state, self.nodes, self.limited = state, options.nodes[0], options.limited
        self.pods = options.pods or 2 * self.nodes
        self.kube = Kube(state)
        self.kubeconfig = state / "kubeconfig"
        self.extender = self.scheduler = None

    def start(self, name, *command, **env):
        with open(self.state / "log" / name, "a", encoding="utf-8") as log:
            return subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                    env={**os.environ, "KUBECONFIG": str(self.kubeconfig), **env})

    @staticmethod
    def stop(process):
        if process:
            process.terminate()
            process.wait(timeout=60)

    def publish(self):
        """Publishes the object of one real agent for every node."""
        text = (ROOT / "deploy/static/scheduler.yaml").read_text()
        kind = next(part for part in text.split("\n---\n") if "kind: CustomResourceDefinition" in part)
        kubectl("--kubeconfig", self.kubeconfig, "apply", "-f", "-", text=kind)
        root = self.state / "driver"
        subprocess.run([BIN / "gpulet-sim", "up", "hgx-h100", "--root", root, "--no-device-nodes"], check=True, stdout=subprocess.DEVNULL)
        try:
            agent = self.start("agent", BIN / "gpulet", "agent", NODE_NAME="kwok-0", DRIVER_ROOT_CTR_PATH=str(root), NVIDIA_DRIVER_ROOT=str(root),
                               GPULET_KUBELET_DIR=str(self.state / "no-kubelet"), GPULET_STATE_DIR="", GPULET_HEALTH_FILE="", GPULET_KERNEL_LOG="",
                               GPULET_LISTEN="", GPULET_SOCKET="", GPULET_PUBLISH_GPU_NODE="true")

            def said():
                try:
                    found = [item for item in self.kube.get(GPU_NODES)["items"] if item["spec"]["resources"]]
                except ApiError:
                    return None  # a new CRD is served with a delay
                return found[0]["spec"] if found else None
            spec = until("an agent publishes its node", said, 60)
            self.stop(agent)
        finally:
            subprocess.run([BIN / "gpulet-sim", "down", "--root", root], check=True, stdout=subprocess.DEVNULL)

        def write(name):
            body = {"apiVersion": "gpulet.io/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}, "spec": spec}
            return lambda kube: kube.call("POST", GPU_NODES, body)
        in_parallel(self.state, [write(f"kwok-{number}") for number in range(1, self.nodes)])

    def create_pods(self, prefix):
        dice = random.Random(SEED)
        sizes = dice.choices([size for size, _ in SIZES], [weight for _, weight in SIZES], k=self.pods)

        def write(name, size):
            pod = gpu_pod(name, size)
            pod["spec"]["tolerations"] = [{"operator": "Exists"}]
            return lambda kube: kube.call("POST", PODS, pod)
        in_parallel(self.state, [write(f"{prefix}-{number}", size) for number, size in enumerate(sizes)])

    def delete_pods(self, prefix):
        in_parallel(self.state, [lambda kube, name=name: kube.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
                                 for name in (f"{prefix}-{number}" for number in range(self.pods))])
        until("they have gone", lambda: not self.kube.get(f"{PODS}?limit=1")["items"], LIMIT_S, 1)

    def bound(self):
        """As kube-scheduler counts them."""
        context = ssl._create_unverified_context()
        request = urllib.request.Request("https://127.0.0.1:10259/metrics")
        with urllib.request.urlopen(request, timeout=30, context=context) as page:
            counts = re.findall(r'^scheduler_schedule_attempts_total\{[^}]*result="scheduled"[^}]*\} (\S+)', page.read().decode(), re.M)
        return sum(float(count) for count in counts)

    def schedule(self, name, extended=True):
        """Pods a second from the first that is bound to the last."""
        # kwok deletes late and by name: each round uses new names.
        self.create_pods(name)
        configured = self.state / "kube-scheduler.yaml"
        configured.write_text(configuration(self.kubeconfig, PORT if extended else None, qps=None if self.limited else UNLIMITED_QPS))
        self.scheduler = self.start("kube-scheduler", "kube-scheduler", f"--config={configured}", "--authorization-always-allow-paths=/metrics")

        def counted():
            try:
                return self.bound()
            except OSError:
                return 0
        first = until("the first Pods are bound", counted, 120, 0.05)
        begin = time.monotonic()
        until("every Pod is bound", lambda: counted() >= self.pods, LIMIT_S, 0.5)
        rate = (self.pods - first) / (time.monotonic() - begin)
        self.stop(self.scheduler)
        self.scheduler = None
        return rate

    def quantile(self, verb, part):
        """Upper edge of the bucket, in ms, that the extender's histogram has the quantile in."""
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=10) as page:
            text = page.read().decode()
        buckets = [(float(edge), int(count)) for edge, count in re.findall(rf'decision_seconds_bucket\{{verb="{verb}",le="([^"]+)"\}} (\d+)', text)]
        total = buckets[-1][1]
        return next(edge for edge, count in buckets if count >= part * total) * 1e3, total

    def ask(self):
        """Calls filter for all nodes, then prioritize for the passing ones, as one client."""
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=30)
        names, dice, took = [f"kwok-{number}" for number in range(self.nodes)], random.Random(SEED), []
        for number in range(QUESTIONS):
            pod = gpu_pod(f"asks-{number}", dice.choice([size for size, _ in SIZES]))
            pod["metadata"].update(namespace="default", uid=f"asks-{number}")
            asked, spent = names, 0.0
            for verb in ("filter", "prioritize"):
                body = json.dumps({"pod": pod, "nodenames": asked}).encode()
                begin = time.perf_counter()
                connection.request("POST", f"/{verb}", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                said = answer.read()
                spent += time.perf_counter() - begin
                if answer.status != 200:
                    raise AssertionError(f"{verb} was answered {answer.status}: {said[:200]!r}")
                asked = json.loads(said)["NodeNames"] if verb == "filter" else None
            took.append(spent * 1e3)
        took.sort()
        return statistics.median(took), took[int(len(took) * 0.99)]

    def start_extender(self, *more):
        """Returns the seconds until it was ready."""
        self.extender = self.start("extender", BIN / "gpulet", "scheduler", f"--listen=127.0.0.1:{PORT}", "--shutdown-seconds=0", *more)
        begin = time.monotonic()
        until("the extender is ready", lambda: is_ready(PORT), 120, 0.02)
        return time.monotonic() - begin

    def run(self):
        self.publish()
        os.kill(int((self.state / "pid" / "cp-kube-scheduler").read_text()), 15)
        alone = self.schedule("alone", extended=False)
        self.delete_pods("alone")
        listed = self.start_extender()
        before = resident_mib(self.extender.pid)
        extended = self.schedule("extended")
        filter_p99, decisions = self.quantile("filter", 0.99)
        prioritize_p99, _ = self.quantile("prioritize", 0.99)
        full = resident_mib(self.extender.pid)
        median, worst = self.ask()
        self.ask()
        after = resident_mib(self.extender.pid)
        self.stop(self.extender)
        self.delete_pods("extended")
        self.start_extender("--nodes-to-score=1")
        best = self.schedule("best")
        return {"nodes": self.nodes, "pods": self.pods, "Pods/s alone": round(alone, 1), "Pods/s extended": round(extended, 1),
                "Pods/s best node only": round(best, 1), "decisions": decisions,
                "filter p99 ms ≤": filter_p99, "prioritize p99 ms ≤": prioritize_p99,
                "both, all nodes, median ms": round(median, 2), "p99 ms": round(worst, 2), "ready after s": round(listed, 2),
                "MiB empty": round(before, 1), "MiB full": round(full, 1), "MiB after": round(after, 1)}

    def close(self):
        for process in (self.extender, self.scheduler):
            self.stop(process)


def plot(rows, path):
    """Time of a decision for all nodes and memory, against nodes."""
    width, height, left, bottom = 640, 320, 60, 280
    most_nodes = max(row["nodes"] for row in rows)
    series = [("both, all nodes, median ms", "#1f77b4", "median, ms"), ("p99 ms", "#d62728", "p99, ms"), ("MiB full", "#2ca02c", "resident, MiB")]
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/><path d="M{left} 20V{bottom}H{width - 20}" stroke="black" fill="none"/>']
    for index, (key, colour, label) in enumerate(series):
        most = max(row[key] for row in rows) or 1
        points = [(left + row["nodes"] / most_nodes * (width - left - 40), bottom - row[key] / most * (bottom - 40)) for row in rows]
        parts.append(f'<polyline fill="none" stroke="{colour}" points="{" ".join(f"{x:.0f},{y:.0f}" for x, y in points)}"/>')
        parts += [f'<text x="{x:.0f}" y="{y - 4:.0f}" fill="{colour}" text-anchor="end">{row[key]:g}</text>' for (x, y), row in zip(points, rows)]
        parts.append(f'<text x="{left + 10}" y="{34 + 14 * index}" fill="{colour}">{label}</text>')
    parts += [f'<text x="{left + row["nodes"] / most_nodes * (width - left - 40):.0f}" y="{bottom + 16}" text-anchor="middle">{row["nodes"]}</text>' for row in rows]
    path.write_text("\n".join([*parts, f'<text x="{width / 2:.0f}" y="{height - 6}" text-anchor="middle">nodes of 8 GPUs</text></svg>']) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="500,1000,2500,5000", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--pods", type=int)
    parser.add_argument("--limited", action="store_true")
    parser.add_argument("--plot", type=pathlib.Path)
    parser.add_argument("--inside", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        scale = Scale(options.inside, options)
        try:
            print(json.dumps(scale.run()), flush=True)
        finally:
            scale.close()
        return 0
    rows = []
    for nodes in options.nodes:
        more = [*(["--pods", str(options.pods)] if options.pods else []), *(["--limited"] if options.limited else [])]
        with kwok_cluster(nodes, GPUS) as cluster:
            done = cluster.run(HERE / "scale.py", "--nodes", str(nodes), *more, stdout=subprocess.PIPE, text=True)
        done.check_returncode()
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        for key, value in rows[-1].items():
            print(f"{key:28} {value}", flush=True)
        print(flush=True)
    if options.plot:
        plot(rows, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
