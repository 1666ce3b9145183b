#include "dra/claim_fit.h"

#include <gtest/gtest.h>

#include <optional>

#include <nlohmann/json.hpp>

namespace gpulet::dra {
namespace {

using nlohmann::json;

constexpr const char* kFitDriver = "gpu.nvidia.com";

json fit_device(const std::string& name, const std::string& type = "gpu",
                const std::string& memory = "80Gi") {
  return {{"name", name},
          {"attributes",
           {{"type", {{"string", type}}}, {"gpulet.io/island", {{"int", name == "gpu-3" ? 1 : 0}}}}},
          {"capacity", {{"memory", {{"value", memory}}}}}};
}

json fit_slice(const std::string& node, const std::vector<json>& devices, int generation = 1) {
  return {{"spec",
           {{"driver", kFitDriver},
            {"nodeName", node},
            {"pool", {{"name", node}, {"generation", generation}}},
            {"devices", devices}}}};
}

json fit_claim(const std::vector<json>& requests, const std::vector<json>& constraints = {}) {
  return {{"metadata", {{"namespace", "team"}, {"name", "a"}, {"uid", "u1"}}},
          {"spec", {{"devices", {{"requests", requests}, {"constraints", constraints}}}}}};
}

json exactly(json fields = json::object(), const std::string& name = "gpus") {
  fields["deviceClassName"] = kFitDriver;
  return {{"name", name}, {"exactly", std::move(fields)}};
}

json selectors_of(const std::string& expression) {
  json selector = {{"cel", {{"expression", expression}}}};
  return json::array({std::move(selector)});
}

json holder_of(const std::string& name, const std::vector<std::string>& devices, bool admin = false) {
  json results = json::array();
  for (const auto& device : devices) {
    results.push_back(
        {{"driver", kFitDriver}, {"pool", "node-1"}, {"device", device}, {"adminAccess", admin}});
  }
  return {{"metadata", {{"namespace", "team"}, {"name", name}, {"uid", "u-" + name}}},
          {"status", {{"allocation", {{"devices", {{"results", std::move(results)}}}}}}}};
}

class ClaimFitTest : public testing::Test {
 protected:
  ClaimFit explain(const json& claim) const {
    std::vector<std::string> slices, claims;
    for (const auto& slice : slices_) slices.push_back(slice.dump());
    for (const auto& one : claims_) claims.push_back(one.dump());
    std::vector<std::string> rules;
    for (const auto& rule : taint_rules_) rules.push_back(rule.dump());
    auto fit = explain_claim_fit(claim.dump(), classes_, slices, claims, rules);
    EXPECT_TRUE(fit);
    return std::move(*fit);
  }
  // Of node-1; empty if the claim fits there.
  std::string reason(const json& claim) const {
    const auto fit = explain(claim);
    return fit.nodes.size() == 1 && fit.nodes[0].fits == fit.nodes[0].reason.empty() ? fit.nodes[0].reason
                                                                                     : "?";
  }

  std::map<std::string, std::string> classes_ = {
      {kFitDriver, json{{"spec",
                         {{"selectors", selectors_of("device.driver == 'gpu.nvidia.com' && "
                                                     "device.attributes['gpu.nvidia.com'].type == 'gpu'")}}}}
                       .dump()}};
  std::vector<json> slices_ = {fit_slice(
      "node-1",
      {fit_device("gpu-0"), fit_device("gpu-1"), fit_device("gpu-2", "gpu", "40Gi"), fit_device("gpu-3")})};
  std::vector<json> claims_, taint_rules_;
};

TEST_F(ClaimFitTest, EachCauseIsNamed) {
  claims_ = {holder_of("b", {"gpu-0"}), holder_of("c", {"gpu-1"}), holder_of("monitor", {"gpu-2"}, true)};
  slices_[0]["spec"]["devices"][3]["taints"] =
      json::array({json{{"key", "gpu.nvidia.com/xid"}, {"value", "79"}, {"effect", "NoSchedule"}}});
  const json tolerations = json::array({json{{"key", "gpu.nvidia.com/xid"}, {"operator", "Exists"}}});
  const struct {
    const char* what;
    json request;
    std::string reason;
  } cases[] = {
      {"one is free", exactly(), ""},
      {"held and tainted", exactly({{"count", 2}}),
       "gpus: 1 free of 2: 2 held by claims team/b, team/c, 1 tainted gpu.nvidia.com/xid=79"},
      {"tolerated", exactly({{"count", 2}, {"tolerations", tolerations}}), ""},
      {"a count that no node has", exactly({{"count", 8}, {"adminAccess", true}}),
       "gpus: 3 free of 8: 1 tainted gpu.nvidia.com/xid=79, only 4 match"},
      {"an administrator", exactly({{"count", 3}, {"adminAccess", true}}), ""},
      {"all", exactly({{"allocationMode", "All"}}),
       "gpus: 1 free of 4: 2 held by claims team/b, team/c, 1 tainted gpu.nvidia.com/xid=79"},
      {"a capacity",
       exactly({{"selectors",
                 selectors_of("device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('60Gi')) >= 0")}}),
       "gpus: 0 free of 1: 2 held by claims team/b, team/c, 1 tainted gpu.nvidia.com/xid=79"},
      {"an attribute",
       exactly({{"selectors", selectors_of("device.attributes[\"gpu.nvidia.com\"].type == \"vfio\"")}}),
       "gpus: no device meets device.attributes[\"gpu.nvidia.com\"].type == \"vfio\""},
      {"an attribute that is missing",
       exactly({{"selectors", selectors_of("device.attributes['x.com'].y == true")}}),
       "gpus: no device meets device.attributes['x.com'].y == true"},
      {"another class", json{{"name", "gpus"}, {"exactly", {{"deviceClassName", "none"}}}},
       "gpus: the DeviceClass none does not exist"},
  };
  for (const auto& one : cases) EXPECT_EQ(reason(fit_claim({one.request})), one.reason) << one.what;
}

TEST_F(ClaimFitTest, ASelectorThatIsNotReadCountsAsMet) {
  const std::string other =
      "device.attributes['gpu.nvidia.com'].driverVersion.isGreaterThan(semver('570.0.0'))";
  const auto fit = explain(fit_claim({exactly({{"selectors", selectors_of(other)}})}));
  EXPECT_TRUE(fit.nodes.at(0).fits);
  EXPECT_EQ(fit.unjudged, std::vector{other});
  EXPECT_EQ(
      claim_fit_text(fit),
      "claim team/a requests gpus: 1 of gpu.nvidia.com\nFits on node-1\nTaken for met: " + other + "\n");
  const std::string either = "device.driver == 'a' || device.driver == 'b'";
  EXPECT_EQ(explain(fit_claim({exactly({{"selectors", selectors_of(either)}})})).unjudged,
            std::vector{either});
}

TEST_F(ClaimFitTest, PartitionsShareCounters) {
  json whole = fit_device("gpu-0"), part = fit_device("gpu-0-mig-0", "mig");
  const auto consume = [](json& device, const char* value) {
    json set = {{"counterSet", "gpu-0"}, {"counters", {{"slices", {{"value", value}}}}}};
    device["consumesCounters"] = json::array({std::move(set)});
  };
  consume(whole, "8");
  consume(part, "1");
  slices_ = {fit_slice("node-1", {whole, part})};
  json set = {{"name", "gpu-0"}, {"counters", {{"slices", {{"value", "8"}}}}}};
  slices_[0]["spec"]["sharedCounters"] = json::array({std::move(set)});
  EXPECT_EQ(reason(fit_claim({exactly()})), "");
  claims_ = {holder_of("b", {"gpu-0-mig-0"})};
  EXPECT_EQ(reason(fit_claim({exactly()})), "gpus: 0 free of 1: 1 without slices of gpu-0");
}

TEST_F(ClaimFitTest, ConstraintsAndSeveralRequests) {
  json equal = {{"requests", json::array({"gpus"})}, {"matchAttribute", "gpulet.io/island"}};
  EXPECT_EQ(reason(fit_claim({exactly({{"count", 3}})}, {equal})), "");
  EXPECT_EQ(reason(fit_claim({exactly({{"count", 4}})}, {equal})),
            "of the free devices, at most 3 of 4 are equal in gpulet.io/island");
  EXPECT_EQ(reason(fit_claim({exactly({{"count", 3}}), exactly({{"count", 2}}, "more")})),
            "its requests together need 5 devices, and 4 are free");
  json large = exactly({{"count", 8}})["exactly"], small = exactly()["exactly"];
  large["name"] = "large";
  small["name"] = "small";
  const json either = {{"name", "gpus"}, {"firstAvailable", json::array({large, small})}};
  EXPECT_EQ(reason(fit_claim({either})), "");
  EXPECT_EQ(explain(fit_claim({either})).requests,
            "gpus/large: 8 of gpu.nvidia.com, or gpus/small: 1 of gpu.nvidia.com");
}

TEST_F(ClaimFitTest, RulesOfTaintsKeepOffToo) {
  const json off = {{"key", "example.com/off"}, {"effect", "NoExecute"}};
  const json tolerations = json::array({json{{"key", "example.com/off"}, {"operator", "Exists"}}});
  const std::string by_rule = "example.com/off (DeviceTaintRule repair)";
  const struct {
    const char* what;
    json selector, taint, request;
    std::string reason;
  } cases[] = {
      {"one device",
       {{"device", "gpu-0"}},
       off,
       exactly({{"count", 4}}),
       "gpus: 3 free of 4: 1 tainted " + by_rule},
      {"all of them", json::object(), off, exactly(), "gpus: 0 free of 1: 4 tainted " + by_rule},
      {"of an administrator too", json::object(), off, exactly({{"adminAccess", true}}),
       "gpus: 0 free of 1: 4 tainted " + by_rule},
      {"no selector", nullptr, off, exactly({{"count", 4}}), ""},
      {"the node's pool",
       {{"driver", kFitDriver}, {"pool", "node-1"}},
       off,
       exactly(),
       "gpus: 0 free of 1: 4 tainted " + by_rule},
      {"another pool", {{"pool", "node-2"}}, off, exactly({{"count", 4}}), ""},
      {"another driver", {{"driver", "x.com"}, {"device", "gpu-0"}}, off, exactly({{"count", 4}}), ""},
      {"an effect that keeps nobody off", json::object(), {{"key", "a"}, {"effect", "None"}}, exactly(), ""},
      {"tolerated", json::object(), off, exactly({{"tolerations", tolerations}}), ""},
      {"an odd selector", 3, off, exactly(), ""},
      {"an odd taint", json::object(), 3, exactly(), ""},
  };
  for (const auto& one : cases) {
    taint_rules_ = {{{"metadata", {{"name", "repair"}}},
                     {"spec", {{"deviceSelector", one.selector}, {"taint", one.taint}}}}};
    EXPECT_EQ(reason(fit_claim({one.request})), one.reason) << one.what;
  }
}

TEST_F(ClaimFitTest, DistinctAttributes) {
  const struct {
    const char* what;
    std::vector<json> requests;
    json constraint;
    std::string reason;
  } cases[] = {
      {"two islands", {exactly({{"count", 2}})}, {{"distinctAttribute", "gpulet.io/island"}}, ""},
      {"a third",
       {exactly({{"count", 3}})},
       {{"distinctAttribute", "gpulet.io/island"}},
       "of the free devices, at most 2 of 3 differ in gpulet.io/island"},
      {"of the driver's domain",
       {exactly({{"count", 2}})},
       {{"distinctAttribute", "gpu.nvidia.com/type"}},
       "of the free devices, at most 1 of 2 differ in gpu.nvidia.com/type"},
      {"an attribute that no device has",
       {exactly()},
       {{"distinctAttribute", "x.com/y"}},
       "of the free devices, at most 0 of 1 differ in x.com/y"},
      {"over two requests",
       {exactly({{"count", 2}}), exactly({}, "more")},
       {{"distinctAttribute", "gpulet.io/island"}},
       "of the free devices, at most 2 of 3 differ in gpulet.io/island"},
      {"only one of two",
       {exactly({{"count", 2}}), exactly({}, "more")},
       {{"requests", json::array({"gpus"})}, {"distinctAttribute", "gpulet.io/island"}},
       ""},
      {"the most that can be asked for",
       {exactly({{"count", UINT64_MAX}, {"adminAccess", true}}), exactly({}, "more")},
       json::object(),
       "gpus: 4 free of 18446744073709551615: only 4 match"},
  };
  for (const auto& one : cases)
    EXPECT_EQ(reason(fit_claim(one.requests, {one.constraint})), one.reason) << one.what;
}

json shared_device(const std::string& name, const std::string& shares = "") {
  json device = fit_device(name);
  const auto policy = [](const char* standard, const char* least, const std::string& most, const char* step) {
    return json{{"default", standard}, {"validRange", {{"min", least}, {"max", most}, {"step", step}}}};
  };
  device["allowMultipleAllocations"] = true;
  auto& capacity = device["capacity"];
  capacity["memory"]["requestPolicy"] =
      shares.empty() ? policy("80Gi", "1Mi", "80Gi", "1Mi") : policy("0", "0", "80Gi", "1Mi");
  if (!shares.empty())
    capacity["shares"] = {{"value", shares}, {"requestPolicy", policy("1", "1", shares, "1")}};
  return device;
}

json share_holder(const std::string& name, const std::string& device, const json& consumed) {
  json holder = holder_of(name, {device});
  auto& result = holder["status"]["allocation"]["devices"]["results"][0];
  result["shareID"] = "share-" + name;
  result["consumedCapacity"] = consumed;
  return holder;
}

json capacity_request(const json& requests, std::uint64_t count = 1) {
  return exactly({{"count", count}, {"capacity", {{"requests", requests}}}});
}

TEST_F(ClaimFitTest, SharesFitAsFarAsTheirCapacityGoes) {
  slices_ = {fit_slice("node-1", {shared_device("gpu-0"), shared_device("gpu-1")})};
  claims_ = {share_holder("b", "gpu-0", {{"memory", "50Gi"}}),
             share_holder("c", "gpu-1", {{"gpu.nvidia.com/memory", "30Gi"}})};
  const struct {
    const char* what;
    json request;
    std::string reason;
  } cases[] = {
      {"on one of two", capacity_request({{"memory", "40Gi"}}), ""},
      {"by its whole name", capacity_request({{"gpu.nvidia.com/memory", "50Gi"}}), ""},
      {"a step more", capacity_request({{"memory", "53687091201"}}),
       "gpus: 0 free of 1: 2 with too little free of memory"},
      {"two on one GPU", capacity_request({{"memory", "25Gi"}}, 3), ""},
      {"four", capacity_request({{"memory", "25Gi"}}, 4), "gpus: 3 free of 4: only 2 match"},
      {"all of the memory", exactly(), "gpus: 0 free of 1: 2 with too little free of memory"},
      {"more than a GPU has", capacity_request({{"memory", "81Gi"}}),
       "gpus: 0 free of 1: 2 with too little free of memory"},
      {"what it does not have", capacity_request({{"memory", "1Gi"}, {"shares", "1"}}),
       "gpus: 0 free of 1: 2 with too little free of shares"},
      {"an administrator", exactly({{"adminAccess", true}}), ""},
  };
  for (const auto& one : cases) EXPECT_EQ(reason(fit_claim({one.request})), one.reason) << one.what;
  json large = capacity_request({{"memory", "50Gi"}}), small = capacity_request({{"memory", "30Gi"}});
  small["name"] = "more";
  EXPECT_EQ(reason(fit_claim({large, small})), "");
}

TEST_F(ClaimFitTest, AnEndlessStepIsNoSmallOne) {
  json device = shared_device("gpu-0");
  auto& policy = device["capacity"]["memory"]["requestPolicy"];
  policy["validRange"]["step"] = "18446744073709551";
  policy["validRange"].erase("max");
  slices_ = {fit_slice("node-1", {device})};
  EXPECT_EQ(reason(fit_claim({capacity_request({{"memory", "2Mi"}})})),
            "gpus: 0 free of 1: 1 with too little free of memory");
  EXPECT_EQ(reason(fit_claim({capacity_request({{"memory", "18446744073709550"}})})),
            "gpus: 0 free of 1: 1 with too little free of memory");
}

TEST_F(ClaimFitTest, ACountOfSharesIsSpent) {
  slices_ = {fit_slice("node-1", {shared_device("gpu-0", "2")})};
  EXPECT_EQ(reason(fit_claim({exactly({{"count", 2}})})), "");
  EXPECT_EQ(reason(fit_claim({exactly({{"count", 3}})})), "gpus: 2 free of 3: only 1 match");
  const json one = {{"memory", "0"}, {"shares", "1"}};
  claims_ = {share_holder("b", "gpu-0", one)};
  EXPECT_EQ(reason(fit_claim({exactly()})), "");
  EXPECT_EQ(reason(fit_claim({capacity_request({{"shares", "2"}})})),
            "gpus: 0 free of 1: 1 with too little free of shares");
  claims_.push_back(share_holder("c", "gpu-0", one));
  EXPECT_EQ(reason(fit_claim({exactly()})), "gpus: 0 free of 1: 1 with too little free of shares");
  claims_ = {holder_of("b", {"gpu-0"})};
  EXPECT_EQ(reason(fit_claim({exactly()})), "gpus: 0 free of 1: 1 held by claims team/b");
}

TEST_F(ClaimFitTest, ARequestOfCapacitySelectsWholeGpus) {
  EXPECT_EQ(reason(fit_claim({capacity_request({{"memory", "60Gi"}}, 3)})), "");
  EXPECT_EQ(reason(fit_claim({capacity_request({{"memory", "60Gi"}}, 4)})),
            "gpus: 3 free of 4: 1 with too little free of memory");
}

TEST_F(ClaimFitTest, ValidValuesRoundUp) {
  json device = shared_device("gpu-0");
  device["capacity"]["memory"]["requestPolicy"] = {{"default", "20Gi"}, {"validValues", {"20Gi", "40Gi"}}};
  slices_ = {fit_slice("node-1", {device})};
  claims_ = {share_holder("b", "gpu-0", {{"memory", "50Gi"}})};
  EXPECT_EQ(reason(fit_claim({exactly()})), "");
  for (const char* amount : {"21Gi", "41Gi"})
    EXPECT_EQ(reason(fit_claim({capacity_request({{"memory", amount}})})),
              "gpus: 0 free of 1: 1 with too little free of memory");
  device["capacity"]["memory"].erase("requestPolicy");
  slices_ = {fit_slice("node-1", {device})};
  EXPECT_EQ(reason(fit_claim({capacity_request({{"memory", "30Gi"}})})), "");
  EXPECT_EQ(reason(fit_claim({exactly()})), "gpus: 0 free of 1: 1 with too little free of memory")
      << "all of it";
}

TEST_F(ClaimFitTest, OnlyTheNewestGenerationCounts) {
  slices_ = {fit_slice("node-1", {fit_device("gpu-0"), fit_device("gpu-1")}, 1),
             fit_slice("node-1", {fit_device("gpu-0")}, 2), fit_slice("node-2", {fit_device("gpu-0")})};
  claims_ = {holder_of("b", {"gpu-0"})};
  const auto fit = explain(fit_claim({exactly()}));
  EXPECT_EQ(fit.nodes,
            (std::vector<NodeFit>{{"node-2", true, ""},
                                  {"node-1", false, "gpus: 0 free of 1: 1 held by claims team/b"}}));
  EXPECT_EQ(claim_fit_text(fit, 1),
            "claim team/a requests gpus: 1 of gpu.nvidia.com\nFits on node-2\nRejected:\n"
            "  node-1  gpus: 0 free of 1: 1 held by claims team/b\n");
  slices_.clear();
  EXPECT_NE(claim_fit_text(explain(fit_claim({exactly()}))).find("no ResourceSlice has a device"),
            std::string::npos);
}

TEST_F(ClaimFitTest, AnAllocatedClaimShowsItsDevices) {
  auto claim = fit_claim({exactly({{"count", 2}})});
  claim["status"] = holder_of("a", {"gpu-0", "gpu-1"})["status"];
  claim["status"]["reservedFor"] = json::array({json{{"resource", "pods"}, {"name", "p"}, {"uid", "pu"}}});
  EXPECT_EQ(claim_fit_text(explain(claim)),
            "claim team/a requests gpus: 2 of gpu.nvidia.com\nAllocated: gpu-0, gpu-1 of node-1\n"
            "Used by Pods: p\n");
  EXPECT_EQ(claim_classes(claim.dump()), std::vector<std::string>{kFitDriver});
}

TEST_F(ClaimFitTest, OddObjectsArePassedOver) {
  for (const char* text : {"", "[]", "{}", R"({"spec":{}})"})
    EXPECT_FALSE(explain_claim_fit(text, {}, {}, {})) << text;
  const std::vector<std::string> odd = {"", "3",
                                        R"({"spec":{"devices":[1,{}],"pool":3,"sharedCounters":{}}})",
                                        R"({"status":{"allocation":{"devices":{"results":[7,{}]}}}})"};
  EXPECT_TRUE(explain_claim_fit(fit_claim({exactly(), json(3)}).dump(), classes_, odd, odd));
}

}  // namespace
}  // namespace gpulet::dra
