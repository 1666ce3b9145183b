// Loads any bytes as a config file: the lowest bit of the first byte selects drop-in mode, the rest is the
// file.
#include <cstdlib>

#include "config/load.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  gpulet::config::Sources sources;
  sources.file_path = "f";
  sources.drop_in = (data[0] & 1) != 0;
  sources.file_content.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto checked = gpulet::config::check_config(sources);
  if (!checked.errors.empty()) return 0;
  // A valid config is printed as a valid file, which prints the same except for origins.
  gpulet::config::Sources again;
  again.file_path = "f";
  again.file_content = gpulet::config::print_yaml(checked.loaded);
  const auto second = gpulet::config::check_config(again);
  if (!second.errors.empty()) std::abort();
  if (checked.loaded.config.sharing.resources.size() != second.loaded.config.sharing.resources.size())
    std::abort();
  if (checked.loaded.config.gpulet.partition != second.loaded.config.gpulet.partition) std::abort();
  if (checked.loaded.config.gpulet.power != second.loaded.config.gpulet.power) std::abort();
  if (checked.loaded.config.gpu_resources.size() != second.loaded.config.gpu_resources.size()) std::abort();
  return 0;
}
