#include "nvml/session.h"

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

#include "base/text.h"
#include "nvml/library.h"
#include "nvml/usage.h"
#include "nvml/worker.h"

// Calls a function of this Session's library: GPULET_NVML(nvmlDeviceGetName, arguments…) returns a
// Status.
#define GPULET_NVML(function, ...) \
  call_nvml(library_->api(), library_->api().function, #function, __VA_ARGS__)

namespace gpulet::nvml {
namespace {

std::uint64_t next_generation() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

// Counts the initialisations of each loaded library. NVML counts them too, but starts again at one
// after a reload: a Session that a hanging call kept alive past the next initialisation must not
// undo that one, so the last Session does all shutdowns. Decision and call are one step under the
// lock; otherwise a shutdown could end an initialisation that began meanwhile. Only the driver's
// own threads wait here, and only for a library whose driver would block them anyway.
class Initializations {
 public:
  static Initializations& for_library(const std::string& library) {
    static auto* const mutex = new std::mutex;  // driver threads may outlive every static destructor
    static auto* const all = new std::map<std::string, Initializations>;
    const std::lock_guard lock(*mutex);
    return (*all)[library];
  }
  Status initialize_driver(const Api& api, std::uint64_t generation) {
    const std::lock_guard lock(mutex_);
    GPULET_TRY(call_nvml(api, api.nvmlInit_v2, "nvmlInit_v2"));
    live_.insert(generation);
    return {};
  }
  void shut_down_driver(const Api& api, std::uint64_t generation) {
    const std::lock_guard lock(mutex_);
    live_.erase(generation);
    if (live_.upper_bound(generation) != live_.end()) {
      ++owed_;
      return;
    }
    const unsigned times = live_.empty() ? 1 + std::exchange(owed_, 0) : 1;
    for (unsigned i = 0; i < times && api.nvmlShutdown != nullptr; ++i) api.nvmlShutdown();
  }

 private:
  std::mutex mutex_;
  std::set<std::uint64_t> live_;
  unsigned owed_ = 0;
};

PciInfo to_pci(const nvmlPciInfo_t& info) {
  return {info.domain, info.bus, info.device, info.pciDeviceId, info.pciSubSystemId};
}

// Source: nvml.h, nvmlBrandType_t; the texts are nvidia-smi's.
std::string brand_name(nvmlBrandType_t brand) {
  switch (brand) {
    case NVML_BRAND_QUADRO:
      return "Quadro";
    case NVML_BRAND_TESLA:
      return "Tesla";
    case NVML_BRAND_NVS:
      return "NVS";
    case NVML_BRAND_GRID:
      return "Grid";
    case NVML_BRAND_GEFORCE:
      return "GeForce";
    case NVML_BRAND_TITAN:
      return "Titan";
    case NVML_BRAND_NVIDIA_VAPPS:
      return "NVIDIA Virtual Applications";
    case NVML_BRAND_NVIDIA_VPC:
      return "NVIDIA Virtual PC";
    case NVML_BRAND_NVIDIA_VCS:
      return "NVIDIA Virtual Compute Server";
    case NVML_BRAND_NVIDIA_VWS:
      return "NVIDIA RTX Virtual Workstation";
    case NVML_BRAND_NVIDIA_CLOUD_GAMING:
      return "NVIDIA Cloud Gaming";
    case NVML_BRAND_QUADRO_RTX:
      return "Quadro RTX";
    case NVML_BRAND_NVIDIA_RTX:
      return "NVIDIA RTX";
    case NVML_BRAND_NVIDIA:
      return "NVIDIA";
    case NVML_BRAND_GEFORCE_RTX:
      return "GeForce RTX";
    case NVML_BRAND_TITAN_RTX:
      return "Titan RTX";
    default:
      return "Unknown";
  }
}

template <class Info>
FabricInfo to_fabric(const Info& info) {
  FabricInfo fabric;
  fabric.completed = info.state == NVML_GPU_FABRIC_STATE_COMPLETED && info.status == NVML_SUCCESS;
  fabric.clique_id = info.cliqueId;
  static constexpr char kDigits[] = "0123456789abcdef";
  bool zero = true;
  for (std::size_t i = 0; i < sizeof info.clusterUuid; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) fabric.cluster_uuid += '-';
    fabric.cluster_uuid += kDigits[info.clusterUuid[i] >> 4];
    fabric.cluster_uuid += kDigits[info.clusterUuid[i] & 0xf];
    zero = zero && info.clusterUuid[i] == 0;
  }
  if (zero) fabric.cluster_uuid.clear();
  return fabric;
}

}  // namespace

bool is_version_at_least(std::string_view version, std::string_view floor) {
  const auto found = text::split(version, '.');
  const auto minimum = text::split(floor, '.');
  for (std::size_t i = 0; i < minimum.size(); ++i) {
    const auto have = i < found.size() ? text::parse_unsigned(found[i]) : 0;
    const auto need = text::parse_unsigned(minimum[i]);
    if (!have || !need) return false;
    if (*have != *need) return *have > *need;
  }
  return !found.empty();
}

struct Session::Closed {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
};

Session::CloseNotifier::~CloseNotifier() {
  {
    const std::lock_guard lock(closed->mutex);
    closed->done = true;
  }
  closed->changed.notify_all();
}

Session::Session(std::shared_ptr<const Library> library, std::uint64_t generation)
    : close_notifier_{std::make_shared<Closed>()}, library_(std::move(library)), generation_(generation) {}

const std::string& Session::library_path() const { return library_->library_path(); }

Session::~Session() {
  Initializations::for_library(library_->library_path()).shut_down_driver(library_->api(), generation_);
}

bool Session::shut_down(std::shared_ptr<const Session> session, std::chrono::milliseconds patience) {
  if (!session) return true;
  const auto closed = session->close_notifier_.closed;
  session.reset();
  std::unique_lock lock(closed->mutex);
  return closed->changed.wait_for(lock, patience, [&] { return closed->done; });
}

Result<std::shared_ptr<const Session>> Session::open_session(
    const std::string& driver_root, const std::vector<std::string>& library_directories) {
  GPULET_TRY_ASSIGN(auto library, Library::load_library(driver_root, library_directories));
  const Api& api = library->api();
  const std::uint64_t generation = next_generation();
  GPULET_TRY(
      Initializations::for_library(library->library_path())
          .initialize_driver(api, generation)
          .map_error([&](const Error& error) {
            // A library without that function is not a driver, whatever its name.
            const Code code = error.code() == Code::kPermissionDenied ? error.code() : Code::kUnavailable;
            return Error(code, "cannot initialise the NVIDIA driver: " + error.message(), error.subject());
          }));
  std::shared_ptr<Session> session(new Session(library, generation), delete_off_loop<Session>);
  std::array<char, 96> version{};
  GPULET_TRY(call_nvml(api, api.nvmlSystemGetDriverVersion, "nvmlSystemGetDriverVersion", version.data(),
                       static_cast<unsigned>(version.size())));
  session->driver_version_ = version.data();
  if (!is_version_at_least(session->driver_version_, kOldestDriver)) {
    return fail(Code::kUnsupported, "NVIDIA driver " + session->driver_version_ +
                                        " is too old: " + std::string(kOldestDriver) + " or later is needed");
  }
  return std::shared_ptr<const Session>(std::move(session));
}

Status Session::stale(Device device) const {
  if (device.generation == generation_) return {};
  return fail(Code::kUnavailable, "the handle belongs to an earlier initialisation of the driver");
}

Result<unsigned> Session::cuda_version() const {
  int version = 0;
  // The first asks libcuda.so.1, which the loader of a container does not find below its driver root; the
  // second then returns the version that NVML was built with, and a driver's libraries are of one version.
  if (!GPULET_NVML(nvmlSystemGetCudaDriverVersion_v2, &version))
    GPULET_TRY(GPULET_NVML(nvmlSystemGetCudaDriverVersion, &version));
  return static_cast<unsigned>(version);
}

Result<std::string> Session::nvml_version() const {
  std::array<char, 96> text{};
  GPULET_TRY(GPULET_NVML(nvmlSystemGetNVMLVersion, text.data(), static_cast<unsigned>(text.size())));
  return std::string(text.data());
}

Result<unsigned> Session::device_count() const {
  unsigned count = 0;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetCount_v2, &count));
  return count;
}

Result<Device> Session::device(unsigned index) const {
  nvmlDevice_t device = nullptr;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetHandleByIndex_v2, index, &device));
  return Device{device, generation_};
}

Result<DeviceUuid> Session::device_uuid(Device device) const {
  GPULET_TRY(stale(device));
  std::array<char, NVML_DEVICE_UUID_V2_BUFFER_SIZE> text{};
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetUUID, raw(device), text.data(), static_cast<unsigned>(text.size())));
  return DeviceUuid(text.data());
}

Result<std::string> Session::product_name(Device device) const {
  GPULET_TRY(stale(device));
  std::array<char, NVML_DEVICE_NAME_V2_BUFFER_SIZE> text{};
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetName, raw(device), text.data(), static_cast<unsigned>(text.size())));
  return std::string(text.data());
}

Result<std::string> Session::product_brand(Device device) const {
  GPULET_TRY(stale(device));
  nvmlBrandType_t brand = NVML_BRAND_UNKNOWN;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetBrand, raw(device), &brand));
  return brand_name(brand);
}

Result<bool> Session::is_vgpu(Device device) const {
  GPULET_TRY(stale(device));
  nvmlGpuVirtualizationMode_t mode = NVML_GPU_VIRTUALIZATION_MODE_NONE;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetVirtualizationMode, raw(device), &mode));
  return mode == NVML_GPU_VIRTUALIZATION_MODE_VGPU;
}

Result<bool> Session::display_attached(Device device) const {
  GPULET_TRY(stale(device));
  nvmlEnableState_t screen = NVML_FEATURE_DISABLED, active = NVML_FEATURE_DISABLED;
  const Status connected = GPULET_NVML(nvmlDeviceGetDisplayMode, raw(device), &screen);
  const Status initialized = GPULET_NVML(nvmlDeviceGetDisplayActive, raw(device), &active);
  if (!connected && !initialized) return fail(initialized.error());
  return screen == NVML_FEATURE_ENABLED || active == NVML_FEATURE_ENABLED;
}

Result<std::string> Session::serial(Device device) const {
  GPULET_TRY(stale(device));
  std::array<char, NVML_DEVICE_SERIAL_BUFFER_SIZE> text{};
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetSerial, raw(device), text.data(), static_cast<unsigned>(text.size())));
  return std::string(text.data());
}

Result<unsigned> Session::minor_number(Device device) const {
  GPULET_TRY(stale(device));
  unsigned minor = 0;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetMinorNumber, raw(device), &minor));
  return minor;
}

Result<ComputeCapability> Session::compute_capability(Device device) const {
  GPULET_TRY(stale(device));
  int major = 0, minor = 0;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetCudaComputeCapability, raw(device), &major, &minor));
  return ComputeCapability{static_cast<unsigned>(major), static_cast<unsigned>(minor)};
}

Result<Bytes> Session::memory_total(Device device) const {
  GPULET_TRY(stale(device));
  nvmlMemory_t memory{};
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetMemoryInfo, raw(device), &memory));
  return Bytes{memory.total};
}

Result<PciInfo> Session::pci(Device device) const {
  GPULET_TRY(stale(device));
  nvmlPciInfo_t info{};
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetPciInfo_v3, raw(device), &info));
  return to_pci(info);
}

Result<MigMode> Session::mig_mode(Device gpu) const {
  GPULET_TRY(stale(gpu));
  unsigned current = 0, pending = 0;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetMigMode, raw(gpu), &current, &pending));
  return MigMode{current == NVML_DEVICE_MIG_ENABLE, pending == NVML_DEVICE_MIG_ENABLE};
}

Result<unsigned> Session::max_mig_devices(Device gpu) const {
  GPULET_TRY(stale(gpu));
  unsigned count = 0;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetMaxMigDeviceCount, raw(gpu), &count));
  return count;
}

Result<Device> Session::mig_device(Device gpu, unsigned index) const {
  GPULET_TRY(stale(gpu));
  nvmlDevice_t device = nullptr;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetMigDeviceHandleByIndex, raw(gpu), index, &device));
  return Device{device, generation_};
}

Result<unsigned> Session::gpu_instance_id(Device mig) const {
  GPULET_TRY(stale(mig));
  unsigned id = 0;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetGpuInstanceId, raw(mig), &id));
  return id;
}

Result<unsigned> Session::compute_instance_id(Device mig) const {
  GPULET_TRY(stale(mig));
  unsigned id = 0;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetComputeInstanceId, raw(mig), &id));
  return id;
}

Result<Attributes> Session::attributes(Device mig) const {
  GPULET_TRY(stale(mig));
  nvmlDeviceAttributes_t a{};
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetAttributes_v2, raw(mig), &a));
  return Attributes{a.multiprocessorCount,   a.sharedCopyEngineCount,     a.sharedDecoderCount,
                    a.sharedEncoderCount,    a.sharedJpegCount,           a.sharedOfaCount,
                    a.gpuInstanceSliceCount, a.computeInstanceSliceCount, a.memorySizeMB};
}

Result<GpuInstanceInfo> Session::gpu_instance_info(Device gpu, unsigned gpu_instance_id) const {
  GPULET_TRY(stale(gpu));
  nvmlGpuInstance_t instance = nullptr;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetGpuInstanceById, raw(gpu), gpu_instance_id, &instance));
  nvmlGpuInstanceInfo_t info{};
  GPULET_TRY(GPULET_NVML(nvmlGpuInstanceGetInfo, instance, &info));
  return GpuInstanceInfo{info.profileId, {info.placement.start, info.placement.size}};
}

Result<bool> Session::nvlink_active(Device gpu, unsigned link) const {
  GPULET_TRY(stale(gpu));
  nvmlEnableState_t state = NVML_FEATURE_DISABLED;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetNvLinkState, raw(gpu), link, &state));
  return state == NVML_FEATURE_ENABLED;
}

Result<LinkRemote> Session::nvlink_remote_type(Device gpu, unsigned link) const {
  GPULET_TRY(stale(gpu));
  nvmlIntNvLinkDeviceType_t type = NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetNvLinkRemoteDeviceType, raw(gpu), link, &type));
  if (type == NVML_NVLINK_DEVICE_TYPE_GPU) return LinkRemote::kGpu;
  return type == NVML_NVLINK_DEVICE_TYPE_SWITCH ? LinkRemote::kSwitch : LinkRemote::kOther;
}

Result<PciInfo> Session::nvlink_remote(Device gpu, unsigned link) const {
  GPULET_TRY(stale(gpu));
  nvmlPciInfo_t info{};
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetNvLinkRemotePciInfo_v2, raw(gpu), link, &info));
  return to_pci(info);
}

Result<FabricInfo> Session::fabric_info(Device gpu) const {
  GPULET_TRY(stale(gpu));
  // The second version of the struct is the oldest of this call, and has all fields used here.
  nvmlGpuFabricInfoV_t info{};
  info.version = nvmlGpuFabricInfo_v2;
  const auto versioned = GPULET_NVML(nvmlDeviceGetGpuFabricInfoV, raw(gpu), &info);
  if (versioned) return to_fabric(info);
  if (versioned.error().code() != Code::kUnsupported) return fail(versioned.error());
  nvmlGpuFabricInfo_t first{};
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetGpuFabricInfo, raw(gpu), &first));
  return to_fabric(first);
}

Result<Ancestor> Session::common_ancestor(Device a, Device b) const {
  GPULET_TRY(stale(a));
  GPULET_TRY(stale(b));
  nvmlGpuTopologyLevel_t level = NVML_TOPOLOGY_SYSTEM;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetTopologyCommonAncestor, raw(a), raw(b), &level));
  switch (level) {
    case NVML_TOPOLOGY_INTERNAL:
      return Ancestor::kInternal;
    case NVML_TOPOLOGY_SINGLE:
      return Ancestor::kSingle;
    case NVML_TOPOLOGY_MULTIPLE:
      return Ancestor::kMultiple;
    case NVML_TOPOLOGY_HOSTBRIDGE:
      return Ancestor::kHostBridge;
    case NVML_TOPOLOGY_NODE:
      return Ancestor::kNode;
    default:
      return Ancestor::kSystem;
  }
}

Result<unsigned> Session::recovery_action(Device gpu) const {
  GPULET_TRY(stale(gpu));
  nvmlFieldValue_t field{};
  field.fieldId = NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetFieldValues, raw(gpu), 1, &field));
  // A driver that does not know the field reports an invalid argument.
  if (field.nvmlReturn == NVML_ERROR_INVALID_ARGUMENT) field.nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
  GPULET_TRY(to_status(library_->api(), field.nvmlReturn, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"));
  return field.value.uiVal;
}

Result<std::uint64_t> Session::supported_events(Device gpu) const {
  GPULET_TRY(stale(gpu));
  unsigned long long types = 0;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetSupportedEventTypes, raw(gpu), &types));
  return types;
}

Result<void*> Session::create_event_set() const {
  nvmlEventSet_t set = nullptr;
  GPULET_TRY(GPULET_NVML(nvmlEventSetCreate, &set));
  return static_cast<void*>(set);
}

Status Session::register_events(Device gpu, std::uint64_t types, void* set) const {
  GPULET_TRY(stale(gpu));
  return GPULET_NVML(nvmlDeviceRegisterEvents, raw(gpu), types, static_cast<nvmlEventSet_t>(set));
}

Result<std::optional<Event>> Session::wait_event(void* set, unsigned timeout_ms) const {
  nvmlEventData_t data{};
  // The first version of the call does not set these.
  data.gpuInstanceId = data.computeInstanceId = 0xFFFFFFFF;
  const auto status = GPULET_NVML(nvmlEventSetWait_v2, static_cast<nvmlEventSet_t>(set), &data, timeout_ms);
  if (!status && status.error().code() == Code::kDeadlineExceeded) return std::nullopt;
  if (!status) return fail(status.error());
  return Event{Device{data.device, generation_}, data.eventType, data.eventData, data.gpuInstanceId,
               data.computeInstanceId};
}

void Session::free_event_set(void* set) const {
  // If the driver is gone, so is its set; the result does not matter.
  [[maybe_unused]] const auto status = GPULET_NVML(nvmlEventSetFree, static_cast<nvmlEventSet_t>(set));
}

Result<std::vector<Process>> Session::running_processes(Device device) const {
  GPULET_TRY_ASSIGN(const auto found, Usage(*this, device).process_memory());
  std::vector<Process> all;
  for (const auto& one : found) all.push_back(one.process);
  return all;
}

Result<ComputeMode> Session::compute_mode(Device device) const {
  GPULET_TRY(stale(device));
  nvmlComputeMode_t mode = NVML_COMPUTEMODE_DEFAULT;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetComputeMode, raw(device), &mode));
  switch (mode) {
    case NVML_COMPUTEMODE_EXCLUSIVE_THREAD:
      return ComputeMode::kExclusiveThread;
    case NVML_COMPUTEMODE_PROHIBITED:
      return ComputeMode::kProhibited;
    case NVML_COMPUTEMODE_EXCLUSIVE_PROCESS:
      return ComputeMode::kExclusiveProcess;
    default:
      return ComputeMode::kDefault;
  }
}

Status Session::set_compute_mode(Device device, ComputeMode mode) const {
  GPULET_TRY(stale(device));
  nvmlComputeMode_t nvml_mode = NVML_COMPUTEMODE_DEFAULT;
  switch (mode) {
    case ComputeMode::kDefault:
      break;
    case ComputeMode::kExclusiveThread:
      nvml_mode = NVML_COMPUTEMODE_EXCLUSIVE_THREAD;
      break;
    case ComputeMode::kProhibited:
      nvml_mode = NVML_COMPUTEMODE_PROHIBITED;
      break;
    case ComputeMode::kExclusiveProcess:
      nvml_mode = NVML_COMPUTEMODE_EXCLUSIVE_PROCESS;
      break;
  }
  return GPULET_NVML(nvmlDeviceSetComputeMode, raw(device), nvml_mode);
}

}  // namespace gpulet::nvml

#undef GPULET_NVML
