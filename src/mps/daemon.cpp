#include "mps/daemon.h"

#include <sys/xattr.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

namespace gpulet::mps {
namespace {

constexpr std::string_view kStartedHead = "gpulet 1\npid ";
constexpr std::string_view kAlive = "get_default_active_thread_percentage\n";

// The daemon's own words for a command that it did not take.
bool says_no(const std::string& line) {
  const std::string lower = text::lower(line);
  for (const std::string_view word : {"invalid", "fail", "error", "unknown", "cannot"}) {
    if (lower.find(word) != std::string::npos) return true;
  }
  return false;
}

std::vector<std::string> lines_of(const std::string& answer) {
  std::vector<std::string> lines;
  for (const auto& line : text::split(answer, '\n')) {
    if (const auto trimmed = text::trim(line); !trimmed.empty()) lines.emplace_back(trimmed);
  }
  return lines;
}

// "25.0" → 25; negative for anything else.
double percentage_of(const std::string& line) {
  char* end = nullptr;
  const double value = std::strtod(line.c_str(), &end);
  return end != line.c_str() && *end == '\0' ? value : -1;
}

// Where SELinux is on, containers may only reach what has their label. Source: mps/daemon.go.
void label_for_containers(const std::string& folder) {
  constexpr std::string_view kLabel = "system_u:object_r:container_file_t:s0";
  if (::access("/sys/fs/selinux/enforce", F_OK) != 0) return;
  if (::setxattr(folder.c_str(), "security.selinux", kLabel.data(), kLabel.size() + 1, 0) != 0) {
    log::warning("cannot label the MPS pipe directory for containers",
                 errno_error("setxattr", errno, folder));
  }
}

}  // namespace

bool serves_same_devices(const DaemonSpec& a, const DaemonSpec& b) {
  return a.name == b.name && a.devices == b.devices && a.visible_devices == b.visible_devices;
}

Result<DaemonSpec> former_daemon(const std::string& root, const std::string& name) {
  const std::string path = started_file(root, name);
  GPULET_TRY_ASSIGN(const std::string text, read_file(path));
  if (!text.starts_with(kStartedHead)) return fail(Code::kInvalidArgument, "is not of this program", path);
  DaemonSpec spec;
  spec.name = name;
  for (const auto& line : text::split(text, '\n')) {
    const auto words = text::split(line, ' ');
    if (words.empty() || (words.front() != "visible" && words.front() != "devices")) continue;
    for (std::size_t i = 1; i < words.size(); ++i) {
      const DeviceUuid uuid(words[i]);
      if (words.front() == "visible") spec.visible_devices.push_back(uuid);
      if (words.front() == "devices") spec.devices.push_back({uuid, 0, words[i].starts_with("MIG-"), {}});
    }
  }
  return spec;
}

Daemon::Daemon(Loop& loop, DaemonSpec spec, DaemonOptions options, SetComputeMode set_compute_mode,
               std::function<void(const inventory::Health&)> health)
    : loop_(loop),
      spec_(std::move(spec)),
      options_(std::move(options)),
      set_compute_mode_(std::move(set_compute_mode)),
      tell_health_(std::move(health)),
      backoff_(options_.retry, options_.seed) {}

Daemon::~Daemon() = default;

void Daemon::start() {
  tell({false, "the MPS control daemon of " + spec_.name + " is starting"});
  begin();
}

void Daemon::begin() {
  state_ = State::kStarting;
  timer_.reset();
  auto program = find_driver_program(options_.driver_root, kControlProgram);
  if (!program) return failed(program.error());
  program_ = *program;
  for (const auto& folder : {pipes(), log_directory(options_.root, spec_.name)}) {
    if (const auto made = make_directories(folder); !made) return failed(made.error());
  }
  label_for_containers(pipes());
  set_modes(0, ComputeMode::kExclusiveProcess, &Daemon::end_former);
}

// One GPU after the other. A MIG device has no compute mode.
void Daemon::set_modes(std::size_t next, ComputeMode mode, Step then) {
  while (next < spec_.devices.size() && spec_.devices[next].mig) ++next;
  if (next == spec_.devices.size()) return (this->*then)();
  const auto done = [this, next, mode, then, round = ++round_,
                     alive = std::weak_ptr<bool>(alive_)](const Status& set) {
    if (alive.expired() || round != round_) return;
    if (!set && (mode == ComputeMode::kDefault || set.error().code() == Code::kUnsupported)) {
      log::warning("cannot set the compute mode", set.error(), {{"gpu", spec_.devices[next].uuid.str()}});
    } else if (!set) {
      return failed(set.error().with("cannot set the compute mode to EXCLUSIVE_PROCESS"));
    }
    set_modes(next + 1, mode, then);
  };
  modes_changed_ = true;
  const auto set = set_compute_mode_;  // `done`, called from inside, may be our end
  set(spec_.devices[next].uuid, mode, done);
}

// One may be there from before us: ours to take over, or to end.
void Daemon::end_former() {
  auto former = DaemonProcess::find(pipes());
  if (!former) return launch();
  process_ = std::move(*former);
  if (!may_adopt()) return await_former_end();
  log::info("an MPS control daemon from before is taken over",
            {{"daemon", spec_.name}, {"pid", process_->id()}});
  run({}, std::string(kAlive), options_.answer_limit, [this](const Result<std::string>& answer) {
    if (!answer) return await_former_end();
    const auto saved = read_file(started_file(options_.root, spec_.name));
    const auto lines = lines_of(*answer);
    const bool same = saved && *saved == fingerprint(process_->id(), true) && !lines.empty() &&
                      percentage_of(lines.back()) == spec_.thread_percentage;
    same ? on_running() : tell_limits();
  });
}

void Daemon::await_former_end() {
  log::info("an MPS control daemon for other devices is ended",
            {{"daemon", spec_.name}, {"pid", process_->id()}});
  process_->on_end(loop_, [this] {
    process_.reset();
    call_.reset();
    timer_.reset();
    launch();
  });
  timer_ = loop_.after(options_.quit_grace, [this] { process_->kill(); });
  run({}, "quit\n", options_.quit_grace, [](const Result<std::string>&) {});
}

void Daemon::launch() {
  launching_ = true;
  run({"-d"}, "", options_.start_limit, [this](const Result<std::string>& started) {
    launching_ = false;
    if (state_ == State::kStopping) return quit();
    started ? tell_limits() : failed(started.error().with("the MPS control daemon does not start"));
  });
}

void Daemon::tell_limits() {
  limits_changed_ = false;
  run({}, limit_commands() + std::string(kAlive), options_.answer_limit,
      [this](const Result<std::string>& answer) {
        if (answer) return on_limits(*answer);
        limits_changed_ = true;
        // It has clients: given a second chance as for any question.
        if (state_ == State::kRunning) return on_unanswered(answer.error());
        failed(answer.error().with("the MPS control daemon does not take its limits"));
      });
}

void Daemon::on_limits(const std::string& answer) {
  const auto lines = lines_of(answer);
  for (const auto& line : lines) {
    if (says_no(line))
      return failed(Error(Code::kUnavailable, "the MPS control daemon refuses a limit: " + line));
  }
  if (lines.empty() || std::abs(percentage_of(lines.back()) - spec_.thread_percentage) > 0.05) {
    return failed(Error(Code::kUnavailable, "the MPS control daemon does not keep its thread percentage: '" +
                                                (lines.empty() ? std::string() : lines.back()) + "' for " +
                                                std::to_string(spec_.thread_percentage)));
  }
  tell_servers();
}

// A server that runs already keeps the defaults that it began with, unless it is told.
void Daemon::tell_servers() {
  run({}, "get_server_list\n", options_.answer_limit, [this](const Result<std::string>& answer) {
    if (!answer) return failed(answer.error());
    std::string commands;
    for (const auto& server : lines_of(*answer)) {
      if (!text::parse_unsigned(server)) continue;
      for (const auto& limit : spec_.memory_limits) {
        commands += "set_device_pinned_mem_limit " + server + " " + std::to_string(limit.device) + " " +
                    std::to_string(limit.mebibytes) + "M\n";
      }
      commands +=
          "set_active_thread_percentage " + server + " " + std::to_string(spec_.thread_percentage) + "\n";
    }
    if (commands.empty()) return on_running();
    run({}, commands, options_.answer_limit, [this](const Result<std::string>& told) {
      // A server may have ended in between: the next has the new defaults.
      if (!told)
        log::warning("an MPS server keeps its former limits", told.error(), {{"daemon", spec_.name}});
      on_running();
    });
  });
}

void Daemon::on_running() {
  if (!process_) watch_process();
  if (process_) {
    process_->on_end(loop_, [this] { on_died(); });
  }
  const auto written = write_file_atomic(started_file(options_.root, spec_.name),
                                         fingerprint(process_ ? process_->id() : 0, true));
  if (!written) return failed(written.error());
  state_ = State::kRunning;
  unanswered_ = 0;
  tell({});
  limits_changed_ ? tell_limits() : schedule_check();
}

void Daemon::watch_process() {
  auto found = DaemonProcess::find(pipes());
  if (found) {
    process_ = std::move(*found);
  } else {
    log::warning("the MPS control daemon's process is not known: its end is seen by questions only",
                 found.error(), {{"daemon", spec_.name}});
  }
}

void Daemon::schedule_check() {
  timer_ = loop_.after(options_.check_interval, [this] { check(); });
}

void Daemon::check() {
  run({}, std::string(kAlive), options_.answer_limit, [this](const Result<std::string>& answer) {
    if (!answer) return on_unanswered(answer.error());
    unanswered_ = 0;
    backoff_.reset();
    tell({});
    const auto lines = lines_of(*answer);
    const bool ours =
        !lines.empty() && std::abs(percentage_of(lines.back()) - spec_.thread_percentage) <= 0.05;
    if (!ours) log::warning("the MPS control daemon has lost its limits", {{"daemon", spec_.name}});
    ours && !limits_changed_ ? schedule_check() : tell_limits();
  });
}

void Daemon::on_unanswered(const Error& error) {
  if (++unanswered_ >= kMaxUnanswered) return failed(error.with("the MPS control daemon hangs"));
  tell({false, "the MPS control daemon of " + spec_.name + " does not answer: " + error.message()});
  check();
}

void Daemon::on_died() {
  process_.reset();
  call_.reset();
  failed(Error(Code::kUnavailable, "the MPS control daemon of " + spec_.name + " has ended"));
}

// Whatever is left of it goes, and it is tried again later.
void Daemon::failed(const Error& error) {
  if (state_ == State::kStopping) return clean_up();
  ++round_;
  call_.reset();
  if (process_) process_->kill();
  process_.reset();
  ::unlink(started_file(options_.root, spec_.name).c_str());
  state_ = State::kWaiting;
  if (health_.healthy || health_.reason != error.text()) {
    log::error("no MPS control daemon", error, {{"daemon", spec_.name}});
  }
  tell({false, error.text()});
  timer_ = loop_.after(backoff_.next(), [this] { begin(); });
}

void Daemon::change(DaemonSpec spec) {
  const bool limits =
      spec.memory_limits != spec_.memory_limits || spec.thread_percentage != spec_.thread_percentage;
  spec_ = std::move(spec);
  if (!limits) return;
  limits_changed_ = true;
  // While it starts, its way up ends with the newest.
  if (state_ == State::kRunning) tell_limits();
}

void Daemon::stop(std::function<void()> done) {
  stopped_ = std::move(done);
  ++round_;
  timer_.reset();
  state_ = State::kStopping;
  // One from before us was told to take its GPUs alone, too.
  modes_changed_ = modes_changed_ || ::access(started_file(options_.root, spec_.name).c_str(), F_OK) == 0;
  if (program_.empty()) program_ = find_driver_program(options_.driver_root, kControlProgram).value_or("");
  // A daemon that is just being born would come after our end.
  if (launching_) return;
  call_.reset();
  quit();
}

void Daemon::quit() {
  if (!process_) {
    if (auto found = DaemonProcess::find(pipes())) process_ = std::move(*found);
  }
  if (!process_) return clean_up();
  process_->on_end(loop_, [this] {
    process_.reset();
    call_.reset();
    timer_.reset();
    clean_up();
  });
  timer_ = loop_.after(options_.quit_grace, [this] {
    log::warning("the MPS control daemon does not quit: it is killed", {{"daemon", spec_.name}});
    process_->kill();
  });
  if (program_.empty()) return process_->kill();
  run({}, "quit\n", options_.quit_grace, [](const Result<std::string>&) {});
}

void Daemon::clean_up() {
  if (!modes_changed_) return finish();
  set_modes(0, ComputeMode::kDefault, &Daemon::finish);
}

void Daemon::finish() {
  ::unlink(started_file(options_.root, spec_.name).c_str());
  std::error_code ignored;
  std::filesystem::remove_all(log_directory(options_.root, spec_.name), ignored);
  state_ = State::kIdle;
  if (const auto done = std::move(stopped_)) done();
}

void Daemon::run(std::vector<std::string> arguments, std::string input, Duration limit, Answer done) {
  if (state_ == State::kRunning) timer_.reset();  // one conversation at a time
  auto environment = driver_environment(options_.driver_root);
  environment.push_back("CUDA_MPS_PIPE_DIRECTORY=" + pipes());
  environment.push_back("CUDA_MPS_LOG_DIRECTORY=" + log_directory(options_.root, spec_.name));
  std::vector<std::string> visible;
  for (const auto& uuid : spec_.visible_devices) visible.push_back(uuid.str());
  if (!visible.empty()) environment.push_back("CUDA_VISIBLE_DEVICES=" + text::join(visible, ","));
  const bool daemon = !arguments.empty();
  auto call = ProgramCall::start(loop_,
                                 {.program = program_,
                                  .arguments = std::move(arguments),
                                  .environment = std::move(environment),
                                  .input = std::move(input),
                                  .leaves_a_daemon = daemon},
                                 limit, [this, done](Result<std::string> answer) {
                                   const auto ended = std::move(call_);
                                   done(std::move(answer));
                                 });
  if (!call) return done(fail(call.error()));
  call_ = std::move(*call);
}

bool Daemon::may_adopt() const {
  const auto saved = read_file(started_file(options_.root, spec_.name));
  return saved && saved->starts_with(fingerprint(process_->id(), false));
}

// What .started holds. The limits are last: one that differs in them alone can be told the new ones.
std::string Daemon::fingerprint(pid_t pid, bool with_limits) const {
  std::string text = std::string(kStartedHead) + std::to_string(pid) + "\nprogram " + program_ + "\nvisible";
  for (const auto& uuid : spec_.visible_devices) text += " " + uuid.str();
  text += "\ndevices";
  for (const auto& device : spec_.devices) text += " " + device.uuid.str();
  return with_limits ? text + "\n" + limit_commands() : text + "\n";
}

std::string Daemon::limit_commands() const {
  std::string commands;
  for (const auto& limit : spec_.memory_limits) {
    commands += "set_default_device_pinned_mem_limit " + std::to_string(limit.device) + " " +
                std::to_string(limit.mebibytes) + "M\n";
  }
  return commands + "set_default_active_thread_percentage " + std::to_string(spec_.thread_percentage) + "\n";
}

void Daemon::tell(inventory::Health health) {
  if (health_told_ && health == health_) return;
  health_told_ = true;
  health_ = std::move(health);
  tell_health_(health_);
}

}  // namespace gpulet::mps
