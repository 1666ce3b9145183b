"""XIDs of failing kernels: the driver's event, the kernel's line, the metric; the GPU stays in service until the third."""
import datetime
import os
import re
import subprocess
import time

import nvml
from agent import Agent
from machine import run
from report import Skip, same, wait_until

FAULTS = (("illegal-address", 31), ("out-of-range-shared", 13))
THIRD = "misaligned"  # the application that reaches health.applicationErrorThreshold
EVENT_S, METRIC_S, HOLD_S, RETURN_S = 5, 10, 2, 20


class KernelLines:
    """The kernel log from now on."""

    def __init__(self, path):
        self.path = path
        self.file = None
        if path:
            try:
                self.file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                os.lseek(self.file, 0, os.SEEK_END)
            except OSError:
                self.file = None

    def read(self):
        found = []
        while self.file is not None:
            try:
                found.append(os.read(self.file, 8192).decode(errors="replace").partition(";")[2].strip())
            except BlockingIOError:
                break
            except OSError:
                continue
        return found

    def close(self):
        if self.file is not None:
            os.close(self.file)


def xid_lines(lines):
    """The driver's XID lines, without what belongs to this machine."""
    return [re.sub(r"pid='?\d+'?", "pid=N", re.sub(r"PCI:[0-9a-f:.]+", "PCI:…", line)) for line in lines if "NVRM: Xid" in line]


def check_faults(report, machine):
    agent = Agent(machine, "faults", interval="1s", flags=("--health-recovery-hold", f"{HOLD_S}s"))
    kernel = KernelLines(machine.kernel_log)
    try:
        with nvml.Nvml(machine.library) as library:
            device = library.devices()[0]
            uuid = library.text("nvmlDeviceGetUUID", device)
            watcher = nvml.XidWatcher(library, device)
            wait_until(lambda: agent.metric("DCGM_FI_DEV_XID_ERRORS", UUID=uuid) is not None, 20, "DCGM_FI_DEV_XID_ERRORS", 0.2)
            for kind, xid in FAULTS:
                check_fault(report, machine, agent, kernel, watcher, uuid, kind, xid)
            check_service(report, machine, agent, uuid)
            check_third(report, machine, agent, kernel, uuid)
            watcher.close()
    finally:
        kernel.close()
        agent.stop()


def check_fault(report, machine, agent, kernel, watcher, uuid, kind, xid):
    kernel.read()
    figures = {}
    with report.check(f"XID {xid} of a kernel with {kind}: the driver's event"):
        fault = machine.fault(kind, xid)
        figures["cuda_error"] = fault["fault"]
        event = watcher.wait(EVENT_S)
        if not event:
            raise AssertionError(f"no event within {EVENT_S} s; CUDA says {fault['fault']}")
        figures["event"] = {"xid": event[0].data, "gpu_instance": event[0].gpu_instance, "compute_instance": event[0].compute_instance}
        same(event[0].data, xid, "XID")
    with report.check(f"XID {xid}: the metric DCGM_FI_DEV_XID_ERRORS"):
        wait_until(lambda: agent.metric("DCGM_FI_DEV_XID_ERRORS", UUID=uuid) == xid, METRIC_S, f"DCGM_FI_DEV_XID_ERRORS {xid}", 0.01)
        figures["metric_after_cuda_error_ms"] = round((time.time() - fault["at"]) * 1000, 1)
    with report.check(f"XID {xid}: the kernel's line"):
        if kernel.file is None:
            raise Skip("the kernel log cannot be read" if machine.kernel_log else "the simulated driver writes no kernel log")
        figures["kernel_lines"] = xid_lines(kernel.read())
        if not any(f"): {xid}," in line for line in figures["kernel_lines"]):
            raise AssertionError(f"no line `Xid (PCI:…): {xid}` among {figures['kernel_lines']}")
    report.figure(f"faults.{kind}", figures)
    while watcher.wait(0):  # a fault may be reported more than once
        pass


def check_service(report, machine, agent, uuid):
    with report.check("XIDs of applications: the GPU stays healthy and offered"):
        health = state_of(agent, uuid)
        same((health["state"], health["offered"]), ("healthy", True))
        same(agent.metric("gpulet_device_offered", UUID=uuid), 1.0, "gpulet_device_offered")
        report.figure("faults.health", {"state": health["state"], "offered": health["offered"],
                                        "absent": [absence["source"] + ": " + absence["why"] for absence in health["absences"]]})
    with report.check("XIDs of applications: `gpulet health` exits 0 and says healthy"):
        answer = run(machine.gpulet, "health", "--health-file", agent.health_file, "--state-dir", agent.state, check=False)
        same(answer.returncode, 0, answer.stdout + answer.stderr)
    if not machine.simulated:
        with report.check("after the XIDs, a new CUDA program computes right"):
            client = machine.cuda("saxpy")
            same(client.line()["wrong"], 0, "wrong elements")
            client.stop()


def state_of(agent, uuid):
    return next(device for device in agent.health() if device["uuid"] == uuid)


def check_third(report, machine, agent, kernel, uuid):
    """The third failing application within the window withdraws the GPU; it returns once its checks pass."""
    with report.check("the third failing application withdraws the GPU, which returns by itself"):
        if kernel.file is None:
            raise Skip("processes are distinguished by the kernel log, which cannot be read here")
        fault = machine.fault(THIRD, 13)
        withdrawn = wait_until(lambda: not (now := state_of(agent, uuid))["offered"] and now, EVENT_S, "the GPU is withdrawn", 0.002)
        since = datetime.datetime.fromisoformat(withdrawn["since"].replace("Z", "+00:00")).timestamp()
        report.figure("faults.third", {"cuda_error": fault["fault"],
                                       "withdrawn_after_cuda_error_ms": round((since - fault["at"]) * 1000, 1),
                                       "state": withdrawn["state"], "faults": [one.get("class") for one in withdrawn["faults"]]})
        started = time.monotonic()
        wait_until(lambda: state_of(agent, uuid)["offered"], RETURN_S, "the GPU returns", 0.01)
        report.figure("faults.withdrawn_to_return_s", round(time.monotonic() - started, 2))


def warn_about_used_gpu(machine):
    """The text of a refusal where other processes use the GPU, or None."""
    if machine.simulated:
        return None
    used = subprocess.run(["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"], capture_output=True, text=True,
                          timeout=30, check=False).stdout.split()
    return f"processes use a GPU: {' '.join(used)}" if used else None
