// Links in /dev/char to the driver's device nodes: "/dev/char/195:0" → "../nvidia0". With systemd's cgroups
// runc names a container's devices by these links. Without one, a `systemctl daemon-reload` takes the device
// away from containers that run, because udev makes no links for nodes that the driver's tools create.
// Source: systemd.resource-control(5), "DeviceAllow="; NVIDIA/nvidia-container-toolkit#48;
// opencontainers/runc, systemd device properties.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "base/loop.h"
#include "config/config.h"

namespace gpulet::agent {

inline constexpr const char* kCharDirectory = "/dev/char";
// Where a driver container has its root on the host. Its nodes are linked from the host's /dev/char.
inline constexpr const char* kDriverContainerRoot = "/run/nvidia/driver";

struct CharLink {
  std::string path;    // "/dev/char/195:0"
  std::string target;  // "../nvidia0", "../nvidia-caps/nvidia-cap1"
  friend bool operator==(const CharLink&, const CharLink&) = default;
};

// The links that are missing in `host`, or lead nowhere there, for the driver's character devices below dev/
// of `nodes`, ordered by path; none where `host` has no /dev/char. `nodes_on_host`: the path of `nodes` for
// the targets; empty: `nodes` is `host`. A link to another node is left alone. Blocks for a few file
// operations.
std::vector<CharLink> find_missing_char_links(const RootDirectory& nodes, const RootDirectory& host,
                                              const std::string& nodes_on_host = {});

// Creates the links that are missing when it is called, and again when one is removed. A failure is logged
// once, until another one or a success follows. Loop's thread only.
class CharLinkKeeper {
 public:
  // `config` outlives it.
  CharLinkKeeper(Loop& loop, const config::Config& config) : loop_(loop), config_(config) {}
  CharLinkKeeper(const CharLinkKeeper&) = delete;

  // To be called at the start and when the nodes or the config have changed. Nothing without
  // gpulet.createDeviceNodes. Blocks for a few file operations.
  void create_links();

 private:
  void watch_links(const std::string& directory);
  void report_failure(const std::string& message);

  Loop& loop_;
  const config::Config& config_;
  std::string reported_;
  std::string watched_;  // the directory, with its identity
  Subscription watch_, pause_;
};

}  // namespace gpulet::agent
