"""Return codes and latencies of the driver's calls, with three sets of rights; process lists of many clients."""
import ctypes
import json
import os
import re
import sys

import nvml
import nvml_calls
from machine import HERE, run
from report import Skip, same, wait_until

RIGHTS = ("full", "no_sys_admin", "user")
CLIENTS, CLIENT_MIB = 20, 64
DAMAGED = {15: "GPU_IS_LOST", 16: "RESET_REQUIRED", 9: "DRIVER_NOT_LOADED", 1: "UNINITIALIZED"}
LISTS = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses")


def probe(machine, rights):
    # Returns as soon as it has measured: at most 0.6 s a call and some 250 calls, in fact a few seconds.
    answer = run(sys.executable, "-B", HERE / "nvml_calls.py", machine.library, rights, "--calls", "50" if rights == "full" else "1",
                 limit_s=90)
    return json.loads(answer.stdout)


def check_calls(report, machine):
    with report.check("nvml: the list of calls is that of src/nvml/library.h"):
        same(nvml_calls.unknown_functions(), ([], []), "(functions without an entry, entries without a function)")
    probes = {}
    for rights in RIGHTS:
        with report.check(f"nvml: every call, {rights.replace('_', ' ')}"):
            if rights != "user" and os.geteuid() != 0:
                raise Skip("needs root")
            probes[rights] = probe(machine, rights)
            damage = {call: DAMAGED[code] for call, code in probes[rights]["codes"].items()
                      if isinstance(code, int) and DAMAGED.get(code)}
            same(damage, {}, "calls that say that the GPU or the driver is gone")
    store(report, probes)
    if machine.simulated:
        check_fixture(report)


def store(report, probes):
    calls = dict.fromkeys(call for found in probes.values() for call in found["codes"])
    report.figure("codes", {call: {rights: found["codes"].get(call) for rights, found in probes.items()} for call in calls})
    most = next((probes[rights] for rights in RIGHTS if rights in probes), None)
    if not most:
        return
    report.figure("values", most["values"])
    report.figure("latency_us", most["latency_us"])
    report.figure("timings.resident_mb_of_a_client", most["resident_mb"])
    for name in ("nvmlInit_ms", "first_handles_ms", "nvmlShutdown_ms"):
        report.figure(f"timings.{name}", most[name])
    with report.check("nvml: no call answers differently from call to call"):
        same({call: code for call, code in most["codes"].items() if isinstance(code, list)}, {})


NO_PERMISSION = 4
# Where the simulated hgx-h100 answers other codes than the recorded H100, and why.
FIXTURE = HERE / "fixtures" / "h100-sxm-580.159.04.json"
KNOWN_DIFFERENCES = {
    r"NvLink|NVLINK": "the recorded machine has its NVLinks disabled",
    r"ProfileInfo(V\(v\d,|\()17\)": "driver 580 does not know profile 17; the simulated library is of a newer header",
    r"MemoryErrorCounter\(\w+,(l1|l2|registers|texture|shared|cbu)\)": "the simulated H100 counts errors at every place",
}
# Calls that the agent makes and no run on an H100 has recorded yet.
NOT_RECORDED = ["nvmlDeviceGetDisplayActive", "nvmlDeviceGetDisplayMode", "nvmlDeviceGetSupportedGraphicsClocks(2619)",
                "nvmlDeviceGetSupportedGraphicsClocks(3201)", "nvmlDeviceGetSupportedMemoryClocks"]
# The same of fields, by their ids.
NOT_RECORDED_FIELDS = {32, 39, 46, 53, 96, 102, 108, 114, 138, 139, 160, 165, 201, 202, 203, 204, 206, 207, 209, 210, 211, 212, 213, 214, 219, 221}


def check_fixture(report):
    with report.check("the simulated H100 returns the codes of the real one"):
        # Calls with two GPUs are left out: the recorded machine has one.
        recorded, ours = json.loads(FIXTURE.read_text())["codes"], report.figures["codes"]
        of_one = [call for call in sorted(set(recorded) ^ set(ours)) if "GPU)" not in call]
        fields = {call: int(field[1]) for call in of_one if (field := re.match(r"field \w+\((\d+)\)", call))}
        same([call for call in of_one if call not in fields], NOT_RECORDED, "calls of only one of both")
        same(set(fields.values()), NOT_RECORDED_FIELDS, "fields of only one of both")
        rights = "full" if os.geteuid() == 0 else "user"
        different = {call: (ours[call][rights], codes[rights]) for call, codes in recorded.items()
                     if call in ours and ours[call][rights] != codes[rights]
                     and not any(re.search(known, call) for known in KNOWN_DIFFERENCES)}
        same(different, {}, "(simulated, real)")


def check_power(report, machine):
    """The limits agree; setting the present one changes nothing, where it is allowed."""
    with report.check("power: the present limit is within its bounds, and can be set as it is"):
        with nvml.Nvml(machine.library) as library:
            device = library.devices()[0]
            least, most = ctypes.c_uint(), ctypes.c_uint()
            library.call("nvmlDeviceGetPowerManagementLimitConstraints", device, ctypes.byref(least), ctypes.byref(most))
            limit, preset, enforced = (library.number(name, device) for name in (
                "nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetPowerManagementDefaultLimit", "nvmlDeviceGetEnforcedPowerLimit"))
            code = library.code("nvmlDeviceSetPowerManagementLimit", device, limit)
            report.figure("power", {"least_mw": least.value, "most_mw": most.value, "default_mw": preset, "enforced_mw": enforced,
                                    "code_of_the_present_limit": code})
            same([value for value in (limit, preset) if not least.value <= value <= most.value], [], "limits out of bounds")
            if enforced > limit:
                raise AssertionError(f"the driver enforces {enforced} mW, more than {limit} mW")
            same(library.number("nvmlDeviceGetPowerManagementLimit", device), limit, "the limit after it was set as it is")
            if os.geteuid() != 0:
                same(code, NO_PERMISSION, "code of the limit without root")


def check_processes(report, machine):
    """Lists of 20 clients, the layout of their entries, and gpulet's sums."""
    with report.check(f"processes: {CLIENTS} clients are listed with their memory"):
        clients = [machine.holder(CLIENT_MIB) for _ in range(CLIENTS)]
        pids = {client.line()["pid"] for client in clients}
        with nvml.Nvml(machine.library) as library:
            device = library.devices()[0]
            compare_lists(report, library, device, pids)
            compare_metrics(report, machine, library, device)
        for client in clients:
            client.stop()


def compare_lists(report, library, device, pids):
    for name in LISTS:
        if not library.has(name):
            report.figure(f"processes.{name}", "absent")
            continue
        raw, count = library.processes(device, name)
        stride = nvml.entry_stride(raw, count, pids) if count == len(pids) else None
        report.figure(f"processes.{name}", {"entries": count, "stride": stride})
        same(count, len(pids), name)
        if stride is None:
            raise AssertionError(f"{name}: the entries' size is none of 16, 24, 32, 40 bytes")
    raw, count = library.processes(device, LISTS[0])
    stride = report.figures["processes"][LISTS[0]]["stride"]
    used = [int.from_bytes(raw[at * stride + 8:at * stride + 16], "little") >> 20 for at in range(count)]
    report.figure("processes.memory_mib_each", sorted(set(used)))
    if min(used) < CLIENT_MIB:
        raise AssertionError(f"a client with {CLIENT_MIB} MiB is listed with {min(used)} MiB")


def compare_metrics(report, machine, library, device):
    """gpulet's memory of the unattributed rest is the sum of the clients', the GPU's use what NVML reports."""
    from agent import Agent
    agent = Agent(machine, "processes", interval="1s")
    uuid = library.text("nvmlDeviceGetUUID", device)
    raw, count = library.processes(device)
    total = sum(int.from_bytes(raw[at * 24 + 8:at * 24 + 16], "little") for at in range(count))
    found = wait_until(lambda: agent.metric("gpulet_pod_gpu_memory_bytes", UUID=uuid, pod=""), 15, "gpulet_pod_gpu_memory_bytes > 0", 0.2)
    used = library.memory(device)[2]
    report.figure("processes.sum_mib", {"of the list": total >> 20, "gpulet_pod_gpu_memory_bytes": int(found) >> 20, "used": used >> 20})
    low, high = sorted((total, used))
    if not low * 0.98 <= found <= high * 1.02:
        raise AssertionError(f"gpulet_pod_gpu_memory_bytes is {int(found) >> 20} MiB, the list's sum {total >> 20}, used {used >> 20}")
    agent.stop()
