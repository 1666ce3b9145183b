// What is known of a node before anything is judged: plain values that gather.h fills in and the checks read.
//
// What could not be looked at is an Error with why (no kubeconfig, no agent, no right), which a check passes
// on as "cannot tell": nothing here is guessed.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "health/evidence.h"
#include "inventory/snapshot.h"
#include "runtimes/configure.h"
#include "runtimes/kubelet_endpoint.h"

namespace gpulet::doctor {

// What every part is before it was looked at.
inline tl::unexpected<Error> not_looked_at() { return fail(Code::kUnavailable, "was not looked at"); }

// A GPU of NVIDIA's on the PCI bus, as sysfs has it.
struct BusGpu {
  std::string address;  // "0000:1b:00.0"
  std::string driver;   // the kernel's driver that has it: "nvidia", "nouveau", "vfio-pci"; empty: none
  friend bool operator==(const BusGpu&, const BusGpu&) = default;
};
struct Bus {
  std::vector<BusGpu> gpus;
  unsigned switches = 0;  // NVSwitches
  bool nouveau = false;   // the module is loaded, whatever it has
  // PCI bridges above GPUs whose Access Control Services send peer-to-peer traffic up to the root complex.
  std::vector<std::string> redirecting_bridges;
  bool bridges_unseen = false;  // the kernel shows us only the beginning of their settings
  // GPUs whose DMA the IOMMU translates (group type DMA or DMA-FQ).
  std::vector<std::string> translated_gpus;
};

// The driver's two halves as files say them.
struct Installed {
  Result<std::string> module =
      not_looked_at();                 // version of the loaded kernel module; kNotFound: it is not loaded
  std::vector<std::string> libraries;  // versions of libnvidia-ml below the driver root, ascending
};

// A device node that every container with a GPU needs.
struct Node {
  std::string path;  // "/dev/nvidia0"
  std::optional<Error>
      trouble;          // kNotFound; kFailedPrecondition: not the driver's; kPermissionDenied: not for us
  bool for_all = true;  // anybody may open it for reading and writing
};
struct Nodes {
  std::vector<Node> needed;
  // Nodes without a link in /dev/char; empty also where there is no such folder.
  std::vector<std::string> without_char_link;
};

// MIG of one GPU.
struct MigFacts {
  bool enabled = false;
  std::optional<bool> pending;   // the mode after the next reset, where it differs
  unsigned instances = 0;        // GPU instances
  unsigned empty_instances = 0;  // of these, without a compute instance
};
// One GPU, as the driver says it.
struct GpuFacts {
  unsigned index = 0;
  std::string uuid;
  std::optional<Error> unreadable;  // then nothing below is known
  MigFacts mig;
  unsigned recovery_action = 0;  // NVML field 230; 0 for none
  bool rows_pending = false, rows_failed = false;
  bool pages_pending = false;
  bool sram_threshold = false;
  bool inforom_valid = true;
  unsigned width = 0, full_width = 0;  // PCIe lanes; 0: not known
  std::uint64_t clock_events = 0;      // nvml/usage.h, kClocks…
  unsigned temperature = 0;            // Celsius; 0: not known
  health::FabricState fabric = health::FabricState::kNone;
};
struct Driver {
  std::string version;
  std::vector<GpuFacts> gpus;
};

// A socket in the kubelet's folder of device plugins.
struct PluginSocket {
  std::string name;              // "nvidia-gpu.sock"
  std::optional<Error> trouble;  // why nobody answers there
  int pid = 0;                   // who listens; 0: in a PID namespace that is not seen
};
struct Kubelet {
  std::string folder;  // as it was looked for
  // Other kubelets' folders that are there: of MicroK8s, k0s and the like.
  std::vector<std::string> other_folders;
  Status socket = not_looked_at();    // that of registrations
  std::vector<PluginSocket> plugins;  // NVIDIA's, by name
  Status plugins_seen;                // why there may be more of them than were seen
  // By resource, from PodResources: healthy devices, and how many of them containers hold.
  Result<std::map<std::string, std::size_t>> allocatable = not_looked_at(), held = not_looked_at();
};

// Programs that matter here, among the host's processes.
struct Programs {
  std::vector<std::pair<int, std::string>> device_plugins;  // pid, name
  bool fabric_manager = false;
  std::vector<runtimes::CommandLine> kubelets;
};

// What the agent of this node says of itself (/api/node).
struct AgentDevice {
  std::string name;  // "GPU 3", "MIG 3:1"
  std::string uuid, state, reason;
  bool offered = true;
  std::string resource;  // empty: nothing offers it
};
struct Agent {
  std::string version;
  std::vector<std::string> problems;  // what it is not ready for, a line each
  std::vector<AgentDevice> devices;
  std::vector<std::string> refusals;  // events in which the API server refused it something
};

struct Settings {
  std::string source;                                                     // "the agent", or the file
  bool cdi = false;                                                       // Allocate names devices by CDI
  std::string cdi_folder = "/var/run/cdi", mps_root = "/run/nvidia/mps";  // as the host calls them
};

// CDI specs of NVIDIA's devices.
struct CdiSpecs {
  std::vector<std::string> folders, files;
  std::vector<std::string> problems;  // of files that engines refuse, or devices that they drop
  std::vector<std::string> devices;   // qualified names
  std::set<std::string> versions;     // of the driver's libraries that the specs mount
  std::vector<std::string> missing;   // paths that they name and that are not there
};

struct Engine {
  runtimes::EngineReport report;
  bool nvidia_runtime = false;  // NVIDIA's container runtime is in its config
};
struct Engines {
  std::vector<Engine> all;
  std::optional<runtimes::KubeletEndpoint> endpoint;  // of the kubelet; nullopt: nobody says
};

struct MpsDaemon {
  std::string name;              // "nvidia.com/gpu"
  std::optional<Error> trouble;  // why it does not answer
};

// Why a Pod waits, as `gpulet explain` says it.
struct NodeReason {
  std::string node, reason;
};
struct Explained {
  bool by_extender = false;       // else worked out here, by the same code
  std::string asks;               // "9 nvidia.com/gpu"
  std::vector<NodeReason> nodes;  // where it does not fit: this node first, at most kMaxReasons
  std::size_t left_out = 0;       // of them
  std::vector<std::string> fit;   // nodes whose GPUs would do: something else keeps it from them
  std::vector<std::string> hints;
};
struct PendingPod {
  std::string name;      // "default/train"
  std::string message;   // the scheduler's, or the kubelet's: one line
  bool refused = false;  // by this node's kubelet, after it was scheduled
  std::optional<Result<Explained>> explained{};  // nullopt: not asked for
};
struct Cluster {
  std::string user;                                                   // whose credentials were used
  std::optional<std::chrono::seconds> ahead;                          // the node's clock, of the API server's
  Result<std::vector<std::string>> missing_rights = not_looked_at();  // "patch on nodes"
  Result<std::vector<PendingPod>> pods = not_looked_at();  // that ask for NVIDIA's resources and do not run
  std::string mig_state;                                   // the node's label nvidia.com/mig.config.state
};

struct Facts {
  Result<Bus> bus = not_looked_at();
  Installed installed;
  std::string driver_root;
  Result<Nodes> nodes = not_looked_at();
  Result<Driver> driver = not_looked_at();
  Kubelet kubelet;
  Result<Programs> programs = not_looked_at();  // kUnavailable: the host's processes are not seen
  Result<Agent> agent = not_looked_at();
  Result<Settings> settings = not_looked_at();
  Result<Engines> engines = not_looked_at();
  Result<CdiSpecs> cdi = not_looked_at();
  Result<std::vector<MpsDaemon>> mps = not_looked_at();
  Result<Cluster> cluster = not_looked_at();
  Result<bool> clock_synchronised = not_looked_at();  // as the kernel has it
};

}  // namespace gpulet::doctor
