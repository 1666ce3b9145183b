#include "agent/mig_wishes.h"

#include <algorithm>

#include "mig/named.h"
#include "partition/desired_mig.h"

namespace gpulet::agent {

std::vector<MigWish> mig_wishes(const inventory::Snapshot& snapshot, const config::Config& config,
                                const std::map<std::string, std::string>& labels) {
  std::vector<MigWish> wishes;
  if (!config.gpulet.mig.manage) return wishes;
  for (const auto& desired : partition::desired_mig(snapshot, config, labels)) {
    MigWish wish{desired.uuid, desired.layout, std::nullopt, desired.place, false};
    if (!desired.enabled || desired.layout.empty())
      wish.exact = mig::Layout{desired.enabled, desired.devices};
    wishes.push_back(std::move(wish));
  }
  const auto label = labels.find(kMigConfigLabel);
  if (label == labels.end() || label->second.empty()) return wishes;
  const std::size_t ruled = wishes.size();
  for (const auto& gpu : snapshot.gpus) {
    if (!gpu.mig_capable || gpu.unreadable) continue;
    const auto first = wishes.begin();
    if (std::ranges::count(first, first + static_cast<std::ptrdiff_t>(ruled), gpu.uuid, &MigWish::gpu) != 0)
      continue;
    wishes.push_back({gpu.uuid, label->second, std::nullopt,
                      "the label " + std::string(kMigConfigLabel) + "=" + label->second, true});
  }
  return wishes;
}

Result<std::vector<std::optional<mig::Layout>>> mig_layouts(const config::Config& config,
                                                            const std::string& name,
                                                            std::span<const mig::State> gpus) {
  GPULET_TRY_ASSIGN(auto named, mig::named_layouts(config.gpulet.mig.config_file, name, gpus));
  std::vector<std::optional<mig::Layout>> layouts(named.size());
  for (std::size_t i = 0; i < named.size(); ++i) {
    if (named[i]) layouts[i] = std::move(named[i]->layout);
  }
  return layouts;
}

}  // namespace gpulet::agent
