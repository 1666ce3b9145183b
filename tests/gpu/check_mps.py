"""MPS: a control daemon in private directories, two clients with limits, and its end."""
import json
import os
import pathlib
import subprocess
import tempfile

import nvml
from agent import Agent
from machine import run
from report import Skip, between, same, wait_until

LIMITS = (("25", 512), ("50", 1024))  # active threads in percent, pinned memory in MiB


def check_mps(report, machine):
    with report.check("MPS: a daemon, and two clients with their limits"):
        control = machine.mps_control()
        daemon = MpsDaemon(machine, control)
        try:
            daemon.start()
            figures = [daemon.client(threads, mib) for threads, mib in LIMITS]
            report.figure("mps.clients", figures)
            for (_, mib), found in zip(LIMITS, figures):
                between(found["got_mib"], mib * 0.2, mib, f"MiB of a client limited to {mib}")
            report.figure("mps.servers", len(daemon.ask("get_server_list").split()))
        finally:
            daemon.quit()
    with report.check("MPS: the daemon ends on `quit`"):
        same(daemon.left(), False, "its control socket is left")


def check_agent_mps(report, machine, allowed):
    """gpulet's own daemon. It puts the GPU into the compute mode EXCLUSIVE_PROCESS and back."""
    with report.check("MPS: the agent's daemon, a client with its share, and the compute mode after it"):
        if not allowed:
            raise Skip("the agent sets the compute mode EXCLUSIVE_PROCESS; not without --allow-changes")
        machine.mps_control()
        root, config = machine.directory / "mps", machine.directory / "mps.json"
        root.mkdir()
        config.write_text(json.dumps({"version": "v1", "flags": {"mpsRoot": str(root)}, "sharing": {"mps": {"resources": [
            {"name": "gpu", "replicas": 4}]}}}))
        agent = Agent(machine, "mps", flags=("--config-file", config))
        # The agent writes .started once the daemon has its limits; before that, nobody could end it for the agent.
        pipe = wait_until(lambda: next(root.rglob(".started"), None), 20, "the daemon is ready", 0.05).parent / "pipe"
        same(compute_mode(machine), 3, "compute mode with the daemon")
        client = machine.mps_client(pipe, {})
        report.figure("mps.agent_client", {key: value for key, value in client.line().items() if key != "pid"})
        client.stop()
        agent.stop()  # on a host, the daemons stay for the next agent: `gpulet cleanup` ends them
        said = cleanup(machine, root)
        same(compute_mode(machine), 0, f"compute mode after `gpulet cleanup`, which says: {said}")


def check_sm_partitions(report, machine):
    """Static SM partitioning: partitions by trial, the list, and clients with and without one. Read, not run, before this."""
    with report.check("MPS: static SM partitions, and clients with and without one"):
        with nvml.Nvml(machine.library) as library:
            version = library.text("nvmlSystemGetDriverVersion")
            gpu = library.text("nvmlDeviceGetUUID", library.devices()[0])
        if int(version.split(".")[0]) < 590:
            raise Skip(f"static SM partitions need driver 590 or later; this is {version}")
        daemon = MpsDaemon(machine, machine.mps_control(), "-S", ready="lspart")
        try:
            daemon.start()
            report.figure("mps.lspart_before", daemon.ask("lspart"))
            report.figure("mps.sm_partition_refused", daemon.ask(f"sm_partition add {gpu} 64"))
            said = [daemon.ask(f"sm_partition add {gpu} {chunks}") for chunks in (1, 2)]
            report.figure("mps.sm_partition_added", said)
            ids = [word for line in said for word in line.split() if word.startswith(gpu + "/")]
            same(len(ids), 2, f"ids in {said}")
            listed = daemon.ask("lspart")
            report.figure("mps.lspart", listed)
            for one in ids:
                same(one.split("/", 1)[1] in listed, True, f"{one} is listed")
            client = machine.mps_client(daemon.pipe, {"CUDA_MPS_SM_PARTITION": ids[1]})
            report.figure("mps.sm_partition_client", {key: value for key, value in client.line().items() if key != "pid"})
            report.figure("mps.sm_partition_removed_in_use", daemon.ask(f"sm_partition rm {gpu} {ids[1].split('/', 1)[1]}"))
            client.stop()
            why = report.figure("mps.client_without_partition", refusal(machine.mps_client(daemon.pipe, {})))
            same(bool(why), True, "a client without a partition gets no context")
        finally:
            daemon.quit()


def refusal(client):
    """Why a client got no context; empty: it has one."""
    try:
        client.line()
        return ""
    except AssertionError as error:
        return str(error)
    finally:
        client.stop()


def check_namespaces(report, machine):
    """Protocol 3: a namespace's percentage stands in place of the client's own. Not run before the first driver of branch 615."""
    with report.check("MPS protocol 3: a namespace, its limits as read back, and a client that asks for more"):
        with nvml.Nvml(machine.library) as library:
            version = library.text("nvmlSystemGetDriverVersion")
        if int(version.split(".")[0]) < 615:
            raise Skip(f"MPS protocol 3 needs driver 615 or later; this is {version}")
        daemon = NamespaceDaemon(machine, machine.mps_control())
        try:
            daemon.start()
            daemon.ask("namespace", "create", "a", "--server=s")
            daemon.ask("namespace", "set", "a", "--server=s", "--active-thread-percentage=30", "--pinned-memory-limit=1024M")
            shown = [daemon.ask("namespace", "get", "a", "s", field) for field in ("active-thread-percentage", "pinned-memory-limit")]
            report.figure("mps.namespace", shown)
            same(float(shown[0]), 30.0, "percent of the namespace")
            client = machine.mps_client(daemon.pipe / "s" / "a", {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"})
            found = client.line()
            client.stop()
            report.figure("mps.namespace_client", {key: value for key, value in found.items() if key != "pid"})
            between(found["got_mib"], 1024 * 0.2, 1024, "MiB of a client of a namespace of 1024")
            same(found.get("threads", 30.0), 30.0, "percent of a client that asks for 100")
            report.figure("mps.absent_gpu", daemon.absent_gpu())
        finally:
            daemon.quit()


def cleanup(machine, root):
    place = machine.directory / "cleanup"
    flags = [word for name in ("cdi-spec-dir", "cdi-hook-dir", "state-dir", "run-dir", "kubelet-dir")
             for word in (f"--{name}", place / name)]
    for path in flags[1::2]:
        path.mkdir(parents=True)
    done = run(machine.gpulet, "cleanup", "--mps-root", root, "--driver-root", machine.root, *flags)
    return " ".join((done.stdout + done.stderr).split())


def compute_mode(machine):
    with nvml.Nvml(machine.library) as library:
        return library.number("nvmlDeviceGetComputeMode", library.devices()[0])


class MpsDaemon:
    def __init__(self, machine, control, *options, ready="get_default_active_thread_percentage"):
        self.machine, self.control, self.options, self.ready = machine, control, options, ready
        own = pathlib.Path(tempfile.mkdtemp(prefix="mps-", dir=machine.directory))
        os.chmod(own, 0o755)
        self.pipe, self.log = own / "pipe", own / "log"
        for directory in (self.pipe, self.log):
            directory.mkdir()
        self.env = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.log)}
        self.process = None

    def start(self):
        self.process = subprocess.Popen([str(self.control), "-f", *self.options], env={**os.environ, **self.env}, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        self.machine.keep(self)
        wait_until(lambda: (self.pipe / "control").exists() or self.process.poll() is not None, 10, "the daemon's socket")
        if self.process.poll() is not None:
            raise AssertionError(f"{self.control} -f ended with {self.process.returncode}: {self.said()}")
        wait_until(lambda: "Timeout" not in self.ask(self.ready), 10, "the daemon's answer", 0.1)

    def said(self):
        return " ".join(path.read_text(errors="replace")[-500:] for path in self.log.glob("*.log"))

    def ask(self, command):
        return run(self.control, env=self.env, stdin=command + "\n", check=False).stdout.strip()

    def client(self, threads, mib):
        client = self.machine.mps_client(self.pipe, {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": threads,
                                                     "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={mib}M"})
        try:
            found = client.line()
        except AssertionError as error:
            raise AssertionError(f"{error}; the daemon's log: {self.said()}") from None
        finally:
            client.stop()
        return {"threads_percent": threads, "limit_mib": mib, **{key: value for key, value in found.items() if key != "pid"}}

    def quit(self):
        if self.process and self.process.poll() is None:
            self.ask("quit")
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.ask("quit -t 1")
                self.process.terminate()
                self.process.wait(timeout=10)

    stop = quit

    def left(self):
        if self.process is None:
            raise Skip("no daemon was started")
        return self.process.poll() is None


class NamespaceDaemon:
    """A daemon of protocol 3 with the server `s`."""
    def __init__(self, machine, control):
        self.machine, self.control = machine, control
        own = pathlib.Path(tempfile.mkdtemp(prefix="mps3-", dir=machine.directory))
        self.pipe = own / "pipe"
        self.env = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(own / "log")}

    def ask(self, *words, check=True):
        return run(self.control, *words, env=self.env, check=check).stdout.strip()

    def start(self):
        (self.pipe.parent / "log").mkdir()
        self.pipe.mkdir()
        self.machine.keep(self)
        self.ask("-d", "-p", "3", "-m")
        self.ask("server", "create", "s", "--uid=0")
        wait_until(lambda: self.ask("server", "get", "s", "status") == "Ready", 10, "the server is ready", 0.1)

    def absent_gpu(self):
        """What says that a server's GPU is absent: nothing, as NVIDIA Dynamo found."""
        said = self.ask("server", "create", "absent", "--uid=0", "--allowed-devices=GPU-00000000-0000-0000-0000-000000000000", check=False)
        wait_until(lambda: "absent" not in self.ask("server", "list", "--format=csv,noheader"), 10, "the server has vanished", 0.1)
        return said

    def quit(self):
        self.ask("-q", check=False)

    stop = quit
