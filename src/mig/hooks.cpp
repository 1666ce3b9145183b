#include "mig/hooks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/file.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"

namespace gpulet::mig {

struct HookRunner::Command {
  Hook hook;
  std::unique_ptr<Process> process;
  bool killed = false, given_up = false;
  FileDescriptor output;  // ours to read; closed at its end
  Subscription reading;
  std::string line, last;  // what has come of a line, and the last whole one
  unsigned lines = 0;
};

HookRunner::HookRunner(Loop& loop, Duration limit) : loop_(loop), limit_(limit) {}

HookRunner::~HookRunner() {
  for (auto& command : commands_) {
    if (command.process) command.process->send_signal(SIGKILL);  // and what it started, at once
  }
}

void HookRunner::run(const HooksFile& file, HookPoint point, std::map<std::string, std::string> environment,
                     std::function<void(Status)> done) {
  point_ = name(point);
  hooks_ = file.at(point);
  environment_ = std::move(environment);
  done_ = std::move(done);
  next_ = 0;
  timer_ = loop_.after(Duration::zero(), [this] { next(); });
}

void HookRunner::next() {
  timer_.reset();
  if (next_ == hooks_.size()) return finish({});
  const Hook& hook = hooks_[next_++];
  log::info("running a MIG hook", {{"hook", point_}, {"command", hook.command}, {"place", hook.place}});
  if (const auto started = start(hook); !started) {
    finish(fail(started.error().code(), point_ + ": " + started.error().text(), hook.place));
  }
}

Status HookRunner::start(const Hook& hook) {
  std::array<int, 2> ends;
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail(errno_error("cannot make a pipe", errno));
  FileDescriptor ours(ends[0]);
  const FileDescriptor its(ends[1]);
  // Only our end: programs do not expect it of theirs.
  if (::fcntl(ours.get(), F_SETFL, O_NONBLOCK) != 0) return fail(errno_error("cannot make a pipe", errno));
  ProcessOptions options{.program = hook.command,
                         .arguments = {hook.command},
                         .descriptors = {{its.get(), 1}, {its.get(), 2}},
                         .folder = hook.workdir,
                         .own_group = true};
  options.arguments.insert(options.arguments.end(), hook.args.begin(), hook.args.end());
  auto variables = environment_;
  variables.insert(hook.envs.begin(), hook.envs.end());
  for (const auto& [variable, value] : variables) options.environment.push_back(variable + "=" + value);
  GPULET_TRY_ASSIGN(auto process, Process::start(options));

  auto& command = commands_.emplace_back();
  command.hook = hook;
  command.process = std::move(process);
  command.output = std::move(ours);
  under_way_ = &command;
  command.reading =
      loop_.watch(command.output.get(), EPOLLIN, [this, &command](std::uint32_t) { read_output(command); });
  command.process->on_exit(loop_, [this, &command](const ProcessExit& exit) {
    read_output(command);  // what it wrote last
    command.process.reset();
    if (command.given_up) return forget_if_over(command);
    if (command.killed && exit.signal == SIGKILL) {
      ended(command,
            fail(Code::kDeadlineExceeded, "had not ended after " + limit_text() + " and was killed"));
    } else if (!exit.ok()) {
      ended(command, fail(Code::kFailedPrecondition, exit.text()));
    } else {
      ended(command, {});
    }
  });
  timer_ = loop_.after(limit_, [this, &command] { kill(command); });
  return {};
}

void HookRunner::kill(Command& command) {
  command.killed = true;
  command.process->send_signal(SIGKILL);
  timer_ = loop_.after(kHookKillLimit, [this, &command] {
    command.given_up = true;
    ended(command, fail(Code::kDeadlineExceeded,
                        "had not ended after " + limit_text() + ", and hangs in the kernel though killed"));
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
  while (command.output.valid()) {
    const ssize_t got = ::read(command.output.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return end_output(command);
    for (const char c : std::string_view(buffer.data(), static_cast<std::size_t>(got))) {
      if (c != '\n') command.line += c;
      if (c == '\n' || command.line.size() == kMaxHookLineBytes)
        say(command, std::exchange(command.line, {}));
    }
  }
}

void HookRunner::end_output(Command& command) {
  command.reading.reset();
  command.output.reset();
  say(command, std::exchange(command.line, {}));
  if (command.lines > kMaxHookLines) {
    log::warning("a MIG hook said more than is shown", {{"hook", point_},
                                                        {"place", command.hook.place},
                                                        {"lines", command.lines},
                                                        {"shown", kMaxHookLines}});
  }
  forget_if_over(command);
}

void HookRunner::forget_if_over(Command& command) {
  if (command.process || command.output.valid() || &command == under_way_) return;
  commands_.remove_if([&](const Command& other) { return &other == &command; });
}

void HookRunner::say(Command& command, std::string_view line) {
  const auto trimmed = text::trim(line);
  if (trimmed.empty()) return;
  command.last = trimmed;
  if (++command.lines <= kMaxHookLines) {
    log::info("a MIG hook says", {{"command", command.hook.command}, {"line", trimmed}});
  }
}

void HookRunner::ended(Command& command, const Status& status) {
  timer_.reset();
  // Its last words are the best that there is to say why.
  const std::string last = command.last.empty() ? command.line : command.last;
  const Hook hook = command.hook;
  under_way_ = nullptr;
  forget_if_over(command);
  while (commands_.size() > kMaxLeftOpen) commands_.pop_front();
  if (status) return next();
  finish(fail(status.error().code(),
              point_ + ": " + hook.command + ": " + status.error().text() +
                  (last.empty() ? "" : "; it said: " + last),
              hook.place));
}

void HookRunner::finish(Status status) {
  const auto done = std::move(done_);
  done_ = nullptr;
  done(std::move(status));
}

}  // namespace gpulet::mig
