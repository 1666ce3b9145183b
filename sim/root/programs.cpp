#include "sim/root/programs.h"

#include <signal.h>

#include <filesystem>

#include "base/text.h"

namespace gpulet::sim {

void end_programs(const std::string& root) {
  std::error_code error;
  const auto folder = std::filesystem::canonical(root, error).string() + "/";
  if (error) return;
  for (const auto& process : std::filesystem::directory_iterator("/proc", error)) {
    const auto id = text::parse_unsigned(process.path().filename().string());
    if (!id) continue;
    std::error_code gone;
    const auto program = std::filesystem::read_symlink(process.path() / "exe", gone);
    if (!gone && program.string().starts_with(folder)) ::kill(static_cast<pid_t>(*id), SIGKILL);
  }
}

}  // namespace gpulet::sim
