// What is known about a node before the checks run: plain values, filled in by collect_facts.
//
// A fact that could not be read is an Error with the reason (no kubeconfig, no agent, no permission), which
// a check reports as "unknown". Nothing is guessed.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/observe/claim_status.h"
#include "agent/observe/limit_status.h"
#include "agent/observe/power_status.h"
#include "base/result.h"
#include "extender/ask_monitor.h"
#include "health/evidence/evidence.h"
#include "inventory/platform.h"
#include "inventory/snapshot.h"
#include "runtimes/configure.h"
#include "runtimes/nvidia_runtime.h"

namespace gpulet::doctor {

// The initial value of every fact.
inline tl::unexpected<Error> not_collected() { return fail(Code::kUnavailable, "was not checked"); }

// An NVIDIA GPU on the PCI bus, from sysfs.
struct PciGpu {
  std::string address;  // "0000:1b:00.0"
  std::string driver;   // kernel driver bound to it: "nvidia", "nouveau", "vfio-pci"; empty: none
  friend bool operator==(const PciGpu&, const PciGpu&) = default;
};
struct PciBus {
  std::vector<PciGpu> gpus;
  unsigned switches = 0;  // NVSwitches
  bool nouveau = false;   // the module is loaded, bound or not
  // PCI bridges above GPUs whose ACS redirects peer-to-peer traffic to the root complex.
  std::vector<std::string> redirecting_bridges;
  bool bridges_hidden = false;  // the kernel exposes only the start of their configuration
  // GPUs whose DMA the IOMMU translates (group type DMA or DMA-FQ).
  std::vector<std::string> translated_gpus;
};

// The driver's two halves, from files.
struct DriverFiles {
  Result<std::string> module = not_collected();  // version of the loaded kernel module; kNotFound: not loaded
  std::vector<std::string> libraries;            // versions of libnvidia-ml below the driver root, ascending
};

// A device node that every container with a GPU needs.
struct DeviceNode {
  std::string path;  // "/dev/nvidia0"
  std::optional<Error>
      error;  // kNotFound; kFailedPrecondition: of another driver; kPermissionDenied: not for us
  bool world_accessible = true;  // every user may open it for reading and writing
};
struct DeviceNodes {
  std::vector<DeviceNode> needed;
  std::string
      root{};  // the directory whose dev/ has them, where that is not the host's: "/run/nvidia/driver"
  // Nodes without a link in /dev/char; empty if there is no such directory.
  std::vector<std::string> without_char_link_nodes;
};

// MIG of one GPU.
struct MigFacts {
  bool enabled = false;
  std::optional<bool> pending;   // the mode after the next reset, if different
  unsigned instances = 0;        // GPU instances
  unsigned empty_instances = 0;  // of them, without a compute instance
};
// One GPU, as reported by the driver.
struct GpuFacts {
  unsigned index = 0;
  std::string uuid;
  std::optional<Error> unreadable;  // then the rest is unknown
  MigFacts mig;
  unsigned recovery_action = 0;  // NVML field 230; 0 for none
  bool rows_pending = false, rows_failed = false;
  bool pages_pending = false;
  bool sram_threshold = false;
  bool inforom_valid = true;
  unsigned width = 0, full_width = 0;  // PCIe lanes; 0: unknown
  std::uint64_t clock_events = 0;      // nvml/usage.h, kClocks…
  unsigned temperature = 0;            // Celsius; 0: unknown
  health::FabricState fabric = health::FabricState::kNone;
};
struct DriverFacts {
  std::string version;
  std::vector<GpuFacts> gpus;
};

// A socket in the kubelet's directory for device plugins.
struct PluginSocket {
  std::string name;            // "nvidia-gpu.sock"
  std::optional<Error> error;  // why it does not respond
  int pid = 0;                 // the listener; 0: in an invisible PID namespace
};
struct KubeletFacts {
  std::string directory;  // the directory that was checked
  // Existing directories of other kubelets: MicroK8s, k0s and the like.
  std::vector<std::string> other_directories;
  Status socket = not_collected();    // the registration socket
  std::vector<PluginSocket> plugins;  // NVIDIA's plugins, by name
  Status plugins_status;              // why the list may be incomplete
  // From PodResources, by resource: healthy devices, and devices held by containers.
  Result<std::map<std::string, std::size_t>> allocatable = not_collected(), held = not_collected();
};

// Relevant processes of the host.
struct ProcessFacts {
  std::vector<std::pair<int, std::string>> device_plugins;  // pid, name
  bool fabric_manager = false;
  std::vector<runtimes::CommandLine> kubelets;
};

// The agent's own status (/api/node).
struct AgentDevice {
  std::string name;  // "GPU 3", "MIG 3:1"
  std::string uuid, state, reason;
  bool offered = true;
  std::string resource;    // empty: offered by none
  std::string excluded{};  // why a rule withholds it: "is excluded by the rule at x.yaml:3:5"
  bool waits = false;      // for its preflight: `reason` says so
};
struct AgentFault {
  std::string fault_class, text, effect;  // "pcie-width", "PCIe lanes are missing: 8 of 16", "flag"
};
struct AgentGpu {
  unsigned index = 0;
  MigFacts mig;  // instances are its MIG devices; an instance without one is not known
  unsigned nvswitch_links = 0;
  bool in_fabric = false;
  std::vector<AgentFault> faults;
  // Why the agent does not read a source ("pcie") of this GPU; nullopt: not reported, by an agent that has
  // just started or is older.
  std::optional<std::map<std::string, std::string>> unread;
  // Processes of no Pod that hold its memory, unless it is excluded: "process 812 (python3) holds 20000 MiB".
  std::vector<std::string> outside_pods{};
};
struct AgentFacts {
  std::string version;
  std::string driver_version{};       // empty: the agent has no driver
  std::vector<std::string> problems;  // why it is not ready, one line each
  std::vector<AgentDevice> devices;
  std::vector<std::string> refusals;  // Events about requests that the API server denied
  // Events about rights at the driver that the agent lacks
  std::vector<std::string> missing_driver_rights{};
  std::vector<AgentGpu> gpus{};  // by index
  agent::ClaimStatus claims{};
  WallTime read_at{};                                      // by this machine's clock
  std::optional<agent::MemoryLimitStatus> memory_limit{};  // nullopt: the node wants no limits
  std::vector<std::string> cut_off{};  // containers that may no longer open their GPUs, one line each
  std::vector<agent::GpuPowerStatus> power{};
};

struct AgentSettings {
  std::string source;          // "the agent", or the file
  bool cdi = false;            // Allocate returns CDI device names
  bool volume_mounts = false;  // Allocate names devices by mounts
  std::string cdi_directory = "/var/run/cdi", mps_root = "/run/nvidia/mps";  // paths on the host
};

// CDI specs for NVIDIA devices.
struct CdiSpecs {
  std::vector<std::string> directories, files;
  std::vector<std::string> problems;  // of files that engines reject, or devices that they drop
  std::vector<std::string> devices;   // qualified names
  std::set<std::string> versions;     // of the driver libraries that the specs mount
  std::vector<std::string> missing;   // paths in specs that do not exist
};

struct Engine {
  runtimes::EngineReport report;
  bool nvidia_runtime = false;  // NVIDIA's container runtime is configured
};
struct Engines {
  std::vector<Engine> all;
  std::optional<runtimes::KubeletEndpoint> endpoint;  // of the kubelet; nullopt: unknown
  Result<runtimes::nvidia::RuntimeConfig> nvidia_runtime_config = runtimes::nvidia::RuntimeConfig{};
};

// What the driver's memory limits need of the host.
struct LimitHost {
  std::optional<std::string> controllers{};  // of the root cgroup; nullopt: no cgroup v2
  std::string enabled_controllers{};         // for its children
  std::string driver_parameters{};           // /proc/driver/nvidia/params
};

struct MpsDaemon {
  std::string name;            // "nvidia.com/gpu"
  std::optional<Error> error;  // why it does not respond
};

// Why a Pod is pending, from `gpulet explain`.
struct NodeReason {
  std::string node, reason;
};
struct PodExplanation {
  bool by_extender = false;                // else computed locally with the same code
  std::string requests;                    // "9 nvidia.com/gpu"
  std::vector<NodeReason> nodes;           // nodes that reject it: this node first, at most kMaxReasons
  std::size_t left_out = 0;                // further rejecting nodes
  std::vector<std::string> fitting_nodes;  // nodes with enough GPUs: something else prevents the Pod
  std::vector<std::string> hints;
};
struct PendingPod {
  std::string name;                                     // "default/train"
  std::string message;                                  // one line of the scheduler or the kubelet
  bool refused = false;                                 // rejected by this node's kubelet after scheduling
  std::optional<Result<PodExplanation>> explanation{};  // nullopt: not requested
};
struct ClusterFacts {
  std::string user;                                 // the user of the credentials
  std::optional<std::chrono::seconds> clock_ahead;  // the node's clock relative to the API server's
  Result<std::vector<std::string>> missing_permissions = not_collected();  // "patch on nodes"
  Result<std::vector<PendingPod>> pods = not_collected();  // pending Pods that request NVIDIA's resources
  std::string mig_state;                                   // the node's label nvidia.com/mig.config.state
  // Pods that were bound without a question to the extender; kNotFound without an extender.
  Result<std::vector<extender::MissedPod>> missed_pods = not_collected();
};

struct Facts {
  Result<PciBus> bus = not_collected();
  DriverFiles installed;
  std::string driver_root;
  bool simulated = false;  // a driver root of gpulet-sim
  Result<DeviceNodes> nodes = not_collected();
  Result<DriverFacts> driver = not_collected();
  KubeletFacts kubelet;
  Result<ProcessFacts> programs = not_collected();  // kUnavailable: the host's processes are not visible
  Result<AgentFacts> agent = not_collected();
  Result<AgentSettings> settings = not_collected();
  Result<Engines> engines = not_collected();
  Result<CdiSpecs> cdi = not_collected();
  Result<std::vector<MpsDaemon>> mps = not_collected();
  Result<ClusterFacts> cluster = not_collected();
  Result<bool> clock_synchronised = not_collected();  // according to the kernel
  // The kind of machine, if gpulet does not offer its GPUs.
  std::optional<inventory::PlatformEvidence> platform{};
  // The command runs in the Pod of the agent that responds: what the agent reports counts for more than what
  // this container cannot see or open.
  bool in_agent_pod = false;
  Result<LimitHost> limit_host = not_collected();
};

}  // namespace gpulet::doctor
