// Follows the kubeconfig of an agent that is a service of its host. The service starts before the kubelet,
// which writes the file when the node joins a cluster, and again when it joins another. Loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/file_watch.h"
#include "base/loop.h"

namespace gpulet::agent {

class KubeconfigWatcher {
 public:
  using Environment = std::map<std::string, std::string, std::less<>>;

  // Watches every path of KUBECONFIG in `environment`; without that variable it does nothing. `is_connected`:
  // whether the agent has found its cluster. Calls `restart` once, from here or the loop, when
  // k8s::find_client_config succeeds and either it has not, or the file that it uses has another content than
  // now. A file that cannot be used is reported in the log, each error once in a row.
  KubeconfigWatcher(Loop& loop, Environment environment, bool is_connected, std::function<void()> restart);
  KubeconfigWatcher(const KubeconfigWatcher&) = delete;

 private:
  void check_files();
  std::string read_content() const;

  const Environment environment_;
  const std::string list_;
  const bool is_connected_;
  std::function<void()> restart_;  // null after its call
  std::vector<std::unique_ptr<FileWatcher>> watches_;
  std::string content_;
  std::string error_;
};

}  // namespace gpulet::agent
