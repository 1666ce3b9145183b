// `make storm`: faults at random moments of what an agent does. Each seed is a process with namespaces of its
// own, so that nothing of it is left.
//
//   storm [--seeds N] [--first N] [--seed N] [--operations N] [--jobs N] [--programs DIR]
//
// Prints a line `FAIL seed N: why` for each seed that fails, which faults were injected in which steps, and
// `N passed, N failed`. --seed runs that seed alone, and prints the agent's log if it fails. Needs root.
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>

#include "base/file.h"
#include "base/process.h"
#include "base/text.h"
#include "tests/sim/node_fixture.h"
#include "tests/storm/storm.h"

namespace gpulet::storm {
namespace {

constexpr auto kSeedLimit = std::chrono::minutes(6);
constexpr std::uint64_t kSeedsForCoverage = 1000;  // from so many on every pair must have occurred
constexpr std::string_view kInjected = "injected ", kViolation = "violation ";

struct Options {
  std::uint64_t seeds = 1000, first = 1;
  std::optional<std::uint64_t> seed;
  std::uint64_t operations = 1, jobs = 2;
  std::string programs = GPULET_PROGRAMS;
  bool is_worker = false;
};

int usage_error(const std::string& why) {
  std::cerr << "storm: " << why << "\n";
  return 2;
}

std::string parse_options(const std::vector<std::string>& arguments, Options& options) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto& name = arguments[i];
    if (name == "--worker") {
      options.is_worker = true;
      continue;
    }
    if (++i == arguments.size()) return name + ": a value is missing";
    if (name == "--programs") {
      options.programs = arguments[i];
      continue;
    }
    const auto number = text::parse_unsigned(arguments[i]);
    if (!number) return name + ": '" + arguments[i] + "' is not a number";
    if (name == "--seeds") {
      options.seeds = *number;
    } else if (name == "--first") {
      options.first = *number;
    } else if (name == "--seed") {
      options.seed = *number;
    } else if (name == "--operations") {
      options.operations = *number;
    } else if (name == "--jobs") {
      options.jobs = std::max<std::uint64_t>(1, *number);
    } else {
      return "unknown option " + name;
    }
  }
  return {};
}

// Ends with the first process of the namespace, and reaps the orphans, such as MPS daemons.
int wait_as_init(pid_t child) {
  for (;;) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, 0);
    if (ended == child) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (ended < 0 && errno != EINTR) return 127;
  }
}

// Returns in a process whose mounts and process ids are its own; its parents wait for it here and exit.
void enter_namespaces() {
  const auto stop = [](const char* what) {
    std::cout << kViolation << "cannot " << what << ": " << ::strerror(errno) << std::endl;
    ::_exit(1);
  };
  if (::unshare(CLONE_NEWNS | CLONE_NEWPID) != 0) stop("enter namespaces of its own (it needs root)");
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) stop("make the mounts private");
  pid_t child = ::fork();
  if (child < 0) stop("fork");
  if (child > 0) ::_exit(wait_as_init(child));
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::mount("proc", "/proc", "proc", 0, nullptr) != 0) stop("mount /proc");
  child = ::fork();
  if (child < 0) stop("fork");
  if (child > 0) ::_exit(wait_as_init(child));
}

int run_worker(const Options& options) {
  enter_namespaces();
  const auto result = run_storm({.seed = *options.seed,
                                 .operations = static_cast<unsigned>(options.operations),
                                 .programs = options.programs,
                                 .library = GPULET_FAULTY_CALLS});
  for (const auto& pair : result.injected) std::cout << kInjected << pair_text(pair) << "\n";
  for (const auto& violation : result.violations) std::cout << kViolation << violation << "\n";
  if (!result.violations.empty()) std::cerr << "--- the agent's log\n" << result.agent_log << "---\n";
  return result.violations.empty() ? 0 : 1;
}

struct Totals {
  std::uint64_t passed = 0, failed = 0;
  std::map<std::string, std::uint64_t> injected;
};

// A seed in its own process, and what it prints.
class Worker {
 public:
  Worker(std::uint64_t seed, const Options& options, const std::string& directory)
      : seed_(seed), directory_(directory + "/" + std::to_string(seed)), started_(Clock::now()) {
    std::filesystem::create_directory(directory_);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    out_ = FileDescriptor(ends[0]);
    const FileDescriptor write_end(ends[1]);
    ProcessOptions process{.program = "/proc/self/exe",
                           .arguments = {"storm", "--worker", "--seed", std::to_string(seed), "--operations",
                                         std::to_string(options.operations), "--programs", options.programs},
                           .environment = {"TMPDIR=" + directory_, "PATH=/usr/bin:/bin:/usr/sbin:/sbin"},
                           .descriptors = {{write_end.get(), STDOUT_FILENO}}};
    // Of a single seed the log is shown.
    if (options.seed) process.descriptors.emplace_back(STDERR_FILENO, STDERR_FILENO);
    for (auto& option : tests::sanitizer_options()) process.environment.push_back(std::move(option));
    if (auto started = Process::spawn(process)) process_ = std::move(*started);
  }
  ~Worker() {
    process_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  int descriptor() const { return out_.get(); }
  // Returns false at the end of its output.
  bool read_output() {
    char buffer[4096];
    const ssize_t got = ::read(out_.get(), buffer, sizeof buffer);
    if (got > 0) text_.append(buffer, static_cast<std::size_t>(got));
    return got > 0 || (got < 0 && errno == EINTR);
  }
  void end_if_late() {
    if (Clock::now() - started_ > kSeedLimit && process_ && !std::exchange(late_, true))
      process_->send_signal(SIGKILL);
  }
  // After the end of its output.
  void add_to(Totals& totals) {
    const auto exit =
        process_ ? process_->wait_for_exit(std::chrono::seconds(10)) : fail(Code::kInternal, "not started");
    std::vector<std::string> violations;
    for (const auto& line : text::split(text_, '\n')) {
      if (line.starts_with(kInjected)) ++totals.injected[line.substr(kInjected.size())];
      if (line.starts_with(kViolation)) violations.push_back(line.substr(kViolation.size()));
    }
    if (late_) violations.emplace_back("ran longer than 6 minutes");
    if (violations.empty() && !(exit && exit->succeeded()))
      violations.push_back("the seed's process: " + (exit ? exit->exit_text() : exit.error().full_message()));
    ++(violations.empty() ? totals.passed : totals.failed);
    if (violations.empty()) return;
    std::cout << "FAIL seed " << seed_ << ": " << text::join(violations, "; ")
              << " (make storm SEED=" << seed_ << ")" << std::endl;
  }

 private:
  const std::uint64_t seed_;
  const std::string directory_;
  const Clock::time_point started_;
  bool late_ = false;
  FileDescriptor out_;
  std::unique_ptr<Process> process_;
  std::string text_;
};

void run_seeds(const Options& options, const std::string& directory, Totals& totals) {
  std::vector<std::unique_ptr<Worker>> workers;
  const std::uint64_t first = options.seed.value_or(options.first), count = options.seed ? 1 : options.seeds;
  std::uint64_t started = 0;
  while (started < count || !workers.empty()) {
    while (started < count && workers.size() < options.jobs)
      workers.push_back(std::make_unique<Worker>(first + started++, options, directory));
    std::vector<pollfd> ready;
    for (const auto& worker : workers) ready.push_back({worker->descriptor(), POLLIN, 0});
    ::poll(ready.data(), ready.size(), 1000);
    for (std::size_t i = ready.size(); i-- > 0;) {
      workers[i]->end_if_late();
      if (workers[i]->descriptor() >= 0 && (ready[i].revents == 0 || workers[i]->read_output())) continue;
      workers[i]->add_to(totals);
      workers.erase(workers.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

// A line for each step with the number of injections of each fault. Returns the number of pairs without one.
std::size_t print_coverage(const Totals& totals) {
  std::size_t missing = 0;
  std::cout << "injected, for each step:";
  for (std::size_t fault = 0; fault < kFaults; ++fault)
    std::cout << " " << fault_name(static_cast<Fault>(fault));
  for (const auto& pair : all_pairs()) {
    const auto& kind = operation_kinds()[pair.operation];
    if (pair.fault == 0) std::cout << "\n  " << kind.name << "/" << kind.steps[pair.step] << ":";
    const auto found = totals.injected.find(pair_text(pair));
    std::cout << " " << (found == totals.injected.end() ? 0 : found->second);
    missing += found == totals.injected.end() ? 1 : 0;
  }
  std::cout << std::endl;
  return missing;
}

int run(const std::vector<std::string>& arguments) {
  Options options;
  if (const auto wrong = parse_options(arguments, options); !wrong.empty()) return usage_error(wrong);
  if (options.is_worker) return options.seed ? run_worker(options) : usage_error("--worker needs --seed");
  std::string directory = std::filesystem::temp_directory_path().string() + "/storm-XXXXXX";
  if (::mkdtemp(directory.data()) == nullptr) return usage_error("cannot create " + directory);
  Totals totals;
  run_seeds(options, directory, totals);
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  if (!options.seed) {
    const auto missing = print_coverage(totals);
    if (options.seeds >= kSeedsForCoverage && missing > 0) {
      std::cout << "FAIL coverage: " << missing << " faults were never injected in some step\n";
      ++totals.failed;
    }
  }
  std::cout << totals.passed << " passed, " << totals.failed << " failed" << std::endl;
  return totals.failed == 0 && totals.passed > 0 ? 0 : 1;
}

}  // namespace
}  // namespace gpulet::storm

int main(int count, char** arguments) { return gpulet::storm::run({arguments + 1, arguments + count}); }
