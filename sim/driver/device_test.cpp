#include <dlfcn.h>

#include <fstream>
#include <set>
#include <sstream>
#include <tuple>
#include <vector>

#include "sim/driver/driver_test.h"

namespace gpulet::sim {
namespace {

TEST_F(DriverTest, CountsInitCalls) {
  EXPECT_EQ(nvmlInitWithFlags(0), NVML_SUCCESS);
  EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
  unsigned count = 0;
  EXPECT_EQ(nvmlDeviceGetCount_v2(&count), NVML_SUCCESS);
  EXPECT_EQ(count, kGpus);
  EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
  EXPECT_EQ(nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
}

TEST_F(DriverTest, ReportsUninitialisedFirst) {
  const nvmlDevice_t device = gpu_device(0);
  ASSERT_EQ(nvmlShutdown(), NVML_SUCCESS);
  char name[96];
  EXPECT_EQ(nvmlDeviceGetName(device, name, sizeof(name)), NVML_ERROR_UNINITIALIZED);
  EXPECT_EQ(nvmlDeviceGetName(nullptr, nullptr, 0), NVML_ERROR_UNINITIALIZED);
  EXPECT_EQ(nvmlSystemGetDriverVersion(name, sizeof(name)), NVML_ERROR_UNINITIALIZED);
  EXPECT_EQ(nvmlDeviceGetSupportedVgpus(device, nullptr, nullptr), NVML_ERROR_UNINITIALIZED);
}

TEST_F(DriverTest, ReportsNoDriverWithoutState) {
  ASSERT_EQ(nvmlShutdown(), NVML_SUCCESS);
  setenv("GPULET_SIM_STATE", (directory_ + "/nothing").c_str(), 1);
  EXPECT_EQ(nvmlInit_v2(), NVML_ERROR_DRIVER_NOT_LOADED);
  std::ofstream(directory_ + "/junk") << "not a state";
  setenv("GPULET_SIM_STATE", (directory_ + "/junk").c_str(), 1);
  EXPECT_EQ(nvmlInit_v2(), NVML_ERROR_DRIVER_NOT_LOADED);
}

TEST_F(DriverTest, RefusesBadHandles) {
  char name[96];
  EXPECT_EQ(nvmlDeviceGetName(nullptr, name, sizeof(name)), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceGetName(reinterpret_cast<nvmlDevice_t>(&name), name, sizeof(name)),
            NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceGetName(gpu_device(0), nullptr, 0), NVML_ERROR_INVALID_ARGUMENT);
  nvmlDevice_t device = nullptr;
  EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(kGpus, &device), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(0, nullptr), NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(DriverTest, FindsAGpuByEachIdentifier) {
  char text[96];
  ASSERT_EQ(nvmlDeviceGetName(gpu_device(1), text, sizeof(text)), NVML_SUCCESS);
  EXPECT_STREQ(text, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(nvmlDeviceGetName(gpu_device(1), text, 5), NVML_ERROR_INSUFFICIENT_SIZE);

  nvmlDevice_t found = nullptr;
  ASSERT_EQ(nvmlDeviceGetUUID(gpu_device(1), text, sizeof(text)), NVML_SUCCESS);
  EXPECT_EQ(std::string(text).substr(0, 4), "GPU-");
  ASSERT_EQ(nvmlDeviceGetHandleByUUID(text, &found), NVML_SUCCESS);
  EXPECT_EQ(found, gpu_device(1));
  nvmlUUID_t by_text{};
  by_text.version = nvmlUUID_v1;
  by_text.type = NVML_UUID_TYPE_ASCII;
  std::string(text).copy(by_text.value.str, sizeof(by_text.value.str) - 1);
  ASSERT_EQ(nvmlDeviceGetHandleByUUIDV(&by_text, &found), NVML_SUCCESS);
  EXPECT_EQ(found, gpu_device(1));

  ASSERT_EQ(nvmlDeviceGetSerial(gpu_device(2), text, sizeof(text)), NVML_SUCCESS);
  ASSERT_EQ(nvmlDeviceGetHandleBySerial(text, &found), NVML_SUCCESS);
  EXPECT_EQ(found, gpu_device(2));

  nvmlPciInfo_t pci;
  ASSERT_EQ(nvmlDeviceGetPciInfo_v3(gpu_device(3), &pci), NVML_SUCCESS);
  EXPECT_STREQ(pci.busId, "00000000:48:00.0");
  EXPECT_STREQ(pci.busIdLegacy, "0000:48:00.0");
  for (const char* address : {"00000000:48:00.0", "0000:48:00.0", "48:00.0"}) {
    ASSERT_EQ(nvmlDeviceGetHandleByPciBusId_v2(address, &found), NVML_SUCCESS) << address;
    EXPECT_EQ(found, gpu_device(3));
  }
  EXPECT_EQ(nvmlDeviceGetHandleByPciBusId_v2("0000:49:00.0", &found), NVML_ERROR_NOT_FOUND);
  EXPECT_EQ(nvmlDeviceGetHandleByPciBusId_v2("nonsense", &found), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceGetHandleByUUID("GPU-none", &found), NVML_ERROR_NOT_FOUND);

  unsigned index = 9;
  ASSERT_EQ(nvmlDeviceGetIndex(gpu_device(3), &index), NVML_SUCCESS);
  EXPECT_EQ(index, 3u);
  int major = 0;
  int minor = 9;
  ASSERT_EQ(nvmlDeviceGetCudaComputeCapability(gpu_device(0), &major, &minor), NVML_SUCCESS);
  EXPECT_EQ(std::make_pair(major, minor), std::make_pair(9, 0));
  int cuda = 0;
  ASSERT_EQ(nvmlSystemGetCudaDriverVersion_v2(&cuda), NVML_SUCCESS);
  EXPECT_EQ(cuda, 12080);
}

TEST_F(DriverTest, MemoryIncludesProcessesAndReservations) {
  const std::uint64_t held = 3ull << 30;
  {
    EditGuard machine = edit_machine();
    Process process{};
    process.pid = 4242;
    process.gpu_instance = process.compute_instance = kNoInstance;
    process.memory_bytes = held;
    ASSERT_TRUE(add_process(machine->gpus[0], process));
  }
  nvmlMemory_v2_t memory{};
  EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(gpu_device(0), &memory), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  memory.version = nvmlMemory_v2;
  ASSERT_EQ(nvmlDeviceGetMemoryInfo_v2(gpu_device(0), &memory), NVML_SUCCESS);
  EXPECT_EQ(memory.used, held);
  EXPECT_EQ(memory.free + memory.used + memory.reserved, memory.total);
  nvmlMemory_t old{};
  ASSERT_EQ(nvmlDeviceGetMemoryInfo(gpu_device(0), &old), NVML_SUCCESS);
  EXPECT_EQ(old.used, memory.used + memory.reserved);

  unsigned count = 0;
  EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(gpu_device(0), &count, nullptr),
            NVML_ERROR_INSUFFICIENT_SIZE);
  ASSERT_EQ(count, 1u);
  nvmlProcessInfo_t process{};
  ASSERT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(gpu_device(0), &count, &process), NVML_SUCCESS);
  EXPECT_EQ(process.pid, 4242u);
  EXPECT_EQ(process.usedGpuMemory, held);
  EXPECT_EQ(process.gpuInstanceId, 0xffffffffu);
  nvmlProcessInfo_v1_t first[2] = {{0, 0}, {77, 77}};
  count = 2;
  ASSERT_EQ(nvmlDeviceGetComputeRunningProcesses(gpu_device(0), &count, first), NVML_SUCCESS);
  EXPECT_EQ(first[0].usedGpuMemory, held);
  EXPECT_EQ(first[1].pid, 77u) << "the smaller struct of the first version must be kept to";
  EXPECT_EQ(nvmlDeviceGetGraphicsRunningProcesses_v3(gpu_device(0), &count, nullptr), NVML_SUCCESS);
  EXPECT_EQ(count, 0u);
}

TEST_F(DriverTest, AnswersFollowTheBranchOfTheDriver) {
  const auto answers = [this](const char* version) {
    set_text(edit_machine()->driver.version, version);
    nvmlEnableState_t mode = NVML_FEATURE_DISABLED;
    unsigned long long reasons = 0;
    nvmlTemperature_t temperature{};
    temperature.version = nvmlTemperature_v1;
    temperature.sensorType = NVML_TEMPERATURE_GPU_MAX;
    const auto display = nvmlDeviceGetDisplayMode(gpu_device(0), &mode);
    const auto hottest = nvmlDeviceGetTemperatureV(gpu_device(0), &temperature);
    EXPECT_EQ(nvmlDeviceGetSupportedClocksEventReasons(gpu_device(0), &reasons), NVML_SUCCESS);
    return std::tuple{display, hottest, (reasons & nvmlClocksEventReasonReliability) != 0};
  };
  EXPECT_EQ(answers("570.124.06"), (std::tuple{NVML_SUCCESS, NVML_ERROR_INVALID_ARGUMENT, false}));
  EXPECT_EQ(answers("580.159.04"), (std::tuple{NVML_ERROR_DEPRECATED, NVML_ERROR_INVALID_ARGUMENT, false}));
  EXPECT_EQ(answers("615.78.08"), (std::tuple{NVML_ERROR_DEPRECATED, NVML_SUCCESS, true}));
}

TEST_F(DriverTest, FieldsHaveTheirOwnResults) {
  {
    EditGuard machine = edit_machine();
    machine->gpus[0].recovery_action = NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET;
    machine->gpus[0].ecc[1][0].by_location[NVML_MEMORY_LOCATION_DRAM] = 5;
    machine->gpus[0].links[7].replay_errors = 3;
    machine->gpus[0].links[4].crc_flit_errors = 2;
  }
  const unsigned ids[] = {NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
                          NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
                          NVML_FI_DEV_ECC_DBE_VOL_DEV,
                          NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L7,
                          NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
                          NVML_FI_DEV_NVLINK_LINK_COUNT,
                          NVML_FI_DEV_MEMORY_TEMP,
                          NVML_FI_DEV_ECC_SBE_VOL_TOTAL};
  const unsigned long long values[] = {4, 5, 5, 3, 2, 18, 42, 0};
  std::vector<nvmlFieldValue_t> fields(std::size(ids) + 2);
  for (std::size_t i = 0; i < std::size(ids); ++i) fields[i].fieldId = ids[i];
  fields[std::size(ids)].fieldId = NVML_FI_MAX + 5;
  fields[std::size(ids) + 1].fieldId = NVML_FI_DEV_RETIRED_SBE;
  ASSERT_EQ(nvmlDeviceGetFieldValues(gpu_device(0), static_cast<int>(fields.size()), fields.data()),
            NVML_SUCCESS);
  for (std::size_t i = 0; i < std::size(ids); ++i) {
    EXPECT_EQ(fields[i].nvmlReturn, NVML_SUCCESS) << ids[i];
    EXPECT_EQ(fields[i].value.ullVal, values[i]) << ids[i];
  }
  EXPECT_EQ(fields[std::size(ids)].nvmlReturn, NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(fields[std::size(ids) + 1].nvmlReturn, NVML_ERROR_NOT_SUPPORTED)
      << "H100 remaps rows, it retires no pages";
}

TEST_F(DriverTest, MemoryErrors) {
  {
    EditGuard machine = edit_machine();
    machine->gpus[0].ecc[0][1].by_location[NVML_MEMORY_LOCATION_L2_CACHE] = 7;
    machine->gpus[0].remapped_rows.uncorrectable = 2;
    machine->gpus[0].remapped_rows.pending = 1;
  }
  unsigned long long count = 0;
  ASSERT_EQ(nvmlDeviceGetTotalEccErrors(gpu_device(0), NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_AGGREGATE_ECC,
                                        &count),
            NVML_SUCCESS);
  EXPECT_EQ(count, 7u);
  ASSERT_EQ(nvmlDeviceGetMemoryErrorCounter(gpu_device(0), NVML_MEMORY_ERROR_TYPE_CORRECTED,
                                            NVML_AGGREGATE_ECC, NVML_MEMORY_LOCATION_L2_CACHE, &count),
            NVML_SUCCESS);
  EXPECT_EQ(count, 7u);
  ASSERT_EQ(nvmlDeviceClearEccErrorCounts(gpu_device(0), NVML_AGGREGATE_ECC), NVML_SUCCESS);
  ASSERT_EQ(nvmlDeviceGetTotalEccErrors(gpu_device(0), NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_AGGREGATE_ECC,
                                        &count),
            NVML_SUCCESS);
  EXPECT_EQ(count, 0u);
  unsigned rows[4] = {};
  ASSERT_EQ(nvmlDeviceGetRemappedRows(gpu_device(0), &rows[0], &rows[1], &rows[2], &rows[3]), NVML_SUCCESS);
  EXPECT_EQ(rows[1], 2u);
  EXPECT_EQ(rows[2], 1u);
}

TEST_F(DriverTest, LinkTrafficGrowsWithTheLoad) {
  {
    auto machine = edit_machine();
    machine->gpus[0].links[3].transmitted_kib = 100;
    machine->gpus[1].links_since_ns = monotonic_ns() - 1'000'000'000;
    machine->gpus[1].links_load = 100;
  }
  const auto transmitted = [&](unsigned gpu, unsigned scope) -> unsigned long long {
    nvmlFieldValue_t value{};
    value.fieldId = NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX;
    value.scopeId = scope;
    EXPECT_EQ(nvmlDeviceGetFieldValues(gpu_device(gpu), 1, &value), NVML_SUCCESS);
    EXPECT_EQ(value.nvmlReturn, NVML_SUCCESS);
    return value.value.ullVal;
  };
  constexpr unsigned kAll = 0xffffffff;
  EXPECT_EQ(transmitted(0, kAll), 100u);
  EXPECT_EQ(transmitted(0, 3), 100u);
  EXPECT_EQ(transmitted(0, 2), 0u);
  constexpr unsigned long long kLinkKib = 12'969'726;  // of half of 26,562 MB/s
  const auto first = transmitted(1, kAll);
  EXPECT_GE(first, 18 * kLinkKib);
  EXPECT_GE(transmitted(1, kAll), first);
}

TEST_F(DriverTest, LinksAndTopology) {
  nvmlEnableState_t active{};
  ASSERT_EQ(nvmlDeviceGetNvLinkState(gpu_device(0), 17, &active), NVML_SUCCESS);
  EXPECT_EQ(active, NVML_FEATURE_ENABLED);
  EXPECT_EQ(nvmlDeviceGetNvLinkState(gpu_device(0), 18, &active), NVML_ERROR_INVALID_ARGUMENT);
  nvmlIntNvLinkDeviceType_t type{};
  ASSERT_EQ(nvmlDeviceGetNvLinkRemoteDeviceType(gpu_device(0), 0, &type), NVML_SUCCESS);
  EXPECT_EQ(type, NVML_NVLINK_DEVICE_TYPE_SWITCH);
  nvmlPciInfo_t remote;
  ASSERT_EQ(nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu_device(0), 0, &remote), NVML_SUCCESS);
  EXPECT_STREQ(remote.busId, "00000000:07:00.0");

  nvmlGpuTopologyLevel_t level{};
  ASSERT_EQ(nvmlDeviceGetTopologyCommonAncestor(gpu_device(0), gpu_device(1), &level), NVML_SUCCESS);
  EXPECT_EQ(level, NVML_TOPOLOGY_NODE);
  ASSERT_EQ(nvmlDeviceGetTopologyCommonAncestor(gpu_device(0), gpu_device(3), &level), NVML_SUCCESS);
  EXPECT_EQ(level, NVML_TOPOLOGY_SYSTEM);
  EXPECT_EQ(nvmlDeviceGetTopologyCommonAncestor(gpu_device(0), nullptr, &level), NVML_ERROR_INVALID_ARGUMENT);
  nvmlGpuP2PStatus_t peer{};
  ASSERT_EQ(nvmlDeviceGetP2PStatus(gpu_device(0), gpu_device(3), NVML_P2P_CAPS_INDEX_NVLINK, &peer),
            NVML_SUCCESS);
  EXPECT_EQ(peer, NVML_P2P_STATUS_OK);
  const nvmlDevice_t second = gpu_device(1);
  edit_machine()->gpus[1].faults.lost = 1;
  EXPECT_EQ(nvmlDeviceGetTopologyCommonAncestor(gpu_device(0), second, &level), NVML_ERROR_GPU_IS_LOST);
}

TEST_F(DriverTest, FabricInfoFollowsTheStructVersion) {
  {
    Fabric& fabric = edit_machine()->gpus[0].fabric;
    fabric.state = NVML_GPU_FABRIC_STATE_COMPLETED;
    fabric.clique_id = 7;
    fabric.cluster_uuid[0] = 0xab;
    fabric.health_summary = NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY;
  }
  nvmlGpuFabricInfoV_t info{};
  info.healthSummary = 99;
  info.version = nvmlGpuFabricInfo_v2;
  ASSERT_EQ(nvmlDeviceGetGpuFabricInfoV(gpu_device(0), &info), NVML_SUCCESS);
  EXPECT_EQ(info.cliqueId, 7u);
  EXPECT_EQ(info.clusterUuid[0], 0xab);
  EXPECT_EQ(info.healthSummary, 99) << "not a member of the second version";
  info.version = nvmlGpuFabricInfo_v3;
  ASSERT_EQ(nvmlDeviceGetGpuFabricInfoV(gpu_device(0), &info), NVML_SUCCESS);
  EXPECT_EQ(info.healthSummary, NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY);
  info.version = 1;
  EXPECT_EQ(nvmlDeviceGetGpuFabricInfoV(gpu_device(0), &info), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
}

TEST_F(DriverTest, MissingFunctionsAreNotSupported) {
  unsigned count = 0;
  EXPECT_EQ(nvmlDeviceGetSupportedVgpus(gpu_device(0), &count, nullptr), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(nvmlDeviceGetFanSpeed(gpu_device(0), &count), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(nvmlDeviceGetNumaNodeId(gpu_device(0), &count), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(nvmlSystemSetNvlinkBwMode(0), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(nvmlDeviceGetSupportedVgpus(nullptr, &count, nullptr), NVML_ERROR_INVALID_ARGUMENT);
}

// The library exports every function that the header declares.
TEST(SimulatedLibrary, ExportsEveryDeclaredFunction) {
  std::stringstream header;
  header << std::ifstream(GPULET_NVML_HEADER).rdbuf();
  std::set<std::string> declared;
  // "nvmlReturn_t DECLDIR nvmlInit_v2(void);", and "const DECLDIR char* nvmlErrorString(...)".
  const std::string text = header.str();
  const std::string marker = "DECLDIR ";
  for (auto at = text.find(marker); at != std::string::npos; at = text.find(marker, at + 1)) {
    const auto start = at + marker.size() + (text.compare(at + marker.size(), 6, "char* ") == 0 ? 6 : 0);
    const auto end = text.find_first_of(" (", start);
    if (text.compare(start, 4, "nvml") == 0 && end - start < 100)
      declared.insert(text.substr(start, end - start));
  }
  EXPECT_TRUE(declared.contains("nvmlErrorString"));
  EXPECT_GT(declared.size(), 400u);
  void* library = dlopen(GPULET_SIM_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  for (const std::string& name : declared) EXPECT_NE(dlsym(library, name.c_str()), nullptr) << name;
  dlclose(library);
}

}  // namespace

// What monitors poll.

namespace {

nvmlReturn_t uncorrected(nvmlDevice_t device, nvmlMemoryLocation_t location, unsigned long long* count) {
  return nvmlDeviceGetMemoryErrorCounter(device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC,
                                         location, count);
}

TEST_F(DriverTest, EccByLocationAndTheSramThreshold) {
  unsigned long long count = 0;
  edit_machine()->gpus[0].ecc[1][0].by_location[NVML_MEMORY_LOCATION_SRAM] = 4;
  ASSERT_EQ(uncorrected(gpu_device(0), NVML_MEMORY_LOCATION_SRAM, &count), NVML_SUCCESS);
  EXPECT_EQ(count, 4u);
  ASSERT_EQ(uncorrected(gpu_device(0), NVML_MEMORY_LOCATION_DRAM, &count), NVML_SUCCESS);
  EXPECT_EQ(count, 0u);
  nvmlEccSramErrorStatus_t status{};
  status.version = nvmlEccSramErrorStatus_v1;
  ASSERT_EQ(nvmlDeviceGetSramEccErrorStatus(gpu_device(0), &status), NVML_SUCCESS);
  EXPECT_EQ(status.volatileUncSecDed, 4u);
  EXPECT_EQ(status.bThresholdExceeded, 0u);
  edit_machine()->gpus[0].sram_threshold = 1;
  ASSERT_EQ(nvmlDeviceGetSramEccErrorStatus(gpu_device(0), &status), NVML_SUCCESS);
  EXPECT_EQ(status.bThresholdExceeded, 1u);
  edit_machine()->gpus[0].architecture = NVML_DEVICE_ARCH_VOLTA;
  EXPECT_EQ(uncorrected(gpu_device(0), NVML_MEMORY_LOCATION_SRAM, &count), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(uncorrected(gpu_device(0), NVML_MEMORY_LOCATION_L2_CACHE, &count), NVML_SUCCESS);
  edit_machine()->gpus[0].ecc_current = 0;
  EXPECT_EQ(uncorrected(gpu_device(0), NVML_MEMORY_LOCATION_DRAM, &count), NVML_ERROR_NOT_SUPPORTED);
}

TEST_F(DriverTest, ValidatesTheInforom) {
  EXPECT_EQ(nvmlDeviceValidateInforom(gpu_device(0)), NVML_SUCCESS);
  edit_machine()->gpus[0].faults.inforom = 1;
  EXPECT_EQ(nvmlDeviceValidateInforom(gpu_device(0)), NVML_ERROR_CORRUPTED_INFOROM);
  EXPECT_EQ(nvmlDeviceValidateInforom(gpu_device(1)), NVML_SUCCESS);
  edit_machine()->gpus[1].inforom_image[0] = '\0';
  EXPECT_EQ(nvmlDeviceValidateInforom(gpu_device(1)), NVML_ERROR_NOT_SUPPORTED);
  const nvmlDevice_t third = gpu_device(2);
  edit_machine()->gpus[2].faults.lost = 1;
  EXPECT_EQ(nvmlDeviceValidateInforom(third), NVML_ERROR_GPU_IS_LOST);
}

}  // namespace
}  // namespace gpulet::sim
