#include "cli/simulated_node.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "mps/shm.h"

namespace gpulet::cli {
namespace {

using namespace std::chrono_literals;

constexpr auto kCommandLimit = 30s;

}  // namespace

Result<std::string> output_of(std::vector<std::string> command, std::vector<std::string> environment) {
  int out[2];
  if (::pipe2(out, O_CLOEXEC) != 0) return fail(errno_error("cannot make a pipe", errno));
  FileDescriptor out_read(out[0]), out_write(out[1]);
  // Read when all is over: of a second pipe, one that is full would stop a program that is read from the
  // first.
  const FileDescriptor complaints(::memfd_create("stderr", MFD_CLOEXEC));
  if (complaints.get() < 0) return fail(errno_error("cannot keep standard error", errno));
  ProcessOptions options{
      .program = command.front(), .arguments = command, .environment = std::move(environment)};
  options.descriptors = {{out_write.get(), STDOUT_FILENO}, {complaints.get(), STDERR_FILENO}};
  GPULET_TRY_ASSIGN(const auto process, Process::start(options));
  out_write.reset();
  GPULET_TRY_ASSIGN(std::string printed, read_all(out_read.get(), command.front()));
  GPULET_TRY_ASSIGN(const ProcessExit exit, process->wait(kCommandLimit));
  ::lseek(complaints.get(), 0, SEEK_SET);
  GPULET_TRY_ASSIGN(const std::string complaint, read_all(complaints.get(), command.front()));
  if (exit.ok()) return printed;
  return fail(Code::kInternal, text::join(command, " ") + ": " + exit.text() + ": " +
                                   std::string(text::trim(complaint.empty() ? printed : complaint)));
}

Result<std::unique_ptr<SimulatedNode>> SimulatedNode::start(const std::string& machine,
                                                            const std::string& programs) {
  std::unique_ptr<SimulatedNode> node(new SimulatedNode);
  std::string folder = std::filesystem::temp_directory_path().string() + "/gpulet-demo-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return fail(errno_error("cannot make a folder", errno, folder));
  node->folder_ = folder;
  node->root_ = folder + "/driver";
  node->log_ = folder + "/agent.log";
  node->self_ = programs.empty() ? "/proc/self/exe" : programs + "/gpulet";
  node->sim_program_ = (programs.empty() ? program_folder() : programs) + "/gpulet-sim";
  std::vector<std::string> up{"up", machine};
  if (::geteuid() != 0) up.emplace_back("--no-device-nodes");
  GPULET_TRY(node->sim(up));
  node->up_ = true;
  if (::mkfifo(node->kernel_log().c_str(), 0600) != 0) {
    return fail(errno_error("cannot make the kernel's log", errno, node->kernel_log()));
  }
  GPULET_TRY_ASSIGN(node->kubelet_, sim::Kubelet::start({.dir = folder + "/kubelet"}));
  return node;
}

SimulatedNode::~SimulatedNode() {
  agent_.reset();
  kubelet_.reset();
  if (up_) static_cast<void>(sim({"down"}));
  static_cast<void>(mps::unmount_shm(mps_root()));
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

Status SimulatedNode::start_agent(const AgentOptions& options) {
  agent_.reset();
  const FileDescriptor log(::open(log_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) return fail(errno_error("cannot create", errno, log_));
  ProcessOptions process{
      .program = self_,
      .arguments = {options.name},
      .environment = {"GPULET_KUBELET_DIR=" + folder_ + "/kubelet", "GPULET_LISTEN=127.0.0.1:0",
                      "GPULET_LOG_FORMAT=json", "GPULET_STATE_DIR=" + state_dir(),
                      "GPULET_CDI_SPEC_DIR=" + folder_ + "/cdi", "GPULET_KERNEL_LOG=" + kernel_log(),
                      "GPULET_HEALTH_FILE=" + health_file()},
      .descriptors = {{log.get(), STDERR_FILENO}},
  };
  if (options.socket) process.environment.push_back("GPULET_SOCKET=" + socket());
  if (options.name == "gpulet") process.arguments.emplace_back("agent");
  for (const auto& argument : {"--driver-root-ctr-path=" + root_, "--nvidia-driver-root=" + root_,
                               std::string("--pass-device-specs")}) {
    process.arguments.push_back(argument);
  }
  process.arguments.insert(process.arguments.end(), options.arguments.begin(), options.arguments.end());
  process.environment.insert(process.environment.end(), options.environment.begin(),
                             options.environment.end());
  if (!options.launcher.empty()) {
    process.arguments[0] = process.program;
    process.arguments.insert(process.arguments.begin(), options.launcher.begin(), options.launcher.end());
    process.program = options.launcher.front();
  }
  GPULET_TRY_ASSIGN(agent_, Process::start(process));
  return {};
}

Result<std::chrono::nanoseconds> SimulatedNode::stop_agent() {
  const auto start = std::chrono::steady_clock::now();
  agent_->send_signal(SIGTERM);
  GPULET_TRY_ASSIGN(const ProcessExit exit, agent_->wait(5s));
  const auto took = std::chrono::steady_clock::now() - start;
  if (!exit.ok()) return fail(Code::kInternal, "the agent ended with " + exit.text());
  return took;
}

Result<std::string> SimulatedNode::sim(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), sim_program_);
  arguments.insert(arguments.end(), {"--root", root_});
  return output_of(std::move(arguments));
}

Result<std::string> SimulatedNode::gpulet(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), self_);
  arguments.insert(arguments.end(), {"--driver-root", root_});
  return output_of(std::move(arguments));
}

std::string SimulatedNode::agent_log() const { return read_file(log_).value_or(std::string()); }

std::string SimulatedNode::agent_said(const std::string& reason) const {
  std::string newest;
  for (const auto& line : text::split(agent_log(), '\n')) {
    const auto entry = nlohmann::json::parse(line, nullptr, false);
    if (!entry.is_object() || entry.value("reason", "") != reason) continue;
    newest = entry.value("message", "");
  }
  return newest;
}

std::size_t SimulatedNode::agent_resident_bytes() const {
  const auto status = read_file("/proc/" + std::to_string(agent_->id()) + "/status");
  if (!status) return 0;
  const auto at = status->find("VmRSS:");
  return at == std::string::npos ? 0 : std::strtoull(status->c_str() + at + 6, nullptr, 10) * 1024;
}

}  // namespace gpulet::cli
