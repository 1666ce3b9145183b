"""A running `gpulet agent` outside Kubernetes: no kubelet, no API server, a listener on a free port."""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.request

from report import wait_until

READY_S, STOP_S = 30, 10
SAMPLE = re.compile(r'^(\w+)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def link_target(link):
    try:
        return os.readlink(link)
    except OSError:  # closed meanwhile
        return ""


def samples(text):
    """[(name, labels, value)] of the text of /metrics."""
    matches = (SAMPLE.match(line) for line in text.splitlines())
    return [(match[1], dict(LABEL.findall(match[2] or "")), float(match[3])) for match in matches if match]


class Agent:
    def __init__(self, machine, name, interval="15s", flags=()):
        self.machine = machine
        place = machine.directory / f"agent-{name}"
        (place / "kubelet" / "device-plugins").mkdir(parents=True)
        self.log_path, self.health_file, self.state = place / "log", place / "health.json", place / "state"
        self.state.mkdir()
        command = [machine.gpulet, "agent", "--kubelet-dir", place / "kubelet", "--kubelet-socket", "", "--listen", "127.0.0.1:0",
                   "--state-dir", self.state, "--driver-root-ctr-path", machine.root, "--socket", "", "--labels", "none",
                   "--health-file", self.health_file, "--publish-gpu-node=false", "--kernel-log", machine.kernel_log,
                   "--metrics-interval", interval, "--mig-manage", "false", "--log-format", "json", *flags]
        self.log_file = self.log_path.open("w")
        started = time.monotonic()
        self.process = subprocess.Popen([str(word) for word in command], stdout=self.log_file, stderr=self.log_file,
                                        start_new_session=True)
        self.pid = self.process.pid
        machine.keep(self)
        self.port = wait_until(lambda: self.logged("listening", "port"), READY_S, "the agent listens", 0.002)
        wait_until(lambda: self.logged("the driver is available", "version"), READY_S, "the agent opens the driver", 0.002)
        self.ready_s = time.monotonic() - started

    def log(self):
        lines = self.log_path.read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def logged(self, message, key):
        if self.process.poll() is not None:
            raise AssertionError(f"the agent ended with {self.process.returncode}: {self.log_path.read_text()[-800:]}")
        return next((line[key] for line in self.log() if line.get("message") == message), None)

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return answer.read().decode()

    def metrics(self):
        return samples(self.get("/metrics"))

    def metric(self, name, **labels):
        """The first sample's value with these labels, or None."""
        return next((value for found, have, value in self.metrics()
                     if found == name and all(have.get(key) == wanted for key, wanted in labels.items())), None)

    def health(self):
        return json.loads(self.health_file.read_text())["devices"]

    def processes(self):
        """This process and its children."""
        children = pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [self.pid] + [int(word) for word in (children.read_text().split() if children.exists() else [])]

    def cpu_s(self):
        """CPU seconds of the agent and its listener child."""
        cpu = 0
        for pid in self.processes():
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            cpu += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return cpu

    def memory_mb(self):
        """Resident megabytes of the agent, of its mapping of libnvidia-ml, and of its listener child."""
        library = 0
        inside = False
        with contextlib.suppress(PermissionError):
            for line in pathlib.Path(f"/proc/{self.pid}/smaps").read_text().splitlines():
                if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                    inside = "libnvidia-ml" in line
                elif inside and line.startswith("Rss:"):
                    library += int(line.split()[1])
        def resident(pid):
            return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return {"agent": round(resident(self.pid) / 1e6, 1), "of it libnvidia-ml": round(library / 1e3, 1),
                "listener": round(sum(resident(pid) for pid in self.processes()[1:]) / 1e6, 1)}

    def open_nodes(self):
        """{device node: how often it is open}"""
        found = {}
        for pid in self.processes():
            with contextlib.suppress(PermissionError):  # a process that gave up its rights, seen without root
                for target in map(link_target, pathlib.Path(f"/proc/{pid}/fd").iterdir()):
                    if target.startswith("/dev/nvidia"):
                        found[target] = found.get(target, 0) + 1
        return found

    def stop(self):
        """Stops it; returns how long that took."""
        started = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.pid, signal.SIGKILL)
                self.process.wait()
                raise AssertionError(f"the agent does not stop within {STOP_S} s") from None
            finally:
                self.log_file.close()
        return time.monotonic() - started
