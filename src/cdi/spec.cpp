#include "cdi/spec.h"

#include <algorithm>
#include <functional>

#include "cdi/root.h"

namespace gpulet::cdi {
namespace {

bool any_edits(const Spec& spec, const std::function<bool(const ContainerEdits&)>& holds) {
  return holds(spec.edits) ||
         std::ranges::any_of(spec.devices, [&](const Device& device) { return holds(device.edits); });
}

bool needs_0_4(const Spec& spec) {
  return any_edits(spec, [](const ContainerEdits& edits) {
    return std::ranges::any_of(edits.mounts, [](const MountEdit& mount) { return !mount.type.empty(); });
  });
}

bool needs_0_5(const Spec& spec) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  return std::ranges::any_of(
             spec.devices,
             [&](const Device& device) { return !device.name.empty() && !is_letter(device.name.front()); }) ||
         any_edits(spec, [](const ContainerEdits& edits) {
           return std::ranges::any_of(edits.device_nodes,
                                      [](const NodeEdit& node) { return !node.host_path.empty(); });
         });
}

bool needs_0_6(const Spec& spec) {
  const auto slash = spec.kind.find('/');
  return !spec.annotations.empty() || std::ranges::any_of(spec.devices, [](const Device& device) {
    return !device.annotations.empty();
  }) || (slash != std::string::npos && slash > 0 && spec.kind.find('.', slash) != std::string::npos);
}

bool needs_0_7(const Spec& spec) {
  return any_edits(spec, [](const ContainerEdits& edits) {
    return edits.intel_rdt.has_value() || !edits.additional_gids.empty();
  });
}

bool needs_1_1(const Spec& spec) {
  return any_edits(spec, [](const ContainerEdits& edits) {
    return !edits.net_devices.empty() ||
           (edits.intel_rdt && (!edits.intel_rdt->schemata.empty() || edits.intel_rdt->enable_monitoring));
  });
}

// Each once, the first of equals staying where it is.
template <class T>
void drop_repeated(std::vector<T>& values) {
  std::vector<T> kept;
  kept.reserve(values.size());
  for (auto& value : values) {
    if (std::ranges::find(kept, value) == kept.end()) kept.push_back(std::move(value));
  }
  values = std::move(kept);
}

template <class T>
void sort_and_drop_repeated(std::vector<T>& values) {
  std::ranges::sort(values);
  values.erase(std::ranges::unique(values).begin(), values.end());
}

auto depth(const std::string& path) { return std::ranges::count(normalised(path), '/'); }

// By depth and path; equal paths by all else, so that one order is the order.
template <class T>
void sort_by_path(std::vector<T>& values, std::string T::* path) {
  struct Keyed {
    std::ptrdiff_t depth;
    T value;
  };
  std::vector<Keyed> keyed;
  keyed.reserve(values.size());
  for (auto& value : values) {
    const auto its_depth = depth(value.*path);
    keyed.push_back({its_depth, std::move(value)});
  }
  std::ranges::sort(keyed, [path](const Keyed& a, const Keyed& b) {
    if (a.depth != b.depth) return a.depth < b.depth;
    if (a.value.*path != b.value.*path) return a.value.*path < b.value.*path;
    return a.value < b.value;
  });
  values.clear();
  for (auto& entry : keyed) {
    if (values.empty() || values.back() != entry.value) values.push_back(std::move(entry.value));
  }
}

void put_in_order(ContainerEdits& edits) {
  drop_repeated(edits.env);
  drop_repeated(edits.net_devices);
  drop_repeated(edits.hooks);
  sort_by_path(edits.device_nodes, &NodeEdit::path);
  sort_by_path(edits.mounts, &MountEdit::container_path);
  sort_and_drop_repeated(edits.additional_gids);
}

template <class T>
void take_away(std::vector<T>& values, const std::vector<T>& common) {
  if (common.empty()) return;
  std::erase_if(values, [&](const T& value) { return std::ranges::find(common, value) != common.end(); });
}

ContainerEdits without(ContainerEdits edits, const ContainerEdits& common) {
  take_away(edits.env, common.env);
  take_away(edits.device_nodes, common.device_nodes);
  take_away(edits.net_devices, common.net_devices);
  take_away(edits.hooks, common.hooks);
  take_away(edits.mounts, common.mounts);
  take_away(edits.additional_gids, common.additional_gids);
  if (edits.intel_rdt == common.intel_rdt) edits.intel_rdt.reset();
  return edits;
}

template <class T>
void add(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

const std::vector<std::string>& known_versions() {
  static const std::vector<std::string> kVersions{"0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0",
                                                  "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"};
  return kVersions;
}

std::optional<std::size_t> version_rank(std::string_view version) {
  const auto& versions = known_versions();
  const auto found = std::ranges::find(versions, version);
  if (found == versions.end()) return std::nullopt;
  return static_cast<std::size_t>(found - versions.begin());
}

std::string minimum_version(const Spec& spec) {
  if (needs_1_1(spec)) return "1.1.0";
  if (needs_0_7(spec)) return "0.7.0";
  if (needs_0_6(spec)) return "0.6.0";
  if (needs_0_5(spec)) return "0.5.0";
  return needs_0_4(spec) ? "0.4.0" : "0.3.0";
}

void append(ContainerEdits& edits, const ContainerEdits& more) {
  add(edits.env, more.env);
  add(edits.device_nodes, more.device_nodes);
  add(edits.net_devices, more.net_devices);
  add(edits.hooks, more.hooks);
  add(edits.mounts, more.mounts);
  add(edits.additional_gids, more.additional_gids);
  if (more.intel_rdt) edits.intel_rdt = more.intel_rdt;
}

void put_in_order(Spec& spec) {
  put_in_order(spec.edits);
  for (auto& device : spec.devices) {
    put_in_order(device.edits);
    auto rest = without(device.edits, spec.edits);
    if (!rest.empty()) device.edits = std::move(rest);
  }
  std::ranges::stable_sort(spec.devices, {}, &Device::name);
  spec.version = minimum_version(spec);
}

}  // namespace gpulet::cdi
