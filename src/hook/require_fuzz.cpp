// Fuzzes NVIDIA_REQUIRE_* of an image.
#include <algorithm>
#include <cstdlib>

#include "hook/requirements.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::hook;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const HostProperties host{"535.161.08", "12.2", "8.0", "tesla"};
  const auto checked = check_requirements({"NVIDIA_REQUIRE_CUDA=" + text}, host);
  if (!checked) {
    const std::string message = checked.error().full_message();
    if (message.size() > 1000 ||
        std::any_of(message.begin(), message.end(), [](char c) { return c < 0x20 || c > 0x7E; }))
      std::abort();
  }
  if (!check_requirements({"NVIDIA_REQUIRE_CUDA=" + text, "NVIDIA_DISABLE_REQUIRE=1"}, host)) std::abort();
  return 0;
}
