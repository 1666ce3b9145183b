#include "mps/daemon.h"

#include <sys/xattr.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "mps/namespaces.h"
#include "mps/shared_memory.h"

namespace gpulet::mps {
namespace {

// The daemon's own text for a rejected command.
bool is_refusal(const std::string& line) {
  const std::string lower = text::lower(line);
  for (const std::string_view keyword : {"invalid", "fail", "error", "unknown", "cannot"}) {
    if (lower.find(keyword) != std::string::npos) return true;
  }
  return false;
}

// Of get_server_list and get_client_list; none where the daemon does not answer.
std::vector<std::string> process_ids_in(const Result<std::string>& output) {
  std::vector<std::string> ids;
  if (!output) return ids;
  for (auto& line : lines_of_output(*output)) {
    if (text::parse_unsigned(line) && ids.size() < kMaxListedProcesses) ids.push_back(std::move(line));
  }
  return ids;
}

// With SELinux, containers can only access files with their label. Source: mps/daemon.go.
void label_for_containers(const std::string& directory) {
  constexpr std::string_view kLabel = "system_u:object_r:container_file_t:s0";
  if (::access("/sys/fs/selinux/enforce", F_OK) != 0) return;
  if (::setxattr(directory.c_str(), "security.selinux", kLabel.data(), kLabel.size() + 1, 0) != 0) {
    log::warning("cannot label the MPS pipe directory for containers",
                 errno_error("setxattr", errno, directory));
  }
}

}  // namespace

bool serves_same_devices(const DaemonSpec& a, const DaemonSpec& b) {
  return a.name == b.name && a.devices == b.devices && a.visible_devices == b.visible_devices &&
         a.protocol == b.protocol &&
         std::ranges::equal(a.sm_partitions, b.sm_partitions, {}, &SmPartition::share, &SmPartition::share);
}

Daemon::Daemon(Loop& loop, DaemonSpec spec, DaemonOptions options, SetComputeMode set_compute_mode,
               std::function<void(const inventory::Health&)> health)
    : loop_(loop),
      spec_(std::move(spec)),
      options_(std::move(options)),
      set_compute_mode_(std::move(set_compute_mode)),
      on_health_(std::move(health)),
      process_protocol_(spec_.protocol),
      backoff_(options_.retry, options_.seed) {}

Daemon::~Daemon() = default;

void Daemon::start_daemon() {
  set_health({false, "the MPS control daemon of " + spec_.name + " is starting"});
  begin_start();
}

void Daemon::begin_start() {
  state_ = State::kStarting;
  process_protocol_ = spec_.protocol;
  replaces_former_ = launched_ = false;
  timer_.reset();
  for (const auto& directory : {pipes(), log_directory(options_.root, spec_.name)}) {
    if (const auto made = make_directories(directory); !made) return on_failure(made.error());
  }
  if (const auto made = make_client_shm(options_.root, spec_.name); !made) return on_failure(made.error());
  auto program = find_program();
  if (!program) return on_failure(program.error());
  program_ = std::move(*program);
  if (const auto longest = longest_socket_path(program_->root, spec_); longest.size() > kMaxSocketPath) {
    return on_failure(
        Error(Code::kInvalidArgument, "the path of an MPS socket has " + std::to_string(longest.size()) +
                                          " characters, at most " + std::to_string(kMaxSocketPath) +
                                          " are possible: " + longest));
  }
  label_for_containers(pipes());
  has_namespaces() ? check_protocol() : prepare_start();
}

void Daemon::prepare_start() {
  // Before anything changes: an agent that starts after this one was killed restores the compute modes. The
  // record of a daemon that may be adopted stays.
  if (::access(started_file(options_.root, spec_.name).c_str(), F_OK) != 0) {
    if (const auto written = write_record(nullptr, false); !written) return on_failure(written.error());
  }
  set_modes(0, ComputeMode::kExclusiveProcess, &Daemon::stop_former_process);
}

Result<ControlProgram> Daemon::find_program() const {
  return find_control_program(options_.driver_root, options_.root, options_.host_root, client_shm());
}

// One GPU at a time. MIG devices have no compute mode.
void Daemon::set_modes(std::size_t next, ComputeMode mode, Step then) {
  while (next < spec_.devices.size() && spec_.devices[next].mig) ++next;
  if (next == spec_.devices.size()) return (this->*then)();
  const auto done = [this, next, mode, then, round = ++round_, alive = lifetime_.watch()](const Status& set) {
    if (!alive || round != round_) return;
    if (!set && (mode == ComputeMode::kDefault || set.error().code() == Code::kUnsupported)) {
      log::warning("cannot set the compute mode", set.error(), {{"gpu", spec_.devices[next].uuid.str()}});
    } else if (!set) {
      return on_failure(set.error().with_context("cannot set the compute mode to EXCLUSIVE_PROCESS"));
    }
    set_modes(next + 1, mode, then);
  };
  modes_changed_ = true;
  const auto set = set_compute_mode_;  // `done` may destroy this object, also when called from inside
  set(spec_.devices[next].uuid, mode, done);
}

// A daemon of an earlier agent may exist: adopt it or stop it. One of the other protocol, in the other
// directory, is stopped.
void Daemon::stop_former_process() {
  replaces_former_ = true;
  process_protocol_ = other_protocol();
  std::error_code ignored;
  if (!std::filesystem::exists(pipes(), ignored)) return remove_other_pipes();
  if (auto former = find_process()) {
    process_ = std::move(*former);
    return await_former_exit(&Daemon::remove_other_pipes);
  }
  // Something may listen there that /proc does not show.
  if (!std::filesystem::exists(pipes() + "/control", ignored)) return remove_other_pipes();
  send_quit([this](const Result<std::string>&) { remove_other_pipes(); });
}

void Daemon::remove_other_pipes() {
  std::error_code ignored;
  std::filesystem::remove_all(pipes(), ignored);
  process_protocol_ = spec_.protocol;
  adopt_former_process();
}

void Daemon::adopt_former_process() {
  if (has_sm_partitions()) read_sm_partitions();
  auto former = find_process();
  if (!former) {
    std::error_code ignored;
    if (!std::filesystem::exists(pipes() + "/control", ignored)) return launch();
    // Something may listen there that /proc does not show. It goes on if it ran with these devices.
    const auto quit_and_launch = [this](const Result<std::string>&) { launch(); };
    return check_serving([this, quit_and_launch](const Result<std::string>& output) {
      if (output && ran_with_these_devices()) return send_limits();
      send_quit(quit_and_launch);
    });
  }
  process_ = std::move(*former);
  if (!may_adopt()) return await_former_exit(&Daemon::launch);
  log::info("adopted a running MPS control daemon", {{"daemon", spec_.name}, {"pid", process_->id()}});
  check_serving([this](const Result<std::string>& output) {
    if (!output) return await_former_exit(&Daemon::launch);
    const auto saved = read_file(started_file(options_.root, spec_.name));
    const bool same = saved && *saved == fingerprint(process_.get(), true) && serves_with_limits(*output);
    same ? on_running() : send_limits();
  });
}

void Daemon::await_former_exit(Step then) {
  log::info("stopping an MPS control daemon of other devices",
            {{"daemon", spec_.name}, {"pid", process_->id()}});
  process_->on_end(loop_, [this, then] {
    process_.reset();
    drop_commands();
    timer_.reset();
    (this->*then)();
  });
  timer_ = loop_.after(options_.quit_grace, [this] { process_->kill(); });
  send_quit();
}

void Daemon::launch() {
  if (const auto written = write_record(nullptr, false); !written) return on_failure(written.error());
  launching_ = true;
  auto arguments = has_namespaces() ? launch_arguments() : Arguments{"-d"};
  if (has_sm_partitions()) arguments.emplace_back("-S");
  run_command(arguments, "", options_.start_limit, [this](const Result<std::string>& started) {
    launching_ = false;
    if (state_ == State::kStopping) return quit();
    const std::string options = has_sm_partitions() ? " with static SM partitions" : "";
    if (!started)
      return on_failure(started.error().with_context("the MPS control daemon does not start" + options));
    launched_ = true;
    // Ended if it refuses its first command.
    if (auto found = find_process()) process_ = std::move(*found);
    send_limits();
  });
}

void Daemon::send_limits() {
  limits_changed_ = false;
  // Memory limits cannot be read back: killed in between, the next agent must send its own.
  if (process_) {
    if (const auto written = write_record(process_.get(), false); !written)
      return on_failure(written.error());
  }
  if (has_namespaces()) return send_namespaces();
  run_command({}, limit_commands() + serving_command(), options_.response_limit,
              [this](const Result<std::string>& output) {
                if (output) return on_limits(*output);
                limits_changed_ = true;
                // It has clients, so it gets a second chance, as in any liveness check.
                if (state_ == State::kRunning) return on_unanswered(output.error());
                on_failure(output.error().with_context("the MPS control daemon does not accept its limits"));
              });
}

void Daemon::on_limits(const std::string& output) {
  const auto lines = lines_of_output(output);
  for (const auto& line : lines) {
    if (is_refusal(line) && !line.starts_with("GPU"))  // of a list of partitions
      return on_failure(Error(Code::kUnavailable, "the MPS control daemon rejects a limit: " + line));
  }
  if (has_sm_partitions()) return check_sm_partitions(output);
  if (!holds_thread_percentage(output, spec_.thread_percentage)) {
    return on_failure(
        Error(Code::kUnavailable, "the MPS control daemon does not keep its thread percentage: '" +
                                      (lines.empty() ? std::string() : lines.back()) + "' for " +
                                      std::to_string(spec_.thread_percentage)));
  }
  send_server_limits();
}

// A running server keeps its initial defaults unless it gets new ones.
void Daemon::send_server_limits() {
  run_command({}, "get_server_list\n", options_.response_limit, [this](const Result<std::string>& output) {
    if (!output) return on_failure(output.error());
    std::string commands;
    for (const auto& server : lines_of_output(*output)) {
      if (!text::parse_unsigned(server)) continue;
      for (const auto& limit : spec_.memory_limits) {
        commands += "set_device_pinned_mem_limit " + server + " " + std::to_string(limit.device) + " " +
                    std::to_string(limit.mebibytes) + "M\n";
      }
      if (has_sm_partitions()) continue;
      commands +=
          "set_active_thread_percentage " + server + " " + std::to_string(spec_.thread_percentage) + "\n";
    }
    if (commands.empty()) return on_running();
    run_command({}, commands, options_.response_limit, [this](const Result<std::string>& sent) {
      // The server may have exited meanwhile; the next one gets the new defaults.
      if (!sent)
        log::warning("an MPS server keeps its previous limits", sent.error(), {{"daemon", spec_.name}});
      on_running();
    });
  });
}

void Daemon::on_running() {
  if (!process_) watch_process();
  if (process_) {
    process_->on_end(loop_, [this] { on_died(); });
  }
  if (const auto written = write_record(process_.get(), true); !written) return on_failure(written.error());
  state_ = State::kRunning;
  unanswered_ = 0;
  set_health({});
  limits_changed_ ? send_limits() : schedule_check();
  set_recorded_namespaces();
}

Result<std::unique_ptr<DaemonProcess>> Daemon::find_process() const {
  return DaemonProcess::find_daemon_process(
      pipes(), program_ ? pipe_directory(program_->root, spec_.name, process_protocol_) : std::string());
}

void Daemon::watch_process() {
  auto found = find_process();
  if (found) {
    process_ = std::move(*found);
  } else {
    log::warning("cannot find the MPS control daemon's process; only liveness checks notice its exit",
                 found.error(), {{"daemon", spec_.name}});
  }
}

void Daemon::schedule_check() {
  timer_ = loop_.after(options_.check_interval, [this] { check_responding(); });
}

void Daemon::check_responding() {
  check_serving([this](const Result<std::string>& output) {
    if (!output) return on_unanswered(output.error());
    unanswered_ = 0;
    backoff_.reset();
    const bool matches = serves_with_limits(*output);
    if (matches && !limits_changed_) set_health({});
    if (!matches) log::warning("the MPS control daemon has lost its limits", {{"daemon", spec_.name}});
    matches && !limits_changed_ ? schedule_check() : send_limits();
  });
}

void Daemon::on_unanswered(const Error& error) {
  if (++unanswered_ >= kMaxUnanswered) return on_failure(error.with_context("the MPS control daemon hangs"));
  set_health({false, "the MPS control daemon of " + spec_.name + " does not respond: " + error.message()});
  check_responding();
}

void Daemon::on_died() {
  process_.reset();
  drop_commands();
  on_failure(Error(Code::kUnavailable, "the MPS control daemon of " + spec_.name + " has ended"));
}

// Stop what is left of it, and retry later.
void Daemon::on_failure(const Error& error) {
  if (state_ == State::kStopping) return clean_up();
  ++round_;
  drop_commands();
  if (process_) process_->kill();
  process_.reset();
  // The compute modes are still set. A daemon that this one has not replaced yet may still be adopted.
  if (program_ && replaces_former_) static_cast<void>(write_record(nullptr, false).has_value());
  state_ = State::kWaiting;
  if (health_.healthy || health_.reason != error.full_message()) {
    log::error("the MPS control daemon failed", error, {{"daemon", spec_.name}});
  }
  set_health({false, error.full_message()});
  timer_ = loop_.after(backoff_.next_delay(), [this] { begin_start(); });
}

void Daemon::update_spec(DaemonSpec spec) {
  const bool limits = spec.memory_limits != spec_.memory_limits ||
                      spec.thread_percentage != spec_.thread_percentage ||
                      spec.namespaces != spec_.namespaces;
  spec_ = std::move(spec);
  if (!limits) return;
  limits_changed_ = true;
  // During a start, the sequence picks up the newest spec.
  if (state_ == State::kRunning) send_limits();
}

void Daemon::stop_daemon(std::function<void()> done) {
  stopped_ = std::move(done);
  ++round_;
  timer_.reset();
  state_ = State::kStopping;
  refuse_recorded_namespaces();
  // An adopted daemon's GPUs were set to exclusive mode too.
  modes_changed_ = modes_changed_ || ::access(started_file(options_.root, spec_.name).c_str(), F_OK) == 0;
  if (!program_) {
    auto program = find_program();
    if (program) program_ = std::move(*program);
  }
  // A daemon that is still starting would appear after the stop.
  if (launching_) return;
  drop_commands();
  quit();
}

void Daemon::quit() {
  for (const unsigned protocol : {spec_.protocol, other_protocol()}) {
    if (process_) break;
    process_protocol_ = protocol;
    if (auto found = find_process()) process_ = std::move(*found);
  }
  if (!process_) return clean_up();
  process_->on_end(loop_, [this] {
    process_.reset();
    drop_commands();
    timer_.reset();
    clean_up();
  });
  timer_ = loop_.after(options_.quit_grace, [this] {
    log::warning("killing an MPS control daemon that does not quit", {{"daemon", spec_.name}});
    process_->kill();
  });
  if (!program_) return process_->kill();
  if (process_protocol_ == kProtocolWithNamespaces)
    return end_namespace_clients("it stops", [this](const Status&) { send_quit(); });
  run_command({}, "get_server_list\n", options_.response_limit,
              [this](const Result<std::string>& servers) { end_clients_of(process_ids_in(servers)); });
}

// One server after the other: a daemon has more than one only while users change.
void Daemon::end_clients_of(std::vector<std::string> servers) {
  if (servers.empty()) return send_quit();
  const auto server = servers.back();
  servers.pop_back();
  run_command(
      {}, "get_client_list " + server + "\n", options_.response_limit,
      [this, server, rest = std::move(servers)](const Result<std::string>& clients) {
        std::string commands;
        for (const auto& client : process_ids_in(clients))
          commands += "terminate_client " + server + " " + client + "\n";
        if (commands.empty()) return end_clients_of(rest);
        log::info("ending the clients of an MPS control daemon that stops", {{"daemon", spec_.name}});
        run_command({}, commands, options_.response_limit, [this, rest](const Result<std::string>& ended) {
          if (!ended)
            log::warning("cannot end the clients of an MPS server", ended.error(), {{"daemon", spec_.name}});
          end_clients_of(rest);
        });
      });
}

void Daemon::clean_up() {
  if (!modes_changed_) return on_stopped();
  set_modes(0, ComputeMode::kDefault, &Daemon::on_stopped);
}

void Daemon::on_stopped() {
  ::unlink(started_file(options_.root, spec_.name).c_str());
  ::unlink(sm_partitions_file().c_str());
  std::error_code ignored;
  if (is_claim_daemon(spec_.name)) {
    std::filesystem::remove_all(options_.root + "/" + spec_.name, ignored);
    std::filesystem::remove_all(client_shm(), ignored);
  } else {
    std::filesystem::remove_all(log_directory(options_.root, spec_.name), ignored);
  }
  state_ = State::kIdle;
  if (const auto done = std::move(stopped_)) done();
}

void Daemon::set_health(inventory::Health health) {
  if (health_reported_ && health == health_) return;
  health_reported_ = true;
  health_ = std::move(health);
  on_health_(health_);
}

}  // namespace gpulet::mps
