// Any hooks file that parses can be run.
#include <cstdlib>

#include "mig/hooks.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::mig;
  const auto file = parse_hooks_file({reinterpret_cast<const char*>(data), size}, "f");
  if (!file) {
    if (file.error().message().empty()) std::abort();
    return 0;
  }
  const auto plain = [](const std::string& text) { return text.find('\0') == std::string::npos; };
  for (const auto& hooks : file->hooks) {
    for (const auto& hook : hooks) {
      if (!hook.command.starts_with('/') || !hook.workdir.starts_with('/')) std::abort();
      if (!plain(hook.command) || !plain(hook.workdir)) std::abort();
      for (const auto& arg : hook.args) {
        if (!plain(arg)) std::abort();
      }
      for (const auto& [variable, value] : hook.envs) {
        if (variable.empty() || variable.find('=') != std::string::npos) std::abort();
        if (!plain(variable) || !plain(value)) std::abort();
      }
    }
  }
  return 0;
}
