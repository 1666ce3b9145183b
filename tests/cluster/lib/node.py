"""One node of the testbed: its simulated driver, its agent as a process, and its real processes."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from lib.kube import Timeout, until
from lib.pod_resources import PodResources
from lib.testbed import TESTBED

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent
GPULET = ROOT / "out" / "bin" / "gpulet"
GPULET_SIM = ROOT / "out" / "bin" / "gpulet-sim"
CGROUPS = pathlib.Path("/sys/fs/cgroup")
# Where each node sees its own simulated driver root.
DRIVER_ROOT = "/run/gpulet-sim"


class Node:
    def __init__(self, state, number, machine):
        self.state, self.number, self.name, self.machine = state, number, f"n{number}", machine
        self.sim = state / "sim" / self.name
        self.config = state / f"{self.name}.yaml"  # for an agent started with it
        self.kept = state / "gpulet" / self.name  # the agent's state directory
        self.agent = None
        self.gpus = {}  # UUID → NVML's facts
        self.resources = PodResources(state / self.name / "var/lib/kubelet/pod-resources/kubelet.sock")
        self.namespace = (state / f"{self.name}.ns").read_text().strip()
        self.sim.mkdir(parents=True)
        pathlib.Path(DRIVER_ROOT).mkdir(exist_ok=True)
        self.run("mount", "--bind", self.sim, DRIVER_ROOT)

    def enter(self, *command):
        return ["nsenter", "--net", "--mount", "--target", self.namespace, "--", *map(str, command)]

    def run(self, *command, env=None):
        done = subprocess.run(self.enter(*command), capture_output=True, text=True, env={**os.environ, **(env or {})})
        if done.returncode != 0:
            raise AssertionError(f"{self.name}: {' '.join(map(str, command))}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def testbed(self, *arguments):
        subprocess.run([TESTBED, *map(str, arguments)], check=True, capture_output=True, text=True)

    # The driver.
    def driver_up(self):
        self.run(GPULET_SIM, "up", self.machine, "--root", DRIVER_ROOT)
        self.nvml("gpus")

    def nvml(self, *arguments):
        """Runs nvml.py and stores the resulting GPUs."""
        library = next(pathlib.Path(self.sim).rglob("libnvidia-ml.so.1"))
        reported = self.run(sys.executable, ROOT / "tests/cluster/lib/nvml.py", *arguments, env={
            "LD_LIBRARY_PATH": str(pathlib.Path(DRIVER_ROOT) / library.parent.relative_to(self.sim))})
        self.gpus = {gpu["uuid"]: gpu for gpu in json.loads(reported)}
        return self.gpus

    def change_mig(self, *arguments):
        """Changes a GPU's MIG layout by nvml.py, as an administrator does: a driver that another client holds changes no MIG mode."""
        if not self.agent:
            return self.nvml(*arguments)
        self.driver("release")
        try:
            return self.nvml(*arguments)
        finally:
            self.driver("acquire")

    def partitioned(self):
        """Indices of the GPUs that have MIG devices."""
        return [gpu["index"] for gpu in self.nvml("gpus").values() if gpu["mig"]]

    def driver(self, verb):
        self.run(GPULET, "driver", verb, "--state-dir", self.kept, "--health-file", self.kept / "health.json")

    def gpu(self, index):
        return next(gpu for gpu in self.gpus.values() if gpu["index"] == index)

    def numa_of(self, uuid):
        address = self.gpus[uuid]["bus"].lower()[-12:]
        return int((self.sim / "sys/bus/pci/devices" / address / "numa_node").read_text())

    # The agent as a process of the node.
    def start_agent(self, program=GPULET, arguments=(), env=None):
        env = {**os.environ, "NODE_NAME": self.name, "KUBECONFIG": str(self.state / "kubeconfig"), "FAIL_ON_INIT_ERROR": "false",
               "DRIVER_ROOT_CTR_PATH": DRIVER_ROOT, "NVIDIA_DRIVER_ROOT": DRIVER_ROOT, "PASS_DEVICE_SPECS": "true",
               # Separate for each node: /var/lib, /run and the kernel log belong to the machine.
               "GPULET_STATE_DIR": str(self.kept), "GPULET_HEALTH_FILE": str(self.kept / "health.json"), "GPULET_SOCKET": "", "GPULET_KERNEL_LOG": "", **(env or {})}
        with open(self.state / "log" / f"{self.name}-agent", "a", encoding="utf-8") as log:
            self.agent = subprocess.Popen(self.enter(program, "agent", *arguments), env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def metrics(self):
        """The agent's page."""
        return self.run("curl", "-s", "http://127.0.0.1:9400/metrics")

    def write_config(self, text):
        """Replaces the config file at once, as an editor or a ConfigMap does."""
        new = self.config.with_suffix(".new")
        new.write_text(text)
        new.replace(self.config)

    def stop_agent(self, number=signal.SIGTERM):
        """Signals the agent and waits for its end: (exit status, seconds)."""
        started = time.monotonic()
        self.agent.send_signal(number)
        status = self.agent.wait(timeout=10)
        self.agent = None
        return status, time.monotonic() - started

    def end(self):
        """Removes leftovers of a failed run."""
        if self.agent:
            self.stop_agent(signal.SIGKILL)

    # Running processes.
    def processes(self):
        """Pids of everything in the node's Pods."""
        pids = set()
        for top in (CGROUPS / "pids", CGROUPS):
            for path, _, files in os.walk(top / f"{self.state.name}-{self.name}"):
                if "cgroup.procs" in files:
                    try:
                        pids.update((pathlib.Path(path) / "cgroup.procs").read_text().split())
                    except OSError:
                        pass  # the container has just gone
        return pids

    def environments(self):
        """Pod → (pid, environment) of the first process of its container, for each test Pod that runs now.

        A signal to this process decides how the container ends; its children have the same environment.
        """
        found = {}
        for pid in self.processes():
            process = pathlib.Path("/proc", pid)
            try:
                environment = (process / "environ").read_bytes().split(b"\0")
                pids = re.search(r"^NSpid:\t(.*)$", (process / "status").read_text(), re.MULTILINE)[1].split()
            except OSError:
                continue
            if pids[-1] != "1":
                continue
            values = dict(line.decode(errors="replace").partition("=")[::2] for line in environment)
            if values.get("POD"):
                found[values["POD"]] = (pid, values)
        return found

    def containers(self):
        """Pod → the devices that its container's own environment names, for each test Pod that runs now."""
        return {pod: values["NVIDIA_VISIBLE_DEVICES"].split(",") for pod, (_, values) in self.environments().items()
                if values.get("NVIDIA_VISIBLE_DEVICES")}

    def agents(self):
        """Pids of agents in the node's Pods."""
        found = []
        for pid in self.processes():
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"gpulet") and b"agent" in words[1:]:
                found.append(int(pid))
        return found

    def restart_kubelet(self):
        self.testbed("kubelet", self.number, "stop")
        self.testbed("kubelet", self.number, "start")

    def wait_allocatable(self, kube, count, limit_s=30, resource="nvidia.com/gpu"):
        """Waits for the kubelet, which admits Pods, and for the Node, which lags behind."""
        seen = {}

        def has_count():
            seen.update(kubelet=len(self.resources.allocatable(resource)), node=kube.allocatable(self.name, resource))
            return set(seen.values()) == {count}
        try:
            until(f"{self.name} has {count} {resource}", has_count, limit_s)
        except Timeout as error:
            reported = [f"{event['reason']}: {event.get('message', '')}" for event in kube.events_about(self.name)]
            raise Timeout(f"{error}; {seen}; events {reported[-5:]}") from None
