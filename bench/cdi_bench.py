#!/usr/bin/python3
"""Measures `gpulet cdi generate` as a whole process on simulated machines: time and system calls.

  bench/cdi_bench.py GPULET SIM [--runs N]

GPULET and SIM are the programs (out/bin/gpulet, out/bin/gpulet-sim). Each machine's driver root is in its own directory,
with device nodes if permitted (root). The spec goes to standard output and is discarded. System
calls are counted if strace is installed.
"""
import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

MACHINES = ("hgx-h100", "t4")
FIRST_RUNS = 5  # not counted


def generate(program, root):
    return [program, "cdi", "generate", "--driver-root", root, "--dev-root", root]


def system_calls(command, directory):
    """(all, failed), or None without strace."""
    if not shutil.which("strace"):
        return None
    log = pathlib.Path(directory) / "calls"
    subprocess.run(["strace", "-f", "-c", "-U", "calls,errors,name", "-o", log, *command], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    total = [line.split() for line in log.read_text().splitlines() if line.endswith("total")][-1]
    return int(total[0]), int(total[1]) if len(total) > 2 else 0


def measure(options, machine, directory):
    root = f"{directory}/root"
    nodes = [] if os.geteuid() == 0 else ["--no-device-nodes"]
    subprocess.run([options.sim, "up", machine, "--root", root, *nodes], check=True, stdout=subprocess.DEVNULL)
    try:
        command = generate(options.gpulet, root)
        times = []
        for number in range(-FIRST_RUNS, options.runs):
            begin = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if number >= 0:
                times.append((time.perf_counter() - begin) * 1e3)
        calls = system_calls(command, directory)
    finally:
        subprocess.run([options.sim, "down", "--root", root], stdout=subprocess.DEVNULL)
    told = f"{calls[0]} system calls, {calls[1]} of them errors" if calls else "no strace"
    print(f"{machine:<10} median {statistics.median(times):6.2f} ms   best {min(times):6.2f}   {told}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("gpulet", type=os.path.abspath)
    parser.add_argument("sim", type=os.path.abspath)
    parser.add_argument("--runs", type=int, default=100)
    options = parser.parse_args()
    if options.runs < 1:
        sys.exit("cdi_bench: at least one run")
    print(f"{options.runs} runs of each, load {os.getloadavg()[0]:.1f}")
    for machine in MACHINES:
        with tempfile.TemporaryDirectory(prefix="gpulet-cdi-bench-") as directory:
            measure(options, machine, directory)


if __name__ == "__main__":
    main()
