// How a Snapshot is read: in pieces, each about one GPU, so that each can be given its own deadline on the
// driver's worker, and one that hangs or is lost leaves the others whole. Every function here that takes a
// Session may block for as long as the driver does; the others are pure.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "inventory/snapshot.h"

namespace gpulet::nvml {
class Session;
}

namespace gpulet::inventory {

struct DriverSummary {
  DriverInfo driver;
  unsigned gpu_count = 0;
};
// What there is to read. An error means that the driver as a whole does not answer.
Result<DriverSummary> read_driver_summary(const nvml::Session& session);

// GPU `index`, with `unreadable` set if its handle, UUID or PCI address cannot be read, if any call reports
// that it is lost or needs a reset, or if the number of its device node is unknown. Another value that the
// driver does not return is left at its default and listed in `not_read`: see nvml/return_codes.h.
// `sys_roots`: directories below which sys/bus/pci/devices is looked for, in order, for the NUMA node, the
// PCI class and the host of a virtual GPU, and proc/driver/nvidia/gpus for the device node's number if NVML
// does not return it.
Gpu read_gpu(const nvml::Session& session, unsigned index, const std::vector<std::string>& sys_roots);

// One that a DGX Station has for its screen: not offered by NVIDIA's plugin either. Source:
// facts/device-plugin 1.3.
bool is_display_only(const Gpu& gpu);

// The MIG mode and MIG devices' UUIDs of a GPU in one text: whether they changed, for the price of a few
// calls. Errors: those of the Session, also where one device's state is unknown.
Result<std::string> mig_layout_text(const nvml::Session& session, unsigned index);
std::string mig_layout_text(const Gpu& gpu);

// Fills in what `previous` knew of an unreadable GPU (the one with the same UUID, or, where not even that is
// known, at the same index, unless another of `read` turned out to be it), and the values of `not_read` of a
// GPU with the same UUID.
void fill_from_previous(std::vector<Gpu>& read, const Snapshot& previous);

// Distances between GPUs, by their PCI addresses: asked once, as where a card sits does not change without a
// reboot.
class DistanceCache {
 public:
  // For one GPU of `gpus`, by its place there: the places after it that it has no distance to yet. Unreadable
  // ones are left out.
  std::vector<std::size_t> missing_from(const std::vector<Gpu>& gpus, std::size_t from) const;
  void add_distance(const PciAddress& a, const PciAddress& b, PcieDistance distance);
  // Snapshot::pcie for `gpus`; kUnknown where nothing is known.
  std::vector<PcieDistance> distance_matrix(const std::vector<Gpu>& gpus) const;

 private:
  std::map<std::pair<PciAddress, PciAddress>, PcieDistance> distances_;  // the lower address first
};

// From GPU `from` to each of `to` (NVML indices), in their order; nullopt where the driver does not say now.
std::vector<std::optional<PcieDistance>> read_distances(const nvml::Session& session, unsigned from,
                                                        const std::vector<unsigned>& to);

// "hopper", from the compute capability, as the label nvidia.com/gpu.family has it; "undefined" for others.
// Source: facts/device-plugin 1.10.
std::string architecture_name(unsigned compute_major, unsigned compute_minor);

// "1g.10gb" from a MIG device's name as the driver gives it ("NVIDIA H100 80GB HBM3 MIG 1g.10gb"); empty
// without one.
std::string mig_profile_of_name(const std::string& name);
// The same from numbers: "1c.3g.40gb". `total` is the GPU's memory.
// Source: go-nvlib's MigProfile: eighths of the GPU's memory, rounded up, in whole GB.
std::string mig_profile_of_slices(unsigned compute_slices, unsigned gpu_slices, Bytes memory, Bytes total);

}  // namespace gpulet::inventory
