"""docs/getting-started.md, the parts that need a cluster, as a reader types them: each command as written, and what the page says of it."""
import json
import os
import subprocess
import tempfile
import time

import tutorial_page

from lib.chart import NAMESPACE, RELEASE, ChartChecks
from lib.images import NAME
from lib.kube import until
from lib.kubectl import kubectl
from lib.node import DRIVER_ROOT
from lib.testbed import TESTBED

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
GPUS, SHARES = 8, 64  # of a node: whole, and each shared eight times
LIMIT_S = 180  # of one command
SEEN_S = 10    # the kubelet writes its Node's status that often
TITLES = {1: "install", 2: "the first Pod", 3: "each GPU shared eight times", 4: "whole GPUs again"}
UBUNTU = "docker.io/library/ubuntu:24.04"
# The state of the simulated driver, which a real one has in its kernel module: the agent writes it, containers read it.
STATE = f"{DRIVER_ROOT}/run/gpulet-sim"
VALUES = {"nvidiaDriverRoot": DRIVER_ROOT, "extraVolumes": [{"name": "sim-state", "hostPath": {"path": STATE}}],
          "extraVolumeMounts": [{"name": "sim-state", "mountPath": "/driver-root/run/gpulet-sim"}]}
POD_STATE = f"""
      volumeMounts: [{{name: state, mountPath: /run/gpulet-sim}}]
  volumes: [{{name: state, hostPath: {{path: {STATE}}}}}]
"""
# What a reader substitutes, or the testbed: (written, typed). Each occurs once in the page.
REPLACED = (
    ("REGISTRY/gpulet", "localhost/gpulet --values VALUES"),  # no registry: the image is imported on each node
    ("\n          nvidia.com/gpu: 1\n", f"\n          nvidia.com/gpu: 1{POD_STATE}"),
)
# It tells what it finds by its exit status too: a simulated node has less than a real one.
REPORTS = "gpulet doctor"


class TutorialChecks:
    def __init__(self, checks):
        self.checks, self.kube = checks, checks.kube
        self.chart = ChartChecks(checks, [], 0)
        self.replaced = []

    def run(self):
        return [
            ("an image from make image, and one in place of Ubuntu's", self.images),
            *[(f"section {number}: {TITLES[number]}", lambda number=number: self.section(number)) for number in tutorial_page.CLUSTER_SECTIONS],
            ("everything is removed", self.end),
        ]

    def images(self):
        """The page has its reader push the one; containers pull the other. Neither is there without a registry."""
        self.chart.remove_cluster_objects()
        subprocess.run([self.checks.root / "deploy/image/build"], check=True, capture_output=True, text=True)
        subprocess.run([TESTBED, "image", self.checks.root / "out/image/gpulet.tar"], check=True, capture_output=True, text=True)
        self.checks.cdi.load_image()
        for node in self.checks.nodes:
            node.run("ctr", "-n", "k8s.io", "images", "tag", "--force", NAME, UBUNTU)

    # The commands.
    def section(self, number):
        started = time.monotonic()
        for step in tutorial_page.sections()[number]:
            self.step(step)
        print(f"   its commands took {time.monotonic() - started:.1f} s", flush=True)
        if number == 3:
            self.shared_by_three()
        elif number == 4:
            for node in self.checks.nodes:
                until(f"{node.name} has whole GPUs only", lambda node=node: self.offered(node) == (GPUS, 0), 60)
            missing = [written for written, _ in REPLACED if self.replaced.count(written) != 1]
            assert not missing, f"not once in the page: {missing}"

    def step(self, step):
        """Types a command; one whose output the page shows until it is that."""
        deadline = time.monotonic() + SEEN_S
        while True:
            status, output = self.type(step.command)
            if step.output is None or tutorial_page.shows(step.output, output):
                break
            assert time.monotonic() < deadline, f"`{step.command}` prints {output!r}, the page {step.output!r}"
            time.sleep(1)
        assert status == 0 or step.command.endswith(REPORTS), f"`{step.command}` exits with {status}: {output.strip()[-1000:]}"

    def type(self, command):
        """Runs it in the repository's root. Returns (exit status, output)."""
        for written, typed in REPLACED:
            if written in command:
                self.replaced += [written] * command.count(written)
                command = command.replace(written, typed)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as values:
            json.dump(VALUES, values)
            values.flush()
            done = subprocess.run(["bash", "-c", command.replace(" VALUES", f" {values.name}")], cwd=self.checks.root, env=os.environ, text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False)
        return done.returncode, done.stdout

    # What the page's headings say.
    def offered(self, node):
        """(whole GPUs, shares) that the node has for Pods."""
        return self.kube.allocatable(node.name, GPU), self.kube.allocatable(node.name, SHARED)

    def shared_by_three(self):
        for node in self.checks.nodes:
            until(f"{node.name} has {SHARES} shares", lambda node=node: self.offered(node) == (0, SHARES), 60)
        held = {pod: ids for node in self.checks.nodes for pod, ids in node.resources.held().items() if pod.startswith("shared-")}
        assert len(held) == 3 and all(len(ids) == 1 for ids in held.values()), held

    def end(self):
        self.chart.helm("uninstall", RELEASE, "--wait", "--timeout=90s")
        kubectl("delete", "namespace", NAMESPACE, "--wait=true")
        self.checks.remove_pods()
        for node in self.checks.nodes:
            node.wait_allocatable(self.kube, 0)
            node.run("ctr", "-n", "k8s.io", "images", "rm", UBUNTU)
