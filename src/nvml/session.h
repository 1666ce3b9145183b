// One initialisation of the driver: nvmlInit on construction, nvmlShutdown and dlclose on destruction, and
// between them typed calls with typed errors.
//
// Every call may block for ever when a GPU or the driver hangs, so each is made on the Worker's thread, and
// whoever may be inside one holds the Session's shared_ptr: it is never shut down or unloaded under a call.
// Destruction calls the driver too: let go of on a loop's thread, it happens on a thread of its own. Any
// number of threads may call.
//
// Errors of every call: kUnavailable (the driver has gone or was reloaded, or the handle is of an earlier
// Session: open a new one), kDeviceLost, kUnsupported (this GPU cannot, or this driver has no such function),
// kDeadlineExceeded, kPermissionDenied, kNotFound, kInvalidArgument, kFailedPrecondition (in use, needs a
// reset), kIo for the rest. Source: nvml.h, nvmlReturn_t.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/strong.h"
#include "nvml/library.h"

namespace gpulet::nvml {

// Drivers before it are refused: the oldest that NVIDIA's own monitoring supports.
inline constexpr std::string_view kOldestDriver = "418.81.07";

// A GPU or a MIG device, as one Session named it. A later Session refuses it.
struct Device {
  void* raw = nullptr;
  std::uint64_t generation = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

struct PciInfo {
  std::uint32_t domain = 0, bus = 0, device = 0;  // NVML has GPUs at function 0 only
  std::uint32_t device_id = 0;                    // device<<16 | vendor
  std::uint32_t subsystem_id = 0;
};
struct ComputeCapability {
  unsigned major = 0, minor = 0;
};
struct MigMode {
  bool current = false, pending = false;
};
// Of a MIG device. Source: nvmlDeviceAttributes_t.
struct Attributes {
  unsigned multiprocessors = 0, copy_engines = 0, decoders = 0, encoders = 0, jpegs = 0, ofas = 0;
  unsigned gpu_slices = 0, compute_slices = 0;
  std::uint64_t memory_mib = 0;
};
struct Placement {
  unsigned start = 0, size = 0;  // memory slices
};
enum class LinkRemote { kGpu, kSwitch, kOther };
struct FabricInfo {
  bool completed = false;    // registered, with success
  std::string cluster_uuid;  // "01234567-…"; empty when it is all zeroes
  std::uint32_t clique_id = 0;
};
// nvmlGpuTopologyLevel_t.
enum class Ancestor { kInternal, kSingle, kMultiple, kHostBridge, kNode, kSystem };

// Who has a context on a GPU. Source: nvmlProcessInfo_t.
struct Process {
  unsigned pid = 0;                                        // as the host counts
  std::optional<unsigned> gpu_instance, compute_instance;  // ids; nullopt outside MIG
  friend auto operator<=>(const Process&, const Process&) = default;
};
// nvmlComputeMode_t.
enum class ComputeMode { kDefault, kExclusiveThread, kProhibited, kExclusiveProcess };

// Bits of an event's type. Source: nvml.h, nvmlEventType*.
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
  std::uint64_t type = 0;                   // one bit
  std::uint64_t data = 0;                   // the XID for kEventXid
  std::uint32_t gpu_instance = 0xFFFFFFFF;  // 0xFFFFFFFF outside MIG
  std::uint32_t compute_instance = 0xFFFFFFFF;
  friend bool operator==(const Event&, const Event&) = default;
};

class Session {
 public:
  // Loads, initialises, and asks for the version. Leaves nothing behind when it fails.
  // Errors: kUnavailable; kPermissionDenied; kUnsupported for a driver older than kOldestDriver.
  static Result<std::shared_ptr<const Session>> open(const std::string& driver_root);
  ~Session();
  Session(const Session&) = delete;

  // Lets go of `session`, on the worker, and waits up to `patience` until the last who holds it has let go
  // too and it is shut down and unloaded. Returns whether it is. One that is not is shut down later, without
  // harm to a newer one.
  static bool close(std::shared_ptr<const Session> session, std::chrono::milliseconds patience);

  std::uint64_t generation() const { return generation_; }  // rises with each Session of this process
  const std::string& library_path() const { return library_->path(); }
  const std::string& driver_version() const { return driver_version_; }
  Result<unsigned> cuda_version() const;  // major*1000 + minor*10
  Result<std::string> nvml_version() const;  // "12.570.124.06"

  Result<unsigned> device_count() const;
  Result<Device> device(unsigned index) const;
  Result<DeviceUuid> uuid(Device device) const;
  Result<std::string> name(Device device) const;   // of a MIG device: "<GPU's name> MIG 1g.10gb"
  Result<std::string> brand(Device device) const;  // "NVIDIA", "Tesla", …: as nvidia-smi prints it
  Result<std::string> serial(Device device) const;
  Result<unsigned> minor(Device device) const;
  Result<ComputeCapability> compute_capability(Device device) const;
  Result<Bytes> memory_total(Device device) const;
  Result<PciInfo> pci(Device device) const;

  Result<MigMode> mig_mode(Device gpu) const;  // kUnsupported for a GPU without MIG
  Result<unsigned> max_mig_devices(Device gpu) const;
  Result<Device> mig_device(Device gpu, unsigned index) const;  // kNotFound where there is none
  Result<unsigned> gpu_instance_id(Device mig) const;
  Result<unsigned> compute_instance_id(Device mig) const;
  Result<Attributes> attributes(Device mig) const;
  Result<Placement> placement(Device gpu, unsigned gpu_instance_id) const;

  // Of a GPU or a MIG device: every process with a compute, MPS or graphics context, each once, by pid. Of a
  // GPU in MIG mode only a privileged caller sees all. (session_use.cpp)
  Result<std::vector<Process>> processes(Device device) const;
  Result<ComputeMode> compute_mode(Device device) const;
  // Needs root. kUnsupported for all but the default on a GPU in MIG mode.
  Status set_compute_mode(Device device, ComputeMode mode) const;

  Result<bool> nvlink_active(Device gpu, unsigned link) const;  // kInvalidArgument beyond the last
  Result<LinkRemote> nvlink_remote_type(Device gpu, unsigned link) const;
  Result<PciInfo> nvlink_remote(Device gpu, unsigned link) const;
  Result<FabricInfo> fabric(Device gpu) const;
  Result<Ancestor> common_ancestor(Device a, Device b) const;
  // NVML field 230: 0 for none. kUnsupported before driver 550 or so.
  Result<unsigned> recovery_action(Device gpu) const;

  Result<std::uint64_t> supported_events(Device gpu) const;
  // An event set, by its raw handle: EventSet (events.h) owns one.
  Result<void*> create_event_set() const;
  Status register_events(Device gpu, std::uint64_t types, void* set) const;
  // Waits up to `timeout_ms`; nullopt when nothing came.
  Result<std::optional<Event>> wait_event(void* set, unsigned timeout_ms) const;
  void free_event_set(void* set) const;

 private:
  friend class Mig;     // mig.h: the calls that make and destroy instances
  friend class Health;  // health.h: the calls that tell of one GPU's health
  friend class Usage;   // usage.h: the calls that tell how one GPU is used
  friend class Gpm;     // gpm.h: what its performance monitors say
  Session(std::shared_ptr<const Library> library, std::uint64_t generation);
  Status stale(Device device) const;

  // Tells, when the rest of a Session is gone, whoever waits for it.
  struct Closed;
  struct Tell {
    std::shared_ptr<Closed> closed;
    ~Tell();
  };
  Tell tell_;  // destroyed last
  std::shared_ptr<const Library> library_;
  std::uint64_t generation_;
  std::string driver_version_;
};

inline constexpr unsigned kMaxNvLinks = 36;  // NVML_NVLINK_MAX_LINKS

// Whether "570.124.06" is at least "418.81.07", number by number; a text that is no version is not.
bool version_at_least(std::string_view version, std::string_view floor);

}  // namespace gpulet::nvml
