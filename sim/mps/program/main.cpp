// The nvidia-cuda-mps-control of a simulated driver root.
//
//   nvidia-cuda-mps-control -d | -f     the daemon, in the background or in the foreground
//   nvidia-cuda-mps-control [-v]        commands from standard input to the daemon of CUDA_MPS_PIPE_DIRECTORY
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "sim/mps/daemon.h"
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

int run_control_program(int argc, char** argv) {
  const std::string option = argc > 1 ? argv[1] : "";
  if (option.empty()) return run_interactive();
  if (option == "-v") {
    std::puts("CUDA MPS Control binary version: simulated");
    return 0;
  }
  if (argc == 2 && option == "-f") {
    const auto served = run_daemon(read_options(true), [] {});
    return served ? 0 : print_error(served.error());
  }
  if (argc == 2 && option == "-d") return start_in_background(read_options(false));
  std::fprintf(stderr, "usage: nvidia-cuda-mps-control [-d | -f | -v]\n");
  return 1;
}

}  // namespace
}  // namespace gpulet::sim::mps

int main(int argc, char** argv) { return gpulet::sim::mps::run_control_program(argc, argv); }
