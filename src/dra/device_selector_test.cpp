#include "dra/device_selector.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace gpulet::dra {
namespace {

TEST(DeviceSelector, IsSplitAtAnd) {
  using Parts = std::vector<std::string>;
  EXPECT_EQ(split_selector(" a == 'x && y' &&\n(b && c) "), (Parts{"a == 'x && y'", "(b && c)"}));
  EXPECT_EQ(split_selector("a && b || c"), Parts{"a && b || c"});
  EXPECT_EQ(split_selector("a ? b : c && d"), Parts{"a ? b : c && d"});
  EXPECT_EQ(split_selector(""), Parts{""});
  EXPECT_EQ(split_selector("a == \"\\\" && b\" && c"), (Parts{"a == \"\\\" && b\"", "c"}));
}

TEST(DeviceSelector, ReadsComparisons) {
  const auto device = nlohmann::json::parse(R"({
    "allowMultipleAllocations": true,
    "attributes": {"type": {"string": "gpu"}, "gpulet.io/island": {"int": 2}, "ecc": {"bool": true}},
    "capacity": {"memory": {"value": "80Gi"}}})");
  const struct {
    const char* text;
    std::optional<bool> met;
  } cases[] = {
      {"device.driver == 'gpu.nvidia.com'", true},
      {"device.driver != \"gpu.nvidia.com\"", false},
      {"device.driver == 3", std::nullopt},
      {"device.attributes['gpu.nvidia.com'].type == 'gpu'", true},
      {"device.attributes[\"gpu.nvidia.com\"].type=='mig'", false},
      {"device.attributes['x.com'].type == 'gpu'", false},
      {"device.attributes['gpulet.io'].island >= 2", true},
      {"device.attributes['gpulet.io'].island < 2", false},
      {"device.attributes['gpu.nvidia.com'].ecc", true},
      {"device.attributes['gpu.nvidia.com'].ecc == false", false},
      {"device.attributes['gpu.nvidia.com'].none", false},
      {"!device.attributes['gpu.nvidia.com'].ecc", std::nullopt},
      {"device.allowMultipleAllocations", true},
      {"device.allowMultipleAllocations == true", true},
      {"device.allowMultipleAllocations == false", false},
      {"device.allowMultipleAllocations == 1", std::nullopt},
      {"device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0", true},
      {"device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('100Gi')) >= 0", false},
      {"device.capacity['gpu.nvidia.com'].none.compareTo(quantity('1Gi')) >= 0", false},
      {"device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('lots')) >= 0", std::nullopt},
      {"device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('1Gi')) >= 1", std::nullopt},
      {"device.attributes['gpu.nvidia.com'].type.startsWith('g')", std::nullopt},
      {"device.driver == 'a' || device.driver == 'b'", std::nullopt},
      {"device.driver = 'a'", std::nullopt},
      {"'x' in device.attributes", std::nullopt},
      {"device.attributes['gpu.nvidia.com", std::nullopt},
      {"==", std::nullopt},
      {"", std::nullopt},
  };
  for (const auto& one : cases)
    EXPECT_EQ(meets_condition(device, "gpu.nvidia.com", one.text), one.met) << one.text;
}

}  // namespace
}  // namespace gpulet::dra
