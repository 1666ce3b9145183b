// The simulated machine: one file that every process of the node maps, so that the agent, gpulet-sim and
// other NVML clients see the same GPUs and faults. sim/driver (the C ABI) reads it, sim/machine fills it from
// YAML, `gpulet-sim` edits it.
//
// It is plain data of fixed size without pointers, because each process maps it at another address. Numbers
// have nvml.h's values (brands, architectures, clocks, link versions...); this library does not include that
// header. A value that the real GPU does not report is kNotReported: the call then returns NOT_SUPPORTED.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "sim/state/cuda_clients.h"
#include "sim/state/event_type.h"
#include "sim/state/memory_limits.h"

namespace gpulet::sim {

inline constexpr std::uint32_t kMagic = 0x4c504753;  // "SGPL"
// Increased with every change of the layout below: a library refuses a state of another build.
inline constexpr std::uint32_t kLayoutVersion = 12;
inline constexpr std::size_t kMaxGpus = 64;
inline constexpr std::size_t kMaxLinks = 36;           // NVML_NVLINK_MAX_LINKS
inline constexpr std::size_t kMaxProfiles = 18;        // NVML_GPU_INSTANCE_PROFILE_COUNT
inline constexpr std::size_t kMaxComputeProfiles = 9;  // NVML_COMPUTE_INSTANCE_PROFILE_COUNT
inline constexpr std::size_t kMaxPlacements = 8;
inline constexpr std::size_t kMaxGpuInstances = 8;
inline constexpr std::size_t kMaxComputeInstances = 8;  // of one GPU instance
inline constexpr std::size_t kMaxProcesses = 64;        // of one GPU
inline constexpr std::size_t kMaxClients = 256;         // further ones are not counted
inline constexpr std::size_t kMaxEvents = 1024;         // stored; a waiter further behind misses the oldest
inline constexpr std::size_t kMaxRetiredPages = 64;
inline constexpr std::size_t kMaxAnswers = 16;
inline constexpr std::size_t kMaxCpuWords = 16;  // of 64 CPUs
inline constexpr std::int32_t kNotReported = -1;
inline constexpr std::uint32_t kNoInstance = 0xffffffff;  // GPU or compute instance outside MIG

// Below a driver root.
inline constexpr std::string_view kStatePathInRoot = "run/gpulet-sim/state";

// The connection of two GPUs: nvmlGpuTopologyLevel_t.
enum TopologyLevel : std::uint8_t {
  kTopologyInternal = 0,   // on one board
  kTopologySingle = 10,    // one PCIe switch
  kTopologyMultiple = 20,  // several switches, no host bridge
  kTopologyHostBridge = 30,
  kTopologyNode = 40,    // one NUMA node
  kTopologySystem = 50,  // across the sockets
};

// nvmlIntNvLinkDeviceType_t.
enum LinkRemote : std::uint8_t { kRemoteGpu = 0, kRemoteNpu = 1, kRemoteSwitch = 2, kRemoteUnknown = 255 };

struct PciAddress {
  std::uint32_t domain;
  std::uint8_t bus;
  std::uint8_t device;
  std::uint8_t function;
  std::uint8_t padding;
};

struct NvLink {
  std::uint8_t present;  // the chip has it; absent links behave like links beyond the last
  std::uint8_t active;   // trained
  std::uint8_t version;  // nvml's: 1 for 1.0, 2 2.0, 3 2.2, 4 3.0, 5 3.1, 6 4.0, 7 5.0
  LinkRemote remote;
  PciAddress remote_pci;           // of the GPU or NVSwitch at the other end
  std::uint32_t remote_device_id;  // PCI device << 16 | vendor
  std::uint32_t remote_link;       // number of the link at the other end
  std::uint32_t speed_mbps;        // MB/s, as FI_DEV_NVLINK_SPEED_MBPS
  std::uint64_t replay_errors;
  std::uint64_t recovery_errors;
  std::uint64_t crc_flit_errors;
  std::uint64_t crc_data_errors;
  std::uint64_t ecc_errors;
  std::uint64_t transmitted_kib;  // data, from the driver's start to Gpu::links_since_ns
  std::uint64_t received_kib;
};

struct EccCounts {
  // By NVML_MEMORY_LOCATION_*: 0 L1, 1 L2, 2 DRAM, 3 registers, 4 texture, 5 shared, 6 CBU, 7 SRAM.
  std::uint64_t by_location[8];
};

struct Clocks {
  // In MHz, by NVML_CLOCK_*: graphics, SM, memory, video.
  std::int32_t current[4];
  std::int32_t max[4];
  std::int32_t application[4];
  std::int32_t application_default[4];
  std::int32_t locked_graphics[2];  // lowest and highest; highest 0: not locked
  std::int32_t locked_memory[2];
};

inline constexpr std::uint8_t kFabricCompleted = 3;  // NVML_GPU_FABRIC_STATE_COMPLETED

struct Fabric {
  std::uint8_t state;  // NVML_GPU_FABRIC_STATE_*; 0: no fabric
  std::uint8_t health_summary;
  std::uint8_t cluster_uuid[16];
  std::uint32_t status;  // nvmlReturn_t of the registration
  std::uint32_t clique_id;
  std::uint32_t health_mask;
};

struct ComputeProfile {
  std::uint32_t index;  // NVML_COMPUTE_INSTANCE_PROFILE_*
  std::uint32_t id;     // the hardware's id
  std::uint32_t slices;
  std::uint32_t max_instances;
  std::uint32_t multiprocessors;
};

struct MigProfile {
  std::uint32_t index;          // NVML_GPU_INSTANCE_PROFILE_*
  std::uint32_t id;             // the hardware's id: 19 for 1g.10gb, 0 for 7g.80gb
  char name[32];                // "1g.10gb", "1g.10gb+me": as after "MIG "
  std::uint32_t slices;         // compute
  std::uint32_t memory_slices;  // the length of a placement
  std::uint32_t max_instances;
  std::uint32_t multiprocessors;
  std::uint32_t copy_engines;
  std::uint32_t decoders;
  std::uint32_t encoders;
  std::uint32_t jpegs;
  std::uint32_t ofas;
  std::uint32_t capabilities;  // NVML_GPU_INSTANCE_PROFILE_CAPS_*
  std::uint64_t memory_mib;
  std::uint32_t placement_count;
  std::uint8_t placements[kMaxPlacements];  // first memory slice of each, increasing
  std::uint32_t compute_profile_count;
  ComputeProfile compute_profiles[kMaxComputeProfiles];
};

struct ComputeInstance {
  std::uint8_t used;
  std::uint8_t profile;  // index into MigProfile::compute_profiles
  std::uint8_t start;    // compute slice inside its GPU instance
  std::uint8_t length;
  std::uint32_t id;        // below kMaxComputeInstances, is its slot
  std::uint32_t creation;  // creation number on this GPU: a handle of an earlier instance is stale
  char uuid[48];           // "MIG-..."
};

struct GpuInstance {
  std::uint8_t used;
  std::uint8_t profile;  // index into Mig::profiles
  std::uint8_t start;    // memory slice
  std::uint8_t length;
  std::uint32_t id;  // as hardware numbers it: 0 whole, 1-2 halves, 3-6 quarters, 7-14 eighths
  std::uint32_t creation;
  ComputeInstance compute[kMaxComputeInstances];
};

struct Mig {
  std::uint8_t capable;
  std::uint8_t current;  // mode: 0 disabled, 1 enabled
  std::uint8_t pending;
  std::uint8_t mode_needs_reset;  // Ampere: a new mode needs a reset, and stays on the card (set_mig_mode)
  std::uint8_t passthrough;       // a VM, where the driver cannot reset the GPU for its mode
  std::uint32_t memory_slices;    // 8, or 4 on A30
  std::uint32_t creations;        // GPU and compute instances ever created
  std::uint32_t profile_count;
  MigProfile profiles[kMaxProfiles];
  GpuInstance instances[kMaxGpuInstances];
};

struct Process {
  std::uint32_t pid;           // 0: slot unused
  std::uint32_t gpu_instance;  // ids, kNoInstance outside MIG
  std::uint32_t compute_instance;
  std::uint8_t kind;            // 0 compute, 1 graphics, 2 MPS compute
  std::uint8_t sm_utilization;  // percent
  std::uint8_t memory_utilization;
  std::uint8_t padding;
  std::uint64_t memory_bytes;
  char name[64];  // empty: the name in /proc
  // Of managed memory: in use on the GPU, but not listed for the process.
  std::uint64_t managed_bytes;
  std::uint32_t cuda_client;  // 1 + its entry in CudaClients::entries; 0: none
  std::uint32_t padding2;
};

struct RetiredPage {
  std::uint64_t address;
  std::uint64_t timestamp;
  std::uint32_t cause;  // 0 multiple single bit errors, 1 double bit error
  std::uint32_t padding;
};

struct RemappedRows {
  std::int32_t supported;
  std::uint32_t correctable;
  std::uint32_t uncorrectable;
  std::uint32_t pending;  // pending until a reset
  std::uint32_t failed;
  std::uint32_t bank_histogram[5];  // max, high, partial, low, none
};

struct Faults {
  std::uint8_t lost;          // its calls return GPU_IS_LOST
  std::uint8_t hang;          // its calls return only once this is 0 again
  std::uint8_t mig_hang;      // the MIG change after mig_skip others hangs
  std::uint8_t inforom;       // its InfoROM's checksum is wrong
  std::uint32_t delay_us;     // before each of its calls
  std::uint32_t error;        // nvmlReturn_t of its calls when not 0
  std::uint32_t mig_error;    // nvmlReturn_t of one MIG change without effect; then 0
  std::uint32_t mig_skip;     // MIG changes that succeed before it
  std::uint32_t reset_error;  // nvmlReturn_t of its resets when not 0
  std::uint32_t reset_ms;     // how long its resets take
  std::uint32_t reset_hang;   // its resets return only once this is 0 again
  // Of CUDA: a word of each allocation reads wrong; a wrong result; calls that hang; a launch's CUresult;
  std::uint32_t bad_memory, wrong_results, cuda_hang, launch_error, copy_percent;  // of the links; 0: all
};

// The idle values of a GPU, restored when its load ends.
struct Idle {
  std::int32_t power_mw;
  std::int32_t temperature;
  std::int32_t memory_temperature;
  std::int32_t clocks[4];  // as Clocks
  std::int32_t padding;
};

struct Gpu {
  char name[96];
  char uuid[48];  // "GPU-..."
  char serial[32];
  char board_part_number[32];
  char vbios_version[32];
  char inforom_image[16];
  char inforom_oem[16];
  char inforom_ecc[16];
  char inforom_power[16];
  std::uint32_t brand;         // NVML_BRAND_*
  std::uint32_t architecture;  // NVML_DEVICE_ARCH_*
  std::int32_t compute_major;
  std::int32_t compute_minor;
  std::uint32_t board_id;
  std::uint32_t minor;         // of /dev/nvidia<minor>
  std::uint32_t render_minor;  // of /dev/dri/renderD<minor>, 0: none
  std::uint32_t module_id;
  std::uint32_t cores;
  std::uint32_t multiprocessors;
  std::uint32_t memory_bus_bits;
  std::uint32_t incarnation;  // increased when the card is replaced

  PciAddress pci;
  std::uint32_t pci_device_id;  // device << 16 | vendor, as nvmlPciInfo_t::pciDeviceId
  std::uint32_t pci_subsystem_id;
  std::int32_t numa_node;         // of the PCI device, -1: none
  std::int32_t memory_numa_node;  // GPUs whose memory is a NUMA node (GB200), else kNotReported
  std::uint64_t cpu_affinity[kMaxCpuWords];
  std::int32_t pcie_generation;
  std::int32_t pcie_generation_max;
  std::int32_t pcie_width;
  std::int32_t pcie_width_max;
  std::uint32_t pcie_tx_kbps;
  std::uint32_t pcie_rx_kbps;
  std::uint32_t pcie_replays;
  std::uint32_t sram_threshold;  // uncorrected SRAM errors exceed the field diagnosis limit

  std::uint64_t memory_total;  // bytes
  std::uint64_t memory_reserved;
  std::uint64_t memory_used;  // in addition to the processes below
  std::uint64_t bar1_total;
  std::uint64_t bar1_used;

  Clocks clocks;
  std::uint64_t clock_event_reasons;  // nvmlClocksEventReason*
  std::uint32_t performance_state;    // P0..P15
  std::int32_t fan_percent;
  std::int32_t fan_count;
  std::int32_t temperature;  // Celsius
  std::int32_t memory_temperature;
  std::int32_t temperature_shutdown;
  std::int32_t temperature_slowdown;
  std::int32_t temperature_memory_max;
  std::int32_t temperature_gpu_max;

  std::int32_t power_usage_mw;
  std::int32_t power_limit_mw;
  std::int32_t power_limit_default_mw;
  std::int32_t power_limit_min_mw;
  std::int32_t power_limit_max_mw;
  std::uint16_t display_connected;  // NVML_FEATURE_ENABLED: a screen
  std::uint16_t display_active;     // NVML_FEATURE_ENABLED: a display server
  std::uint64_t energy_mj;          // up to energy_since_ns, from then on power_usage_mw
  std::uint64_t energy_since_ns;    // CLOCK_MONOTONIC
  std::uint64_t violation_power_ns;
  std::uint64_t violation_thermal_ns;

  std::uint32_t utilization_gpu;  // percent
  std::uint32_t utilization_memory;
  std::uint32_t utilization_encoder;
  std::uint32_t utilization_decoder;
  std::uint32_t utilization_jpeg;
  std::uint32_t utilization_ofa;

  std::int32_t ecc_supported;
  std::uint32_t ecc_current;  // mode
  std::uint32_t ecc_pending;
  std::uint32_t retired_page_count;
  EccCounts ecc[2][2];  // [corrected, uncorrected][volatile, aggregate]
  RetiredPage retired_pages[kMaxRetiredPages];
  std::int32_t retired_pages_supported;  // until Turing; later GPUs remap rows
  std::int32_t retired_pages_pending;
  RemappedRows remapped_rows;

  std::uint32_t persistence_mode;
  std::uint32_t compute_mode;     // NVML_COMPUTEMODE_*
  std::uint32_t recovery_action;  // nvmlDeviceGpuRecoveryAction_t, field 230
  std::uint32_t gsp_firmware_mode;
  std::uint64_t supported_events;  // EventType bits

  NvLink links[kMaxLinks];
  std::uint64_t links_since_ns;  // CLOCK_MONOTONIC; from then on links carry `links_load`
  std::uint32_t links_load;      // percent; half of a link's speed in either direction at 100
  std::uint32_t padding3;
  std::uint8_t topology[kMaxGpus];  // TopologyLevel to the GPU of that index
  Fabric fabric;
  Mig mig;
  Process processes[kMaxProcesses];
  Faults faults;
  Idle idle;
};

struct Driver {
  char version[32];           // "570.124.06"
  char nvml_version[32];      // "12.570.124.06"
  std::int32_t cuda_version;  // 12080 for 12.8
  std::uint8_t loaded;
  std::uint8_t hang;               // every call of every GPU, and nvmlInit
  std::uint8_t has_device_nodes;   // below the driver root; clients then need access to them
  std::uint8_t virtualization;     // nvmlGpuVirtualizationMode_t of every GPU
  std::uint32_t generation;        // increased by each reload: clients must initialise again
  std::uint32_t delay_us;          // before each call
  std::uint32_t init_error;        // nvmlReturn_t of nvmlInit when not 0
  std::uint32_t event_wait_error;  // nvmlReturn_t of event waits when not 0
};

// A process with NVML initialised, see sim/state/clients.h.
struct Client {
  std::uint32_t pid;         // 0: never used
  std::uint32_t generation;  // the driver's when it initialised NVML
  std::uint64_t gpus;        // a bit for each GPU index that it holds
  char name[16];             // as in /proc/PID/comm
};

struct Event {
  std::uint64_t sequence;  // counts from 1
  std::uint64_t type;
  std::uint64_t data;  // the XID for kEventXid
  std::uint32_t gpu;   // index
  std::uint32_t gpu_instance;
  std::uint32_t compute_instance;
  std::uint32_t padding;
};

// What one function of the C ABI returns instead of its result.
struct Answer {
  char call[64];      // "nvmlDeviceGetMemoryInfo_v2"; kAnyOptionalCall
  std::uint32_t gpu;  // index; kMaxGpus: every GPU, and calls about none
  std::uint32_t nvml_return;
};
// Every call but those that find and identify GPUs: init and shutdown, counts, handles, UUID, PCI address and
// the driver's version.
inline constexpr std::string_view kAnyOptionalCall = "*";

struct Machine {
  char name[64];     // "hgx-h100"
  char product[64];  // DMI product name
  std::uint32_t gpu_count;
  std::uint32_t answer_count;
  Answer answers[kMaxAnswers];
  Driver driver;
  Gpu gpus[kMaxGpus];
  Client clients[kMaxClients];
  std::uint64_t last_event;  // sequence of the newest, 0: none yet
  Event events[kMaxEvents];  // of sequence s at s % kMaxEvents
  MemoryAccounting memory;
  CudaClients cuda;
};

// The whole file.
struct Shared {
  std::uint32_t magic;
  std::uint32_t layout_version;
  std::uint64_t bytes;                 // sizeof(Shared)
  pthread_mutex_t mutex;               // robust, shared between processes
  std::atomic<std::uint32_t> changes;  // increased by every edit: the futex of waiters
  std::atomic<std::uint32_t> waiters;
  Machine machine;
};

class StateFile;

// Holds the machine's lock. The end of an edit wakes all waiters.
template <class Target>
class [[nodiscard]] Guard {
 public:
  Guard(Guard&& other) noexcept : shared_(std::exchange(other.shared_, nullptr)) {}
  Guard& operator=(Guard&&) = delete;
  ~Guard();
  Target* operator->() const { return &shared_->machine; }
  Target& operator*() const { return shared_->machine; }

 private:
  friend class StateFile;
  explicit Guard(Shared* shared);
  Shared* shared_;
};
using ReadGuard = Guard<const Machine>;
using EditGuard = Guard<Machine>;

// A mapping of the file. Thread-safe. A process that dies with the lock does not block others.
class StateFile {
 public:
  StateFile() = default;
  StateFile(StateFile&& other) noexcept
      : shared_(std::exchange(other.shared_, nullptr)), path_(std::move(other.path_)) {}
  StateFile& operator=(StateFile&& other) noexcept;
  ~StateFile();

  // Writes `initial` to `path` and creates directories. Mode 0666, because clients run as any user. Processes
  // that map a previous file see its driver unload. Errors: those of errno_error.
  static Result<StateFile> create_state(const std::string& path, const Machine& initial);
  // Errors: kNotFound, kPermissionDenied; kFailedPrecondition for another layout or another file.
  static Result<StateFile> open_state(const std::string& path);

  bool is_mapped() const { return shared_ != nullptr; }
  const std::string& file_path() const { return path_; }

  // Both first remove the memory of CUDA clients that have ended: see cuda_clients.h.
  ReadGuard lock_for_read() const;
  EditGuard lock_for_edit() const;

  // Read it before the machine, and pass it to wait_for_change.
  std::uint32_t change_count() const { return shared_->changes.load(std::memory_order_acquire); }
  // Until change_count() differs from `seen`, at most `timeout_ms` (negative: no limit); may return early.
  void wait_for_change(std::uint32_t seen, std::int64_t timeout_ms) const;

 private:
  Shared* shared_ = nullptr;
  std::string path_;
};

// Copies `text` with a NUL; cuts a text that is too long.
template <std::size_t kSize>
void set_text(char (&field)[kSize], std::string_view text) {
  const std::size_t length = text.size() < kSize ? text.size() : kSize - 1;
  for (std::size_t i = 0; i < kSize; ++i) field[i] = i < length ? text[i] : '\0';
}

// Returns "GPU-2f8a...", a version 4 UUID derived from the seed. `prefix` is "GPU-" or "MIG-".
std::string make_uuid(std::string_view prefix, std::string_view seed);

// Appends an event to the ring. `gpu` is an index; instances are ids.
void post_event(Machine& machine, std::uint32_t gpu, EventType type, std::uint64_t data,
                std::uint32_t gpu_instance = kNoInstance, std::uint32_t compute_instance = kNoInstance);

// Unload and load the driver: clients must initialise again, counters since its start (volatile ECC, energy,
// PCIe replays, throttled time, link errors) restart at 0, GPU faults stay.
void unload_driver(Machine& machine);
void load_driver(Machine& machine);

// Resets an idle GPU: applies pending modes, remaps rows, restarts counters at 0, clears the recovery action
// and retrains links. kFailedPrecondition while processes run on it.
Status reset_gpu(Machine& machine, std::uint32_t gpu);
void reset_idle_gpu(Gpu& gpu);  // without that check
// The GPUs that must be reset in the same command as this one, itself included: before Ampere all that its
// NVLinks reach. Source: nvidia-smi(1), --gpu-reset, with a running fabric manager.
std::vector<std::uint32_t> reset_partners(const Machine& machine, std::uint32_t gpu);
// Those of its load, idle without a process, within what the clocks are locked to.
void update_current_clocks(Gpu& gpu);
void reboot(Machine& machine);  // ends processes, resets GPUs, loads the driver; GPU faults stay

// Removes faults and the recovery action; restores links, PCIe lanes, fabric and temperature, no counters.
void heal_gpu(Gpu& gpu);

void replace_gpu(Machine& machine, std::uint32_t gpu);  // by another card: new UUID and serial, no history

std::uint64_t monotonic_ns();  // CLOCK_MONOTONIC

// Returns the bytes in use by processes and Gpu::memory_used; with an instance id, of that GPU instance.
std::uint64_t memory_in_use(const Gpu& gpu, std::uint32_t gpu_instance = kNoInstance);

// Add or remove a process. Return false without a free slot or such a process.
bool add_process(Gpu& gpu, const Process& process);
bool remove_process(Gpu& gpu, std::uint32_t pid);

}  // namespace gpulet::sim
