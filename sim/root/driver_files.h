// The files of a driver root: libraries with SONAMEs and links, firmware, programs, /proc and /sys texts.
// FileTree creates them and stores a list, so that this or a later process can remove exactly these.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sim/state/state.h"

namespace gpulet::sim {

class FileTree {
 public:
  explicit FileTree(std::string root) : root_(std::move(root)) {}

  // Loads the list at `list_path`. Errors: kNotFound, kInvalidArgument for a list that escapes the root.
  static Result<FileTree> load_list(std::string root, std::string_view list_path);
  // Writes the list, which includes itself.
  Status save_list(std::string_view list_path);

  // Paths are relative to the root; missing parents are created. kFailedPrecondition if the path exists.
  Status add_directory(std::string_view path);
  Status add_file(std::string_view path, std::string_view content, mode_t mode = 0644);
  Status add_copy(std::string_view path, const std::string& source, mode_t mode = 0755);
  Status add_symlink(std::string_view path, std::string_view target);
  // Creates a character device. kPermissionDenied if the kernel refuses.
  Status add_device_node(std::string_view path, unsigned major, unsigned minor, mode_t mode = 0666);

  // Removes one path of the list.
  void remove_path(std::string_view path);
  // Removes everything created. Directories with foreign files stay.
  void remove_created();

  const std::string& root_path() const { return root_; }
  const std::vector<std::string>& created_paths() const { return created_; }

 private:
  std::string full_path(std::string_view path) const { return root_ + "/" + std::string(path); }
  Status parents_of(std::string_view path);

  std::string root_;
  std::vector<std::string> created_;  // in order of creation
};

// Returns an ELF file for this architecture with DT_SONAME `soname` and no symbols, in place of one of
// NVIDIA's libraries: enough for SONAME readers, ldconfig and dlopen.
std::string make_shared_object(std::string_view soname);

// Returns "0000:1b:00.0", the name in sysfs and /proc.
std::string address_text(const PciAddress& address);

std::string proc_version_text(const Machine& machine);  // /proc/driver/nvidia/version
std::string proc_params_text(const Machine& machine);   // /proc/driver/nvidia/params
std::string proc_devices_text(bool uvm);                // /proc/devices; `uvm`: with the module nvidia-uvm
// /proc/driver/nvidia/gpus/<address>/information
std::string proc_information_text(const Machine& machine, const Gpu& gpu);

// Returns the GPU's affinity as "0-19,40-59"; "" if there is none.
std::string cpu_list_text(const Gpu& gpu);

// A memory region of a PCI function. Region 0 is 32 bits wide, the others 64 and prefetchable.
struct PciBar {
  std::uint32_t number = 0;           // 0 to 5; a wide one takes the next number too
  std::uint64_t start = 0, size = 0;  // in bytes; the size is a power of two
};
using PciBars = std::vector<PciBar>;
// Registers (16 MiB), the memory's window (its size, rounded up) and a third region (32 MiB), as of an A100.
// `index`: of the GPU on its machine, below 32.
PciBars gpu_bars(const Gpu& gpu, std::uint32_t index);
// The registers of an NVSwitch (32 MiB). `index`: below 16.
PciBars switch_bars(std::uint32_t index);

// Returns the file `resource` of a PCI function: for each region "start end flags" in hexadecimal, zeros
// where there is none. Source: the kernel's drivers/pci/pci-sysfs.c (resource_show), include/linux/ioport.h.
std::string pci_resource_text(const PciBars& bars);

// Returns the 256 bytes of a PCI function's configuration space: header, then power management, MSI and PCI
// Express capabilities.
std::string pci_config_bytes(std::uint32_t device_id, std::uint32_t subsystem_id, std::uint32_t class_code,
                             const PciBars& bars);

inline constexpr unsigned kNvidiaMajor = 195;  // fixed by the driver
inline constexpr unsigned kControlMinor = 255;
inline constexpr unsigned kModesetMinor = 254;
inline constexpr unsigned kDrmMajor = 226;
// Dynamic on hardware.
inline constexpr unsigned kUvmMajor = 505;
inline constexpr unsigned kImexMajor = 507;
inline constexpr unsigned kSwitchMajor = 508;

inline constexpr std::uint32_t kGpuClass = 0x030200;     // 3D controller
inline constexpr std::uint32_t kSwitchClass = 0x068000;  // bridge, other

// Below the root, as on Debian.
#if defined(__aarch64__)
inline constexpr std::string_view kLibraryDirectory = "usr/lib/aarch64-linux-gnu";
#else
inline constexpr std::string_view kLibraryDirectory = "usr/lib/x86_64-linux-gnu";
#endif

struct DriverFiles {
  std::string version;        // "570.124.06"
  std::string nvml;           // path of the simulated libnvidia-ml.so.1, copied in
  std::string nvidia_smi;     // path of the simulated nvidia-smi; empty: none
  std::string mps_control{};  // path of the simulated nvidia-cuda-mps-control
  std::string cuda{};         // path of the simulated libcuda.so.1; empty: one without symbols
};

Status add_driver_files(FileTree& tree, const DriverFiles& files);

// Replaces the files of `old_version`. Processes keep their mappings of the old ones.
Status change_driver_version(FileTree& tree, const std::string& old_version, const std::string& new_version);

}  // namespace gpulet::sim
