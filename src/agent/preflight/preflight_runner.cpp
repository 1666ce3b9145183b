#include "agent/preflight/preflight_runner.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/log.h"
#include "base/text.h"

namespace gpulet::agent {
namespace {

using preflight::RunResult;

constexpr std::size_t kMostOutput = preflight::kMaxReportBytes + 1, kMostErrorText = 300;

// A file in memory of at most kMostOutput bytes: writes beyond fail.
FileDescriptor make_memory_file(const char* name) {
  FileDescriptor file(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.is_open() && ::ftruncate(file.get(), kMostOutput) == 0)
    static_cast<void>(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK));
  return file;
}

// What was written: the rest of the file is zero.
std::string read_memory_file(const FileDescriptor& file) {
  std::string output(kMostOutput, '\0');
  const auto got = ::pread(file.get(), output.data(), output.size(), 0);
  output.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  output.resize(std::min(output.size(), output.find('\0')));
  return output;
}

// The first line, printable.
std::string error_line(const FileDescriptor& file) {
  auto line = read_memory_file(file).substr(0, kMostErrorText);
  line.resize(std::min(line.size(), line.find('\n')));
  return text::printable(line);
}

// `gpulet preflight`: 0 passed, 1 nothing could be checked, 3 failed or slow.
bool has_report(const ProcessExit& exit) {
  return exit.signal == 0 && (exit.code == 0 || exit.code == 1 || exit.code == 3);
}

}  // namespace

PreflightRunner::~PreflightRunner() {
  for (auto& [id, run] : runs_) run.process->send_signal(SIGKILL);
  const auto limit = loop_.now() + kKillGrace;
  for (auto& [id, run] : runs_) {
    static_cast<void>(run.process->wait_for_exit(std::max<Duration>(limit - loop_.now(), Duration::zero())));
  }
  for (auto& ended : awaiting_end_) loop_.post(std::move(ended));
}

void PreflightRunner::start_run(const DeviceUuid& gpu, const std::string& program,
                                std::vector<std::string> arguments, Duration limit,
                                std::function<void(RunResult)> done) {
  ChildRun run;
  run.gpu = gpu;
  run.output = make_memory_file("gpulet-preflight");
  run.errors = make_memory_file("gpulet-preflight-errors");
  run.limit_text = format_duration(std::chrono::duration_cast<std::chrono::milliseconds>(limit));
  run.done = std::move(done);
  auto process = Process::spawn({.program = program,
                                 .arguments = std::move(arguments),
                                 .descriptors = {{run.output.get(), 1}, {run.errors.get(), 2}},
                                 .own_group = true});
  if (!process) {
    return loop_.post(
        [alive = lifetime_.watch(), done = std::move(run.done), error = process.error().full_message()] {
          if (alive) done({.ended = RunResult::Ended::kNotStarted, .error = error});
        });
  }
  run.process = std::move(*process);
  const auto id = ++last_id_;
  auto& kept = runs_.emplace(id, std::move(run)).first->second;
  kept.limit = loop_.after(limit, [this, id] { on_limit(id); });
  kept.process->on_exit(loop_, [this, id](const ProcessExit& exit) { on_exit(id, exit); });
}

void PreflightRunner::kill_runs(const DeviceUuid& gpu) {
  for (auto& [id, run] : runs_) {
    if (run.gpu == gpu) run.process->send_signal(SIGKILL);
  }
}

void PreflightRunner::end_runs(std::function<void()> ended) {
  for (auto& [id, run] : runs_) run.process->send_signal(SIGKILL);
  if (runs_.empty()) return loop_.post(std::move(ended));
  awaiting_end_.push_back(std::move(ended));
  end_limit_ = loop_.after(kKillGrace, [this] {
    log::warning("preflights did not end when they were killed");
    for (auto& waiting : std::exchange(awaiting_end_, {})) waiting();
  });
}

void PreflightRunner::notify_if_ended() {
  if (!runs_.empty() || awaiting_end_.empty()) return;
  end_limit_.reset();
  for (auto& ended : std::exchange(awaiting_end_, {})) loop_.post(std::move(ended));
}

void PreflightRunner::answer(ChildRun& run, RunResult result) {
  if (const auto done = std::exchange(run.done, nullptr)) done(std::move(result));
}

void PreflightRunner::on_limit(std::uint64_t id) {
  auto& run = runs_.at(id);
  if (!std::exchange(run.timed_out, true)) {
    run.process->send_signal(SIGKILL);
    run.limit = loop_.after(kKillGrace, [this, id] { on_limit(id); });
    return;
  }
  answer(run, {.ended = RunResult::Ended::kTimedOut,
               .error = "the checks did not end within " + run.limit_text + ", nor when they were killed"});
}

void PreflightRunner::on_exit(std::uint64_t id, const ProcessExit& exit) {
  // Not from inside the process that is destroyed.
  loop_.post([this, id, exit, alive = lifetime_.watch()] {
    if (!alive) return;
    auto run = std::move(runs_.extract(id).mapped());
    notify_if_ended();
    if (run.timed_out) {
      return answer(run, {.ended = RunResult::Ended::kTimedOut,
                          .error = "the checks did not end within " + run.limit_text});
    }
    if (has_report(exit)) {
      return answer(run, {.ended = RunResult::Ended::kReported, .output = read_memory_file(run.output)});
    }
    const auto line = error_line(run.errors);
    answer(run, {.ended = RunResult::Ended::kCrashed,
                 .error = "the program ended by " + exit.exit_text() + (line.empty() ? "" : ": " + line)});
  });
}

void PreflightRecordStore::save_record(std::string path, preflight::BootRecord record,
                                       std::function<void()> done) {
  if (done) waiting_.push_back(std::move(done));
  next_ = {std::move(path), std::move(record)};
  if (!is_writing_) write_next();
}

// A record that is lost means one more preflight.
void PreflightRecordStore::write_next() {
  if (!next_) return;
  const auto wanted = *std::exchange(next_, std::nullopt);
  const auto answer = [this, alive = lifetime_.watch(),
                       waiting = std::exchange(waiting_, {})](const Status& written) {
    if (!alive) return;
    if (!written) log::warning("cannot record preflights", written.error());
    is_writing_ = false;
    write_next();
    for (const auto& done : waiting) {
      if (alive) done();
    }
  };
  is_writing_ = true;
  const auto started = start_detached_thread("the record of preflights", [relay = relay_, wanted, answer] {
    relay->post_to_loop(
        [answer, written = preflight::write_boot_record(wanted.first, wanted.second)] { answer(written); });
  });
  if (!started) loop_.post([answer, started] { answer(started); });
}

}  // namespace gpulet::agent
