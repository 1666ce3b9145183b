// Facts from files of the node: the PCI bus, the driver's files, device nodes, processes, container engines,
// CDI specs and MPS directories. These functions take and return values, because each runs on a thread that
// may be abandoned.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "doctor/collect.h"

namespace gpulet::doctor {

// Prefix of the resources, CDI kinds and labels that are checked.
inline constexpr std::string_view kNvidiaPrefix = "nvidia.com/";

// Where the node's directory trees are, as seen by this process.
struct HostTrees {
  std::string host, driver, proc, sys, dev;
  std::string dev_root;  // the directory whose dev/ has the driver's nodes
};
// Picks /proc, /sys and /dev below the host's or the driver's root if they have entries there, else our own.
// Where targets name no driver root: the host's, or that of a driver container (/run/nvidia/driver) if only
// it has the driver's library. Where they name no device root: the driver's if it has dev/nvidiactl, as
// NVIDIA's tools decide, else the host's. A container's own /dev comes first, because it uses those nodes.
HostTrees locate_trees(const ProbeTargets& targets);
// As named by `targets`, without looking: for where looking hangs.
HostTrees assumed_trees(const ProbeTargets& targets);

// Errors of all: those of reading directories; kUnavailable where the host's processes are not visible.
Result<PciBus> read_pci_bus(const HostTrees& trees);
DriverFiles read_driver_files(const HostTrees& trees);
Result<DeviceNodes> read_device_nodes(const HostTrees& trees);
Result<ProcessFacts> read_processes(const HostTrees& trees);
// `inside`: the host's root is our own. `kubelets`: command lines of running kubelets.
Result<Engines> read_engines(const HostTrees& trees, bool inside,
                             const std::vector<runtimes::CommandLine>& kubelets);
// Reads the default CDI directories and `agent_directory`. `host_files_visible`: whether missing paths can be
// judged.
Result<CdiSpecs> read_cdi_specs(const HostTrees& trees, const std::string& agent_directory,
                                bool host_files_visible);
// The name of each started daemon; none if the root does not exist.
Result<std::vector<std::string>> find_mps_daemons(const std::string& root);
// `settings`: files of container engines, as paths on the host.
std::vector<ArchiveFile> collect_raw_files(const HostTrees& trees, const std::string& device_plugins,
                                           const std::set<std::string>& settings);

// PCI Express Access Control Services (ACS) of a bridge, from its configuration space: whether the bridge
// sends requests between devices below it up to the root complex (P2P Request Redirect). False without the
// capability, or if the kernel exposes only the start of the space. Source: PCI Express Base 4.0, 7.7.8 (ACS
// Extended Capability): id 0x000D, control register at offset 6.
bool acs_redirects(std::string_view config);

}  // namespace gpulet::doctor
