#include "dra/claim.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "dra/test_claims.h"

namespace gpulet::dra {
namespace {

using namespace test;
using nlohmann::json;

std::string claim_error(const json& claim) {
  const auto parsed = parse_claim(claim.dump(), kDriver);
  if (parsed) return "";
  EXPECT_EQ(parsed.error().code(), Code::kInvalidArgument);
  return parsed.error().full_message();
}

json with(json claim, const char* pointer, const json& value) {
  claim[json::json_pointer(pointer)] = value;
  return claim;
}

TEST(Claim, ReadsResultsAndConfigsOfThisDriver) {
  json shared = result_json("gpu-1", "one/large");
  shared["adminAccess"] = true;
  shared["shareID"] = "a1";
  shared["consumedCapacity"] = {{"memory", "10Gi"}, {"gpu.nvidia.com/shares", 3}, {"other.com/x", "1500m"}};
  const auto claim =
      parsed(claim_json({result_json("gpu-0"), result_json("nic-0", "nic", "nic.example.com"), shared},
                        {config_json(gpu_config(), {}, "FromClass"),
                         config_json({{"a", 1}}, {}, "FromClaim", "nic.example.com"),
                         config_json(gpu_config(), {"gpus"}), json{{"source", "FromClaim"}}}));
  EXPECT_EQ(claim.name_space, "team");
  EXPECT_EQ(claim.name, "claim-1");
  EXPECT_EQ(claim.uid, kUid);
  EXPECT_TRUE(claim.allocated);
  const std::vector<AllocationResult> results = {
      {.request = "gpus", .pool = "node-1", .device = "gpu-0"},
      {.request = "one/large",
       .pool = "node-1",
       .device = "gpu-1",
       .admin_access = true,
       .share_id = "a1",
       .consumed_capacity = {{"memory", std::uint64_t{10} << 30}, {"other.com/x", 2}, {"shares", 3}}}};
  EXPECT_EQ(claim.results, results);
  EXPECT_EQ(claim.results[1].main_request(), "one");
  ASSERT_EQ(claim.configs.size(), 3u);
  EXPECT_EQ(claim.configs[0].source, ConfigSource::kClass);
  EXPECT_TRUE(claim.configs[0].requests.empty());
  EXPECT_EQ(claim.configs[1].path, "status.allocation.devices.config[2]");
  EXPECT_EQ(claim.configs[1].requests, std::vector<std::string>{"gpus"});
  EXPECT_EQ(json::parse(*claim.configs[1].parameters), gpu_config());
  EXPECT_FALSE(claim.configs[2].parameters);
}

TEST(Claim, IsNotAllocatedWithoutAnAllocation) {
  json claim = claim_json({});
  claim.erase("status");
  EXPECT_FALSE(parsed(claim).allocated);
  claim["status"] = json::object();
  EXPECT_FALSE(parsed(claim).allocated);
  claim["status"]["allocation"] = nullptr;
  EXPECT_FALSE(parsed(claim).allocated);
  claim["status"]["allocation"] = json::object();
  EXPECT_TRUE(parsed(claim).allocated);
}

TEST(Claim, NamesTheFieldThatIsWrong) {
  const json good = claim_json({result_json("gpu-0")}, {config_json(gpu_config())});
  const std::string devices = "status.allocation.devices";
  for (const auto& [pointer, value, message] : std::vector<std::tuple<const char*, json, std::string>>{
           {"/metadata", nullptr, "metadata: required, not set"},
           {"/metadata", 5, "metadata: expected an object, found 5"},
           {"/metadata/uid", "", "metadata.uid: required, not set"},
           {"/metadata/name", json::array(), "metadata.name: expected text, found a list"},
           {"/metadata/namespace", nullptr, "metadata.namespace: required, not set"},
           {"/status", "x", "status: expected an object, found \"x\""},
           {"/status/allocation/devices/results", "x", devices + ".results: expected a list, found \"x\""},
           {"/status/allocation/devices/results/0", 1, devices + ".results[0]: expected an object, found 1"},
           {"/status/allocation/devices/results/0/driver", nullptr,
            devices + ".results[0].driver: required, not set"},
           {"/status/allocation/devices/results/0/device", 7,
            devices + ".results[0].device: expected text, found 7"},
           {"/status/allocation/devices/results/0/adminAccess", "yes",
            devices + ".results[0].adminAccess: expected true or false, found \"yes\""},
           {"/status/allocation/devices/results/0/consumedCapacity", json{{"memory", true}},
            devices + ".results[0].consumedCapacity.memory: expected a quantity, found true"},
           {"/status/allocation/devices/results/0/consumedCapacity", json{{"memory", "-1"}},
            devices + ".results[0].consumedCapacity.memory: expected a quantity, found \"-1\""},
           {"/status/allocation/devices/results/0/shareID", "../a",
            devices + ".results[0].shareID: expected lower case letters, digits and '-', found \"../a\""},
           {"/status/allocation/devices/results/0/shareID", std::string(64, 'a'),
            devices + ".results[0].shareID: expected lower case letters, digits and '-', found \"" +
                std::string(39, 'a') + "…"},
           {"/status/allocation/devices/config/0/source", "FromPod",
            devices + ".config[0].source: expected FromClass or FromClaim, found \"FromPod\""},
           {"/status/allocation/devices/config/0/requests", json::array({1}),
            devices + ".config[0].requests[0]: expected text, found 1"},
           {"/status/allocation/devices/config/0/opaque/parameters", nullptr,
            devices + ".config[0].opaque.parameters: required, not set"},
           {"/status/allocation/devices/config/0/opaque/parameters", std::string(10'240, 'x'),
            devices + ".config[0].opaque.parameters: expected at most 10240 bytes, found 10242"},
       }) {
    EXPECT_EQ(claim_error(with(good, pointer, value)), message) << pointer;
  }
}

TEST(Claim, HasLimits) {
  std::vector<json> results, configs;
  for (std::size_t i = 0; i < kMaxResults; ++i) results.push_back(result_json("gpu-0"));
  for (std::size_t i = 0; i < kMaxConfigs; ++i) configs.push_back(config_json(gpu_config()));
  EXPECT_EQ(claim_error(claim_json(results, configs)), "");
  results.push_back(result_json("gpu-0"));
  EXPECT_EQ(claim_error(claim_json(results)),
            "status.allocation.devices.results: expected at most 32 items, found 33");
  configs.push_back(config_json(gpu_config()));
  EXPECT_EQ(claim_error(claim_json({}, configs)),
            "status.allocation.devices.config: expected at most 64 items, found 65");
  EXPECT_EQ(claim_error(json::array()), "text: expected an object, found a list");
  EXPECT_FALSE(parse_claim("{", kDriver));
  EXPECT_FALSE(parse_claim(std::string(100, '['), kDriver));
  EXPECT_FALSE(parse_claim(std::string(kMaxClaimBytes + 1, ' '), kDriver));
}

}  // namespace
}  // namespace gpulet::dra
