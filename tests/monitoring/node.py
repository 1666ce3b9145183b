"""A node on this machine: a simulated driver, a minimal kubelet, and the shipped agent."""
import json
import os
import signal
import subprocess
import time
import urllib.request

import contract
from kubelet import Kubelet

LIMIT_S = 30
# Seconds instead of minutes, as in the rules.
CONFIG = {"version": "v1", "flags": {"migStrategy": "mixed"}, "gpulet": {
    "driverCallTimeout": "1s",
    "metrics": {"interval": "1s", "nvlinks": True},
    "health": {"livenessInterval": "1s", "pollInterval": "1s", "unhealthyPollInterval": "500ms", "recoveryHold": "1s", "recoveryActionDelay": "0s",
               "relapseWindow": "20s", "maxRecoveryHold": "5s",
               # Long enough to be sampled once.
               "classes": {name: {"recoveryHold": "4s"} for name in ("thermal", "ecc-errors", "correctable-storm", "nvlink-errors")}}}}
ONE_CUT_UP = {"version": "v1", "mig-configs": {"one": [
    {"devices": [7], "mig-enabled": True, "mig-devices": {"1g.10gb": 2, "2g.20gb": 1}},
    {"devices": [0, 1, 2, 3, 4, 5, 6], "mig-enabled": False}]}}


class Node:
    def __init__(self, name, machine, directory, programs):
        self.name, self.machine, self.directory, self.programs = name, machine, directory, programs
        self.root, self.config = directory / "driver", directory / "config.yaml"
        self.kubelet = Kubelet(directory / "kubelet")
        self.agent, self.port, self.background = None, 0, []
        directory.mkdir()

    def driver_up(self, cut_up=False):
        nodes = [] if os.geteuid() == 0 else ["--no-device-nodes"]
        self.sim("up", self.machine, "--seed", self.name, *nodes)
        if cut_up:
            layout = self.directory / "layout.yaml"
            layout.write_text(json.dumps(ONE_CUT_UP))
            apply = [self.programs / "gpulet", "mig", "apply", "--driver-root", self.root, "--ignore-pods", "-f", layout, "-c", "one"]
            # An A100 changes its mode only with a reset.
            subprocess.run([*apply, "--mode-only"], capture_output=True, timeout=LIMIT_S, check=False)
            self.sim("reset", "7")
            subprocess.run(apply, capture_output=True, timeout=LIMIT_S, check=True)
        self.configure(CONFIG)

    def run(self, program, *arguments):
        ran = subprocess.run([self.programs / program, *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if ran.returncode:
            raise RuntimeError(f"{program} {' '.join(map(str, arguments))}: {ran.stderr.strip() or ran.stdout.strip()}")
        return ran.stdout

    def sim(self, *arguments):
        return self.run("gpulet-sim", *arguments, "--root", self.root)

    def sim_meanwhile(self, *arguments):
        """Runs a command that ends with its effect."""
        self.background.append(subprocess.Popen([self.programs / "gpulet-sim", *arguments, "--root", self.root]))

    def devices(self):
        """The UUIDs of the GPUs, by index."""
        return [gpu["uuid"] for gpu in json.loads(self.sim("status", "-o", "json"))["gpus"]]

    def configure(self, config):
        counters = self.directory / "counters.csv"
        counters.write_text("".join(f"{name}, {'counter' if name in contract.DCGM_COUNTERS else 'gauge'}, {name} of the test.\n"
                                    for name in sorted(contract.DCGM_DEFAULT | {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"})))
        ours = config["gpulet"]
        places = {"stateDir": str(self.directory / "state"), "healthFile": str(self.directory / "health.json"), "kernelLog": "",
                  "metrics": {**ours["metrics"], "countersFile": str(counters)}}
        text = json.dumps({**config, "gpulet": {**ours, **places}})
        new = self.config.with_suffix(".new")
        new.write_text(text)
        new.rename(self.config)

    def start(self, **environment):
        """Starts on the previous port, so that Prometheus sees the same target."""
        log = self.directory / f"agent-{time.monotonic_ns()}.log"
        with open(log, "wb") as file:
            self.agent = subprocess.Popen(
                [self.programs / "gpulet", "agent", f"--driver-root-ctr-path={self.root}", f"--nvidia-driver-root={self.root}"],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                env={"PATH": os.environ["PATH"], "NODE_NAME": self.name, "CONFIG_FILE": str(self.config), "GPULET_LOG_FORMAT": "json",
                     "GPULET_KUBELET_DIR": str(self.kubelet.directory), "GPULET_LISTEN": f"127.0.0.1:{self.port}", "GPULET_SOCKET": "", **environment})
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until and self.agent.poll() is None:
            for line in log.read_text(errors="replace").splitlines():
                if '"listening"' in line:
                    self.port = json.loads(line)["port"]
                    return
            try:
                self.agent.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                pass
        raise TimeoutError(f"the agent of {self.name} does not listen: {log.read_text(errors='replace')[-400:]}")

    def page(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            return answer.read().decode()

    def stop(self):
        if self.agent and self.agent.poll() is None:
            self.agent.send_signal(signal.SIGTERM)
            try:
                self.agent.wait(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                self.agent.kill()
                self.agent.wait()

    def end(self):
        if self.root.exists():
            subprocess.run([self.programs / "gpulet-sim", "heal", "--root", self.root], capture_output=True, timeout=LIMIT_S, check=False)
        self.stop()
        self.kubelet.stop()
        for process in self.background:
            process.kill()
            process.wait()
        if self.root.exists():
            subprocess.run([self.programs / "gpulet-sim", "down", "--root", self.root], capture_output=True, timeout=LIMIT_S, check=False)
