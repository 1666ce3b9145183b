// `config-manager`: links the config file that a node's label names and signals the programs that read it, as
// NVIDIA's program of that name does beside its device plugin. An agent with the directory of configs does
// not need it.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "config/config_directory.h"
#include "k8s/client_config.h"

namespace gpulet::cli {

struct ConfigManagerOptions {                                  // flag and environment variable:
  bool oneshot = false;                                        // --oneshot ONESHOT
  std::string kubeconfig;                                      // --kubeconfig KUBECONFIG
  std::string node_name;                                       // --node-name NODE_NAME
  std::string node_label = "nvidia.com/device-plugin.config";  // --node-label NODE_LABEL
  std::string config_file_srcdir;                              // --config-file-srcdir CONFIG_FILE_SRCDIR
  std::string config_file_dst;                                 // --config-file-dst CONFIG_FILE_DST
  std::string default_config;                                  // --default-config DEFAULT_CONFIG
  std::vector<std::string>
      fallback_strategies;  // --fallback-strategies FALLBACK_STRATEGIES: named, single, empty
  bool send_signal = true;  // --send-signal SEND_SIGNAL
  int signal = SIGHUP;      // --signal SIGNAL
  std::string process_to_signal = "nvidia-device-plugin";  // --process-to-signal PROCESS_TO_SIGNAL
};

// Access of a drop-in program as the Pod's service account or by a kubeconfig; `node_name` may be empty.
// Errors: those of k8s/client_config.h; kFailedPrecondition outside of a Pod without a kubeconfig.
Result<k8s::ClientConfig> drop_in_access(const std::string& kubeconfig, const std::string& node_name);

// Makes `link` a symbolic link to `target`, which need not exist. Atomic: a reader sees the old or the new
// link. Creates parent directories. Returns true if the link changed. Errors: kPermissionDenied, kIo.
Result<bool> point_link(const std::string& link, const std::string& target);

// Processes whose argv[0] has the same last path segment as `name`, without this process. Sorted.
std::vector<pid_t> find_processes(const std::string& name, const std::string& proc = "/proc");

// Everything but the API server. Loop's thread only.
class ConfigManager {
 public:
  // Called after each attempt: the link is in place and, if the link or its content changed, the processes
  // were signalled; or the error.
  using Linked = std::function<void(const Status&)>;

  // Errors: kInvalidArgument about the flag of an invalid option; as config::ConfigDirectoryWatcher.
  static Result<std::unique_ptr<ConfigManager>> start_config_manager(Loop& loop,
                                                                     const ConfigManagerOptions& options,
                                                                     Linked linked);

  ~ConfigManager() = default;
  ConfigManager(const ConfigManager&) = delete;

  // `value` of the node's label, nullopt if it has none. Nothing is linked before the first call.
  void set_config_label(std::optional<std::string> value);

 private:
  ConfigManager(Loop& loop, ConfigManagerOptions options, Linked linked);
  void on_changed(const std::optional<std::string>& problem);
  void update_link();
  Status link_and_signal();
  void signal_processes() const;

  Loop& loop_;
  ConfigManagerOptions options_;
  Linked linked_;
  std::unique_ptr<config::ConfigDirectoryWatcher> directory_;
  std::optional<std::string> content_;  // of the last linked config; nullopt before the first
  std::optional<std::string> problem_;  // the last logged one
  Subscription retry_;
};

// Calls `label` on the loop with the value of the label (nullopt: the node has none), at first and on each
// change, while the returned object lives.
using LabelSource = std::function<Result<std::shared_ptr<void>>(
    Loop& loop, std::function<void(std::optional<std::string>)> label)>;

// Runs until SIGTERM, SIGINT or SIGQUIT, with `oneshot` until the link is in place. Exit code: 0; 1 after one
// line on standard error if it cannot start, or with `oneshot` if there is no config to link.
int run_config_manager(const ConfigManagerOptions& options, const LabelSource& source);

// Follows the label through the API server of the Pod's cluster or the kubeconfig.
int run_config_manager(const ConfigManagerOptions& options);

}  // namespace gpulet::cli
