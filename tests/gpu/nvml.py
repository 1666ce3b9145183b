"""NVML through ctypes: what the checks read by themselves, independently of gpulet. Source: nvml.h."""
import ctypes
import time

SUCCESS, NOT_SUPPORTED, INSUFFICIENT_SIZE, TIMEOUT = 0, 3, 7, 10
XID_EVENT = 0x8
FIELD_BYTES = 40
ALL_LINKS = 0xFFFFFFFF
CLOCKS = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}


class NvmlError(Exception):
    def __init__(self, call, code):
        super().__init__(f"{call} returned {code}")
        self.code = code


class FieldValue(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint), ("scope", ctypes.c_uint), ("when_us", ctypes.c_longlong), ("latency_us", ctypes.c_longlong),
                ("type", ctypes.c_uint), ("code", ctypes.c_int), ("raw", ctypes.c_ulonglong)]

    @property
    def value(self):
        if self.type == 0:
            return ctypes.c_double.from_buffer_copy(ctypes.c_ulonglong(self.raw)).value
        return self.raw & 0xFFFFFFFF if self.type in (1, 5) else self.raw


class Event(ctypes.Structure):
    _fields_ = [("device", ctypes.c_void_p), ("type", ctypes.c_ulonglong), ("data", ctypes.c_ulonglong),
                ("gpu_instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint)]


class PciInfo(ctypes.Structure):
    _fields_ = [("legacy", ctypes.c_char * 16), ("domain", ctypes.c_uint), ("bus", ctypes.c_uint), ("device", ctypes.c_uint),
                ("device_id", ctypes.c_uint), ("subsystem_id", ctypes.c_uint), ("text", ctypes.c_char * 32)]

    @property
    def address(self):
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.0"


class Nvml:
    """An initialised library. Methods raise NvmlError."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.call("nvmlInit_v2")

    def close(self):
        self.call("nvmlShutdown")

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def has(self, name):
        return hasattr(self.library, name)

    def code(self, name, *arguments):
        return getattr(self.library, name)(*arguments)

    def call(self, name, *arguments):
        code = self.code(name, *arguments)
        if code != SUCCESS:
            raise NvmlError(name, code)

    def text(self, name, *arguments, size=96):
        buffer = ctypes.create_string_buffer(size)
        self.call(name, *arguments, buffer, size)
        return buffer.value.decode()

    def number(self, name, *arguments, kind=ctypes.c_uint):
        value = kind()
        self.call(name, *arguments, ctypes.byref(value))
        return value.value

    def devices(self):
        found = []
        for index in range(self.number("nvmlDeviceGetCount_v2")):
            handle = ctypes.c_void_p()
            self.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
            found.append(handle)
        return found

    def pci(self, device):
        info = PciInfo()
        self.call("nvmlDeviceGetPciInfo_v3", device, ctypes.byref(info))
        return info

    def memory_total(self, device):
        return self.memory(device)[0]

    def memory(self, device):
        """(total, free, used) in bytes; used without the driver's reserve where the driver tells it apart."""
        second = (ctypes.c_ulonglong * 5)()
        ctypes.c_uint.from_buffer(second).value = 40 | 2 << 24
        if self.has("nvmlDeviceGetMemoryInfo_v2") and self.code("nvmlDeviceGetMemoryInfo_v2", device, second) == SUCCESS:
            return second[1], second[3], second[4]
        first = (ctypes.c_ulonglong * 3)()
        self.call("nvmlDeviceGetMemoryInfo", device, first)
        return first[0], first[1], first[2]

    def mig_mode(self, device):
        """(current, pending), or None where the GPU has no MIG."""
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        code = self.code("nvmlDeviceGetMigMode", device, ctypes.byref(current), ctypes.byref(pending))
        return (current.value, pending.value) if code == SUCCESS else None

    def clock(self, device, name):
        return self.number("nvmlDeviceGetClockInfo", device, CLOCKS[name])

    def utilization(self, device):
        values = (ctypes.c_uint * 2)()
        self.call("nvmlDeviceGetUtilizationRates", device, values)
        return values[0]

    def energy_mj(self, device):
        return self.number("nvmlDeviceGetTotalEnergyConsumption", device, kind=ctypes.c_ulonglong)

    def field(self, device, identifier, scope=0):
        """A field's (return code, value)."""
        field = FieldValue(id=identifier, scope=scope)
        self.call("nvmlDeviceGetFieldValues", device, 1, ctypes.byref(field))
        return field.code, field.value

    def processes(self, device, name="nvmlDeviceGetComputeRunningProcesses_v3", entry_bytes=24, room=256):
        """Raw bytes of the entries, and their number."""
        count = ctypes.c_uint(room)
        buffer = ctypes.create_string_buffer(room * 64)
        self.call(name, device, ctypes.byref(count), buffer)
        return buffer.raw[:max(count.value, 1) * max(entry_bytes, 32)], count.value

    def active_links(self, device):
        active, state = [], ctypes.c_uint()
        for link in range(36):
            code = self.code("nvmlDeviceGetNvLinkState", device, link, ctypes.byref(state))
            if code == SUCCESS and state.value == 1:
                active.append(link)
        return active


class XidWatcher:
    """An event set for the XIDs of one GPU."""

    def __init__(self, nvml, device):
        self.nvml, self.set = nvml, ctypes.c_void_p()
        nvml.call("nvmlEventSetCreate", ctypes.byref(self.set))
        nvml.call("nvmlDeviceRegisterEvents", device, ctypes.c_ulonglong(XID_EVENT), self.set)

    def wait(self, limit_s):
        """The next event and the time of its arrival, or None."""
        event = Event()
        code = self.nvml.code("nvmlEventSetWait_v2", self.set, ctypes.byref(event), int(limit_s * 1000))
        if code == TIMEOUT:
            return None
        if code != SUCCESS:
            raise NvmlError("nvmlEventSetWait_v2", code)
        return event, time.time()

    def close(self):
        self.nvml.call("nvmlEventSetFree", self.set)


def entry_stride(raw, count, known_pids):
    """The size of one process entry: the distance at which every 4-byte pid is one of `known_pids`."""
    for stride in (16, 24, 32, 40):
        pids = [int.from_bytes(raw[at * stride:at * stride + 4], "little") for at in range(count)]
        if count and set(pids) <= known_pids and len(set(pids)) == count:
            return stride
    return None
