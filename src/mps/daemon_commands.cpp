// A Daemon's control commands: one at a time, its own before those of callers, and both protocols'.
#include "base/log.h"
#include "base/text.h"
#include "mps/daemon.h"
#include "mps/namespaces.h"

namespace gpulet::mps {

void Daemon::run_command(std::vector<std::string> arguments, std::string input, Duration limit,
                         Completion done) {
  if (state_ == State::kRunning) timer_.reset();
  std::erase_if(waiting_, [](const Command& command) { return command.is_own; });
  if (call_ && current_.is_own) call_.reset();
  Command command{std::move(arguments), std::move(input), limit, std::move(done), true};
  if (call_) return waiting_.push_front(std::move(command));
  start_command(std::move(command));
}

void Daemon::run_for_caller(std::vector<std::string> arguments, std::string input, Completion done) {
  if (state_ != State::kRunning || waiting_.size() >= kMaxWaitingCommands) {
    const auto why = state_ == State::kRunning ? "too many commands wait"
                     : health_.reason.empty()  ? "it does not run"
                                               : health_.reason.c_str();
    const Error error(Code::kUnavailable, "the MPS control daemon of " + spec_.name + ": " + why);
    return loop_.post([done = std::move(done), error] { done(fail(error)); });
  }
  Command command{std::move(arguments), std::move(input), options_.response_limit, std::move(done), false};
  if (call_ || !waiting_.empty()) return waiting_.push_back(std::move(command));
  start_command(std::move(command));
}

void Daemon::start_command(Command command) {
  std::vector<std::string> environment{
      "CUDA_MPS_PIPE_DIRECTORY=" + pipe_directory(program_->root, spec_.name, process_protocol_),
      "CUDA_MPS_LOG_DIRECTORY=" + log_directory(program_->root, spec_.name)};
  std::vector<std::string> visible;
  for (const auto& uuid : spec_.visible_devices) visible.push_back(uuid.str());
  if (!visible.empty()) environment.push_back("CUDA_VISIBLE_DEVICES=" + text::join(visible, ","));
  const bool is_daemon = !command.arguments.empty() && command.arguments.front() == "-d";
  auto call = ProgramCall::start_call(loop_,
                                      {.program = program_->program,
                                       .arguments = command.arguments,
                                       .environment = std::move(environment),
                                       .input = command.input,
                                       .spawns_daemon = is_daemon},
                                      command.limit, [this](Result<std::string> output) {
                                        const auto ended = std::move(call_);
                                        const auto done = std::move(current_.done);
                                        const auto alive = lifetime_.watch();
                                        done(std::move(output));
                                        if (alive) start_next_command();
                                      });
  if (!call) {
    const auto alive = lifetime_.watch();
    command.done(fail(call.error()));
    if (alive) start_next_command();
    return;
  }
  call_ = std::move(*call);
  current_ = std::move(command);
}

void Daemon::start_next_command() {
  if (call_ || waiting_.empty()) return;
  auto next = std::move(waiting_.front());
  waiting_.pop_front();
  start_command(std::move(next));
}

void Daemon::drop_commands() {
  std::deque<Command> dropped = std::move(waiting_);
  waiting_.clear();
  if (call_) dropped.push_back(std::move(current_));
  call_.reset();
  for (auto& command : dropped) {
    if (command.is_own || !command.done) continue;
    loop_.post([done = std::move(command.done)] {
      done(fail(Code::kUnavailable, "the MPS control daemon has ended"));
    });
  }
}

std::string Daemon::serving_command() const {
  return has_sm_partitions() ? std::string(kListPartitionsCommand) : std::string(kThreadPercentageCommand);
}

void Daemon::check_serving(Completion done) {
  if (has_namespaces())
    return run_command(server_status_arguments(), "", options_.response_limit, std::move(done));
  run_command({}, serving_command(), options_.response_limit, std::move(done));
}

bool Daemon::serves_with_limits(const std::string& output) const {
  if (has_sm_partitions()) return lists_sm_partitions(output);
  return has_namespaces() ? is_server_ready(output)
                          : holds_thread_percentage(output, spec_.thread_percentage);
}

void Daemon::send_quit(Completion done) {
  if (process_protocol_ == kProtocolWithNamespaces)
    return run_command(quit_arguments(), "", options_.quit_grace, std::move(done));
  run_command({}, "quit\n", options_.quit_grace, std::move(done));
}

void Daemon::end_clients(std::vector<unsigned> pids, std::function<void()> done) {
  if (pids.size() > kMaxListedProcesses) pids.resize(kMaxListedProcesses);
  if (has_namespaces()) {
    std::vector<Question> steps;
    for (const unsigned pid : pids)
      steps.push_back({terminate_client_arguments(std::to_string(pid)), {}, true});
    return run_steps(std::move(steps), false, [done = std::move(done)](const Status&) { done(); });
  }
  run_for_caller(
      {}, "get_server_list\n",
      [this, pids, done = std::move(done), alive = lifetime_.watch()](const Result<std::string>& servers) {
        if (!alive) return;
        std::string commands;
        for (const auto& server : servers ? lines_of_output(*servers) : std::vector<std::string>()) {
          if (!text::parse_unsigned(server)) continue;
          for (const unsigned pid : pids)
            commands += "terminate_client " + server + " " + std::to_string(pid) + "\n";
        }
        if (commands.empty()) return done();
        run_for_caller({}, commands, [done](const Result<std::string>&) { done(); });
      });
}

}  // namespace gpulet::mps
