// Any web config file is read or rejected with its position, and names only the files that it was read from.
#include <cstdint>
#include <cstdlib>

#include "config/web_config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet;
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::size_t reads = 0;
  const auto result =
      config::read_web_config("/d/web.yaml", [&](const std::string& path) -> Result<std::string> {
        if (++reads > 8) std::abort();
        if (path == "/d/web.yaml") return text;
        if (path.empty() || path.front() != '/') std::abort();
        return std::string("PEM");
      });
  if (result.files.empty() || result.files.front() != "/d/web.yaml" || result.files.size() > 8) std::abort();
  if (!result.config) {
    const auto message = result.config.error().full_message();
    if (message.empty() || message.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  for (const auto& [name, hash] : result.config->users) {
    if (name.empty() && !hash.empty() && text.find(hash) == std::string::npos) std::abort();
  }
  return 0;
}
