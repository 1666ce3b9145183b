// A Daemon of MPS protocol 3: its server, and the namespaces of its shares.
#include <algorithm>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "mps/daemon.h"
#include "mps/namespaces.h"

namespace gpulet::mps {
namespace {

constexpr std::size_t kMaxHeldBytes = 64u << 10;
constexpr std::size_t kMaxHeld = 1024;
constexpr Duration kServerPollInterval = std::chrono::milliseconds(100);
constexpr std::size_t kHeldFields = 3;  // name, percentage, MiB

}  // namespace

void Daemon::check_protocol() {
  if (has_checked_protocol_ || runs_with_namespaces()) return prepare_start();
  run_command(protocol_help_arguments(), "", options_.response_limit,
              [this](const Result<std::string>& help) {
                has_checked_protocol_ = help && lists_namespace_verbs(*help);
                if (has_checked_protocol_) return prepare_start();
                const auto why = "nvidia-cuda-mps-control has no MPS protocol 3: " +
                                 (help ? "its help lists no namespaces" : help.error().message());
                // No answer is none: it may be replaced at this time, or be slow.
                if (options_.protocol_missing && (help || help.error().code() == Code::kUnavailable))
                  options_.protocol_missing(why);
                on_failure(Error(Code::kUnsupported, why));
              });
}

void Daemon::run_steps(std::vector<Question> steps, bool is_own, std::function<void(Status)> done) {
  run_step(std::make_shared<std::vector<Question>>(std::move(steps)), 0, is_own, std::move(done));
}

void Daemon::run_step(std::shared_ptr<std::vector<Question>> steps, std::size_t index, bool is_own,
                      std::function<void(Status)> done) {
  if (index == steps->size()) return done({});
  const auto on_answer = [this, steps, index, is_own, done = std::move(done),
                          alive = lifetime_.watch()](const Result<std::string>& output) {
    if (!alive) return;
    const auto& step = (*steps)[index];
    if (!output && (!step.may_fail || output.error().code() == Code::kDeadlineExceeded))
      return done(fail(output.error()));
    if (output && step.check && !step.check(*output)) {
      return done(fail(Code::kUnavailable, "'" + text::join(step.arguments, " ") + "' answers '" +
                                               std::string(text::trim(*output)) + "'"));
    }
    run_step(steps, index + 1, is_own, done);
  };
  const auto& arguments = (*steps)[index].arguments;
  if (is_own) return run_command(arguments, "", options_.response_limit, on_answer);
  run_for_caller(arguments, "", on_answer);
}

std::vector<Daemon::Question> Daemon::limit_steps(const std::string& name,
                                                  const NamespaceLimits& limits) const {
  std::vector<Question> steps{{set_namespace_arguments(name, limits)},
                              {get_threads_arguments(name), [limits](const std::string& output) {
                                 return holds_threads(output, limits.threads);
                               }}};
  if (limits.mebibytes != 0) {
    steps.push_back({get_memory_arguments(name),
                     [limits](const std::string& output) { return holds_memory(output, limits.mebibytes); }});
  }
  return steps;
}

// The server and its namespaces may be there: of an earlier agent, or of an update. Namespaces of removed
// shares keep their limits and are not allocated.
void Daemon::send_namespaces() {
  if (const auto read = read_held(); !read) return on_namespaces(fail(read.error()));
  const auto until = loop_.now() + options_.start_limit;
  run_steps({{create_server_arguments(spec_.devices), {}, true}}, true,
            [this, until](const Status&) { await_server(until); });
}

void Daemon::await_server(Time until) {
  run_command(
      server_status_arguments(), "", options_.response_limit,
      [this, until](const Result<std::string>& status) {
        if (!status) return on_namespaces(fail(status.error()));
        if (is_server_ready(*status)) return send_namespace_limits();
        if (loop_.now() >= until)
          return on_namespaces(fail(Code::kUnavailable, "its server is " + std::string(text::trim(*status))));
        timer_ = loop_.after(kServerPollInterval, [this, until] { await_server(until); });
      });
}

void Daemon::send_namespace_limits() {
  std::vector<Question> steps{{smallest_limit_arguments()}};
  for (const auto& space : spec_.namespaces) {
    steps.push_back({create_namespace_arguments(space.name), {}, true});
    for (auto& step : limit_steps(space.name, limits_in_force(space))) steps.push_back(std::move(step));
  }
  steps.push_back({server_status_arguments(), is_server_ready});
  run_steps(std::move(steps), true, [this](const Status& sent) { on_namespaces(sent); });
}

void Daemon::on_namespaces(const Status& sent) {
  if (sent && !launched_) return on_running();
  // A namespace has no limits before it is given some, and who has connected by then keeps none.
  if (sent) {
    return end_namespace_clients("they may have no limits", [this](const Status& ended) {
      if (ended) launched_ = false;
      on_namespaces(ended);
    });
  }
  limits_changed_ = true;
  // It has clients, so it gets a second chance, as in any liveness check.
  if (state_ == State::kRunning && sent.error().code() == Code::kDeadlineExceeded)
    return on_unanswered(sent.error());
  const auto error = sent.error().with_context(
      "the MPS server does not serve with its limits (one whose GPU is absent ends silently)");
  if (state_ != State::kRunning) return on_failure(error);
  // Killed with work in flight, it may hang every later one. The next check sends them again.
  set_health({false, error.full_message()});
  schedule_check();
}

NamespaceLimits Daemon::limits_in_force(const ShareNamespace& space) const {
  const auto held = held_.find(space.name);
  return held == held_.end() ? space.limits : held->second;
}

void Daemon::set_namespace(const std::string& name, const NamespaceLimits& limits,
                           std::function<void(Status)> done) {
  const auto refuse = [&](const Error& error) { loop_.post([done, error] { done(fail(error)); }); };
  const auto space = std::ranges::find(spec_.namespaces, name, &ShareNamespace::name);
  if (space == spec_.namespaces.end())
    return refuse({Code::kNotFound, "the MPS control daemon of " + spec_.name + " has no namespace " + name});
  if (const auto read = read_held(); !read) return refuse(read.error());
  // On record before it is in force: a daemon that is started in between gets it too.
  const auto before = held_;
  limits == space->limits ? static_cast<void>(held_.erase(name)) : static_cast<void>(held_[name] = limits);
  if (held_ != before) {
    if (const auto written = write_held(); !written) {
      held_ = before;
      return refuse(written.error());
    }
  }
  if (state_ != State::kStarting && state_ != State::kWaiting)
    return run_steps(limit_steps(name, limits), false, std::move(done));
  if (recorded_.size() >= kMaxWaitingCommands)
    return refuse(
        {Code::kUnavailable, "the MPS control daemon of " + spec_.name + ": too many commands wait"});
  recorded_.push_back({name, limits, std::move(done)});
}

Status Daemon::read_held() {
  if (has_read_held_) return {};
  const auto text = read_file(held_file(), kMaxHeldBytes);
  // Without what it says, a Pod would get more than it requests.
  if (!text && text.error().code() != Code::kNotFound) return fail(text.error());
  has_read_held_ = true;
  for (const auto& line : text ? lines_of_output(*text) : std::vector<std::string>()) {
    const auto fields = text::split(line, ' ');
    if (fields.size() != kHeldFields || held_.size() >= kMaxHeld) continue;
    const auto threads = text::parse_unsigned(fields[1]), memory = text::parse_unsigned(fields[2]);
    if (threads && *threads >= 1 && *threads <= 100 && memory)
      held_[fields[0]] = {static_cast<unsigned>(*threads), *memory};
  }
  return {};
}

// Without those of removed shares.
Status Daemon::write_held() {
  std::erase_if(held_, [&](const auto& held) {
    return std::ranges::find(spec_.namespaces, held.first, &ShareNamespace::name) == spec_.namespaces.end();
  });
  std::string text;
  for (const auto& [name, limits] : held_)
    text += name + " " + std::to_string(limits.threads) + " " + std::to_string(limits.mebibytes) + "\n";
  // No more than the next agent reads.
  if (held_.size() > kMaxHeld || text.size() > kMaxHeldBytes)
    return fail(Code::kFailedPrecondition, "more limits of Pods than it has room for", held_file());
  return write_file_atomic(held_file(), text);
}

void Daemon::end_namespace_clients(const char* why, std::function<void(Status)> done) {
  run_command(list_clients_arguments(), "", options_.response_limit,
              [this, why, done = std::move(done)](const Result<std::string>& list) {
                if (!list) return done(fail(list.error()));
                std::vector<Question> steps;
                for (const auto& pid : clients_in(*list, kMaxListedProcesses))
                  steps.push_back({terminate_client_arguments(pid), {}, true});
                if (!steps.empty())
                  log::info("ending the clients of an MPS control daemon",
                            {{"daemon", spec_.name}, {"why", why}});
                run_steps(std::move(steps), true, done);
              });
}

// After on_running(): each is read back for its caller.
void Daemon::set_recorded_namespaces() {
  const auto recorded = std::exchange(recorded_, {});
  for (const auto& one : recorded) run_steps(limit_steps(one.name, one.limits), false, one.done);
}

void Daemon::refuse_recorded_namespaces() {
  for (auto& one : std::exchange(recorded_, {})) {
    loop_.post(
        [done = std::move(one.done)] { done(fail(Code::kUnavailable, "the MPS control daemon stops")); });
  }
}

}  // namespace gpulet::mps
