// Properties of every node and every config.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <set>

#include "partition/resources.h"
#include "partition/rules.h"
#include "partition/test_node.h"

namespace gpulet::partition {
namespace {

using namespace test;
using config::Config;
using config::MigStrategy;
using config::PartitionRule;
using inventory::Gpu;
using inventory::Snapshot;

Gpu any_gpu(unsigned index) {
  const auto model = *rc::gen::element<std::string>("NVIDIA A100", "Tesla T4", "NVIDIA H100");
  Gpu made = gpu(index, model);
  if (made.mig_capable && *rc::gen::weightedElement<bool>({{2, false}, {1, true}})) {
    std::vector<std::string> profiles(*rc::gen::inRange<std::size_t>(0, 8), "1g.5gb");
    if (*rc::gen::arbitrary<bool>())
      profiles.emplace_back(*rc::gen::element("2g.10gb", "1g.5gb+me", "1c.2g.10gb"));
    made = cut_as(index, profiles, model);
    for (auto& mig : made.mig_devices) {
      if (mig.profile.starts_with("1c")) mig.gpu_slices = 2;
    }
  }
  if (*rc::gen::inRange(0, 6) == 0) made.compute_major = 7;
  if (*rc::gen::inRange(0, 4) == 0) made.health = {false, "broken"};
  made.display = *rc::gen::element<std::optional<bool>>(std::nullopt, true, false);
  return made;
}

Snapshot any_node() {
  Snapshot snapshot;
  const auto count = *rc::gen::inRange(0u, 9u);
  for (unsigned i = 0; i < count; ++i) snapshot.gpus.push_back(any_gpu(i));
  return snapshot;
}

std::optional<ResourceName> any_name() {
  return *rc::gen::element<std::optional<ResourceName>>(
      std::nullopt, std::nullopt, ResourceName("nvidia.com/a"), ResourceName("nvidia.com/gpu"),
      ResourceName("nvidia.com/gpu.shared"));
}

config::Mps any_mps(std::optional<ResourceName> name) {
  config::Mps mps{std::move(name), 0, {}, *rc::gen::arbitrary<bool>()};
  if (*rc::gen::arbitrary<bool>()) {
    mps.replicas = *rc::gen::element(2u, 3u, 17u);
    return mps;
  }
  const auto count = *rc::gen::inRange(1, 4);
  for (int i = 0; i < count; ++i) {
    config::NamedMpsShare share;
    share.size = {*rc::gen::element(20u, 30u), *rc::gen::element(20u, 30u)};
    if (*rc::gen::inRange(0, 4) == 0) share.name = ResourceName("nvidia.com/b");
    mps.shares.push_back(std::move(share));
  }
  return mps;
}

decltype(PartitionRule::mode) any_how(std::optional<ResourceName> name) {
  switch (*rc::gen::inRange(0, 5)) {
    case 4:
      return config::Exclude{};
    case 0:
      return config::Whole{std::move(name)};
    case 1:
      return config::TimeSlicing{std::move(name), *rc::gen::inRange(2u, 5u), *rc::gen::arbitrary<bool>()};
    case 2:
      return any_mps(std::move(name));
    default:
      break;
  }
  config::Mig mig{std::move(name), "", {}, *rc::gen::element(MigStrategy::kSingle, MigStrategy::kMixed)};
  if (*rc::gen::arbitrary<bool>()) {
    mig.layout = "all-balanced";
  } else {
    mig.devices = {{"1g.5gb", *rc::gen::inRange(0u, 8u)}};
  }
  return mig;
}

PartitionRule any_rule(std::size_t number) {
  PartitionRule rule;
  rule.position = "x.yaml:" + std::to_string(number + 3) + ":5";
  switch (*rc::gen::inRange(0, 5)) {
    case 4:
      rule.devices = config::GpuRefs{{0, 0, {}, inventory::PciAddress{0, 0x10 + *rc::gen::inRange(0u, 9u)}}};
      break;
    case 0:
      rule.devices = config::DeviceCount{*rc::gen::inRange(1u, 5u)};
      break;
    case 1: {
      const auto first = *rc::gen::inRange(0u, 9u);
      rule.devices = config::GpuRefs{{first, first + *rc::gen::inRange(0u, 3u), {}}};
      break;
    }
    case 2:
      rule.devices = config::GpuRefs{{0, 0, DeviceUuid("GPU-" + std::to_string(*rc::gen::inRange(0, 9)))}};
      break;
    default:
      break;
  }
  if (*rc::gen::inRange(0, 3) == 0) rule.model = *rc::gen::element<std::string>("*T4*", "*100", "x");
  if (*rc::gen::inRange(0, 4) == 0) rule.display = *rc::gen::arbitrary<bool>();
  if (*rc::gen::inRange(0, 4) == 0) rule.node_label = config::NodeLabel{"pool", std::string("a")};
  rule.mode = any_how(any_name());
  return rule;
}

Config any_config() {
  Config config = with(*rc::gen::element(MigStrategy::kNone, MigStrategy::kSingle, MigStrategy::kMixed));
  if (*rc::gen::arbitrary<bool>())
    config.gpu_resources.insert(config.gpu_resources.begin(), {"*T4*", ResourceName("nvidia.com/t4")});
  config.sharing.strategy = *rc::gen::element(
      config::SharingStrategy::kNone, config::SharingStrategy::kTimeSlicing, config::SharingStrategy::kMps);
  const auto entries = *rc::gen::inRange(0, 4);
  for (int i = 0; i < entries; ++i) {
    config::DeviceSelection devices = config::AllDevices{};
    const auto kind = *rc::gen::inRange(0, 3);
    if (kind == 1) devices = config::DeviceCount{*rc::gen::inRange(1u, 6u)};
    if (kind == 2) devices = config::DeviceRefs{std::to_string(*rc::gen::inRange(0, 9)), "0:1"};
    std::optional<std::string> rename;
    if (*rc::gen::arbitrary<bool>()) rename = *rc::gen::element<std::string>("gpu.shared", "t4", "gpu");
    config.sharing.resources.push_back(replicated(*rc::gen::element<std::string>("gpu", "t4", "mig-1g.5gb"),
                                                  *rc::gen::inRange(2u, 6u), devices, rename));
  }
  const auto rules = *rc::gen::inRange<std::size_t>(0, 5);
  for (std::size_t i = 0; i < rules; ++i) config.gpulet.partition.push_back(any_rule(i));
  return config;
}

NodeFacts any_facts() {
  NodeFacts facts;
  if (*rc::gen::arbitrary<bool>()) facts.labels["pool"] = *rc::gen::element<std::string>("a", "b");
  if (*rc::gen::inRange(0, 3) == 0) facts.withdrawn[DeviceUuid("GPU-1")] = "is being cut up";
  return facts;
}

bool noted(const Plan& plan, const std::string& uuid) {
  if (std::ranges::any_of(plan.remarks, [&](const Note& remark) {
        return remark.message.find("(" + uuid + ") is excluded") != std::string::npos;
      }))
    return true;
  return std::ranges::any_of(plan.notes, [&](const Note& note) {
    return note.message.find("(" + uuid + ")") != std::string::npos &&
           note.message.find("it is not offered") != std::string::npos;
  });
}

TEST(Properties, EveryDeviceIsOfferedOnceOrNamedInANote) {
  rc::check("ids are unique and in order; shares are numbered from 0; what is not offered is named", [] {
    const auto snapshot = any_node();
    const auto config = any_config();
    const auto made = plan_resources(snapshot, config, any_facts());
    std::set<std::string> seen;
    std::map<std::string, std::set<unsigned>> shares;  // by UUID
    for (const auto& resource : made.resources) {
      RC_ASSERT(!resource.devices.empty());
      RC_ASSERT((resource.sharing == config::SharingStrategy::kMps) == !resource.mps_daemon.empty());
      std::optional<std::tuple<std::size_t, std::optional<std::size_t>, std::optional<unsigned>>> before;
      for (const auto& device : resource.devices) {
        RC_ASSERT(seen.insert(device.id.str()).second);
        const auto& owner = snapshot.gpus[device.gpu];
        const std::string uuid = device.mig ? owner.mig_devices[*device.mig].uuid.str() : owner.uuid.str();
        RC_ASSERT(device.id.str() == uuid + (device.replica ? "::" + std::to_string(*device.replica) : ""));
        RC_ASSERT(shares[uuid].insert(device.replica.value_or(0)).second);
        const std::tuple place(device.gpu, device.mig, device.replica);
        RC_ASSERT((!before || *before < place));
        before = place;
        RC_ASSERT(device.health.healthy == owner.health.healthy);
      }
    }
    RC_ASSERT(std::ranges::is_sorted(made.resources, {}, &Resource::name));
    for (const auto& owner : snapshot.gpus) {
      const std::string uuid = owner.uuid.str();
      const bool whole = shares.contains(uuid);
      const bool parts = std::ranges::any_of(owner.mig_devices,
                                             [&](const auto& m) { return shares.contains(m.uuid.str()); });
      RC_ASSERT(!(whole && parts));
      if (whole) {
        RC_ASSERT((*shares[uuid].rbegin() + 1 == shares[uuid].size() || noted(made, uuid)));
      } else if (!noted(made, uuid)) {
        RC_ASSERT(owner.mig_enabled);
        for (const auto& mig : owner.mig_devices) {
          RC_ASSERT(shares.contains(mig.uuid.str()) != noted(made, mig.uuid.str()));
        }
        RC_ASSERT(!owner.mig_devices.empty());
      }
    }
  });
}

TEST(Properties, ExcludedGpusAreInNoResource) {
  rc::check("an excluded GPU is in no resource and has no desired MIG state", [] {
    auto snapshot = any_node();
    const auto config = any_config();
    const auto facts = any_facts();
    mark_excluded_gpus(snapshot, config, facts.labels);
    for (const auto& resource : plan_resources(snapshot, config, facts).resources) {
      for (const auto& device : resource.devices) {
        RC_ASSERT(snapshot.gpus[device.gpu].excluded.empty());
      }
    }
    for (const auto& desired : desired_mig(snapshot, config, facts.labels)) {
      RC_ASSERT(snapshot.find(desired.uuid)->excluded.empty());
    }
  });
}

TEST(Properties, SameInputGivesTheSamePlan) {
  rc::check("a plan is a value of its input; a snapshot's generation is no part of it", [] {
    auto snapshot = any_node();
    const auto config = any_config();
    const auto facts = any_facts();
    const auto first = plan_resources(snapshot, config, facts);
    snapshot.generation += 7;
    RC_ASSERT(first == plan_resources(Snapshot(snapshot), Config(config), facts));
  });
}

TEST(Properties, FaultsOfOtherGpusChangeNoId) {
  rc::check("when one GPU breaks or cannot be read, every id stays in its resource", [] {
    auto snapshot = any_node();
    RC_PRE(!snapshot.gpus.empty());
    const auto config = any_config();
    const auto facts = any_facts();
    auto before = plan_resources(snapshot, config, facts);
    auto& broken = snapshot.gpus[*rc::gen::inRange<std::size_t>(0, snapshot.gpus.size())];
    broken.unreadable = Error(Code::kDeviceLost, "GPU is lost");
    auto after = plan_resources(snapshot, config, facts);
    RC_ASSERT(before.resources.size() == after.resources.size());
    for (auto* made : {&before, &after}) {
      for (auto& resource : made->resources) {
        for (auto& device : resource.devices) {
          if (snapshot.gpus[device.gpu].uuid == broken.uuid) {
            if (made == &after) RC_ASSERT(!device.health.healthy);
            device.health = {};
          }
        }
      }
    }
    RC_ASSERT(before == after);
  });
}

// How each id is offered, without the position of its GPU in the snapshot.
using How = std::tuple<std::string, config::SharingStrategy, unsigned, bool, std::string,
                       std::optional<config::MpsShare>>;
std::map<std::string, How> offered(const Plan& plan, const Snapshot& snapshot,
                                   const DeviceUuid& without = {}) {
  std::map<std::string, How> out;
  for (const auto& resource : plan.resources) {
    for (const auto& device : resource.devices) {
      if (snapshot.gpus[device.gpu].uuid == without) continue;
      out.emplace(device.id.str(),
                  How(resource.name.str(), resource.sharing, resource.replicas,
                      resource.fail_requests_greater_than_one, resource.mps_daemon, device.share));
    }
  }
  return out;
}

// Rules for some GPUs by UUID that neither depend on positions nor use the resource name of another rule.
Config steady_config(const Snapshot& snapshot) {
  Config config = with(*rc::gen::element(MigStrategy::kNone, MigStrategy::kMixed));
  if (*rc::gen::arbitrary<bool>()) {
    config.sharing.strategy =
        *rc::gen::element(config::SharingStrategy::kTimeSlicing, config::SharingStrategy::kMps);
    config.sharing.resources = {replicated("gpu", 2, config::AllDevices{}, "gpu.half")};
  }
  for (const auto& gpu : snapshot.gpus) {
    if (*rc::gen::arbitrary<bool>()) continue;
    auto rule = any_rule(gpu.index);
    rule.devices = config::GpuRefs{{0, 0, gpu.uuid}};
    rule.mode = any_how(ResourceName("nvidia.com/of-" + std::to_string(gpu.index)));
    if (const auto* mps = std::get_if<config::Mps>(&rule.mode); mps && !config::has_equal_shares(*mps)) {
      rule.mode = config::Whole{};
    }
    config.gpulet.partition.push_back(std::move(rule));
  }
  return config;
}

TEST(Properties, IdsDoNotDependOnGpuOrder) {
  rc::check("the same GPUs counted in another order are offered as the same ids in the same resources", [] {
    const auto snapshot = any_node();
    const auto config = steady_config(snapshot);
    auto shuffled = snapshot;
    for (std::size_t i = shuffled.gpus.size(); i > 1; --i) {
      std::swap(shuffled.gpus[i - 1], shuffled.gpus[*rc::gen::inRange<std::size_t>(0, i)]);
    }
    for (std::size_t i = 0; i < shuffled.gpus.size(); ++i) shuffled.gpus[i].index = static_cast<unsigned>(i);
    const auto facts = any_facts();
    RC_ASSERT(offered(plan_resources(snapshot, config, facts), snapshot) ==
              offered(plan_resources(shuffled, config, facts), shuffled));
  });
}

TEST(Properties, RuleForOneGpuDoesNotAffectOthers) {
  rc::check("another rule for one GPU, or its withdrawal, leaves all others as they are", [] {
    const auto snapshot = any_node();
    RC_PRE(!snapshot.gpus.empty());
    const auto& changed = snapshot.gpus[*rc::gen::inRange<std::size_t>(0, snapshot.gpus.size())];
    auto facts = any_facts();
    Config config = steady_config(snapshot);
    std::erase_if(config.gpulet.partition, [&](const PartitionRule& rule) {
      return rule.devices == config::GpuSelection(config::GpuRefs{{0, 0, changed.uuid}});
    });
    const auto before = plan_resources(snapshot, config, facts);
    auto rule = any_rule(99);
    rule.devices = config::GpuRefs{{0, 0, changed.uuid}};
    config.gpulet.partition.push_back(rule);  // the last rule: the names of earlier rules take precedence
    if (*rc::gen::arbitrary<bool>()) facts.withdrawn[changed.uuid] = "is being cut up";
    const auto after = plan_resources(snapshot, config, facts);
    RC_ASSERT(offered(before, snapshot, changed.uuid) == offered(after, snapshot, changed.uuid));
    // Resources without the GPU before and after are equal, so they are not sent again.
    for (const auto& resource : before.resources) {
      const auto same = std::ranges::find(after.resources, resource.name, &Resource::name);
      const auto of_changed = [&](const Device& device) {
        return snapshot.gpus[device.gpu].uuid == changed.uuid;
      };
      const bool touched = std::ranges::any_of(resource.devices, of_changed) ||
                           (same != after.resources.end() && std::ranges::any_of(same->devices, of_changed));
      RC_ASSERT((touched || (same != after.resources.end() && *same == resource)));
    }
  });
}

}  // namespace
}  // namespace gpulet::partition
