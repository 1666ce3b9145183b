"""The machine under test: its driver, gpulet's programs, and what makes its GPU busy. Real or simulated."""
import contextlib
import ctypes
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import time

from report import Skip
from rm_client import CONTROL_NODE

HERE = pathlib.Path(__file__).resolve().parent
SIMULATED = "hgx-h100"


def run(*command, env=None, limit_s=30, check=True, stdin=None):
    """Runs a program to its end; returns it with its output. With `check`, a failure raises."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=limit_s, check=False, input=stdin,
                          env={**os.environ, **(env or {})})
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command[:4]))}: exit status {done.returncode}: "
                             f"{(done.stderr or done.stdout).strip()[-600:]}")
    return done


class Client:
    """A child process that prints JSON lines; ended with its standard input."""

    def __init__(self, command, env=None, descriptors=(), cgroup=None):
        """`cgroup`: the directory of the one that the child is in from its first instruction."""
        if cgroup:
            command = ["/bin/sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', cgroup, *command]
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, env={**os.environ, **(env or {})}, start_new_session=True,
                                        pass_fds=descriptors)
        self.pid = self.process.pid
        self.buffer = b""

    def line(self, limit_s=30):
        """The next line; raises when the child is late, ends without one, or reports an error."""
        end = time.monotonic() + limit_s
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))
            if not ready:
                raise AssertionError(f"process {self.pid} prints nothing within {limit_s} s")
            part = os.read(self.process.stdout.fileno(), 65536)
            if not part:
                raise AssertionError(f"process {self.pid} ended with {self.process.wait()} and printed nothing")
            self.buffer += part
        text, _, self.buffer = self.buffer.partition(b"\n")
        said = json.loads(text)
        if said.get("error"):
            raise AssertionError(said["error"])
        return said

    def stop(self, limit_s=10):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            return self.process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            return self.process.wait()
        finally:
            self.process.stdout.close()


class Machine:
    """What both kinds have. `root` is the driver root; `stop()` ends everything that was started."""
    simulated = False
    has_nodes = True  # device nodes, which a simulated driver has only as root

    def __init__(self, programs, directory):
        self.bin, self.directory = programs / "bin", directory
        self.gpulet, self.hook, self.simulator = self.bin / "gpulet", self.bin / "gpulet-hook", self.bin / "gpulet-sim"
        for program in (self.gpulet, self.hook):
            if not program.exists():
                raise SystemExit(f"no {program}: run `make build`, or name the directory with --programs")
        self.started = []

    def keep(self, what):
        """Stopped at the end, if not before."""
        self.started.append(what)
        return what

    def stop(self):
        while self.started:
            self.started.pop().stop()

    def gpulet_json(self, *words):
        return json.loads(run(self.gpulet, *words, "-o", "json", env=self.gpulet_env).stdout)


class RealMachine(Machine):
    root = "/"
    gpulet_env = {"DRIVER_ROOT_CTR_PATH": "/"}
    agent_flags = ()
    kernel_log = "/dev/kmsg"

    def __init__(self, programs, directory):
        super().__init__(programs, directory)
        self.library = "libnvidia-ml.so.1"
        try:
            ctypes.CDLL(self.library)
        except OSError as error:
            raise SystemExit(f"no NVIDIA driver here ({error}); rehearse with --simulated") from None

    def smi(self, *words, check=True):
        return run("nvidia-smi", *words, check=check)

    def cuda_env(self):
        return {}

    def limit_backends(self):
        """What counts memory for the driver's limits, one after the other."""
        yield "dmem" if any(pathlib.Path(path, "dmem.capacity").exists() for path in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")) else "misc"

    def mps_control(self):
        for directory in os.environ.get("PATH", "").split(":") + ["/usr/bin"]:
            program = pathlib.Path(directory) / "nvidia-cuda-mps-control"
            if program.exists() and (program.resolve().parent / "nvidia-cuda-mps-server").exists():
                return program
        raise Skip("nvidia-cuda-mps-control and nvidia-cuda-mps-server are not both installed")

    def cuda(self, *words, env=None):
        """A CUDA program as a child; its JSON lines are read with line()."""
        return self.keep(Client([sys.executable, "-B", HERE / "cuda.py", *words], env))

    def cuda_memory(self, way, mib, *descriptors, env=None, cgroup=None):
        """A process that takes device memory by one way of the driver API."""
        return self.keep(Client([sys.executable, "-B", HERE / "cuda_memory.py", way, mib, *descriptors], env, descriptors, cgroup))

    def cuda_memory_until(self, way, mib, cgroup):
        """A process that takes device memory until it is refused."""
        return self.keep(Client([sys.executable, "-B", HERE / "cuda_memory.py", "until", mib, way], self.cuda_env(), cgroup=cgroup))

    def rm_client(self, *words, descriptors=(), cgroup=None):
        """A process that takes device memory by the kernel module's own interface."""
        if not pathlib.Path(CONTROL_NODE).exists():
            raise Skip(f"no {CONTROL_NODE}, on which the kernel module's own interface is")
        return self.keep(Client([sys.executable, "-B", HERE / "rm_client.py", *words], None, descriptors, cgroup))

    def holder(self, mib):
        return self.cuda("hold", mib)

    def load(self, seconds, mib):
        return self.cuda("busy", seconds, mib)

    def fault(self, kind, xid):
        client = self.cuda("fault", kind)
        client.line()
        said = client.line()
        client.stop()
        if not said["fault"]:
            raise AssertionError(f"the kernel {kind} does not fail (XID {xid} expected)")
        return said

    def mps_client(self, pipe, env):
        return self.cuda("limit", 2048, env={"CUDA_MPS_PIPE_DIRECTORY": str(pipe), **env})


class SimulatedMachine(Machine):
    """`gpulet-sim up`; loads and XIDs by its commands, memory by its libcuda. What needs kernels is skipped."""
    simulated = True
    kernel_log = ""

    def __init__(self, programs, directory):
        super().__init__(programs, directory)
        self.root = str(directory / "node")
        self.gpulet_env = {"DRIVER_ROOT_CTR_PATH": self.root}
        self.agent_flags = ("--driver-root-ctr-path", self.root)
        libraries = next(f for f in (programs / "lib" / "gpulet" / "sim", programs / "lib") if f.is_dir())
        self.has_nodes = os.geteuid() == 0
        nodes = [] if self.has_nodes else ["--no-device-nodes"]
        run(self.simulator, "up", SIMULATED, "--root", self.root, "--library", libraries / "libnvidia-ml.so.1",
            "--nvidia-smi", libraries / "nvidia-smi", *nodes)
        self.library = str(next(pathlib.Path(self.root).glob("usr/lib/*-linux-gnu/libnvidia-ml.so.1")))

    def stop(self):
        super().stop()
        run(self.simulator, "down", "--root", self.root)

    def control(self, *words):
        run(self.simulator, *words, "--root", self.root)

    def smi(self, *words, check=True):
        return run(pathlib.Path(self.root) / "usr/bin/nvidia-smi", *words, check=check)

    def mps_control(self):
        return pathlib.Path(self.root) / "usr/bin/nvidia-cuda-mps-control"

    def cuda(self, *words, env=None):
        if words[0] != "hold" or env:
            raise Skip("needs kernels or MPS, which the simulated libcuda does not have")
        return self.keep(Client([sys.executable, "-B", HERE / "cuda.py", *words], self.cuda_env()))

    def cuda_memory(self, way, mib, *descriptors, env=None, cgroup=None):
        if way in ("export", "import", "keep") or env:
            raise Skip("needs memory of other processes or MPS, which the simulated libcuda does not have")
        return self.keep(Client([sys.executable, "-B", HERE / "cuda_memory.py", way, mib], self.cuda_env(), cgroup=cgroup))

    def cuda_memory_until(self, way, mib, cgroup):
        return self.keep(Client([sys.executable, "-B", HERE / "cuda_memory.py", "until", mib, way], self.cuda_env(), cgroup=cgroup))

    def rm_client(self, *words, descriptors=(), cgroup=None):
        raise Skip("needs the kernel module's own interface, which the simulated driver does not have")

    def limit_backends(self):
        self.control("driver-reload", "--version", "615.71.09")
        for backend in ("misc", "dmem"):
            self.control("memacct", backend)
            yield backend

    def cuda_env(self):
        return {"LD_LIBRARY_PATH": str(pathlib.Path(self.library).parent)}

    def holder(self, mib):
        return self.cuda("hold", mib)

    def load(self, seconds, mib):
        return self.keep(SimulatedProcess(self, 100, mib))

    def fault(self, kind, xid):
        at = time.time()
        self.control("xid", "0", str(xid))
        return {"fault": "simulated", "code": 0, "at": at, "pid": 0}

    def mps_client(self, pipe, env):
        """Prints `threads 25.0 memory 0=20369M` and stays."""
        return self.keep(SimulatedMpsClient(self, {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), **env}))


class SimulatedProcess:
    """A sleeping process that the simulated driver counts as a CUDA client of GPU 0."""

    def __init__(self, machine, percent, mib):
        self.machine, self.mib, self.said = machine, mib, False
        self.client = Client(["cat"])
        self.pid = self.client.pid
        machine.control("load", "0", str(percent), "--memory", str(mib), "--pid", str(self.pid))

    def line(self, limit_s=0):
        return {"pid": self.pid, "allocated_mib": self.mib}

    def stop(self):
        if self.client:
            self.machine.control("load", "0", "0", "--pid", str(self.pid))
            self.client.stop()
            self.client = None


class SimulatedMpsClient(Client):
    def __init__(self, machine, env):
        super().__init__([machine.simulator, "mps", "client", env["CUDA_MPS_PIPE_DIRECTORY"]], env)

    def line(self, limit_s=10):
        while b"\n" not in self.buffer:
            part = os.read(self.process.stdout.fileno(), 4096)
            if not part:
                raise AssertionError("the MPS client ended")
            self.buffer += part
        found = re.search(r"threads ([\d.]+)(?: memory \S*=(\d+)M)?", self.buffer.decode())
        return {"threads": float(found[1]), "got_mib": int(found[2] or 0), "text": self.buffer.decode().strip()}

    def stop(self, limit_s=10):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
        return super().stop(limit_s)
