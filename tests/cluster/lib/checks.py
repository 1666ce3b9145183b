"""The checks: one function each, in the order of the runs."""
import json
import os
import pathlib
import re
import signal
import shutil
import subprocess
import tempfile
import time

from lib.access import AccessChecks
from lib.autoscaling import AutoscalingChecks
from lib.cdi import CdiChecks
from lib.chart import ChartChecks
from lib.daily_peak import DailyPeakChecks
from lib.double_allocation import DoubleAllocationChecks
from lib.dra import DraChecks
from lib.examples import ExamplesChecks
from lib.health import HealthChecks
from lib.kube import LOOK, ApiError, Timeout, gpu_pod, until
from lib.kubectl import kubectl, manifest
from lib.labels import LabelChecks, MIG_CONFIG, MIG_STATE
from lib.migrate import MigrateChecks
from lib.node import DRIVER_ROOT, GPULET
from lib.operands import OperandsChecks
from lib.operators import OperatorsChecks
from lib.partition import PartitionChecks
from lib.power import PowerChecks
from lib.rights import RightsChecks
from lib.scheduling import SchedulingChecks
from lib.startup import StartupChecks
from lib.storm import Storm
from lib.testbed import TESTBED
from lib.tutorial import TutorialChecks
from lib.workloads import WorkloadsChecks

GPU = "nvidia.com/gpu"
NVLINK_TO_GPU, NVLINK_TO_SWITCH = 0, 2  # NVML_NVLINK_DEVICE_TYPE_*
CONTROL_NODES = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}


class Checks:
    def __init__(self, kube, nodes, root):
        self.kube, self.nodes, self.root = kube, nodes, root
        self.n1, self.n2 = nodes
        self.cdi = CdiChecks(self)

    def runs(self, images, process_steps, chart_steps):
        yield "process", [
            ("every component reports the pinned release, and charts' kubeVersion accepts it", self.versions),
            ("migrate check: NVIDIA's manifest there and back", MigrateChecks().there_and_back),
            ("n1's GPUs are allocatable", self.start_processes),
            ("a late driver", self.late_driver),
            ("the kubelet has each GPU and its NUMA node", self.allocatable),
            ("a Pod for 2 gets a linked pair and only it", self.linked_pair),
            ("Topology Manager restricted: aligned or refused", self.restricted),
            ("a Pod for 9 stays Pending", self.too_many),
            ("kubelet restart", lambda: self.survives(self.restart_kubelets)),
            ("agent killed with -9", lambda: self.survives(self.kill_processes)),
            ("agent upgrade", lambda: self.survives(self.replace_processes)),
            (f"{process_steps} random steps", lambda: self.storm(process_steps, self.kill_processes)),
            *DoubleAllocationChecks(self).run(),
            ("the agent exits at once and withdraws its GPUs", self.stop_processes),
        ]
        yield "partition", PartitionChecks(self).run()
        yield "labels", LabelChecks(self).run()
        yield "power", PowerChecks(self).run()
        yield "rights", RightsChecks(self).run()
        yield "startup", StartupChecks(self).run()
        yield "health", HealthChecks(self).run()
        yield "cdi", self.cdi.run()
        yield "dra", DraChecks(self).run()
        yield "examples", ExamplesChecks(self).run()
        yield "scheduling", SchedulingChecks(self).run()
        yield "access", AccessChecks(self, images[0]).run()
        yield "chart", ChartChecks(self, images, chart_steps).run()
        yield "tutorial", TutorialChecks(self).run()
        yield "autoscaling", AutoscalingChecks(self, images[0]).run()
        yield "operands", OperandsChecks(self).run()
        yield "daily-peak", DailyPeakChecks(self, images[0]).run()
        yield "operators", OperatorsChecks(self, images[0]).run()
        yield "workloads", WorkloadsChecks(self, images[0]).run()

    # The agents as processes.
    def versions(self):
        """As a cluster of released binaries; helm refuses a pre-release such as v0.0.0-master for nearly every constraint."""
        release = re.search(r"^\tk8s\.io/kubernetes (v[0-9.]+)$", (TESTBED.parent / "kube/go.mod").read_text(), re.M).group(1)
        server = self.kube.get("/version")
        assert [server["gitVersion"], server["major"], server["minor"]] == [release, *release[1:].split(".")[:2]], server
        for node in self.kube.get("/api/v1/nodes")["items"]:
            assert node["status"]["nodeInfo"]["kubeletVersion"] == release, node["status"]["nodeInfo"]
        with tempfile.TemporaryDirectory() as chart:
            (pathlib.Path(chart) / "Chart.yaml").write_text(
                f'{{"apiVersion": "v2", "name": "versions", "version": "0.1.0", "kubeVersion": ">= {release[1:]}"}}')
            done = subprocess.run(["helm", "install", "versions", chart, "--dry-run=server"], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr

    def start_processes(self):
        self.n1.driver_up()
        for node in self.nodes:
            node.start_agent()
        self.n1.wait_allocatable(self.kube, 8)

    def late_driver(self):
        time.sleep(1)  # n2's agent has retried its driver several times by now
        assert self.n2.agent.poll() is None, f"the agent ended with {self.n2.agent.returncode}"
        assert self.kube.allocatable("n2", GPU) == 0, "GPUs before there is a driver"
        self.n2.driver_up()
        self.n2.wait_allocatable(self.kube, 8)

    def kill_processes(self):
        for node in self.nodes:
            node.stop_agent(signal.SIGKILL)
        for node in self.nodes:
            node.start_agent()

    def replace_processes(self):
        newer = self.n1.state / "gpulet-newer"
        shutil.copy(GPULET, newer)
        for node in self.nodes:
            node.stop_agent()
            node.start_agent(newer)

    def stop_processes(self):
        for node in self.nodes:
            self.stop_agent_of(node)

    def stop_agent_of(self, node):
        status, seconds = node.stop_agent()
        assert status == 0, f"SIGTERM: exit status {status}"
        assert seconds < 0.5, f"took {seconds:.3f} s to end"
        node.wait_allocatable(self.kube, 0)

    # The agents as a DaemonSet.
    def load_images(self, images):
        for tag in images:
            subprocess.run([self.root / "deploy/image/build", tag], check=True, capture_output=True, text=True)
            subprocess.run([TESTBED, "image", self.root / "out/image/gpulet.tar"], check=True, capture_output=True, text=True)
        subprocess.run([self.root / "deploy/image/build"], check=True, capture_output=True, text=True)

    def apply_manifest(self, tag):
        """Applies the shipped manifest with six changes for the testbed: image, driver root, its writable state, the hook's directory
        apart from the agent's, device nodes passed on and listed in the environment, so that tests can read a container's devices."""
        items = manifest(self.root / "deploy/static/gpulet.yaml")
        for item in items:
            if item["kind"] != "DaemonSet":
                continue
            pod = item["spec"]["template"]["spec"]
            agent = pod["containers"][0]
            agent.update(image=f"localhost/gpulet:{tag}", imagePullPolicy="Never")
            env = {variable["name"]: variable for variable in agent["env"]}
            for name, value in (("DEVICE_LIST_STRATEGY", "envvar"), ("PASS_DEVICE_SPECS", "true"),
                                ("NVIDIA_DRIVER_ROOT", DRIVER_ROOT), ("GPULET_CDI_HOOK_DIR", str(self.cdi.hooks))):
                env[name] = {"name": name, "value": value}
            agent["env"] = list(env.values())
            mounts = {mount["name"]: mount for mount in agent["volumeMounts"]}
            mounts["driver-root"]["readOnly"] = False
            mounts["hook"]["mountPath"] = str(self.cdi.hooks)
            volumes = {volume["name"]: volume for volume in pod["volumes"]}
            volumes["driver-root"]["hostPath"]["path"] = DRIVER_ROOT
            volumes["hook"]["hostPath"]["path"] = str(self.cdi.hooks)
            agent["volumeMounts"].append({"name": "state", "mountPath": "/var/lib/gpulet"})
            pod["volumes"].append({"name": "state", "hostPath": {"path": "/var/lib/gpulet", "type": "DirectoryOrCreate"}})
        kubectl("apply", "-f", "-", items=items)
        self.wait_ready(tag)
        for node in self.nodes:
            node.wait_allocatable(self.kube, 8)

    def label_rights(self):
        """The agent reads and writes the node's labels: MIG is off already, and it reports that."""
        path = "/api/v1/nodes/n1"
        self.kube.patch(path, {"metadata": {"labels": {MIG_CONFIG: "all-disabled"}}})
        until("the agent's word on it", lambda: self.kube.get(path)["metadata"]["labels"].get(MIG_STATE) == "success")
        self.kube.patch(path, {"metadata": {"labels": {MIG_CONFIG: None, MIG_STATE: None}}})

    def no_missing_right(self):
        """The agents log no missing right with the shipped manifest alone, without the scheduler's."""
        lines = kubectl("-n", "gpulet", "logs", "-l", "app.kubernetes.io/name=gpulet", "--tail=-1").splitlines()
        odd = [line for line in lines if "missing RBAC permission" in line or "a write to the API server failed" in line]
        assert lines and not odd, odd

    def agent_pods(self):
        return self.kube.pods("gpulet")

    def wait_ready(self, tag):
        def ready():
            pods = self.agent_pods().values()
            # By the Pod's own image: all tags of one commit are one image, and a container's status may name any of them.
            images = [pod["spec"]["containers"][0]["image"] for pod in pods]
            states = [pod["status"].get("containerStatuses", [{}])[0] for pod in pods]
            return len(states) == 2 and all(image.endswith(tag) for image in images) and all(state.get("ready") for state in states)
        try:
            until(f"both agents of {tag} are ready", ready, 60)
        except AssertionError as error:
            reported = [pod["status"] for pod in self.agent_pods().values()]
            logs = kubectl("-n", "gpulet", "logs", "-l", "app.kubernetes.io/name=gpulet", "--tail=10")
            raise AssertionError(f"{error}; {json.dumps(reported)[:3000]}; {logs}") from None

    def kill_containers(self):
        before = {node.name: node.agents() for node in self.nodes}
        assert all(before.values()), f"no agent to kill: {before}"
        for pids in before.values():
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        for node in self.nodes:
            until(f"another agent on {node.name}", lambda: set(node.agents()) - set(before[node.name]), 60)

    # Checks of both runs.
    def allocatable(self):
        for node in self.nodes:
            reported = node.resources.allocatable(GPU)
            truth = {uuid: [node.numa_of(uuid)] for uuid in node.gpus}
            assert reported == truth, f"{node.name}: the kubelet knows {reported}, the driver has {truth}"

    def run_pod(self, name, gpus, node, **more):
        self.kube.create_pod(gpu_pod(name, gpus, node, **more))
        return self.wait_running(name)

    def wait_running(self, name):
        def state():
            pod = self.kube.pod(name)
            if pod["status"]["phase"] in ("Failed", "Succeeded"):
                raise AssertionError(f"{name} {pod['status']['phase']}: {pod['status'].get('reason')} {pod['status'].get('message')}")
            return pod if pod["status"]["phase"] == "Running" else None
        try:
            return until(f"{name} runs", state, 60)
        except Timeout as error:
            raise Timeout(f"{error}: {self.why_not_running(name)}") from None

    def why_not_running(self, name):
        status = self.kube.pod(name)["status"]
        return {"conditions": [one.get("message") for one in status.get("conditions", []) if one["status"] == "False"],
                "containers": [one.get("state") for one in status.get("containerStatuses", [])],
                "events": [event.get("message") for event in self.kube.events_about(name, "Pod")][-3:],
                "taints": [(node["metadata"]["name"], taint["key"]) for node in self.kube.get("/api/v1/nodes")["items"]
                           for taint in node["spec"].get("taints", [])]}

    def remove_pods(self):
        for name in self.kube.pods():
            try:
                self.kube.delete_pod(name)
            except ApiError as error:
                if error.status != 404:  # its owner was first
                    raise
        until("all Pods have gone", lambda: not self.kube.pods(), 60)

    def look(self, name):
        """Returns the output of a Pod that runs LOOK: the words of each line."""
        said = ""

        def looked():
            nonlocal said
            said = self.kube.log(name)
            return "done" in said.splitlines()  # the other stream's output may follow it
        try:
            until(f"the container of {name} has looked", looked, 60)
        except Timeout as timeout:
            raise Timeout(f"{timeout}; it has said {said!r}") from timeout
        return [line.split(" ", 2) for line in said.splitlines()]

    def linked_pair(self):
        self.run_pod("pair", 2, "n1", script=LOOK)
        lines = self.look("pair")
        ids = next(line[1] for line in lines if line[0] == "env").split(",")
        held = self.n1.resources.held()["pair"]
        assert sorted(ids) == sorted(held) and len(set(ids)) == 2, f"the container has {ids}, the kubelet gave {held}"
        self.assert_linked(*ids)

        minors = {self.n1.gpus[uuid]["minor"] for uuid in ids}
        nodes = {line[1]: line[2] for line in lines if line[0] == "node"}
        gpu_nodes = {path: number for path, number in nodes.items() if re.fullmatch(r"/dev/nvidia\d+", path)}
        assert gpu_nodes == {f"/dev/nvidia{minor}": f"c3:{minor:x}" for minor in minors}, f"device nodes: {nodes}"
        there = {path for path in CONTROL_NODES if (self.n1.sim / path[1:]).exists()}
        assert set(nodes) - set(gpu_nodes) == there, f"control nodes {set(nodes) - set(gpu_nodes)}, on the node {there}"
        for path, number in nodes.items():
            real = os.stat(self.n1.sim / path[1:]).st_rdev
            assert number == f"{os.major(real):x}:{os.minor(real):x}", f"{path} is {number}, on the node {real:x}"

        opened = {int(line[1]): line[2] for line in lines if line[0] == "open"}
        assert len(opened) == 8, f"tried to open {opened}"
        for minor, why in opened.items():
            wanted = "No such device or address" if minor in minors else "Operation not permitted"
            assert wanted in why, f"GPU {minor}, with {minors} given: {why!r}, not {wanted!r}"
        self.remove_pods()

    def assert_linked(self, one, other):
        """Checks by NVML that the GPUs are linked directly or through switches."""
        links = {uuid: self.n1.gpus[uuid]["links"] for uuid in (one, other)}
        direct = any(kind == NVLINK_TO_GPU and bus == self.n1.gpus[other]["bus"] for kind, bus in links[one])
        switched = all(any(kind == NVLINK_TO_SWITCH for kind, _ in found) for found in links.values())
        assert direct or switched, f"no link between {one} and {other}: {links}"

    def numa_nodes_of(self, pod):
        return [self.n2.numa_of(uuid) for uuid in self.n2.resources.held()[pod]]

    def restricted(self):
        for name, gpus in (("aligned-a", 3), ("aligned-b", 3)):
            self.run_pod(name, gpus, "n2")
            assert len(set(self.numa_nodes_of(name))) == 1, f"{name} is spread over NUMA nodes {self.numa_nodes_of(name)}"
        assert self.numa_nodes_of("aligned-a") != self.numa_nodes_of("aligned-b"), "both on one NUMA node"
        # One GPU is left on each NUMA node: an aligned pair exists on a free node, so an unaligned one is refused.
        self.kube.create_pod(gpu_pod("unaligned", 2, "n2"))
        status = until("the unaligned Pod is refused", lambda: (pod := self.kube.pod("unaligned"))["status"]["phase"] == "Failed"
                       and pod["status"], 30)
        assert status["reason"] == "TopologyAffinityError", status
        for name in ("single-a", "single-b"):
            self.run_pod(name, 1, "n2")
        self.remove_pods()

    def too_many(self):
        self.kube.create_pod(gpu_pod("nine", 9))
        self.stays_pending("nine", GPU)
        self.remove_pods()

    def stays_pending(self, name, resource):
        """Checks that the scheduler reports a shortage of this resource only."""
        def refusal():
            pod = self.kube.pod(name)
            assert pod["status"]["phase"] == "Pending", pod["status"]
            return next((condition["message"] for condition in pod["status"].get("conditions", [])
                         if condition["type"] == "PodScheduled" and condition["status"] == "False"), None)
        message = until(f"the scheduler's reason for {name}", refusal, 20)
        assert set(re.findall(r"Insufficient ([\w./-]*\w)", message)) == {resource}, message

    def restart_kubelets(self):
        for node in self.nodes:
            node.restart_kubelet()

    def facts(self, names):
        """Facts that change if a Pod's container was touched."""
        return self.facts_of({name: pod for name, pod in self.kube.pods().items() if name in names})

    @staticmethod
    def facts_of(pods):
        return {name: [(status["containerID"], status["restartCount"], status["state"]["running"]["startedAt"])
                       for status in pod["status"]["containerStatuses"]] for name, pod in pods.items()}

    def assert_undisturbed(self, before):
        after = self.facts(before)
        assert after == before, f"before {before}, after {after}"

    def survives(self, disturb):
        """Pods that run before `disturb` keep running and keep their GPUs; the other GPUs are allocatable afterwards."""
        names = {"keep-1": ("n1", 2), "keep-2": ("n1", 4), "keep-3": ("n2", 4)}
        for name, (node, gpus) in names.items():
            self.run_pod(name, gpus, node)

        def gpus():
            return {pod: sorted(ids) for node in self.nodes for pod, ids in node.containers().items()}
        before, had = self.facts(names), gpus()
        assert {name: len(ids) for name, ids in had.items()} == {name: count for name, (_, count) in names.items()}, had
        disturb()
        for node in self.nodes:
            until(f"{node.name}'s kubelet offers 8 again", lambda: len(node.resources.allocatable(GPU)) == 8, 30)
            node.wait_allocatable(self.kube, 8)
        self.kube.create_pod(gpu_pod("after-1", 2, "n1"))
        self.kube.create_pod(gpu_pod("after-2", 4, "n2"))
        self.wait_running("after-1")
        self.wait_running("after-2")
        self.assert_undisturbed(before)
        checker = Storm(self.kube, self.nodes, 0)
        checker.check()
        now = gpus()
        assert {name: now.get(name) for name in names} == had, f"before {had}, now {now}"
        self.remove_pods()

    def storm(self, steps, kill_agents):
        seed = int(os.environ.get("GPULET_SEED", "1"))
        storm = Storm(self.kube, self.nodes, seed)

        def settle(action):
            action()
            for node in self.nodes:
                until(f"{node.name}'s kubelet offers 8 again", lambda: len(node.resources.allocatable(GPU)) == 8, 30)
                node.wait_allocatable(self.kube, 8)
        storm.run(steps, {steps // 3: lambda: settle(self.restart_kubelets), 2 * steps // 3: lambda: settle(kill_agents)})
        assert storm.checks >= 2 * steps, f"{storm.checks} checks of 2 nodes in {steps} steps"
        print(f"   seed {seed}: {storm.number} Pods in {steps} steps, {storm.checks} checks", flush=True)
