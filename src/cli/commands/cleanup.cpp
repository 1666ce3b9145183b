#include "cli/commands/cleanup.h"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <random>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "agent/fraction/limit_request.h"
#include "agent/health/health_controller.h"
#include "agent/health/operator_interface.h"
#include "agent/mig/mig_manager.h"
#include "agent/node/succession.h"
#include "agent/observe/usage_store.h"
#include "agent/power/power_restore.h"
#include "agent/remediation/repair_outputs.h"
#include "base/dead_socket.h"
#include "base/dns_name.h"
#include "base/file.h"
#include "base/json.h"
#include "base/loop.h"
#include "base/process.h"
#include "base/text.h"
#include "cdi/spec_files.h"
#include "cli/main/command_line.h"
#include "config/load.h"
#include "config/values.h"
#include "dra/device_pool.h"
#include "dra/served_socket.h"
#include "health/report/node_health.h"
#include "k8s/api_client.h"
#include "k8s/client_config.h"
#include "k8s/node_labels.h"
#include "k8s/object_applier.h"
#include "k8s/objects.h"
#include "mps/daemon.h"
#include "mps/manager.h"
#include "preflight/preflight_policy.h"
#include "repair/repair_policy.h"
#include "repair/repair_record.h"
#include "scheduler/model/gpu_node.h"

namespace gpulet::cli {
namespace {

constexpr std::size_t kMostRequestBytes = 64u << 10;

std::vector<std::string> list_directory(const std::string& directory) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(directory.c_str()), ::closedir);
  if (!open) return names;
  while (const dirent* entry = ::readdir(open.get())) names.emplace_back(entry->d_name);
  std::ranges::sort(names);
  return names;
}

void remove_file(const std::string& path, RemovedFiles& removed) {
  if (::unlink(path.c_str()) == 0) {
    removed.paths.push_back(path);
  } else if (errno != ENOENT && errno != ENOTDIR) {
    removed.errors.push_back(errno_error("cannot remove", errno, path));
  }
}

void remove_cdi_specs(const std::string& directory, RemovedFiles& removed) {
  // Nothing was ever written there: do not create the directory.
  if (std::ranges::count(list_directory(directory), cdi::kSpecList) == 0) return;
  const auto done = cdi::SpecDirectory(directory).write_specs({});
  if (!done) {
    removed.errors.push_back(done.error());
    return;
  }
  for (const auto& name : done->removed) removed.paths.push_back(directory + "/" + name);
  removed.errors.insert(removed.errors.end(), done->errors.begin(), done->errors.end());
}

// An agent that was killed leaves its sockets. Another device plugin's socket has a listener.
void remove_dead_sockets(const std::string& directory, RemovedFiles& removed) {
  for (const auto& name : list_directory(directory)) {
    if (!name.starts_with("nvidia-") || !name.ends_with(".sock")) continue;
    if (is_dead_socket(directory + "/" + name)) remove_file(directory + "/" + name, removed);
  }
}

// Limits that are in force stay: containers run with them.
void remove_limit_records(const std::string& directory, RemovedFiles& removed) {
  for (const auto& name : list_directory(directory)) {
    const bool is_record = name.ends_with(".json") && agent::is_container_id(name.substr(0, name.size() - 5));
    if (is_record || name == "agent.sock") remove_file(directory + "/" + name, removed);
  }
}

// Not the file of another program that asks for a reboot.
void remove_reboot_request(const std::string& path, RemovedFiles& removed) {
  const auto content = read_file(path, kMostRequestBytes);
  if (content && content->starts_with(agent::kSentinelHead)) remove_file(path, removed);
}

}  // namespace

RemovedFiles remove_node_files(const NodeDirectories& directories) {
  RemovedFiles removed;
  if (!directories.spec_dir.empty()) remove_cdi_specs(directories.spec_dir, removed);
  if (!directories.hook_dir.empty()) remove_file(directories.hook_dir + "/gpulet-hook", removed);
  if (!directories.device_plugin_dir.empty()) remove_dead_sockets(directories.device_plugin_dir, removed);
  for (auto& path : dra::remove_dead_sockets(directories.plugins_dir, directories.plugin_registry_dir,
                                             std::string(dra::kDriverName)))
    removed.paths.push_back(std::move(path));
  if (!directories.run_dir.empty()) {
    for (const char* name : {"health.json", "agent.sock"})
      remove_file(directories.run_dir + "/" + name, removed);
    remove_limit_records(directories.run_dir + "/limits", removed);
  }
  if (!directories.run_dir.empty()) remove_reboot_request(directories.run_dir + "/reboot-required", removed);
  if (!directories.state_dir.empty()) {
    for (const auto& name : {std::string(agent::kHealthStateFile), std::string(agent::kUsageFile),
                             std::string(agent::kUsageFile) + agent::kBrokenUsageSuffix})
      remove_file(directories.state_dir + "/" + name, removed);
    remove_file(repair::record_path(directories.state_dir), removed);
    remove_file(preflight::boot_record_path(directories.state_dir), removed);
    const auto cordons = agent::cordons_path(directories.state_dir);
    for (const char* suffix : {"", ".lock"}) remove_file(cordons + suffix, removed);
    remove_file(agent::turn_path(directories.state_dir), removed);
    remove_file(agent::standby_path(directories.state_dir), removed);
    // Last: its lock keeps an agent from starting until everything is removed.
    remove_file(agent::presence_path(directories.state_dir), removed);
  }
  return removed;
}

namespace {

using namespace std::chrono_literals;

// Polled: not every file system reports that another process released the agent's lock.
constexpr BackoffLimits kAgentBackoff{20ms, 500ms};
constexpr BackoffLimits kDaemonSetBackoff{200ms, 2s};
constexpr Duration kRequestLimit = 10s;

std::optional<Duration> parse_limit(const std::string& text) {
  const auto limit = parse_duration(text);
  if (limit && *limit > Duration::zero()) return limit;
  print_error("gpulet cleanup", "--limit: invalid duration '" + text + "'; expected for example 2m");
  return std::nullopt;
}

k8s::NodeLeftovers node_traces(const std::string& node, bool gpu_node) {
  k8s::NodeLeftovers traces{.field_manager = k8s::kLabelFieldManager,
                            .labels = {health::kHealthLabel, health::kPreflightLabel, agent::kMigStateLabel},
                            .taints = {health::kFaultTaint},
                            .conditions = {health::kCondition, repair::kRebootCondition},
                            .objects = {},
                            .annotations = {repair::RebootRequestPolicy().annotation}};
  if (gpu_node) traces.objects = {scheduler::kGpuNodesPath + ("/" + node)};
  return traces;
}

// Runs the steps one after the other on its own loop.
class Cleanup {
 public:
  Cleanup(CleanupOptions options, std::optional<k8s::ClientConfig> access)
      : options_(std::move(options)), access_(std::move(access)) {}

  int run_steps(Duration limit) {
    const auto end = loop_.after(limit, [this] {
      report_failure("timed out after " + format_duration(limit_) + " while " + step_ + last_error());
      loop_.stop_loop();
    });
    limit_ = limit;
    wait_for_agent_exit();
    loop_.run_loop();
    return failed_ ? kFailed : 0;
  }

 private:
  void wait_for_agent_exit() {
    step_ = "waiting for the agent to exit";
    if (options_.directories.state_dir.empty()) return stop_mps_daemons();
    auto held = ProcessLock::acquire_lock(agent::presence_path(options_.directories.state_dir));
    if (held) {
      presence_.emplace(std::move(*held));
      return stop_mps_daemons();
    }
    if (held.error().code() != Code::kFailedPrecondition) {
      report_failure(held.error().full_message());
      return stop_mps_daemons();
    }
    next_ = loop_.after(backoff_.next_delay(), [this] { wait_for_agent_exit(); });
  }

  void stop_mps_daemons() {
    step_ = "stopping the MPS control daemons";
    if (options_.mps_root.empty()) return remove_files();
    daemons_.emplace(
        loop_,
        mps::DaemonOptions{
            .root = options_.mps_root, .driver_root = options_.driver_root, .seed = std::random_device{}()},
        mps::nvidia_smi_compute_mode(loop_, options_.driver_root),
        [](const std::string&, const inventory::Health&) {});
    daemons_->apply_specs({});  // an empty list stops those that an agent left
    daemons_->stop_all([this] { remove_mps_directories(); });
  }

  // An agent that ended has restored them itself.
  void restore_power() {
    step_ = "restoring power limits and clocks";
    const auto& state_dir = options_.directories.state_dir;
    if (state_dir.empty()) return;
    const auto restored = agent::restore_recorded_power(state_dir, {.driver_root = options_.driver_root});
    if (!restored) return report_failure("cannot restore power limits: " + restored.error().full_message());
    if (*restored != 0)
      std::cout << "restored the power limits and clocks of " << text::count_text(*restored, "GPU") << '\n';
  }

  void remove_mps_directories() {
    const auto removed = mps::remove_leftovers(options_.mps_root);
    removed ? print_removed(*removed) : report_failure(removed.error().full_message());
    remove_files();
  }

  void remove_files() {
    restore_power();
    const auto removed = remove_node_files(options_.directories);
    print_removed(removed.paths);
    for (const auto& error : removed.errors) report_failure(error.full_message());
    step_ = "removing what the agent wrote to the Node";
    if (!access_) {
      std::cout << "no cluster is configured: no Node was changed\n";
      return loop_.stop_loop();
    }
    const auto node = access_->node_name;
    node_ =
        k8s::NodeCleanup::start_cleanup(loop_, *access_, node_traces(node, options_.gpu_node), [this, node] {
          std::cout << "removed the labels, taints"
                    << (options_.gpu_node ? ", condition and GpuNode" : " and condition") << " of " << node
                    << '\n';
          loop_.stop_loop();
        });
  }

  static void print_removed(const std::vector<std::string>& paths) {
    for (const auto& path : paths) std::cout << "removed " << path << '\n';
  }

  std::string last_error() const {
    const auto trouble = node_ ? node_->cleanup_status().error : std::string();
    return trouble.empty() ? trouble : ": " + trouble;
  }

  void report_failure(const std::string& why) {
    failed_ = true;
    std::cerr << "gpulet cleanup: " << why << '\n';
  }

  CleanupOptions options_;
  std::optional<k8s::ClientConfig> access_;
  EpollLoop loop_;
  Duration limit_{};
  Backoff backoff_{kAgentBackoff, std::random_device{}()};
  std::string step_;
  bool failed_ = false;
  std::optional<ProcessLock> presence_;
  std::optional<mps::DaemonManager> daemons_;
  std::unique_ptr<k8s::NodeCleanup> node_;
  Subscription next_;
};

// The status of a DaemonSet.
struct Progress {
  std::int64_t ready = 0, desired = 0;
  bool done = false;
};

Progress parse_progress(const std::string& body) {
  const auto object = parse_json(body);
  const auto number = [](const nlohmann::json& of, const char* name) {
    const auto& value = json_member(of, name);
    return value.is_number_integer() ? value.get<std::int64_t>() : 0;
  };
  const auto& status = json_member(object, "status");
  Progress progress{number(status, "numberReady"), number(status, "desiredNumberScheduled")};
  const bool seen =
      number(status, "observedGeneration") >= number(json_member(object, "metadata"), "generation") &&
      status.contains("observedGeneration");
  progress.done = seen && progress.ready >= progress.desired;
  return progress;
}

}  // namespace

int run_cleanup(const CleanupOptions& options) {
  const auto limit = parse_limit(options.limit);
  if (!limit) return kWrongCommand;
  auto access = k8s::find_client_config(config::process_environment());
  auto where = options;
  if (where.directories.device_plugin_dir.empty())
    where.directories.device_plugin_dir = where.kubelet_dir + "/device-plugins";
  where.directories.plugins_dir = where.kubelet_dir + "/plugins";
  where.directories.plugin_registry_dir = where.kubelet_dir + "/plugins_registry";
  // An unusable kubeconfig keeps nothing on the node.
  const int code = Cleanup(std::move(where), access ? *access : std::nullopt).run_steps(*limit);
  return access ? code : print_error("gpulet cleanup", access.error().full_message());
}

int wait_for_daemon_set(const std::string& daemon_set, const std::string& limit_text) {
  const auto limit = parse_limit(limit_text);
  if (!limit) return kWrongCommand;
  const auto slash = daemon_set.find('/');
  const auto name_space = daemon_set.substr(0, slash);
  const auto name = slash == std::string::npos ? "" : daemon_set.substr(slash + 1);
  if (!is_dns_label(name_space) || !is_dns_subdomain(name)) {
    return print_error("gpulet cleanup",
                       "--await-daemonset: expected NAMESPACE/NAME, found '" + daemon_set + "'",
                       kWrongCommand);
  }
  auto access = k8s::find_client_config(config::process_environment(), k8s::NodeNamePolicy::kOptional);
  if (!access || !*access) {
    std::cerr << "gpulet cleanup: " << (access ? "no cluster is configured" : access.error().full_message())
              << '\n';
    return kFailed;
  }
  EpollLoop loop;
  k8s::ApiClient client(loop, **access, kRequestLimit);
  Backoff backoff(kDaemonSetBackoff, std::random_device{}());
  Subscription next;
  std::string last = "no status yet";
  bool done = false;
  std::function<void()> poll = [&] {
    const auto path = "/apis/apps/v1/namespaces/" + name_space + "/daemonsets/" + name;
    client.send_request({.method = "GET", .path = path}, [&](const Result<http::ClientResponse>& answer) {
      if (answer && answer->status == 200) {
        const auto progress = parse_progress(answer->body);
        done = progress.done;
        last =
            std::to_string(progress.ready) + " of " + std::to_string(progress.desired) + " nodes are ready";
      } else {
        last = answer ? "the API server returned " + std::to_string(answer->status)
                      : answer.error().full_message();
      }
      if (done) return loop.stop_loop();
      next = loop.after(backoff.next_delay(), poll);
    });
  };
  poll();
  const auto end = loop.after(*limit, [&] { loop.stop_loop(); });
  loop.run_loop();
  (done ? std::cout : std::cerr) << (done ? "" : "gpulet cleanup: timed out after " + limit_text + ": ")
                                 << daemon_set << ": " << last << '\n';
  return done ? 0 : kFailed;
}

int wait_for_termination() {
  EpollLoop loop;
  const auto signals = SignalWatcher::watch_signals(loop, {SIGTERM, SIGINT}, [&](int) { loop.stop_loop(); });
  if (!signals) {
    return print_error("gpulet cleanup", signals.error().full_message());
  }
  loop.run_loop();
  return 0;
}

void add_cleanup(CLI::App& app, Run& run) {
  auto& command =
      add_command(app, {.name = "cleanup",
                        .summary = "Remove everything gpulet left on this node (run after uninstall)",
                        .details = "Waits for the agent to exit, stops its MPS control daemons, removes its "
                                   "files and what it wrote to the\n"
                                   "Node. Can be repeated. The chart runs it on each node on uninstall.",
                        .examples = "  gpulet cleanup\n  gpulet cleanup --limit 5m",
                        .group = kChangeGroup});
  struct Given {
    CleanupOptions options;
    std::string daemon_set;
    bool idle = false;
  };
  const auto given = std::make_shared<Given>();
  auto& o = given->options;
  o.directories.device_plugin_dir.clear();  // below the kubelet's
  command
      .add_option("--cdi-spec-dir", o.directories.spec_dir, "directory of CDI specs (default /var/run/cdi)")
      ->envname("GPULET_CDI_SPEC_DIR")
      ->group(kNodeGroup);
  command
      .add_option("--cdi-hook-dir", o.directories.hook_dir, "directory of the hook (default /var/lib/gpulet)")
      ->envname("GPULET_CDI_HOOK_DIR")
      ->group(kNodeGroup);
  command
      .add_option("--state-dir", o.directories.state_dir,
                  "the agent's state directory (default /var/lib/gpulet)")
      ->envname("GPULET_STATE_DIR")
      ->group(kNodeGroup);
  command
      .add_option("--run-dir", o.directories.run_dir,
                  "directory of its report and socket (default /run/gpulet)")
      ->group(kNodeGroup);
  command
      .add_option("--kubelet-dir", o.kubelet_dir, "root directory of the kubelet (default /var/lib/kubelet)")
      ->envname("GPULET_KUBELET_DIR")
      ->group(kNodeGroup);
  command.add_option("--mps-root", o.mps_root, "MPS root whose control daemons to stop")
      ->envname("MPS_ROOT")
      ->group(kNodeGroup);
  command
      .add_option("--driver-root", o.driver_root,
                  "root directory of the driver's files (default /driver-root)")
      ->envname("DRIVER_ROOT_CTR_PATH")
      ->group(kNodeGroup);
  command
      .add_option("--publish-gpu-node", o.gpu_node,
                  "false: delete no GpuNode, which takes rights that a kubelet lacks (default true)")
      ->envname("GPULET_PUBLISH_GPU_NODE");
  command.add_option("--limit", o.limit, "time limit of the whole command (default 1m)");
  command.add_option("--await-daemonset", given->daemon_set,
                     "remove nothing; wait until the DaemonSet NAMESPACE/NAME is ready on each of its nodes");
  command.add_flag("--idle", given->idle, "remove nothing; wait for SIGTERM");
  command.callback([given, &run] {
    run = [given] {
      if (given->idle) return wait_for_termination();
      if (!given->daemon_set.empty()) return wait_for_daemon_set(given->daemon_set, given->options.limit);
      return run_cleanup(given->options);
    };
  });
}

}  // namespace gpulet::cli
