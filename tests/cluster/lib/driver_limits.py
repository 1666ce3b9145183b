"""Memory limits by the driver, as branch 615 has them: a container starts with the limit of its Pod, or not at all."""
import json
import os
import pathlib
import re
import subprocess

from lib.images import NAME, PYTHON, PYTHON_LIBRARY, PYTHON_NAME, make_python_image
from lib.kube import gpu_pod, until
from lib.node import DRIVER_ROOT, GPULET_SIM
from lib.testbed import CACHE, TESTBED

DRIVER = "615.71.09"
RESOURCE = "nvidia.com/gpu.limited"
LIMIT_MIB = 8192
PATIENCE_S = 60.0  # a container that could not be created is tried again after some seconds
SCRIPT = "nvidia-smi | sed -n 's/.* \\([0-9]*\\)MiB *\\/ *\\([0-9]*\\)MiB.*/total \\2/p'; echo done; trap 'exit 0' TERM; sleep 100000 & wait"
# The CUDA clients of tests/judges, and the packages that they use.
CLIENTS = pathlib.Path(__file__).resolve().parents[2] / "judges"
PACKAGES = CACHE / "venv" / PYTHON_LIBRARY.removeprefix("/usr/") / "site-packages"
PIECE = 64 << 20


class DriverLimitChecks:
    """On a node whose agent has been stopped; `cdi` is its CdiChecks."""

    def __init__(self, checks, cdi):
        self.checks, self.kube, self.node, self.cdi = checks, checks.kube, checks.n1, cdi
        self.limit_dir = self.node.state / "limits"
        self.loads = set()  # the processes that the simulated driver counts as busy

    def run(self):
        before = self.cdi.version()
        self.reload(DRIVER)
        self.start_agent()
        self.node.wait_allocatable(self.kube, 4, resource=RESOURCE)
        self.gpu = self.node.gpu(0)["uuid"]
        self.cuda_clients()
        self.limited()
        self.agent_away()
        self.misread()
        self.unlimited()
        self.checks.remove_pods()
        until("no limit is left", lambda: not self.records(), PATIENCE_S, 0.1)
        self.checks.stop_agent_of(self.node)
        # It keeps the load of a process that has ended: the GPU would be busy for every later check.
        for pid in self.loads:
            self.node.run(GPULET_SIM, "load", self.gpu, 0, "--pid", pid, "--root", DRIVER_ROOT)
        self.reload(before)

    def reload(self, version):
        self.node.run(GPULET_SIM, "driver-reload", "--force", "--version", version, "--root", DRIVER_ROOT)
        self.node.nvml("gpus")

    def start_agent(self):
        self.node.write_config("version: v1\nflags: {migStrategy: mixed, plugin: {deviceListStrategy: [cdi-cri], passDeviceSpecs: false}}\n"
                               f"sharing: {{timeSlicing: {{resources: [{{name: gpu, rename: {RESOURCE}, devices: [0], replicas: 4}}]}}}}\n"
                               f"gpulet: {{cdi: {{hookDir: {self.cdi.hooks}}}, fraction: {{driverLimits: true, limitDir: {self.limit_dir}}}}}\n")
        self.node.start_agent(arguments=["--config-file", self.node.config], env={"PASS_DEVICE_SPECS": "false"})

    def pod(self, name, limit_mib, image):
        pod = gpu_pod(name, 1, self.node.name, script=SCRIPT, resource=RESOURCE)
        if limit_mib:
            pod["metadata"]["annotations"] = {"gpulet.io/gpu-memory": f"{limit_mib}Mi"}
        container = pod["spec"]["containers"][0]
        container["image"] = image
        container["volumeMounts"] = [{"name": "machine", "mountPath": "/run/gpulet-sim"}]
        pod["spec"]["volumes"] = [{"name": "machine", "hostPath": {"path": f"{DRIVER_ROOT}/run/gpulet-sim"}}]
        return pod

    def create(self, name, limit_mib=LIMIT_MIB):
        pod = self.pod(name, limit_mib, NAME)
        pod["spec"]["restartPolicy"] = "Always"
        self.kube.create_pod(pod)

    def create_cuda_client(self, name, kind):
        pod = self.pod(name, LIMIT_MIB, PYTHON_NAME)
        container = pod["spec"]["containers"][0]
        container["command"] = [PYTHON, str(CLIENTS / "cuda_client.py"), kind]
        container["env"] += [{"name": "PYTHONPATH", "value": str(PACKAGES)}, {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}]
        for number, path in enumerate((PYTHON_LIBRARY, PACKAGES, CLIENTS)):
            pod["spec"]["volumes"].append({"name": f"python-{number}", "hostPath": {"path": str(path)}})
            container["volumeMounts"].append({"name": f"python-{number}", "mountPath": str(path), "readOnly": True})
        self.kube.create_pod(pod)

    def records(self):
        return [path for path in self.limit_dir.glob("*") if path.suffix == ".json"]

    def total_mib(self, name):
        """What nvidia-smi in the container sees."""
        return [int(line[1]) for line in self.checks.look(name) if line[0] == "total"]

    def load(self, name, mebibytes):
        """As a CUDA call in the container would: returns the driver's refusal, or nothing."""
        pid = until(f"the process of {name}", lambda: self.node.environments().get(name), PATIENCE_S)[0]
        self.loads.add(pid)
        done = subprocess.run(self.node.enter(GPULET_SIM, "load", self.gpu, 10, "--memory", mebibytes, "--pid", pid, "--root", DRIVER_ROOT),
                              capture_output=True, text=True, check=False)
        return done.stderr.strip() if done.returncode else ""

    def cuda_clients(self):
        """cuda-bindings and numba, unmodified: total, what is free and the error are those of the limit."""
        image = self.node.state / "python.tar"
        make_python_image(image, PACKAGES)
        subprocess.run([TESTBED, "image", image], check=True, capture_output=True, text=True)
        for kind in ("bindings", "numba"):
            name = f"cuda-{kind}"
            self.create_cuda_client(name, kind)
            until(f"{name} has ended", lambda name=name: self.kube.pod(name)["status"]["phase"] in ("Succeeded", "Failed"), PATIENCE_S)
            said = self.kube.log(name)
            assert self.kube.pod(name)["status"]["phase"] == "Succeeded", said[-2000:]
            seen = json.loads(said.splitlines()[-1])
            print(f"   {name}: {seen}", flush=True)
            assert seen["total"] == seen["device_total"] == LIMIT_MIB << 20, seen
            assert 0 < seen["free"] < seen["total"] and seen["pieces"] == seen["free"] // PIECE, seen
            assert seen["code"] == 2 and "OUT_OF_MEMORY" in seen["error"] and seen["copied"], seen
            assert seen["uuids"] == [self.gpu.removeprefix("GPU-").replace("-", "")], seen
        self.checks.remove_pods()

    def limited(self):
        for name in ("limited", "neighbour"):
            self.create(name)
            self.checks.wait_running(name)
            assert self.total_mib(name) == [LIMIT_MIB], self.total_mib(name)
            refused = self.load(name, LIMIT_MIB + 1)
            assert f"only {LIMIT_MIB} MiB are free below the cgroup's memory limit" in refused, refused
            assert self.load(name, LIMIT_MIB) == ""
        assert len(self.records()) == 2, self.records()

    def not_started(self, name, reason):
        def told():
            return [event["message"] for event in self.kube.events_about(name, "Pod") if re.search(reason, event.get("message", ""))]
        [message, *_] = until(f"an event says why {name} does not start", told, PATIENCE_S)
        print(f"   {message[-300:]}", flush=True)
        assert name not in self.node.environments(), "it runs"

    def agent_away(self):
        """What is limited stays so, and a container that starts again without an agent does not get to its user's code."""
        self.node.stop_agent(9)
        os.kill(int(self.node.environments()["neighbour"][0]), 9)
        self.not_started("neighbour", "gpulet-hook")
        assert f"only {LIMIT_MIB} MiB" in self.load("limited", LIMIT_MIB + 1)
        self.start_agent()
        self.node.wait_allocatable(self.kube, 4, resource=RESOURCE)
        until("the container has started again", lambda: "neighbour" in self.node.environments(), PATIENCE_S, 0.1)
        for name in ("limited", "neighbour"):
            assert f"only {LIMIT_MIB} MiB" in self.load(name, LIMIT_MIB + 1)

    def misread(self):
        """A driver that reads back another limit than was set enforces nothing that can be relied on."""
        self.node.run(GPULET_SIM, "memacct", "auto", "--misreport", 7, "--root", DRIVER_ROOT)
        self.create("misread")
        self.not_started("misread", "reads the memory limit of .* back")
        self.node.run(GPULET_SIM, "memacct", "auto", "--root", DRIVER_ROOT)
        self.checks.wait_running("misread")
        assert self.total_mib("misread") == [LIMIT_MIB]

    def unlimited(self):
        """A Pod that requests no memory starts as before."""
        self.create("whole", limit_mib=0)
        self.checks.wait_running("whole")
        [total] = self.total_mib("whole")
        assert total > 8 * LIMIT_MIB, total
