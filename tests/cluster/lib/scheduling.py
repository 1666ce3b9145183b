"""gpulet scheduler as extender of the real kube-scheduler: links, faults, dying replicas, and the accuracy of its predictions."""
import json
import os
import random
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request

import yaml

from lib.examples import EXAMPLES, STAY, submit, with_stand_in
from lib.kube import gpu_pod, is_ready, token_kubeconfig, until
from lib.kubectl import kubectl, manifest
from lib.node import DRIVER_ROOT, GPULET, GPULET_SIM, ROOT

GPU = "nvidia.com/gpu"
GPU_NODES = "/apis/gpulet.io/v1alpha1/gpunodes"
RECORD = "gpulet-scheduler-record"  # in the namespace of the kubeconfig
LINKS = "gpulet.io/gpu-links"
PORTS = (9411, 9412)
PAGE_PORTS = (9413, 9414)  # of the extender and of its page
SERVICE_PORT = 9410
# A GPU that earlier checks have broken returns once its checks pass, without the hold time of its relapses.
HOLD = ["--health-recovery-hold=1s", "--health-max-recovery-hold=1s"]
ADMISSIONS = int(os.environ.get("GPULET_ADMISSIONS", "30"))  # more of them: by hand
LOAD_PODS = 24
AWAY_S = 1.0  # from a fault until no new Pod is scheduled there
BUSY_S = 30.0  # for asynchronous effects
MIG_PORT = 9415
MIG_LIMIT_S = 90.0  # the agent looks every 15 s, and not within 10 s of an allocation
MIG_CONFIG = """version: v1
flags: {{migStrategy: mixed}}
gpulet:
  mig: {{onDemand: {{maxGpus: 1, minInterval: 1s, idle: 1s}}}}
  partition:
    - {{devices: [7], mig: {{{mig}}}}}
"""


class Service(threading.Thread):
    """In place of the cluster's Service: each connection goes to a replica that accepts it."""

    def __init__(self, port, replicas):
        super().__init__(daemon=True)
        self.replicas, self.turn, self.open = replicas, 0, True
        self.listening = socket.create_server(("127.0.0.1", port))

    def run(self):
        while self.open:
            try:
                client, _ = self.listening.accept()
            except OSError:
                return
            self.turn += 1
            for offset in range(len(self.replicas)):
                try:
                    replica = socket.create_connection(("127.0.0.1", self.replicas[(self.turn + offset) % len(self.replicas)]), 1)
                    break
                except OSError:
                    continue
            else:
                client.close()
                continue
            for source, sink in ((client, replica), (replica, client)):
                threading.Thread(target=self.carry, args=(source, sink), daemon=True).start()

    @staticmethod
    def carry(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.open = False
        self.listening.close()


class SchedulingChecks:
    def __init__(self, checks):
        self.checks, self.kube, self.state = checks, checks.kube, checks.n1.state
        self.n1, self.n2 = checks.nodes
        self.replicas, self.service, self.scheduler = {}, None, None
        self.random = random.Random(8)
        self.nudges = 0

    def run(self):
        return [
            ("the CRD is installed, and each agent publishes its node", self.publish),
            ("a scheduler that does not ask is noticed", self.unasked),
            ("two replicas serve kube-scheduler", self.begin),
            ("the cluster page, with the chart's rights and for whom the API server permits", self.cluster_page),
            ("four linked GPUs are on one node, though the other is emptier", self.linked),
            ("a Pod that fits nowhere gets the reason", self.reported),
            ("examples/priorities.yaml: training takes linked GPUs from the fewest batch Pods", self.preempted),
            ("a malformed annotation is reported, and the default used", self.malformed),
            ("requests of GPU memory as HAMi and KAI write them", self.memory),
            ("a Pod written for KAI runs unchanged with deploy/admission/kai-pods.yaml", self.kai_unchanged),
            ("Pods get the GPUs that they choose, as HAMi and gpulet write them", self.chosen),
            (f"in {ADMISSIONS} admissions the devices assumed are those given", self.agreement),
            ("a hot node is avoided", self.hot),
            ("what a service did outlives its agent, and follows its Pods to another node", self.remembered),
            ("a fault moves new Pods away", self.fault),
            (f"one replica killed under {LOAD_PODS} Pods", self.killed),
            ("gpulet explain, with and without an extender", self.explained),
            ("a Pod that waits for a MIG device gets one on demand, and the layout returns", self.mig_on_demand),
            ("kube-scheduler is restored", self.end),
        ]

    # Helpers of the checks.
    def pod(self, name, gpus, annotations=None, **more):
        pod = gpu_pod(name, gpus, **more)
        pod["metadata"]["annotations"] = annotations or {}
        return pod

    def node_of(self, name):
        return until(f"{name} is bound", lambda: self.kube.pod(name)["spec"].get("nodeName"), BUSY_S)

    def explain(self, name, port=PORTS[0]):
        url = f"http://127.0.0.1:{port}/explain?namespace=default&pod={name}&format=json"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)

    def answers(self, name, port=PORTS[0]):
        """Node → its message."""
        return {node["node"]: node for node in self.explain(name, port)["nodes"]}

    def wait_event(self, name, reason, *parts):
        def reported():
            return next((event["message"] for event in self.kube.events_about(name) if event["reason"] == reason and
                         all(part in event.get("message", "") for part in parts)), None)
        return until(f"an event {reason} about {name} with {parts}", reported, BUSY_S)

    def remove(self, *names):
        for name in names:
            self.kube.delete_pod(name)
        until("they have gone", lambda: not set(names) & set(self.kube.pods()), BUSY_S)

    def wait_free(self, **counts):
        """Waits until both replicas count these free GPUs per node, by a Pod that requests too many."""
        for port in PORTS:
            if port not in self.replicas:
                continue

            def counted(port=port):
                found = {name: int(match[1]) for name, node in self.answers("too-many", port).items()
                         if (match := re.search(r", (\d+) free", node.get("reason", "")))}
                return found == counts
            until(f"{counts} are free on port {port}", counted, BUSY_S)

    def start_replica(self, port, *more):
        with open(self.state / "log" / f"scheduler-{port}", "a", encoding="utf-8") as log:
            self.replicas[port] = subprocess.Popen(
                [GPULET, "scheduler", f"--listen=127.0.0.1:{port}", f"--record={RECORD}", "--shutdown-seconds=0", *more], stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, env={**os.environ, "KUBECONFIG": str(self.state / "kubeconfig")})

    def start_scheduler(self, *arguments):
        with open(self.state / "log" / "cp-kube-scheduler", "a", encoding="utf-8") as log:
            return subprocess.Popen(["kube-scheduler", *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    # The checks.
    def publish(self):
        text = (self.checks.root / "deploy/static/scheduler.yaml").read_text()
        shipped = "\n---\n".join(part for part in text.split("\n---\n") if "kind: Deployment" not in part)
        kubectl("create", "namespace", "gpulet")
        kubectl("apply", "-f", "-", text=shipped)
        for node in self.checks.nodes:
            node.nvml("gpus")
            node.start_agent(arguments=["--metrics-interval=1s", *HOLD])
        for node in self.checks.nodes:
            node.wait_allocatable(self.kube, 8)

        def published():
            found = {item["metadata"]["name"]: item for item in self.kube.get(GPU_NODES)["items"]}
            return found if set(found) == {"n1", "n2"} and all(
                len(item["spec"]["resources"][0]["units"]) == 8 for item in found.values() if item["spec"]["resources"]) and all(
                    item["spec"]["resources"] for item in found.values()) else None
        found = until("both nodes are published", published, BUSY_S)
        for name, item in found.items():
            owner = item["metadata"]["ownerReferences"][0]
            assert owner["kind"] == "Node" and owner["name"] == name, owner
            print(f"   {name}: {len(json.dumps(item['spec']))} bytes, {item['spec']['summary']}, "
                  f"{item['spec']['links']['classes']}", flush=True)

    def unasked(self):
        """kube-scheduler has no extender yet."""
        kubectl("create", "configmap", RECORD)
        for port in PORTS:
            self.start_replica(port)
        for port in PORTS:
            until(f"the replica on port {port} is ready", lambda port=port: is_ready(port), BUSY_S)
        self.kube.create_pod(self.pod("unasked", 1))
        self.node_of("unasked")
        until("a replica has judged it", lambda: any(event["reason"] == "GpuSchedulerNotAsked" for event in
                                                     self.kube.events_about("unasked")), 2 * BUSY_S)
        data = self.kube.get(f"/api/v1/namespaces/default/configmaps/{RECORD}")["data"]
        assert data["missed.default-scheduler.nvidia.com_gpu"].endswith(" default/unasked"), data
        self.remove("unasked")

    def print_config(self, *arguments):
        return subprocess.run([GPULET, "scheduler", "config", "--kubeconfig", self.state / "kubeconfig", *arguments], check=True,
                              capture_output=True, text=True).stdout

    def configuration(self):
        """As printed for kubeadm, but for what this cluster has elsewhere."""
        address = self.kube.get("/api/v1/namespaces/gpulet/services/gpulet-scheduler")["spec"]["clusterIP"]
        text = self.print_config() + "podInitialBackoffSeconds: 1\npodMaxBackoffSeconds: 1\n"
        for printed, here in ((f"http://{address}:9410", f"http://127.0.0.1:{SERVICE_PORT}"), ("leaderElect: true", "leaderElect: false"),
                              ("/etc/kubernetes/scheduler.conf", str(self.state / "kubeconfig"))):
            assert text.count(printed) == 1, (printed, text)
            text = text.replace(printed, here)
        assert "- name: nvidia.com/gpu\n" in text, text
        return text

    def begin(self):
        kubectl("apply", "--dry-run=server", "-f", "-", text=self.print_config("--for=second-scheduler", "--image=kube-scheduler"))
        self.service = Service(SERVICE_PORT, PORTS)
        self.service.start()
        pid = self.state / "pid" / "cp-kube-scheduler"
        os.kill(int(pid.read_text()), signal.SIGTERM)
        configuration = self.state / "kube-scheduler.yaml"
        configuration.write_text(self.configuration())
        self.scheduler = self.start_scheduler(f"--config={configuration}")
        pid.write_text(str(self.scheduler.pid))
        # Requests more than any node has, so it stays pending.
        self.kube.create_pod(self.pod("too-many", 16))
        self.wait_free(n1=8, n2=8)
        self.kube.create_pod(self.pod("asked", 1))
        self.node_of("asked")
        until("the replicas know that they were asked", lambda: "asked.default-scheduler.nvidia.com_gpu" in self.kube.get(
            f"/api/v1/namespaces/default/configmaps/{RECORD}")["data"], BUSY_S)
        self.remove("asked")
        self.wait_free(n1=8, n2=8)

    @staticmethod
    def read_page(token=None):
        """(status, document or text)"""
        request = urllib.request.Request(f"https://127.0.0.1:{PAGE_PORTS[1]}/api/cluster", headers={"Authorization": f"Bearer {token}"} if token else {})
        try:
            with urllib.request.urlopen(request, timeout=10, context=ssl._create_unverified_context()) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def account_token(self, name):
        kubectl("create", "serviceaccount", name)
        return self.kube.call("POST", f"/api/v1/namespaces/default/serviceaccounts/{name}/token", {"spec": {"expirationSeconds": 3600}})["status"]["token"]

    def cluster_page(self):
        shipped = next(item for item in manifest(self.checks.root / "deploy/static/scheduler.yaml")
                       if (item["kind"], item["metadata"]["name"]) == ("ClusterRole", "gpulet-scheduler"))
        rules = shipped["rules"] + [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}]
        for name, granted in (("page", rules), ("gpulet-cluster-page", [{"nonResourceURLs": ["/cluster"], "verbs": ["get"]}])):
            kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": granted}))
        kubeconfig = self.state / "page.kubeconfig"
        kubeconfig.write_text(token_kubeconfig(self.state, self.account_token("page")))
        for role in ("page", "system:auth-delegator"):
            kubectl("create", "clusterrolebinding", f"page:{role}", "--clusterrole", role, "--serviceaccount", "default:page")
        reader = self.account_token("page-reader")
        log = self.state / "log" / "scheduler-page"
        with open(log, "a", encoding="utf-8") as out:
            server = subprocess.Popen(
                [GPULET, "scheduler", f"--listen=127.0.0.1:{PAGE_PORTS[0]}", f"--page-address=127.0.0.1:{PAGE_PORTS[1]}", "--shutdown-seconds=0"],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, "KUBECONFIG": str(kubeconfig)})
        try:
            until("the page asks for a token", lambda: self.read_page()[0] == 401, BUSY_S)
            assert self.read_page("x.y.z")[0] == 401
            status, text = self.read_page(reader)
            assert status == 403 and "system:serviceaccount:default:page-reader" in text, (status, text)
            kubectl("create", "clusterrolebinding", "page-reader", "--clusterrole", "gpulet-cluster-page", "--serviceaccount", "default:page-reader")
            until("the reader may read", lambda: self.read_page(reader)[0] == 200, BUSY_S)
            document = self.read_page(reader)[1]
            assert [(node["name"], len(node["gpus"])) for node in document["nodes"]] == [("n1", 8), ("n2", 8)], document
            pending = {pod["name"]: pod for pod in document["pending"]}["too-many"]
            assert pending["fits"] == 0 and pending["rejected"] == 2 and "8 free of 16 requested" in pending["reasons"][0][0], pending
            self.kube.patch("/api/v1/nodes/n2", {"spec": {"unschedulable": True}})
            until("the page shows the cordon", lambda: [node.get("cordoned") for node in self.read_page(reader)[1]["nodes"]] == [None, True], BUSY_S)
            self.kube.patch("/api/v1/nodes/n2", {"spec": {"unschedulable": None}})
            until("and its end", lambda: not any("cordoned" in node for node in self.read_page(reader)[1]["nodes"]), BUSY_S)
            assert server.poll() is None and "forbidden" not in log.read_text(), log.read_text()
        finally:
            server.terminate()
            server.wait(20)

    def linked(self):
        """n1's GPUs are all linked by NVLink, n2's none; four of n1's are held, so that n2 is the emptier node."""
        self.kube.create_pod(self.pod("holder", 4, node="n1"))
        self.checks.wait_running("holder")
        self.wait_free(n1=4, n2=8)
        self.kube.create_pod(self.pod("linked", 4, {LINKS: "NV"}))
        assert self.node_of("linked") == "n1", self.explain("linked")
        self.checks.wait_running("linked")
        held = self.n1.resources.held()
        assert len(held["linked"]) == 4 and not set(held["linked"]) & set(held["holder"]), held

    def reported(self):
        """n1 is full, so that kube-scheduler sends only n2."""
        self.kube.create_pod(self.pod("waits", 4, {LINKS: "NV"}))
        message = self.wait_event("waits", "GpuUnschedulable", "no node of 1 fits: n2: 0/8 held, 8 free but no 4 linked by NV")
        print(f"   {message}", flush=True)
        hints = self.explain("waits")["hints"]
        assert any(LINKS in hint and "n2" in hint for hint in hints), hints
        self.remove("holder")  # the Pod waits for it
        assert self.node_of("waits") == "n1"
        self.checks.wait_running("waits")
        self.remove("linked", "waits")
        self.wait_free(n1=8, n2=8)

    def preempted(self):
        """Batch Pods hold all GPUs of both nodes; four of n1's leave, since n2's GPUs are not linked."""
        items = with_stand_in(list(yaml.safe_load_all((EXAMPLES / "priorities.yaml").read_text())))
        batch, training = (next(item for item in items if item["metadata"]["name"] == name) for name in ("batch-frames", "linked-training"))
        batch["spec"].update(parallelism=16, completions=16)
        for job in (batch, training):
            job["spec"]["template"]["spec"]["containers"][0]["command"][2] = STAY
        submit([item for item in items if item is not training])

        def running(app):
            return [pod for pod in self.kube.pods().values() if pod["metadata"]["labels"].get("app") == app and
                    pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]]
        until("batch Pods hold all GPUs", lambda: len(running("batch-frames")) == 16, 2 * BUSY_S)
        self.wait_free(n1=0, n2=0)
        submit([training])
        pod = until("the training runs", lambda: running("linked-training"), 2 * BUSY_S)[0]
        assert pod["spec"]["nodeName"] == "n1", pod["spec"]
        left = [pod["spec"]["nodeName"] for pod in running("batch-frames")]
        assert (left.count("n1"), left.count("n2")) == (4, 8), left
        kubectl("delete", "-f", "-", items=items)
        until("their Pods have gone", lambda: not [name for name in self.kube.pods() if name != "too-many"], BUSY_S)
        self.wait_free(n1=8, n2=8)

    def malformed(self):
        self.kube.create_pod(self.pod("odd", 1, {LINKS: "fast", "gpulet.io/policy": "bestest"}))
        self.node_of("odd")
        self.wait_event("odd", "GpuRequestMalformed", f'{LINKS} is "fast"', 'gpulet.io/policy is "bestest"', "expected")
        self.checks.wait_running("odd")
        self.remove("odd")
        self.wait_free(n1=8, n2=8)

    def memory(self):
        """No node offers HAMi's amounts: kube-scheduler and the kubelet must not count them. n1's GPUs have 80 GB, n2's 48."""
        def hami(name, mib, annotations=None):
            pod = self.pod(name, 1, annotations)
            pod["spec"]["containers"][0]["resources"]["limits"].update({"nvidia.com/gpumem": str(mib), "nvidia.com/gpucores": "30"})
            return pod
        of_main = "nvidia.com/container.main.gpu-"
        kai = {"kai": (1, {"gpu-memory": "60000"}),
               "kai-two": (2, {"gpu-memory": "60000", "gpu-fraction-num-devices": "2", "gpu-fraction-container-name": "main"}),
               "kai-quantity": (1, {f"{of_main}memory.request": "56Gi", f"{of_main}memory.limit": "70Gi", f"{of_main}compute.mode": "time-slicing"}),
               "kai-fraction": (1, {"gpu-fraction": "0.5"})}
        self.kube.create_pod(hami("hami", 60000))
        percentage = self.pod("hami-percentage", 1)
        percentage["spec"]["containers"][0]["resources"]["limits"].update({"nvidia.com/gpumem-percentage": "50", "nvidia.com/gpucores": "30"})
        self.kube.create_pod(percentage)
        for name, (gpus, annotations) in kai.items():
            self.kube.create_pod(self.pod(name, gpus, annotations))
        anywhere = ("hami-percentage", "kai-fraction")
        for name in ("hami", *anywhere, *kai):
            assert name in anywhere or self.node_of(name) == "n1", self.explain(name)
            self.checks.wait_running(name)
        self.kube.create_pod(hami("too-large", 100000))
        self.wait_event("too-large", "GpuUnschedulable", "100000Mi of memory required")
        explained = self.explain("too-large")
        assert explained["hints"], explained
        hints = explained["hints"]
        assert hints[0].startswith("without the limit nvidia.com/gpumem of container main it fits on"), hints
        self.kube.create_pod(hami("two-minds", 8192, {"gpu-memory": "4096"}))
        line = ('annotation gpu-memory is "4096": expected the same memory as limit nvidia.com/gpumem of container main, "8192", '
                'or one of them')
        # The API server returns 8192 as it is, and a multiple of 1000 with a suffix.
        self.wait_event("two-minds", "GpuUnschedulable", line)
        assert {node["reason"] for node in self.explain("two-minds")["nodes"]} == {line}, self.explain("two-minds")
        self.remove("hami", "hami-percentage", *kai, "too-large", "two-minds")
        self.wait_free(n1=8, n2=8)

    def kai_unchanged(self):
        """Its scheduler and its queue are not there, and it names no GPU. A Pod without a GPU is left as it is."""
        def pod(name, annotations, containers=("main",)):
            made = self.pod(name, 0, annotations)
            made["metadata"]["labels"]["kai.scheduler/queue"] = "default-queue"
            made["spec"]["schedulerName"] = "kai-scheduler"
            made["spec"]["containers"] = [{**made["spec"]["containers"][0], "name": container} for container in containers]
            return made

        def gpus(made):
            return {one["name"]: one["resources"].get("limits", {}).get("nvidia.com/gpu") for one in made["spec"]["containers"]}

        policy = str(ROOT / "deploy" / "admission" / "kai-pods.yaml")
        kubectl("apply", "-f", policy)
        pods = "/api/v1/namespaces/default/pods?dryRun=All"
        until("the policy is in force", lambda: gpus(self.kube.call("POST", pods, pod("tried", {"gpu-memory": "1"}))) == {"main": "1"}, BUSY_S)
        for name, annotations, containers, expected in (
                ("kai-memory", {"gpu-memory": "60000"}, ("main",), {"main": "1"}),
                ("kai-two-gpus", {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2", "gpu-fraction-container-name": "second"},
                 ("main", "second"), {"main": None, "second": "2"}),
                ("kai-request", {"nvidia.com/container.second.gpu-memory.request": "56Gi"}, ("main", "second"), {"main": None, "second": "1"})):
            made = self.kube.create_pod(pod(name, annotations, containers))
            assert gpus(made) == expected and made["spec"]["schedulerName"] == "default-scheduler", made["spec"]
            self.checks.wait_running(name)
        assert self.node_of("kai-memory") == self.node_of("kai-request") == "n1", "their amount fits on n1 alone"
        plain = self.kube.call("POST", pods, pod("plain", {}))
        assert gpus(plain) == {"main": None} and plain["spec"]["schedulerName"] == "kai-scheduler", plain["spec"]
        self.remove("kai-memory", "kai-two-gpus", "kai-request")
        kubectl("delete", "-f", policy)
        self.wait_free(n1=8, n2=8)

    def chosen(self):
        """A Pod waits until the node would allocate the GPU that it names."""
        uuids = {gpu["index"]: uuid for uuid, gpu in self.n1.gpus.items()}
        self.kube.create_pod(self.pod("named", 1, {"nvidia.com/use-gpuuuid": uuids[5]}))
        self.wait_event("named", "GpuUnschedulable", "would be allocated", f"UUID {uuids[5]} required")
        self.remove("named")
        first = uuids[0]  # of an empty node
        for name, annotations in (("named", {"nvidia.com/use-gpuuuid": first}), ("on-numa-node", {"gpulet.io/gpu-numa": "0"})):
            self.kube.create_pod(self.pod(name, 1, annotations, node=None if name == "named" else "n1"))
            self.checks.wait_running(name)
        held = self.n1.resources.held()
        assert held["named"] == [first] and self.n1.numa_of(held["on-numa-node"][0]) == 0, held
        self.remove("named", "on-numa-node")
        self.wait_free(n1=8, n2=8)

    def agreement(self):
        """A scheduling gate delays each Pod until the extender has predicted its devices; then the Pod must get them. On n1 only, because
        n2's Topology Manager restricts the devices that the agent can choose from."""
        alive, free = [], 8
        for number in range(ADMISSIONS):
            name, gpus = f"agree-{number}", self.random.choice((1, 1, 2, 4))
            while free < gpus:
                self.remove(alive.pop(self.random.randrange(len(alive))))
                free = 8 - sum(map(len, self.n1.resources.held().values()))
            pod = self.pod(name, gpus, node="n1")
            pod["spec"]["schedulingGates"] = [{"name": "test/gate"}]
            self.kube.create_pod(pod)
            self.wait_free(n1=free, n2=8)
            expected = self.answers(name)["n1"]
            before = {holder: sorted(self.n1.gpus[uuid]["index"] for uuid in uuids)
                      for holder, uuids in self.n1.resources.held().items()}
            self.kube.call("PATCH", f"/api/v1/namespaces/default/pods/{name}", {"spec": {"schedulingGates": None}},
                           kind="application/merge-patch+json")
            self.checks.wait_running(name)
            given = {self.n1.gpus[uuid]["index"] for uuid in self.n1.resources.held()[name]}
            said = {int(index) for index in re.match(r"GPU ([\d, ]*\d)", expected["devices"])[1].split(",")}
            assert given == said, (f"{name}: assumed {said}, given {given}; held before {before}, published "
                                   f"{self.kube.get(f'{GPU_NODES}/n1')['spec'].get('holders')}")
            alive.append(name)
            free -= gpus
        self.remove(*alive)
        self.wait_free(n1=8, n2=8)

    def hot(self):
        """Half of each node is in use, and busy on one: new Pods go to the other."""
        for hot, cool in ((self.n1, self.n2), (self.n2, self.n1)):
            # A Pod begins with what its namesake did, where that is known from a whole hour.
            halves = {node: f"half-{node.name}-{hot.name}-hot" for node in (hot, cool)}
            for node, name in halves.items():
                self.kube.create_pod(self.pod(name, 4, node=node.name))
                self.checks.wait_running(name)
            for uuid in hot.resources.held()[halves[hot]]:
                hot.run(GPULET_SIM, "load", hot.gpus[uuid]["index"], 100, "--root", DRIVER_ROOT)
            # The Pod began idle: its mean rises with time. The other's falls, whatever its first sample was.
            until(f"{hot.name} publishes a high load", lambda hot=hot: self.peak_after_a_nudge(hot) > 50, BUSY_S)
            until(f"{cool.name} publishes a low load", lambda cool=cool: self.peak_after_a_nudge(cool) < 10, BUSY_S)
            self.wait_free(**{hot.name: 4, cool.name: 4})
            names = [f"goes-{number}" for number in range(3)]
            for name in names:
                self.kube.create_pod(self.pod(name, 1, {"gpulet.io/policy": "load"}))
                assert self.node_of(name) == cool.name, self.explain(name)
                self.checks.wait_running(name)
            self.remove(*names, *halves.values())
            for gpu in hot.gpus.values():
                hot.run(GPULET_SIM, "load", gpu["index"], 0, "--root", DRIVER_ROOT)
            self.wait_free(n1=8, n2=8)

    def peak(self, node):
        """The highest expected load of the day, in percent, of any GPU in the node's object."""
        loads = [gpu.get("load", "") for gpu in self.kube.get(f"{GPU_NODES}/{node.name}")["spec"]["gpus"]]
        return max((part for load in loads for part in bytes.fromhex(load[:16])), default=0)

    def peak_after_a_nudge(self, node):
        """Loads alone are written once a minute; a new Pod triggers a write."""
        self.nudges += 1
        name = f"nudge-{self.nudges}"
        self.kube.create_pod(self.pod(name, 1, node=node.name))
        self.checks.wait_running(name)
        until("its node's object has it", lambda: f"default/{name}" in [
            holder["pod"] for holder in self.kube.get(f"{GPU_NODES}/{node.name}")["spec"].get("holders", [])], BUSY_S)
        peak = self.peak(node)
        self.remove(name)
        return peak

    def remembered(self):
        """A GpuNode as an agent leaves it after two days with a service of 90 %; nothing else knows the service."""
        known = {"name": "default/web", "load": "5a" * 8 + "14", "hours": 48, "lastHour": int(time.time() / 3600)}
        self.n1.stop_agent()
        self.kube.call("PATCH", f"{GPU_NODES}/n1", {"spec": {"controllers": [known], "driver": "0"}}, "application/merge-patch+json")
        self.n1.start_agent(arguments=["--metrics-interval=1s", *HOLD])
        self.n1.wait_allocatable(self.kube, 8)

        def object_of(name):
            return self.kube.get(f"{GPU_NODES}/{name}")
        published = until("the new agent publishes", lambda: (spec := object_of("n1")["spec"])["driver"] != "0" and spec, BUSY_S)
        assert published["controllers"] == [known], published
        # A new version of the service comes to n2 and has not done anything yet.
        until("n2 expects nothing", lambda: self.peak_after_a_nudge(self.n2) < 50, BUSY_S)
        pod = "web-7c6b9b4b5f-x2x9k"
        self.kube.create_pod(self.pod(pod, 1, node="n2"))
        self.checks.wait_running(pod)
        until("the extender sends what n1 knows", lambda: object_of("n2").get("status", {}).get("controllers") == [known], BUSY_S)
        until("n2 expects it of the idle Pod", lambda: self.peak_after_a_nudge(self.n2) > 80, BUSY_S)
        self.remove(pod)
        self.wait_free(n1=8, n2=8)

    def fault(self):
        self.kube.create_pod(self.pod("probe", 8, {LINKS: "NV"}))
        self.node_of("probe")
        self.remove("probe")
        self.wait_free(n1=8, n2=8)
        pod = self.pod("eight", 8, {LINKS: "NV"})
        pod["spec"]["schedulingGates"] = [{"name": "test/gate"}]
        self.kube.create_pod(pod)
        until("it would fit", lambda: self.answers("eight")["n1"]["fits"], BUSY_S)
        gpu = self.n1.gpu(3)
        self.n1.run(GPULET_SIM, "xid", gpu["index"], 79, "--root", DRIVER_ROOT)
        for port in PORTS:
            until(f"nothing goes there by the replica on port {port}",
                  lambda port=port: not self.answers("eight", port)["n1"]["fits"], AWAY_S, 0.02)
        reason = self.answers("eight")["n1"]["reason"]
        assert reason == "0/8 held, 1 lost (XID 79), 7 free of 8 requested", reason
        self.remove("eight")
        self.kube.create_pod(self.pod("seven", 7, {LINKS: "NV"}))
        assert self.node_of("seven") == "n1"
        self.checks.wait_running("seven")
        assert gpu["uuid"] not in self.n1.resources.held()["seven"]
        self.seen_by_kubectl("seven", gpu["index"])
        self.remove("seven")
        self.n1.run(GPULET_SIM, "heal", gpu["index"], "--root", DRIVER_ROOT)

    def seen_by_kubectl(self, pod, lost):
        """The plugin of kubectl, with the GPU of n1 that is lost and the others held by the Pod."""
        def plugin(*words):
            done = subprocess.run(["kubectl", *words], env={**os.environ, "PATH": f"{GPULET.parent}:{os.environ['PATH']}"},
                                  capture_output=True, text=True, check=False)
            return done.returncode, done.stdout

        def held():
            document = json.loads(plugin("gpulet", "list", "n1", "-n", "default", "-o", "json")[1])
            return {gpu["index"] for gpu in document["gpus"] if any(holder["pod"] == pod for holder in gpu["heldBy"])}
        until("kubectl gpulet health names the node", lambda: plugin("gpulet", "health", "-o", "name") == (3, "node/n1\n"), BUSY_S)
        until("kubectl gpulet list shows who holds the others", lambda: held() == set(range(8)) - {int(lost)}, BUSY_S)
        code, text = plugin("gpulet", "doctor", "-o", "json")
        verdicts = {check["id"]: check["verdict"] for check in json.loads(text)["checks"]}
        assert code == 1 and verdicts["gpu-health"] == "fail" and "unknown" not in verdicts.values(), (code, verdicts)
        code, text = plugin("__complete", "gpulet", "hea")
        assert code == 0 and text.startswith("health\t"), text

    def killed(self):
        names = [f"load-{number}" for number in range(LOAD_PODS)]
        for number, name in enumerate(names):
            self.kube.create_pod(self.pod(name, 1, script="exit 0"))
            if number == LOAD_PODS // 2:
                victim = self.replicas.pop(PORTS[0])
                victim.kill()
                victim.wait()

        def phases():
            pods = self.kube.pods()
            return all(pods[name]["status"]["phase"] == "Succeeded" for name in names)
        until("every Pod has run", phases, 60)
        with urllib.request.urlopen(f"http://127.0.0.1:{PORTS[1]}/metrics", timeout=5) as page:
            asked = re.search(r'decision_seconds_count\{verb="filter"\} (\d+)', page.read().decode())
        assert asked and int(asked[1]) > 0, "the other replica was not asked"
        self.remove(*names)
        self.start_replica(PORTS[0])
        until("a new replica knows all", lambda: is_ready(PORTS[0]), BUSY_S)

    def explained(self):
        """Without that Service, the command computes the explanation itself, with the same code."""
        words = [str(GPULET), "explain", "too-many", "--kubeconfig", str(self.state / "kubeconfig"), "-o", "json"]
        alone = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        asked = self.explain("too-many", PORTS[1])
        assert alone == asked, (alone, asked)
        assert any("no node has 16" in hint for hint in alone["hints"]), alone["hints"]
        url = f"--url=http://localhost:{PORTS[1]}"
        by_url = subprocess.run([str(GPULET), "explain", "too-many", url, "-o", "json"], check=True, capture_output=True, text=True)
        assert json.loads(by_url.stdout) == alone, by_url.stdout
        gone = subprocess.run([*words[:2], "nobody", *words[3:]], capture_output=True, text=True)
        assert gone.returncode == 1 and "no such Pod" in gone.stderr, gone

    def mig_on_demand(self):
        """GPU 7 of n1 has seven small devices; a Pod keeps one of them while another waits for half of the GPU."""
        small, half = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
        self.start_replica(MIG_PORT, "--mig-demand-after=1")
        self.n1.stop_agent()
        self.n1.write_config(MIG_CONFIG.format(mig="layout: all-1g.10gb, onDemand: true"))
        self.n1.start_agent(arguments=["--config-file", self.n1.config, *HOLD])
        self.n1.wait_allocatable(self.kube, 7, MIG_LIMIT_S, small)
        self.checks.run_pod("tenant", 1, "n1", resource=small)
        held = self.n1.resources.held()["tenant"]
        self.kube.create_pod(gpu_pod("waits", 1, resource=half))
        started = time.monotonic()
        until("the Pod runs", lambda: self.kube.pod("waits")["status"]["phase"] == "Running", MIG_LIMIT_S)
        print(f"   the Pod runs {time.monotonic() - started:.1f} s after it was created", flush=True)
        assert self.n1.resources.held()["tenant"] == held, "the other Pod's device is not as before"
        until("an event of the Pod", lambda: [event for event in self.kube.events() if event.get("reason") == "MigDeviceRequested"
                                              and event["involvedObject"]["name"] == "waits"], BUSY_S)
        self.remove("waits")
        self.n1.wait_allocatable(self.kube, 7, MIG_LIMIT_S, small)
        assert self.n1.resources.held()["tenant"] == held, "the other Pod's device is not as before"
        self.remove("tenant")
        self.n1.write_config(MIG_CONFIG.format(mig="layout: all-disabled"))
        until("MIG is off", lambda: not self.n1.partitioned(), MIG_LIMIT_S)
        self.n1.write_config("version: v1\n")
        self.n1.wait_allocatable(self.kube, 8)

    def end(self):
        self.remove("too-many")
        for replica in self.replicas.values():
            replica.terminate()
            assert replica.wait(timeout=10) == 0
        self.replicas = {}
        self.service.close()
        self.scheduler.terminate()
        self.scheduler.wait()
        back = self.start_scheduler(f"--kubeconfig={self.state / 'kubeconfig'}", "--leader-elect=false")
        (self.state / "pid" / "cp-kube-scheduler").write_text(str(back.pid))
        for node in self.checks.nodes:
            node.stop_agent()
        kubectl("delete", "configmap", RECORD)
        kubectl("delete", "crd", "gpunodes.gpulet.io")
        kubectl("delete", "namespace", "gpulet", "--wait=true")
