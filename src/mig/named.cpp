#include "mig/named.h"

#include "mig/derive.h"

namespace gpulet::mig {

Result<std::vector<std::optional<LayoutAt>>> named_layouts(const LayoutFile* file, std::string_view name,
                                                           std::span<const State> gpus) {
  std::vector<std::optional<LayoutAt>> all(gpus.size());
  if (file == nullptr) {
    GPULET_TRY_ASSIGN(auto layouts, derived(name, gpus));
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      if (layouts[i]) all[i] = {std::move(*layouts[i]), {}};
    }
    return all;
  }
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    GPULET_TRY_ASSIGN(all[i], layout_of(*file, name, gpus[i]));
  }
  return all;
}

Result<std::vector<std::optional<LayoutAt>>> named_layouts(const std::string& path, std::string_view name,
                                                           std::span<const State> gpus) {
  if (path.empty()) return named_layouts(nullptr, name, gpus);
  GPULET_TRY_ASSIGN(const auto file, load_layout_file(path));
  return named_layouts(&file, name, gpus);
}

}  // namespace gpulet::mig
