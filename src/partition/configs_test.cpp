// Switches from any of twelve configs to any other: checks the removed and added devices, and that nothing
// else differs.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "config/load.h"
#include "partition/test_configs.h"

namespace gpulet::partition {
namespace {

using namespace test;

Plan plan_of(const TestConfig& wanted) {
  config::Sources sources;
  sources.file_path = wanted.name + ".yaml";
  sources.file_content = wanted.yaml;
  const auto loaded = config::load(sources);
  EXPECT_TRUE(loaded) << (loaded ? "" : loaded.error().full_message());
  return plan_resources(config_node(), loaded ? loaded->config : config::Config{});
}

// "0-5", "6:0-6 7:2-3": runs of neighbours.
std::string places(const Resource& resource) {
  std::map<std::string, std::set<std::size_t>> numbers;
  for (const auto& device : resource.devices) {
    device.mig ? numbers[std::to_string(device.gpu) + ":"].insert(*device.mig)
               : numbers[""].insert(device.gpu);
  }
  std::string out;
  for (const auto& [prefix, set] : numbers) {
    EXPECT_EQ(*set.rbegin() - *set.begin() + 1, set.size()) << resource.name;
    out += (out.empty() ? "" : " ") + prefix + std::to_string(*set.begin()) +
           (set.size() > 1 ? "-" + std::to_string(*set.rbegin()) : "");
  }
  return out;
}

std::string how(const Resource& resource) {
  const auto& first = resource.devices.front();
  switch (resource.sharing) {
    case config::SharingStrategy::kNone:
      return first.mig ? "mig" : "whole";
    case config::SharingStrategy::kTimeSlicing:
      return "time-slicing " + std::to_string(resource.replicas);
    case config::SharingStrategy::kMps:
      break;
  }
  return "mps " + std::to_string(first.share ? first.share->memory : resource.replicas);
}

TEST(Configs, EachOffersItsResources) {
  ASSERT_EQ(test_configs().size(), 12u);
  for (const auto& config : test_configs()) {
    const auto made = plan_of(config);
    ASSERT_EQ(made.resources.size(), config.resources.size()) << config.name << ": " << summary(made);
    for (std::size_t i = 0; i < made.resources.size(); ++i) {
      const auto& resource = made.resources[i];
      const ExpectedResource is{resource.name.str().substr(11), resource.devices.size(), how(resource),
                                places(resource)};
      EXPECT_EQ(is, config.resources[i])
          << config.name << ": " << is.name << " " << is.devices << " " << is.how << " " << is.of;
    }
    // Only strategy single omits devices: partitioned ones.
    EXPECT_EQ(made.notes.size(), config.name == "single" ? 2u : 0u) << config.name;
  }
}

TEST(Configs, FromAnyToAnyOther) {
  std::size_t pairs = 0, kept = 0, vanished = 0, appeared = 0;
  for (const auto& from : test_configs()) {
    const auto before = plan_of(from);
    for (const auto& to : test_configs()) {
      if (&from == &to) continue;
      ++pairs;
      const auto after = plan_of(to);
      for (const auto& old : from.resources) {
        const auto now = std::ranges::find(to.resources, old.name, &ExpectedResource::name);
        const auto* resource = find(before, old.name);
        const auto* later = find(after, old.name);
        ASSERT_TRUE(resource) << from.name << " " << old.name;
        ASSERT_EQ(later != nullptr, now != to.resources.end())
            << from.name << " to " << to.name << ": " << old.name;
        vanished += later == nullptr ? 1 : 0;
        if (!later) continue;
        EXPECT_EQ(*resource == *later, old == *now) << from.name << " to " << to.name << ": " << old.name;
        kept += *resource == *later ? 1 : 0;
        // If only other devices are added or removed, the remaining ones are equal under the same ids.
        if (old.how != now->how) continue;
        for (const auto& device : later->devices) {
          const auto same = std::ranges::find(resource->devices, device.id, &Device::id);
          EXPECT_TRUE(same == resource->devices.end() || *same == device) << device.id;
        }
      }
      for (const auto& resource : after.resources)
        appeared += find(before, resource.name.str().substr(11)) ? 0 : 1;
    }
  }
  EXPECT_EQ(pairs, 132u);
  EXPECT_EQ(vanished, appeared);  // every pair occurs in both directions
  EXPECT_GT(kept, 0u);
  EXPECT_GT(vanished, 0u);
}

}  // namespace
}  // namespace gpulet::partition
