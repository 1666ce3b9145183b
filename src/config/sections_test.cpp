#include "config/sections.h"

#include <gtest/gtest.h>

#include "config/load.h"
#include "config/test_sources.h"

namespace gpulet::config {
namespace {

Sharing time_slicing(const std::string& rest) {
  const auto loaded = load(file_source("sharing:\n  timeSlicing:\n" + rest));
  EXPECT_TRUE(loaded) << loaded.error().full_message();
  return loaded ? loaded->config.sharing : Sharing{};
}

// One time-sliced resource with these fields, which begin at 1:39.
std::string resource_error(const std::string& fields) {
  return load_error("sharing: {timeSlicing: {resources: [{" + fields + "}]}}");
}
constexpr const char* kField = "sharing.timeSlicing.resources[0]";

TEST(Sharing, TimeSlicingDefaults) {
  const auto sharing = time_slicing("    resources:\n    - name: gpu\n      replicas: 4\n");
  EXPECT_EQ(sharing.strategy, SharingStrategy::kTimeSlicing);
  EXPECT_FALSE(sharing.fail_requests_greater_than_one);
  ASSERT_EQ(sharing.resources.size(), 1u);
  EXPECT_EQ(sharing.resources[0].name.str(), "nvidia.com/gpu");
  EXPECT_FALSE(sharing.resources[0].rename);
  EXPECT_TRUE(std::holds_alternative<AllDevices>(sharing.resources[0].devices));
  EXPECT_EQ(sharing.resources[0].replicas, 4u);
  EXPECT_EQ(time_slicing("    resources:\n    - name: gpu\n      replicas: 4.0\n").resources[0].replicas, 4u);
}

TEST(Sharing, MpsDefaultsAndRequirements) {
  const std::string mps = "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}\n";
  auto sources = file_source(mps);
  sources.environment["MPS_ROOT"] = "/run/nvidia/mps";
  auto loaded = load(sources);
  ASSERT_TRUE(loaded) << loaded.error().full_message();
  EXPECT_EQ(loaded->config.sharing.strategy, SharingStrategy::kMps);
  EXPECT_TRUE(loaded->config.sharing.fail_requests_greater_than_one);
  sources.environment["MIG_STRATEGY"] = "mixed";
  EXPECT_TRUE(load(sources));
  sources.drop_in = true;
  EXPECT_EQ(
      load(sources).error().full_message(),
      "x.yaml:1:10: sharing.mps: using --mig-strategy=mixed is not supported with MPS (env MIG_STRATEGY)");
  EXPECT_EQ(load_error(mps), "x.yaml:1:10: sharing.mps: using MPS requires --mps-root to be specified");
  const auto relaxed =
      load(file_source("flags: {mpsRoot: /m}\nsharing: {mps: {failRequestsGreaterThanOne: false, resources: "
                       "[{name: gpu, replicas: 2}]}}\n"));
  ASSERT_TRUE(relaxed);
  EXPECT_FALSE(relaxed->config.sharing.fail_requests_greater_than_one);
}

TEST(Sharing, MpsWinsIfBothAreGiven) {
  const auto loaded = load(
      file_source("flags: {mpsRoot: /m}\nsharing:\n  timeSlicing: {resources: [{name: gpu, replicas: 2}]}\n"
                  "  mps: {resources: [{name: gpu, replicas: 3}]}\n"));
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->config.sharing.strategy, SharingStrategy::kMps);
  EXPECT_EQ(loaded->config.sharing.resources[0].replicas, 3u);
  ASSERT_EQ(loaded->warnings.size(), 1u);
  EXPECT_NE(loaded->warnings[0].find("both timeSlicing and mps"), std::string::npos);
}

TEST(Sharing, RenameAndRenameByDefault) {
  auto sharing = time_slicing(
      "    renameByDefault: true\n    failRequestsGreaterThanOne: true\n    resources:\n    - {name: gpu, "
      "replicas: 2}\n"
      "    - {name: mig-1g.5gb, rename: tiny, replicas: 2}\n");
  EXPECT_TRUE(sharing.fail_requests_greater_than_one);
  EXPECT_EQ(sharing.resources[0].rename->str(), "nvidia.com/gpu.shared");
  EXPECT_EQ(sharing.resources[1].rename->str(), "nvidia.com/tiny");
  EXPECT_NE(load_error("sharing: {timeSlicing: {renameByDefault: true, resources: [{name: " +
                       std::string(50, 'a') + ", replicas: 2}]}}")
                .find("renameByDefault: fully-qualified resource name must be 63"),
            std::string::npos);
}

TEST(Sharing, DevicesAreAllOrACountOrAList) {
  const auto devices = [](const std::string& text) {
    return time_slicing("    resources: [{name: gpu, replicas: 2, devices: " + text + "}]\n")
        .resources.at(0)
        .devices;
  };
  EXPECT_TRUE(std::holds_alternative<AllDevices>(devices("all")));
  EXPECT_EQ(std::get<DeviceCount>(devices("3")).count, 3u);
  EXPECT_EQ(std::get<DeviceRefs>(devices("[0, \"0:1\", GPU-b1028956-cfa2-0990-bf4a-5da9abb51763, "
                                         "MIG-b1028956-cfa2-0990-bf4a-5da9abb51763, "
                                         "MIG-GPU-b1028956-cfa2-0990-bf4a-5da9abb51763/3/0]")),
            (DeviceRefs{"0", "0:1", "GPU-b1028956-cfa2-0990-bf4a-5da9abb51763",
                        "MIG-b1028956-cfa2-0990-bf4a-5da9abb51763",
                        "MIG-GPU-b1028956-cfa2-0990-bf4a-5da9abb51763/3/0"}));
}

// NVIDIA's rules with NVIDIA's error texts, each with its position.
TEST(Sharing, Errors) {
  const std::string prefix = "x.yaml:1:37: " + std::string(kField);
  EXPECT_EQ(load_error("sharing: {timeSlicing: {}}"),
            "x.yaml:1:24: sharing.timeSlicing: no resources specified: give at least one with name and "
            "replicas, or "
            "leave sharing.timeSlicing out");
  EXPECT_NE(load_error("sharing: {mps: {resources: []}}").find("sharing.mps: no resources specified"),
            std::string::npos);
  EXPECT_EQ(resource_error("replicas: 2"), prefix + ": no resource name specified");
  EXPECT_EQ(resource_error("name: gpu"), prefix + ": no replicas specified");
  const std::pair<const char*, const char*> replicas[] = {
      {"1", "number of replicas must be >= 2; found 1"},
      {"0", "number of replicas must be >= 2; found 0"},
      {"-3", "number of replicas must be >= 2; found -3"},
      {"5000", "number of replicas must be <= 4096; found 5000"},
      {"two", "expected a whole number, found 'two'"},
      {"\"2\"", "expected a whole number, found the quoted string '2'"},
      {"[2]", "expected a whole number, found a list"}};
  for (const auto& [value, message] : replicas) {
    EXPECT_EQ(resource_error("name: gpu, replicas: " + std::string(value)),
              "x.yaml:1:59: " + std::string(kField) + ".replicas: " + message);
  }
  const std::pair<const char*, const char*> devices[] = {
      {"some", "devices set as 'some' but the only valid string input is 'all'"},
      {"\"3\"", "devices set as '3' but the only valid string input is 'all'"},
      {"0", "devices set as '0' but a count of devices must be > 0"},
      {"-1", "devices set as '-1' but a count of devices must be > 0"},
      {"{a: 1}", "unrecognized type for devices spec: expected all, a count or a list, found a mapping"},
      {"[]", "an empty list of devices; omit devices or list at least one"}};
  for (const auto& [value, message] : devices) {
    EXPECT_EQ(resource_error("name: gpu, replicas: 2, devices: " + std::string(value)),
              "x.yaml:1:71: " + std::string(kField) + ".devices: " + message);
  }
  for (const auto* reference : {"GPU-1", "x", "0:1:2", "-1", "MIG-GPU-b1028956-cfa2-0990-bf4a-5da9abb51763/3",
                                "\"\"", "[0]", "MIG-xyz"}) {
    EXPECT_NE(resource_error("name: gpu, replicas: 2, devices: [" + std::string(reference) + "]")
                  .find("unsupported type for device in devices list"),
              std::string::npos)
        << reference;
  }
  EXPECT_NE(resource_error("name: foo.com/gpu, replicas: 2")
                .find("incorrect format for resource name 'nvidia.com/foo.com/gpu'"),
            std::string::npos);
  EXPECT_NE(resource_error("name: gpu, rename: A, replicas: 2").find("resources[0].rename: incorrect format"),
            std::string::npos);
  EXPECT_EQ(resource_error("name: gpu, replica: 2, replicas: 2"),
            "x.yaml:1:49: " + std::string(kField) + ": unknown key 'replica'; did you mean replicas?");
}

TEST(Resources, PatternsMatchInOrderBeforeTheDefault) {
  const auto loaded = load(file_source(
      "resources:\n  gpus:\n  - {pattern: \"*A100*\", name: a100}\n  - {pattern: T4, name: nvidia.com/t4}\n"
      "  mig:\n  - {pattern: 1g.5gb, name: mig-small}\n"));
  ASSERT_TRUE(loaded) << loaded.error().full_message();
  const auto& gpus = loaded->config.gpu_resources;
  ASSERT_EQ(gpus.size(), 3u);
  EXPECT_EQ(gpus[0].pattern, "*A100*");
  EXPECT_EQ(gpus[0].name.str(), "nvidia.com/a100");
  EXPECT_EQ(gpus[1].name.str(), "nvidia.com/t4");
  EXPECT_EQ(gpus[2].pattern, "*");
  ASSERT_EQ(loaded->config.mig_resources.size(), 1u);
  EXPECT_EQ(loaded->config.mig_resources[0].name.str(), "nvidia.com/mig-small");
}

TEST(Resources, Errors) {
  EXPECT_EQ(load_error("resources: {gpus: [{name: a}]}"),
            "x.yaml:1:20: resources.gpus[0]: resources must have a 'pattern' field set");
  EXPECT_EQ(load_error("resources: {mig: [{pattern: a}]}"),
            "x.yaml:1:19: resources.mig[0]: resources must have a 'name' field set");
  EXPECT_EQ(load_error("resources: {gpus: {}}"),
            "x.yaml:1:19: resources.gpus: expected a list, found a mapping");
  EXPECT_EQ(load_error("resources: {gpu: []}"),
            "x.yaml:1:13: resources: unknown key 'gpu'; did you mean gpus?");
  EXPECT_NE(
      load_error("resources: {gpus: [{pattern: a, name: A/b}]}").find("incorrect format for resource name"),
      std::string::npos);
}

}  // namespace
}  // namespace gpulet::config
