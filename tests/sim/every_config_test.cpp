// Every transition between twelve configs in one life of the agent, while Pods hold devices: within a second
// the offered devices match the new config, and Pods keep theirs.
#include <filesystem>
#include <map>
#include <set>

#include "base/text.h"
#include "partition/test_configs.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

using partition::test::test_configs;
using partition::test::TestConfig;

class SimEveryConfig : public NodeTest {
 protected:
  void prepare_node() {
    bring_up_node();
    mig_[6] = create_mig_devices(6, std::vector<std::string>(7, "1g.10gb"));
    mig_[7] = create_mig_devices(7, {"3g.40gb@4", "2g.20gb@0", "1g.10gb@2", "1g.10gb@3"});
  }
  // Returns the UUIDs of "0-5" or "6:0-6 7:2-3".
  std::set<std::string> uuids_of(const std::string& devices) const {
    std::set<std::string> uuids;
    for (const auto& token : text::split(devices, ' ')) {
      const auto parts = text::split(token, ':');
      const auto range = text::split(parts.back(), '-');
      for (auto i = *text::parse_unsigned(range.front()); i <= *text::parse_unsigned(range.back()); ++i) {
        uuids.insert(parts.size() == 1
                         ? gpu_uuid(static_cast<std::uint32_t>(i))
                         : mig_.at(static_cast<std::uint32_t>(*text::parse_unsigned(parts.front()))).at(i));
      }
    }
    return uuids;
  }
  // A config of the table for this node: with the test's MPS root and unchanged MIG.
  std::string sample_in_root(const TestConfig& config) {
    const std::string root = sim_node().mps_root();
    std::string text = config.yaml;
    const std::string flags = "flags: {";
    const std::string theirs = "mpsRoot: /run/nvidia/mps";
    if (const auto at = text.find(theirs); at != std::string::npos) {
      text.replace(at, theirs.size(), "mpsRoot: " + root);
    } else if (const auto open = text.find(flags); open != std::string::npos) {
      text.insert(open + flags.size(), "mpsRoot: " + root + ", ");
    } else {
      text += "flags: {mpsRoot: " + root + "}\n";
    }
    return text;
  }
  // Compares devices, not only counts: two configs may offer equally many of one name, and the kubelet
  // allocates from the old list until it has the new one.
  bool has_option_effect(const sim::KubeletState& state, const TestConfig& config) const {
    std::size_t connected = 0;
    for (const auto& [name, resource] : state.resources) connected += resource.connected ? 1 : 0;
    if (connected != config.resources.size()) return false;
    for (const auto& wanted : config.resources) {
      const auto* resource = find_resource(state, "nvidia.com/" + wanted.name);
      if (resource == nullptr || !resource->connected || resource->allocatable() != wanted.devices)
        return false;
      std::set<std::string> uuids;
      for (const auto& id : healthy_ids(*resource)) uuids.insert(id.substr(0, id.find("::")));
      if (uuids != uuids_of(wanted.of)) return false;
    }
    return true;
  }
  static std::string config_text(const sim::KubeletState& state) {
    std::string text;
    for (const auto& [name, resource] : state.resources) {
      if (!resource.connected) continue;
      text += name + "=" + std::to_string(resource.allocatable()) + "/" +
              std::to_string(resource.capacity()) + " ";
    }
    return text;
  }

 private:
  std::map<std::uint32_t, std::vector<std::string>> mig_;  // UUIDs by GPU
};

// Returns a walk over the complete graph in which each ordered pair occurs once.
std::vector<std::size_t> every_pair(std::size_t count) {
  std::vector<std::size_t> walk{0};
  for (std::size_t from = 0; from < count; ++from) {
    for (std::size_t to = from + 1; to < count; ++to) {
      walk.push_back(to);
      walk.push_back(from);
    }
    if (from + 1 < count) walk.push_back(from + 1);
  }
  return walk;
}

TEST_F(SimEveryConfig, ToEveryOther) {
  prepare_node();
  const auto& configs = test_configs();
  write_config(sample_in_root(configs[0]));
  start_agent({.arguments = {"--config-file=" + config_path()}});
  ASSERT_TRUE(wait_for_kubelet([&](const auto& state) { return has_option_effect(state, configs[0]); }))
      << agent_log();
  const auto agent = sim_node().agent_id();
  std::set<std::pair<std::size_t, std::size_t>> seen;
  std::map<std::string, std::pair<std::string, std::string>> held;  // Pod's uid → resource, device
  const auto walk = every_pair(configs.size());
  std::size_t now = 0;
  for (std::size_t step = 1; step < walk.size(); ++step) {
    const auto& config = configs[walk[step]];
    if (walk[step] == now) continue;
    seen.emplace(now, walk[step]);
    // A Pod holds a device of the old config's first resource.
    const std::string resource = "nvidia.com/" + configs[now].resources.front().name;
    if (held.size() < 3) {
      const auto grant = admit_pod("holder-" + std::to_string(step), 1, resource);
      held[grant.uid] = {resource, granted_ids(grant, resource).at(0)};
    }
    write_config(sample_in_root(config));
    ASSERT_TRUE(wait_for_kubelet([&](const auto& state) { return has_option_effect(state, config); }))
        << configs[now].name << " → " << config.name << ": " << config_text(sim_kubelet().kubelet_state())
        << "\n"
        << agent_log();
    for (const auto& [uid, device] : held) {
      EXPECT_EQ(granted_ids(sim_kubelet().kubelet_state().grants.at(uid), device.first).at(0), device.second);
    }
    if (held.size() == 3) {
      for (const auto& [uid, device] : held) EXPECT_TRUE(sim_kubelet().remove_pod(uid));
      held.clear();
    }
    now = walk[step];
  }
  EXPECT_EQ(seen.size(), configs.size() * (configs.size() - 1));
  EXPECT_EQ(sim_node().agent_id(), agent);
}

}  // namespace
}  // namespace gpulet::tests
