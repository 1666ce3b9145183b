// Any layout file that parses can be looked up and written, and its names parsed again.
#include <cstdlib>

#include "mig/layout_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::mig;
  const auto file = parse_layout_file({reinterpret_cast<const char*>(data), size}, "f");
  if (!file) {
    if (file.error().message().empty()) std::abort();
    return 0;
  }
  State gpu;
  gpu.pci_device_id = 0x233010de;
  for (const auto& config : file->configs) {
    const auto layout = layout_of(*file, config.name, gpu);
    if (!layout) std::abort();
    if (!*layout) continue;
    const auto& [enabled, devices] = (*layout)->layout;
    if (!enabled && !devices.empty()) std::abort();
    for (const auto& [name, count] : devices) {
      const auto read = parse_profile_name(name);
      if (!read || read->canonical_name() != name || count == 0) std::abort();
    }
  }
  const std::string written = to_yaml(*file);
  const auto again = parse_layout_file(written, "f");
  if (!again || to_yaml(*again) != written) std::abort();
  return 0;
}
