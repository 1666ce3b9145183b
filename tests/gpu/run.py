#!/usr/bin/env python3
"""What gpulet and the driver do on a machine with a real NVIDIA GPU: `make test-gpu`.

  tests/gpu/run.py [--programs out] [--results out/test-gpu] [--only SECTION…] [--allow-changes]
  tests/gpu/run.py --simulated        the same on `gpulet-sim up hgx-h100`; what needs kernels is skipped

A line `ok NAME`, `SKIP NAME: reason` or `FAIL NAME: why` for each check, at the end
`N passed, N failed, N skipped`. The return codes of the driver's calls, timings and readings go to
RESULTS/GPU-DRIVER.json, without serial numbers and UUIDs. Needs Python's standard library, the driver and
gpulet's programs; no network. Leaves the machine as it was. Takes about two minutes,
and 100 more where `make image` and `tests/cluster/testbed/tb build` were run.
"""
import argparse
import json
import os
import pathlib
import platform
import re
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
import check_cdi  # noqa: E402
import check_cluster  # noqa: E402
import check_cuda  # noqa: E402
import check_driver  # noqa: E402
import check_faults  # noqa: E402
import check_inventory  # noqa: E402
import check_limits  # noqa: E402
import check_load  # noqa: E402
import check_memory  # noqa: E402
import check_mps  # noqa: E402
import check_rm_client  # noqa: E402
import nvml  # noqa: E402
from machine import RealMachine, SimulatedMachine  # noqa: E402
from report import Report  # noqa: E402

# Checks that need --allow-changes and are not written yet.
NOT_DONE = {
    "GPU reset": "it ends every process on the GPU",
    "MIG mode change": "it changes the machine, and may need a reset",
    "power limit": "it changes the machine",
    "driver unload": "it ends every process on all GPUs",
}


def sections(arguments):
    simulated = arguments.simulated
    return {
        "inventory": check_inventory.check_inventory,
        "calls": check_driver.check_calls,
        "power": check_driver.check_power,
        "idle": lambda report, machine: check_load.check_idle(report, machine, *((1, 2) if simulated else ())),
        "processes": check_driver.check_processes,
        "memory": check_memory.check_memory,
        "cuda": check_cuda.check_cuda,
        "cdi": check_cdi.check_cdi,
        "load": check_load.check_load,
        "mps": lambda report, machine: (check_mps.check_mps(report, machine),
                                        check_mps.check_agent_mps(report, machine, arguments.allow_changes)),
        "faults": check_faults.check_faults,
        "module": check_rm_client.check_rm_client,
        # Last of those of the simulated driver: it takes another version.
        "limits": check_limits.check_limits,
        "namespaces": check_mps.check_namespaces,
        "sm-partitions": check_mps.check_sm_partitions,
        "kubernetes": check_cluster.check_cluster,
        "changes": lambda report, machine: check_changes(report, arguments.allow_changes),
    }


def check_changes(report, allowed):
    for name, why in NOT_DONE.items():
        report.skip(name, f"no check of it yet: {why}" if allowed else f"{why}; not without --allow-changes")


def describe(machine):
    with nvml.Nvml(machine.library) as library:
        device = library.devices()[0]
        return {"gpu": library.text("nvmlDeviceGetName", device), "gpus": len(library.devices()),
                "driver": library.text("nvmlSystemGetDriverVersion"), "vbios": library.text("nvmlDeviceGetVbiosVersion", device),
                "kernel": platform.release().partition("-")[0], "simulated": machine.simulated}


def redacted(text):
    """Without UUIDs and the paths of this run."""
    text = re.sub(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "GPU-…", text)
    return re.sub(r"/tmp/gpulet-gpu-[^/\"]*", "/tmp/…", text)


def write_results(directory, facts, report):
    directory.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", facts["gpu"].lower()).strip("-")
    path = directory / f"{name}-{facts['driver']}{'-simulated' if facts['simulated'] else ''}.json"
    path.write_text(redacted(compact({"machine": facts, **report.figures, "totals": report.totals(), "results": report.lines})) + "\n")
    return path


def compact(value, indent=""):
    """JSON with each innermost object on a line of its own."""
    def is_flat(one):
        return not isinstance(one, (dict, list)) or not any(isinstance(part, (dict, list))
                                                            for part in (one.values() if isinstance(one, dict) else one))
    if not isinstance(value, dict) or (is_flat(value) and indent and len(value) <= 8):
        return json.dumps(value, ensure_ascii=False) if not isinstance(value, list) or len(value) <= 8 and is_flat(value) else (
            "[\n" + ",\n".join(f"{indent} {compact(one, indent + ' ')}" for one in value) + f"\n{indent}]")
    inner = indent + " "
    return "{\n" + ",\n".join(f"{inner}{json.dumps(key)}: {compact(one, inner)}" for key, one in value.items()) + f"\n{indent}}}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "out", help="directory with bin and lib (default: out)")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "out" / "test-gpu", help="directory of the result file")
    parser.add_argument("--only", nargs="*", default=[], metavar="SECTION")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--allow-changes", action="store_true", help="allow checks that change the machine's settings")
    arguments = parser.parse_args()
    wanted = sections(arguments)
    unknown = set(arguments.only) - set(wanted)
    if unknown:
        parser.error(f"no section {unknown.pop()}: one of {', '.join(wanted)}")
    # tests/cluster tests the simulated driver in Kubernetes in full.
    default = set(wanted) - ({"kubernetes"} if arguments.simulated else set())
    report = Report()
    with tempfile.TemporaryDirectory(prefix="gpulet-gpu-") as directory:
        os.chmod(directory, 0o755)
        machine = (SimulatedMachine if arguments.simulated else RealMachine)(arguments.programs.resolve(), pathlib.Path(directory))
        try:
            facts = describe(machine)
            busy = check_faults.warn_about_used_gpu(machine)
            if busy:
                sys.exit(f"{busy}; nothing is tested on a GPU in use")
            for name, section in wanted.items():
                if name not in (arguments.only or default):
                    continue
                with report.check(f"section {name}", counted=False):
                    section(report, machine)
            print(f"results: {write_results(arguments.results, facts, report)}")
        finally:
            machine.stop()
    print(report.totals())
    return 1 if report.failed or not report.passed else 0


if __name__ == "__main__":
    sys.exit(main())
