// Fuzzes a container's state and config.json.
#include <cstdlib>

#include "hook/container.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::hook;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto state = parse_oci_state(text)) {
    if (state->root.find('\0') != std::string::npos || state->root.size() > size) std::abort();
  }
  if (const auto config = parse_bundle_config(text)) {
    if (config->root_path.find('\0') != std::string::npos || config->environment.size() > size) std::abort();
  }
  return 0;
}
