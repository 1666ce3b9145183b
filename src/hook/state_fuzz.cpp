// Fuzzes a container's state and config.json, and the agent's answer.
#include <cstdlib>

#include "hook/container.h"
#include "hook/limit_memory.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::hook;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto state = parse_oci_state(text)) {
    if (state->root.find('\0') != std::string::npos || state->root.size() > size) std::abort();
  }
  if (const auto config = parse_bundle_config(text)) {
    if (config->root_path.find('\0') != std::string::npos || config->environment.size() > size) std::abort();
  }
  if (const auto named = parse_named_container(text)) {
    const auto line = limit_request_line(*named, text);
    if (named->pid == 0 || line.find('\n') != line.size() - 1) std::abort();
  }
  if (parse_limit_answer(text) && text.find("true") == std::string_view::npos) std::abort();
  return 0;
}
