// The minor numbers of /dev/nvidia-caps/nvidia-capN: which capability file opens which GPU instance or
// compute instance. Source: the driver's /proc/driver/nvidia-caps/mig-minors, one "<name> <minor>" a line:
// "config 1", "monitor 2", "gpu0/gi1/access 3", "gpu0/gi1/ci0/access 4"; gpuN is the GPU's minor.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "inventory/snapshot.h"

namespace gpulet::inventory {

class MigMinors {
 public:
  // nullopt where the file has no such line.
  std::optional<unsigned> gpu_instance_minor(unsigned gpu_minor, unsigned gi) const;
  std::optional<unsigned> compute_instance_minor(unsigned gpu_minor, unsigned gi, unsigned ci) const;
  std::optional<unsigned> config_minor() const;
  std::optional<unsigned> monitor_minor() const;

  bool empty() const { return minors_.empty(); }
  std::size_t size() const { return minors_.size(); }

 private:
  friend Result<MigMinors> parse_mig_minors(std::string_view text);
  std::optional<unsigned> find_minor(std::uint64_t key) const;
  std::vector<std::pair<std::uint64_t, unsigned>> minors_;  // by key: a real file has thousands of lines
};

// Lines whose name is of another form are passed over: a newer driver may add some.
// Errors: kInvalidArgument: a line that is not a name and a minor (with its number), or one name with two
// minors.
Result<MigMinors> parse_mig_minors(std::string_view text);

// "/dev/nvidia-caps/nvidia-capN".
std::string capability_node(unsigned minor);
// The two device nodes that a MIG device needs beside its GPU's: its GPU instance's and its compute
// instance's
// "/dev/nvidia-caps/nvidia-capN". Empty unless both are known.
std::vector<std::string> mig_device_nodes(const MigMinors& minors, unsigned gpu_minor, unsigned gi,
                                          unsigned ci);

// The major numbers of character devices by driver name, from the text of /proc/devices: "nvidia-uvm" → 505.
// A driver with several majors keeps the last. Lines of another form and block devices are left out.
std::map<std::string, unsigned, std::less<>> parse_device_majors(std::string_view text);

// What a GPU's directory in sysfs says of it: its PCI class, and, in a virtual machine, the driver of the
// hypervisor. Pure. Source: PCI Local Bus 3.0, 6.1 and 6.7 (the list of capabilities); facts of
// k8s-device-plugin v0.20.0, internal/vgpu: NVIDIA's virtual GPUs have a vendor's capability "VF" whose
// record 0 names the host's driver and its branch.

// Of the file "class": "0x030200\n" → 0x030200; 0 for anything else.
std::uint32_t parse_pci_class(std::string_view text);
// Whether that class is a GPU's: base class 03, not an NVSwitch (068000) or an audio function (040300).
constexpr bool is_display_controller(std::uint32_t pci_class) { return pci_class >> 16 == 0x03; }
// NVIDIA's, in the file "vendor".
inline constexpr std::string_view kPciVendor = "0x10de";

// Of the file "config": the configuration space. nullopt for a GPU that is none of a hypervisor's, for a
// space that was not given whole (the kernel gives 64 bytes to who has not CAP_SYS_ADMIN), and for one that
// is not well-formed.
std::optional<VgpuHost> parse_vgpu_host(std::string_view config);
// The bytes of "config" that parse_vgpu_host needs: those that hold every capability of the list. The kernel
// reads the device for each, so all 4,096 take a virtual machine 19 ms.
inline constexpr std::size_t kPciHeaderBytes = 256;
// What the kernel gives of it without CAP_SYS_ADMIN.
inline constexpr std::size_t kUnprivilegedPciBytes = 64;

// Of the start of /proc/cpuinfo: x86 processors say whether there is a hypervisor, without which no GPU is
// virtual. True where it does not say.
bool may_be_virtual_machine(std::string_view cpuinfo);
inline constexpr std::size_t kCpuInfoBytes = 4096;  // has the flags of the first processor

}  // namespace gpulet::inventory
