#include "mig/hooks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/file.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "config/field_reader.h"
#include "config/yaml.h"

namespace gpulet::mig {
namespace {

using config::expected_but_found;
using config::MappingReader;
using config::Problems;
using config::yaml::Node;
using Kind = Node::Kind;

constexpr std::array<std::string_view, kHookPoints> kPoints = {"apply-start", "pre-apply-mode",
                                                               "pre-apply-config", "apply-exit"};

// A text that can be an argument: it contains no NUL.
std::optional<std::string> read_argument(const Node& node, const std::string& field, Problems& problems) {
  const auto text = config::read_text(node, field, problems);
  if (!text || text->find('\0') == std::string::npos) return text;
  problems.add_error(node.position, field, "contains a NUL character, which no argument can have");
  return std::nullopt;
}

std::optional<std::string> read_path(const Node& node, const std::string& field, Problems& problems) {
  const auto path = read_argument(node, field, problems);
  if (!path || path->starts_with('/')) return path;
  problems.add_error(node.position, field, expected_but_found("an absolute path", node));
  return std::nullopt;
}

void read_envs(const Node& node, const std::string& field, Hook& hook, Problems& problems) {
  if (!config::expect_kind(Kind::kMapping, "a mapping of names and values", node, field, problems)) return;
  for (const auto& [name, position, value] : node.entries) {
    if (name.empty() || name.find_first_of(std::string_view("=\0", 2)) != std::string::npos) {
      problems.add_error(position, field, "expected a variable's name, found '" + name.substr(0, 64) + "'");
    } else if (value.kind == Kind::kNull) {
      hook.envs[name] = "";
    } else if (auto text = read_argument(value, field + "." + name, problems)) {
      hook.envs[name] = std::move(*text);
    }
  }
}

Hook read_hook(const Node& node, const std::string& path, Problems& problems) {
  Hook hook;
  hook.location = config::yaml::position_text(problems.file_path(), node.position);
  if (!config::expect_kind(Kind::kMapping, "a mapping with a command", node, path, problems)) return hook;
  const MappingReader fields(node, path, {"command", "args", "envs", "workdir"}, problems);
  if (const auto* command = fields["command"]) {
    hook.command = read_path(*command, fields.field_path("command"), problems).value_or("");
  } else {
    problems.add_error(node.position, path, "command is missing; expected the absolute path of a program");
  }
  const auto* args = fields["args"];
  if (args != nullptr &&
      config::expect_kind(Kind::kSequence, "a list of strings", *args, fields.field_path("args"), problems)) {
    for (const auto& item : args->items) {
      if (auto text = read_argument(item, fields.field_path("args"), problems))
        hook.args.push_back(std::move(*text));
    }
  }
  if (const auto* envs = fields["envs"]) read_envs(*envs, fields.field_path("envs"), hook, problems);
  const auto* directory = fields["workdir"];
  const bool left_out =
      directory == nullptr || (directory->kind == Kind::kScalar && directory->scalar.empty());
  if (!left_out) {
    hook.workdir = read_path(*directory, fields.field_path("workdir"), problems).value_or("/");
  }
  return hook;
}

void read_points(const Node& node, HooksFile& file, Problems& problems) {
  if (!config::expect_kind(Kind::kMapping, "a mapping of lists of commands", node, "hooks", problems)) return;
  const MappingReader fields(node, "hooks", {kPoints.begin(), kPoints.end()}, problems);
  for (std::size_t point = 0; point < kHookPoints; ++point) {
    const auto* list = fields[kPoints[point]];
    const std::string path = fields.field_path(kPoints[point]);
    if (list == nullptr || !config::expect_kind(Kind::kSequence, "a list of commands", *list, path, problems))
      continue;
    for (std::size_t i = 0; i < list->items.size(); ++i) {
      file.hooks[point].push_back(read_hook(list->items[i], path + "[" + std::to_string(i) + "]", problems));
    }
  }
}

void read_root(const config::yaml::Document& document, HooksFile& file, Problems& problems) {
  for (const auto& twice : document.duplicates) {
    problems.add_error(twice.position, twice.key.substr(0, 64),
                       "is given twice, first at " + config::yaml::position_text(file.path, twice.first));
  }
  if (document.second) problems.add_error(*document.second, "", "a second document; expected one");
  const Node& root = document.root;
  if (root.kind != Kind::kMapping) {
    const config::yaml::Position start{std::max(root.position.line, 1u), std::max(root.position.column, 1u)};
    problems.add_error(start, "", expected_but_found("a mapping with version and hooks", root));
    return;
  }
  const MappingReader fields(root, "", {"version", "hooks"}, problems);
  const auto* version = fields["version"];
  if (version == nullptr) {
    problems.add_error(root.position, "", "version is missing; expected version: v1");
  } else if (version->kind != Kind::kScalar || version->scalar != "v1") {
    problems.add_error(version->position, "version", expected_but_found("v1", *version));
  }
  if (const auto* hooks = fields["hooks"]) read_points(*hooks, file, problems);
}

}  // namespace

std::string_view hook_point_name(HookPoint point) { return kPoints[static_cast<std::size_t>(point)]; }

Result<HooksFile> parse_hooks_file(std::string_view text, const std::string& path) {
  GPULET_TRY_ASSIGN(const auto document, config::yaml::parse_yaml(text, path));
  Problems problems(path, false);
  HooksFile file;
  file.path = path;
  read_root(document, file, problems);
  const auto errors = problems.take_errors();
  if (!errors.empty()) return fail(errors.front());
  return file;
}

Result<HooksFile> load_hooks_file(const std::string& path) {
  GPULET_TRY_ASSIGN(const auto text, read_file(path, config::yaml::kMaxTextBytes));
  return parse_hooks_file(text, path);
}

struct HookRunner::Command {
  Hook hook;
  std::unique_ptr<Process> process;
  bool killed = false, abandoned = false;
  FileDescriptor output;  // the read end; closed at end of file
  Subscription reading;
  std::string line, last;  // the unfinished line, and the last complete one
  unsigned lines = 0;
};

HookRunner::HookRunner(Loop& loop, Duration limit) : loop_(loop), limit_(limit) {}

HookRunner::~HookRunner() {
  for (auto& command : commands_) {
    if (command.process) command.process->send_signal(SIGKILL);  // with its child processes
  }
}

void HookRunner::run_hooks(const HooksFile& file, HookPoint point,
                           std::map<std::string, std::string> environment, std::function<void(Status)> done) {
  point_ = hook_point_name(point);
  hooks_ = file.at(point);
  environment_ = std::move(environment);
  done_ = std::move(done);
  next_ = 0;
  timer_ = loop_.after(Duration::zero(), [this] { start_next_hook(); });
}

void HookRunner::start_next_hook() {
  timer_.reset();
  if (next_ == hooks_.size()) return report_result({});
  const Hook& hook = hooks_[next_++];
  log::info("running a MIG hook", {{"hook", point_}, {"command", hook.command}, {"place", hook.location}});
  if (const auto started = start_hook(hook); !started) {
    report_result(
        fail(started.error().code(), point_ + ": " + started.error().full_message(), hook.location));
  }
}

Status HookRunner::start_hook(const Hook& hook) {
  std::array<int, 2> ends;
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail(errno_error("cannot make a pipe", errno));
  FileDescriptor read_end(ends[0]);
  const FileDescriptor its(ends[1]);
  // Only the read end is non-blocking: programs do not expect that of theirs.
  if (::fcntl(read_end.get(), F_SETFL, O_NONBLOCK) != 0)
    return fail(errno_error("cannot make a pipe", errno));
  ProcessOptions options{.program = hook.command,
                         .arguments = {hook.command},
                         .descriptors = {{its.get(), 1}, {its.get(), 2}},
                         .working_directory = hook.workdir,
                         .own_group = true};
  options.arguments.insert(options.arguments.end(), hook.args.begin(), hook.args.end());
  auto variables = environment_;
  variables.insert(hook.envs.begin(), hook.envs.end());
  for (const auto& [variable, value] : variables) options.environment.push_back(variable + "=" + value);
  GPULET_TRY_ASSIGN(auto process, Process::spawn(options));

  auto& command = commands_.emplace_back();
  command.hook = hook;
  command.process = std::move(process);
  command.output = std::move(read_end);
  running_ = &command;
  command.reading = loop_.watch_descriptor(command.output.get(), EPOLLIN,
                                           [this, &command](std::uint32_t) { read_output(command); });
  command.process->on_exit(loop_, [this, &command](const ProcessExit& exit) {
    read_output(command);  // its last line of output
    command.process.reset();
    if (command.abandoned) return remove_if_done(command);
    if (command.killed && exit.signal == SIGKILL) {
      on_command_end(
          command, fail(Code::kDeadlineExceeded, "did not exit within " + limit_text() + " and was killed"));
    } else if (!exit.succeeded()) {
      on_command_end(command, fail(Code::kFailedPrecondition, exit.exit_text()));
    } else {
      on_command_end(command, {});
    }
  });
  timer_ = loop_.after(limit_, [this, &command] { kill_command(command); });
  return {};
}

void HookRunner::kill_command(Command& command) {
  command.killed = true;
  command.process->send_signal(SIGKILL);
  timer_ = loop_.after(kHookKillLimit, [this, &command] {
    command.abandoned = true;
    on_command_end(command, fail(Code::kDeadlineExceeded, "did not exit within " + limit_text() +
                                                              ", and hangs in the kernel after SIGKILL"));
  });
}

std::string HookRunner::limit_text() const {
  const auto seconds = std::chrono::duration_cast<std::chrono::duration<double>>(limit_).count();
  char text[32];
  std::snprintf(text, sizeof text, "%g s", seconds);
  return text;
}

void HookRunner::read_output(Command& command) {
  std::array<char, 4096> buffer;
  while (command.output.is_open()) {
    const ssize_t got = ::read(command.output.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return end_output(command);
    for (const char c : std::string_view(buffer.data(), static_cast<std::size_t>(got))) {
      if (c != '\n') command.line += c;
      if (c == '\n' || command.line.size() == kMaxHookLineBytes)
        log_line(command, std::exchange(command.line, {}));
    }
  }
}

void HookRunner::end_output(Command& command) {
  command.reading.reset();
  command.output.reset();
  log_line(command, std::exchange(command.line, {}));
  if (command.lines > kMaxHookLines) {
    log::warning("a MIG hook wrote more output than is logged", {{"hook", point_},
                                                                 {"place", command.hook.location},
                                                                 {"lines", command.lines},
                                                                 {"shown", kMaxHookLines}});
  }
  remove_if_done(command);
}

void HookRunner::remove_if_done(Command& command) {
  if (command.process || command.output.is_open() || &command == running_) return;
  commands_.remove_if([&](const Command& other) { return &other == &command; });
}

void HookRunner::log_line(Command& command, std::string_view line) {
  const auto trimmed = text::trim(line);
  if (trimmed.empty()) return;
  command.last = trimmed;
  if (++command.lines <= kMaxHookLines) {
    log::info("MIG hook output", {{"command", command.hook.command}, {"line", trimmed}});
  }
}

void HookRunner::on_command_end(Command& command, const Status& status) {
  timer_.reset();
  // The last line is the best explanation there is.
  const std::string last = command.last.empty() ? command.line : command.last;
  const Hook hook = command.hook;
  running_ = nullptr;
  remove_if_done(command);
  while (commands_.size() > kMaxOpenOutputs) commands_.pop_front();
  if (status) return start_next_hook();
  report_result(fail(status.error().code(),
                     point_ + ": " + hook.command + ": " + status.error().full_message() +
                         (last.empty() ? "" : "; last output: " + last),
                     hook.location));
}

void HookRunner::report_result(Status status) {
  const auto done = std::move(done_);
  done_ = nullptr;
  done(std::move(status));
}

}  // namespace gpulet::mig
