// Parses any bytes as a GPU's configuration space, without reading outside it.
#include <cstdlib>

#include "inventory/host_files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::inventory;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto host = parse_vgpu_host(bytes);
  if (host && (size < 256 || host->driver_version.size() > 10 || host->driver_branch.size() > 10))
    std::abort();
  if (parse_pci_class(bytes) > 0xffffff) std::abort();
  return 0;
}
