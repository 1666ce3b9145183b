// `config-manager`: links a node's configuration file into place by the node's label and tells the programs
// that read it, as NVIDIA's program of that name does beside its device plugin. An agent that is given the
// folder itself needs none of this.
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
#include "config/config_folder.h"

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

// Makes `link` a symbolic link to `target`, which need not exist: a reader sees the old or the new one, never
// none. True where it was another before. Creates missing parent folders. Errors: kPermissionDenied, kIo.
Result<bool> point_link(const std::string& link, const std::string& target);

// The processes that are called `name`: argv[0] has the same last path segment. Never this one. Sorted.
std::vector<pid_t> processes_called(const std::string& name, const std::string& proc = "/proc");

// The work without the API server. Loop's thread only.
class ConfigManager {
 public:
  // `linked` is called after each attempt to follow the label or the folder: the link is in place and, where
  // it or its content differs from before, the processes were signalled; or what went wrong.
  using Linked = std::function<void(const Status&)>;

  // Errors: kInvalidArgument for options that cannot work, with the flag's name; as ConfigFolder::start.
  static Result<std::unique_ptr<ConfigManager>> start(Loop& loop, const ConfigManagerOptions& options,
                                                      Linked linked);

  ~ConfigManager() = default;
  ConfigManager(const ConfigManager&) = delete;

  // The value of the node's label, nullopt where it has none. Nothing is linked before the first call.
  void set_label(std::optional<std::string> value);

 private:
  ConfigManager(Loop& loop, ConfigManagerOptions options, Linked linked);
  void on_changed(const std::optional<std::string>& problem);
  void follow();
  Status link_and_tell();
  void tell_processes() const;

  Loop& loop_;
  ConfigManagerOptions options_;
  Linked linked_;
  std::unique_ptr<config::ConfigFolder> folder_;
  std::optional<std::string> content_;  // what the link last led to; nullopt before the first time
  std::optional<std::string> problem_;  // the last that was logged
  Subscription retry_;
};

// Where the label comes from: calls `label` from the loop with its value (nullopt: the node has none), once
// it is known and whenever it changes, for as long as what it returns lives.
using LabelSource = std::function<Result<std::shared_ptr<void>>(
    Loop& loop, std::function<void(std::optional<std::string>)> label)>;

// Runs until SIGTERM, SIGINT or SIGQUIT (0), or with `oneshot` until the link is in place (0). 1 with one
// line on standard error where it cannot start, and with `oneshot` where there is no config to link.
int run_config_manager(const ConfigManagerOptions& options, const LabelSource& source);

// The same with the label from the API server: that of the Pod's own cluster, or the kubeconfig's.
int config_manager(const ConfigManagerOptions& options);

}  // namespace gpulet::cli
