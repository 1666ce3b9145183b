// One initialisation of the driver: the constructor calls nvmlInit, the destructor nvmlShutdown and
// dlclose. In between, typed calls return typed errors.
//
// Every call may block forever when a GPU or the driver hangs. So all calls run on the Worker's
// thread, and every caller holds the Session's shared_ptr: the library is never shut down or
// unloaded during a call. The destructor calls the driver too; on a loop's thread it runs on a
// separate thread. Any number of threads may call.
//
// Errors of every call: those of the table in return_codes.h; kUnavailable also where the handle
// belongs to an earlier Session, kUnsupported also where the driver lacks the function.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace gpulet::nvml {

class Library;

// Oldest accepted driver, as in NVIDIA's own monitoring.
inline constexpr std::string_view kOldestDriver = "418.81.07";

// A GPU or a MIG device of one Session. Later Sessions refuse it.
struct Device {
  void* raw = nullptr;
  std::uint64_t generation = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

struct PciInfo {
  std::uint32_t domain = 0, bus = 0, device = 0;  // GPUs are always function 0 in NVML
  std::uint32_t device_id = 0;                    // device<<16 | vendor
  std::uint32_t subsystem_id = 0;
};
struct ComputeCapability {
  unsigned major = 0, minor = 0;
};
struct MigMode {
  bool current = false, pending = false;
};
// Attributes of a MIG device. Source: nvmlDeviceAttributes_t.
struct Attributes {
  unsigned multiprocessors = 0, copy_engines = 0, decoders = 0, encoders = 0, jpegs = 0, ofas = 0;
  unsigned gpu_slices = 0, compute_slices = 0;
  std::uint64_t memory_mib = 0;
};
struct Placement {
  unsigned start = 0, size = 0;  // memory slices
};
struct GpuInstanceInfo {
  unsigned profile = 0;  // id
  Placement placement;
};
enum class LinkRemote { kGpu, kSwitch, kOther };
struct FabricInfo {
  bool completed = false;    // registered successfully
  std::string cluster_uuid;  // "01234567-…"; empty if all zeroes
  std::uint32_t clique_id = 0;
};
// nvmlGpuTopologyLevel_t.
enum class Ancestor { kInternal, kSingle, kMultiple, kHostBridge, kNode, kSystem };

// A process with a context on a GPU. Source: nvmlProcessInfo_t.
struct Process {
  unsigned pid = 0;                                        // in the host's PID namespace
  std::optional<unsigned> gpu_instance, compute_instance;  // ids; nullopt outside MIG
  friend auto operator<=>(const Process&, const Process&) = default;
};
// nvmlComputeMode_t.
enum class ComputeMode { kDefault, kExclusiveThread, kProhibited, kExclusiveProcess };

// Bits of Event::type. Source: nvml.h, nvmlEventType*.
inline constexpr std::uint64_t kEventSingleBitEcc = 0x1;
inline constexpr std::uint64_t kEventDoubleBitEcc = 0x2;
inline constexpr std::uint64_t kEventXid = 0x8;
inline constexpr std::uint64_t kEventMigConfig = 0x100;
inline constexpr std::uint64_t kEventSingleBitStorm = 0x200;
inline constexpr std::uint64_t kEventRetirement = 0x400;  // of DRAM rows or pages
inline constexpr std::uint64_t kEventRetirementFailure = 0x800;
inline constexpr std::uint64_t kEventContainedPoison = 0x1000;
inline constexpr std::uint64_t kEventFatalPoison = 0x2000;
inline constexpr std::uint64_t kEventGpuUnavailable = 0x4000;
inline constexpr std::uint64_t kEventRecoveryAction = 0x8000;

struct Event {
  Device device;
  std::uint64_t type = 0;                   // exactly one bit
  std::uint64_t data = 0;                   // the XID for kEventXid
  std::uint32_t gpu_instance = 0xFFFFFFFF;  // 0xFFFFFFFF outside MIG
  std::uint32_t compute_instance = 0xFFFFFFFF;
  friend bool operator==(const Event&, const Event&) = default;
};

class Session {
 public:
  // Loads and initialises the driver, and reads its version. A failed call leaves nothing loaded.
  // Errors: kUnavailable; kPermissionDenied; kUnsupported for a driver older than kOldestDriver.
  // `library_directories`: as of Library::load_library.
  static Result<std::shared_ptr<const Session>> open_session(
      const std::string& driver_root, const std::vector<std::string>& library_directories = {});
  ~Session();
  Session(const Session&) = delete;

  // Releases `session` on the worker, and waits up to `patience` until all other holders have
  // released it and the driver is shut down and unloaded. Returns whether that happened. Otherwise
  // the shutdown happens later, without harm to a newer Session.
  static bool shut_down(std::shared_ptr<const Session> session, std::chrono::milliseconds patience);

  std::uint64_t generation() const { return generation_; }  // increases with each Session of this process
  const std::string& library_path() const;
  const std::string& driver_version() const { return driver_version_; }
  Result<unsigned> cuda_version() const;     // major*1000 + minor*10
  Result<std::string> nvml_version() const;  // "12.570.124.06"

  Result<unsigned> device_count() const;
  Result<Device> device(unsigned index) const;
  Result<DeviceUuid> device_uuid(Device device) const;
  Result<std::string> product_name(Device device) const;   // MIG device: "<GPU's name> MIG 1g.10gb"
  Result<std::string> product_brand(Device device) const;  // "NVIDIA", "Tesla", …: as nvidia-smi prints it
  Result<bool> is_vgpu(Device device) const;  // a hypervisor's virtual GPU, seen inside a virtual machine
  // Whether a screen is connected, which drivers since 580 do not report, or a display is initialised. Fails
  // if neither is known.
  Result<bool> display_attached(Device device) const;
  Result<std::string> serial(Device device) const;
  Result<unsigned> minor_number(Device device) const;
  Result<ComputeCapability> compute_capability(Device device) const;
  Result<Bytes> memory_total(Device device) const;
  Result<PciInfo> pci(Device device) const;

  Result<MigMode> mig_mode(Device gpu) const;  // kUnsupported for a GPU without MIG
  Result<unsigned> max_mig_devices(Device gpu) const;
  Result<Device> mig_device(Device gpu, unsigned index) const;  // kNotFound if there is none
  Result<unsigned> gpu_instance_id(Device mig) const;
  Result<unsigned> compute_instance_id(Device mig) const;
  Result<Attributes> attributes(Device mig) const;
  Result<GpuInstanceInfo> gpu_instance_info(Device gpu, unsigned gpu_instance_id) const;

  // Processes with a compute, MPS or graphics context on a GPU or MIG device, each once, by pid. On
  // a GPU in MIG mode only a privileged caller sees all of them. Errors: as Usage::process_memory().
  Result<std::vector<Process>> running_processes(Device device) const;
  Result<ComputeMode> compute_mode(Device device) const;
  // Needs root. kUnsupported for any mode but the default on a GPU in MIG mode.
  Status set_compute_mode(Device device, ComputeMode mode) const;

  Result<bool> nvlink_active(Device gpu, unsigned link) const;  // kInvalidArgument beyond the last link
  Result<LinkRemote> nvlink_remote_type(Device gpu, unsigned link) const;
  Result<PciInfo> nvlink_remote(Device gpu, unsigned link) const;
  Result<FabricInfo> fabric_info(Device gpu) const;
  Result<Ancestor> common_ancestor(Device a, Device b) const;
  // NVML field 230; 0 means none. kUnsupported before driver 550 or so.
  Result<unsigned> recovery_action(Device gpu) const;

  Result<std::uint64_t> supported_events(Device gpu) const;
  // An event set by its raw handle. EventSet (events.h) owns it.
  Result<void*> create_event_set() const;
  Status register_events(Device gpu, std::uint64_t types, void* set) const;
  // Waits up to `timeout_ms`; nullopt on timeout.
  Result<std::optional<Event>> wait_event(void* set, unsigned timeout_ms) const;
  void free_event_set(void* set) const;

 private:
  friend class Mig;            // mig.h: creates and destroys instances
  friend class Health;         // health.h: health readings of one GPU
  friend class Usage;          // usage.h: utilisation of one GPU
  friend class Gpm;            // gpm.h: performance monitoring
  friend class NvLinks;        // nvlinks.h: state and counters of links
  friend class MemoryLimiter;  // memory_limits.h: limits of memory by cgroup
  friend class PowerControl;   // power.h: limits of power, locked clocks
  Session(std::shared_ptr<const Library> library, std::uint64_t generation);
  Status stale(Device device) const;

  // Notifies the waiter in shut_down() after all other members are destroyed.
  struct Closed;
  struct CloseNotifier {
    std::shared_ptr<Closed> closed;
    ~CloseNotifier();
  };
  CloseNotifier close_notifier_;  // destroyed last
  std::shared_ptr<const Library> library_;
  std::uint64_t generation_;
  std::string driver_version_;
};

inline constexpr unsigned kMaxNvLinks = 36;  // NVML_NVLINK_MAX_LINKS

// Whether "570.124.06" is at least "418.81.07", compared number by number; false for a text that is
// no version.
bool is_version_at_least(std::string_view version, std::string_view floor);

}  // namespace gpulet::nvml
