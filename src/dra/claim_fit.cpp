#include "dra/claim_fit.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/quantity.h"
#include "base/text.h"
#include "dra/capacity_fit.h"
#include "dra/device_selector.h"

namespace gpulet::dra {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxNamed = 3;

struct SliceDevice {
  std::string driver, pool, node, name;
  const json* object = nullptr;  // in its slice
  std::vector<const json*> counter_sets;
};

// A request, or an alternative of one.
struct Wanted {
  std::string name, device_class;
  std::uint64_t count = 1;
  bool all = false, admin = false;
  std::vector<std::string> conditions{};  // conjuncts of its class and its own
  const json* capacity = nullptr;         // what it requests, by name
  const json* tolerations = nullptr;
};

std::string describe_wanted(const Wanted& wanted) {
  return wanted.name + ": " + (wanted.all ? "all" : std::to_string(wanted.count)) + " of " +
         wanted.device_class;
}

void add_conditions(const json& selectors, std::vector<std::string>& conditions) {
  for (const auto& selector : selectors) {
    auto parts = split_selector(json_text(json_member(json_member(selector, "cel"), "expression")));
    std::ranges::move(parts, std::back_inserter(conditions));
  }
}

bool is_tolerated(const json& taint, const json* tolerations) {
  if (tolerations == nullptr) return false;
  return std::ranges::any_of(*tolerations, [&](const json& one) {
    const auto key = json_text(json_member(one, "key")), effect = json_text(json_member(one, "effect"));
    const bool exists = json_text(json_member(one, "operator")) == "Exists";
    if (!effect.empty() && effect != json_text(json_member(taint, "effect"))) return false;
    if (key.empty()) return exists;
    if (key != json_text(json_member(taint, "key"))) return false;
    return exists || json_text(json_member(one, "value")) == json_text(json_member(taint, "value"));
  });
}

// "gpu.nvidia.com/xid=79"; empty if it does not keep the request off.
std::string taint_text(const json& taint, const json* tolerations) {
  const auto effect = json_text(json_member(taint, "effect"));
  if ((effect != "NoSchedule" && effect != "NoExecute") || is_tolerated(taint, tolerations)) return "";
  const auto value = json_text(json_member(taint, "value"));
  return json_text(json_member(taint, "key")) + (value.empty() ? "" : "=" + value);
}

// Without a selector, a DeviceTaintRule selects nothing; with an empty one, every device.
bool selects_device(const json& rule, const SliceDevice& device) {
  const auto& selector = json_member(json_member(rule, "spec"), "deviceSelector");
  const auto has = [&](const char* field, const std::string& value) {
    const auto& wanted = json_member(selector, field);
    return wanted.is_null() || json_text(wanted) == value;
  };
  return selector.is_object() && has("driver", device.driver) && has("pool", device.pool) &&
         has("device", device.name);
}

std::uint64_t capped_sum(std::uint64_t a, std::uint64_t b) {
  return a + std::min(b, std::numeric_limits<std::uint64_t>::max() - a);
}

// How often each device can be allocated.
using FreeDevices = std::map<const SliceDevice*, std::uint64_t>;

using DeviceKey = std::tuple<std::string, std::string, std::string>;  // driver, pool, name
DeviceKey key_of(const SliceDevice& device) { return {device.driver, device.pool, device.name}; }

class ClaimExplainer {
 public:
  ClaimExplainer(const json& claim, const std::map<std::string, std::string>& classes,
                 std::span<const std::string> slices, std::span<const std::string> claims,
                 std::span<const std::string> taint_rules)
      : claim_(claim), classes_(classes) {
    for (const auto& rule : taint_rules) taint_rules_.push_back(parse_json(rule));
    for (const auto& other : claims) read_holder(parse_json(other));
    for (const auto& slice : slices) slices_.push_back(parse_json(slice));
    read_devices();
  }

  ClaimFit explain_fit() {
    const auto& metadata = json_member(claim_, "metadata");
    ClaimFit fit;
    fit.claim =
        json_text(json_member(metadata, "namespace")) + "/" + json_text(json_member(metadata, "name"));
    fit.uid = json_text(json_member(metadata, "uid"));
    fit.pods = reserved_pods(claim_);
    read_requests();
    std::vector<std::string> requests;
    for (const auto& alternatives : requests_) {
      std::vector<std::string> parts;
      for (const auto& wanted : alternatives) parts.push_back(describe_wanted(wanted));
      requests.push_back(text::join(parts, ", or "));
    }
    fit.requests = text::join(requests, "; ");
    fit.allocation = describe_allocation();
    if (!fit.allocation.empty()) return fit;
    for (const auto& [node, devices] : devices_) fit.nodes.push_back(judge_node(node, devices));
    std::ranges::stable_sort(fit.nodes, [](const auto& a, const auto& b) { return a.fits > b.fits; });
    fit.unjudged.assign(unjudged_.begin(), unjudged_.end());
    return fit;
  }

 private:
  using Devices = std::vector<SliceDevice>;

  static const json& results_of(const json& claim) {
    return json_member(json_member(json_member(json_member(claim, "status"), "allocation"), "devices"),
                       "results");
  }

  void read_holder(const json& other) {
    const auto& metadata = json_member(other, "metadata");
    for (const auto& result : results_of(other)) {
      const auto& admin = json_member(result, "adminAccess");
      if (admin.is_boolean() && admin.get<bool>()) continue;
      const DeviceKey key{json_text(json_member(result, "driver")), json_text(json_member(result, "pool")),
                          json_text(json_member(result, "device"))};
      if (!json_member(result, "shareID").is_null()) {
        add_amounts(json_member(result, "consumedCapacity"), std::get<0>(key), taken_[key]);
        continue;
      }
      holders_.emplace(key, json_text(json_member(metadata, "namespace")) + "/" +
                                json_text(json_member(metadata, "name")));
    }
  }

  static std::int64_t generation_of(const json& spec) {
    const auto& generation = json_member(json_member(spec, "pool"), "generation");
    return generation.is_number_integer() ? generation.get<std::int64_t>() : 0;
  }

  // Of the newest generation of each pool.
  void read_devices() {
    std::map<std::pair<std::string, std::string>, std::int64_t> newest;
    const auto pool_of = [](const json& spec) {
      return std::pair(json_text(json_member(spec, "driver")),
                       json_text(json_member(json_member(spec, "pool"), "name")));
    };
    for (const auto& slice : slices_) {
      const auto& spec = json_member(slice, "spec");
      auto& generation = newest[pool_of(spec)];
      generation = std::max(generation, generation_of(spec));
    }
    std::map<std::pair<std::string, std::string>, std::vector<const json*>> counters;
    for (const auto& slice : slices_) {
      const auto& spec = json_member(slice, "spec");
      if (generation_of(spec) != newest[pool_of(spec)]) continue;
      for (const auto& set : json_member(spec, "sharedCounters")) counters[pool_of(spec)].push_back(&set);
    }
    for (const auto& slice : slices_) {
      const auto& spec = json_member(slice, "spec");
      const auto pool = pool_of(spec);
      if (generation_of(spec) != newest[pool]) continue;
      const auto named = json_text(json_member(spec, "nodeName"));
      const auto node = named.empty() ? "pool " + pool.second : named;
      for (const auto& device : json_member(spec, "devices"))
        devices_[node].push_back(
            {pool.first, pool.second, node, json_text(json_member(device, "name")), &device, counters[pool]});
    }
    for (const auto& [node, devices] : devices_) {
      for (const auto& device : devices) {
        if (holders_.contains(key_of(device))) add_consumption(device);
      }
    }
  }

  using CounterKey = std::tuple<std::string, std::string, std::string, std::string>;
  template <class Visit>
  static void for_each_counter(const SliceDevice& device, const Visit& visit) {
    for (const auto& consumed : json_member(*device.object, "consumesCounters")) {
      const auto set = json_text(json_member(consumed, "counterSet"));
      for (const auto& [name, value] : json_member(consumed, "counters").items())
        visit(set, name, parse_quantity_milli(json_text(json_member(value, "value"))).value_or(0));
    }
  }
  void add_consumption(const SliceDevice& device) {
    for_each_counter(device, [&](const std::string& set, const std::string& name, std::uint64_t value) {
      auto& sum = consumed_[{device.driver, device.pool, set, name}];
      sum = capped_sum(sum, value);
    });
  }
  // "memory-slice-2 of gpu-0-counters"; empty if there is enough of each.
  std::string find_spent_counter(const SliceDevice& device) const {
    std::string spent;
    for_each_counter(device, [&](const std::string& set, const std::string& name, std::uint64_t value) {
      const auto used = consumed_.find({device.driver, device.pool, set, name});
      const auto named = std::ranges::find_if(
          device.counter_sets, [&](const json* one) { return json_text(json_member(*one, "name")) == set; });
      if (used == consumed_.end() || named == device.counter_sets.end() || !spent.empty()) return;
      const auto& total = json_member(json_member(json_member(**named, "counters"), name.c_str()), "value");
      if (capped_sum(used->second, value) > parse_quantity_milli(json_text(total)).value_or(0))
        spent = name + " of " + set;
    });
    return spent;
  }

  Wanted read_wanted(const json& object, std::string name) {
    Wanted wanted{.name = std::move(name), .device_class = json_text(json_member(object, "deviceClassName"))};
    if (const auto& count = json_member(object, "count"); count.is_number_unsigned())
      wanted.count = count.get<std::uint64_t>();
    wanted.all = json_text(json_member(object, "allocationMode")) == "All";
    const auto& admin = json_member(object, "adminAccess");
    wanted.admin = admin.is_boolean() && admin.get<bool>();
    if (const auto& tolerations = json_member(object, "tolerations"); tolerations.is_array())
      wanted.tolerations = &tolerations;
    if (const auto found = classes_.find(wanted.device_class); found != classes_.end())
      add_conditions(json_member(json_member(parse_json(found->second), "spec"), "selectors"),
                     wanted.conditions);
    add_conditions(json_member(object, "selectors"), wanted.conditions);
    wanted.capacity = &json_member(json_member(object, "capacity"), "requests");
    return wanted;
  }

  void read_requests() {
    const auto& devices = json_member(json_member(claim_, "spec"), "devices");
    for (const auto& request : json_member(devices, "requests")) {
      auto& alternatives = requests_.emplace_back();
      const auto name = json_text(json_member(request, "name"));
      for (const auto& sub : json_member(request, "firstAvailable"))
        alternatives.push_back(read_wanted(sub, name + "/" + json_text(json_member(sub, "name"))));
      if (alternatives.empty()) alternatives.push_back(read_wanted(json_member(request, "exactly"), name));
    }
  }

  std::string describe_allocation() const {
    std::map<std::string, std::vector<std::string>> by_pool;
    for (const auto& result : results_of(claim_))
      by_pool[json_text(json_member(result, "pool"))].push_back(json_text(json_member(result, "device")));
    std::vector<std::string> parts;
    for (const auto& [pool, names] : by_pool) parts.push_back(text::join(names, ", ") + " of " + pool);
    return text::join(parts, "; ");
  }

  // "gpu.nvidia.com/xid=79", "example.com/off (DeviceTaintRule repair)"; empty if none keeps the request off.
  std::string find_taint(const SliceDevice& device, const json* tolerations) const {
    for (const auto& taint : json_member(*device.object, "taints")) {
      if (auto text = taint_text(taint, tolerations); !text.empty()) return text;
    }
    for (const auto& rule : taint_rules_) {
      if (!selects_device(rule, device)) continue;
      const auto text = taint_text(json_member(json_member(rule, "spec"), "taint"), tolerations);
      if (!text.empty())
        return text + " (DeviceTaintRule " + json_text(json_member(json_member(rule, "metadata"), "name")) +
               ")";
    }
    return "";
  }

  CapacityFit find_fit(const SliceDevice& device, const Wanted& wanted) const {
    CapacityAmounts requested;
    if (wanted.capacity != nullptr) add_amounts(*wanted.capacity, device.driver, requested);
    const auto taken = taken_.find(key_of(device));
    return find_capacity_fit(*device.object, device.driver, std::move(requested),
                             taken == taken_.end() ? CapacityAmounts() : taken->second);
  }

  // Why the devices of a node do not meet a request; empty if they do. Adds the free ones to `free`.
  std::string judge_request(const Wanted& wanted, const Devices& devices, FreeDevices& free) {
    if (!classes_.contains(wanted.device_class))
      return wanted.name + ": the DeviceClass " + wanted.device_class + " does not exist";
    std::size_t matching = 0, held = 0, tainted = 0, without_counter = 0, without_capacity = 0;
    std::set<std::string> holders, taints, counters, capacities;
    std::map<std::string, std::size_t> unmet;  // by condition
    std::uint64_t times = 0;
    std::size_t usable = 0;
    const auto add_free = [&](const SliceDevice& device, std::uint64_t count) {
      auto& known = free[&device];
      known = std::max(known, count);
      times += count;
      ++usable;
    };
    for (const auto& device : devices) {
      const auto failed = std::ranges::find_if(wanted.conditions, [&](const std::string& condition) {
        const auto met = meets_condition(*device.object, device.driver, condition);
        if (!met) unjudged_.insert(condition);
        return met == false;
      });
      if (failed != wanted.conditions.end()) {
        ++unmet[*failed];
        continue;
      }
      ++matching;
      const auto holder = holders_.find(key_of(device));
      if (const auto taint = find_taint(device, wanted.tolerations); !taint.empty()) {
        ++tainted;
        taints.insert(taint);
      } else if (wanted.admin) {
        add_free(device, 1);
      } else if (holder != holders_.end()) {
        ++held;
        holders.insert(holder->second);
      } else if (const auto counter = find_spent_counter(device); !counter.empty()) {
        ++without_counter;
        counters.insert(counter);
      } else if (const auto fit = find_fit(device, wanted); fit.times == 0) {
        ++without_capacity;
        capacities.insert(fit.lacking);
      } else {
        add_free(device, fit.times);
      }
    }
    const auto needed = wanted.all ? std::max<std::uint64_t>(matching, 1) : wanted.count;
    if ((wanted.all ? usable : times) >= needed) return "";
    if (matching == 0) {
      std::vector<std::string> conditions;
      for (const auto& [condition, count] : unmet) conditions.push_back(condition);
      return wanted.name + ": no device meets " + text::join_limited(conditions, kMaxNamed);
    }
    std::vector<std::string> causes;
    const auto add = [&](std::size_t count, const char* what, const std::set<std::string>& names) {
      if (count == 0) return;
      causes.push_back(std::to_string(count) + what +
                       text::join_limited(std::vector<std::string>(names.begin(), names.end()), kMaxNamed));
    };
    add(held, " held by claims ", holders);
    add(tainted, " tainted ", taints);
    add(without_counter, " without ", counters);
    add(without_capacity, " with too little free of ", capacities);
    if (matching < needed) causes.push_back("only " + std::to_string(matching) + " match");
    return wanted.name + ": " + std::to_string(wanted.all ? usable : times) + " free of " +
           std::to_string(needed) + ": " + text::join(causes, ", ");
  }

  static void merge_free(const FreeDevices& more, FreeDevices& all) {
    for (const auto& [device, count] : more) {
      auto& known = all[device];
      known = std::max(known, count);
    }
  }

  // Of requests without alternatives.
  std::string judge_constraint(const json& constraint, const std::map<std::string, FreeDevices>& free) const {
    auto attribute = json_text(json_member(constraint, "matchAttribute"));
    const bool is_distinct = attribute.empty();
    if (is_distinct) attribute = json_text(json_member(constraint, "distinctAttribute"));
    if (attribute.empty()) return "";
    std::uint64_t needed = 0;
    FreeDevices candidates;
    for (const auto& alternatives : requests_) {
      const auto& wanted = alternatives.front();
      const auto& named = json_member(constraint, "requests");
      const bool applies = named.empty() || std::ranges::any_of(named, [&](const json& name) {
                             return json_text(name) == wanted.name;
                           });
      if (!applies) continue;
      if (alternatives.size() > 1 || wanted.all) return "";
      needed = capped_sum(needed, wanted.count);
      merge_free(free.at(wanted.name), candidates);
    }
    std::map<std::string, std::uint64_t> groups;
    std::uint64_t largest = 0;
    const auto slash = attribute.find('/');
    for (const auto& [device, count] : candidates) {
      const auto& value =
          find_device_value(*device->object, device->driver, "attributes", attribute.substr(0, slash),
                            slash == std::string::npos ? "" : attribute.substr(slash + 1));
      if (!value.is_null()) largest = std::max(largest, groups[value.dump()] += count);
    }
    if (is_distinct) {
      if (groups.size() >= needed) return "";
      return "of the free devices, at most " + std::to_string(groups.size()) + " of " +
             std::to_string(needed) + " differ in " + attribute;
    }
    if (largest >= needed) return "";
    return "of the free devices, at most " + std::to_string(largest) + " of " + std::to_string(needed) +
           " are equal in " + attribute;
  }

  NodeFit judge_node(const std::string& node, const Devices& devices) {
    NodeFit fit{.node = node, .fits = false, .reason = {}};
    std::map<std::string, FreeDevices> free;  // by request
    std::vector<std::string> reasons;
    FreeDevices all;
    std::uint64_t needed = 0, times = 0;
    for (const auto& alternatives : requests_) {
      std::vector<std::string> failed;
      for (const auto& wanted : alternatives) {
        auto reason = judge_request(wanted, devices, free[wanted.name]);
        if (reason.empty()) {
          failed.clear();
          merge_free(free[wanted.name], all);
          if (!wanted.all && !wanted.admin) needed = capped_sum(needed, wanted.count);
          break;
        }
        failed.push_back(std::move(reason));
      }
      std::ranges::move(failed, std::back_inserter(reasons));
    }
    for (const auto& [device, count] : all) times += count;
    if (reasons.empty() && times < needed)
      reasons.push_back("its requests together need " + std::to_string(needed) + " devices, and " +
                        std::to_string(times) + " are free");
    if (reasons.empty()) {
      const auto& spec = json_member(json_member(claim_, "spec"), "devices");
      for (const auto& constraint : json_member(spec, "constraints")) {
        if (auto reason = judge_constraint(constraint, free); !reason.empty())
          reasons.push_back(std::move(reason));
      }
    }
    fit.fits = reasons.empty();
    fit.reason = text::join(reasons, "; ");
    return fit;
  }

  const json& claim_;
  std::vector<json> slices_, taint_rules_;
  const std::map<std::string, std::string>& classes_;
  std::map<DeviceKey, std::string> holders_;    // of a whole device
  std::map<DeviceKey, CapacityAmounts> taken_;  // by shares
  std::map<std::string, Devices> devices_;      // by node
  std::map<CounterKey, std::uint64_t> consumed_;
  std::vector<std::vector<Wanted>> requests_;  // each with its alternatives
  std::set<std::string> unjudged_;
};

}  // namespace

Result<ClaimFit> explain_claim_fit(std::string_view claim, const std::map<std::string, std::string>& classes,
                                   std::span<const std::string> slices, std::span<const std::string> claims,
                                   std::span<const std::string> taint_rules) {
  const auto parsed = parse_json(claim);
  if (!json_member(json_member(parsed, "spec"), "devices").is_object())
    return fail(Code::kInvalidArgument, "is not a ResourceClaim with requests for devices");
  return ClaimExplainer(parsed, classes, slices, claims, taint_rules).explain_fit();
}

std::vector<PodRef> reserved_pods(const json& claim) {
  const auto name_space = json_text(json_member(json_member(claim, "metadata"), "namespace"));
  std::vector<PodRef> pods;
  for (const auto& user : json_member(json_member(claim, "status"), "reservedFor")) {
    if (json_text(json_member(user, "resource")) != "pods") continue;
    pods.push_back({name_space, json_text(json_member(user, "name")), json_text(json_member(user, "uid"))});
  }
  return pods;
}

std::vector<std::string> claim_classes(std::string_view claim) {
  std::set<std::string> names;
  const auto parsed = parse_json(claim);
  const auto& devices = json_member(json_member(parsed, "spec"), "devices");
  const auto add = [&](const json& object) {
    auto name = json_text(json_member(object, "deviceClassName"));
    if (!name.empty()) names.insert(std::move(name));
  };
  for (const auto& request : json_member(devices, "requests")) {
    add(json_member(request, "exactly"));
    for (const auto& sub : json_member(request, "firstAvailable")) add(sub);
  }
  return {names.begin(), names.end()};
}

}  // namespace gpulet::dra
