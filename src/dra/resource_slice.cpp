#include "dra/resource_slice.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/quantity.h"
#include "base/text.h"
#include "dra/json_object.h"

namespace gpulet::dra {
namespace {

using nlohmann::json;

constexpr std::uint64_t kThousandths = 1000;  // of a quantity
constexpr std::size_t kMaxNameBytes = 253;    // of an object
constexpr std::size_t kIndexDigits = 5;

// A reader passes over what it does not know, and remembers that it did.
class SliceReader {
 public:
  explicit SliceReader(ResourceSlice& slice) : slice_(slice) {}

  Status read_spec(const JsonObject& spec) {
    note_others(spec, {"driver", "nodeName", "pool", "devices", "sharedCounters"});
    GPULET_TRY_ASSIGN(slice_.driver, spec.required_text("driver"));
    GPULET_TRY_ASSIGN(const auto node, spec.optional_text("nodeName"));
    slice_.node = node.value_or("");
    GPULET_TRY_ASSIGN(const auto pool, spec.optional_object("pool"));
    if (!pool) return fail(Code::kInvalidArgument, spec.field_path("pool") + ": required, not set");
    GPULET_TRY_ASSIGN(slice_.pool, pool->required_text("name"));
    GPULET_TRY_ASSIGN(const auto generation, pool->optional_integer("generation"));
    slice_.generation = generation.value_or(0);
    GPULET_TRY_ASSIGN(const auto count, pool->optional_integer("resourceSliceCount"));
    slice_.slice_count = count.value_or(0);
    GPULET_TRY_ASSIGN(const auto devices, spec.objects("devices", kMaxSliceDevices));
    for (const auto& object : devices) GPULET_TRY(read_device(object));
    GPULET_TRY_ASSIGN(const auto sets, spec.objects("sharedCounters", kMaxCounterSets));
    for (const auto& object : sets) {
      note_others(object, {"name", "counters"});
      CounterSet set;
      GPULET_TRY_ASSIGN(set.name, object.required_text("name"));
      GPULET_TRY_ASSIGN(set.counters, read_counters(object));
      slice_.counter_sets.push_back(std::move(set));
    }
    return {};
  }

 private:
  Status read_device(const JsonObject& object) {
    Device device;
    note_others(object,
                {"name", "attributes", "capacity", "taints", "consumesCounters", "allowMultipleAllocations"});
    GPULET_TRY_ASSIGN(device.name, object.required_text("name"));
    GPULET_TRY_ASSIGN(const auto attributes, object.optional_object("attributes"));
    for (const auto& name : member_names(attributes)) {
      GPULET_TRY_ASSIGN(const auto value, attributes->optional_object(name.c_str()));
      if (!value) continue;
      GPULET_TRY_ASSIGN(const auto attribute, read_attribute(*value));
      if (attribute) device.attributes[name] = *attribute;
    }
    GPULET_TRY_ASSIGN(const auto capacity, object.optional_object("capacity"));
    GPULET_TRY_ASSIGN(device.capacity, read_quantities(capacity, &device.policies));
    GPULET_TRY_ASSIGN(const auto multiple, object.optional_bool("allowMultipleAllocations"));
    device.allows_multiple = multiple.value_or(false);
    GPULET_TRY_ASSIGN(const auto taints, object.objects("taints", kMaxTaints));
    for (const auto& taint : taints) GPULET_TRY(read_taint(taint, device));
    GPULET_TRY_ASSIGN(const auto consumes, object.objects("consumesCounters", kMaxConsumedSets));
    for (const auto& one : consumes) {
      note_others(one, {"counterSet", "counters"});
      CounterUse use;
      GPULET_TRY_ASSIGN(use.set, one.required_text("counterSet"));
      GPULET_TRY_ASSIGN(use.counters, read_counters(one));
      device.consumes.push_back(std::move(use));
    }
    slice_.devices.push_back(std::move(device));
    return {};
  }

  Result<std::map<std::string, std::uint64_t>> read_counters(const JsonObject& object) {
    GPULET_TRY_ASSIGN(const auto counters, object.optional_object("counters"));
    return read_quantities(counters);
  }

  // Members {"value": "8Gi"}, with a requestPolicy where `policies` takes it.
  Result<std::map<std::string, std::uint64_t>> read_quantities(
      const std::optional<JsonObject>& object, std::map<std::string, RequestPolicy>* policies = nullptr) {
    std::map<std::string, std::uint64_t> quantities;
    for (const auto& name : member_names(object)) {
      GPULET_TRY_ASSIGN(const auto value, object->optional_object(name.c_str()));
      if (!value) continue;
      note_others(*value, {"value", policies != nullptr ? "requestPolicy" : "value"});
      GPULET_TRY_ASSIGN(const std::string text, value->required_text("value"));
      if (const auto quantity = whole_quantity(text)) quantities[name] = *quantity;
      GPULET_TRY_ASSIGN(const auto policy, value->optional_object("requestPolicy"));
      if (policy && policies != nullptr) {
        GPULET_TRY_ASSIGN((*policies)[name], read_policy(*policy));
      }
    }
    return quantities;
  }

  // A policy of another form is other content.
  Result<RequestPolicy> read_policy(const JsonObject& object) {
    note_others(object, {"default", "validRange"});
    RequestPolicy policy;
    GPULET_TRY_ASSIGN(const auto range, object.optional_object("validRange"));
    slice_.has_other_content |= !range;
    GPULET_TRY_ASSIGN(policy.standard, read_amount(object, "default", true));
    if (!range) return policy;
    note_others(*range, {"min", "max", "step"});
    GPULET_TRY_ASSIGN(policy.min, read_amount(*range, "min", true));
    GPULET_TRY_ASSIGN(policy.max, read_amount(*range, "max", true));
    GPULET_TRY_ASSIGN(policy.step, read_amount(*range, "step", false));
    return policy;
  }

  Result<std::uint64_t> read_amount(const JsonObject& object, const char* name, bool is_expected) {
    GPULET_TRY_ASSIGN(const auto text, object.optional_text(name));
    slice_.has_other_content |= !text && is_expected;
    return text ? whole_quantity(*text).value_or(0) : 0;
  }

  // What is no whole number is other content.
  std::optional<std::uint64_t> whole_quantity(const std::string& text) {
    const auto milli = parse_quantity_milli(text);
    slice_.has_other_content |= !milli || *milli % kThousandths != 0;
    return milli ? std::optional(*milli / kThousandths) : std::nullopt;
  }

  // nullopt for a type that we never write.
  Result<std::optional<Attribute>> read_attribute(const JsonObject& value) {
    GPULET_TRY_ASSIGN(const auto number, value.optional_integer("int"));
    GPULET_TRY_ASSIGN(const auto flag, value.optional_bool("bool"));
    GPULET_TRY_ASSIGN(const auto text, value.optional_text("string"));
    GPULET_TRY_ASSIGN(const auto version, value.optional_text("version"));
    if (number) return Attribute(*number);
    if (flag) return Attribute(*flag);
    if (text) return Attribute(*text);
    if (version) return Attribute(Version{*version});
    slice_.has_other_content = true;
    return std::nullopt;
  }

  Status read_taint(const JsonObject& object, Device& device) {
    DeviceTaint taint;
    note_others(object, {"key", "value", "effect", "timeAdded"});
    GPULET_TRY_ASSIGN(taint.key, object.required_text("key"));
    GPULET_TRY_ASSIGN(const auto value, object.optional_text("value"));
    taint.value = value.value_or("");
    GPULET_TRY_ASSIGN(const std::string effect, object.required_text("effect"));
    bool known = false;
    for (const auto candidate : {TaintEffect::kNone, TaintEffect::kNoSchedule, TaintEffect::kNoExecute}) {
      if (effect != enum_name(candidate)) continue;
      taint.effect = candidate;
      known = true;
    }
    slice_.has_other_content |= !known;
    GPULET_TRY_ASSIGN(const auto time, object.optional_text("timeAdded"));
    taint.time_added = time.value_or("");
    device.taints.push_back(std::move(taint));
    return {};
  }

  static std::vector<std::string> member_names(const std::optional<JsonObject>& object) {
    std::vector<std::string> names;
    if (!object) return names;
    for (const auto& item : object->value().items()) names.push_back(item.key());
    return names;
  }

  void note_others(const JsonObject& object, std::initializer_list<std::string_view> known) {
    slice_.has_other_content |= !object.reject_unknown_fields(known);
  }

  ResourceSlice& slice_;
};

json attribute_json(const Attribute& attribute) {
  if (const auto* number = std::get_if<std::int64_t>(&attribute)) return {{"int", *number}};
  if (const auto* flag = std::get_if<bool>(&attribute)) return {{"bool", *flag}};
  if (const auto* text = std::get_if<std::string>(&attribute)) return {{"string", *text}};
  return {{"version", std::get<Version>(attribute).text}};
}

json quantities_json(const std::map<std::string, std::uint64_t>& quantities) {
  json written = json::object();
  for (const auto& [name, value] : quantities) written[name] = {{"value", format_binary_quantity(value)}};
  return written;
}

json policy_json(const RequestPolicy& policy) {
  json range = {{"min", format_binary_quantity(policy.min)}, {"max", format_binary_quantity(policy.max)}};
  if (policy.step != 0) range["step"] = format_binary_quantity(policy.step);
  return {{"default", format_binary_quantity(policy.standard)}, {"validRange", std::move(range)}};
}

json device_json(const Device& device) {
  json written = {{"name", device.name}};
  for (const auto& [name, attribute] : device.attributes) {
    written["attributes"][name] = attribute_json(attribute);
  }
  if (!device.capacity.empty()) written["capacity"] = quantities_json(device.capacity);
  if (device.allows_multiple) written["allowMultipleAllocations"] = true;
  for (const auto& [name, policy] : device.policies) {
    if (device.capacity.contains(name)) written["capacity"][name]["requestPolicy"] = policy_json(policy);
  }
  for (const auto& taint : device.taints) {
    json entry = {{"key", taint.key}, {"value", taint.value}, {"effect", enum_name(taint.effect)}};
    if (!taint.time_added.empty()) entry["timeAdded"] = taint.time_added;
    written["taints"].push_back(std::move(entry));
  }
  for (const auto& use : device.consumes) {
    written["consumesCounters"].push_back(
        json{{"counterSet", use.set}, {"counters", quantities_json(use.counters)}});
  }
  return written;
}

// Fills in times of taints from what is shown, by the device's name.
void keep_times(std::vector<Device>& devices, const std::vector<ResourceSlice>& shown) {
  std::map<std::string_view, const Device*> by_name;
  for (const auto& slice : shown) {
    for (const auto& device : slice.devices) by_name[device.name] = &device;
  }
  for (auto& device : devices) {
    const auto found = by_name.find(device.name);
    if (found != by_name.end()) device.taints = keep_time_added(device.taints, found->second->taints);
  }
}

const ResourceSlice* find_slice(const std::vector<ResourceSlice>& slices, const std::string& name) {
  const auto found = std::ranges::find(slices, name, &ResourceSlice::name);
  return found == slices.end() ? nullptr : &*found;
}

bool is_of_pool(const ResourceSlice& slice, const PoolName& pool) {
  return slice.driver == pool.driver && slice.pool == pool.pool && slice.node == pool.node;
}

bool has_same_content(const ResourceSlice& shown, const ResourceSlice& wanted) {
  return !shown.has_other_content && shown.slice_count == wanted.slice_count &&
         shown.devices == wanted.devices && shown.counter_sets == wanted.counter_sets;
}

// The generation that all slices get. It is the one that is shown while no consumer can take a mixture of old
// and new slices for the pool: where one slice changes, and where the shown generation lacks slices and has
// none that is not wanted, as after a deletion by somebody else or halfway through a plan.
std::int64_t next_generation(const PoolName& pool, const std::vector<ResourceSlice>& wanted,
                             const std::vector<ResourceSlice>& shown, std::int64_t newest) {
  const std::int64_t next = newest < std::numeric_limits<std::int64_t>::max() ? newest + 1 : newest;
  std::size_t current = 0, changed = 0;
  for (const auto& slice : shown) {
    if (slice.pool != pool.pool || slice.generation != newest) continue;
    const auto* same = find_slice(wanted, slice.name);
    if (same == nullptr || !is_of_pool(slice, pool)) return next;  // it would be counted
    ++current;
    if (!has_same_content(slice, *same)) ++changed;
  }
  const bool is_complete = current == wanted.size();
  if (changed == 0 && current != 0) return newest;
  return changed == 1 && is_complete ? newest : next;
}

}  // namespace

Result<ResourceSlice> parse_slice(std::string_view text) {
  if (text.size() > kMaxSliceBytes) {
    return fail(Code::kInvalidArgument, "the ResourceSlice has " + std::to_string(text.size()) +
                                            " bytes, expected at most " + std::to_string(kMaxSliceBytes));
  }
  const auto root = parse_json(text);
  if (root.is_discarded()) return fail(Code::kInvalidArgument, "the ResourceSlice is not valid JSON");
  GPULET_TRY_ASSIGN(const JsonObject object, JsonObject::from_value(root, ""));
  ResourceSlice slice;
  GPULET_TRY_ASSIGN(const auto metadata, object.optional_object("metadata"));
  if (!metadata) return fail(Code::kInvalidArgument, "metadata: required, not set");
  GPULET_TRY_ASSIGN(slice.name, metadata->required_text("name"));
  GPULET_TRY_ASSIGN(const auto version, metadata->optional_text("resourceVersion"));
  slice.resource_version = version.value_or("");
  GPULET_TRY_ASSIGN(const auto spec, object.optional_object("spec"));
  if (!spec) return fail(Code::kInvalidArgument, "spec: required, not set");
  GPULET_TRY(SliceReader(slice).read_spec(*spec));
  return slice;
}

std::string slice_json(const ResourceSlice& slice, const SliceOwner& owner) {
  json metadata = {{"name", slice.name}};
  if (!owner.uid.empty()) {
    metadata["ownerReferences"] = {{{"apiVersion", "v1"},
                                    {"kind", "Node"},
                                    {"name", owner.node},
                                    {"uid", owner.uid},
                                    {"controller", true}}};
  }
  if (!slice.resource_version.empty()) metadata["resourceVersion"] = slice.resource_version;
  json spec = {
      {"driver", slice.driver},
      {"nodeName", slice.node},
      {"pool",
       {{"name", slice.pool}, {"generation", slice.generation}, {"resourceSliceCount", slice.slice_count}}}};
  for (const auto& device : slice.devices) spec["devices"].push_back(device_json(device));
  for (const auto& set : slice.counter_sets) {
    spec["sharedCounters"].push_back(json{{"name", set.name}, {"counters", quantities_json(set.counters)}});
  }
  const json object = {{"apiVersion", "resource.k8s.io/v1"},
                       {"kind", "ResourceSlice"},
                       {"metadata", std::move(metadata)},
                       {"spec", std::move(spec)}};
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string slice_name(const PoolName& pool, std::size_t index) {
  std::string name = hex_text(index, kIndexDigits) + "-" + pool.driver + "-" + pool.node;
  if (name.size() <= kMaxNameBytes) return name;
  const std::string hash = "-" + hex_text(fnv1a_64(pool.node));
  name.resize(kMaxNameBytes - hash.size());
  // A label of a subdomain neither begins nor ends with a separator.
  while (name.ends_with('.') || name.ends_with('-')) name.pop_back();
  return name + hash;
}

SlicePlan plan_slices(const PoolName& pool, const std::vector<Device>& devices,
                      const std::vector<ResourceSlice>& shown, const std::vector<CounterSet>& counter_sets) {
  std::vector<Device> wanted = devices;
  keep_times(wanted, shown);
  // Counters first: a server that drops them is noticed before it offers what consumes them.
  const std::size_t of_counters = (counter_sets.size() + kMaxCounterSets - 1) / kMaxCounterSets;
  const std::size_t count =
      of_counters + std::max<std::size_t>(1, (wanted.size() + kSliceDevices - 1) / kSliceDevices);
  std::vector<ResourceSlice> slices(count);
  std::int64_t newest = 0;
  for (const auto& slice : shown) {
    if (slice.pool == pool.pool) newest = std::max(newest, slice.generation);
  }
  for (std::size_t i = 0; i < count; ++i) {
    auto& slice = slices[i];
    slice.name = slice_name(pool, i);
    slice.driver = pool.driver;
    slice.node = pool.node;
    slice.pool = pool.pool;
    slice.slice_count = static_cast<std::int64_t>(count);
    if (i < of_counters) {
      const auto last = std::min(counter_sets.size(), (i + 1) * kMaxCounterSets);
      for (std::size_t s = i * kMaxCounterSets; s < last; ++s) slice.counter_sets.push_back(counter_sets[s]);
      continue;
    }
    const std::size_t first = (i - of_counters) * kSliceDevices;
    const auto end = std::min(wanted.size(), first + kSliceDevices);
    for (std::size_t d = first; d < end; ++d) slice.devices.push_back(std::move(wanted[d]));
  }
  SlicePlan plan;
  for (const auto& slice : shown) {
    // The driver, the pool's name and the node of a slice cannot be changed.
    if (find_slice(slices, slice.name) == nullptr || !is_of_pool(slice, pool)) plan.deletes.push_back(slice);
  }
  const std::int64_t generation = next_generation(pool, slices, shown, newest);
  for (auto& slice : slices) {
    const auto* same = find_slice(shown, slice.name);
    slice.generation = generation;
    if (same == nullptr || !is_of_pool(*same, pool)) {
      plan.creates.push_back(std::move(slice));
    } else if (same->generation != generation || !has_same_content(*same, slice)) {
      slice.resource_version = same->resource_version;
      plan.updates.push_back(std::move(slice));
    }
  }
  return plan;
}

bool kept_taints(const ResourceSlice& sent, const ResourceSlice& answered) {
  for (std::size_t i = 0; i < sent.devices.size(); ++i) {
    if (sent.devices[i].taints.empty()) continue;
    if (i >= answered.devices.size() || answered.devices[i].taints.size() != sent.devices[i].taints.size()) {
      return false;
    }
  }
  return true;
}

bool kept_counters(const ResourceSlice& sent, const ResourceSlice& answered) {
  if (sent.counter_sets.size() != answered.counter_sets.size()) return false;
  for (std::size_t i = 0; i < sent.devices.size(); ++i) {
    if (sent.devices[i].consumes.empty()) continue;
    if (i >= answered.devices.size() || answered.devices[i].consumes.empty()) return false;
  }
  return true;
}

std::vector<Device> without_partitions(std::vector<Device> devices) {
  std::erase_if(devices, [](const Device& device) { return !device.consumes.empty(); });
  return devices;
}

bool kept_shares(const ResourceSlice& sent, const ResourceSlice& answered) {
  for (std::size_t i = 0; i < sent.devices.size(); ++i) {
    if (!sent.devices[i].allows_multiple) continue;
    if (i >= answered.devices.size()) return false;
    const auto& kept = answered.devices[i];
    if (!kept.allows_multiple || kept.policies.size() != sent.devices[i].policies.size()) return false;
  }
  return true;
}

std::vector<Device> without_shares(std::vector<Device> devices) {
  for (auto& device : devices) {
    if (!std::exchange(device.allows_multiple, false)) continue;
    device.policies.clear();
    device.capacity.erase(kSharesCapacity);
  }
  return devices;
}

std::vector<Device> without_tainted(std::vector<Device> devices) {
  std::erase_if(devices, [](const Device& device) {
    return std::ranges::any_of(device.taints,
                               [](const DeviceTaint& taint) { return taint.effect != TaintEffect::kNone; });
  });
  for (auto& device : devices) device.taints.clear();
  return devices;
}

}  // namespace gpulet::dra
