"""A kubelet that would give one GPU to two Pods (kubernetes/kubernetes#137534).

A List of PodResources recomputes what is allocated as soon as a Pod has ended, and an Allocate in progress is not yet
part of that: its GPU is offered to the next Pod. Here a relay between the kubelet and the agent holds the answer to
Allocate back until both have happened.
"""
import os
import re
import signal
import socket
import threading

from lib.kube import gpu_pod, until

ALL_BUT_TWO = 6


class Relay:
    """Passes bytes between the kubelet and the plugin's socket, and holds answers back where it is told to."""

    def __init__(self, kubelets, plugins):
        self.plugins = plugins
        self.requests = []     # the GPUs of each request that names some
        self.hold_after = None  # number of requests
        self.gate = threading.Event()
        self.gate.set()
        self.sockets = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(kubelets))
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                kubelet, _ = self.listener.accept()
            except OSError:
                return
            plugin = socket.socket(socket.AF_UNIX)
            plugin.connect(str(self.plugins))
            self.sockets += [kubelet, plugin]
            threading.Thread(target=self.pass_requests, args=(kubelet, plugin), daemon=True).start()
            threading.Thread(target=self.pass_answers, args=(plugin, kubelet), daemon=True).start()

    def pass_requests(self, kubelet, plugin):
        while data := self.read(kubelet):
            named = re.findall(rb"GPU-[0-9a-f-]{36}", data)
            if named:
                self.requests.append([name.decode() for name in named])
                if len(self.requests) == self.hold_after:
                    self.gate.clear()
            plugin.sendall(data)
        self.end(plugin)

    def pass_answers(self, plugin, kubelet):
        while data := self.read(plugin):
            self.gate.wait()
            try:
                kubelet.sendall(data)
            except OSError:
                break
        self.end(kubelet)

    @staticmethod
    def read(stream):
        try:
            return stream.recv(1 << 16)
        except OSError:
            return b""

    @staticmethod
    def end(stream):
        try:
            stream.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self):
        self.gate.set()
        for stream in [self.listener, *self.sockets]:
            self.end(stream)
            stream.close()


class DoubleAllocationChecks:
    def __init__(self, checks):
        self.kube, self.node, self.checks = checks.kube, checks.n1, checks

    def run(self):
        return [("a GPU that the kubelet offers twice goes to one Pod", self.one_pod),
                ("an init container's GPU goes on to the Pod's container", self.init_container)]

    def one_pod(self):
        kubelet = self.node.state / self.node.name / "var/lib/kubelet/device-plugins"
        own = self.node.state / "relayed"
        (own / "device-plugins").mkdir(parents=True)
        (own / "device-plugins/kubelet.sock").symlink_to("/var/lib/kubelet/device-plugins/kubelet.sock")
        (own / "pod-resources").symlink_to("/var/lib/kubelet/pod-resources")
        self.node.stop_agent()
        self.node.wait_allocatable(self.kube, 0)
        relay = Relay(kubelet / "nvidia-gpu.sock", own / "device-plugins/nvidia-gpu.sock")
        try:
            self.node.start_agent(env={"GPULET_KUBELET_DIR": str(own)})
            self.node.wait_allocatable(self.kube, 8)
            self.race(relay)
        finally:
            self.node.stop_agent()
            relay.close()
            (kubelet / "nvidia-gpu.sock").unlink(missing_ok=True)
            self.node.start_agent()
        self.node.wait_allocatable(self.kube, 8)
        self.checks.remove_pods()

    def race(self, relay):
        self.checks.run_pod("others", ALL_BUT_TWO, "n1")
        # The agent prefers the GPU of `before` to that of `ending`.
        self.checks.run_pod("before", 1, "n1")
        ending = gpu_pod("ending", 1, "n1", script="trap '' TERM; sleep 100000 & wait")
        ending["spec"]["terminationGracePeriodSeconds"] = 600
        self.kube.create_pod(ending)
        self.checks.wait_running("ending")
        self.kube.delete_pod("before")
        until("one GPU is free", lambda: "before" not in self.node.resources.held() and "before" not in self.kube.pods(), 30)
        # Its end is seen by a worker of its own, so it does not wait for Allocate.
        self.kube.delete_pod("ending")

        relay.hold_after = len(relay.requests) + 2  # GetPreferredAllocation, Allocate
        self.kube.create_pod(gpu_pod("first", 1, "n1"))
        until("the kubelet waits for Allocate", lambda: not relay.gate.is_set(), 30)
        pid, _ = self.node.environments()["ending"]
        os.kill(int(pid), signal.SIGKILL)
        until("the kubelet frees the GPU of the Pod that ended", lambda: "ending" not in self.node.resources.held(), 30)
        relay.gate.set()
        self.checks.wait_running("first")
        first = until("the first container has begun", lambda: self.node.containers().get("first"))

        asked = len(relay.requests)
        self.checks.run_pod("second", 1, "n1")
        assert first[0] in relay.requests[asked], f"this kubelet no longer offers {first} to a second Pod: {relay.requests[asked:]}"
        second = until("the second container has begun", lambda: self.node.containers().get("second"))
        assert second != first, f"both Pods have {first}"
        held = self.node.resources.held()
        assert [held["first"], held["second"]] == [first, second], held

    def init_container(self):
        pod = gpu_pod("initialized", 1, "n1")
        main = pod["spec"]["containers"][0]
        pod["spec"]["initContainers"] = [{**main, "name": "init", "command": ["/bin/sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES"]}]
        self.kube.create_pod(pod)
        self.checks.wait_running("initialized")
        used = self.kube.log("initialized", "init").split()
        assert used == until("the container has begun", lambda: self.node.containers().get("initialized")), used
        self.checks.remove_pods()
