// MIG devices on demand, as a process on the simulated driver: the demand comes with the node's GpuNode, and
// the offer goes there.
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "tests/sim/node_api.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

class SimMigDemand : public NodeTest {
 protected:
  void SetUp() override {
    bring_up_node();
    api_ = std::make_unique<NodeApi>(sim_node().directory(),
                                     [this](const k8s::Received& request) { return reply_to(request); });
    write_config(
        "version: v1\ngpulet:\n  publishGpuNode: true\n"
        "  mig: {onDemand: {maxGpus: 1, minInterval: 1s, idle: 1s}}\n"
        "  partition:\n  - {devices: [7], mig: {layout: all-1g.10gb, onDemand: true}}\n");
    start();
    ASSERT_TRUE(becomes_allocatable(7, kSmall)) << agent_log();
    // A Pod that is there all the time.
    held_ = granted_ids(admit_pod("holder", 1, kSmall), kSmall).at(0);
  }
  void start() {
    start_agent({.arguments = {"--config-file=" + config_path()},
                 .environment = {"NODE_NAME=node-1", "KUBECONFIG=" + api_->kubeconfig()}});
  }
  void want(const char* resource) {
    const std::lock_guard lock(mutex_);
    demand_ = {{"renewed", std::to_string(++renewals_)}, {"requests", nlohmann::json::array()}};
    if (resource != nullptr)
      demand_["requests"].push_back({{"resource", resource}, {"count", 1}, {"pods", {"team/a"}}});
  }
  // How many of the resource the agent published that it could have free; nullopt before it has.
  std::optional<unsigned> offered(const std::string& resource) {
    const std::lock_guard lock(mutex_);
    for (const auto& one : json_member(json_member(spec_, "migOnDemand"), "resources")) {
      if (one.at("name") == resource) return one.at("count").get<unsigned>();
    }
    return std::nullopt;
  }
  bool has_device(const std::string& id, const std::string& resource) {
    const auto state = sim_kubelet().kubelet_state();
    const auto* found = find_resource(state, resource);
    return found != nullptr && healthy_ids(*found).contains(id);
  }

  std::string held_;

 private:
  std::optional<k8s::TestApiServer::Reply> reply_to(const k8s::Received& request) {
    const std::string line = request.line();
    if (line == "GET /api/v1/nodes/node-1")
      return k8s::TestApiServer::Reply{200, R"({"metadata":{"name":"node-1","uid":"uid-1"}})"};
    if (line.find("/gpunodes/node-1") == std::string::npos) return std::nullopt;
    const std::lock_guard lock(mutex_);
    const auto body = parse_json(request.body);
    if (const auto& spec = json_member(body, "spec"); !spec.is_null()) spec_ = spec;
    // As the extender does while the Pod waits.
    if (demand_.is_object()) demand_["renewed"] = std::to_string(++renewals_);
    nlohmann::json object = {{"metadata", {{"name", "node-1"}}}, {"status", {{"migDemand", demand_}}}};
    object["spec"] = spec_.is_null() ? nlohmann::json{{"version", 1}} : spec_;
    return k8s::TestApiServer::Reply{200, object.dump()};
  }

  std::unique_ptr<NodeApi> api_;
  std::mutex mutex_;
  nlohmann::json demand_, spec_;
  unsigned renewals_ = 0;
};

TEST_F(SimMigDemand, CutsForAPodThatWaitsAndReturns) {
  ASSERT_TRUE(becomes_true([&] { return offered(kLarge) == 1u; })) << "one half has the holder's device";
  want(kLarge);
  ASSERT_TRUE(becomes_allocatable(1, kLarge)) << agent_log();
  EXPECT_NE(wait_for_log("MigApplied", "for Pod team/a, which waits for nvidia.com/mig-3g.40gb"), "");
  EXPECT_TRUE(has_device(held_, kSmall)) << "a device in use is kept";
  const auto grant = admit_pod("a", 1, kLarge);
  const auto cut = granted_ids(grant, kLarge).at(0);
  want(nullptr);
  ASSERT_TRUE(becomes_true([&] { return offered(kLarge) == 0u; })) << "minInterval is over, and it is in use";
  EXPECT_TRUE(has_device(cut, kLarge));
  ASSERT_TRUE(sim_kubelet().remove_pod(grant.uid));
  ASSERT_TRUE(becomes_allocatable(7, kSmall)) << agent_log();
  EXPECT_TRUE(has_device(held_, kSmall));
  EXPECT_FALSE(has_device(cut, kLarge));
}

TEST_F(SimMigDemand, ARestartedAgentKeepsWhatItCut) {
  want(kLarge);
  ASSERT_TRUE(becomes_allocatable(1, kLarge)) << agent_log();
  const auto cut = *healthy_ids(*find_resource(sim_kubelet().kubelet_state(), kLarge)).begin();
  sim_node().kill_agent();
  start();
  ASSERT_TRUE(becomes_allocatable(1, kLarge)) << agent_log();
  ASSERT_TRUE(becomes_true([&] { return offered(kLarge) == 1u; }));
  EXPECT_TRUE(has_device(cut, kLarge));
  EXPECT_TRUE(has_device(held_, kSmall));
}

}  // namespace
}  // namespace gpulet::tests
