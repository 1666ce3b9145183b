// Finds the device nodes that a container needs below the dev root, with their numbers there. Only
// character devices count, not a link, a file or a FIFO of that name. A missing node is a warning,
// never an error. Directories are listed once; a node is examined on request.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cdi/driver_files.h"
#include "cdi/root.h"
#include "inventory/host_files.h"
#include "inventory/snapshot.h"

namespace gpulet::cdi {

struct DeviceNode {
  std::string path;       // in the container: "/dev/nvidia0"
  std::string host_path;  // on the host, with the dev root's host path
  unsigned major = 0;
  unsigned minor = 0;
  mode_t mode = 0;  // permission bits
  gid_t gid = 0;
  char type = 'c';
  friend bool operator==(const DeviceNode&, const DeviceNode&) = default;
};

class DeviceFiles {
 public:
  // `roots` must outlive the result.
  static DeviceFiles scan_dev_root(const Roots& roots);

  // The nodes of every container with a GPU: nvidia-modeset, nvidia-uvm, nvidia-uvm-tools,
  // nvidiactl.
  std::vector<DeviceNode> control_nodes();
  std::optional<DeviceNode> gpu_node(unsigned minor);
  // The capabilities of a GPU instance and of a compute instance in it, without the GPU's node.
  // Their numbers come from driver/nvidia-caps/mig-minors below the proc root.
  std::vector<DeviceNode> mig_nodes(unsigned gpu_minor, unsigned gpu_instance, unsigned compute_instance);

  // A GPU's nodes below /dev/dri, found by its PCI address below the sys root, and their links in
  // /dev/dri/by-path.
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
  // Existing channel numbers, ascending; and the node of one channel.
  std::vector<unsigned> imex_channel_ids();
  std::optional<DeviceNode> imex_channel(unsigned id);
  // The nodes for managing GPUs: nvidia*, the capabilities and the IMEX channels, without
  // nvidia-fs*, nvidia-nvswitch* and nvidia-nvlink*.
  std::vector<DeviceNode> management();

  // One line, once, for each requested node that is missing.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  explicit DeviceFiles(const Roots& roots) : roots_(&roots) {}
  const Directory* find_directory(std::string_view path);
  std::optional<DeviceNode> device_node(std::string_view directory, std::string_view name,
                                        bool required = true);
  void add_matching(std::vector<DeviceNode>& nodes, std::string_view directory, std::string_view pattern);
  void warn(std::string line);
  const inventory::MigMinors& mig_minors();

  const Roots* roots_;
  std::map<std::string, std::optional<Directory>, std::less<>> directories_;  // below the dev root
  std::optional<inventory::MigMinors> mig_minors_;
  std::vector<std::string> warnings_;
};

}  // namespace gpulet::cdi
