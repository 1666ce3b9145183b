// Parses any bytes as the driver's mig-minors file.
#include <cstdlib>

#include "inventory/host_files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::inventory;
  const auto minors = parse_mig_minors(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!minors) return 0;
  for (unsigned gi = 0; gi < 3; ++gi) {
    const auto nodes = mig_device_nodes(*minors, 0, gi, 0);
    const bool known = minors->gpu_instance_minor(0, gi) && minors->compute_instance_minor(0, gi, 0);
    if (nodes.size() != (known ? 2u : 0u)) std::abort();
  }
  return 0;
}
