#include "partition/desired_mig.h"

#include <algorithm>
#include <variant>

#include "partition/selection.h"

namespace gpulet::partition {

std::vector<DesiredMig> desired_mig(const inventory::Snapshot& snapshot, const config::Config& config,
                                    const std::map<std::string, std::string>& labels) {
  const auto selection = select_rules(snapshot, config, labels);
  std::vector<DesiredMig> desired;
  for (std::size_t i = 0; i < snapshot.gpus.size(); ++i) {
    const auto& gpu = snapshot.gpus[i];
    if (!selection.rule[i] || !gpu.mig_capable) continue;
    const auto& rule = config.gpulet.partition[*selection.rule[i]];
    DesiredMig& wanted = desired.emplace_back();
    wanted.index = gpu.index;
    wanted.uuid = gpu.uuid;
    wanted.place = rule.place;
    if (const auto* mig = std::get_if<config::Mig>(&rule.how)) {
      wanted.enabled = true;
      wanted.layout = mig->layout;
      for (const auto& [profile, count] : mig->devices) {
        if (count > 0) wanted.devices.emplace(profile, count);
      }
    }
  }
  std::ranges::sort(desired, {}, &DesiredMig::index);
  return desired;
}

}  // namespace gpulet::partition
