"""The driver's memory limits by cgroup (615 and later): what they hold, and each place where memory passes them.

The driver's source names the places (leaks); none was run on a real GPU before this. A limit that does not hold where it should
is a failure; what a leak lets through is a figure. Limits are set on cgroups of its own alone, and removed.
"""
import contextlib
import ctypes
import os
import pathlib
import socket
import time

import nvml
from report import Skip, between, same, wait_until
from rm_client import HARD_LIMIT

MIB = 1 << 20
LIMIT_MIB, BEYOND_MIB, SHARED_MIB = 2048, 4096, 512
NO_LIMIT = 2**64 - 1
OUT_OF_MEMORY = 2
HELD_WAYS = ("plain", "small", "odd", "pool", "vmm")
SEEN_S = 2.0
# Leak 2: (pages, objects of TINY_BYTES). 1,280 huge pages of 2 MiB are more than LIMIT_MIB.
TINY_BYTES, TINY_WAYS = 4096, (("4k", 4096), ("huge", 1280))
PIECE_BYTES, PIECES = 64 * MIB, BEYOND_MIB // 64
# What the module keeps of a client that has ended, if anything, is less than this.
KEPT_MIB = 64
RAW_STOP_S = 30  # thousands of objects are freed


class SetLimits(ctypes.Structure):
    """nvmlSetMemoryLimits_v1_t."""
    _fields_ = [("cgroup", ctypes.c_char_p), ("soft", ctypes.c_ulonglong), ("hard", ctypes.c_ulonglong)]


class GetLimits(ctypes.Structure):
    """nvmlGetMemoryLimits_v1_t."""
    _fields_ = [("cgroup", ctypes.c_char_p), ("soft", ctypes.c_ulonglong), ("hard", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Limiter:
    def __init__(self, library, root):
        self.library, self.device, self.root = library, library.devices()[0], root

    def set_code(self, cgroup, hard, soft=None):
        return self.library.code("nvmlDeviceSetMemoryLimits_v1", self.device,
                                 ctypes.byref(SetLimits(str(cgroup).encode(), hard if soft is None else soft, hard)))

    def set(self, cgroup, mib):
        same(self.set_code(cgroup, mib * MIB), nvml.SUCCESS, f"code of a limit of {mib} MiB on {cgroup.name}")

    def read(self, cgroup):
        """(code, soft, hard, used), the sizes in MiB."""
        found = GetLimits(cgroup=str(cgroup).encode())
        code = self.library.code("nvmlDeviceGetMemoryLimits_v1", self.device, ctypes.byref(found))
        return (code, found.soft // MIB, found.hard // MIB, found.used // MIB)

    def used_mib(self):
        return self.library.memory(self.device)[2] // MIB

    def minor(self):
        return self.library.number("nvmlDeviceGetMinorNumber", self.device)

    @contextlib.contextmanager
    def cgroup(self, name, parent=None):
        path = (parent or self.root) / f"gpulet-test-{os.getpid()}-{name}"
        path.mkdir()
        try:
            yield path
        finally:
            self.set_code(path, NO_LIMIT, 0)
            wait_until(lambda: "populated 0" in (path / "cgroup.events").read_text(), 5, f"{path.name} is empty")
            path.rmdir()


def cgroup_root():
    for path in (pathlib.Path("/sys/fs/cgroup"), pathlib.Path("/sys/fs/cgroup/unified")):
        if os.access(path / "cgroup.procs", os.W_OK):
            return path
    raise Skip("needs root and cgroup v2")


def check_limits(report, machine):
    for backend in machine.limit_backends():
        with nvml.Nvml(machine.library) as library:
            limiter = None
            with report.check(f"limits, {backend}: the driver sets and reads them"):
                limiter = usable_limiter(report, library, backend)
            if limiter:
                check_backend(report, machine, limiter, backend)


def usable_limiter(report, library, backend):
    limiter = Limiter(library, cgroup_root())
    if not library.has("nvmlDeviceSetMemoryLimits_v1"):
        raise Skip(f"driver {library.text('nvmlSystemGetDriverVersion')} has no memory limits: 615 and later have")
    with limiter.cgroup("probe") as cgroup:
        report.figure(f"limits.{backend}.fresh_cgroup", limiter.read(cgroup)[0])
        code = limiter.set_code(cgroup, LIMIT_MIB * MIB)
        if code != nvml.SUCCESS:
            raise Skip(f"the driver refuses a limit with {code}: neither the kernel nor the driver counts")
        same(limiter.read(cgroup)[:3], (nvml.SUCCESS, LIMIT_MIB, LIMIT_MIB), "(code, soft, hard) read back")
    return limiter


def check_backend(report, machine, limiter, backend):
    for way in HELD_WAYS:
        with report.check(f"limits, {backend}: {way} memory ends at the limit, which is the total that CUDA shows"):
            with limiter.cgroup(way) as cgroup:
                limiter.set(cgroup, LIMIT_MIB)
                client = machine.cuda_memory_until(way, BEYOND_MIB, cgroup)
                said, used = client.line(), limiter.read(cgroup)[3]
                client.stop()
                report.figure(f"limits.{backend}.{way}", {"got_mib": said["got_mib"], "used_mib": used, "total_mib": said["total_mib"]})
                same((said["refused"] or {}).get("code"), OUT_OF_MEMORY, f"code of the refusal ({said['refused']})")
                between(used, LIMIT_MIB * 0.9, LIMIT_MIB, "MiB counted")
                same(said["total_mib"], LIMIT_MIB, "MiB that CUDA shows")
                wait_until(lambda path=cgroup: limiter.read(path)[3] == 0, SEEN_S, "the memory is free again")
    with report.check(f"limits, {backend}: managed memory passes (leak 5)"):
        with limiter.cgroup("managed") as cgroup:
            limiter.set(cgroup, LIMIT_MIB)
            client = machine.cuda_memory_until("managed", BEYOND_MIB, cgroup)
            said = client.line()
            report.figure(f"limits.{backend}.managed", {"got_mib": said["got_mib"], "counted_mib": limiter.read(cgroup)[3]})
            client.stop()
    check_parents(report, machine, limiter, backend)
    check_imported(report, machine, limiter, backend)
    check_raw(report, machine, limiter, backend)
    check_lent(report, machine, limiter, backend)
    check_times(report, machine, limiter, backend)


def check_parents(report, machine, limiter, backend):
    with report.check(f"limits, {backend}: a parent's limit under a larger one of its child (leak 8)"):
        with limiter.cgroup("parent") as parent, limiter.cgroup("child", parent) as child:
            limiter.set(parent, LIMIT_MIB // 2)
            limiter.set(child, LIMIT_MIB)
            client = machine.cuda_memory_until("plain", BEYOND_MIB, child)
            got = report.figure(f"limits.{backend}.below_a_parent_mib", client.line()["got_mib"])
            client.stop()
            # misc counts for the nearest limit alone.
            between(got, 0, LIMIT_MIB if backend == "misc" else LIMIT_MIB // 2, "MiB that the child gets")
    with report.check(f"limits, {backend}: a limit of the parent alone holds, and CUDA shows the whole GPU"):
        with limiter.cgroup("above") as parent, limiter.cgroup("below", parent) as child:
            limiter.set(parent, LIMIT_MIB)
            client = machine.cuda_memory_until("plain", BEYOND_MIB, child)
            said = client.line()
            client.stop()
            report.figure(f"limits.{backend}.parent_alone", {"got_mib": said["got_mib"], "total_mib": said["total_mib"]})
            between(said["got_mib"], 0, LIMIT_MIB, "MiB that the child gets")
            between(said["total_mib"], LIMIT_MIB + 1, 1 << 20, "MiB that CUDA shows")


def check_imported(report, machine, limiter, backend):
    with report.check(f"limits, {backend}: memory that another cgroup has mapped (leak 4)"):
        with limiter.cgroup("exporter") as giving, limiter.cgroup("importer") as taking:
            for cgroup in (giving, taking):
                limiter.set(cgroup, LIMIT_MIB)
            ours, theirs = socket.socketpair()
            exporting = machine.cuda_memory("export", SHARED_MIB, ours.fileno(), cgroup=giving)
            importing = machine.cuda_memory("import", SHARED_MIB, theirs.fileno(), cgroup=taking)
            for client in (exporting, importing):
                client.line()
            together = [limiter.read(cgroup)[3] for cgroup in (giving, taking)]
            exporting.stop()
            after = [limiter.read(cgroup)[3] for cgroup in (giving, taking)]
            report.figure(f"limits.{backend}.imported", {"exporter_importer_mib": together, "after_the_exporter_mib": after})
            importing.stop()
            ours.close()
            theirs.close()


def take_raw(report, figure, limiter, start, cgroup):
    """What the client that `start` starts in `cgroup` gets, what of it is counted, and what the GPU has less.

    Ends the client; all of its memory must be free again."""
    before = limiter.used_mib()
    client = start()
    try:
        said, (code, *_, counted) = client.line(), limiter.read(cgroup)
        found = report.figure(figure, {"objects": said["objects"], "requested_mib": said["requested_mib"],
                                       "refused": said["refused"] and said["refused"]["name"], "counted_mib": counted,
                                       "gpu_mib": limiter.used_mib() - before})
    finally:
        status = client.stop(RAW_STOP_S)
    same(code, nvml.SUCCESS, "code of the limit read beside the objects")
    same(status, 0, "exit status of the client, which frees each object")
    wait_until(lambda: limiter.read(cgroup)[3] == 0, SEEN_S, "the cgroup's memory is free again")
    wait_until(lambda: limiter.used_mib() <= before + KEPT_MIB, SEEN_S, "the GPU's memory is free again")
    between(counted, 0, LIMIT_MIB, "MiB counted")
    return found


def check_raw(report, machine, limiter, backend):
    """Objects that no libcuda makes. The driver charges the size that is asked for, then rounds it up to its page: to
    64 KiB at least, and to 2 MiB for huge pages (video_mem.c of 615.71.09; read, not run)."""
    with report.check(f"limits, {backend}: objects of the kernel module's own interface end at the limit"):
        with limiter.cgroup("raw") as cgroup:
            limiter.set(cgroup, LIMIT_MIB)
            found = take_raw(report, f"limits.{backend}.raw", limiter, lambda: machine.rm_client(
                "take", limiter.minor(), PIECE_BYTES, PIECES, "default", cgroup=cgroup), cgroup)
            same(found["refused"], HARD_LIMIT, "status of the refusal")
            between(found["counted_mib"], LIMIT_MIB * 0.9, LIMIT_MIB, "MiB counted")
    for pages, count in TINY_WAYS:
        with report.check(f"limits, {backend}: {count} objects of 4 KiB in {pages} pages (leak 2)"):
            with limiter.cgroup(f"tiny-{pages}") as cgroup:
                limiter.set(cgroup, LIMIT_MIB)
                found = take_raw(report, f"limits.{backend}.tiny_{pages}", limiter, lambda: machine.rm_client(
                    "take", limiter.minor(), TINY_BYTES, count, pages, cgroup=cgroup), cgroup)
                between(found["objects"], 1, count, f"objects (refused: {found['refused']})")
                if not found["refused"]:
                    same(found["objects"], count, "objects made")


def check_lent(report, machine, limiter, backend):
    """A client outlives the process that made it, in the open file that another process holds. By the source of
    615.71.09 (read, not run):

    - Who holds the open /dev/nvidiactl that made a client may use it, in any process: the module compares the open file
      alone, and SCM_RIGHTS passes the same one on (client.c, rmclientValidate; escape.c, RmIoctl; strict by default in
      g_system_nvoc.c). Where the registry turns that off, the same user suffices (os.c, osValidateClientTokens).
    - An allocation asks for the cgroup of the client's creator. Where there is no such task any more, it passes
      uncharged, on both backends (memacct.c, memacctTryCharge; os-interface.c, os_cgroup_for_pid).
    - A creator that has ended is a task until its parent waits for it, so it is waited for before its client is used.
    """
    with report.check(f"limits, {backend}: a client whose creator has ended (leak 3)"):
        with limiter.cgroup("lent") as cgroup, contextlib.ExitStack() as stack:
            limiter.set(cgroup, LIMIT_MIB)
            ours, theirs = (stack.enter_context(end).fileno() for end in socket.socketpair())
            creator = machine.rm_client("lend", limiter.minor(), ours, descriptors=(ours,), cgroup=cgroup)
            try:
                creator.line()
            finally:
                status = creator.stop()
            same(status, 0, "exit status of the creator")
            take_raw(report, f"limits.{backend}.of_an_ended_creator", limiter, lambda: machine.rm_client(
                "borrow", theirs, PIECE_BYTES, PIECES, "default", descriptors=(theirs,), cgroup=cgroup), cgroup)


def check_times(report, machine, limiter, backend):
    with report.check(f"limits, {backend}: contexts beside what is counted (leak 6)"):
        with limiter.cgroup("contexts") as cgroup:
            limiter.set(cgroup, BEYOND_MIB)
            before = limiter.used_mib()
            clients = [machine.cuda_memory("context", 0, cgroup=cgroup) for _ in range(4)]
            for client in clients:
                client.line()
            report.figure(f"limits.{backend}.four_contexts", {"gpu_mib": limiter.used_mib() - before, "counted_mib": limiter.read(cgroup)[3]})
            for client in clients:
                client.stop()
    with report.check(f"limits, {backend}: memory from before the limit (leak 9)"):
        with limiter.cgroup("late") as cgroup:
            client = machine.cuda_memory("plain", 1024, cgroup=cgroup)
            client.line()
            code = limiter.set_code(cgroup, 512 * MIB)
            report.figure(f"limits.{backend}.set_below_use", {"code": code, "counted_mib": limiter.read(cgroup)[3]})
            client.stop()
    with report.check(f"limits, {backend}: a limit outlives its cgroup (leak 10)"):
        with limiter.cgroup("gone") as cgroup:
            limiter.set(cgroup, LIMIT_MIB)
            cgroup.rmdir()
            time.sleep(0.1)  # the kernel frees a cgroup a moment later
            cgroup.mkdir()
            report.figure(f"limits.{backend}.of_a_next_cgroup", limiter.read(cgroup)[:3])
    with report.check(f"limits, {backend}: memory of a process that ends without freeing it"):
        with limiter.cgroup("killed") as cgroup:
            limiter.set(cgroup, LIMIT_MIB)
            client = machine.cuda_memory("plain", 1024, cgroup=cgroup)
            client.line()
            os.kill(client.pid, 9)
            wait_until(lambda: limiter.read(cgroup)[3] == 0, SEEN_S, "the memory is free again")
            client.stop()
