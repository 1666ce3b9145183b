#include "health/machine.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/text.h"
#include "health/test_feed.h"

namespace gpulet::health {
namespace {

struct TableRow {
  std::uint64_t code = 0;
  std::string listed, action, xid_class;
};
std::vector<TableRow> catalogue() {
  std::vector<TableRow> rows;
  for (const auto& line : text::split(read_file("src/health/xids.tsv").value_or(""), '\n')) {
    const auto cells = text::split(line, '\t');
    if (cells.size() != 7) continue;
    const auto code = text::parse_unsigned(cells[0]);
    if (code) rows.push_back({*code, cells[3], cells[4], cells[5]});
  }
  return rows;
}

// What NVIDIA's action makes of a GPU. An XID of NVLink 5, or 159, is the driver's to tell.
State truth(const TableRow& row) {
  if (row.action == "RESTART_BM") return State::kLost;
  for (const auto* away : {"RESET_GPU", "RESTART_VM", "WORKFLOW_XID_48", "WORKFLOW_NVLINK_ERR"}) {
    if (row.action == away) return State::kQuarantined;
  }
  for (const auto* flag : {"CHECK_MECHANICALS", "UPDATE_SWFW", "CONTACT_SUPPORT"}) {
    if (row.action == flag) return State::kDegraded;
  }
  const bool unsure = row.xid_class == "unclassified" || row.xid_class == "support";
  return unsure ? State::kDegraded : State::kHealthy;
}

TEST(Catalogue, EveryCodeDoesToEachGpuWhatNvidiaSays) {
  const auto rows = catalogue();
  ASSERT_EQ(rows.size(), xids().size());
  const std::pair<const char*, const char*> architectures[] = {{"ampere", "NVIDIA A100"},
                                                               {"hopper", "NVIDIA H100"},
                                                               {"blackwell", "NVIDIA B200"},
                                                               {"blackwell", "NVIDIA GB200"}};
  unsigned right = 0, wrongly = 0, missed = 0;
  for (std::size_t architecture = 0; architecture < std::size(architectures); ++architecture) {
    for (const auto& row : rows) {
      if (row.listed[architecture] != '1') continue;
      auto snapshot = node();
      snapshot.gpus[0].architecture = architectures[architecture].first;
      snapshot.gpus[0].model = architectures[architecture].second;
      Feed feed({}, XidFilter("", ""), snapshot);
      feed.xid(kGpu, row.code);
      const auto state = feed.state(kGpu);
      EXPECT_EQ(name(state), name(truth(row))) << row.code << " on " << architectures[architecture].second;
      EXPECT_EQ(feed.state(kCut), State::kHealthy) << row.code;
      const bool away = !offered(state), should = !offered(truth(row));
      right += away && should;
      wrongly += away && !should;
      missed += !away && should;
    }
  }
  const double precision = static_cast<double>(right) / (right + wrongly);
  const double recall = static_cast<double>(right) / (right + missed);
  RecordProperty("precision", std::to_string(precision));
  RecordProperty("recall", std::to_string(recall));
  std::printf("GPUs withdrawn: precision %.3f, recall %.3f over %u\n", precision, recall,
              right + wrongly + missed);
  EXPECT_EQ(precision, 1.0);
  EXPECT_EQ(recall, 1.0);
  EXPECT_GT(right, 50u);
}

TEST(Catalogue, WhatIsNotInItWithdrawsAndComesBackByItsChecks) {
  Feed feed;
  feed.xid(kGpu, 999);
  EXPECT_EQ(feed.state(kGpu), State::kRecovering);
  EXPECT_EQ(feed.reason(kGpu), "XID 999: not in NVIDIA's catalogue");
  // The checks began to pass before it: the fault itself is the last that must have been proved.
  EXPECT_EQ(feed.until_offered(kGpu), seconds(30));
}

TEST(Catalogue, NvLink5FollowsItsLineOrTheDriver) {
  const auto detail = [](const char* unit, std::uint32_t status) {
    return NvLink5Detail{unit, true, 3, 0, status};
  };
  struct Row {
    const char* what;
    bool log, action;  // whether there is a kernel log, and a driver with recovery actions
    XidReport report;
    State state;
  };
  const XidReport event{Source::kDriverEvents, 145};
  const Row rows[] = {
      {"the line will come", true, false, event, State::kHealthy},
      {"the driver will say", false, true, event, State::kHealthy},
      {"nothing will say more", false, false, event, State::kQuarantined},
      {"fatal",
       true,
       true,
       {Source::kKernelLog, 145, {}, {}, detail("RLW_REMAP", 0x40)},
       State::kQuarantined},
      {"the application's",
       true,
       true,
       {Source::kKernelLog, 145, {}, {}, detail("RLW_REMAP", 1)},
       State::kHealthy},
      {"nothing", true, true, {Source::kKernelLog, 145, {}, {}, detail("RLW_CTRL", 1)}, State::kHealthy},
      {"a line that says nothing", true, false, {Source::kKernelLog, 145}, State::kQuarantined},
  };
  for (const auto& row : rows) {
    Machine machine({}, XidFilter("", ""));
    const Time now(seconds(5));
    machine.on_snapshot(node(), now);
    if (row.log) machine.on_evidence({kGpu, now, SourceNotice{Source::kKernelLog, std::nullopt}});
    if (row.action) machine.on_evidence({kGpu, now, RecoveryActionReading{0}});
    machine.on_evidence({kGpu, now, row.report});
    const auto state = machine.standing(kGpu)->state;
    EXPECT_EQ(name(state), name(row.state)) << row.what;
  }
}

}  // namespace
}  // namespace gpulet::health
