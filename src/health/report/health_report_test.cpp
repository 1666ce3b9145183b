#include "health/report/health_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "health/report/node_health.h"
#include "health/state/test_feed.h"

namespace gpulet::health {
namespace {

inventory::Snapshot reported_node() {
  auto snapshot = two_gpu_snapshot();
  for (auto& gpu : snapshot.gpus) gpu.model = "H100";
  for (auto& mig : snapshot.gpus[1].mig_devices) {
    mig.uuid = DeviceUuid("MIG-" + std::to_string(mig.index));
    mig.profile = "1g.10gb";
  }
  return snapshot;
}

// An hour after the machine's zero, the wall has 2025-11-21T08:00:00Z.
HealthView example_view(const HealthFeed& feed) {
  const WallTime wall = WallTime(seconds(1'763'712'000)) + (feed.now - Time(std::chrono::hours(1)));
  return health::build_health_view(feed.machine, feed.there, {feed.now, wall});
}

// A GPU that was reset after XID 95, one instance with XID 13 times many, a cordon.
HealthFeed busy() {
  HealthFeed feed({}, XidFilter("", ""), reported_node());
  feed.add_xid(kGpu, 95);
  feed.pass_time(seconds(9));
  feed.feed(kGpu, ResetDone{});
  feed.add_good_readings(kGpu);
  feed.feed(make_scope("GPU-1", 2, 0), OperatorCommand{OperatorAction::kCordon, "new \"riser\"\xff"});
  feed.pass_time(seconds(1));
  return feed;
}

TEST(HealthReport, HasStatusAndNextStep) {
  const auto feed = busy();
  const auto json = nlohmann::json::parse(format_report(example_view(feed)));
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["at"], "2025-11-21T08:00:11.000Z");
  ASSERT_EQ(json["devices"].size(), 5u);
  const auto& gpu = json["devices"][0];
  EXPECT_EQ(gpu["name"], "GPU 0 (GPU-0)");
  EXPECT_EQ(gpu["slot"], "0000:10:00.0");
  EXPECT_EQ(gpu["index"], 0);
  EXPECT_TRUE(gpu["migIndex"].is_null());
  EXPECT_EQ(gpu["state"], "recovering");
  EXPECT_EQ(gpu["offered"], false);
  EXPECT_EQ(gpu["since"], "2025-11-21T08:00:10.000Z");
  EXPECT_EQ(gpu["due"], "2025-11-21T08:00:33.000Z");
  const auto& fault = gpu["faults"][0];
  EXPECT_EQ(fault["class"], "xid-reset");
  EXPECT_EQ(fault["code"], 95);
  EXPECT_EQ(fault["opened"], "2025-11-21T08:00:01.000Z");
  EXPECT_EQ(fault["proved"], "2025-11-21T08:00:03.000Z") << "by the driver's word";
  EXPECT_EQ(gpu["absences"][0]["source"], "gpu-program");
  const auto& mig = json["devices"][4];
  EXPECT_EQ(mig["gpuInstance"], 2);
  EXPECT_EQ(mig["migIndex"], 2);
  EXPECT_EQ(mig["state"], "draining");
  EXPECT_EQ(mig["reason"], "cordoned: new \"riser\"\xEF\xBF\xBD");
  EXPECT_EQ(mig["next"], "Run gpulet uncordon MIG-2 when the work is done");
}

TEST(HealthReport, ParsesWhatItFormats) {
  const auto feed = busy();
  auto view = example_view(feed);
  view.devices[1].mig_pending = false;
  view.devices[1].excluded = "is excluded by the rule at x.yaml:3:5";
  view.devices[1].preflight = "unknown";
  view.devices[1].preflight_detail = "held by Pod default/trainer";
  const auto text = format_report(view);
  const auto back = parse_report(text);
  ASSERT_TRUE(back) << back.error().full_message();
  EXPECT_EQ(format_report(*back), text);
  ASSERT_EQ(back->devices.size(), view.devices.size());
  const auto& gpu = back->devices[0];
  EXPECT_EQ(gpu.scope, kGpu);
  EXPECT_EQ(gpu.status.reason, view.devices[0].status.reason);
  EXPECT_EQ(gpu.excluded, "");
  EXPECT_EQ(back->devices[1].excluded, view.devices[1].excluded);
  EXPECT_EQ(back->devices[1].preflight, "unknown");
  EXPECT_EQ(back->devices[1].preflight_detail, "held by Pod default/trainer");
  EXPECT_EQ(gpu.preflight, "");
  EXPECT_NE(text.find("\"offered\": false"), std::string::npos);
  EXPECT_EQ(back->at.now - gpu.status.since, view.at.now - view.devices[0].status.since);
  EXPECT_EQ(gpu.status.faults[0].fault_text(), view.devices[0].status.faults[0].fault_text());
  EXPECT_EQ(back->find(make_scope("GPU-1", 2, 0))->uuid.str(), "MIG-2");
}

TEST(HealthReport, HasADriverReleaseWhileThereIsOne) {
  auto view = example_view(busy());
  EXPECT_EQ(format_report(view).find("driverRelease"), std::string::npos);
  for (const bool closed : {false, true}) {
    view.release = {"driver \"upgrade\"", closed};
    const auto parsed = parse_report(format_report(view));
    ASSERT_TRUE(parsed) << parsed.error().full_message();
    EXPECT_EQ(parsed->release, view.release);
  }
  auto json = nlohmann::json::parse(format_report(view));
  json["driverRelease"]["closed"] = 1;
  EXPECT_EQ(parse_report(json.dump()).error().message(),
            "is not a gpulet health report: driverRelease.closed is not a boolean");
}

TEST(HealthReport, KeepsARemovedGpu) {
  auto feed = busy();
  feed.there.gpus.erase(feed.there.gpus.begin());
  feed.machine.apply_snapshot(feed.there, feed.now);
  const auto text = format_report(example_view(feed));
  const auto back = parse_report(text);
  ASSERT_TRUE(back) << back.error().full_message();
  EXPECT_EQ(format_report(*back), text);
  EXPECT_FALSE(back->devices.back().gpu_index);
}

// Every value of the text in the place of one of another kind, and every cut.
TEST(HealthReport, DamagedTextIsRefusedInOneLine) {
  const auto text = format_report(example_view(busy()));
  const auto good = nlohmann::ordered_json::parse(text);
  unsigned refused = 0;
  const auto flat = good.flatten();
  for (const auto& [place, value] : flat.items()) {
    for (const nlohmann::ordered_json& wrong :
         {nlohmann::ordered_json(-1), nlohmann::ordered_json("\n"), nlohmann::ordered_json::object()}) {
      auto damaged = good;
      damaged[nlohmann::ordered_json::json_pointer(place)] = wrong;
      const auto view = parse_report(damaged.dump());
      if (view) continue;  // not read, or as good as the one before
      ++refused;
      EXPECT_EQ(view.error().code(), Code::kInvalidArgument);
      EXPECT_EQ(view.error().message().find('\n'), std::string::npos) << view.error().message();
      EXPECT_LT(view.error().message().size(), 120u) << view.error().message();
    }
  }
  EXPECT_GT(refused, 200u);
  for (std::size_t size = 0; size + 2 < text.size(); size += 7) {
    EXPECT_FALSE(parse_report(text.substr(0, size))) << size;
  }
}

TEST(HealthReport, ErrorsHaveThePlace) {
  auto json = nlohmann::ordered_json::parse(format_report(example_view(busy())));
  const auto message = [](const nlohmann::ordered_json& text) {
    return parse_report(text.dump()).error().message();
  };
  auto damaged = json;
  damaged["devices"][4]["faults"][0]["class"] = "xid-1";
  EXPECT_EQ(message(damaged),
            "is not a gpulet health report: devices[4].faults[0].class has an unknown value");
  damaged = json;
  damaged["devices"][0].erase("since");
  EXPECT_EQ(message(damaged), "is not a gpulet health report: devices[0].since is not a string");
  damaged = json;
  damaged["version"] = 2;
  EXPECT_EQ(message(damaged), "has version 2, but this program reads version 1");
  EXPECT_EQ(message(nlohmann::ordered_json::array()),
            "is not a gpulet health report: the document is not an object");
  json["later"] = {1, 2};
  json["devices"][0]["later"] = "x";
  EXPECT_TRUE(parse_report(json.dump())) << "what a newer one adds is passed over";
}

TEST(HealthReport, ReadsAFile) {
  const std::string path = testing::TempDir() + "report_test.json";
  ASSERT_TRUE(write_file_atomic(path, format_report(example_view(busy()))));
  EXPECT_TRUE(read_report(path));
  ASSERT_TRUE(write_file_atomic(path, "{"));
  const auto damaged = read_report(path);
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().full_message(), path + ": is not valid JSON: truncated or damaged");
  EXPECT_EQ(read_report(path + ".none").error().code(), Code::kNotFound);
}

TEST(RecommendedAction, OfEveryClassNamesTheGpuWithoutPlaceholders) {
  DeviceView device;
  device.scope = make_scope("GPU-0");
  device.uuid = DeviceUuid("GPU-0");
  device.gpu_index = 3;
  for (const auto& rule : fault_rules()) {
    Fault fault;
    fault.fault_class = rule.fault_class;
    const auto text = recommended_action(fault, device);
    EXPECT_FALSE(text.empty()) << rule.name;
    EXPECT_EQ(text.find('{'), std::string::npos) << rule.name << ": " << text;
    EXPECT_NE(text.back(), '.') << rule.name;
    if (rule.condition == RecoveryCondition::kReset && rule.name != "xid-nvlink" && rule.name != "switch") {
      EXPECT_NE(text.find("-i 3"), std::string::npos) << rule.name << ": " << text;
    }
  }
}

TEST(RecommendedAction, OfSingleXids) {
  DeviceView device;
  device.scope = make_scope("GPU-0");
  const auto of = [&](FaultClass fault_class, std::uint64_t code) {
    Fault fault;
    fault.fault_class = fault_class;
    fault.code = code;
    return recommended_action(fault, device);
  };
  EXPECT_NE(of(FaultClass::kXidReset, 119).find("newer driver"), std::string::npos);
  EXPECT_EQ(of(FaultClass::kXidReset, 95).find("newer driver"), std::string::npos);
  EXPECT_NE(of(FaultClass::kXidReset, 95).find("-i GPU-0"), std::string::npos) << "it has no index";
  EXPECT_EQ(of(FaultClass::kXidSupport, 54), "Check its power cables");
  EXPECT_NE(of(FaultClass::kXidSupport, 78).find("Update"), std::string::npos);
}

TEST(RecommendedAction, OfAReleasedDriver) {
  HealthFeed feed({}, XidFilter("", ""), reported_node());
  feed.feed(kGpu, HandleReading{Reachability::kDriverAway, std::string(kDriverReleased) + ": riser"});
  EXPECT_NE(next_step(example_view(feed).devices[0]).find("gpulet driver acquire"), std::string::npos);
}

TEST(RecommendedAction, TheNextStepFollowsTheState) {
  HealthFeed feed;
  const auto next = [&] {
    const auto view = example_view(feed);
    return next_step(*view.find(kGpu));
  };
  EXPECT_EQ(next(), "");
  feed.add_xid(kGpu, 95);
  EXPECT_NE(next().find("--gpu-reset -i 0"), std::string::npos) << next();
  feed.pass_time(seconds(5));
  feed.feed(kGpu, ResetDone{});
  EXPECT_EQ(next(), "Nothing to do: it returns to service once its checks have passed");
}

TEST(FindDevice, ByIndexUuidOrPrefix) {
  const auto feed = busy();
  const auto view = example_view(feed);
  const auto found = [&](std::string_view name) -> std::string {
    const auto device = find_device(view, name);
    return device ? describe_device(**device) : device.error().full_message();
  };
  EXPECT_EQ(found("1"), "GPU 1 (GPU-1)");
  EXPECT_EQ(found("1:2"), "MIG 1:2 (MIG-2)");
  EXPECT_EQ(found("GPU-0"), "GPU 0 (GPU-0)");
  EXPECT_EQ(found("MIG-1"), "MIG 1:1 (MIG-1)");
  const std::string there = "; there are GPU 0 (GPU-0), GPU 1 (GPU-1)";
  for (const auto* name : {"2", "01", "1:", "1:3", "-1", "GPU", "GPU-2", "H100", ""}) {
    EXPECT_EQ(found(name), "there is no device '" + std::string(name) + "' on this node" + there);
  }
}

TEST(FindDevice, RefusesAnAmbiguousPrefix) {
  HealthView view;
  for (const auto* uuid : {"GPU-ab1", "GPU-ab", "GPU-cd"}) {
    DeviceView device;
    device.uuid = DeviceUuid(uuid);
    device.scope.gpu = device.uuid;
    view.devices.push_back(device);
  }
  EXPECT_EQ((*find_device(view, "GPU-c"))->uuid.str(), "GPU-cd");
  EXPECT_EQ((*find_device(view, "GPU-ab"))->uuid.str(), "GPU-ab")
      << "the whole of one, the beginning of another";
  EXPECT_EQ(find_device(view, "GPU-a").error().full_message(),
            "'GPU-a' is ambiguous; it matches GPU GPU-ab1, GPU GPU-ab");
  EXPECT_EQ(find_device(view, "GPU-").error().full_message(),
            "'GPU-' is ambiguous; it matches GPU GPU-ab1, GPU GPU-ab, GPU GPU-cd");
  EXPECT_EQ(find_device({}, "0").error().full_message(),
            "there is no device '0' on this node; there are none");
  EXPECT_TRUE(is_full_uuid("GPU-5a2f0c1d-0123-4567-89ab-cdef01234567"));
  EXPECT_TRUE(is_full_uuid("MIG-5A2f0c1d-0123-4567-89ab-cdef01234567"));
  EXPECT_FALSE(is_full_uuid("GPU-5a2f0c1d-0123-4567-89ab-cdef0123456"));
  EXPECT_FALSE(is_full_uuid("GPU-5a2f0c1d-0123-4567-89ab-cdef0123456 "));
  EXPECT_FALSE(is_full_uuid("XPU-5a2f0c1d-0123-4567-89ab-cdef01234567"));
}

}  // namespace
}  // namespace gpulet::health
