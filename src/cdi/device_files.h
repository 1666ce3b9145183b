// The device nodes that a container needs, found below the dev root with the numbers that they have there.
// Only a character device counts: a link, a file or a FIFO of that name does not, and what is missing is a
// warning and never an error. Folders are listed once, at `read`; a node is looked at when it is asked for.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cdi/driver_files.h"
#include "cdi/root.h"
#include "inventory/mig_minors.h"
#include "inventory/snapshot.h"

namespace gpulet::cdi {

struct DeviceNode {
  std::string path;       // in the container: "/dev/nvidia0"
  std::string host_path;  // on the host: below the dev root's host path
  unsigned major = 0;
  unsigned minor = 0;
  mode_t mode = 0;  // permission bits
  gid_t gid = 0;
  char type = 'c';
  friend bool operator==(const DeviceNode&, const DeviceNode&) = default;
};

class DeviceFiles {
 public:
  // `roots` must outlive it.
  static DeviceFiles read(const Roots& roots);

  // What every container with a GPU gets: nvidia-modeset, nvidia-uvm, nvidia-uvm-tools, nvidiactl.
  std::vector<DeviceNode> control();
  std::optional<DeviceNode> gpu(unsigned minor);
  // The capabilities of a GPU instance and of a compute instance in it; not the GPU's node. Their numbers are
  // those of driver/nvidia-caps/mig-minors below the proc root.
  std::vector<DeviceNode> mig(unsigned gpu_minor, unsigned gpu_instance, unsigned compute_instance);

  // A GPU's nodes below /dev/dri, by its PCI address below the sys root, and their names in /dev/dri/by-path.
  struct Drm {
    std::vector<DeviceNode> nodes;
    std::vector<Link> links;  // {"../card1", "/dev/dri/by-path/pci-0000:1b:00.0-card"}
  };
  Drm drm(const inventory::PciAddress& pci);

  std::vector<DeviceNode> gds();       // nvidia-fs*
  std::vector<DeviceNode> mofed();     // infiniband/uverbs*, infiniband/rdma_cm
  std::vector<DeviceNode> gdrcopy();   // gdrdrv
  std::vector<DeviceNode> nvswitch();  // nvidia-nvswitchctl, nvidia-nvswitch*
  std::vector<DeviceNode> wsl();       // dxg
  // Channel numbers that exist, ascending; and one channel's node.
  std::vector<unsigned> imex_channel_ids();
  std::optional<DeviceNode> imex_channel(unsigned id);
  // Everything that manages GPUs: nvidia*, the capabilities and the IMEX channels, without nvidia-fs*,
  // nvidia-nvswitch* and nvidia-nvlink*.
  std::vector<DeviceNode> management();

  // One line for each node that was asked for and is not there, once.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  explicit DeviceFiles(const Roots& roots) : roots_(&roots) {}
  const Folder* folder(std::string_view path);
  std::optional<DeviceNode> node(std::string_view folder, std::string_view name, bool wanted = true);
  void add_matching(std::vector<DeviceNode>& nodes, std::string_view folder, std::string_view pattern);
  void warn(std::string line);
  const inventory::MigMinors& mig_minors();

  const Roots* roots_;
  std::map<std::string, std::optional<Folder>, std::less<>> folders_;  // below the dev root
  std::optional<inventory::MigMinors> mig_minors_;
  std::vector<std::string> warnings_;
};

}  // namespace gpulet::cdi
