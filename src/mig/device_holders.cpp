#include "mig/device_holders.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/text.h"

namespace gpulet::mig {
namespace {

constexpr std::size_t kMostComm = 64;  // the kernel's limit is 16
// The kernel cuts the name.
constexpr std::string_view kPersistenced = "nvidia-persiste";

constexpr std::string_view kProcess = "process ";

// The process chose the name, so it may contain anything.
std::string comm_of(const std::string& process_directory) {
  const auto comm = read_file(process_directory + "/comm", kMostComm);
  std::string name(comm ? text::trim(*comm) : "");
  for (char& c : name) {
    if (c < ' ' || c > '~' || c == '(' || c == ')') c = '?';
  }
  return name;
}

bool has_open(const std::string& process_directory, const std::string& node) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(process_directory + "/fd", error), end; !error && at != end;
       at.increment(error)) {
    std::error_code unreadable;
    const std::string target = std::filesystem::read_symlink(at->path(), unreadable);
    if (!unreadable && target.ends_with(node)) return true;
  }
  return false;
}

}  // namespace

std::string process_text(unsigned pid, const std::string& proc_root) {
  const std::string name = comm_of(proc_root + "/" + std::to_string(pid));
  return std::string(kProcess) + std::to_string(pid) + (name.empty() ? "" : " (" + name + ")");
}

std::string without_process_names(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (;;) {
    const auto found = text.find(kProcess);
    if (found == std::string_view::npos) break;
    auto end = found + kProcess.size();
    const auto digits = end;
    while (end < text.size() && text::is_digit(text[end])) ++end;
    result += text.substr(0, end);
    text.remove_prefix(end);
    const auto closing = text.find(')');
    if (end > digits && text.starts_with(" (") && closing != std::string_view::npos)
      text.remove_prefix(closing + 1);
  }
  return result += text;
}

std::vector<DeviceHolder> find_device_holders(unsigned minor, const std::string& proc_root) {
  const std::string node = "/dev/nvidia" + std::to_string(minor);
  std::vector<unsigned> pids;
  std::error_code error;
  for (std::filesystem::directory_iterator at(proc_root, error), end; !error && at != end;
       at.increment(error)) {
    const auto pid = text::parse_unsigned(at->path().filename().string());
    if (pid && *pid != static_cast<std::uint64_t>(::getpid())) pids.push_back(static_cast<unsigned>(*pid));
  }
  std::ranges::sort(pids);
  std::vector<DeviceHolder> holders;
  for (const unsigned pid : pids) {
    const std::string directory = proc_root + "/" + std::to_string(pid);
    if (holders.size() == kMostDeviceHolders) break;
    if (!has_open(directory, node) || comm_of(directory).starts_with(kPersistenced)) continue;
    holders.push_back({pid, process_text(pid, proc_root)});
  }
  return holders;
}

}  // namespace gpulet::mig
