// The nvidia-smi of a simulated driver root, with the options that scripts and the start of MPS daemons use.
// It loads the libnvidia-ml.so.1 of its root and uses only NVML's C ABI.
//
//   nvidia-smi [-L | -q | -r | -c MODE | -mig 0|1] [-i GPU,…]    nvidia-smi topo -m
#include <dlfcn.h>
#include <limits.h>
#include <nvml.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

// nvmlDeviceGetTemperature: every driver has it.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

void* library = nullptr;

// Calls a function of the library by name; NVML_ERROR_FUNCTION_NOT_FOUND if it is missing.
template <class Function, class... Values>
nvmlReturn_t call_nvml(const char* name, Values... values) {
  auto* function = reinterpret_cast<Function*>(dlsym(library, name));
  return function == nullptr ? NVML_ERROR_FUNCTION_NOT_FOUND : function(values...);
}
#define NVML(function, ...) call_nvml<decltype(function)>(#function __VA_OPT__(, ) __VA_ARGS__)

bool open_library() {
  char program[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof(program));
  if (length > 0) {
    std::string directory(program, static_cast<std::size_t>(length));
    directory.resize(directory.rfind('/'));
    for (const char* place : {"/../lib/x86_64-linux-gnu/", "/../lib/aarch64-linux-gnu/", "/"}) {
      library = dlopen((directory + place + "libnvidia-ml.so.1").c_str(), RTLD_NOW);
      if (library != nullptr) return true;
    }
  }
  library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  return library != nullptr;
}

int print_failure(nvmlReturn_t result, const char* what) {
  std::printf("%s: error %d\n", what, static_cast<int>(result));
  return result == NVML_ERROR_GPU_IS_LOST ? 15 : static_cast<int>(result);
}

struct Gpu {
  unsigned index;
  nvmlDevice_t device;
};

std::string query_text(const char* name, nvmlDevice_t device) {
  char buffer[128] = "";
  auto* function = reinterpret_cast<nvmlReturn_t (*)(nvmlDevice_t, char*, unsigned)>(dlsym(library, name));
  if (function == nullptr || function(device, buffer, sizeof(buffer)) != NVML_SUCCESS) return "N/A";
  return buffer;
}
#define NVML_TEXT(function, device) query_text(#function, device)

std::string with_unit(unsigned value, const char* unit) { return std::to_string(value) + unit; }

void print_list(const std::vector<Gpu>& gpus) {
  for (const Gpu& gpu : gpus) {
    std::printf("GPU %u: %s (UUID: %s)\n", gpu.index, NVML_TEXT(nvmlDeviceGetName, gpu.device).c_str(),
                NVML_TEXT(nvmlDeviceGetUUID, gpu.device).c_str());
    nvmlDevice_t mig = nullptr;
    for (unsigned i = 0; NVML(nvmlDeviceGetMigDeviceHandleByIndex, gpu.device, i, &mig) == NVML_SUCCESS;
         ++i) {
      const std::string name = NVML_TEXT(nvmlDeviceGetName, mig);
      const auto at = name.find("MIG ");
      std::printf("  MIG %-13s Device %2u: (UUID: %s)\n",
                  at == std::string::npos ? "" : name.c_str() + at + 4, i,
                  NVML_TEXT(nvmlDeviceGetUUID, mig).c_str());
    }
  }
}

std::string value_text(nvmlReturn_t result, unsigned value, const char* unit) {
  return result == NVML_SUCCESS             ? with_unit(value, unit)
         : result == NVML_ERROR_GPU_IS_LOST ? "GPU is lost"
                                            : "N/A";
}

void print_query(const std::vector<Gpu>& gpus, const std::string& driver, int cuda) {
  std::printf(
      "\n==============NVSMI LOG==============\n\nDriver Version                            : %s\n"
      "CUDA Version                              : %d.%d\n\nAttached GPUs                             : "
      "%zu\n",
      driver.c_str(), cuda / 1000, cuda % 1000 / 10, gpus.size());
  for (const Gpu& gpu : gpus) {
    nvmlPciInfo_t pci{};
    nvmlMemory_v2_t memory{};
    memory.version = nvmlMemory_v2;
    unsigned temperature = 0;
    unsigned power = 0;
    NVML(nvmlDeviceGetPciInfo_v3, gpu.device, &pci);
    NVML(nvmlDeviceGetMemoryInfo_v2, gpu.device, &memory);
    const auto hot = NVML(nvmlDeviceGetTemperature, gpu.device, NVML_TEMPERATURE_GPU, &temperature);
    const auto drawn = NVML(nvmlDeviceGetPowerUsage, gpu.device, &power);
    std::printf(
        "GPU %s\n    Product Name                          : %s\n    Serial Number                         : "
        "%s\n"
        "    GPU UUID                              : %s\n    VBIOS Version                         : %s\n"
        "    PCI\n        Device Id                         : 0x%08X\n        Bus Id                         "
        "   : %s\n"
        "        Sub System Id                     : 0x%08X\n    FB Memory Usage\n"
        "        Total                             : %llu MiB\n        Used                              : "
        "%llu MiB\n"
        "    Temperature\n        GPU Current Temp                  : %s\n"
        "    GPU Power Readings\n        Average Power Draw                : %s\n",
        pci.busId, NVML_TEXT(nvmlDeviceGetName, gpu.device).c_str(),
        NVML_TEXT(nvmlDeviceGetSerial, gpu.device).c_str(), NVML_TEXT(nvmlDeviceGetUUID, gpu.device).c_str(),
        NVML_TEXT(nvmlDeviceGetVbiosVersion, gpu.device).c_str(), pci.pciDeviceId, pci.busId,
        pci.pciSubSystemId, memory.total >> 20, memory.used >> 20, value_text(hot, temperature, " C").c_str(),
        value_text(drawn, power / 1000, " W").c_str());
  }
}

void print_table(const std::vector<Gpu>& gpus, const std::string& driver, int cuda) {
  std::printf("NVIDIA-SMI %s    Driver Version: %s    CUDA Version: %d.%d\n", driver.c_str(), driver.c_str(),
              cuda / 1000, cuda % 1000 / 10);
  std::printf("%3s  %-26s  %-16s  %11s  %5s  %13s  %21s  %4s\n", "GPU", "Name", "Bus-Id", "Persistence",
              "Temp", "Pwr:Usage/Cap", "Memory-Usage", "Util");
  for (const Gpu& gpu : gpus) {
    nvmlPciInfo_t pci{};
    nvmlMemory_v2_t memory{};
    memory.version = nvmlMemory_v2;
    nvmlUtilization_t busy{};
    nvmlEnableState_t persistence = NVML_FEATURE_DISABLED;
    unsigned temperature = 0;
    unsigned power = 0;
    unsigned limit = 0;
    NVML(nvmlDeviceGetPciInfo_v3, gpu.device, &pci);
    if (NVML(nvmlDeviceGetMemoryInfo_v2, gpu.device, &memory) == NVML_ERROR_GPU_IS_LOST) {
      std::printf("%3u  ERR! GPU is lost\n", gpu.index);
      continue;
    }
    NVML(nvmlDeviceGetPersistenceMode, gpu.device, &persistence);
    const auto hot = NVML(nvmlDeviceGetTemperature, gpu.device, NVML_TEMPERATURE_GPU, &temperature);
    const auto drawn = NVML(nvmlDeviceGetPowerUsage, gpu.device, &power);
    const auto capped = NVML(nvmlDeviceGetEnforcedPowerLimit, gpu.device, &limit);
    const auto used = NVML(nvmlDeviceGetUtilizationRates, gpu.device, &busy);
    const std::string watts =
        value_text(drawn, power / 1000, "W") + " / " + value_text(capped, limit / 1000, "W");
    const std::string mebibytes =
        std::to_string(memory.used >> 20) + "MiB / " + std::to_string(memory.total >> 20) + "MiB";
    std::printf("%3u  %-26s  %-16s  %11s  %5s  %13s  %21s  %4s\n", gpu.index,
                NVML_TEXT(nvmlDeviceGetName, gpu.device).c_str(), pci.busId,
                persistence == NVML_FEATURE_ENABLED ? "On" : "Off", value_text(hot, temperature, "C").c_str(),
                watts.c_str(), mebibytes.c_str(), value_text(used, busy.gpu, "%").c_str());
  }
}

// Returns the connection of two GPUs: "NV12", "PIX"...
std::string topology_between(const Gpu& a, const Gpu& b) {
  if (a.index == b.index) return "X";
  nvmlPciInfo_t there{};
  NVML(nvmlDeviceGetPciInfo_v3, b.device, &there);
  unsigned direct = 0;
  unsigned switched = 0;
  unsigned switched_there = 0;
  for (unsigned link = 0; link < NVML_NVLINK_MAX_LINKS; ++link) {
    nvmlIntNvLinkDeviceType_t type{};
    nvmlPciInfo_t remote{};
    if (NVML(nvmlDeviceGetNvLinkRemoteDeviceType, b.device, link, &type) == NVML_SUCCESS)
      switched_there += type == NVML_NVLINK_DEVICE_TYPE_SWITCH;
    if (NVML(nvmlDeviceGetNvLinkRemoteDeviceType, a.device, link, &type) != NVML_SUCCESS) continue;
    switched += type == NVML_NVLINK_DEVICE_TYPE_SWITCH;
    if (NVML(nvmlDeviceGetNvLinkRemotePciInfo_v2, a.device, link, &remote) == NVML_SUCCESS)
      direct += std::strcmp(remote.busId, there.busId) == 0;
  }
  const unsigned links = direct != 0 ? direct : switched < switched_there ? switched : switched_there;
  if (links != 0) return "NV" + std::to_string(links);
  nvmlGpuTopologyLevel_t level{};
  if (NVML(nvmlDeviceGetTopologyCommonAncestor, a.device, b.device, &level) != NVML_SUCCESS) return "N/A";
  switch (level) {
    case NVML_TOPOLOGY_INTERNAL:
    case NVML_TOPOLOGY_SINGLE:
      return "PIX";
    case NVML_TOPOLOGY_MULTIPLE:
      return "PXB";
    case NVML_TOPOLOGY_HOSTBRIDGE:
      return "PHB";
    case NVML_TOPOLOGY_NODE:
      return "NODE";
    default:
      return "SYS";
  }
}

// Formats a CPU set as "0-19,40-59".
std::string cpu_affinity_text(const Gpu& gpu) {
  constexpr unsigned kWords = 16;
  unsigned long words[kWords] = {};
  if (NVML(nvmlDeviceGetCpuAffinity, gpu.device, kWords, words) != NVML_SUCCESS) return "N/A";
  const auto has = [&words](unsigned cpu) {
    return cpu < kWords * 64 && (words[cpu / 64] >> cpu % 64 & 1) != 0;
  };
  std::string list;
  for (unsigned cpu = 0; cpu < kWords * 64; ++cpu) {
    if (!has(cpu)) continue;
    const unsigned first = cpu;
    while (has(cpu + 1)) ++cpu;
    list +=
        (list.empty() ? "" : ",") + std::to_string(first) + (cpu == first ? "" : "-" + std::to_string(cpu));
  }
  return list;
}

void print_topology(const std::vector<Gpu>& gpus) {
  std::printf("%-6s", "");
  for (const Gpu& gpu : gpus) std::printf("%-7s", ("GPU" + std::to_string(gpu.index)).c_str());
  std::printf("%-18s%s\n", "CPU Affinity", "NUMA Affinity");
  for (const Gpu& row : gpus) {
    std::printf("%-6s", ("GPU" + std::to_string(row.index)).c_str());
    for (const Gpu& column : gpus) std::printf("%-7s", topology_between(row, column).c_str());
    unsigned long nodes = 0;
    const bool known = NVML(nvmlDeviceGetMemoryAffinity, row.device, 1, &nodes,
                            static_cast<nvmlAffinityScope_t>(NVML_AFFINITY_SCOPE_NODE)) == NVML_SUCCESS;
    std::printf("%-18s%s\n", cpu_affinity_text(row).c_str(),
                known && nodes != 0 ? std::to_string(__builtin_ctzl(nodes)).c_str() : "N/A");
  }
}

int set_compute_mode(const std::vector<Gpu>& gpus, const std::string& mode) {
  nvmlComputeMode_t wanted{};
  if (mode == "0" || mode == "DEFAULT")
    wanted = NVML_COMPUTEMODE_DEFAULT;
  else if (mode == "2" || mode == "PROHIBITED")
    wanted = NVML_COMPUTEMODE_PROHIBITED;
  else if (mode == "3" || mode == "EXCLUSIVE_PROCESS")
    wanted = NVML_COMPUTEMODE_EXCLUSIVE_PROCESS;
  else
    return print_failure(NVML_ERROR_INVALID_ARGUMENT, mode.c_str());
  for (const Gpu& gpu : gpus) {
    if (const auto result = NVML(nvmlDeviceSetComputeMode, gpu.device, wanted))
      return print_failure(result, "compute mode");
    std::printf("Set compute mode to %s for GPU %u.\n", mode.c_str(), gpu.index);
  }
  std::printf("All done.\n");
  return 0;
}

int set_mig_mode(const std::vector<Gpu>& gpus, unsigned mode) {
  for (const Gpu& gpu : gpus) {
    nvmlReturn_t activation = NVML_SUCCESS;
    if (const auto result = NVML(nvmlDeviceSetMigMode, gpu.device, mode, &activation))
      return print_failure(result, "MIG mode");
    if (activation != NVML_SUCCESS)
      std::printf("Warning: MIG mode is in pending %s state for GPU %u\n", mode != 0 ? "enable" : "disable",
                  gpu.index);
    else
      std::printf("%s MIG Mode for GPU %u\n", mode != 0 ? "Enabled" : "Disabled", gpu.index);
  }
  std::printf("All done.\n");
  return 0;
}

// NVML has no reset: NVIDIA's program uses the kernel module. The simulated library has a private call. All
// GPUs of the command are reset together, or none.
int reset_gpus(const std::vector<Gpu>& gpus) {
  using Reset = nvmlReturn_t (*)(const nvmlDevice_t*, unsigned, char*, unsigned);
  auto* function = reinterpret_cast<Reset>(dlsym(library, "nvmlSimulatedReset"));
  std::vector<nvmlDevice_t> devices;
  std::string names;
  for (const Gpu& gpu : gpus) {
    devices.push_back(gpu.device);
    names += (names.empty() ? "" : ", ") + std::to_string(gpu.index);
  }
  char reason[512] = "";
  const nvmlReturn_t result =
      function == nullptr
          ? NVML_ERROR_NOT_SUPPORTED
          : function(devices.data(), static_cast<unsigned>(devices.size()), reason, sizeof(reason));
  if (result == NVML_ERROR_IN_USE) {
    std::printf("GPU %s could not be reset: %s\n", names.c_str(),
                reason[0] != 0 ? reason : "In use by another client");
    return static_cast<int>(result);
  }
  if (result != NVML_SUCCESS) return print_failure(result, ("GPU " + names + " could not be reset").c_str());
  for (const Gpu& gpu : gpus) std::printf("GPU %u was successfully reset.\n", gpu.index);
  std::printf("All done.\n");
  return 0;
}

struct Options {
  bool list = false, query = false, reset = false, topology = false;
  std::string gpu, compute_mode, mig_mode;
};

bool parse_options(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "-L" || word == "--list-gpus")
      options.list = true;
    else if (word == "-q" || word == "--query")
      options.query = true;
    else if (word == "-r" || word == "--gpu-reset")
      options.reset = true;
    else if (word == "topo" && has_value &&
             (std::strcmp(argv[i + 1], "-m") == 0 || std::strcmp(argv[i + 1], "--matrix") == 0))
      options.topology = true, ++i;
    else if ((word == "-i" || word == "--id") && has_value)
      options.gpu = argv[++i];
    else if ((word == "-c" || word == "--compute-mode") && has_value)
      options.compute_mode = argv[++i];
    else if ((word == "-mig" || word == "--multi-instance-gpu") && has_value)
      options.mig_mode = argv[++i];
    else
      return false;
  }
  return options.mig_mode.empty() || options.mig_mode == "0" || options.mig_mode == "1";
}

nvmlReturn_t find_gpus(const std::string& wanted, std::vector<Gpu>& gpus) {
  unsigned count = 0;
  if (const auto result = NVML(nvmlDeviceGetCount_v2, &count)) return result;
  const auto is_listed = [&](const std::string& name) {
    return ("," + wanted + ",").find("," + name + ",") != std::string::npos;
  };
  for (unsigned i = 0; i < count; ++i) {
    nvmlDevice_t device = nullptr;
    if (NVML(nvmlDeviceGetHandleByIndex_v2, i, &device) != NVML_SUCCESS) {
      std::printf("Unable to determine the device handle for GPU %u: GPU is lost.\n", i);
      continue;
    }
    nvmlPciInfo_t pci{};
    NVML(nvmlDeviceGetPciInfo_v3, device, &pci);
    const bool is_wanted =
        wanted.empty() || is_listed(std::to_string(i)) || is_listed(NVML_TEXT(nvmlDeviceGetUUID, device)) ||
        strcasecmp(wanted.c_str(), pci.busId) == 0 || strcasecmp(wanted.c_str(), pci.busIdLegacy) == 0;
    if (is_wanted) gpus.push_back({i, device});
  }
  // One of a list that is not there fails the whole command.
  const auto names = wanted.empty() ? 0 : 1 + std::count(wanted.begin(), wanted.end(), ',');
  return gpus.empty() || static_cast<long>(gpus.size()) < names ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

int run_action(const Options& options, const std::vector<Gpu>& gpus) {
  char driver[80] = "";
  int cuda = 0;
  NVML(nvmlSystemGetDriverVersion, driver, unsigned{sizeof(driver)});
  NVML(nvmlSystemGetCudaDriverVersion_v2, &cuda);
  if (options.reset) return reset_gpus(gpus);
  if (!options.compute_mode.empty()) return set_compute_mode(gpus, options.compute_mode);
  if (!options.mig_mode.empty()) return set_mig_mode(gpus, options.mig_mode == "1" ? 1 : 0);
  if (options.list)
    print_list(gpus);
  else if (options.topology)
    print_topology(gpus);
  else if (options.query)
    print_query(gpus, driver, cuda);
  else
    print_table(gpus, driver, cuda);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse_options(argc, argv, options)) {
    std::printf(
        "usage: nvidia-smi [-L | -q | -r | -c MODE | -mig 0|1] [-i GPU]\n       nvidia-smi topo -m\n");
    return 2;
  }
  if (!open_library()) {
    std::printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n");
    return 12;
  }
  if (const auto result = NVML(nvmlInit_v2)) {
    std::printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n");
    return static_cast<int>(result);
  }
  std::vector<Gpu> gpus;
  const nvmlReturn_t found = find_gpus(options.gpu, gpus);
  const int status =
      found != NVML_SUCCESS ? (std::printf("No devices were found\n"), 6) : run_action(options, gpus);
  NVML(nvmlShutdown);
  return status;
}
