#include "health/judge.h"

#include <gtest/gtest.h>

namespace gpulet::health {
namespace {

using inventory::Snapshot;

// GPU-0 whole; GPU-1 with GI 1 (CI 0 and 1) and GI 2 (CI 0).
Snapshot node() {
  Snapshot snapshot;
  for (unsigned i = 0; i < 2; ++i) {
    inventory::Gpu gpu;
    gpu.index = i;
    gpu.uuid = DeviceUuid("GPU-" + std::to_string(i));
    snapshot.gpus.push_back(gpu);
  }
  auto& cut = snapshot.gpus[1];
  cut.mig_enabled = true;
  const std::pair<unsigned, unsigned> instances[] = {{1, 0}, {1, 1}, {2, 0}};
  for (const auto& [gi, ci] : instances) {
    inventory::MigDevice mig;
    mig.index = static_cast<unsigned>(cut.mig_devices.size());
    mig.gpu_instance = gi;
    mig.compute_instance = ci;
    cut.mig_devices.push_back(mig);
  }
  return snapshot;
}

// '.' healthy, 'x' not: GPU-0, GPU-1, then its three MIG devices.
std::string picture(const Judge& judge, Snapshot snapshot = node()) {
  const auto judged = judge.judge(std::move(snapshot));
  std::string out;
  for (const auto& gpu : judged.gpus) out += gpu.health.healthy ? '.' : 'x';
  for (const auto& mig : judged.gpus[1].mig_devices) out += mig.health.healthy ? '.' : 'x';
  return out;
}

XidEvent event(const std::string& gpu, std::uint64_t xid, std::uint32_t gi = kNoInstance,
               std::uint32_t ci = kNoInstance) {
  return {DeviceUuid(gpu), xid, gi, ci};
}
Judge judge() { return Judge(XidFilter("", "")); }

TEST(XidFilter, Table) {
  struct Row {
    const char *disable, *enable;
    std::vector<std::uint64_t> ignored, seen;
    bool off = false;
  };
  const Row rows[] = {
      {"", "", {13, 31, 43, 45, 68, 109}, {48, 79, 94, 95, 999}},
      {"94, 95", "", {13, 94, 95}, {79}},
      {" 94 ,,95,", "", {94, 95}, {79}},
      {"all", "", {13, 79, 94}, {}, true},
      {"XIDS", "", {13, 79, 94}, {}, true},
      {" All ", "", {79}, {}, true},
      {"", "109", {13}, {109, 79}},
      {"94", "94", {13}, {94, 79}},
      {"", "all", {}, {13, 31, 109, 79}},
      {"all", "all", {}, {13, 79}},
      {"94", "xids", {}, {94, 13}},
      // What NVIDIA's comment promises: only the enabled ones are checked.
      {"all", "79,48", {13, 94, 95}, {79, 48}},
      // A token must be the XID: 7 is no part of 79.
      {"7", "", {7}, {79}},
  };
  for (const auto& row : rows) {
    const XidFilter filter(row.disable, row.enable);
    for (const auto xid : row.ignored)
      EXPECT_TRUE(filter.ignored(xid)) << row.disable << "|" << row.enable << " " << xid;
    for (const auto xid : row.seen)
      EXPECT_FALSE(filter.ignored(xid)) << row.disable << "|" << row.enable << " " << xid;
    EXPECT_EQ(filter.off(), row.off) << row.disable << "|" << row.enable;
    EXPECT_TRUE(filter.warnings().empty()) << row.disable << "|" << row.enable;
  }
}

TEST(XidFilter, TellsOfTokensThatAreNothing) {
  const XidFilter filter("94,xid 95,-1", "everything");
  EXPECT_TRUE(filter.ignored(94));
  EXPECT_FALSE(filter.ignored(95));
  EXPECT_EQ(
      filter.warnings(),
      (std::vector<std::string>{
          "DP_DISABLE_HEALTHCHECKS: 'xid 95' is neither an XID's number nor all or xids: it is passed over",
          "DP_DISABLE_HEALTHCHECKS: '-1' is neither an XID's number nor all or xids: it is passed over",
          "DP_ENABLE_HEALTHCHECKS: 'everything' is neither an XID's number nor all or xids: it is passed "
          "over"}));
}

TEST(Judge, MarksWhatTheEventNames) {
  struct Row {
    XidEvent event;
    const char* picture;
  };
  const Row rows[] = {
      {event("GPU-0", 79), "x...."},
      {event("GPU-1", 79), ".xxxx"},        // without an instance: the GPU and all of its MIG devices
      {event("GPU-1", 94, 1), "..xx."},     // a GPU instance: all of its compute instances
      {event("GPU-1", 94, 1, 1), "...x."},  // one compute instance
      {event("GPU-1", 94, 2, 0), "....x"},
      {event("GPU-1", 94, kNoInstance, 0), ".xxxx"},
      {event("GPU-1", 94, 7, 0), "....."},  // an instance that is gone
      {event("GPU-0", 94, 1, 0), "x...."},  // an instance of a GPU that is not cut up
      {event("GPU-9", 79), "....."},
      {event("GPU-0", 31), "....."},  // an application's fault
  };
  for (const auto& row : rows) {
    auto made = judge();
    EXPECT_EQ(made.on_xid(row.event), row.event.xid != 31);
    EXPECT_EQ(picture(made), row.picture) << row.event.gpu << " " << row.event.gpu_instance;
  }
}

TEST(Judge, TheReasonNamesTheXid) {
  auto made = judge();
  made.on_xid(event("GPU-0", 79));
  made.on_xid(event("GPU-1", 94, 1, 1));
  const auto judged = made.judge(node());
  EXPECT_EQ(judged.gpus[0].health.reason, "XID 79: GPU has fallen off the bus");
  EXPECT_EQ(judged.gpus[1].mig_devices[1].health.reason, "XID 94: contained memory error");
  EXPECT_EQ(judged.gpus[1].mig_devices[0].health.reason, "");
}

TEST(Judge, SaysWhetherAJudgementChanged) {
  auto made = judge();
  EXPECT_TRUE(made.on_xid(event("GPU-1", 94, 1, 1)));
  EXPECT_FALSE(made.on_xid(event("GPU-1", 95, 1, 1)));
  EXPECT_TRUE(made.on_xid(event("GPU-1", 95, 1)));
  EXPECT_FALSE(made.on_xid(event("GPU-1", 95, 1, 0)));
  EXPECT_TRUE(made.on_xid(event("GPU-1", 79)));
  EXPECT_FALSE(made.on_xid(event("GPU-1", 79)));
  EXPECT_FALSE(made.on_xid(event("GPU-1", 95, 2)));
  EXPECT_FALSE(made.on_xid(event("GPU-0", 13)));
}

TEST(Judge, OnlyAProbeThatProvesItWellClears) {
  auto made = judge();
  made.on_xid(event("GPU-0", 79));
  made.on_xid(event("GPU-1", 94, 1, 1));
  made.on_xid(event("GPU-1", 94, 2));
  EXPECT_EQ(made.to_probe(), (std::vector{DeviceUuid("GPU-0"), DeviceUuid("GPU-1")}));
  EXPECT_FALSE(made.on_probe({DeviceUuid("GPU-0"), false, std::nullopt}));
  EXPECT_FALSE(made.on_probe({DeviceUuid("GPU-0"), true, 1}));
  EXPECT_FALSE(made.on_probe({DeviceUuid("GPU-7"), true, 0}));
  EXPECT_EQ(picture(made), "x..xx");
  EXPECT_TRUE(made.on_probe({DeviceUuid("GPU-0"), true, 0}));
  EXPECT_EQ(picture(made), "...xx");
  EXPECT_TRUE(made.on_probe({DeviceUuid("GPU-1"), true, std::nullopt}));
  EXPECT_EQ(picture(made), ".....");
  EXPECT_TRUE(made.to_probe().empty());
  EXPECT_FALSE(made.on_probe({DeviceUuid("GPU-1"), true, 0}));
}

TEST(Judge, UnreadableGpusAreUnhealthyWithTheirParts) {
  auto snapshot = node();
  snapshot.gpus[1].unreadable = Error(Code::kDeviceLost, "GPU is lost");
  const auto judged = judge().judge(snapshot);
  EXPECT_EQ(judged.gpus[1].health.reason, "cannot be read: GPU is lost");
  EXPECT_EQ(judged.gpus[1].mig_devices[2].health.reason, "cannot be read: GPU is lost");
  EXPECT_EQ(picture(judge(), snapshot), ".xxxx");
  // Readable again, the next reading judges it well: only an event leaves a mark.
  snapshot = judged;
  snapshot.gpus[1].unreadable.reset();
  EXPECT_EQ(picture(judge(), snapshot), ".....");
}

TEST(Judge, ANewFilterCountsFromTheNextEvent) {
  auto made = judge();
  made.on_xid(event("GPU-0", 94));
  made.set_filter(XidFilter("all", ""));
  EXPECT_FALSE(made.on_xid(event("GPU-1", 79)));
  EXPECT_EQ(picture(made), "x....");
}

}  // namespace
}  // namespace gpulet::health
