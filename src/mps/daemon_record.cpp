// What `.started` says about a Daemon: by it the next agent adopts the daemon, or ends it.
#include <algorithm>

#include "base/file.h"
#include "base/text.h"
#include "mps/daemon.h"

namespace gpulet::mps {
namespace {

constexpr std::string_view kStartedHeader = "gpulet 1\npid ";
constexpr std::string_view kProtocolLine = "protocol 3";

// Whether the record is of a daemon that had its limits and differs from `devices` in the process only.
bool ran_with(std::string_view record, std::string_view devices) {
  for (auto* text : {&record, &devices})
    text->remove_prefix(std::min(text->find('\n', kStartedHeader.size()), text->size()));
  return record.starts_with(devices) && record.size() > devices.size();
}

}  // namespace

Result<DaemonSpec> read_former_daemon(const std::string& root, const std::string& name) {
  const std::string path = started_file(root, name);
  GPULET_TRY_ASSIGN(const std::string text, read_file(path));
  if (!text.starts_with(kStartedHeader))
    return fail(Code::kInvalidArgument, "was written by another program", path);
  DaemonSpec spec;
  spec.name = name;
  for (const auto& line : text::split(text, '\n')) {
    if (line == kProtocolLine) spec.protocol = kProtocolWithNamespaces;
    const auto fields = text::split(line, ' ');
    if (fields.empty() || (fields.front() != "visible" && fields.front() != "devices")) continue;
    for (std::size_t i = 1; i < fields.size(); ++i) {
      const DeviceUuid uuid(fields[i]);
      if (fields.front() == "visible") spec.visible_devices.push_back(uuid);
      if (fields.front() == "devices") spec.devices.push_back({uuid, 0, fields[i].starts_with("MIG-"), {}});
    }
  }
  return spec;
}

bool Daemon::may_adopt() const {
  const auto saved = read_file(started_file(options_.root, spec_.name));
  return saved && saved->starts_with(fingerprint(process_.get(), false));
}

// Where its process is not known.
bool Daemon::ran_with_these_devices() const {
  const auto saved = read_file(started_file(options_.root, spec_.name));
  return saved && ran_with(*saved, fingerprint(nullptr, false));
}

// So the program has protocol 3, and needs not be asked.
bool Daemon::runs_with_namespaces() const {
  const auto former = read_former_daemon(options_.root, spec_.name);
  const auto process = find_process();
  if (!former || former->protocol != kProtocolWithNamespaces || !process) return false;
  const auto saved = read_file(started_file(options_.root, spec_.name));
  return saved && saved->starts_with(std::string(kStartedHeader) + (*process)->identity() + "\n");
}

Status Daemon::write_record(const DaemonProcess* process, bool with_limits) const {
  return write_file_atomic(started_file(options_.root, spec_.name), fingerprint(process, with_limits));
}

// Content of .started. The limits come last: a daemon that differs only in them can be updated.
std::string Daemon::fingerprint(const DaemonProcess* process, bool with_limits) const {
  std::string text = std::string(kStartedHeader) + (process == nullptr ? "0" : process->identity());
  text += "\nprogram " + program_->program.path;
  if (has_namespaces()) text += "\n" + std::string(kProtocolLine);
  if (has_sm_partitions()) text += "\nsm-partitions " + std::to_string(spec_.sm_partitions.size());
  text += "\nvisible";
  for (const auto& uuid : spec_.visible_devices) text += " " + uuid.str();
  text += "\ndevices";
  for (const auto& device : spec_.devices) text += " " + device.uuid.str();
  return with_limits ? text + "\n" + limit_commands() : text + "\n";
}

std::string Daemon::limit_commands() const {
  std::string commands;
  for (const auto& space : spec_.namespaces) {
    commands += "namespace " + space.name + " " + std::to_string(space.limits.threads) + " " +
                std::to_string(space.limits.mebibytes) + "\n";
  }
  if (has_namespaces()) return commands;
  for (const auto& limit : spec_.memory_limits) {
    commands += "set_default_device_pinned_mem_limit " + std::to_string(limit.device) + " " +
                std::to_string(limit.mebibytes) + "M\n";
  }
  if (has_sm_partitions()) return commands;
  return commands + "set_default_active_thread_percentage " + std::to_string(spec_.thread_percentage) + "\n";
}

}  // namespace gpulet::mps
