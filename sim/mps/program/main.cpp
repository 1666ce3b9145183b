// The nvidia-cuda-mps-control of a simulated driver root.
//
//   nvidia-cuda-mps-control -d | -f     the daemon, in the background or in the foreground
//   nvidia-cuda-mps-control -d | -f -S  the same with static SM partitions, from branch 590 of the driver on
//   nvidia-cuda-mps-control [-v]        commands from standard input to the daemon of CUDA_MPS_PIPE_DIRECTORY
//   nvidia-cuda-mps-control -d -p 3 [-m], MODULE VERB …, -q
//                                       protocol 3, from branch 615 of the driver on
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "sim/mps/daemon.h"
#include "sim/state/driver_branch.h"
#include "sim/state/state.h"

namespace gpulet::sim::mps {
namespace {

std::string environment_value(const char* name, const std::string& otherwise = {}) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

// Finds the machine of the driver root that contains this program: …/usr/bin/nvidia-cuda-mps-control.
std::string state_path() {
  char program[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", program, sizeof program);
  std::string directory(program, length > 0 ? static_cast<std::size_t>(length) : 0);
  for (;;) {
    const auto slash = directory.rfind('/');
    if (slash == std::string::npos) return environment_value("GPULET_SIM_STATE");
    directory.resize(slash);
    std::string state = directory + "/" + std::string(kStatePathInRoot);
    if (::access(state.c_str(), F_OK) == 0) return state;
  }
}

DaemonOptions read_options(bool foreground) {
  DaemonOptions options;
  options.pipe_directory = environment_value("CUDA_MPS_PIPE_DIRECTORY", options.pipe_directory);
  options.log_directory = environment_value("CUDA_MPS_LOG_DIRECTORY", options.log_directory);
  options.visible_devices = environment_value("CUDA_VISIBLE_DEVICES");
  options.active_thread_percentage = environment_value("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
  options.state = state_path();
  options.log_to_output = foreground;
  return options;
}

int print_error(const Error& error) {
  std::fprintf(stderr, "%s\n", error.full_message().c_str());
  return 1;
}

// Returns once the daemon listens, or has failed.
int start_in_background(const DaemonOptions& options) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return print_error(errno_error("pipe", errno));
  const pid_t pid = ::fork();
  if (pid < 0) return print_error(errno_error("fork", errno));
  if (pid == 0) {
    ::close(ends[0]);
    ::setsid();
    const auto served = run_daemon(options, [&] {
      const int null = ::open("/dev/null", O_RDWR);
      for (int standard = 0; standard < 3; ++standard) ::dup2(null, standard);
      if (null > 2) ::close(null);
      static_cast<void>(::write(ends[1], "+", 1) < 0);
      ::close(ends[1]);
    });
    ::_exit(served ? 0 : print_error(served.error()));
  }
  ::close(ends[1]);
  char ready = 0;
  ::_exit(::read(ends[0], &ready, 1) == 1 ? 0 : 1);
}

int run_interactive() {
  const std::string pipe_directory = read_options(false).pipe_directory;
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line.empty()) continue;
    const auto answer = send_command(pipe_directory, line);
    if (!answer) return print_error(answer.error());
    std::fputs(answer->c_str(), stdout);
    std::fflush(stdout);
    if (line.starts_with("quit")) break;
  }
  return 0;
}

int print_usage() {
  std::fprintf(stderr, "usage: nvidia-cuda-mps-control [-d | -f | -v]\n");
  return 1;
}

bool is_from_branch(unsigned branch) {
  auto state = StateFile::open_state(state_path());
  return state && driver_branch(*state->lock_for_read()) >= branch;
}

int run_arguments(const std::vector<std::string>& arguments) {
  const auto answer = send_arguments(read_options(false).pipe_directory, arguments);
  if (!answer) return print_error(answer.error());
  std::fputs(answer->text.c_str(), answer->code == 0 ? stdout : stderr);
  return answer->code;
}

// `arguments` without "-p N". Help is answered without a daemon; with one, its protocol counts.
int run_protocol_3(const std::vector<std::string>& arguments, bool is_chosen) {
  const bool is_daemon = !arguments.empty() && (arguments[0] == "-d" || arguments[0] == "-f");
  if (!is_daemon) {
    const bool is_help = arguments.size() == 2 && (arguments[1] == "help" || arguments[1] == "--help");
    if (!is_help || send_arguments(read_options(false).pipe_directory, arguments))
      return run_arguments(arguments);
    const auto answer = NamespaceControl({}, {}, false, {}).execute_command(0, arguments);
    std::fputs(answer.text.c_str(), stdout);
    return answer.code;
  }
  auto options = read_options(arguments[0] == "-f");
  options.is_multi_user = arguments.size() == 2 && arguments[1] == "-m";
  if (!is_chosen || (arguments.size() != 1 && !options.is_multi_user)) return print_usage();
  options.protocol = 3;
  if (arguments[0] == "-d") return start_in_background(options);
  const auto served = run_daemon(options, [] {});
  return served ? 0 : print_error(served.error());
}

int run_control_program(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string option = arguments.empty() ? "" : arguments[0];
  if (option.empty()) return run_interactive();
  if (option == "-v") {
    std::puts("CUDA MPS Control binary version: simulated");
    return 0;
  }
  const bool has_sm_partitions = argc == 3 && arguments[1] == "-S" && is_from_branch(kBranch590);
  if ((argc == 2 || has_sm_partitions) && (option == "-d" || option == "-f")) {
    auto options = read_options(option == "-f");
    options.has_sm_partitions = has_sm_partitions;
    if (option == "-d") return start_in_background(options);
    const auto served = run_daemon(options, [] {});
    return served ? 0 : print_error(served.error());
  }
  if (!is_from_branch(kBranch615)) return print_usage();
  const auto chosen = std::ranges::find(arguments, "-p");
  const bool is_chosen = chosen != arguments.end();
  if (is_chosen && (chosen + 1 == arguments.end() || chosen[1] != "3")) return print_usage();
  if (is_chosen) arguments.erase(chosen, chosen + 2);
  return run_protocol_3(arguments, is_chosen);
}

}  // namespace
}  // namespace gpulet::sim::mps

int main(int argc, char** argv) { return gpulet::sim::mps::run_control_program(argc, argv); }
