#include "config/partition_rules.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "config/load.h"
#include "config/test_sources.h"
#include "config/values.h"

namespace gpulet::config {
namespace {

constexpr const char* kUuid = "GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";

// A file with these rules, the first on line 3.
Sources rules(const std::string& lines, const std::string& before = "") {
  std::string content = before + "gpulet:\n  partition:\n";
  std::string line;
  for (const char c : lines + "\n") {
    line += c;
    if (c != '\n') continue;
    content += "  " + line;
    line.clear();
  }
  return file_source(content);
}

std::string only_error_of(const Sources& sources) {
  const auto checked = check_config(sources);
  if (checked.errors.empty()) return "no error";
  EXPECT_EQ(checked.errors.size(), 1u) << (checked.errors.size() > 1 ? checked.errors[1].full_message() : "");
  EXPECT_EQ(checked.errors[0].full_message().find('\n'), std::string::npos);
  return checked.errors[0].full_message();
}

std::vector<PartitionRule> good(const Sources& sources) {
  const auto loaded = load(sources);
  EXPECT_TRUE(loaded) << (loaded ? "" : loaded.error().full_message());
  return loaded ? loaded->config.gpulet.partition : std::vector<PartitionRule>{};
}

TEST(Partition, LoadsTheDocumentedExample) {
  const auto read = good(rules(R"(- devices: [0-3]
  model: "*H100*"
  nodeLabel: pool=inference
  whole: {}
- devices: [4, 5]
  timeSlicing: {replicas: 4, name: gpu.sliced, failRequestsGreaterThanOne: true}
- devices: [6]
  mps: {shares: [60, 40]}
- devices: [7]
  mig: {layout: all-balanced}
- devices: [8, )" + std::string(kUuid) +
                               R"(]
  mig: {devices: {1g.10gb: 7, 2g.20gb: 0}, strategy: single, name: slice}
- mps: {shares: [{memory: 60, threads: 40, name: big}, {memory: 30}], failRequestsGreaterThanOne: false}
- devices: 2
  nodeLabel: example.com/pool
  mps: {replicas: 4, name: quarter})"));
  ASSERT_EQ(read.size(), 7u);
  EXPECT_EQ(read[0].devices, GpuSelection(GpuRefs{{0, 3, {}}}));
  EXPECT_EQ(read[0].model, "*H100*");
  EXPECT_EQ(read[0].node_label, (NodeLabel{"pool", "inference"}));
  EXPECT_EQ(read[0].mode, (decltype(read[0].mode)(Whole{})));
  EXPECT_EQ(read[0].position, "x.yaml:3:5");
  EXPECT_EQ(read[1].devices, GpuSelection(GpuRefs{{4, 4, {}}, {5, 5, {}}}));
  EXPECT_EQ(std::get<TimeSlicing>(read[1].mode),
            (TimeSlicing{ResourceName("nvidia.com/gpu.sliced"), 4, true}));
  EXPECT_EQ(read[1].position, "x.yaml:7:5");
  EXPECT_EQ(std::get<Mps>(read[2].mode), (Mps{std::nullopt, 0, {{{60, 60}, {}}, {{40, 40}, {}}}, true}));
  EXPECT_EQ(std::get<Mig>(read[3].mode), (Mig{std::nullopt, "all-balanced", {}, MigStrategy::kMixed}));
  EXPECT_EQ(read[4].devices, GpuSelection(GpuRefs{{8, 8, {}}, {0, 0, DeviceUuid(kUuid)}}));
  EXPECT_EQ(
      std::get<Mig>(read[4].mode),
      (Mig{ResourceName("nvidia.com/slice"), "", {{"1g.10gb", 7}, {"2g.20gb", 0}}, MigStrategy::kSingle}));
  EXPECT_EQ(read[5].devices, GpuSelection(AllDevices{}));
  EXPECT_EQ(std::get<Mps>(read[5].mode),
            (Mps{std::nullopt, 0, {{{60, 40}, ResourceName("nvidia.com/big")}, {{30, 30}, {}}}, false}));
  EXPECT_EQ(read[6].devices, GpuSelection(DeviceCount{2}));
  EXPECT_EQ(read[6].node_label, (NodeLabel{"example.com/pool", std::nullopt}));
  EXPECT_EQ(std::get<Mps>(read[6].mode).replicas, 4u);
  EXPECT_TRUE(good(file_source("gpulet: {partition: }")).empty());
  EXPECT_EQ(good(rules("- whole:")).size(), 1u);  // no value means {}
}

TEST(Partition, SharesOnAllowsSeveralShares) {
  using placement::SharesOn;
  const auto read =
      good(rules("- {devices: 1, timeSlicing: {replicas: 4, sharesOn: oneGPU, name: a}}\n"
                 "- mps: {replicas: 4, sharesOn: differentGPUs, failRequestsGreaterThanOne: no}"));
  ASSERT_EQ(read.size(), 2u);
  const auto& slicing = std::get<TimeSlicing>(read[0].mode);
  EXPECT_EQ(slicing.shares_on, SharesOn::kOneGpu);
  const auto& mps = std::get<Mps>(read[1].mode);
  EXPECT_EQ(mps.shares_on, SharesOn::kDifferentGpus);
  EXPECT_FALSE(mps.fail_requests_greater_than_one);
  EXPECT_FALSE(std::get<Mps>(good(rules("- mps: {replicas: 4, sharesOn: oneGPU}"))[0].mode)
                   .fail_requests_greater_than_one);
  EXPECT_EQ(only_error_of(rules("- mps: {replicas: 4, sharesOn: two}")),
            "x.yaml:3:34: gpulet.partition[0].mps.sharesOn: expected oneGPU or differentGPUs, found \"two\"");
  EXPECT_EQ(only_error_of(
                rules("- timeSlicing: {replicas: 4, sharesOn: oneGPU, failRequestsGreaterThanOne: true}")),
            "x.yaml:3:42: gpulet.partition[0].timeSlicing.sharesOn: failRequestsGreaterThanOne is true: a "
            "container has one share");
  EXPECT_EQ(
      only_error_of(rules("- {devices: 1, timeSlicing: {replicas: 4, sharesOn: oneGPU}}\n"
                          "- timeSlicing: {replicas: 4}")),
      "x.yaml:4:5: gpulet.partition: nvidia.com/gpu.shared of timeSlicing with 4 replicas conflicts with "
      "timeSlicing with 4 replicas at x.yaml:3:5: set a name");
}

TEST(Partition, DocumentationExamplesAreValid) {
  const auto page = read_file("docs/partition.md");
  ASSERT_TRUE(page) << page.error().full_message();
  const std::string open = "```yaml\n";
  std::vector<PartitionRule> read;
  for (auto at = page->find(open); at != std::string::npos; at = page->find(open, at)) {
    at += open.size();
    const auto rules = good(file_source(page->substr(at, page->find("```", at) - at)));
    read.insert(read.end(), rules.begin(), rules.end());
  }
  ASSERT_EQ(read.size(), 7u);
  EXPECT_EQ(std::get<Mig>(read[3].mode).layout, "all-balanced");
  for (std::size_t i = 4; i < 7; ++i) EXPECT_TRUE(std::holds_alternative<Exclude>(read[i].mode));
}

TEST(Partition, RuleHasOneAction) {
  EXPECT_EQ(only_error_of(rules("- devices: [0]")),
            "x.yaml:3:5: gpulet.partition[0]: expected one of whole, timeSlicing, mps, mig, dynamicMig and "
            "exclude");
  EXPECT_EQ(only_error_of(rules("- whole: {}\n  mig: {layout: all}")),
            "x.yaml:4:5: gpulet.partition[0]: mig together with whole: a rule has exactly one of them");
  EXPECT_EQ(only_error_of(rules("- mps: {}")),
            "x.yaml:3:10: gpulet.partition[0].mps: expected one of replicas and shares");
  EXPECT_EQ(only_error_of(rules("- mps:")), "x.yaml:3:5: gpulet.partition[0].mps: no value");
  EXPECT_EQ(
      only_error_of(rules("- mps: {replicas: 2, shares: [50]}")),
      "x.yaml:3:10: gpulet.partition[0].mps: both replicas and shares are set; shares implies the number");
  EXPECT_EQ(only_error_of(rules("- mig: {}")),
            "x.yaml:3:10: gpulet.partition[0].mig: expected one of layout and devices");
  EXPECT_EQ(only_error_of(rules("- mig: {layout: a, devices: {1g.5gb: 1}}")),
            "x.yaml:3:10: gpulet.partition[0].mig: both layout and devices are set");
  EXPECT_EQ(only_error_of(rules("- timeSlicing: {}")),
            "x.yaml:3:18: gpulet.partition[0].timeSlicing: no replicas specified");
  EXPECT_EQ(only_error_of(rules("- whole: 3")),
            "x.yaml:3:12: gpulet.partition[0].whole: expected a mapping, found '3'");
  EXPECT_EQ(only_error_of(file_source("gpulet: {partition: {whole: {}}}")),
            "x.yaml:1:21: gpulet.partition: expected a list of rules, found a mapping");
  EXPECT_EQ(only_error_of(rules("- whole")),
            "x.yaml:3:5: gpulet.partition[0]: expected a rule, found 'whole'");
}

TEST(Partition, UnknownKeysSuggestTheNearest) {
  EXPECT_EQ(only_error_of(rules("- device: [0]\n  whole: {}")),
            "x.yaml:3:5: gpulet.partition[0]: unknown key 'device'; did you mean devices?");
  EXPECT_EQ(only_error_of(rules("- timeSlicing: {replicas: 2, rename: x}")),
            "x.yaml:3:32: gpulet.partition[0].timeSlicing: unknown key 'rename'; did you mean name?");
  EXPECT_EQ(only_error_of(rules("- mps: {share: [50], replicas: 2}")),
            "x.yaml:3:11: gpulet.partition[0].mps: unknown key 'share'; did you mean shares?");
  EXPECT_EQ(only_error_of(rules("- mps: {shares: [{memory: 50, thread: 5}]}")),
            "x.yaml:3:33: gpulet.partition[0].mps.shares[0]: unknown key 'thread'; did you mean threads?");
  EXPECT_EQ(only_error_of(file_source("gpulet: {partitions: []}")),
            "x.yaml:1:10: gpulet: unknown key 'partitions'; did you mean partition?");
  EXPECT_EQ(only_error_of(file_source("gpulet: {mig: {config: /x}}")).substr(0, 45),
            "x.yaml:1:16: gpulet.mig: unknown key 'config'");
}

TEST(Partition, ReplicasAndShares) {
  for (const auto* count : {"0", "1", "-3"}) {
    EXPECT_EQ(
        only_error_of(rules("- timeSlicing: {replicas: " + std::string(count) + "}")),
        "x.yaml:3:29: gpulet.partition[0].timeSlicing.replicas: number of replicas must be >= 2; found " +
            std::string(count));
  }
  for (const auto* count : {"0", "-3"}) {
    EXPECT_EQ(only_error_of(rules("- mps: {replicas: " + std::string(count) + "}")),
              "x.yaml:3:21: gpulet.partition[0].mps.replicas: number of replicas must be >= 1; found " +
                  std::string(count));
  }
  const auto one = good(rules("- mps: {replicas: 1, memoryLimit: false}"));
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(std::get<Mps>(one[0].mode).replicas, 1u);
  EXPECT_FALSE(std::get<Mps>(one[0].mode).memory_limit);
  EXPECT_TRUE(std::get<Mps>(good(rules("- mps: {replicas: 2}"))[0].mode).memory_limit);
  EXPECT_FALSE(std::get<Mps>(good(rules("- mps: {replicas: 2}"))[0].mode).sm_partitions);
  EXPECT_TRUE(std::get<Mps>(good(rules("- mps: {replicas: 2, smPartitions: true}"))[0].mode).sm_partitions);
  EXPECT_EQ(
      only_error_of(rules("- mps: {shares: [60], smPartitions: true}")),
      "x.yaml:3:39: gpulet.partition[0].mps.smPartitions: shares may differ, and SM partitions are equal: "
      "set replicas");
  for (const char* key : {"failRequestsGreaterThanOne: false", "sharesOn: oneGPU"}) {
    EXPECT_EQ(
        only_error_of(rules("- mps: {replicas: 2, " + std::string(key) + ", smPartitions: true}")),
        "x.yaml:3:" + std::to_string(40 + std::string(key).size()) +
            ": gpulet.partition[0].mps.smPartitions: a container has one SM partition, and so one share");
  }
  EXPECT_EQ(only_error_of(rules("- mps: {shares: [60], memoryLimit: false}")),
            "x.yaml:3:38: gpulet.partition[0].mps.memoryLimit: shares have their own memory");
  EXPECT_EQ(only_error_of(rules("- mps: {replicas: 49}")),
            "x.yaml:3:21: gpulet.partition[0].mps.replicas: MPS serves at most 48 clients on a GPU, not 49");
  EXPECT_EQ(only_error_of(rules("- mps: {shares: [60, 50]}")),
            "x.yaml:3:19: gpulet.partition[0].mps.shares: the memory of the shares adds up to 110 percent of "
            "a GPU; the maximum is 100");
  // Threads may be overcommitted: MPS divides them between clients that run at the same time.
  EXPECT_EQ(good(rules("- mps: {shares: [{memory: 60, threads: 100}, {memory: 40, threads: 100}]}")).size(),
            1u);
  for (const auto* share : {"101", "0", "fifty", "\"50\"", "{memory: 101}", "{memory: 50, threads: 101}",
                            "{memory: 50, threads: 0}", "{threads: 50}", "[50]"}) {
    const auto error = only_error_of(rules("- mps: {shares: [" + std::string(share) + "]}"));
    EXPECT_EQ(error.substr(0, 9), "x.yaml:3:") << error;
    EXPECT_NE(error.find("gpulet.partition[0].mps.shares[0]"), std::string::npos) << error;
  }
  EXPECT_EQ(
      only_error_of(rules("- mps: {shares: [101]}")),
      "x.yaml:3:20: gpulet.partition[0].mps.shares[0]: expected a percentage between 1 and 100, found '101'");
  EXPECT_EQ(only_error_of(rules("- mps: {shares: []}")),
            "x.yaml:3:19: gpulet.partition[0].mps.shares: an empty list of shares");
  EXPECT_EQ(only_error_of(rules("- mps: {shares: 60/40}")),
            "x.yaml:3:19: gpulet.partition[0].mps.shares: expected a list of percentages, found '60/40'");
}

TEST(Partition, Devices) {
  const auto error_of = [](const std::string& ref) {
    return only_error_of(rules("- devices: [" + ref + "]\n  whole: {}"));
  };
  const std::string at = "x.yaml:3:15: gpulet.partition[0].devices: ";
  for (const std::string ref : {"3-0", "0-", "-3", "a-b", "0-3-5", "0-1024", "1.5"}) {
    EXPECT_EQ(error_of(ref),
              at + "expected an index, a range such as 0-3, GPU-… or a PCI address, found '" + ref + "'");
  }
  EXPECT_EQ(error_of("\"\"").substr(0, at.size() + 17), at + "expected an index");
  for (const std::string ref : {"GPU-7", "GPU-", "GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1fg"}) {
    EXPECT_EQ(error_of(ref),
              at + "expected a UUID such as GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0, found '" + ref + "'");
  }
  for (const std::string ref : {"0000:1b:00", "0000:1b:20.0", "0000:1b:00.8", "1b:00.0", "0000:1b:00.0.0",
                                "000000000:1b:00.0", "0000:xx:00.0"}) {
    EXPECT_EQ(error_of(ref), at + "expected a PCI address such as 0000:1b:00.0, found '" + ref + "'");
  }
  EXPECT_EQ(only_error_of(rules("- devices: [0:1]\n  whole: {}")),
            "x.yaml:3:15: gpulet.partition[0].devices: a rule selects whole GPUs, not a MIG device: 0:1");
  EXPECT_EQ(only_error_of(rules("- devices: 0-3\n  whole: {}")),
            "x.yaml:3:14: gpulet.partition[0].devices: expected a list: [0-3]");
  EXPECT_EQ(only_error_of(rules("- devices: 0\n  whole: {}")),
            "x.yaml:3:14: gpulet.partition[0].devices: expected all, a count of GPUs (at least 1) or a list, "
            "found '0'");
  EXPECT_EQ(only_error_of(rules("- devices: []\n  whole: {}")),
            "x.yaml:3:14: gpulet.partition[0].devices: an empty list of devices; omit devices or list at "
            "least one");
  for (const auto* label : {"\"\"", "=x", "a b", "-a", "a=b=c", "Example.com/x", "a/", "a=-"}) {
    EXPECT_NE(
        only_error_of(rules("- nodeLabel: " + std::string(label) + "\n  whole: {}")).find("is not a label"),
        std::string::npos)
        << label;
  }
  EXPECT_EQ(parse_node_label("pool="), (NodeLabel{"pool", ""}));
}

TEST(Partition, ExcludeAndItsSelectors) {
  const auto read = good(rules("- devices: [7, \"0000:1b:00.0\", 00000001:C1:00.0]\n  exclude: true\n" +
                               std::string("- {model: NVIDIA-T400-4GB, exclude: yes}\n") +
                               "- {display: true, exclude: true}\n" + "- {display: false, whole: {}}"));
  ASSERT_EQ(read.size(), 4u);
  EXPECT_EQ(read[0].mode, (decltype(read[0].mode)(Exclude{})));
  EXPECT_EQ(read[0].devices, GpuSelection(GpuRefs{{7, 7, {}},
                                                  {0, 0, {}, inventory::PciAddress{0, 0x1b, 0, 0}},
                                                  {0, 0, {}, inventory::PciAddress{1, 0xc1, 0, 0}}}));
  EXPECT_EQ(read[1].model, "NVIDIA-T400-4GB");
  EXPECT_EQ(read[1].display, std::nullopt);
  EXPECT_EQ(read[2].display, true);
  EXPECT_EQ(read[3].display, false);

  EXPECT_EQ(only_error_of(rules("- exclude: false")),
            "x.yaml:3:14: gpulet.partition[0].exclude: expected true, found 'false'");
  EXPECT_EQ(only_error_of(rules("- exclude: {}")),
            "x.yaml:3:14: gpulet.partition[0].exclude: expected true or false, found a mapping");
  EXPECT_EQ(only_error_of(rules("- exclude:")), "x.yaml:3:5: gpulet.partition[0].exclude: no value");
  EXPECT_EQ(only_error_of(rules("- exclude: true\n  whole: {}")),
            "x.yaml:4:5: gpulet.partition[0]: whole together with exclude: a rule has exactly one of them");
  EXPECT_EQ(only_error_of(rules("- excluded: true\n  whole: {}")),
            "x.yaml:3:5: gpulet.partition[0]: unknown key 'excluded'; did you mean exclude?");
  EXPECT_EQ(only_error_of(rules("- display: primary\n  exclude: true")),
            "x.yaml:3:14: gpulet.partition[0].display: expected true or false, found 'primary'");
}

TEST(Partition, WhoOffersTheGpus) {
  const std::string enabled = "gpulet:\n  dra: {enabled: true}\n";
  const auto with_claims = [&](const std::string& rule) {
    return file_source(enabled + "  partition:\n    " + rule + "\n");
  };
  const auto offer = [&](const std::string& rule) {
    const auto read = good(with_claims(rule));
    return read.size() == 1 ? read[0].offer : std::nullopt;
  };
  EXPECT_EQ(offer("- {whole: {}, offer: claims}"), OfferSide::kClaims);
  EXPECT_EQ(offer("- {mig: {layout: all-balanced}, offer: claims}"), OfferSide::kClaims);
  EXPECT_EQ(offer("- {timeSlicing: {replicas: 2}, offer: devicePlugin}"), OfferSide::kDevicePlugin);
  EXPECT_EQ(offer("- {timeSlicing: {replicas: 2}}"), std::nullopt);
  EXPECT_EQ(good(rules("- {whole: {}, offer: devicePlugin}")).at(0).offer, OfferSide::kDevicePlugin);

  EXPECT_EQ(only_error_of(rules("- {whole: {}, offer: claims}")),
            "x.yaml:3:5: gpulet.partition: offer is claims while gpulet.dra.enabled is false; expected true");
  EXPECT_EQ(only_error_of(with_claims("- {whole: {}, offer: dra}")),
            "x.yaml:4:26: gpulet.partition[0].offer: expected claims or devicePlugin, found \"dra\"");
  EXPECT_EQ(
      only_error_of(with_claims("- {exclude: true, offer: claims}")),
      "x.yaml:4:30: gpulet.partition[0].offer: an excluded GPU is offered by nothing; expected no offer");
  for (const auto* mode : {"timeSlicing: {replicas: 2}", "mps: {replicas: 2}"}) {
    const auto error = only_error_of(with_claims(std::string("- {offer: claims, ") + mode + "}"));
    EXPECT_EQ(error,
              "x.yaml:4:15: gpulet.partition[0].offer: claims have whole GPUs and MIG devices; expected "
              "whole, mig or dynamicMig in the rule");
  }
}

TEST(Partition, LaterRulesMayIncludeExcludedGpus) {
  EXPECT_EQ(good(rules("- {devices: [1], exclude: true}\n- {devices: [0-3], whole: {}}")).size(), 2u);
  EXPECT_EQ(only_error_of(rules("- {devices: [0-3], whole: {}}\n- {devices: [1], exclude: true}")),
            "x.yaml:4:5: gpulet.partition: GPU 1 already has a rule at x.yaml:3:5");
  const std::string pci = "\"0000:1b:00.0\"";
  EXPECT_EQ(only_error_of(rules("- {devices: [" + pci + ", 00000000:1B:00.0], exclude: true}")),
            "x.yaml:3:5: gpulet.partition: GPU 0000:1b:00.0 is listed twice");
  EXPECT_EQ(good(rules("- {devices: [0, " + pci + "], exclude: true}")).size(), 1u) << "no index: unknown";
  EXPECT_TRUE(load(rules("- {display: true, exclude: true}\n- {whole: {}}"))->warnings.empty());
  EXPECT_EQ(load(rules("- {exclude: true}\n- {display: true, whole: {}}"))->warnings,
            std::vector<std::string>{"x.yaml:4:5: gpulet.partition: this rule can never apply: the rule at "
                                     "x.yaml:3:5 selects all its GPUs"});
}

TEST(Partition, MigProfiles) {
  for (const auto* profile : {"1g.10gb", "7g.80gb", "1g.10gb+me", "1g.24gb-me", "1g.24gb+gfx",
                              "2g.48gb+me.all", "1c.2g.20gb", "1c.3g.40gb+me", "1g.12gb+me,gfx"}) {
    EXPECT_TRUE(is_mig_profile_name(profile)) << profile;
  }
  for (const auto* profile : {"", "1g", "10gb", "1g10gb", "g.10gb", "1g.gb", "0g.10gb", "1g.10gb+",
                              "1g.10gb+xx", "1g.10gbme", "3c.2g.20gb", "c.2g.20gb", "1g.10GB", "1g.10gb ",
                              "1g.10gb+me,", "all-1g.10gb", "1g.-1gb", "99999g.1gb"}) {
    EXPECT_FALSE(is_mig_profile_name(profile)) << profile;
  }
  EXPECT_EQ(only_error_of(rules("- mig: {devices: {1g10gb: 7}}")),
            "x.yaml:3:21: gpulet.partition[0].mig.devices: '1g10gb' is not a MIG profile such as 1g.10gb, "
            "1g.10gb+me or 1c.2g.20gb");
  EXPECT_EQ(
      only_error_of(rules("- mig: {devices: {1g.10gb: -1}}")),
      "x.yaml:3:30: gpulet.partition[0].mig.devices.1g.10gb: expected a count of at most 64, found '-1'");
  EXPECT_EQ(only_error_of(rules("- mig: {devices: {1g.10gb: 0}}")),
            "x.yaml:3:20: gpulet.partition[0].mig.devices: no MIG device requested; expected at least one");
  EXPECT_EQ(only_error_of(rules("- mig: {devices: {1g.10gb: 2, 2g.20gb: 1}, strategy: single}")),
            "x.yaml:3:20: gpulet.partition[0].mig.devices: more than one profile for one resource; use "
            "strategy mixed without a name");
  EXPECT_EQ(
      only_error_of(rules("- mig: {layout: a, strategy: none}")),
      "x.yaml:3:32: gpulet.partition[0].mig.strategy: unknown MIG strategy: none (expected mixed or single)");
  EXPECT_EQ(only_error_of(rules("- mig: {layout: \"\"}")),
            "x.yaml:3:19: gpulet.partition[0].mig.layout: expected a layout name");
}

TEST(Partition, OverlapReportsBothPositions) {
  EXPECT_EQ(only_error_of(
                rules("- devices: [0-3]\n  whole: {}\n- devices: [5, 2-4]\n  timeSlicing: {replicas: 2}")),
            "x.yaml:5:5: gpulet.partition: GPU 2 already has a rule at x.yaml:3:5");
  const std::string uuid(kUuid);
  EXPECT_EQ(
      only_error_of(rules("- devices: [" + uuid + "]\n  whole: {}\n- devices: [" + uuid + "]\n  whole: {}")),
      "x.yaml:5:5: gpulet.partition: GPU " + uuid + " already has a rule at x.yaml:3:5");
  EXPECT_EQ(only_error_of(rules("- devices: [1, 0-3]\n  whole: {}")),
            "x.yaml:3:5: gpulet.partition: GPU 1 is listed twice");
  // The first rule wins if a condition, a count or a pattern distinguishes them.
  for (const auto* legal :
       {"- devices: [0]\n  model: \"*H100*\"\n  whole: {}\n- devices: [0]\n  whole: {name: b}",
        "- devices: [0]\n  nodeLabel: a=1\n  whole: {}\n- devices: [0]\n  nodeLabel: a=2\n  timeSlicing: "
        "{replicas: "
        "2, name: gpu}",
        "- devices: 2\n  whole: {}\n- devices: [0]\n  whole: {}",
        "- devices: [0]\n  whole: {}\n- whole: {name: b}"}) {
    EXPECT_EQ(good(rules(legal)).size(), 2u) << legal;
  }
  const auto shadowed = load(rules("- whole: {}\n- devices: [0]\n  whole: {}"));
  ASSERT_TRUE(shadowed);
  EXPECT_EQ(shadowed->warnings,
            std::vector<std::string>{"x.yaml:4:5: gpulet.partition: this rule can never apply: the rule at "
                                     "x.yaml:3:5 selects all its GPUs"});
}

TEST(Partition, ResourceNameIsUnambiguous) {
  const auto two = [](const std::string& a, const std::string& b, const std::string& before = "") {
    return rules("- devices: [0]\n  " + a + "\n- devices: [1]\n  " + b, before);
  };
  EXPECT_EQ(
      only_error_of(two("timeSlicing: {replicas: 2}", "timeSlicing: {replicas: 4}")),
      "x.yaml:5:5: gpulet.partition: nvidia.com/gpu.shared of timeSlicing with 4 replicas conflicts with "
      "timeSlicing with 2 replicas at x.yaml:3:5: set a name");
  EXPECT_EQ(only_error_of(two("mps: {replicas: 2}", "mps: {replicas: 2, smPartitions: true}")),
            "x.yaml:5:5: gpulet.partition: nvidia.com/gpu.shared of mps with 2 SM partitions conflicts with "
            "mps with 2 replicas at x.yaml:3:5: set a name");
  EXPECT_EQ(
      only_error_of(two("timeSlicing: {replicas: 2}", "mps: {shares: [50, 50]}")),
      "x.yaml:5:5: gpulet.partition: nvidia.com/gpu.shared of an mps share of 50 percent conflicts with "
      "timeSlicing with 2 replicas at x.yaml:3:5: set a name");
  EXPECT_EQ(only_error_of(two("whole: {}", "mig: {layout: a, strategy: single}")),
            "x.yaml:5:5: gpulet.partition: nvidia.com/gpu of MIG devices conflicts with whole GPUs at "
            "x.yaml:3:5: "
            "set a name");
  EXPECT_EQ(
      only_error_of(two("mig: {devices: {1g.5gb: 7}, name: s}", "mig: {devices: {2g.10gb: 3}, name: s}")),
      "x.yaml:5:5: gpulet.partition: nvidia.com/s of MIG devices conflicts with MIG devices at "
      "x.yaml:3:5: "
      "set a name");
  EXPECT_EQ(
      only_error_of(
          two("mps: {shares: [60, 40]}", "mps: {shares: [60, 20, 20], failRequestsGreaterThanOne: no}")),
      "x.yaml:5:5: gpulet.partition: nvidia.com/gpu.mps-60 of an mps share of 60 percent conflicts with "
      "an mps share of 60 percent at x.yaml:3:5: set a name");
  EXPECT_EQ(
      only_error_of(rules("- mps: {shares: [60, {memory: 40, name: gpu.mps-60}]}")),
      "x.yaml:3:5: gpulet.partition: nvidia.com/gpu.mps-60 of an mps share of 60 percent conflicts with an "
      "mps share of 40 percent at x.yaml:3:5: set a name");
  const std::string sharing =
      "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 8}]}}\n";
  EXPECT_EQ(
      only_error_of(two("whole: {}", "timeSlicing: {replicas: 2}", sharing)),
      "x.yaml:6:5: gpulet.partition: nvidia.com/gpu.shared of timeSlicing with 2 replicas conflicts with "
      "sharing.timeSlicing at x.yaml:1:10: set a name");
  // Two equal resources are one; if models name the GPUs, only the plan can decide.
  for (const auto& legal :
       {two("timeSlicing: {replicas: 2}", "timeSlicing: {replicas: 2}"),
        two("mps: {shares: [60, 40]}", "mps: {shares: [60, 20, 20]}"),
        two("timeSlicing: {replicas: 8}", "whole: {}", sharing),
        two("mig: {devices: {1g.5gb: 7}, name: s}", "mig: {devices: {1g.5gb: 2}, name: s}"),
        two("timeSlicing: {replicas: 2}", "timeSlicing: {replicas: 4}",
            "resources: {gpus: [{pattern: \"*T4\", name: t4}]}\n")}) {
    EXPECT_EQ(good(legal).size(), 2u);
  }
  const std::string longest(51, 'a');  // with nvidia.com/ one below the limit
  EXPECT_EQ(
      only_error_of(rules("- mps: {shares: [60, 40], name: " + longest + "}")),
      "x.yaml:3:5: gpulet.partition: nvidia.com/" + longest + "-60 is too long for a resource: set a name");
}

TEST(Partition, ComparisonIsBounded) {
  std::string many, list;
  for (int i = 0; i < 300; ++i) many += "- {devices: 1, whole: {}}\n";
  for (int i = 0; i < 5000; ++i) list += std::string(kUuid) + ", ";
  EXPECT_NE(only_error_of(rules(many)).find("more than 256 rules"), std::string::npos);
  EXPECT_NE(only_error_of(rules("- devices: [" + list + "0]\n  whole: {}")).find("4096 devices"),
            std::string::npos);
}

TEST(Partition, ManagerAndLayoutFiles) {
  const auto own = load({});
  EXPECT_TRUE(own->config.gpulet.mig.manage && own->config.gpulet.mps.manage);
  EXPECT_FALSE(own->config.gpulet.mig.drain);
  const auto drop_in = load(file_source("", true));
  EXPECT_FALSE(drop_in->config.gpulet.mig.manage || drop_in->config.gpulet.mps.manage);
  EXPECT_TRUE(load(file_source("gpulet: {mps: {manage: true}}", true))->config.gpulet.mps.manage);
  Sources sources;
  sources.environment = {{"MIG_PARTED_CONFIG_FILE", "/etc/mig.yaml"},
                         {"MIG_PARTED_HOOKS_FILE", "/etc/hooks.yaml"},
                         {"GPULET_MIG_DRAIN", "true"},
                         {"CONFIG_FILE_SRCDIR", "/available"},
                         {"NODE_LABEL", "example.com/config"},
                         {"DEFAULT_CONFIG", "a100"},
                         {"FALLBACK_STRATEGIES", "named,single"}};
  const auto loaded = load(sources);
  ASSERT_TRUE(loaded) << loaded.error().full_message();
  EXPECT_EQ(loaded->config.gpulet.mig, (MigSettings{true, "/etc/mig.yaml", "/etc/hooks.yaml", true}));
  EXPECT_EQ(loaded->config.node_config, (NodeConfig{"/available",
                                                    "example.com/config",
                                                    "a100",
                                                    {FallbackStrategy::kNamed, FallbackStrategy::kSingle}}));
  EXPECT_EQ(own->config.node_config.label, "nvidia.com/device-plugin.config");
  sources.environment["FALLBACK_STRATEGIES"] = "";  // as NVIDIA's chart sets it without fallback strategies
  EXPECT_TRUE(load(sources)->config.node_config.fallbacks.empty());
  sources.environment["FALLBACK_STRATEGIES"] = "first";
  EXPECT_EQ(only_error_of(sources),
            "env FALLBACK_STRATEGIES: invalid value: first (expected named, single or empty)");
}

TEST(Partition, RulesWithMpsNeedNoMpsRoot) {
  EXPECT_EQ(load(rules("- mps: {replicas: 2}"))->config.flags.mps_root, "/run/nvidia/mps");
  EXPECT_EQ(load(rules("- mps: {replicas: 2}", "flags: {mpsRoot: /mine}\n"))->config.flags.mps_root, "/mine");
  EXPECT_EQ(load(rules("- whole: {}"))->config.flags.mps_root, "");
}

}  // namespace
}  // namespace gpulet::config
