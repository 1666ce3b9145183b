#include "mps/external_daemons.h"

#include <utility>

#include "base/file_watch.h"
#include "base/log.h"

namespace gpulet::mps {

class ExternalDaemons::ExternalDaemon {
 public:
  ExternalDaemon(Loop& loop, DaemonSpec spec, DaemonOptions options, DaemonManager::HealthCallback health)
      : loop_(loop),
        spec_(std::move(spec)),
        options_(std::move(options)),
        health_callback_(std::move(health)),
        backoff_(options_.retry, options_.seed) {
    auto watch = FileWatcher::watch_path(loop_, started_file(options_.root, spec_.name), [this] {
      backoff_.reset();
      ask();
    });
    if (watch) {
      started_ = std::move(*watch);
    } else {
      log::warning("cannot watch an MPS control daemon's .started file; it is asked at intervals",
                   watch.error(), {{"daemon", spec_.name}});
    }
    ask();
  }

  const inventory::Health& health() const { return health_; }

  void update_spec(const DaemonSpec& spec) {
    if (spec == std::exchange(spec_, spec)) return;
    health_ = not_answered();
    backoff_.reset();
    ask();
  }

 private:
  inventory::Health not_answered() const {
    return {false, "the MPS control daemon of " + spec_.name + " has not answered yet"};
  }

  // A question in progress is abandoned.
  void ask() {
    timer_.reset();
    call_.reset();
    if (!spec_.sm_partitions.empty())
      return set_health(
          {false, "gpulet.mps.manage is false: nobody makes the SM partitions of " + spec_.name});
    const auto program = find_control_program(options_.driver_root, options_.root, options_.host_root,
                                              client_shm_directory(options_.root, spec_.name));
    if (!program) return on_answer(fail(program.error()));
    auto call = ProgramCall::start_call(
        loop_,
        {.program = program->program,
         .environment = {"CUDA_MPS_PIPE_DIRECTORY=" + pipe_directory(program->root, spec_.name)},
         .input = std::string(kThreadPercentageCommand)},
        options_.response_limit, [this](Result<std::string> output) {
          const auto ended = std::move(call_);
          on_answer(std::move(output));
        });
    if (!call) return on_answer(fail(call.error()));
    call_ = std::move(*call);
  }

  void on_answer(const Result<std::string>& output) {
    const std::string daemon = "the MPS control daemon of " + spec_.name;
    if (!output) {
      set_health({false, daemon + " does not respond: " + output.error().full_message()});
    } else if (!holds_thread_percentage(*output, spec_.thread_percentage)) {
      set_health({false, daemon + " does not limit its clients to " +
                             std::to_string(spec_.thread_percentage) + " % of a GPU's threads"});
    } else {
      backoff_.reset();
      set_health({});
    }
    timer_ =
        loop_.after(health_.healthy ? options_.check_interval : backoff_.next_delay(), [this] { ask(); });
  }

  void set_health(inventory::Health health) {
    if (health == health_) return;
    health_ = std::move(health);
    if (!health_.healthy)
      log::warning("an MPS control daemon does not serve; its devices are not allocated",
                   {{"daemon", spec_.name}, {"reason", health_.reason}});
    loop_.post([this, alive = lifetime_.watch()] {
      if (alive) health_callback_(spec_.name, health_);
    });
  }

  Loop& loop_;
  DaemonSpec spec_;
  DaemonOptions options_;
  DaemonManager::HealthCallback health_callback_;
  inventory::Health health_ = not_answered();
  std::unique_ptr<FileWatcher> started_;
  std::unique_ptr<ProgramCall> call_;
  Subscription timer_;
  Backoff backoff_;
  Lifetime lifetime_;
};

ExternalDaemons::ExternalDaemons(Loop& loop, DaemonOptions options, DaemonManager::HealthCallback health)
    : loop_(loop), options_(std::move(options)), health_callback_(std::move(health)) {}

ExternalDaemons::~ExternalDaemons() = default;

void ExternalDaemons::apply_specs(const std::vector<DaemonSpec>& specs) {
  std::map<std::string, std::unique_ptr<ExternalDaemon>> next;
  for (const auto& spec : specs) {
    auto& daemon = next[spec.name];
    if (const auto known = daemons_.find(spec.name); known != daemons_.end()) {
      daemon = std::move(known->second);
      daemon->update_spec(spec);
      continue;
    }
    DaemonOptions options = options_;
    options.seed += ++watched_;
    daemon = std::make_unique<ExternalDaemon>(loop_, spec, std::move(options), health_callback_);
  }
  daemons_ = std::move(next);
}

DaemonHealths ExternalDaemons::daemon_healths() const {
  DaemonHealths healths;
  for (const auto& [name, daemon] : daemons_) healths.emplace(name, daemon->health());
  return healths;
}

}  // namespace gpulet::mps
