// The config in force: follows the config file, or a directory of them from which the node's label chooses,
// and SIGHUP. A config that cannot be loaded leaves the one before it in force.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "agent/node/component.h"
#include "agent/node/node.h"
#include "base/file_watch.h"
#include "config/config_directory.h"

namespace gpulet::agent {

// Loop's thread only.
class ConfigReloader final : public Component {
 public:
  explicit ConfigReloader(Node& node) : node_(node) {}

  void start() override;
  void on_node_labels() override;
  // Loads the sources again, and applies them where they differ.
  void reload_config();

 private:
  void watch_directory();
  void watch_file();

  Node& node_;
  std::optional<std::string> last_content_;
  std::unique_ptr<config::ConfigDirectoryWatcher> directory_;
  Subscription label_timeout_;
  std::unique_ptr<FileWatcher> file_watch_;
};

}  // namespace gpulet::agent
