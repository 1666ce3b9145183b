"""GPUs of one node shared by time-slicing, MPS and MIG at the same time, while the config changes."""
import pathlib
import re
import subprocess
import time

from lib.kube import LOOK, gpu_pod, until
from lib.memory_limits import MemoryLimitChecks
from lib.node import DRIVER_ROOT, GPULET_SIM
from lib.rebalance import RebalanceChecks

GPU = "nvidia.com/gpu"
SLICED = "nvidia.com/gpu.sliced"
SHARED = "nvidia.com/gpu.shared"
LIMITED = "nvidia.com/gpu.limited"
COMPUTE_MODE_DEFAULT, COMPUTE_MODE_EXCLUSIVE_PROCESS = 0, 3  # NVML_COMPUTEMODE_*
SAMPLED_S = 20.0
LIVE_S = 1.0  # from a changed config file until the kubelet has it
# Prints the container's MPS environment, then sleeps.
LOOK_MPS = """
env | sed -n 's/^CUDA_MPS_/mps &/p'
grep -E ' (/mps/[^ ]*|/dev/shm) ' /proc/self/mountinfo | while read -r _ _ _ root place _; do echo "mount $place $root"; done
[ -S "$CUDA_MPS_PIPE_DIRECTORY/control" ] && echo "pipe there"
echo done
trap 'exit 0' TERM; sleep 100000 & wait
"""


class PartitionChecks:
    def __init__(self, checks):
        self.checks, self.kube, self.node = checks, checks.kube, checks.n1
        # Below the node's directory, because the nodes share /run.
        self.mps_root = self.node.state / self.node.name / "mps"

    def run(self):
        return [
            ("busy GPUs come after idle ones", self.idle_first),
            ("a hot GPU gives up its Pod of the lowest priority", RebalanceChecks(self.checks, self.node, SLICED, self.config).run),
            ("a container above its memory limit is killed, then evicted; the others stay",
             MemoryLimitChecks(self.checks, self.node, LIMITED, self.config).run),
            ("four Pods on one time-sliced GPU", self.time_sliced),
            ("4 slices become 8 under four Pods", self.four_to_eight),
            ("MPS: equal shares, limits in the daemon", self.equal_shares),
            ("MPS: 60/40, limits in the containers", self.unequal_shares),
            ("seven GPUs excluded and back, live", self.excluded),
            ("exclusive, time-sliced, MPS and MIG: each to its limit", self.mixed),
            ("sharing off, and no trace of a daemon", self.whole_again),
        ]

    # Helpers of the checks.
    def config(self, *lines):
        self.node.write_config("\n".join(["version: v1", f"flags: {{mpsRoot: {self.mps_root}}}", *lines]) + "\n")

    def offered(self, **resources):
        """Waits for these counts of `nvidia.com/<name>`, as the scheduler sees them."""
        for name, count in resources.items():
            self.node.wait_allocatable(self.kube, count, resource=name)

    def pods(self, resource, *names, script=LOOK):
        for name in names:
            self.kube.create_pod(gpu_pod(name, 1, self.node.name, script=script, resource=resource))

    def running(self, names):
        for name in names:
            self.checks.wait_running(name)

    def assert_nothing_twice(self, names):
        """Returns Pod → its device by the kubelet."""
        held = {pod: ids for pod, ids in self.node.resources.held().items() if pod in names}
        every = [device for ids in held.values() for device in ids]
        assert sorted(held) == sorted(names) and len(set(every)) == len(every) == len(names), f"the kubelet gave {held}"
        return {pod: ids[0] for pod, ids in held.items()}

    def device_nodes(self, name):
        """The device nodes of the GPU and of MIG in a Pod that runs LOOK."""
        nodes = {line[1]: line[2] for line in self.checks.look(name) if line[0] == "node"}
        return {path: number for path, number in nodes.items() if re.fullmatch(r"/dev/nvidia(\d+|-caps/.*)", path)}

    # Time-slicing.
    def slices(self, replicas):
        self.config("sharing:", "  timeSlicing:", "    resources:",
                    f"      - {{name: gpu, rename: {SLICED}, devices: [0], replicas: {replicas}}}")

    def idle_first(self):
        """Eight GPUs in quarters with a Pod on each, three of them busy and full: the next three Pods go to others."""
        self.config("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}")
        self.node.start_agent(arguments=["--config-file", self.node.config], env={"GPULET_METRICS_INTERVAL": "1s"})
        self.offered(**{GPU: 32})
        first, following = [f"first-{number}" for number in range(8)], [f"next-{number}" for number in range(3)]

        def gpus_of(names):
            return {device.partition("::")[0] for device in self.assert_nothing_twice(names).values()}
        self.pods(GPU, *first)
        self.running(first)
        assert len(gpus_of(first)) == 8, "one Pod on each GPU"
        busy = [self.node.gpu(index)["uuid"] for index in range(3)]
        for uuid in busy:
            self.node.run(GPULET_SIM, "load", uuid, "100", "--memory", "75000", "--root", DRIVER_ROOT)
        until("the agent has sampled the load", lambda: all(
            re.search(rf'DCGM_FI_DEV_GPU_UTIL{{[^}}]*UUID="{uuid}"[^}}]*}} 100\b', self.node.metrics()) for uuid in busy), SAMPLED_S, 0.2)
        self.pods(GPU, *following)
        self.running(following)
        given = gpus_of(following)
        assert len(given) == 3 and not given & set(busy), f"{busy} are busy, and the next Pods have {given}"
        for uuid in busy:
            self.node.run(GPULET_SIM, "load", uuid, "0", "--root", DRIVER_ROOT)
        self.checks.remove_pods()

    def time_sliced(self):
        self.slices(4)
        self.offered(**{SLICED: 4, GPU: 7})
        names = [f"slice-{number}" for number in range(4)]
        self.pods(SLICED, *names)
        self.running(names)
        self.pods(SLICED, "slice-4")
        self.checks.stays_pending("slice-4", SLICED)
        gpu = self.node.gpu(0)
        held = self.assert_nothing_twice(names)
        assert {device.partition("::")[0] for device in held.values()} == {gpu["uuid"]}, held
        seen = {pod: ids for pod, ids in self.node.containers().items() if pod in names}
        assert seen == {name: [gpu["uuid"]] for name in names}, f"of {gpu['uuid']}: {seen}"
        for name in names:
            nodes = self.device_nodes(name)
            assert nodes == {f"/dev/nvidia{gpu['minor']}": f"c3:{gpu['minor']:x}"}, f"{name} has {nodes}"
            opened = {int(line[1]) for line in self.checks.look(name)
                      if line[0] == "open" and "Operation not permitted" not in line[2]}
            assert opened == {gpu["minor"]}, f"{name} may open {opened}"

    def four_to_eight(self):
        names = [f"slice-{number}" for number in range(4)]
        before, held, seen = self.checks.facts(names), self.assert_nothing_twice(names), self.node.containers()
        started = time.monotonic()
        self.slices(8)
        until("the kubelet has 8 slices", lambda: len(self.node.resources.allocatable(SLICED)) == 8, LIVE_S, 0.01)
        took = time.monotonic() - started
        print(f"   the kubelet had them {took * 1000:.0f} ms after the file changed", flush=True)
        assert took < LIVE_S
        self.checks.wait_running("slice-4")  # it has waited for this
        self.checks.assert_undisturbed(before)
        now = self.assert_nothing_twice([*names, "slice-4"])
        assert {name: now[name] for name in names} == held, f"held {held}, now {now}"
        assert set(now.values()) <= set(self.node.resources.allocatable(SLICED)), f"ids that are no longer offered: {now}"
        after = self.node.containers()
        assert {name: after.get(name) for name in names} == {name: seen[name] for name in names}, f"{seen}, now {after}"
        self.checks.remove_pods()

    # MPS.
    def ask_daemon(self, directory, command):
        """Runs the control program of the driver root."""
        program = pathlib.Path(DRIVER_ROOT) / "usr/bin/nvidia-cuda-mps-control"
        return self.node.run("/bin/sh", "-c", f"echo {command} | {program}", env={"CUDA_MPS_PIPE_DIRECTORY": str(directory)}).strip()

    def daemon_directory(self, environment):
        """The host's pipe directory of a container with this environment."""
        inside = pathlib.Path(environment["CUDA_MPS_PIPE_DIRECTORY"])
        assert inside.parts[:2] == ("/", "mps"), inside
        return self.mps_root / inside.relative_to("/mps")

    def assert_mounted(self, name, environment):
        lines = self.checks.look(name)
        assert ["pipe", "there"] in lines, f"{name} has no daemon's pipe: {lines}"
        mounts = {line[1]: line[2] for line in lines if line[0] == "mount"}
        assert set(mounts) == {environment["CUDA_MPS_PIPE_DIRECTORY"], "/dev/shm"}, f"{name} has mounts {mounts}"
        real = (self.daemon_directory(environment)).stat()
        seen = pathlib.Path(f"/proc/{self.node.environments()[name][0]}/root{environment['CUDA_MPS_PIPE_DIRECTORY']}").stat()
        assert (seen.st_dev, seen.st_ino) == (real.st_dev, real.st_ino), f"{name} has another directory than the daemon's"

    def cuda_client(self, name, expected):
        """Starts a CUDA client with the container's environment and mount. Returns its limits."""
        pid, environment = self.node.environments()[name]
        mps = {key: value for key, value in environment.items() if key.startswith("CUDA_MPS_")}
        directory = self.daemon_directory(environment)
        with subprocess.Popen([GPULET_SIM, "mps", "client", f"/proc/{pid}/root{mps['CUDA_MPS_PIPE_DIRECTORY']}"], env=mps,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as client:
            try:
                said = client.stdout.readline().strip()
                assert said == expected, f"{name}'s CUDA process may use {said!r}, not {expected!r}"
                listed = self.ask_daemon(directory, "ps")
                assert str(client.pid) in listed.split(), f"{client.pid} is no client of the daemon: {listed}"
            finally:
                client.kill()

    def mebibytes(self, gpu, percent):
        return self.node.gpu(gpu)["memory"] * percent // 100 >> 20

    def equal_shares(self):
        """On GPU 1; GPU 2 is shared 60/40 by the same config, for the next check."""
        self.config("gpulet:", "  partition:", "    - {devices: [1], mps: {replicas: 4}}",
                    "    - {devices: [2], mps: {shares: [60, 40]}}")
        self.offered(**{SHARED: 4, f"{GPU}.mps-60": 1, f"{GPU}.mps-40": 1, GPU: 6, SLICED: 0})
        names = ["mps-1", "mps-2"]
        self.pods(SHARED, *names, script=LOOK_MPS)
        self.pods(f"{GPU}.mps-60", "mps-60", script=LOOK_MPS)
        self.pods(f"{GPU}.mps-40", "mps-40", script=LOOK_MPS)
        self.running(names)
        held = self.assert_nothing_twice(names)
        gpu = self.node.nvml("gpus") and self.node.gpu(1)
        assert {device.partition("::")[0] for device in held.values()} == {gpu["uuid"]}, held
        assert gpu["compute_mode"] == COMPUTE_MODE_EXCLUSIVE_PROCESS, gpu
        limit = self.mebibytes(1, 25)
        for name in names:
            _, environment = self.node.environments()[name]
            assert environment["NVIDIA_VISIBLE_DEVICES"] == gpu["uuid"], environment
            self.assert_mounted(name, environment)
            directory = self.daemon_directory(environment)
            assert self.ask_daemon(directory, "get_default_active_thread_percentage") == "25.0"
            self.assert_memory_limit(directory, limit)
            self.cuda_client(name, f"threads 25.0 memory 0={limit}M")

    def assert_memory_limit(self, directory, mebibytes):
        """The daemon shows whole GiB, rounded down."""
        said = self.ask_daemon(directory, "get_default_device_pinned_mem_limit 0")
        assert said == f"{mebibytes >> 10}G", f"the daemon's limit is {said!r}, and a share is {mebibytes} MiB"

    def unequal_shares(self):
        names = ["mps-60", "mps-40"]
        self.running(names)
        self.assert_nothing_twice(names)
        directories = set()
        for name, percent in zip(names, (60, 40)):
            _, environment = self.node.environments()[name]
            assert environment["NVIDIA_VISIBLE_DEVICES"] == self.node.gpu(2)["uuid"], environment
            assert environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == str(percent), environment
            limit = f"0={self.mebibytes(2, percent)}M"
            assert environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == limit, environment
            self.assert_mounted(name, environment)
            directories.add(self.daemon_directory(environment))
            self.cuda_client(name, f"threads {percent}.0 memory {limit}")
        assert len(directories) == 1, f"one GPU, daemons {directories}"
        self.assert_memory_limit(*directories, self.mebibytes(2, 60))
        assert self.ask_daemon(*directories, "get_default_active_thread_percentage") == "60.0"
        self.checks.remove_pods()

    # Exclusion.
    def excluded(self):
        """A rule excludes all GPUs but one, with a Pod on that one; then there is no rule."""
        self.config("gpulet:", "  partition:", "    - {devices: [0], whole: {}}", "    - {exclude: true}")
        only = self.node.gpu(0)["uuid"]
        until("the kubelet has GPU 0 alone", lambda: list(self.node.resources.allocatable(GPU)) == [only], LIVE_S, 0.01)
        self.offered(**{GPU: 1, SHARED: 0, f"{GPU}.mps-60": 0, f"{GPU}.mps-40": 0})
        self.pods(GPU, "only")
        self.running(["only"])
        self.pods(GPU, "excluded")
        self.checks.stays_pending("excluded", GPU)
        assert self.assert_nothing_twice(["only"]) == {"only": only}
        before = self.checks.facts(["only"])
        self.config()
        until("the kubelet has all GPUs", lambda: len(self.node.resources.allocatable(GPU)) == 8, LIVE_S, 0.01)
        self.running(["excluded"])  # it has waited for this
        self.checks.assert_undisturbed(before)
        assert self.assert_nothing_twice(["only", "excluded"])["only"] == only
        self.checks.remove_pods()

    # All of it on one node.
    def mixed(self):
        gpus = self.node.change_mig("cut", 7, "3@4", "2@0", "1@2", "1@3")
        assert [mig["profile"] for mig in self.node.gpu(7)["mig"]].count("1g.10gb") == 2, gpus
        self.config("gpulet:", "  mig: {manage: false}", "  partition:", "    - {devices: [0-3], whole: {}}",
                    "    - {devices: [4, 5], timeSlicing: {replicas: 4}}", "    - {devices: [6], mps: {shares: [60, 40]}}",
                    "    - {devices: [7], mig: {devices: {3g.40gb: 1, 2g.20gb: 1, 1g.10gb: 2}}}")
        limits = {GPU: 4, SHARED: 8, f"{GPU}.mps-60": 1, f"{GPU}.mps-40": 1, "nvidia.com/mig-3g.40gb": 1,
                  "nvidia.com/mig-2g.20gb": 1, "nvidia.com/mig-1g.10gb": 2}
        self.offered(**limits)
        pods = {}
        for resource, count in limits.items():
            word = resource.rpartition("/")[2].replace(".", "-")
            pods[resource] = [f"{word}-{number}" for number in range(count)]
            self.pods(resource, *pods[resource])
        names = [name for some in pods.values() for name in some]
        self.running(names)
        more = {resource: some[0] + "-more" for resource, some in pods.items()}
        for resource, name in more.items():
            self.pods(resource, name)
        for resource, name in more.items():
            self.checks.stays_pending(name, resource)
        held = self.assert_nothing_twice(names)
        seen = {pod: ids for pod, ids in self.node.containers().items() if pod in names}
        assert seen == {pod: [device.partition("::")[0]] for pod, device in held.items()}, f"held {held}, seen {seen}"
        self.assert_by_rule({resource: sorted(seen[name][0] for name in some) for resource, some in pods.items()})
        for mig in self.node.gpu(7)["mig"]:
            name = next(pod for pod, ids in seen.items() if ids == [mig["uuid"]])
            self.assert_mig_nodes(name, mig)
        self.checks.remove_pods()

    def assert_by_rule(self, given):
        """Returns resource → devices seen by its Pods, with repetitions."""
        def uuids(indices, times=1):
            return sorted([self.node.gpu(index)["uuid"] for index in indices] * times)
        wanted = {GPU: uuids(range(4)), SHARED: uuids((4, 5), 4), f"{GPU}.mps-60": uuids((6,)), f"{GPU}.mps-40": uuids((6,))}
        for mig in self.node.gpu(7)["mig"]:
            wanted.setdefault(f"nvidia.com/mig-{mig['profile']}", []).append(mig["uuid"])
        assert given == {resource: sorted(ids) for resource, ids in wanted.items()}, f"wanted {wanted}, given {given}"

    def assert_mig_nodes(self, name, mig):
        """Checks its GPU's node and exactly the capabilities of its two instances."""
        minor = self.node.gpu(7)["minor"]
        numbers = dict(line.split() for line in (self.node.sim / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines())
        caps = [numbers[f"gpu{minor}/gi{mig['gi']}/{what}access"] for what in ("", f"ci{mig['ci']}/")]
        wanted = {f"/dev/nvidia{minor}", *(f"/dev/nvidia-caps/nvidia-cap{number}" for number in caps)}
        assert set(self.device_nodes(name)) == wanted, f"{name} with {mig} has {self.device_nodes(name)}"

    def whole_again(self):
        self.node.change_mig("whole", 7)
        self.config()
        self.offered(**{GPU: 8, SHARED: 0, "nvidia.com/mig-1g.10gb": 0})
        until("every GPU is in the default compute mode",
              lambda: {gpu["compute_mode"] for gpu in self.node.nvml("gpus").values()} == {COMPUTE_MODE_DEFAULT}, 20)
        assert not list(self.mps_root.rglob(".started")), list(self.mps_root.rglob("*"))
        self.checks.stop_agent_of(self.node)
