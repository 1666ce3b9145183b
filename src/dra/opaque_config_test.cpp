#include "dra/opaque_config.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include <nlohmann/json.hpp>

#include "dra/test_claims.h"

namespace gpulet::dra {
namespace {

using namespace test;
using nlohmann::json;

constexpr FeatureGates kNone{}, kAll{true, true};

std::string config_error(const json& config, const FeatureGates& gates = kAll) {
  const auto parsed = parse_device_config(config.dump(), gates);
  return parsed ? "" : parsed.error().full_message();
}

DeviceConfig parsed_config(const json& config, const FeatureGates& gates = kAll) {
  const auto parsed = parse_device_config(config.dump(), gates);
  EXPECT_TRUE(parsed) << parsed.error().full_message();
  return *parsed;
}

json mps(const json& settings) { return {{"strategy", "MPS"}, {"mpsConfig", settings}}; }

TEST(OpaqueConfig, FillsInDefaults) {
  EXPECT_EQ(parsed_config(gpu_config(), kNone), DeviceConfig(GpuConfig{}));
  EXPECT_EQ(parsed_config(gpu_config(), {true, false}), DeviceConfig(GpuConfig{TimeSlicing{}}));
  EXPECT_EQ(parsed_config(gpu_config(), {false, true}), DeviceConfig(GpuConfig{TimeSlicing{}}));
  EXPECT_EQ(parsed_config(gpu_config({{"strategy", "TimeSlicing"}})), DeviceConfig(GpuConfig{TimeSlicing{}}));
  EXPECT_EQ(parsed_config(gpu_config({{"strategy", "MPS"}})), DeviceConfig(GpuConfig{MpsSettings{}}));
  EXPECT_EQ(parsed_config(gpu_config({{"strategy", "TimeSlicing"}}, "MigDeviceConfig")),
            DeviceConfig(MigDeviceConfig{TimeSlicing{}}));
  EXPECT_EQ(parsed_config(gpu_config(nullptr, "VfioDeviceConfig")), DeviceConfig(VfioDeviceConfig{}));
}

TEST(OpaqueConfig, ReadsEveryField) {
  for (const auto interval : {TimeSliceInterval::kDefault, TimeSliceInterval::kShort,
                              TimeSliceInterval::kMedium, TimeSliceInterval::kLong}) {
    EXPECT_EQ(parsed_config(gpu_config(
                  {{"strategy", "TimeSlicing"}, {"timeSlicingConfig", {{"interval", enum_name(interval)}}}})),
              DeviceConfig(GpuConfig{TimeSlicing{interval}}));
  }
  EXPECT_EQ(
      parsed_config(gpu_config(mps({{"defaultActiveThreadPercentage", 50},
                                    {"defaultPinnedDeviceMemoryLimit", "10Gi"},
                                    {"defaultPerDevicePinnedMemoryLimit", {{"0", "1Mi"}, {"GPU-1", 2097152}}},
                                    {"multiUser", true}}))),
      DeviceConfig(GpuConfig{
          MpsSettings{50, mebibytes(10 * 1024), {{"0", mebibytes(1)}, {"GPU-1", mebibytes(2)}}, true}}));
  json vfio = gpu_config(nullptr, "VfioDeviceConfig");
  vfio["iommu"] = {{"backendPolicy", "PreferIommuFD"}, {"enableAPIDevice", true}};
  EXPECT_EQ(parsed_config(vfio), DeviceConfig(VfioDeviceConfig{true, true}));
  json channel = gpu_config(nullptr, "ComputeDomainChannelConfig");
  channel["domainID"] = "d";
  EXPECT_EQ(parsed_config(channel), DeviceConfig(ComputeDomainConfig{false, "d", false}));
  channel["allocationMode"] = "All";
  EXPECT_EQ(parsed_config(channel), DeviceConfig(ComputeDomainConfig{false, "d", true}));
  json daemon = gpu_config(nullptr, "ComputeDomainDaemonConfig");
  daemon["domainID"] = "d";
  EXPECT_EQ(parsed_config(daemon), DeviceConfig(ComputeDomainConfig{true, "d", false}));
}

TEST(OpaqueConfig, SaysWhatIsWrong) {
  const auto slicing = [](const json& settings) {
    return gpu_config({{"strategy", "TimeSlicing"}, {"timeSlicingConfig", settings}});
  };
  json extra = gpu_config();
  extra["sharng"] = 1;
  json domain = gpu_config(nullptr, "ComputeDomainChannelConfig");
  json mode = domain;
  mode["domainID"] = "d";
  mode["allocationMode"] = "Some";
  json vfio = gpu_config(nullptr, "VfioDeviceConfig");
  vfio["iommu"] = {{"backendPolicy", "Best"}};
  for (const auto& [config, message] : std::vector<std::tuple<json, std::string>>{
           {json::array(), "text: expected an object, found a list"},
           {json::object(), "apiVersion: required, not set"},
           {{{"apiVersion", "resource.nvidia.com/v1"}, {"kind", "GpuConfig"}},
            "apiVersion: expected \"resource.nvidia.com/v1beta1\", found \"resource.nvidia.com/v1\""},
           {{{"apiVersion", "resource.nvidia.com/v1beta1"}}, "kind: required, not set"},
           {gpu_config(nullptr, "GPUConfig"),
            "kind: unknown kind \"GPUConfig\", expected GpuConfig, MigDeviceConfig, VfioDeviceConfig, "
            "ComputeDomainChannelConfig or ComputeDomainDaemonConfig"},
           {extra, "sharng: unknown field \"sharng\", expected apiVersion, kind, sharing"},
           {gpu_config(json::object()), "sharing.strategy: required, not set"},
           {gpu_config({{"strategy", "Fabric"}}),
            "sharing.strategy: unknown GPU sharing strategy \"Fabric\", expected TimeSlicing or MPS"},
           {slicing({{"interval", "Forever"}}),
            "sharing.timeSlicingConfig.interval: unknown time-slice interval \"Forever\", expected Default, "
            "Short, Medium or Long"},
           {slicing({{"interval", 1}}), "sharing.timeSlicingConfig.interval: expected text, found 1"},
           {gpu_config({{"strategy", "TimeSlicing"}, {"mpsConfig", json::object()}}),
            "sharing.mpsConfig: cannot be used with the strategy TimeSlicing"},
           {gpu_config({{"strategy", "MPS"}, {"timeSlicingConfig", json::object()}}),
            "sharing.timeSlicingConfig: cannot be used with the strategy MPS"},
           {gpu_config({{"strategy", "MPS"}, {"timeSlicingConfig", json::object()}}, "MigDeviceConfig"),
            "sharing.timeSlicingConfig: unknown field \"timeSlicingConfig\", expected strategy, mpsConfig"},
           {gpu_config(mps({{"defaultActiveThreadPercentage", -1}})),
            "sharing.mpsConfig.defaultActiveThreadPercentage: active thread percentage must not be "
            "negative, found -1"},
           {gpu_config(mps({{"defaultActiveThreadPercentage", 101}})),
            "sharing.mpsConfig.defaultActiveThreadPercentage: active thread percentage must not be greater "
            "than 100, found 101"},
           {gpu_config(mps({{"defaultActiveThreadPercentage", 1.5}})),
            "sharing.mpsConfig.defaultActiveThreadPercentage: expected a whole number, found 1.5"},
           {gpu_config(mps({{"defaultPinnedDeviceMemoryLimit", "1Ki"}})),
            "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit: value set too low: expected at least 1Mi, "
            "found 1Ki"},
           {gpu_config(mps({{"defaultPinnedDeviceMemoryLimit", "lots"}})),
            "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit: expected a quantity such as 10Gi, found "
            "\"lots\""},
           {gpu_config(mps({{"defaultPerDevicePinnedMemoryLimit", {{"0", "1"}}}})),
            "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit.0: value set too low: expected at least "
            "1Mi, found 1"},
           {vfio,
            "iommu.backendPolicy: unknown backend policy \"Best\", expected LegacyOnly or PreferIommuFD"},
           {domain, "domainID: required, not set"},
           {mode, "allocationMode: unknown allocation mode \"Some\", expected Single or All"},
       }) {
    EXPECT_EQ(config_error(config), message);
  }
  EXPECT_EQ(config_error(gpu_config({{"strategy", "MPS"}}), kNone),
            "sharing.strategy: strategy MPS needs the feature gate MPSSupport, which is off");
  EXPECT_EQ(
      config_error(gpu_config({{"strategy", "TimeSlicing"}}), {false, true}),
      "sharing.strategy: strategy TimeSlicing needs the feature gate TimeSlicingSettings, which is off");
  EXPECT_FALSE(parse_device_config("{", kAll));
  EXPECT_FALSE(parse_device_config(std::string(kMaxParameterBytes + 1, ' '), kAll));
}

TEST(FeatureGatesText, IsReadAsNvidias) {
  const auto text_of = [](const char* text) {
    const auto gates = parse_feature_gates(text);
    if (!gates) return gates.error().message();
    return std::string(gates->mps_support ? "mps " : "") + (gates->time_slicing_settings ? "slices" : "");
  };
  EXPECT_EQ(text_of(""), "");
  EXPECT_EQ(text_of("MPSSupport=true"), "mps ");
  EXPECT_EQ(text_of("MPSSupport=true, TimeSlicingSettings=true,"), "mps slices");
  EXPECT_EQ(text_of("MPSSupport=true,MPSSupport=false"), "");
  EXPECT_EQ(text_of("MPSSupport"), "feature gate MPSSupport: expected true or false, found \"\"");
  EXPECT_EQ(text_of("DynamicMIG=true"),
            "unknown feature gate \"DynamicMIG\", expected MPSSupport or TimeSlicingSettings");
}

TEST(CheckSharing, RefusesWhatCannotBeApplied) {
  EXPECT_TRUE(check_sharing(std::monostate{}));
  EXPECT_TRUE(check_sharing(TimeSlicing{}));
  EXPECT_TRUE(check_sharing(MpsSettings{}));
  EXPECT_TRUE(check_sharing(MpsSettings{1, {}, {}, false}));
  EXPECT_FALSE(check_sharing(TimeSlicing{TimeSliceInterval::kShort}));
  EXPECT_FALSE(check_sharing(MpsSettings{0, {}, {}, false}));
}

json slicing_config(const char* interval, const char* kind = "GpuConfig") {
  return gpu_config({{"strategy", "TimeSlicing"}, {"timeSlicingConfig", {{"interval", interval}}}}, kind);
}

std::string resolved(const json& claim, std::vector<DeviceType> types) {
  const auto configs = resolve_configs(parsed(claim), types, kAll);
  if (!configs) return configs.error().full_message();
  std::string text;
  for (const auto& [config, entry] : *configs) {
    if (!text.empty()) text += ' ';
    const auto* gpu = std::get_if<GpuConfig>(&config);
    const auto* slicing = gpu == nullptr ? nullptr : std::get_if<TimeSlicing>(&gpu->sharing);
    text += slicing == nullptr ? kind_name(config) : enum_name(slicing->interval);
  }
  return text;
}

TEST(ResolveConfigs, TheLastOfTheClaimWins) {
  const std::vector<json> results = {result_json("gpu-0", "a"), result_json("gpu-1", "b/large")};
  const std::vector<DeviceType> gpus = {DeviceType::kGpu, DeviceType::kGpu};
  const auto config = [](const char* interval, std::vector<std::string> requests, const char* source) {
    return config_json(slicing_config(interval), requests, source);
  };
  EXPECT_EQ(resolved(claim_json(results), gpus), "Default Default");
  EXPECT_EQ(resolved(claim_json(results, {config("Short", {}, "FromClass")}), gpus), "Short Short");
  // The claim's configs come after the class's, wherever they are in the list.
  EXPECT_EQ(resolved(claim_json(results, {config("Long", {}, "FromClaim"), config("Short", {}, "FromClass")}),
                     gpus),
            "Long Long");
  EXPECT_EQ(resolved(claim_json(results, {config("Long", {}, "FromClaim"), config("Short", {}, "FromClaim")}),
                     gpus),
            "Short Short");
  EXPECT_EQ(
      resolved(claim_json(results, {config("Long", {"a"}, "FromClaim"), config("Short", {}, "FromClass")}),
               gpus),
      "Long Short");
  // By the main request, and by the whole name of the alternative.
  EXPECT_EQ(resolved(claim_json(results, {config("Long", {"b"}, "FromClaim")}), gpus), "Default Long");
  EXPECT_EQ(resolved(claim_json(results, {config("Long", {"b/large"}, "FromClaim")}), gpus), "Default Long");
  EXPECT_EQ(resolved(claim_json(results, {config("Long", {"b/small"}, "FromClaim")}), gpus),
            "Default Default");
}

TEST(ResolveConfigs, AConfigOfAnotherTypeIsPassedOverUnlessItNamesTheRequest) {
  const std::vector<json> results = {result_json("gpu-0", "a"), result_json("gpu-1-mig-1g10gb-19-0", "b")};
  const std::vector<DeviceType> types = {DeviceType::kGpu, DeviceType::kMig};
  EXPECT_EQ(resolved(claim_json(results, {config_json(slicing_config("Long"))}), types),
            "Long MigDeviceConfig");
  EXPECT_EQ(resolved(claim_json(results, {config_json(slicing_config("Long"), {"a", "b"})}), types),
            "status.allocation.devices.config[0]: a GpuConfig cannot be applied to the device "
            "\"gpu-1-mig-1g10gb-19-0\" of type mig of the request \"b\"");
}

TEST(ResolveConfigs, AKindThatNoDeviceTakesIsRefusedUnlessThereAreAlternatives) {
  json channel = gpu_config(nullptr, "ComputeDomainChannelConfig");
  channel["domainID"] = "d";
  const json vfio = gpu_config(nullptr, "VfioDeviceConfig");
  const std::string domain_refused =
      "status.allocation.devices.config[0]: a ComputeDomainChannelConfig cannot be applied to the device "
      "\"gpu-0\" of type gpu of the request \"a\": gpulet offers no channel of a ComputeDomain; expected "
      "GpuConfig or MigDeviceConfig";
  const std::string vfio_refused =
      "status.allocation.devices.config[0]: a VfioDeviceConfig cannot be applied to the device \"gpu-0\" of "
      "type gpu of the request \"a\": gpulet offers no GPU that is passed through to virtual machines; "
      "expected GpuConfig or MigDeviceConfig";
  struct Case {
    const char* request;
    json config;
    std::string resolved;
  };
  for (const auto& one : std::vector<Case>{
           {"a", config_json(channel), domain_refused},
           {"a", config_json(vfio), vfio_refused},
           {"a", config_json(vfio, {"a"}), vfio_refused},
           {"a", config_json(vfio, {"other"}), "Default"},
           {"a/gpu", config_json(vfio), "Default"},
           {"a/gpu", config_json(vfio, {"a/vfio"}), "Default"},
       }) {
    EXPECT_EQ(resolved(claim_json({result_json("gpu-0", one.request)}, {one.config}), {DeviceType::kGpu}),
              one.resolved)
        << one.request << " " << one.config;
  }
}

TEST(ResolveConfigs, EveryConfigMustParse) {
  const std::vector<json> results = {result_json("gpu-0", "a")};
  EXPECT_EQ(resolved(claim_json(results, {json{{"source", "FromClaim"}}}), {DeviceType::kGpu}),
            "status.allocation.devices.config[0]: only opaque parameters are supported by this driver");
  EXPECT_EQ(
      resolved(claim_json(results, {config_json(gpu_config(nullptr, "X"), {"other"})}), {DeviceType::kGpu})
          .substr(0, 58),
      "status.allocation.devices.config[0].opaque.parameters: kin");
}

TEST(PinnedMemoryLimits, ADeviceLimitOverridesTheDefault) {
  const std::vector<DeviceUuid> devices = {DeviceUuid("GPU-a"), DeviceUuid("GPU-b"), DeviceUuid("GPU-c")};
  MpsSettings settings{{}, mebibytes(5), {{"GPU-b", mebibytes(2)}, {"2", mebibytes(3)}}, false};
  EXPECT_EQ(*pinned_memory_limits(settings, devices),
            (std::map<DeviceUuid, Bytes>{
                {devices[0], mebibytes(5)}, {devices[1], mebibytes(2)}, {devices[2], mebibytes(3)}}));
  settings.pinned_memory_limit.reset();
  EXPECT_EQ(pinned_memory_limits(settings, devices)->size(), 2u);
  for (const char* const key : {"3", "-1", "GPU-d", ""}) {
    settings.device_pinned_memory_limits = {{key, mebibytes(1)}};
    const auto limits = pinned_memory_limits(settings, devices);
    ASSERT_FALSE(limits) << key;
    EXPECT_EQ(limits.error().message(), "defaultPerDevicePinnedMemoryLimit: unknown device \"" +
                                            std::string(key) +
                                            "\", expected a UUID or an index of the claim's 3 devices");
  }
}

// The reference: of the entries that match, the one with the greatest (source, position).
RC_GTEST_PROP(ResolveConfigs, IsTheGreatestMatch, ()) {
  const std::vector<const char*> intervals = {"Short", "Medium", "Long"};
  const auto count = *rc::gen::inRange<std::size_t>(0, 6);
  std::vector<json> configs;
  std::string expected = "Default";
  int best = -1;
  for (std::size_t i = 0; i < count; ++i) {
    const bool of_claim = *rc::gen::arbitrary<bool>();
    const auto requests =
        *rc::gen::elementOf(std::vector<std::vector<std::string>>{{}, {"a"}, {"b"}, {"b", "a"}});
    const char* interval = *rc::gen::elementOf(intervals);
    configs.push_back(config_json(slicing_config(interval), requests, of_claim ? "FromClaim" : "FromClass"));
    const bool matches = requests.empty() || requests.back() == "a";
    const int rank = (of_claim ? 100 : 0) + static_cast<int>(i);
    if (matches && rank > best) {
      best = rank;
      expected = interval;
    }
  }
  RC_ASSERT(resolved(claim_json({result_json("gpu-0", "a")}, configs), {DeviceType::kGpu}) == expected);
}

}  // namespace
}  // namespace gpulet::dra
