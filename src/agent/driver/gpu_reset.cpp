#include "agent/driver/gpu_reset.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "agent/driver/gpu_lookup.h"
#include "base/driver_root.h"
#include "base/file.h"
#include "base/process.h"
#include "base/text.h"
#include "nvml/usage.h"

namespace gpulet::agent {
namespace {

constexpr std::size_t kMaxResetOutput = 64u << 10;
constexpr std::size_t kMaxFailureText = 512;

bool lists_no_processes(const Error& error) {
  return error.code() == Code::kUnsupported || error.code() == Code::kResetRequired;
}

std::string read_output(int file) {
  std::string output(kMaxResetOutput, '\0');
  const auto got = ::pread(file, output.data(), output.size(), 0);
  output.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return output;
}

}  // namespace

std::string reset_failure(const std::string& output) {
  std::string first, refused;
  for (const auto& line : text::split(output, '\n')) {
    const auto trimmed = text::trim(line);
    if (trimmed.empty()) continue;
    if (first.empty()) first = trimmed;
    // The first line only announces a list: "The following GPUs could not be reset:".
    if (refused.empty() && first.ends_with(':') && std::string_view(first) != trimmed) refused = trimmed;
  }
  return text::printable(refused.empty() ? first : refused, kMaxFailureText);
}

Status reset_gpus(const std::string& driver_root, const std::vector<DeviceUuid>& gpus, Duration limit) {
  GPULET_TRY_ASSIGN(const auto program, find_driver_program(driver_root, kResetProgram));
  const FileDescriptor output(::memfd_create("gpulet-reset", MFD_CLOEXEC));
  if (!output.is_open()) return fail(errno_error("memfd_create", errno));
  std::string list;
  for (const auto& gpu : gpus) list += (list.empty() ? "" : ",") + gpu.str();
  auto arguments = program.arguments;
  for (auto&& word : {std::string("--gpu-reset"), std::string("-i"), list}) arguments.push_back(word);
  // A reset that has begun is not cut off with the agent.
  GPULET_TRY_ASSIGN(const auto process, Process::spawn({.program = program.program,
                                                        .arguments = arguments,
                                                        .environment = program.environment,
                                                        .descriptors = {{output.get(), 1}, {output.get(), 2}},
                                                        .bind_mounts = program.bind_mounts,
                                                        .root = program.root,
                                                        .dies_with_parent = false}));
  const auto exit = process->wait_for_exit(limit);
  if (!exit) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit).count();
    return fail(Code::kDeadlineExceeded, "nvidia-smi did not end in " + std::to_string(seconds) + " s");
  }
  if (exit->succeeded()) return {};
  const auto why = reset_failure(read_output(output.get()));
  return fail(Code::kFailedPrecondition,
              "nvidia-smi: " + (why.empty() ? exit->exit_text() : why + " (" + exit->exit_text() + ")"));
}

Result<std::vector<mig::DeviceHolder>> read_gpu_contexts(const nvml::Session& session, unsigned index,
                                                         const DeviceUuid& gpu,
                                                         const std::string& proc_root) {
  const auto device = find_gpu_at(session, index, gpu);
  const auto processes = device ? nvml::Usage(session, *device).process_memory() : fail(device.error());
  if (!processes) return fail(processes.error());
  std::vector<mig::DeviceHolder> holders;
  for (const auto& one : *processes)
    holders.push_back({one.process.pid, mig::process_text(one.process.pid, proc_root)});
  return holders;
}

Result<std::vector<mig::DeviceHolder>> read_gpu_holders(const nvml::Session& session, unsigned index,
                                                        const DeviceUuid& gpu, unsigned minor,
                                                        const std::string& proc_root) {
  auto holders = mig::find_device_holders(minor, proc_root);
  const auto contexts = read_gpu_contexts(session, index, gpu, proc_root);
  if (!contexts && !lists_no_processes(contexts.error())) return fail(contexts.error());
  for (const auto& one : contexts ? *contexts : std::vector<mig::DeviceHolder>()) {
    if (std::ranges::count(holders, one.pid, &mig::DeviceHolder::pid) == 0) holders.push_back(one);
  }
  std::ranges::sort(holders, {}, &mig::DeviceHolder::pid);
  return holders;
}

}  // namespace gpulet::agent
