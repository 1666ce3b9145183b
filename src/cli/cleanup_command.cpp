#include "cli/cleanup_command.h"

#include <signal.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "agent/cordon_care.h"
#include "agent/mig_wishes.h"
#include "base/backoff.h"
#include "base/presence.h"
#include "base/signals.h"
#include "cli/exit_codes.h"
#include "cluster/access.h"
#include "cluster/api_client.h"
#include "cluster/node_cleanup.h"
#include "cluster/node_labels.h"
#include "cluster/objects.h"
#include "config/load.h"
#include "config/values.h"
#include "health/telling.h"
#include "mps/compute_mode.h"
#include "mps/leftovers.h"
#include "mps/manager.h"
#include "scheduler/gpu_node.h"

namespace gpulet::cli {
namespace {

using namespace std::chrono_literals;

// The agent's lock has no event that another process could wait for on every file system.
constexpr BackoffLimits kAgentBackoff{20ms, 500ms};
constexpr BackoffLimits kDaemonSetBackoff{200ms, 2s};
constexpr Duration kRequestLimit = 10s;

std::optional<Duration> limit_of(const std::string& text) {
  const auto limit = config::parse_duration(text);
  if (limit && *limit > Duration::zero()) return limit;
  std::cerr << "gpulet cleanup: --limit: '" << text << "' is no duration such as 2m\n";
  return std::nullopt;
}

cluster::LeftOnNode left_on(const std::string& node) {
  return {.field_manager = cluster::kLabelManager,
          .labels = {health::kHealthLabel, agent::kMigStateLabel},
          .taints = {health::kFaultTaint},
          .conditions = {health::kCondition},
          .objects = {scheduler::kGpuNodesPath + ("/" + node)}};
}

// One after the other, on a loop of its own.
class Cleanup {
 public:
  Cleanup(CleanupOptions options, std::optional<cluster::Access> access)
      : options_(std::move(options)), access_(std::move(access)) {}

  int run(Duration limit) {
    const auto end = loop_.after(limit, [this] {
      failed("not within " + config::format_duration(limit_) + ": " + doing_ + trouble());
      loop_.stop();
    });
    limit_ = limit;
    await_agent();
    loop_.run();
    return failed_ ? kFailed : 0;
  }

 private:
  void await_agent() {
    doing_ = "the end of the agent of this node";
    if (options_.folders.state_dir.empty()) return end_daemons();
    auto held = Presence::hold(agent::presence_file(options_.folders.state_dir));
    if (held) {
      presence_.emplace(std::move(*held));
      return end_daemons();
    }
    if (held.error().code() != Code::kFailedPrecondition) {
      failed(held.error().text());
      return end_daemons();
    }
    next_ = loop_.after(backoff_.next(), [this] { await_agent(); });
  }

  void end_daemons() {
    doing_ = "the end of the MPS control daemons";
    if (options_.mps_root.empty()) return remove_files();
    daemons_.emplace(
        loop_,
        mps::DaemonOptions{
            .root = options_.mps_root, .driver_root = options_.driver_root, .seed = std::random_device{}()},
        mps::compute_mode_by_nvidia_smi(loop_, options_.driver_root),
        [](const std::string&, const inventory::Health&) {});
    daemons_->apply({});  // none is wanted: those that an agent has left are ended
    daemons_->stop([this] { remove_mps_folders(); });
  }

  void remove_mps_folders() {
    const auto removed = mps::remove_leftovers(options_.mps_root);
    removed ? say_removed(*removed) : failed(removed.error().text());
    remove_files();
  }

  void remove_files() {
    const auto removed = agent::remove_node_files(options_.folders);
    say_removed(removed.paths);
    for (const auto& error : removed.errors) failed(error.text());
    doing_ = "what the Node has of the agent";
    if (!access_) {
      std::cout << "no cluster is known here: nothing was taken from a Node\n";
      return loop_.stop();
    }
    const auto node = access_->node_name;
    node_ = cluster::NodeCleanup::start(loop_, *access_, left_on(node), [this, node] {
      std::cout << "removed the labels, taints, condition and GpuNode of " << node << '\n';
      loop_.stop();
    });
  }

  static void say_removed(const std::vector<std::string>& paths) {
    for (const auto& path : paths) std::cout << "removed " << path << '\n';
  }

  std::string trouble() const {
    const auto trouble = node_ ? node_->delivery().trouble : std::string();
    return trouble.empty() ? trouble : ": " + trouble;
  }

  void failed(const std::string& why) {
    failed_ = true;
    std::cerr << "gpulet cleanup: " << why << '\n';
  }

  CleanupOptions options_;
  std::optional<cluster::Access> access_;
  EpollLoop loop_;
  Duration limit_{};
  Backoff backoff_{kAgentBackoff, std::random_device{}()};
  std::string doing_;
  bool failed_ = false;
  std::optional<Presence> presence_;
  std::optional<mps::Manager> daemons_;
  std::unique_ptr<cluster::NodeCleanup> node_;
  Subscription next_;
};

// What a DaemonSet says of itself.
struct Progress {
  std::int64_t ready = 0, wanted = 0;
  bool done = false;
};

Progress progress_of(const std::string& body) {
  const auto object = nlohmann::json::parse(body, nullptr, false);
  const auto number = [](const nlohmann::json& of, const char* name) {
    const auto& value = cluster::member(of, name);
    return value.is_number_integer() ? value.get<std::int64_t>() : 0;
  };
  const auto& status = cluster::member(object, "status");
  Progress progress{number(status, "numberReady"), number(status, "desiredNumberScheduled")};
  const bool seen =
      number(status, "observedGeneration") >= number(cluster::member(object, "metadata"), "generation") &&
      status.contains("observedGeneration");
  progress.done = seen && progress.ready >= progress.wanted;
  return progress;
}

}  // namespace

int cleanup(const CleanupOptions& options) {
  const auto limit = limit_of(options.limit);
  if (!limit) return kWrongCommand;
  auto access = cluster::find_access(config::process_environment());
  if (!access) {
    std::cerr << "gpulet cleanup: " << access.error().text() << '\n';
    return kFailed;
  }
  auto where = options;
  if (where.folders.device_plugin_dir.empty())
    where.folders.device_plugin_dir = where.kubelet_dir + "/device-plugins";
  return Cleanup(std::move(where), std::move(*access)).run(*limit);
}

int await_daemon_set(const std::string& daemon_set, const std::string& limit_text) {
  const auto limit = limit_of(limit_text);
  if (!limit) return kWrongCommand;
  const auto slash = daemon_set.find('/');
  const auto name_space = daemon_set.substr(0, slash);
  const auto name = slash == std::string::npos ? "" : daemon_set.substr(slash + 1);
  if (!cluster::is_name(name_space) || !cluster::is_name(name)) {
    std::cerr << "gpulet cleanup: --await-daemonset: '" << daemon_set << "' is not NAMESPACE/NAME\n";
    return kWrongCommand;
  }
  auto access = cluster::find_access(config::process_environment(), cluster::OfNode::kNo);
  if (!access || !*access) {
    std::cerr << "gpulet cleanup: " << (access ? "no cluster is known here" : access.error().text()) << '\n';
    return kFailed;
  }
  EpollLoop loop;
  cluster::ApiClient client(loop, **access, kRequestLimit);
  Backoff backoff(kDaemonSetBackoff, std::random_device{}());
  Subscription next;
  std::string last = "nothing is known of it";
  bool done = false;
  std::function<void()> ask = [&] {
    const auto path = "/apis/apps/v1/namespaces/" + name_space + "/daemonsets/" + name;
    client.request({.method = "GET", .path = path}, [&](const Result<cluster::ApiResponse>& answer) {
      if (answer && answer->status == 200) {
        const auto progress = progress_of(answer->body);
        done = progress.done;
        last = std::to_string(progress.ready) + " of " + std::to_string(progress.wanted) + " nodes are ready";
      } else {
        last = answer ? "the API server answered " + std::to_string(answer->status) : answer.error().text();
      }
      if (done) return loop.stop();
      next = loop.after(backoff.next(), ask);
    });
  };
  ask();
  const auto end = loop.after(*limit, [&] { loop.stop(); });
  loop.run();
  (done ? std::cout : std::cerr) << (done ? "" : "gpulet cleanup: not within " + limit_text + ": ")
                                 << daemon_set << ": " << last << '\n';
  return done ? 0 : kFailed;
}

int idle() {
  EpollLoop loop;
  const auto signals = SignalWatch::start(loop, {SIGTERM, SIGINT}, [&](int) { loop.stop(); });
  if (!signals) {
    std::cerr << "gpulet cleanup: " << signals.error().text() << '\n';
    return kFailed;
  }
  loop.run();
  return 0;
}

}  // namespace gpulet::cli
