"""Runs the last part of docs/getting-started.md, the simulated node, as a reader types it: in one shell, line by line, with the
programs of `make build`. Namespaces of its own keep its files and ports from the host's. The parts before it need a cluster:
tests/cluster runs those."""
import os
import pathlib
import re
import select
import signal
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "getting-started.md"
LIMIT_S = 90
BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
HEALTHY = r"^3 .*\bhealthy\b"
# Empty directories where the agent and the page's commands write.
NAMESPACE = """ip link set lo up && mkdir -p /var/lib/gpulet /var/run/cdi && mount -t tmpfs none /var/lib/gpulet &&
mount -t tmpfs none /tmp && mount -t tmpfs none /run && exec bash"""


def section(number):
    """Returns the commands of one numbered section, line by line."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^## {number}\. .*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return [line for block in BLOCK.findall(found[0]) for line in block.splitlines()]


def descendants(pid):
    """Returns (pid, program) of a process' children and theirs."""
    try:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        found = [(int(child), pathlib.Path(f"/proc/{child}/comm").read_text().strip()) for child in children]
    except OSError:
        return []  # it has just ended
    return found + [one for child, _ in found for one in descendants(child)]


class Shell:
    """A bash that gets one line after the other."""

    def __init__(self):
        self.process = subprocess.Popen(
            ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", NAMESPACE],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0)
        self.lines = 0

    def run(self, line, until=None):
        """Returns (exit status, output) of a line. A line that would go on is ended once its output matches `until`."""
        self.lines += 1
        mark = f"@@{self.lines}@@"
        self.process.stdin.write(f"{line}\necho {mark} $?\n".encode())
        output, end = "", time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            if not select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                break
            chunk = os.read(self.process.stdout.fileno(), 1 << 16).decode(errors="replace")
            if not chunk:
                raise AssertionError(f"the shell ended at: {line}\n{output}")
            output += chunk
            if ended := re.search(rf"^{mark} (\d+)$", output, re.MULTILINE):
                return int(ended[1]), output[:ended.start()]
            if until and re.search(until, output, re.MULTILINE):
                until = None
                for pid, program in descendants(self.process.pid):
                    if program == "timeout":
                        os.kill(pid, signal.SIGTERM)
        raise AssertionError(f"no end within {LIMIT_S} s: {line}\n{output}")

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def check_simulated_node():
    commands = section(5)
    if commands[0] != "make build":
        return f"the simulated part begins with {commands[0]!r}, not with `make build`"
    shell = Shell()
    try:
        outputs = []
        for line in commands[1:]:  # out/bin has what `make build` installs
            watch = "--watch" in line
            status, output = shell.run(line, until=HEALTHY if watch else None)
            outputs.append((line, output))
            # These report a GPU that is out of service by their exit status; the last is ended by a signal.
            if status != 0 and not watch and not re.search(r"gpulet (health|doctor)$", line):
                return f"`{line}` exits with {status}: {output.strip()[-300:]}"
        for command, shows in (("gpulet health", r"^3 .*\blost\b"), ("gpulet doctor", r"\bGPU 3\b"), ("--watch", HEALTHY)):
            output = next(output for line, output in outputs if line.endswith(command))
            if not re.search(shows, output, re.MULTILINE):
                return f"`{command}` prints nothing like {shows}: {output}"
        return None
    except AssertionError as error:
        return str(error)
    finally:
        shell.close()
