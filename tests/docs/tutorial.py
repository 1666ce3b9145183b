"""Runs the last part of docs/getting-started.md, the simulated node, as a reader types it: in one shell, line by line, with the
programs of `make build`. Namespaces of its own keep its files and ports from the host's. The parts before it need a cluster:
tests/cluster runs those (`--only tutorial`)."""
import os
import pathlib
import re
import select
import signal
import subprocess
import time

import tutorial_page

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIMIT_S = 90
SEEN_S = 20  # for the agent to see a fault, which a reader gives it while typing
# What the page says of a line's output, by its end.
SHOWN = {"gpulet health": r"^3 .*\blost\b", "gpulet doctor": r"\bGPU 3\b", "--watch": r"^3 .*\bhealthy\b"}
# Empty directories where the agent and the page's commands write.
NAMESPACE = """ip link set lo up && mkdir -p /var/lib/gpulet /var/run/cdi && mount -t tmpfs none /var/lib/gpulet &&
mount -t tmpfs none /tmp && mount -t tmpfs none /run && exec bash"""


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


def run_shown(shell, line):
    """Runs a line, again until its output is what the page says of it. Returns (exit status, output)."""
    shown = next((shown for end, shown in SHOWN.items() if line.endswith(end)), None)
    if "--watch" in line:
        return shell.run(line, until=shown)
    deadline = time.monotonic() + SEEN_S
    while True:
        status, output = shell.run(line)
        if not shown or re.search(shown, output, re.MULTILINE):
            return status, output
        if time.monotonic() > deadline:
            raise AssertionError(f"`{line}` prints nothing like {shown}: {output}")
        time.sleep(0.5)


def check_simulated_node():
    commands = [step.command for step in tutorial_page.sections()[tutorial_page.SIMULATED_SECTION]]
    if commands[0] != "make build":
        return f"the simulated part begins with {commands[0]!r}, not with `make build`"
    for end in SHOWN:
        if not any(line.endswith(end) for line in commands):
            return f"no line ends with {end}"
    shell = Shell()
    try:
        for line in commands[1:]:  # out/bin has what `make build` installs
            status, output = run_shown(shell, line)
            # These report a GPU that is out of service by their exit status; the last is ended by a signal.
            if status != 0 and not line.endswith(tuple(SHOWN)):
                return f"`{line}` exits with {status}: {output.strip()[-300:]}"
        return None
    except AssertionError as error:
        return str(error)
    finally:
        shell.close()
