#include "cli/dropin/config_manager.h"

#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "k8s/client_config.h"
#include "k8s/watcher.h"

namespace gpulet::cli {
namespace {

constexpr const char* kEmptyConfig = "/dev/null";
// Interval of retries while a directory cannot be written.
constexpr Duration kRetry = std::chrono::seconds(5);

std::optional<std::string> link_target(const std::string& link) {
  std::array<char, PATH_MAX> buffer;
  const auto length = ::readlink(link.c_str(), buffer.data(), buffer.size());
  if (length < 0) return std::nullopt;
  return std::string(buffer.data(), static_cast<std::size_t>(length));
}

Status check_options(const ConfigManagerOptions& options) {
  const std::pair<const char*, const std::string*> needed[] = {
      {"--node-label", &options.node_label},
      {"--config-file-srcdir", &options.config_file_srcdir},
      {"--config-file-dst", &options.config_file_dst},
  };
  for (const auto& [flag, value] : needed) {
    if (value->empty()) return fail(Code::kInvalidArgument, "must not be empty", flag);
  }
  if (!options.send_signal) return {};
  if (options.signal < 1 || options.signal > SIGRTMAX) {
    return fail(Code::kInvalidArgument, std::to_string(options.signal) + " is not a signal", "--signal");
  }
  if (text::base_name(options.process_to_signal).empty()) {
    return fail(Code::kInvalidArgument, "\"" + options.process_to_signal + "\" is not a process name",
                "--process-to-signal");
  }
  return {};
}

Result<config::NodeConfig> node_config(const ConfigManagerOptions& options) {
  config::NodeConfig node{.directory = options.config_file_srcdir,
                          .label = options.node_label,
                          .default_config = options.default_config,
                          .fallbacks = {}};
  for (const auto& text : options.fallback_strategies) {
    const auto strategy = config::parse_fallback_strategy(text);
    if (!strategy) return fail(strategy.error().with_context("--fallback-strategies"));
    node.fallbacks.push_back(*strategy);
  }
  return node;
}

}  // namespace

Result<k8s::ClientConfig> drop_in_access(const std::string& kubeconfig, const std::string& node_name) {
  if (!kubeconfig.empty()) {
    GPULET_TRY_ASSIGN(auto access, k8s::load_kubeconfig(kubeconfig));
    access.node_name = node_name;
    return access;
  }
  std::map<std::string, std::string, std::less<>> environment;
  for (const char* name : {"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"}) {
    if (const char* value = std::getenv(name)) environment[name] = value;
  }
  environment["NODE_NAME"] = node_name;
  GPULET_TRY_ASSIGN(auto access, k8s::load_in_cluster_config(environment));
  if (access) return std::move(*access);
  return fail(Code::kFailedPrecondition, "not set, so this is not a Pod; use --kubeconfig",
              "KUBERNETES_SERVICE_HOST");
}

Result<bool> point_link(const std::string& link, const std::string& target) {
  if (link_target(link) == target) return false;
  if (const auto slash = link.rfind('/'); slash != std::string::npos && slash > 0) {
    GPULET_TRY(make_directories(link.substr(0, slash)));
  }
  // The pid keeps an init container and a sidecar apart; a file of a killed process is replaced.
  const std::string temporary = link + ".next-" + std::to_string(::getpid());
  if (::unlink(temporary.c_str()) != 0 && errno != ENOENT) {
    return fail(errno_error("cannot be replaced", errno, temporary));
  }
  if (::symlink(target.c_str(), temporary.c_str()) != 0) {
    return fail(errno_error("cannot create a link", errno, temporary));
  }
  if (::rename(temporary.c_str(), link.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    return fail(errno_error("cannot be replaced by a link", error, link));
  }
  return true;
}

std::vector<pid_t> find_processes(const std::string& name, const std::string& proc) {
  std::vector<pid_t> found;
  const std::string wanted(text::base_name(name));
  const auto root = RootDirectory::open_root(proc);
  if (!root) return found;
  const auto entries = root->list_directory("/");
  if (!entries) return found;
  for (const auto& entry : *entries) {
    const auto id = text::parse_unsigned(entry);
    if (!id || *id == 0 || static_cast<pid_t>(*id) == ::getpid()) continue;
    // An exited process or a kernel thread has no command line.
    const auto command = root->read_text_file(entry + "/cmdline");
    if (!command || command->empty()) continue;
    if (text::base_name(std::string_view(*command).substr(0, command->find('\0'))) == wanted) {
      found.push_back(static_cast<pid_t>(*id));
    }
  }
  std::ranges::sort(found);
  return found;
}

ConfigManager::ConfigManager(Loop& loop, ConfigManagerOptions options, Linked linked)
    : loop_(loop), options_(std::move(options)), linked_(std::move(linked)) {}

Result<std::unique_ptr<ConfigManager>> ConfigManager::start_config_manager(
    Loop& loop, const ConfigManagerOptions& options, Linked linked) {
  GPULET_TRY(check_options(options));
  GPULET_TRY_ASSIGN(auto node, node_config(options));
  std::unique_ptr<ConfigManager> manager(new ConfigManager(loop, options, std::move(linked)));
  GPULET_TRY_ASSIGN(
      manager->directory_,
      config::ConfigDirectoryWatcher::watch_directory(
          loop, std::move(node),
          [self = manager.get()](const std::string&, const std::optional<std::string>& problem) {
            self->on_changed(problem);
          }));
  return manager;
}

void ConfigManager::set_config_label(std::optional<std::string> value) {
  directory_->set_label(std::move(value));
}

void ConfigManager::on_changed(const std::optional<std::string>& problem) {
  if (problem && problem != problem_) log::warning(*problem);
  problem_ = problem;
  update_link();
}

void ConfigManager::update_link() {
  retry_.reset();
  const Status status = link_and_signal();
  if (!status && status.error().code() != Code::kFailedPrecondition) {
    log::warning("cannot link the node's config", status.error());
    retry_ = loop_.after(kRetry, [this] { update_link(); });
  }
  linked_(status);
}

Status ConfigManager::link_and_signal() {
  using Kind = config::ConfigChoice::Kind;
  const auto& choice = directory_->current_choice();
  if (choice.kind == Kind::kNothing) {
    return fail(Code::kFailedPrecondition, choice.problem.value_or("no config"));
  }
  const std::string target =
      choice.kind == Kind::kEmpty ? kEmptyConfig : choice.config_path(options_.config_file_srcdir);
  std::string content;
  if (choice.kind == Kind::kFile) {
    // Removed since it was chosen: the watcher will report that.
    GPULET_TRY_ASSIGN(content, read_file(target));
  }
  GPULET_TRY_ASSIGN(const bool moved, point_link(options_.config_file_dst, target));
  const bool rewritten = content_ && *content_ != content;
  if (moved) {
    log::info("linked the node's config", {{"link", options_.config_file_dst}, {"config", target}});
  } else if (rewritten) {
    log::info("the node's config changed", {{"config", target}});
  } else {
    log::debug("the node's config is unchanged", {{"config", target}});
  }
  content_ = std::move(content);
  if ((moved || rewritten) && options_.send_signal) signal_processes();
  return {};
}

// No such process is not an error: one that starts later reads the new config.
void ConfigManager::signal_processes() const {
  const auto processes = find_processes(options_.process_to_signal);
  if (processes.empty()) {
    log::info("no process to signal", {{"process", options_.process_to_signal}});
  }
  for (const pid_t process : processes) {
    if (::kill(process, options_.signal) == 0) {
      log::info("signalled",
                {{"process", options_.process_to_signal}, {"pid", process}, {"signal", options_.signal}});
    } else if (errno != ESRCH) {
      log::warning("cannot signal a process; it keeps its previous config", errno_error("kill", errno),
                   {{"process", options_.process_to_signal}, {"pid", process}});
    }
  }
}

int run_config_manager(const ConfigManagerOptions& options, const LabelSource& source) {
  const auto refuse = [](const Error& error) {
    std::cerr << "config-manager: " << error.full_message() << std::endl;
    return 1;
  };
  if (options.node_name.empty()) {
    return refuse(Error(Code::kInvalidArgument, "must not be empty", "--node-name"));
  }
  EpollLoop loop;
  const auto signals = SignalWatcher::watch_signals(loop, {SIGTERM, SIGINT, SIGQUIT}, [&loop](int signal) {
    log::info("stopping", {{"signal", signal}});
    loop.stop_loop();
  });
  if (!signals) return refuse(signals.error());
  int code = 0;
  const auto manager = ConfigManager::start_config_manager(loop, options, [&](const Status& status) {
    if (!options.oneshot) return;
    code = status ? 0 : 1;  // the manager has logged why
    loop.stop_loop();
  });
  if (!manager) return refuse(manager.error());
  std::optional<std::optional<std::string>> known;
  const auto labels = source(loop, [&](std::optional<std::string> value) {
    if (known && *known == value) return;  // another label of the node
    known = value;
    log::info("the node's label", {{"label", options.node_label}, {"value", value.value_or("")}});
    (*manager)->set_config_label(std::move(value));
  });
  if (!labels) return refuse(labels.error());
  loop.run_loop();
  return code;
}

int run_config_manager(const ConfigManagerOptions& options) {
  return run_config_manager(options, [&options](Loop& loop, auto label) -> Result<std::shared_ptr<void>> {
    GPULET_TRY_ASSIGN(auto access, drop_in_access(options.kubeconfig, options.node_name));
    return std::shared_ptr<void>(k8s::NodeLabelWatcher::watch_node_labels(
        loop, std::move(access), {}, [label, key = options.node_label](const k8s::Labels& labels) {
          const auto it = labels.find(key);
          label(it == labels.end() ? std::nullopt : std::optional(it->second));
        }));
  });
}

}  // namespace gpulet::cli
