#!/usr/bin/python3
"""Commands that read or change the driver end with their own exit code and their whole output, however often they run. A process that
runs exit handlers while a thread is still in the driver's library may end with 139, SIGSEGV (src/cli/main/process_exit.h); the simulated
library makes that likely (GPULET_SIM_FRAGILE).

  tests/exits/run.py [--runs 100000] [--only NAME] [--workers N] [--bin out/bin]     ends in `N passed, N failed`

Each command runs RUNS times on simulated nodes of two H100, each worker on a node of its own. There are four workers a core, so that
the commands themselves are the load, and interrupt each other anywhere. Every run must exit with 0 and print what the first one printed.
`mig apply` alternates between two layouts: each run destroys and creates the instances of both GPUs. The first failures of a command are
named with their output. A check stops after 100 failures.
"""
import argparse
import collections
import contextlib
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))
import outcome  # noqa: E402

MACHINE = """\
version: 1
name: exits
product: two GPUs
gpus: {count: 2, model: h100-sxm5-80gb, pci: ["0000:1b:00.0", "0000:43:00.0"]}
links: {matrix: [[0, 18], [18, 0]]}
"""
# Name → the command lines that take turns.
COMMANDS = {
    "list": (("list",),),
    "topo": (("topo",),),
    "place": (("place", "--size", "1"),),
    "mig plan": (("mig", "plan", "-c", "all-7g.80gb"),),
    "mig apply": (("mig", "apply", "-c", "all-7g.80gb"), ("mig", "apply", "-c", "all-3g.40gb")),
}
LIMIT_S = 60  # of one run, which takes milliseconds
MOST_FAILURES = 100
SHOWN_FAILURES = 3


class Node:
    """A simulated node, and the commands' view of it: no kubelet, no agent, nothing of this machine."""

    def __init__(self, programs, directory):
        self.program = str(programs / "gpulet")
        self.output = directory / "output"
        machine = directory / "machine.yaml"
        machine.write_text(MACHINE)
        root = directory / "root"
        subprocess.run([programs / "gpulet-sim", "up", machine, "--root", root, "--no-device-nodes"], check=True,
                       stdout=subprocess.DEVNULL, timeout=LIMIT_S)
        self.environment = {"DRIVER_ROOT_CTR_PATH": str(root), "GPULET_KUBELET_DIR": str(directory / "kubelet"),
                            "GPULET_STATE_DIR": str(directory / "state"), "GPULET_SIM_FRAGILE": "1"}

    def run(self, arguments):
        """Returns the exit code, as a shell shows it, and everything printed. A run beyond its limit is killed: 137."""
        written = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_OPEN, 1, str(self.output), written, 0o600),
                   (os.POSIX_SPAWN_DUP2, 1, 2)]
        pid = os.posix_spawn(self.program, ("gpulet", *arguments), self.environment, file_actions=actions)
        watched = os.pidfd_open(pid)
        try:
            if not select.select([watched], [], [], LIMIT_S)[0]:
                os.kill(pid, signal.SIGKILL)
        finally:
            os.close(watched)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return 128 - code if code < 0 else code, self.output.read_bytes()


def describe(line, code, text):
    printed = " ".join(text.decode(errors="replace").split())
    return f"`{' '.join(line)}` ended with {code} and printed: {printed[-200:]}"


class Tally:
    """What the workers share."""

    def __init__(self, runs):
        self.lock = threading.Lock()
        self.left = runs
        self.codes = collections.Counter()
        self.failures = []

    def take(self):
        with self.lock:
            if self.left == 0 or len(self.failures) >= MOST_FAILURES:
                return False
            self.left -= 1
            return True

    def stop(self):
        with self.lock:
            self.left = 0

    def add(self, code, why):
        with self.lock:
            self.codes[code] += 1
            if why:
                self.failures.append(why)


def work(node, lines, tally):
    try:
        # The first change of a layout also enables MIG: the second round prints what all later ones print.
        expected = [node.run(line) for _ in range(2) for line in lines][-len(lines):]
        turn = 0
        for line, (code, text) in zip(lines, expected):
            if code != 0 or not text:
                tally.add(code, describe(line, code, text))
                return
        while tally.take():
            line, (_, wanted) = lines[turn % len(lines)], expected[turn % len(lines)]
            turn += 1
            code, text = node.run(line)
            tally.add(code, "" if code == 0 and text == wanted else describe(line, code, text))
    except Exception as error:  # a worker that stops silently would pass
        tally.add(-1, f"{type(error).__name__}: {error}")


def check(nodes, lines, runs):
    tally = Tally(runs)
    workers = [threading.Thread(target=work, args=(node, lines, tally)) for node in nodes]
    started = time.monotonic()
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    finally:  # interrupted: the nodes are removed after the last run has ended
        left = tally.left
        tally.stop()
        for worker in workers:
            worker.join()
    seconds = time.monotonic() - started
    codes = ", ".join(f"{count:,} with {code}" for code, count in sorted(tally.codes.items()))
    print(f"   {codes}; {seconds:.0f} s, load {os.getloadavg()[0]:.0f}", flush=True)
    if tally.failures:
        return f"{len(tally.failures)} of {runs - left:,} runs failed: " + "; ".join(tally.failures[:SHOWN_FAILURES])
    return "" if tally.codes[0] == runs else f"{tally.codes[0]:,} runs instead of {runs:,}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000, help="of each command (default 100000)")
    parser.add_argument("--only", default="", help="the commands with this text in their names")
    parser.add_argument("--workers", type=int, default=4 * (os.cpu_count() or 1), help="default: four a core")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "out" / "bin")
    options = parser.parse_args()
    if min(options.runs, options.workers) < 1:
        parser.error("--runs and --workers must be at least 1")
    # Remove the nodes also if the tests are interrupted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with contextlib.ExitStack() as stack:
        nodes = []
        for _ in range(options.workers):
            directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpulet-exits-")))
            nodes.append(Node(options.bin.resolve(), directory))
        return outcome.report_checks((f"{name}, {options.runs:,} times", lambda lines=lines: check(nodes, lines, options.runs))
                                     for name, lines in COMMANDS.items() if options.only in name)


if __name__ == "__main__":
    sys.exit(main())
