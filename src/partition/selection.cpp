#include "partition/selection.h"

#include <algorithm>
#include <set>
#include <variant>

#include "partition/names.h"

namespace gpulet::partition {
namespace {

using config::GpuRef;
using config::PartitionRule;
using inventory::Gpu;

bool names(const GpuRef& ref, const Gpu& gpu) {
  return ref.uuid.empty() ? ref.first <= gpu.index && gpu.index <= ref.last : ref.uuid == gpu.uuid;
}

// What of an explicit list is not on the node, as the list writes it.
void note_missing(const PartitionRule& rule, const inventory::Snapshot& snapshot, std::vector<Note>& notes) {
  const auto* refs = std::get_if<config::GpuRefs>(&rule.devices);
  if (!refs) return;
  std::vector<std::string> missing;
  for (const auto& ref : *refs) {
    const auto there = std::ranges::count_if(snapshot.gpus, [&](const Gpu& gpu) { return names(ref, gpu); });
    const unsigned wanted = ref.uuid.empty() ? ref.last - ref.first + 1 : 1;
    if (static_cast<std::size_t>(there) < wanted) missing.push_back(ref.text());
  }
  for (const auto& text : missing) {
    const bool some = text.find('-') != std::string::npos && text.find("GPU-") != 0;
    notes.push_back(
        {rule.place + ": the node " + (some ? "does not have all of GPUs " : "has no GPU ") + text});
  }
}

bool listed(const PartitionRule& rule, const Gpu& gpu) {
  const auto* refs = std::get_if<config::GpuRefs>(&rule.devices);
  return !refs || std::ranges::any_of(*refs, [&](const GpuRef& ref) { return names(ref, gpu); });
}

}  // namespace

bool has_label(const config::NodeLabel& wanted, const std::map<std::string, std::string>& labels) {
  const auto found = labels.find(wanted.key);
  return found != labels.end() && (!wanted.value || found->second == *wanted.value);
}

bool display_adapter(const Gpu& gpu) {
  return gpu.model == "DGX Display" || gpu.model == "NVIDIA DGX Display";
}

Selection select_rules(const inventory::Snapshot& snapshot, const config::Config& config,
                       const std::map<std::string, std::string>& labels) {
  Selection selection;
  selection.rule.resize(snapshot.gpus.size());
  const auto& rules = config.gpulet.partition;
  for (std::size_t r = 0; r < rules.size(); ++r) {
    const auto& rule = rules[r];
    if (rule.node_label && !has_label(*rule.node_label, labels)) continue;
    note_missing(rule, snapshot, selection.notes);
    std::size_t left = snapshot.gpus.size();
    const auto* count = std::get_if<config::DeviceCount>(&rule.devices);
    if (count) left = count->count;
    std::set<DeviceUuid> seen;
    for (std::size_t g = 0; g < snapshot.gpus.size() && left > 0; ++g) {
      const auto& gpu = snapshot.gpus[g];
      if (gpu.uuid.empty() || display_adapter(gpu) || !seen.insert(gpu.uuid).second) continue;
      if (selection.rule[g] || !listed(rule, gpu) || (rule.model && !matches(*rule.model, gpu.model)))
        continue;
      selection.rule[g] = r;
      --left;
    }
    if (count && left > 0) {
      selection.notes.push_back({rule.place + ": " + std::to_string(count->count) + " GPUs are wanted, and " +
                                 std::to_string(count->count - left) + " are left that it applies to"});
    }
  }
  return selection;
}

}  // namespace gpulet::partition
