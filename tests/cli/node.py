"""A simulated node for the commands: a driver root, an agent without a kubelet, and nothing of this machine."""
import os
import signal
import subprocess
import time

LIMIT_S = 60
MACHINE = "hgx-h100"


class Node:
    def __init__(self, programs, directory):
        self.programs, self.directory = programs, directory
        self.root = directory / "root"
        self.state, self.kubelet = directory / "state", directory / "kubelet"
        self.health, self.socket = directory / "health.json", directory / "agent.sock"
        self.agent = None
        self.environment = {
            "PATH": f"{programs}:/usr/bin:/bin", "HOME": str(directory / "home"), "TERM": "xterm", "LANG": "C.UTF-8",
            "DRIVER_ROOT_CTR_PATH": str(self.root), "GPULET_KUBELET_DIR": str(self.kubelet),
            "GPULET_STATE_DIR": str(self.state), "GPULET_HEALTH_FILE": str(self.health), "GPULET_SOCKET": str(self.socket)}

    def __enter__(self):
        for one in (self.state, self.kubelet, self.directory / "home", self.directory / "cdi"):
            one.mkdir()
        done = self.run(["gpulet-sim", "up", MACHINE, "--root", str(self.root), "--seed", "1", "--no-device-nodes"])
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return self

    def __exit__(self, *_):
        if self.agent is not None:
            self.agent.send_signal(signal.SIGTERM)
            self.agent.wait(timeout=LIMIT_S)
        self.run(["gpulet-sim", "down", "--root", str(self.root)])

    def start_agent(self):
        """Returns once it has written its health report."""
        if self.agent is not None:
            return
        log = open(self.directory / "agent.log", "wb")
        self.agent = subprocess.Popen(
            [self.programs / "gpulet", "agent", "--listen", "", "--kernel-log", "", "--cdi-spec-dir", str(self.directory / "cdi"),
             "--cdi-hook-dir", str(self.directory / "hook"), "--kubelet-socket", ""],
            env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + LIMIT_S
        while not (self.health.exists() and self.socket.exists()):
            if self.agent.poll() is not None or time.monotonic() > end:
                raise RuntimeError((self.directory / "agent.log").read_text(errors="replace"))
            time.sleep(0.05)

    def run(self, arguments, **environment):
        """Runs one of the programs. The arguments may be bytes. Returns what it printed as text."""
        program, *rest = arguments
        if isinstance(program, bytes):
            program = program.decode()
        return subprocess.run([self.programs / program, *rest], env={**self.environment, **environment}, cwd=self.directory,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False, text=True,
                              errors="surrogateescape")
