#!/usr/bin/env python3
"""The return code, value and latency of every NVML function that gpulet loads.

As a program it measures one process with the given rights and prints JSON:
  nvml_calls.py LIBRARY full|no_sys_admin|user [--calls N]
The functions are those of src/nvml/library.h: one that CALLS does not know is a failure of the check.
"""
import ctypes
import json
import os
import pathlib
import re
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import nvml  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NOBODY = 65534
CAP_SYS_ADMIN = 21
PRIVATE = ("nvmlDeviceGetUUID", "nvmlDeviceGetSerial")  # their values stay out of the result file
LIMIT_S = 0.6  # of all calls of one kind


# Arguments. Each has `make()`, which returns a fresh ctypes argument, and `read(argument)`, its value.
class Out:
    def __init__(self, kind):
        self.kind = kind

    def make(self):
        return self.kind()

    def read(self, argument):
        return argument.value

    def passed(self, argument):
        return ctypes.byref(argument)


class Text:
    def make(self):
        return ctypes.create_string_buffer(128)

    def read(self, argument):
        return argument.value.decode(errors="replace")

    def passed(self, argument):
        return argument


class Raw:
    """A struct of which only the head matters: `version` is size and version number, `count` a leading number."""

    def __init__(self, size, version=None, first=None, shown=0):
        self.size, self.first, self.shown = size, (size | version << 24) if version else first, shown

    def make(self):
        buffer = ctypes.create_string_buffer(self.size + 64)
        if self.first is not None:
            ctypes.c_uint.from_buffer(buffer).value = self.first
        return buffer

    def read(self, argument):
        return [int.from_bytes(argument.raw[at * 4:at * 4 + 4], "little") for at in range(self.shown)] or None

    def passed(self, argument):
        return argument


class In:
    def __init__(self, value):
        self.value = value

    def make(self):
        return self.value

    def read(self, argument):
        return None

    def passed(self, argument):
        return argument


class Count(Out):
    def __init__(self, room):
        super().__init__(ctypes.c_uint)
        self.room = room

    def make(self):
        return ctypes.c_uint(self.room)


class Null(In):
    def __init__(self):
        super().__init__(None)


U, I, ULL, HANDLE = Out(ctypes.c_uint), Out(ctypes.c_int), Out(ctypes.c_ulonglong), Out(ctypes.c_void_p)
TEXT = (Text(), In(96))


def each(names, *rest, before=()):
    """One variant for each name; its number is the first argument after `before`."""
    return {name: (*before, In(number), *rest) for number, name in (names.items() if isinstance(names, dict) else enumerate(names))}


CLOCKS = ("graphics", "sm", "memory", "video")
LOCATIONS = ("l1", "l2", "dram", "registers", "texture", "shared", "cbu", "sram")
# name → arguments after the device (none for nvmlSystem…), or {variant: arguments}.
CALLS = {
    "nvmlSystemGetDriverVersion": TEXT,
    "nvmlSystemGetNVMLVersion": TEXT,
    "nvmlSystemGetCudaDriverVersion_v2": (I,),
    "nvmlSystemGetCudaDriverVersion": (I,),
    "nvmlDeviceGetCount_v2": (U,),
    "nvmlDeviceGetHandleByIndex_v2": (In(0), HANDLE),
    "nvmlDeviceGetUUID": TEXT,
    "nvmlDeviceGetName": TEXT,
    "nvmlDeviceGetBrand": (U,),
    "nvmlDeviceGetVirtualizationMode": (U,),
    "nvmlDeviceGetDisplayMode": (U,),
    "nvmlDeviceGetDisplayActive": (U,),
    "nvmlDeviceGetSerial": TEXT,
    "nvmlDeviceGetMinorNumber": (U,),
    "nvmlDeviceGetCudaComputeCapability": (I, I),
    "nvmlDeviceGetMemoryInfo": (Raw(24),),
    "nvmlDeviceGetPciInfo_v3": (Raw(68),),
    "nvmlDeviceGetMigMode": (U, U),
    "nvmlDeviceGetMaxMigDeviceCount": (U,),
    "nvmlDeviceGetMigDeviceHandleByIndex": (In(0), HANDLE),
    "nvmlDeviceGetGpuInstanceId": (U,),
    "nvmlDeviceGetComputeInstanceId": (U,),
    "nvmlDeviceGetAttributes_v2": (Raw(40),),
    "nvmlDeviceGetGpuInstanceById": (In(0), HANDLE),
    "nvmlDeviceGetGpuInstanceProfileInfoV": {f"v{version},{index}": (In(index), Raw(152, version)) for version in (2, 3)
                                             for index in range(18)},
    "nvmlDeviceGetGpuInstanceProfileInfo": each([str(index) for index in range(18)], Raw(48, shown=11)),
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2": each({0: "profile 0", 19: "profile 19"}, Raw(8 * 64, shown=2), Count(64)),
    "nvmlDeviceGetGpuInstances": each({0: "profile 0", 19: "profile 19"}, Raw(8 * 64), Count(64)),
    "nvmlDeviceGetComputeRunningProcesses_v3": (Count(64), Raw(40 * 64)),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": (Count(64), Raw(40 * 64)),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": (Count(64), Raw(40 * 64)),
    "nvmlDeviceGetComputeMode": (U,),
    "nvmlDeviceGetNvLinkState": each({0: "0", 17: "17", 18: "18", 35: "35"}, U),
    "nvmlDeviceGetNvLinkRemoteDeviceType": each({0: "0", 17: "17", 18: "18"}, U),
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": each({0: "0", 17: "17", 18: "18"}, Raw(68)),
    "nvmlDeviceGetGpuFabricInfoV": {"v2": (Raw(36, 2),), "v3": (Raw(40, 3),)},
    "nvmlDeviceGetGpuFabricInfo": (Raw(28),),
    "nvmlDeviceGetRemappedRows": (U, U, U, U),
    "nvmlDeviceGetRetiredPages": each(("single-bit", "double-bit"), Count(0), Null()),
    "nvmlDeviceGetRetiredPagesPendingStatus": (U,),
    "nvmlDeviceGetMemoryErrorCounter": {f"{('corrected', 'uncorrected')[kind]},{location}": (In(kind), In(0), In(number), ULL)
                                        for kind in (1, 0) for number, location in enumerate(LOCATIONS)},
    "nvmlDeviceGetSramEccErrorStatus": (Raw(104, 1),),
    "nvmlDeviceGetNvLinkErrorCounter": {f"0,{counter}": (In(0), In(counter), ULL) for counter in range(4)},
    "nvmlDeviceGetPcieReplayCounter": (U,),
    "nvmlDeviceGetCurrPcieLinkWidth": (U,),
    "nvmlDeviceGetMaxPcieLinkWidth": (U,),
    "nvmlDeviceGetViolationStatus": each(("power", "thermal"), Raw(16)),
    "nvmlDeviceValidateInforom": (),
    "nvmlDeviceGetTotalEnergyConsumption": (ULL,),
    "nvmlDeviceGetMemoryInfo_v2": (Raw(40, 2),),
    "nvmlDeviceGetBAR1MemoryInfo": (Raw(24),),
    "nvmlDeviceGetClockInfo": each(CLOCKS, U),
    "nvmlDeviceGetMaxClockInfo": each(CLOCKS, U),
    "nvmlDeviceGetMemoryBusWidth": (U,),
    "nvmlDeviceGetApplicationsClock": each(CLOCKS, U),
    "nvmlDeviceGetCurrentClocksEventReasons": (ULL,),
    "nvmlDeviceGetPerformanceState": (U,),
    "nvmlDeviceGetTemperature": (In(0), U),
    "nvmlDeviceGetTemperatureThreshold": each(("shutdown", "slowdown", "memory-max", "gpu-max"), U),
    "nvmlDeviceGetFanSpeed": (U,),
    "nvmlDeviceGetPowerUsage": (U,),
    "nvmlDeviceGetPowerManagementLimit": (U,),
    "nvmlDeviceGetPowerManagementDefaultLimit": (U,),
    "nvmlDeviceGetPowerManagementLimitConstraints": (U, U),
    "nvmlDeviceGetEnforcedPowerLimit": (U,),
    "nvmlDeviceGetSupportedMemoryClocks": (Count(64), Raw(4 * 64, shown=4)),
    # With the memory clock of the H100, and of the H200.
    "nvmlDeviceGetSupportedGraphicsClocks": each({2619: "2619", 3201: "3201"}, Count(1024), Raw(4 * 1024, shown=2)),
    "nvmlDeviceGetUtilizationRates": (Raw(8),),
    "nvmlDeviceGetEncoderUtilization": (U, U),
    "nvmlDeviceGetDecoderUtilization": (U, U),
    "nvmlDeviceGetCurrPcieLinkGeneration": (U,),
    "nvmlDeviceGetMaxPcieLinkGeneration": (U,),
    "nvmlDeviceGetPcieThroughput": each(("sent", "received"), U),
    "nvmlDeviceGetGridLicensableFeatures_v4": (Raw(860, shown=2),),
    "nvmlDeviceGetVbiosVersion": TEXT,
    "nvmlDeviceGetInforomVersion": each(("oem", "ecc", "power"), *TEXT),
    "nvmlDeviceGetInforomImageVersion": TEXT,
    "nvmlDeviceGetProcessUtilization": (Raw(32 * 64), Count(64), In(ctypes.c_ulonglong(0))),
    "nvmlGpmQueryDeviceSupport": (Raw(8, first=1, shown=2),),
    "nvmlDeviceGetSupportedEventTypes": (ULL,),
    # Older variants of the process lists, which gpulet falls back to.
    "nvmlDeviceGetComputeRunningProcesses_v2": (Count(64), Raw(40 * 64)),
    "nvmlDeviceGetGraphicsRunningProcesses_v2": (Count(64), Raw(40 * 64)),
    "nvmlDeviceGetMPSComputeRunningProcesses_v2": (Count(64), Raw(40 * 64)),
}
NOT_IN_LIBRARY_H = {name for name in CALLS if name.endswith("RunningProcesses_v2")}
# Measured by a sequence of their own in this file: initialisation, fields, GPM, events, pairs of GPUs.
SEQUENCES = {"nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetFieldValues", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree", "nvmlGpmSampleGet",
             "nvmlGpmMetricsGet", "nvmlDeviceRegisterEvents", "nvmlEventSetCreate", "nvmlEventSetWait_v2", "nvmlEventSetFree",
             "nvmlDeviceGetP2PStatus", "nvmlDeviceGetTopologyCommonAncestor"}
NOT_CALLED = {
    "nvmlErrorString": "returns a text",
    "nvmlDeviceSetMigMode": "changes the machine",
    "nvmlDeviceSetComputeMode": "changes the machine",
    "nvmlDeviceSetMemoryLimits_v1": "changes the machine",
    "nvmlDeviceSetPowerManagementLimit": "changes the machine: check_driver.py sets the present limit",
    "nvmlDeviceSetGpuLockedClocks": "changes the machine",
    "nvmlDeviceResetGpuLockedClocks": "changes the machine",
    "nvmlDeviceSetMemoryLockedClocks": "changes the machine",
    "nvmlDeviceResetMemoryLockedClocks": "changes the machine",
    "nvmlDeviceGetMemoryLimits_v1": "needs a cgroup: check_memory.py",
    "nvmlDeviceCreateGpuInstanceWithPlacement": "changes the machine",
    "nvmlGpuInstanceGetInfo": "needs a GPU instance",
    "nvmlGpuInstanceDestroy": "needs a GPU instance",
    "nvmlGpuInstanceGetComputeInstanceProfileInfo": "needs a GPU instance",
    "nvmlGpuInstanceGetComputeInstancePossiblePlacements": "needs a GPU instance",
    "nvmlGpuInstanceGetComputeInstances": "needs a GPU instance",
    "nvmlGpuInstanceGetComputeInstanceById": "needs a GPU instance",
    "nvmlGpuInstanceCreateComputeInstance": "needs a GPU instance",
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement": "needs a GPU instance",
    "nvmlComputeInstanceGetInfo_v2": "needs a GPU instance",
    "nvmlComputeInstanceDestroy": "needs a GPU instance",
    "nvmlGpmMigSampleGet": "needs a GPU instance",
}
FEW = {"nvmlDeviceValidateInforom": 3, "nvmlDeviceGetPcieThroughput": 5}
# Fields that src/nvml names by NVML's own constants.
FIELD_CONSTANTS = {"NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0": 32, "NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L0": 39,
                   "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L0": 46, "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L0": 53,
                   "NVML_FI_DEV_PERF_POLICY_POWER": 74, "NVML_FI_DEV_PERF_POLICY_THERMAL": 75, "NVML_FI_DEV_MEMORY_TEMP": 82,
                   "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L6": 96, "NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L6": 102,
                   "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L6": 108, "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L6": 114,
                   "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": 138, "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": 139,
                   "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY": 161, "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY": 162,
                   "NVML_FI_DEV_NVLINK_ERROR_DL_CRC": 163, "NVML_FI_DEV_NVLINK_GET_STATE": 165,
                   "NVML_FI_DEV_NVLINK_COUNT_XMIT_PACKETS": 201, "NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES": 202,
                   "NVML_FI_DEV_NVLINK_COUNT_RCV_PACKETS": 203, "NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES": 204,
                   "NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS": 206,
                   "NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS": 207, "NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS": 208,
                   "NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS": 209, "NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS": 210,
                   "NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS": 211, "NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS": 212,
                   "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS": 213,
                   "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS": 214,
                   "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS": 215, "NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS": 219,
                   "NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS": 221, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION": 230}
LINK_FIELDS = (161, 162, 163, 165, 201, 202, 203, 204, 206, 207, 208, 209, 210, 211, 212, 213, 214, 215, 219, 221)
ALL_LINK_FIELDS = (138, 139)


def loaded_functions():
    """The functions that gpulet loads, by its source."""
    return re.findall(r"^  X\((nvml\w+),", (ROOT / "src/nvml/library.h").read_text(), re.MULTILINE)


def enumerators(path, name):
    """{enumerator: number} of an enum class."""
    body = re.search(rf"enum class {name}\b[^{{]*{{(.*?)}};", (ROOT / path).read_text(), re.DOTALL)[1]
    found, number = {}, -1
    for word, value in re.findall(r"^\s*(k\w+)\s*(?:=\s*(\d+))?,", body, re.MULTILINE):
        number = int(value) if value else number + 1
        found[word] = number
    return found


def fields():
    """{"name,scope": (id, scope)} of the fields that gpulet reads."""
    found = {f"{name[1:]}({number})": (number, nvml.ALL_LINKS if number in ALL_LINK_FIELDS else 0)
             for name, number in enumerators("src/nvml/usage.h", "FieldId").items()}
    for path in sorted((ROOT / "src/nvml").glob("*.cpp")):
        text = re.sub(r"static_assert\(.*?;", "", path.read_text(), flags=re.DOTALL)
        for name in re.findall(r"\bNVML_FI_DEV_\w+", text):
            number = FIELD_CONSTANTS[name]
            found.setdefault(f"{name[12:]}({number})", (number, 0))
    return found


def unknown_functions():
    known = set(CALLS) | SEQUENCES | set(NOT_CALLED)
    loaded = set(loaded_functions())
    return sorted(loaded - known), sorted(known - loaded - NOT_IN_LIBRARY_H)


# Rights of this process, before it opens the driver.
def drop_sys_admin():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(24, CAP_SYS_ADMIN, 0, 0, 0) != 0:  # PR_CAPBSET_DROP
        raise OSError(ctypes.get_errno(), "prctl(PR_CAPBSET_DROP)")
    header = (ctypes.c_uint * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    sets = (ctypes.c_uint * 6)()
    if libc.capget(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    for at in range(3):  # effective, permitted, inheritable of the lower 32
        sets[at] &= ~(1 << CAP_SYS_ADMIN)
    if libc.capset(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def become_user():
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def apply_rights(rights):
    {"full": lambda: None, "no_sys_admin": drop_sys_admin, "user": become_user}[rights]()


class Probe:
    """Calls everything once or more and keeps what came back."""

    def __init__(self, library, calls):
        self.library, self.calls = library, calls
        self.codes, self.values, self.latency_us = {}, {}, {}

    def _measure(self, key, invoke, times):
        spent, codes, end = [], set(), time.monotonic() + LIMIT_S
        while len(spent) < times and (not spent or time.monotonic() < end):
            started = time.perf_counter_ns()
            code = invoke()
            spent.append((time.perf_counter_ns() - started) / 1000)
            codes.add(code)
        self.codes[key] = codes.pop() if len(codes) == 1 else sorted(codes)
        spent.sort()
        p99 = spent[min(len(spent) - 1, int(len(spent) * 0.99))]  # of 50, the slowest
        self.latency_us[key] = {"p50": round(spent[len(spent) // 2], 1), "p99": round(p99, 1), "calls": len(spent)}

    def getter(self, name, variant, first, arguments):
        key = f"{name}({variant})" if variant else name
        function = getattr(self.library.library, name, None)
        if function is None:
            self.codes[key] = "absent"
            return
        last = []

        def invoke():
            last[:] = [argument.make() for argument in arguments]
            return function(*first, *[argument.passed(made) for argument, made in zip(arguments, last)])
        self._measure(key, invoke, min(self.calls, FEW.get(name, self.calls)))
        if self.codes[key] == nvml.SUCCESS and name not in PRIVATE:
            shown = [argument.read(made) for argument, made in zip(arguments, last)
                     if not (isinstance(argument, (In, Raw)) and not getattr(argument, "shown", 0)) and argument is not HANDLE]
            if shown:
                self.values[key] = shown[0] if len(shown) == 1 else shown

    def getters(self, device):
        for name, arguments in CALLS.items():
            on_device = name.startswith("nvmlDevice") and name not in ("nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2")
            first = (device,) if on_device or name == "nvmlGpmQueryDeviceSupport" else ()
            for variant, words in (arguments.items() if isinstance(arguments, dict) else (("", arguments),)):
                self.getter(name, variant, first, words)

    def field_values(self, device):
        for name, (identifier, scope) in fields().items():
            for link in ((0, 17) if identifier in LINK_FIELDS else (None,)):
                value = nvml.FieldValue(id=identifier, scope=scope if link is None else link)
                key = f"field {name}" + ("" if link is None else f",{link}")
                call = self.library.code("nvmlDeviceGetFieldValues", device, 1, ctypes.byref(value))
                self.codes[key] = value.code if call == nvml.SUCCESS else call
                if self.codes[key] == nvml.SUCCESS:
                    self.values[key] = value.value
        asked = list(fields().values())
        array = (nvml.FieldValue * len(asked))()

        def invoke():
            for at, (identifier, scope) in enumerate(asked):
                array[at].id, array[at].scope = identifier, scope
            return self.library.code("nvmlDeviceGetFieldValues", device, len(asked), array)
        self._measure("nvmlDeviceGetFieldValues(all fields)", invoke, self.calls)

    def gpm(self, device):
        samples = [ctypes.c_void_p(), ctypes.c_void_p()]
        for sample in samples:
            self._measure("nvmlGpmSampleAlloc",
                          lambda sample=sample: self.library.code("nvmlGpmSampleAlloc", ctypes.byref(sample)), 1)
        self._measure("nvmlGpmSampleGet", lambda: self.library.code("nvmlGpmSampleGet", device, samples[0]), self.calls)
        if self.codes["nvmlGpmSampleGet"] == nvml.SUCCESS:
            time.sleep(0.2)
            self.library.code("nvmlGpmSampleGet", device, samples[1])
            self.gpm_metrics(samples)
        for sample in samples:
            self._measure("nvmlGpmSampleFree", lambda sample=sample: self.library.code("nvmlGpmSampleFree", sample), 1)

    def gpm_metrics(self, samples):
        wanted = gpm_metrics()
        request = ctypes.create_string_buffer(24 + 40 * 400)  # nvmlGpmMetricsGet_t
        def prepare():
            ctypes.memset(request, 0, len(request))
            (ctypes.c_uint * 2).from_buffer(request)[:] = [1, len(wanted)]
            (ctypes.c_void_p * 2).from_buffer(request, 8)[:] = [sample.value for sample in samples]
            for at, number in enumerate(wanted.values()):
                ctypes.c_uint.from_buffer(request, 24 + 40 * at).value = number
        def invoke():
            prepare()
            return self.library.code("nvmlGpmMetricsGet", request)
        self._measure("nvmlGpmMetricsGet", invoke, self.calls)
        if self.codes["nvmlGpmMetricsGet"] != nvml.SUCCESS:
            return
        for at, name in enumerate(wanted):
            self.codes[f"gpm {name}"] = ctypes.c_int.from_buffer(request, 24 + 40 * at + 4).value
            if self.codes[f"gpm {name}"] == nvml.SUCCESS:
                self.values[f"gpm {name}"] = round(ctypes.c_double.from_buffer(request, 24 + 40 * at + 8).value, 3)

    def utilization_room(self, device):
        """What nvmlDeviceGetProcessUtilization says to buffers of several sizes: "code, entries"."""
        for room in (0, 1, 64, 100, 128, 512):
            count, samples = ctypes.c_uint(room), ctypes.create_string_buffer(32 * 512)
            code = self.library.code("nvmlDeviceGetProcessUtilization", device, samples if room else None, ctypes.byref(count),
                                     ctypes.c_ulonglong(0))
            self.values[f"nvmlDeviceGetProcessUtilization room {room}"] = f"{code}, {count.value}"

    def events(self, device):
        event_set, event = ctypes.c_void_p(), nvml.Event()
        code = self.library.code
        self._measure("nvmlEventSetCreate", lambda: code("nvmlEventSetCreate", ctypes.byref(event_set)), 1)
        self._measure("nvmlDeviceRegisterEvents",
                      lambda: code("nvmlDeviceRegisterEvents", device, ctypes.c_ulonglong(nvml.XID_EVENT), event_set), 1)
        self._measure("nvmlEventSetWait_v2", lambda: code("nvmlEventSetWait_v2", event_set, ctypes.byref(event), 0), 5)
        self._measure("nvmlEventSetFree", lambda: code("nvmlEventSetFree", event_set), 1)

    def pairs(self, devices):
        """The second argument is the last GPU, on a machine of one the same GPU again."""
        value, other = ctypes.c_uint(), "same GPU" if len(devices) == 1 else "other GPU"
        self._measure(f"nvmlDeviceGetP2PStatus({other})", lambda: self.library.code(
            "nvmlDeviceGetP2PStatus", devices[0], devices[-1], 0, ctypes.byref(value)), self.calls)
        self._measure(f"nvmlDeviceGetTopologyCommonAncestor({other})", lambda: self.library.code(
            "nvmlDeviceGetTopologyCommonAncestor", devices[0], devices[-1], ctypes.byref(value)), self.calls)


def gpm_metrics():
    return {f"{name[1:]}({number})": number for name, number in enumerators("src/nvml/gpm.h", "GpmMetric").items()}


def resident_mb():
    return round(int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def probe(path, rights, calls):
    apply_rights(rights)
    resident = {"before": resident_mb()}
    started = time.perf_counter()
    library = nvml.Nvml(path)
    opened = time.perf_counter()
    found = Probe(library, calls)
    found.codes["nvmlInit_v2"] = nvml.SUCCESS
    devices = library.devices()
    handles = time.perf_counter()
    resident["with nvmlInit and handles"] = resident_mb()
    found.getters(devices[0])
    found.field_values(devices[0])
    found.utilization_room(devices[0])
    found.gpm(devices[0])
    found.events(devices[0])
    found.pairs(devices)
    resident["after every call"] = resident_mb()
    before = time.perf_counter()
    found.codes["nvmlShutdown"] = library.code("nvmlShutdown")
    return {"resident_mb": resident, "codes": found.codes, "values": found.values, "latency_us": found.latency_us,
            "nvmlInit_ms": round((opened - started) * 1000, 2),
            "first_handles_ms": round((handles - opened) * 1000, 2), "nvmlShutdown_ms": round((time.perf_counter() - before) * 1000, 2)}


def main():
    path, rights = sys.argv[1:3]
    calls = int(sys.argv[4]) if sys.argv[3:4] == ["--calls"] else 50
    print(json.dumps(probe(path, rights, calls)))


if __name__ == "__main__":
    main()
