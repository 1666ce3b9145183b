#include "sim/demo/demo.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/process.h"
#include "base/text.h"

namespace gpulet::sim {
namespace {

using namespace std::chrono_literals;

constexpr auto kCommandLimit = 30s;
constexpr int kMaxMounts = 16;  // on top of each other

}  // namespace

Result<std::string> program_output(std::vector<std::string> command, std::vector<std::string> environment) {
  int out[2];
  if (::pipe2(out, O_CLOEXEC) != 0) return fail(errno_error("cannot make a pipe", errno));
  FileDescriptor out_read(out[0]), out_write(out[1]);
  // A file, read after the exit: a second pipe could fill up and block the program while the first one is
  // read.
  const FileDescriptor errors(::memfd_create("stderr", MFD_CLOEXEC));
  if (errors.get() < 0) return fail(errno_error("cannot capture standard error", errno));
  ProcessOptions options{
      .program = command.front(), .arguments = command, .environment = std::move(environment)};
  options.descriptors = {{out_write.get(), STDOUT_FILENO}, {errors.get(), STDERR_FILENO}};
  GPULET_TRY_ASSIGN(const auto process, gpulet::Process::spawn(options));
  out_write.reset();
  GPULET_TRY_ASSIGN(std::string printed, read_all(out_read.get(), command.front()));
  GPULET_TRY_ASSIGN(const ProcessExit exit, process->wait_for_exit(kCommandLimit));
  ::lseek(errors.get(), 0, SEEK_SET);
  GPULET_TRY_ASSIGN(const std::string error_text, read_all(errors.get(), command.front()));
  if (exit.succeeded()) return printed;
  return fail(Code::kInternal, text::join(command, " ") + ": " + exit.exit_text() + ": " +
                                   std::string(text::trim(error_text.empty() ? printed : error_text)));
}

Result<std::unique_ptr<SimulatedNode>> SimulatedNode::start_node(const std::string& machine,
                                                                 const std::string& programs) {
  std::unique_ptr<SimulatedNode> node(new SimulatedNode);
  std::string directory = std::filesystem::temp_directory_path().string() + "/gpulet-demo-XXXXXX";
  if (::mkdtemp(directory.data()) == nullptr)
    return fail(errno_error("cannot create a directory", errno, directory));
  node->directory_ = directory;
  node->driver_root_ = directory + "/driver";
  node->log_ = directory + "/agent.log";
  const std::string bin = programs.empty() ? program_directory() : programs;
  node->gpulet_program_ = bin + "/gpulet";
  node->sim_program_ = bin + "/gpulet-sim";
  std::vector<std::string> up{"up", machine};
  if (!has_capability(CAP_SYS_ADMIN)) up.emplace_back("--no-device-nodes");
  GPULET_TRY(node->run_gpulet_sim(up));
  node->up_ = true;
  if (::mkfifo(node->kernel_log().c_str(), 0600) != 0) {
    return fail(errno_error("cannot create the kernel log", errno, node->kernel_log()));
  }
  GPULET_TRY_ASSIGN(node->kubelet_, Kubelet::start_kubelet({.dir = directory + "/kubelet"}));
  return node;
}

SimulatedNode::~SimulatedNode() {
  agent_.reset();
  kubelet_.reset();
  if (up_) static_cast<void>(run_gpulet_sim({"down"}));
  for (int i = 0;
       i < kMaxMounts && ::umount2((mps_root() + "/shm").c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) == 0; ++i) {
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

Status SimulatedNode::start_agent(const AgentOptions& options) {
  agent_.reset();
  const FileDescriptor log(::open(log_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.is_open()) return fail(errno_error("cannot create", errno, log_));
  ProcessOptions process{
      .program = gpulet_program_,
      .arguments = {options.name},
      .environment = {"GPULET_KUBELET_DIR=" + directory_ + "/kubelet", "GPULET_LISTEN=127.0.0.1:0",
                      "GPULET_LOG_FORMAT=json", "GPULET_STATE_DIR=" + state_dir(),
                      "GPULET_CDI_SPEC_DIR=" + directory_ + "/cdi", "GPULET_KERNEL_LOG=" + kernel_log(),
                      "GPULET_HEALTH_FILE=" + health_file()},
      .descriptors = {{log.get(), STDERR_FILENO}},
  };
  if (options.socket) process.environment.push_back("GPULET_SOCKET=" + socket());
  if (options.name == "gpulet") process.arguments.emplace_back("agent");
  if (options.name == "dcgm-exporter" || options.name == "nvidia-mig-manager") {  // no such flags
    process.environment.push_back("DRIVER_ROOT_CTR_PATH=" + driver_root_);
    process.environment.push_back("NVIDIA_DRIVER_ROOT=" + driver_root_);
  } else {
    for (const auto& argument :
         {"--driver-root-ctr-path=" + driver_root_, "--nvidia-driver-root=" + driver_root_,
          std::string("--pass-device-specs")}) {
      process.arguments.push_back(argument);
    }
  }
  process.arguments.insert(process.arguments.end(), options.arguments.begin(), options.arguments.end());
  process.environment.insert(process.environment.end(), options.environment.begin(),
                             options.environment.end());
  if (!options.launcher.empty()) {
    process.arguments[0] = process.program;
    process.arguments.insert(process.arguments.begin(), options.launcher.begin(), options.launcher.end());
    process.program = options.launcher.front();
  }
  GPULET_TRY_ASSIGN(agent_, gpulet::Process::spawn(process));
  return {};
}

Status SimulatedNode::start_next_agent(const AgentOptions& options) {
  previous_agent_ = std::move(agent_);
  return start_agent(options);
}

Result<std::chrono::nanoseconds> SimulatedNode::stop_agent() {
  const auto start = std::chrono::steady_clock::now();
  agent_->send_signal(SIGTERM);
  GPULET_TRY_ASSIGN(const ProcessExit exit, agent_->wait_for_exit(5s));
  const auto took = std::chrono::steady_clock::now() - start;
  if (!exit.succeeded()) return fail(Code::kInternal, "the agent ended with " + exit.exit_text());
  return took;
}

Result<std::string> SimulatedNode::run_gpulet_sim(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), sim_program_);
  arguments.insert(arguments.end(), {"--root", driver_root_});
  return program_output(std::move(arguments));
}

Result<std::string> SimulatedNode::run_gpulet(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), gpulet_program_);
  arguments.insert(arguments.end(), {"--driver-root", driver_root_});
  return program_output(std::move(arguments));
}

std::string SimulatedNode::agent_log() const { return read_file(log_).value_or(std::string()); }

std::string SimulatedNode::logged_message(const std::string& reason) const {
  std::string newest;
  for (const auto& line : text::split(agent_log(), '\n')) {
    const auto entry = nlohmann::json::parse(line, nullptr, false);
    if (!entry.is_object() || entry.value("reason", "") != reason) continue;
    newest = entry.value("message", "");
  }
  return newest;
}

std::size_t SimulatedNode::agent_resident_bytes() const {
  const auto status = read_file("/proc/" + std::to_string(agent_->pid()) + "/status");
  if (!status) return 0;
  const auto at = status->find("VmRSS:");
  return at == std::string::npos ? 0 : std::strtoull(status->c_str() + at + 6, nullptr, 10) * 1024;
}

}  // namespace gpulet::sim
