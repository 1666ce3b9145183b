"""What the driver reports of a process's device memory, by the way that it was taken: what an audit of shared GPUs can see.
And whether the driver can limit it."""
import ctypes
import os
import pathlib
import signal
import socket
import time

import nvml
from check_mps import MpsDaemon
from report import between, same, wait_until

MIB, ASKED = 1 << 20, 512
GET_LIMITS = "nvmlDeviceGetMemoryLimits_v1"
# The most MiB that a process is listed with: the driver rounds an allocation to pages of 2 MiB, or shares one between small ones.
CHARGED_WAYS = {"plain": ASKED, "small": ASKED, "odd": 2 * ASKED, "pool": ASKED, "vmm": ASKED, "export": ASKED}
SEEN_S, ROUNDING_MIB = 1.0, 64


class Reading:
    """The first GPU's memory: `used` in MiB, and in MiB by process."""

    def __init__(self, library):
        self.library, self.device = library, library.devices()[0]

    def used(self):
        return self.library.memory(self.device)[2] / MIB

    def processes(self):
        raw, count = self.library.processes(self.device)
        entries = [raw[at * 24:at * 24 + 24] for at in range(count)]
        return {int.from_bytes(entry[:4], "little"): int.from_bytes(entry[8:16], "little") / MIB for entry in entries}

    def of(self, pid):
        return self.processes().get(pid)


def check_memory(report, machine):
    with nvml.Nvml(machine.library) as library:
        reading = Reading(library)
        context = check_context(report, machine, reading)
        check_ways(report, machine, reading, context)
        check_imported(report, machine, reading, context)
        check_orphan(report, machine, reading)
        check_killed(report, machine, reading)
        check_limits(report, machine, library)
        check_clients_of_mps(report, machine, reading)


def check_context(report, machine, reading):
    """Returns the MiB of a process that holds a context and nothing else; 0 if unknown."""
    found = 0
    with report.check("memory: a context alone is listed with its memory"):
        before = reading.used()
        client = machine.cuda_memory("context", 0)
        client.line()
        found = wait_until(lambda: reading.of(client.pid), SEEN_S, "the process is listed", 0.01)
        report.figure("memory.context_mib", {"process": round(found), "gpu": round(reading.used() - before)})
        client.stop()
    return found


def check_ways(report, machine, reading, context):
    for way in (*CHARGED_WAYS, "managed"):
        with report.check(f"memory: {ASKED} MiB, {way}: the process is listed with them"):
            before = reading.used()
            ours, theirs = socket.socketpair()
            client = machine.cuda_memory(way, ASKED, *([theirs.fileno()] if way == "export" else []))
            client.line()
            listed = wait_until(lambda: reading.of(client.pid), SEEN_S, "the process is listed", 0.01)
            report.figure(f"memory.ways.{way}", {"process": round(listed - context), "gpu": round(reading.used() - before - context)})
            client.stop()
            ours.close()
            theirs.close()
            if way == "managed":  # its pages can be moved to the host: the driver counts them for the GPU, not for the process
                same(round(listed - context), 0, "MiB of the process beyond its context")
                continue
            between(listed - context, ASKED, CHARGED_WAYS[way] + ROUNDING_MIB, "MiB of the process beyond its context")


def check_imported(report, machine, reading, context):
    with report.check("memory: memory that one process exports and another maps is listed"):
        before = reading.used()
        exporting, importing = exporter_and(machine, "import", ASKED)
        by_process = reading.processes()
        report.figure("memory.shared", {"exporter": round(by_process[exporting.pid] - context),
                                        "importer": round(by_process[importing.pid] - context),
                                        "gpu": round(reading.used() - before - 2 * context)})
        exporting.stop()
        after = wait_until(lambda: exporting.pid not in reading.processes() and reading.processes(), SEEN_S, "the exporter is gone", 0.01)
        report.figure("memory.shared.importer_alone", {"importer": round(after[importing.pid] - context),
                                                       "gpu": round(reading.used() - before - context)})
        importing.stop()


def check_orphan(report, machine, reading):
    """A process without a CUDA context keeps device memory by a descriptor, after the process that took it has ended."""
    with report.check("memory: memory kept by a descriptor alone shows in the GPU's use, for no process"):
        before = reading.used()
        exporting, keeping = exporter_and(machine, "keep", 0)
        exporting.stop()
        wait_until(lambda: exporting.pid not in reading.processes(), SEEN_S, "the exporter is gone", 0.01)
        kept, listed = reading.used() - before, reading.of(keeping.pid)
        report.figure("memory.kept_by_descriptor", {"gpu": round(kept), "process": listed})
        keeping.stop()
        between(kept, ASKED, ASKED + ROUNDING_MIB, "MiB of the GPU that a descriptor keeps")
        same(listed, None, "entry of the process with the descriptor")
        wait_until(lambda: reading.used() - before < ROUNDING_MIB, SEEN_S, "the memory is free when the descriptor is closed", 0.01)


def check_killed(report, machine, reading):
    with report.check("memory: a killed process's memory is free within a second"):
        before = reading.used()
        client = machine.cuda_memory("plain", ASKED)
        client.line()
        killed = time.monotonic()
        os.kill(client.pid, signal.SIGKILL)
        wait_until(lambda: reading.used() - before < 1, SEEN_S, "the memory is free", 0.002)
        report.figure("memory.free_after_kill_ms", round((time.monotonic() - killed) * 1000))
        client.stop()


class MemoryLimits(ctypes.Structure):
    """nvmlGetMemoryLimits_v1_t."""
    _fields_ = [("cgroup", ctypes.c_char_p), ("soft", ctypes.c_ulonglong), ("hard", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def check_limits(report, machine, library):
    """Limits of the driver by cgroup: from 615 on. Reads those of this process; sets none."""
    with report.check("memory: limits by cgroup are there from driver 615 on"):
        major = int(library.text("nvmlSystemGetDriverVersion").split(".")[0])
        found = "absent"
        if library.has(GET_LIMITS):
            cgroup = pathlib.Path("/proc/self/cgroup").read_text(encoding="utf-8").strip().rpartition("\n")[2].partition("::")[2]
            limits = MemoryLimits(cgroup=f"/sys/fs/cgroup{cgroup}".encode())
            found = library.code(GET_LIMITS, library.devices()[0], ctypes.byref(limits))
        report.figure("memory.limits", {"driver": major, GET_LIMITS: found})
        if machine.simulated:
            return
        same(found != "absent" and major >= 615, major >= 615, f"driver {major} has {GET_LIMITS}: {found}")


def exporter_and(machine, other, mib):
    """Starts a process that exports memory and one that receives it; returns both when both have said so."""
    sending, receiving = socket.socketpair()
    exporting = machine.cuda_memory("export", ASKED, sending.fileno())
    receiver = machine.cuda_memory(other, mib, receiving.fileno())
    sending.close()
    receiving.close()
    exporting.line()
    receiver.line()
    return exporting, receiver


def check_clients_of_mps(report, machine, reading):
    """Two clients below a limit of the daemon, and what a client gets that sets a list of limits in its own environment."""
    with report.check("memory: clients of MPS are listed each with its own memory"):
        daemon = MpsDaemon(machine, machine.mps_control())
        clients = []
        try:
            daemon.start()
            daemon.ask("set_default_device_pinned_mem_limit 0 2G")
            clients = [machine.cuda_memory("plain", mib, env=daemon.env) for mib in (256, 512)]
            for client in clients:
                client.line()
            listed, ours = reading.processes(), {client.pid for client in clients}
            report.figure("memory.mps", {"clients": [round(listed.get(client.pid, 0)) for client in clients],
                                         "others": [round(mib) for pid, mib in listed.items() if pid not in ours]})
            for name, environment in (("of the daemon, 2 GiB", {}), ("of a list in the client's environment, 4 and 8 GiB", {
                    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4G,1=8G"})):
                clients.append(machine.cuda("limit", 16384, env={**daemon.env, **environment}))
                report.figure(f"memory.mps_limit.{name}", clients[-1].line()["got_mib"])
            for client, mib in zip(clients, (256, 512)):
                between(listed.get(client.pid, 0), mib, mib + 1024, "MiB of a client")
        finally:
            for client in clients:
                client.stop()
            daemon.quit()
