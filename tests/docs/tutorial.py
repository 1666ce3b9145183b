"""Runs the last part of docs/getting-started.md, the simulated node, as a reader types it: in one shell, line by line, with the
programs of `make build`. Namespaces of its own keep its files and ports from the host's. The parts before it need a cluster:
tests/cluster runs those."""
import pathlib
import re
import select
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "getting-started.md"
LIMIT_S = 90
BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Empty directories where the agent and the page's commands write.
NAMESPACE = """ip link set lo up && mkdir -p /var/lib/gpulet /var/run/cdi && mount -t tmpfs none /var/lib/gpulet &&
mount -t tmpfs none /tmp && mount -t tmpfs none /run && exec bash"""


def section(number):
    """Returns the commands of one numbered section, line by line."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^## {number}\. .*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return [line for block in BLOCK.findall(found[0]) for line in block.splitlines()]


class Shell:
    """A bash that gets one line after the other."""

    def __init__(self):
        self.process = subprocess.Popen(["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", NAMESPACE],
                                        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines = 0

    def run(self, line, until=None):
        """Returns (exit status, output) of a line; None for the status if the output matches `until` before the line ends."""
        self.lines += 1
        mark = f"@@{self.lines}@@"
        self.process.stdin.write(f"{line}\necho {mark} $?\n")
        self.process.stdin.flush()
        output, end = "", time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            if select.select([self.process.stdout], [], [], 0.2)[0]:
                chunk = self.process.stdout.readline()
                if not chunk:
                    raise AssertionError(f"the shell ended at: {line}\n{output}")
                if chunk.startswith(mark):
                    return int(chunk.split()[1]), output
                output += chunk
                if until and re.search(until, output, re.MULTILINE):
                    return None, output
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
            status, output = shell.run(line, until=r"^3 .*\bhealthy\b" if watch else None)
            outputs.append((line, output))
            if watch and status is None:
                continue
            # Both report a GPU that is out of service by their exit status.
            if status != 0 and not re.search(r"gpulet (health|doctor)$", line):
                return f"`{line}` exits with {status}: {output.strip()[-300:]}"
        lost = next(output for line, output in outputs if line.endswith("gpulet health"))
        if not re.search(r"^3 .*\blost\b", lost, re.MULTILINE):
            return f"`gpulet health` does not show GPU 3 as lost: {lost}"
        if "GPU 3" not in next(output for line, output in outputs if line.endswith("gpulet doctor")):
            return "`gpulet doctor` does not name GPU 3"
        return None
    except AssertionError as error:
        return str(error)
    finally:
        shell.close()
