"""Calls what clients and the agent call by nvidia-ml-py and compares the values with the machine's YAML."""
import ctypes
import inspect
import re

import judge
import pynvml as nvml
from judge import between, check, machine, same

BRANDS = {"tesla": nvml.NVML_BRAND_TESLA, "nvidia": nvml.NVML_BRAND_NVIDIA}
ARCHITECTURES = {"volta": 5, "turing": 6, "ampere": 7, "ada": 8, "hopper": 9, "blackwell": 10}
LINK_VERSIONS = {"2.0": 2, "3.0": 4, "4.0": 6, "5.0": 7}
LEVELS = {"single": nvml.NVML_TOPOLOGY_SINGLE, "multiple": nvml.NVML_TOPOLOGY_MULTIPLE,
          "host_bridge": nvml.NVML_TOPOLOGY_HOSTBRIDGE}
MIB = 1 << 20
RECOVERY_ACTION = 230


def gpus():
    """(index, handle, the YAML's values)."""
    return [(i, nvml.nvmlDeviceGetHandleByIndex(i), wanted) for i, wanted in enumerate(machine()["gpus"])]


def refuses(error, function, *arguments):
    try:
        value = function(*arguments)
    except error:
        return
    raise AssertionError(f"{function.__name__} answers {value!r}, not {error.__name__}")


not_supported = nvml.NVMLError_NotSupported


@check
def system_versions():
    wanted = machine()["driver"]
    same(nvml.nvmlSystemGetDriverVersion(), wanted["version"])
    same(nvml.nvmlSystemGetNVMLVersion(), wanted["nvml"])
    same(nvml.nvmlSystemGetCudaDriverVersion_v2(), wanted["cuda"])
    same(nvml.nvmlDeviceGetCount(), len(machine()["gpus"]))


@check
def identity():
    uuids, serials = set(), set()
    for i, gpu, wanted in gpus():
        same(nvml.nvmlDeviceGetName(gpu), wanted["name"])
        uuid = nvml.nvmlDeviceGetUUID(gpu)
        if not re.fullmatch(r"GPU-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", uuid):
            raise AssertionError(f"{uuid} is no GPU UUID")
        uuids.add(uuid)
        serials.add(nvml.nvmlDeviceGetSerial(gpu))
        same(nvml.nvmlDeviceGetIndex(gpu), i)
        same(nvml.nvmlDeviceGetMinorNumber(gpu), i)
        same(nvml.nvmlDeviceGetBrand(gpu), BRANDS[wanted["brand"]])
        same(nvml.nvmlDeviceGetArchitecture(gpu), ARCHITECTURES[wanted["architecture"]])
        same(".".join(map(str, nvml.nvmlDeviceGetCudaComputeCapability(gpu))), wanted["compute_capability"])
        same(nvml.nvmlDeviceGetVbiosVersion(gpu), wanted["vbios"])
        same(nvml.nvmlDeviceGetBoardPartNumber(gpu), wanted["board_part_number"])
        same(nvml.nvmlDeviceGetInforomImageVersion(gpu), wanted["inforom"]["image"])
        same(nvml.nvmlDeviceGetInforomVersion(gpu, nvml.NVML_INFOROM_ECC), wanted["inforom"]["ecc"])
        same(nvml.nvmlDeviceGetNumGpuCores(gpu), wanted["cores"])
        same(nvml.nvmlDeviceGetMultiGpuBoard(gpu), 0)
    same((len(uuids), len(serials)), (len(machine()["gpus"]),) * 2, "UUIDs and serial numbers")


@check
def handles_by_every_key():
    for i, gpu, wanted in gpus():
        for other in (nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(gpu)),
                      nvml.nvmlDeviceGetHandleBySerial(nvml.nvmlDeviceGetSerial(gpu)),
                      nvml.nvmlDeviceGetHandleByPciBusId(wanted["pci"])):
            same(nvml.nvmlDeviceGetIndex(other), i)
    refuses(nvml.NVMLError_InvalidArgument, nvml.nvmlDeviceGetHandleByIndex, len(machine()["gpus"]))
    refuses(nvml.NVMLError_NotFound, nvml.nvmlDeviceGetHandleByUUID, "GPU-00000000-0000-0000-0000-000000000000")


@check
def pci():
    for _, gpu, wanted in gpus():
        info = nvml.nvmlDeviceGetPciInfo(gpu)
        same(f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0", wanted["pci"])
        same(info.busId.lower(), "0000" + wanted["pci"])
        same(info.pciDeviceId, wanted["device_id"])
        same(info.pciSubSystemId, wanted["subsystem_id"])
        same(nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu), wanted["pcie"]["generation"])
        same(nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu), wanted["pcie"]["width"])
        between(nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu), 1, wanted["pcie"]["generation"])
        nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_TX_BYTES)
        same(nvml.nvmlDeviceGetPcieReplayCounter(gpu), 0)


@check
def memory():
    for _, gpu, wanted in gpus():
        total, reserved = wanted["memory"]["total_mib"] * MIB, wanted["memory"]["reserved_mib"] * MIB
        first = nvml.nvmlDeviceGetMemoryInfo(gpu)
        same((first.total, first.used, first.free), (total, reserved, total - reserved))
        second = nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2)
        same((second.total, second.reserved, second.used, second.free), (total, reserved, 0, total - reserved))
        same(nvml.nvmlDeviceGetBAR1MemoryInfo(gpu).bar1Total, wanted["memory"]["bar1_mib"] * MIB)
        same(nvml.nvmlDeviceGetMemoryBusWidth(gpu), wanted["memory"]["bus_bits"])


@check
def clocks():
    kinds = {"graphics": nvml.NVML_CLOCK_GRAPHICS, "sm": nvml.NVML_CLOCK_SM, "memory": nvml.NVML_CLOCK_MEM,
             "video": nvml.NVML_CLOCK_VIDEO}
    for _, gpu, wanted in gpus():
        for name, kind in kinds.items():
            same(nvml.nvmlDeviceGetMaxClockInfo(gpu, kind), wanted["clocks_mhz"]["max"][name], name)
            same(nvml.nvmlDeviceGetClockInfo(gpu, kind), wanted["clocks_mhz"]["idle"][name], name)
        for name in ("graphics", "memory"):
            same(nvml.nvmlDeviceGetApplicationsClock(gpu, kinds[name]), wanted["clocks_mhz"]["application"][name], name)
        same(nvml.nvmlDeviceGetSupportedMemoryClocks(gpu), [wanted["clocks_mhz"]["max"]["memory"]])
        same(nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu), nvml.nvmlClocksEventReasonGpuIdle)
        between(nvml.nvmlDeviceGetPerformanceState(gpu), 0, 15)


@check
def power_and_heat():
    for _, gpu, wanted in gpus():
        power, heat = wanted["power_w"], wanted["temperature_c"]
        same(nvml.nvmlDeviceGetPowerUsage(gpu), power["idle"] * 1000)
        same(nvml.nvmlDeviceGetEnforcedPowerLimit(gpu), power["limit"] * 1000)
        same(nvml.nvmlDeviceGetPowerManagementLimit(gpu), power["limit"] * 1000)
        same(nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu), power["limit"] * 1000)
        same(nvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu), [power["min"] * 1000, power["max"] * 1000])
        energy = nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
        between(nvml.nvmlDeviceGetTotalEnergyConsumption(gpu), energy, energy + 10**9)
        same(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU), heat["idle"])
        for name, threshold in (("slowdown", nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
                                ("shutdown", nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
                                ("max", nvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX)):
            same(nvml.nvmlDeviceGetTemperatureThreshold(gpu, threshold), heat[name], name)
        refuses(not_supported, nvml.nvmlDeviceGetFanSpeed, gpu)


@check
def use():
    for _, gpu, _ in gpus():
        rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
        same((rates.gpu, rates.memory), (0, 0))
        same(nvml.nvmlDeviceGetEncoderUtilization(gpu)[0], 0)
        same(nvml.nvmlDeviceGetDecoderUtilization(gpu)[0], 0)
        same(nvml.nvmlDeviceGetComputeRunningProcesses(gpu), [])
        same(nvml.nvmlDeviceGetGraphicsRunningProcesses(gpu), [])
        same(nvml.nvmlDeviceGetMPSComputeRunningProcesses(gpu), [])
        same(nvml.nvmlDeviceGetPersistenceMode(gpu), nvml.NVML_FEATURE_ENABLED)
        same(nvml.nvmlDeviceGetDisplayMode(gpu), nvml.NVML_FEATURE_DISABLED)
        same(nvml.nvmlDeviceGetComputeMode(gpu), nvml.NVML_COMPUTEMODE_DEFAULT)


@check
def errors_of_memory():
    for _, gpu, wanted in gpus():
        same(nvml.nvmlDeviceGetEccMode(gpu), [1, 1])
        for kind in (nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED):
            for counter in (nvml.NVML_VOLATILE_ECC, nvml.NVML_AGGREGATE_ECC):
                same(nvml.nvmlDeviceGetTotalEccErrors(gpu, kind, counter), 0)
        if wanted.get("retired_pages"):
            same(list(nvml.nvmlDeviceGetRetiredPages(gpu, nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)), [])
            same(nvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu), 0)
            refuses(not_supported, nvml.nvmlDeviceGetRemappedRows, gpu)
        else:
            same(list(nvml.nvmlDeviceGetRemappedRows(gpu)), [0, 0, 0, 0])
            same(nvml.nvmlDeviceGetRowRemapperHistogram(gpu).max, wanted["row_remapping_banks"])
            refuses(not_supported, nvml.nvmlDeviceGetRetiredPagesPendingStatus, gpu)


@check
def field_values():
    for _, gpu, wanted in gpus():
        ids = [RECOVERY_ACTION, nvml.NVML_FI_DEV_NVLINK_LINK_COUNT, nvml.NVML_FI_DEV_ECC_CURRENT,
               nvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, nvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER, 0]
        values = nvml.nvmlDeviceGetFieldValues(gpu, ids)
        same([value.nvmlReturn for value in values[:5]], [0] * 5)
        same(values[5].nvmlReturn, nvml.NVML_ERROR_INVALID_ARGUMENT)
        same([values[0].value.uiVal, values[1].value.uiVal, values[2].value.uiVal], [0, wanted["links"], 1])


@check
def numa_and_cpus():
    for _, gpu, wanted in gpus():
        words = nvml.nvmlDeviceGetCpuAffinity(gpu, 16)
        cpus = {64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1}
        same(cpus, set(wanted["cpus"]))
        same(list(nvml.nvmlDeviceGetMemoryAffinity(gpu, 1, nvml.NVML_AFFINITY_SCOPE_NODE)), [1 << wanted["numa"]])
        if "memory_numa" in wanted:
            same(nvml.nvmlDeviceGetNumaNodeId(gpu), wanted["memory_numa"])
        else:
            refuses(not_supported, nvml.nvmlDeviceGetNumaNodeId, gpu)


@check
def topology():
    found = gpus()
    for a, gpu, wanted in found:
        for b, other, there in found:
            if a == b:
                continue
            level = nvml.NVML_TOPOLOGY_NODE if wanted["numa"] == there["numa"] else nvml.NVML_TOPOLOGY_SYSTEM
            for name, groups in machine()["topology"].items():
                if any(a in group and b in group for group in groups):
                    level = min(level, LEVELS[name])
            same(nvml.nvmlDeviceGetTopologyCommonAncestor(gpu, other), level, f"GPUs {a} and {b}")
            linked = wanted["links_to"][b] > 0 or (wanted["switched"] and there["switched"])
            same(nvml.nvmlDeviceGetP2PStatus(gpu, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK, linked)


@check
def links():
    addresses = {wanted["pci"]: i for i, wanted in enumerate(machine()["gpus"])}
    for i, gpu, wanted in gpus():
        direct = [0] * len(addresses)
        for link in range(wanted["links"]):
            same(nvml.nvmlDeviceGetNvLinkState(gpu, link), nvml.NVML_FEATURE_ENABLED)
            same(nvml.nvmlDeviceGetNvLinkVersion(gpu, link), LINK_VERSIONS[wanted["nvlink"]["version"]])
            kind = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(gpu, link)
            same(kind, nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if wanted["switched"] else nvml.NVML_NVLINK_DEVICE_TYPE_GPU)
            remote = nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, link)
            address = f"{remote.domain:04x}:{remote.bus:02x}:{remote.device:02x}.0"
            if wanted["switched"]:
                same(address in wanted["switches"] or not wanted["switches"], True, f"switch {address}")
            else:
                direct[addresses[address]] += 1
            same(nvml.nvmlDeviceGetNvLinkErrorCounter(gpu, link, nvml.NVML_NVLINK_ERROR_DL_REPLAY), 0)
        same(direct, wanted["links_to"], f"links of GPU {i}")
        beyond = nvml.NVMLError_InvalidArgument if wanted["links"] else not_supported
        refuses(beyond, nvml.nvmlDeviceGetNvLinkState, gpu, wanted["links"])


@check
def fabric():
    wanted = machine()["fabric"]
    for _, gpu, _ in gpus():
        info = nvml.c_nvmlGpuFabricInfoV_t()
        info.version = nvml.nvmlGpuFabricInfo_v2
        nvml.nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(info))
        same(info.state, nvml.NVML_GPU_FABRIC_STATE_COMPLETED if wanted else 0)
        if wanted:
            same(info.cliqueId, wanted.get("clique_id", 0))
            uuid = "".join(f"{ord(byte) if isinstance(byte, (str, bytes)) else byte & 0xff:02x}" for byte in info.clusterUuid)
            same(uuid, wanted.get("cluster_uuid", "").replace("-", "") or "0" * 32)


@check
def mig_profiles():
    for _, gpu, wanted in gpus():
        if "mig" not in wanted:
            refuses(not_supported, nvml.nvmlDeviceGetMigMode, gpu)
            continue
        same(nvml.nvmlDeviceGetMigMode(gpu), [0, 0])
        by_index = {profile["index"]: profile for profile in wanted["mig"]["profiles"]}
        for index in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            if index not in by_index:
                refuses(not_supported, nvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu, index)
                continue
            profile, info = by_index[index], nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, index, version=2)
            same((info.id, info.sliceCount, info.instanceCount, info.memorySizeMB, info.multiprocessorCount),
                 tuple(profile[key] for key in ("id", "slices", "instances", "memory_mib", "multiprocessors")))
            count, places = ctypes.c_uint(), (nvml.c_nvmlGpuInstancePlacement_t * 16)()
            nvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, info.id, places, ctypes.byref(count))
            found = sorted((place.start, place.size) for place in places[:count.value])
            same(found, [(start, profile["memory_slices"]) for start in profile["placements"]], profile["name"])


@check
def every_other_call_answers():
    """Each nvmlDeviceGet... with only a handle returns a value or a documented error."""
    allowed = {nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_DATA, nvml.NVML_ERROR_NOT_FOUND,
               nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT}
    device, asked, answered = nvml.nvmlDeviceGetHandleByIndex(0), 0, 0
    for name, function in inspect.getmembers(nvml, inspect.isfunction):
        parameters = list(inspect.signature(function).parameters.values()) if name.startswith("nvmlDeviceGet") else []
        first = parameters[0].name if parameters else ""
        if first not in ("handle", "device") or any(p.default is p.empty for p in parameters[1:]):
            continue
        asked += 1
        try:
            function(device)
            answered += 1
        except nvml.NVMLError as error:
            if error.value not in allowed:
                raise AssertionError(f"{name}: {error}") from error
    between(asked, 80, 1000, "calls")
    between(answered, 40, asked, "answers")


if __name__ == "__main__":
    nvml.nvmlInit()
    judge.main()
    nvml.nvmlShutdown()
