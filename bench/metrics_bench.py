#!/usr/bin/python3
"""Measures the cost of metrics in a running agent: scrapes, samples and changing Pods, on eight simulated H100s shared by 30 Pods.

  bench/metrics_bench.py BIN [--scrapes N] [--changes N] [--seconds N]

BIN is the directory of gpulet and gpulet-sim (`make build`). Prints one table: time of a scrape by one client and by 100 at once,
resident memory of the agent and its listener child over scrapes and over Pods with its slope, CPU of both in a minute by the sampling
interval.
"""
import argparse
import concurrent.futures
import http.client
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "monitoring"))
import node as node_module  # noqa: E402
from node import Node  # noqa: E402

GPUS, SHARES, PODS, CLIENTS, QUARTERS = 8, 4, 30, 100, 4
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
WARM = 200  # scrapes that are not counted


def config(interval):
    return {"version": "v1", "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": SHARES}]}},
            "gpulet": {"metrics": {"interval": interval}}}


def processes(agent):
    children = pathlib.Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    return [agent, *map(int, children)]


def resident_kib(agent):
    total = 0
    for pid in processes(agent):
        total += next(int(line.split()[1]) for line in open(f"/proc/{pid}/status", encoding="ascii") if line.startswith("VmRSS"))
    return total


def cpu_s(agent):
    total = 0
    for pid in processes(agent):
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) * TICK_S
    return total


def scrape(connection):
    begin = time.perf_counter()
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200 or b"DCGM_FI_DEV_GPU_TEMP" not in body:
        raise RuntimeError(f"a scrape was answered {answer.status}, {len(body)} bytes")
    return (time.perf_counter() - begin) * 1e3, len(body)


def many(port, count):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        return [scrape(connection) for _ in range(count)]
    finally:
        connection.close()


def hold(node, devices, generation):
    node.kubelet.pods.clear()
    for i in range(PODS):
        gpu = i % GPUS
        node.kubelet.hold(f"team-{i % 7}", f"pod-{generation}-{i}", "nvidia.com/gpu.shared", f"{devices[gpu]}::{i // GPUS}")


def row(name, text):
    print(f"{name:44} {text}", flush=True)


def slope(name, points, unit, what):
    """Least squares over (count, KiB)."""
    mean_x, mean_y = statistics.fmean(x for x, _ in points), statistics.fmean(y for _, y in points)
    rise = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    row(name, f"{rise * unit:+.1f} KiB per {unit} {what} ({' '.join(str(y) for _, y in points)} KiB)")


def measure(node, options):
    node.kubelet.start()
    node.driver_up()
    devices = node.devices()
    hold(node, devices, 0)
    node.configure(config("1s"))
    node.start()
    agent = node.agent.pid
    many(node.port, WARM)
    until = time.monotonic() + node_module.LIMIT_S
    while 'pod="pod-0-0"' not in node.page() and time.monotonic() < until:
        time.sleep(0.1)

    points, times = [(0, resident_kib(agent))], []
    for quarter in range(1, QUARTERS + 1):
        times += many(node.port, options.scrapes // QUARTERS)
        points.append((quarter * options.scrapes // QUARTERS, resident_kib(agent)))
    spent = sorted(one for one, _ in times)
    row(f"scrape, {times[-1][1] / 1024:.0f} KiB, by one client",
        f"{statistics.median(spent):.2f} ms median, {spent[int(len(spent) * .99)]:.2f} p99, {len(spent)} scrapes")
    slope("resident memory over scrapes", points, 10_000, "scrapes")
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        spent = sorted(one for part in pool.map(lambda _: many(node.port, 5), range(CLIENTS)) for one, _ in part)
    row(f"scrape, {CLIENTS} clients at once", f"{statistics.median(spent):.1f} ms median, {spent[-1]:.1f} worst, {len(spent)} scrapes, none refused")

    points = [(0, resident_kib(agent))]
    for generation in range(1, -(-options.changes // PODS) + 1):
        hold(node, devices, generation)
        until = time.monotonic() + node_module.LIMIT_S
        while f'pod="pod-{generation}-0"' not in node.page():
            if time.monotonic() > until:
                raise TimeoutError("the new Pods are not on the page")
            time.sleep(0.05)
        points.append((generation * PODS, resident_kib(agent)))
    slope("resident memory over Pods", [points[0], *points[len(points) // 4::len(points) // 4]], 1000, "Pods")

    for interval in ("1s", "5s", "15s"):
        node.configure(config(interval))
        time.sleep(2)  # the change itself is not measured
        before, begin = cpu_s(agent), time.monotonic()
        time.sleep(options.seconds)
        row(f"CPU a minute, sampled every {interval}", f"{(cpu_s(agent) - before) / (time.monotonic() - begin) * 60e3:.0f} ms")
    row("resident memory at the end", f"{resident_kib(agent)} KiB, the listener child in it")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--scrapes", type=int, default=10_000)
    parser.add_argument("--changes", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    directory = pathlib.Path(tempfile.mkdtemp(prefix="gpulet-bench."))
    node = Node("n1", "hgx-h100", directory / "n1", options.bin.resolve())
    try:
        measure(node, options)
    finally:
        node.end()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
