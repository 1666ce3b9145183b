#include "cli/demo_stage.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"

namespace gpulet::cli {
namespace {

using namespace std::chrono_literals;

constexpr auto kCommandLimit = 30s;

std::string program_folder() {
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) return ".";
  const std::string program(path, static_cast<std::size_t>(length));
  return program.substr(0, program.rfind('/'));
}

}  // namespace

std::string text_of(std::chrono::nanoseconds time) {
  char text[32];
  if (time < 1ms) {
    std::snprintf(text, sizeof text, "%.0f µs", static_cast<double>(time.count()) / 1e3);
  } else {
    std::snprintf(text, sizeof text, "%.1f ms", Milliseconds(time).count());
  }
  return text;
}

Narrator::Narrator() : colour_(::isatty(STDOUT_FILENO) == 1), start_(std::chrono::steady_clock::now()) {}

void Narrator::heading(const std::string& text) {
  char clock[16];
  std::snprintf(clock, sizeof clock, "%4.1f s", Milliseconds(std::chrono::steady_clock::now() - start_).count() / 1e3);
  std::cout << '\n'
            << (colour_ ? "\033[1;36m" : "") << ++step_ << ". " << text << (colour_ ? "\033[0m\033[2m" : "") << "  ["
            << clock << "]" << (colour_ ? "\033[0m" : "") << std::endl;
}
void Narrator::command(const std::string& text) {
  std::cout << (colour_ ? "   \033[2m$ " : "   $ ") << text << (colour_ ? "\033[0m" : "") << std::endl;
}
void Narrator::say(const std::string& text) { std::cout << "   " << text << std::endl; }
void Narrator::done(const std::string& text) {
  std::cout << (colour_ ? "   \033[1;32m✓\033[0m " : "   ok: ") << text << std::endl;
}
void Narrator::block(const std::string& text) {
  std::string_view rest = text;
  while (!rest.empty()) {
    const auto end = std::min(rest.find('\n'), rest.size());
    std::cout << "   " << rest.substr(0, end) << '\n';
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  std::cout << std::flush;
}

Result<std::string> output_of(std::vector<std::string> command, std::vector<std::string> environment) {
  int out[2], err[2];
  if (::pipe2(out, O_CLOEXEC) != 0) return fail(errno_error("cannot make a pipe", errno));
  FileDescriptor out_read(out[0]), out_write(out[1]);
  if (::pipe2(err, O_CLOEXEC) != 0) return fail(errno_error("cannot make a pipe", errno));
  FileDescriptor err_read(err[0]), err_write(err[1]);
  ProcessOptions options{.program = command.front(), .arguments = command, .environment = std::move(environment)};
  options.descriptors = {{out_write.get(), STDOUT_FILENO}, {err_write.get(), STDERR_FILENO}};
  GPULET_TRY_ASSIGN(const auto process, Process::start(options));
  out_write.reset();
  err_write.reset();
  GPULET_TRY_ASSIGN(std::string printed, read_all(out_read.get(), command.front()));
  GPULET_TRY_ASSIGN(const std::string complaint, read_all(err_read.get(), command.front()));
  GPULET_TRY_ASSIGN(const ProcessExit exit, process->wait(kCommandLimit));
  if (exit.ok()) return printed;
  return fail(Code::kInternal, text::join(command, " ") + ": " + exit.text() + ": " +
                                   std::string(text::trim(complaint.empty() ? printed : complaint)));
}

Result<std::unique_ptr<DemoStage>> DemoStage::set(const std::string& machine) {
  std::unique_ptr<DemoStage> stage(new DemoStage);
  std::string folder = std::filesystem::temp_directory_path().string() + "/gpulet-demo-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return fail(errno_error("cannot make a folder", errno, folder));
  stage->folder_ = folder;
  stage->root_ = folder + "/driver";
  stage->log_ = folder + "/agent.log";
  stage->self_ = "/proc/self/exe";
  stage->sim_program_ = program_folder() + "/gpulet-sim";
  std::vector<std::string> up{"up", machine};
  if (::geteuid() != 0) up.emplace_back("--no-device-nodes");
  GPULET_TRY(stage->sim(up));
  stage->up_ = true;
  GPULET_TRY_ASSIGN(stage->kubelet_, sim::Kubelet::start({.dir = folder + "/kubelet",
                                                          .topology = sim::TopologyPolicy::kBestEffort}));
  return stage;
}

DemoStage::~DemoStage() {
  agent_.reset();
  kubelet_.reset();
  if (up_) static_cast<void>(sim({"down"}));
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

Status DemoStage::start_agent() {
  const FileDescriptor log(::open(log_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) return fail(errno_error("cannot create", errno, log_));
  ProcessOptions options{
      .program = self_,
      .arguments = {"gpulet", "agent", "--driver-root-ctr-path=" + root_, "--nvidia-driver-root=" + root_,
                    "--pass-device-specs"},
      .environment = {"GPULET_KUBELET_DIR=" + folder_ + "/kubelet", "GPULET_LISTEN=127.0.0.1:0",
                      "GPULET_LOG_FORMAT=json"},
      .descriptors = {{log.get(), STDERR_FILENO}},
  };
  GPULET_TRY_ASSIGN(agent_, Process::start(options));
  return {};
}

Result<std::chrono::nanoseconds> DemoStage::stop_agent() {
  const auto start = std::chrono::steady_clock::now();
  agent_->send_signal(SIGTERM);
  GPULET_TRY_ASSIGN(const ProcessExit exit, agent_->wait(5s));
  const auto took = std::chrono::steady_clock::now() - start;
  if (!exit.ok()) return fail(Code::kInternal, "the agent ended with " + exit.text());
  return took;
}

Result<std::string> DemoStage::sim(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), sim_program_);
  arguments.insert(arguments.end(), {"--root", root_});
  return output_of(std::move(arguments));
}

Result<std::string> DemoStage::gpulet(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), self_);
  arguments.insert(arguments.end(), {"--driver-root", root_});
  return output_of(std::move(arguments));
}

std::string DemoStage::agent_said(const std::string& reason) const {
  const auto log = read_file(log_);
  if (!log) return {};
  std::string newest;
  for (const auto& line : text::split(*log, '\n')) {
    const auto entry = nlohmann::json::parse(line, nullptr, false);
    if (!entry.is_object() || entry.value("reason", "") != reason) continue;
    newest = entry.value("message", "");
  }
  return newest;
}

std::size_t DemoStage::agent_resident_bytes() const {
  const auto status = read_file("/proc/" + std::to_string(agent_->id()) + "/status");
  if (!status) return 0;
  const auto at = status->find("VmRSS:");
  return at == std::string::npos ? 0 : std::strtoull(status->c_str() + at + 6, nullptr, 10) * 1024;
}

}  // namespace gpulet::cli
