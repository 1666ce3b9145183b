#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/process.h"
#include "base/text.h"
#include "health/state/state_machine.h"
#include "health/state/test_feed.h"
#include "health/xid/xid_catalogue.h"

namespace gpulet::health {
namespace {

// The rows of a table in this file's directory, without its header, as cells.
std::vector<std::vector<std::string>> read_table(const std::string& name) {
  const auto content = read_file("src/health/xid/" + name);
  EXPECT_TRUE(content) << (content ? "" : content.error().full_message());
  std::vector<std::vector<std::string>> rows;
  for (const auto& line : text::split(content.value_or(""), '\n')) {
    if (!line.empty() && line.front() != '#') rows.push_back(text::split(line, '\t'));
  }
  if (!rows.empty()) rows.erase(rows.begin());
  return rows;
}

TEST(XidCatalogue, IsSortedUniqueAndComplete) {
  EXPECT_EQ(std::ranges::adjacent_find(xids(), [](const Xid& a, const Xid& b) { return a.code >= b.code; }),
            xids().end());
  for (const auto& xid : xids()) {
    EXPECT_FALSE(xid.mnemonic.empty() || xid.description.empty()) << xid.code;
    EXPECT_EQ(find_xid(xid.code), &xid);
  }
  EXPECT_EQ(find_xid(0), nullptr);
  EXPECT_EQ(find_xid(7), nullptr);
  EXPECT_EQ(find_xid(100'000), nullptr);
}

// What NVIDIA's bucket is for the program; written down a second time, by hand, against mistakes in the
// generator.
XidAction action_of(const std::string& bucket, const std::string& xid_class) {
  static const std::map<std::string, XidAction> kBuckets = {{"IGNORE", XidAction::kNone},
                                                            {"RESTART_APP", XidAction::kRestartApp},
                                                            {"RESET_GPU", XidAction::kResetGpu},
                                                            {"RESTART_BM", XidAction::kRestartNode},
                                                            {"RESTART_VM", XidAction::kRestartVm},
                                                            {"UPDATE_SWFW", XidAction::kUpdateSoftware},
                                                            {"CHECK_MECHANICALS", XidAction::kContactSupport},
                                                            {"CONTACT_SUPPORT", XidAction::kContactSupport}};
  if (bucket == "-") return xid_class == "info" ? XidAction::kNone : XidAction::kContactSupport;
  const auto found = kBuckets.find(bucket);
  return found == kBuckets.end() ? XidAction::kDecode : found->second;
}

// Of every code that the program knows for a GPU, and of every one that the table has for it.
struct Conformance {
  unsigned right = 0, wrong = 0, missing = 0;
  void compare_codes(const Xid* xid, Architecture architecture, bool listed, const std::string& xid_class,
                     XidAction action) {
    const bool known = xid != nullptr && xid->is_listed(architecture);
    const bool same = known && listed && enum_name(xid->xid_class) == xid_class && xid->action == action;
    right += same;
    wrong += known && !same;
    missing += listed && !same;
  }
  double precision() const { return static_cast<double>(right) / (right + wrong); }
  double recall() const { return static_cast<double>(right) / (right + missing); }
};

TEST(XidCatalogue, ConformsForEveryCodeAndArchitecture) {
  Conformance conformance;
  std::map<std::uint64_t, std::vector<std::string>> rows;
  for (const auto& row : read_table("xids.tsv")) rows[text::parse_unsigned(row[0]).value_or(0)] = row;
  std::set<std::uint64_t> codes;
  for (const auto& [code, row] : rows) codes.insert(code);
  for (const auto& xid : xids()) codes.insert(xid.code);
  for (const auto code : codes) {
    const auto row = rows.find(code);
    for (const auto architecture : kArchitectures) {
      const bool listed = row != rows.end() && row->second[3][static_cast<std::size_t>(architecture)] == '1';
      const auto xid_class = listed ? row->second[5] : std::string();
      conformance.compare_codes(find_xid(code), architecture, listed, xid_class,
                                listed ? action_of(row->second[4], xid_class) : XidAction::kNone);
    }
  }
  std::printf("XIDs, class and action for each GPU: precision %.3f, recall %.3f over %u\n",
              conformance.precision(), conformance.recall(), conformance.right);
  EXPECT_EQ(conformance.precision(), 1.0);
  EXPECT_EQ(conformance.recall(), 1.0);
  EXPECT_GT(conformance.right, 300u);
}

// The bits of NVIDIA's table, for every code and GPU.
TEST(XidCatalogue, MatchesTheTable) {
  const auto rows = read_table("xids.tsv");
  ASSERT_EQ(rows.size(), xids().size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& row = rows[i];
    const auto& xid = xids()[i];
    ASSERT_EQ(row.size(), 7u) << row[0];
    EXPECT_EQ(std::to_string(xid.code), row[0]);
    EXPECT_EQ(xid.mnemonic, row[1]);
    EXPECT_EQ(xid.description, row[2]);
    EXPECT_EQ(enum_name(xid.action), enum_name(action_of(row[4], row[5]))) << row[0];
    EXPECT_EQ(enum_name(xid.xid_class), row[5]) << row[0];
    ASSERT_EQ(row[3].size(), std::size(kArchitectures));
    for (const auto architecture : kArchitectures) {
      EXPECT_EQ(xid.is_listed(architecture), row[3][static_cast<std::size_t>(architecture)] == '1') << row[0];
    }
    EXPECT_EQ(xid.is_linked(0), row[6] != "-") << row[0];
    EXPECT_EQ(xid.is_linked(550), row[6] == "any") << row[0];
    EXPECT_EQ(xid.is_linked(565), row[6] == "any" || row[6] == "565") << row[0];
    EXPECT_EQ(xid.is_linked(580), row[6] != "-") << row[0];
  }
}

TEST(XidCatalogue, IsGeneratedFromTheTables) {
  const auto process = Process::spawn(
      {.program = "/usr/bin/python3", .arguments = {"python3", "tools/health/catalogue", "--check"}});
  ASSERT_TRUE(process) << process.error().full_message();
  const auto ended = (*process)->wait_for_exit(std::chrono::seconds(60));
  ASSERT_TRUE(ended) << ended.error().full_message();
  EXPECT_TRUE(ended->succeeded()) << "xid_table.cpp or docs/xids.md is stale: run tools/health/catalogue";
}

TEST(XidCatalogue, KnowsTheArchitectures) {
  EXPECT_EQ(architecture_of("ampere", "NVIDIA A100-SXM4-80GB"), Architecture::kAmpere);
  EXPECT_EQ(architecture_of("hopper", "NVIDIA GH200 480GB"), Architecture::kHopper);
  EXPECT_EQ(architecture_of("blackwell", "NVIDIA B200"), Architecture::kBlackwell);
  EXPECT_EQ(architecture_of("blackwell", "NVIDIA GB200"), Architecture::kGraceBlackwell);
  EXPECT_EQ(architecture_of("turing", "Tesla T4"), std::nullopt);
}

TEST(XidCatalogue, ParsesTheDriverBranch) {
  EXPECT_EQ(driver_branch("570.124.06"), 570u);
  EXPECT_EQ(driver_branch("570"), 570u);
  EXPECT_EQ(driver_branch(""), 0u);
  EXPECT_EQ(driver_branch("nonsense.1"), 0u);
  EXPECT_EQ(driver_branch("99999999999.1"), 0u);
}

TEST(XidCatalogue, DescribesInOneLine) {
  EXPECT_EQ(describe_xid(79), "XID 79: GPU has fallen off the bus");
  EXPECT_EQ(describe_xid(48), "XID 48: double-bit ECC error");
  EXPECT_EQ(describe_xid(999), "XID 999: not in NVIDIA's catalogue");
}

// Rows of NVIDIA's NVLink 5 table, read there one by one.
TEST(NvLink5, DecodesByUnitStatusAndSubcode) {
  using enum NvLink5Outcome;
  struct Row {
    std::uint64_t code;
    NvLink5Detail detail;
    unsigned branch;
    NvLink5Outcome outcome;
  };
  const auto detail = [](const char* unit, std::uint32_t intr_info, std::uint32_t status) {
    return NvLink5Detail{unit, false, 0, intr_info, status};
  };
  const Row rows[] = {
      {144, detail("SAW_MVB", 0, 0x2), 570, kReset},
      {144, detail("SAW_MVB", 0, 0x10), 570, kReset},
      {144, detail("SAW_MVB", 0, 0x1), 570, kIgnore},
      {145, detail("RLW_CTRL", 0, 0x80000000), 570, kIgnore},
      {145, detail("RLW_REMAP", 0, 0x40), 570, kReset},
      {145, detail("RLW_REMAP", 0, 0x80), 570, kReset},
      {145, detail("RLW_REMAP", 0, 0x1), 570, kFollowDriver},
      {145, detail("RLW_REMAP", 0, 0x20), 570, kFollowDriver},
      {145, detail("RLW_REMAP", 0, 0x41), 570, kReset},  // two together: the worse
      {145, detail("RLW_REMAP", 0, 0x100), 570, kIgnore},
      {145, detail("RLW_RSPCOL", 0, 0x2), 570, kReset},
      {145, detail("RLW_RSPCOL", 0, 0x1), 570, kIgnore},
      {145, detail("RLW_SRC_TRACK", 0x040988e2, 0x8), 570, kFollowDriver},
      {145, detail("RLW_SRC_TRACK", 0, 0x4), 570, kFollowDriver},
      {145, detail("RLW_SRC_TRACK", 0, 0x1), 570, kReset},
      {145, detail("RLW_SRC_TRACK", 0, 0x20), 570, kReset},
      {145, detail("RLW_SRC_TRACK", 0, 0x2), 570, kIgnore},
      {145, detail("RLW_TAGSTATE", 0, 0x20000), 570, kReset},
      {145, detail("RLW_TAGSTATE", 0, 0x100000), 570, kReset},
      {145, detail("RLW_TAGSTATE", 0, 0x10000), 570, kIgnore},
      // The second action's bit has moved with R575.
      {145, detail("RLW_RXPIPE", 0x400, 0x1), 570, kReset},
      {145, detail("RLW_RXPIPE", 0x400, 0x1), 580, kIgnore},
      {145, detail("RLW_RXPIPE", 0x80, 0x4), 580, kReset},
      {145, detail("RLW_RXPIPE", 0x80, 0x4), 0, kReset},
      {145, detail("RLW_RXPIPE", 0x80, 0x8), 580, kIgnore},
      {145, detail("RLW_RXPIPE", 0, 0x1), 580, kIgnore},
      {146, detail("TLW_CTRL", 0, 0x4), 570, kReset},
      {146, detail("TLW_RX", 0, 0x2), 570, kIgnore},
      {147, detail("TREX", 0, 0x1), 570, kIgnore},
      {148, detail("NVLPW_CTRL/NVLPW", 0, 0x80000000), 570, kIgnore},
      {149, detail("NETIR_LINK_EVT", 0x025525c6, 0), 570, kReset},
      {149, detail("NETIR_LINK_DOWN", 0x26u << 20, 0), 570, kIgnore},
      {149, detail("NETIR_LINK_DOWN", 0x28u << 20, 0), 570, kIgnore},
      {149, detail("NETIR_LINK_DOWN", 0x2Au << 20, 0), 570, kReset},
      {149, detail("NETIR_BER_EVENT", 0x00082226, 1), 570, kIgnore},
      {149, detail("NETIR_MFDE_EVENT", 0, 1), 570, kReset},
      {149, detail("NETIR_MFDE_EVENT", 0, 3), 570, kIgnore},
      {149, detail("NETIR_MFDE_EVENT", 0, 5), 570, kReset},
      {149, detail("NETIR_MFDE_EVENT", 0, 7), 570, kReset},
      {149, detail("NETIR_INT", 0, 0), 570, kReset},
      {150, detail("MSE_WATCHDOG", 0, 0), 570, kReset},
      {13, detail("MSE_WATCHDOG", 0, 0), 570, kIgnore},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(nvlink5_outcome(row.code, row.detail, row.branch), row.outcome)
        << row.code << " " << row.detail.unit << " " << row.detail.intr_info << " "
        << row.detail.error_status;
  }
  EXPECT_EQ(nvlink5_rows().size(), read_table("nvlink5.tsv").size());
}

}  // namespace

namespace {

using Choice = XidFilter::Choice;

TEST(XidFilter, Table) {
  struct Row {
    const char *disable, *enable;
    std::vector<std::uint64_t> ignored, left_to_the_catalogue, watched;
    bool nothing_checked = false;
  };
  const Row rows[] = {
      {"", "", {}, {13, 31, 109, 48, 79, 999}, {}},
      {"94, 95", "", {94, 95}, {13, 79}, {}},
      {" 94 ,,95,", "", {94, 95}, {79}, {}},
      {"all", "", {13, 79, 94}, {}, {}, true},
      {" All ", "", {79}, {}, {}, true},
      {"XIDS", "", {13, 79, 94}, {}, {}},
      {"", "109", {}, {13, 79}, {109}},
      {"94", "94", {}, {13, 79}, {94}},
      {"", "all", {}, {}, {13, 31, 109, 79}},
      {"all", "all", {}, {}, {13, 79}},
      {"94", "xids", {}, {}, {94, 13}},
      // What NVIDIA's comment promises: only the enabled ones are checked.
      {"all", "79,48", {13, 94, 95}, {}, {79, 48}},
      // A token must be the XID: 7 is no part of 79.
      {"7", "", {7}, {79}, {}},
  };
  for (const auto& row : rows) {
    const XidFilter filter(row.disable, row.enable);
    const std::string where = std::string(row.disable) + "|" + row.enable + " ";
    for (const auto xid : row.ignored) EXPECT_EQ(filter.choice_for(xid), Choice::kIgnored) << where << xid;
    for (const auto xid : row.left_to_the_catalogue)
      EXPECT_EQ(filter.choice_for(xid), Choice::kCatalogue) << where << xid;
    for (const auto xid : row.watched) EXPECT_EQ(filter.choice_for(xid), Choice::kWatched) << where << xid;
    EXPECT_EQ(filter.is_all_disabled(), row.nothing_checked) << where;
    EXPECT_TRUE(filter.warnings().empty()) << where;
  }
}

TEST(XidFilter, WarnsAboutInvalidTokens) {
  const XidFilter filter("94,xid 95,-1", "everything");
  EXPECT_EQ(filter.choice_for(94), Choice::kIgnored);
  EXPECT_EQ(filter.choice_for(95), Choice::kCatalogue);
  EXPECT_EQ(filter.warnings(),
            (std::vector<std::string>{
                "DP_DISABLE_HEALTHCHECKS: 'xid 95' is ignored: expected an XID number, all or xids",
                "DP_DISABLE_HEALTHCHECKS: '-1' is ignored: expected an XID number, all or xids",
                "DP_ENABLE_HEALTHCHECKS: 'everything' is ignored: expected an XID number, all or xids"}));
}

}  // namespace

namespace {

struct TableRow {
  std::uint64_t code = 0;
  std::string listed, action, xid_class;
};
std::vector<TableRow> catalogue() {
  std::vector<TableRow> rows;
  for (const auto& line : text::split(read_file("src/health/xid/xids.tsv").value_or(""), '\n')) {
    const auto cells = text::split(line, '\t');
    if (cells.size() != 7) continue;
    const auto code = text::parse_unsigned(cells[0]);
    if (code) rows.push_back({*code, cells[3], cells[4], cells[5]});
  }
  return rows;
}

// The effect of NVIDIA's action on a GPU. For XIDs of NVLink 5 and 159, the driver decides.
DeviceState truth(const TableRow& row) {
  if (row.action == "RESTART_BM") return DeviceState::kLost;
  for (const auto* away : {"RESET_GPU", "RESTART_VM", "WORKFLOW_XID_48", "WORKFLOW_NVLINK_ERR"}) {
    if (row.action == away) return DeviceState::kQuarantined;
  }
  for (const auto* flag : {"CHECK_MECHANICALS", "UPDATE_SWFW", "CONTACT_SUPPORT"}) {
    if (row.action == flag) return DeviceState::kDegraded;
  }
  const bool unsure = row.xid_class == "unclassified" || row.xid_class == "support";
  return unsure ? DeviceState::kDegraded : DeviceState::kHealthy;
}

TEST(CatalogueEffects, EveryCodeHasNvidiasEffectOnEachGpu) {
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
      auto snapshot = two_gpu_snapshot();
      snapshot.gpus[0].architecture = architectures[architecture].first;
      snapshot.gpus[0].model = architectures[architecture].second;
      HealthFeed feed({}, XidFilter("", ""), snapshot);
      feed.add_xid(kGpu, row.code);
      const auto state = feed.state_of_device(kGpu);
      EXPECT_EQ(enum_name(state), enum_name(truth(row)))
          << row.code << " on " << architectures[architecture].second;
      EXPECT_EQ(feed.state_of_device(kMigGpu), DeviceState::kHealthy) << row.code;
      const bool away = !is_allocatable(state), should = !is_allocatable(truth(row));
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

TEST(CatalogueEffects, AnUnknownXidWithdrawsUntilChecksPass) {
  HealthFeed feed;
  feed.add_xid(kGpu, 999);
  EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kRecovering);
  EXPECT_EQ(feed.reason_of_device(kGpu), "XID 999: not in NVIDIA's catalogue");
  // The checks began to pass before it: the fault itself is the last that must have been proved.
  EXPECT_EQ(feed.time_until_allocatable(kGpu), seconds(30));
}

TEST(CatalogueEffects, NvLink5FollowsItsLineOrTheDriver) {
  const auto detail = [](const char* unit, std::uint32_t status) {
    return NvLink5Detail{unit, true, 3, 0, status};
  };
  struct Row {
    const char* what;
    bool log, action;  // whether there is a kernel log, and a driver with recovery actions
    XidReport report;
    DeviceState state;
  };
  const XidReport event{Source::kDriverEvents, 145};
  const Row rows[] = {
      {"the line will come", true, false, event, DeviceState::kHealthy},
      {"the driver will say", false, true, event, DeviceState::kHealthy},
      {"nothing will say more", false, false, event, DeviceState::kQuarantined},
      {"fatal",
       true,
       true,
       {Source::kKernelLog, 145, {}, {}, detail("RLW_REMAP", 0x40)},
       DeviceState::kQuarantined},
      {"the application's",
       true,
       true,
       {Source::kKernelLog, 145, {}, {}, detail("RLW_REMAP", 1)},
       DeviceState::kHealthy},
      {"nothing",
       true,
       true,
       {Source::kKernelLog, 145, {}, {}, detail("RLW_CTRL", 1)},
       DeviceState::kHealthy},
      {"a line that says nothing", true, false, {Source::kKernelLog, 145}, DeviceState::kQuarantined},
  };
  for (const auto& row : rows) {
    HealthStateMachine machine({}, XidFilter("", ""));
    const Time now(seconds(5));
    machine.apply_snapshot(two_gpu_snapshot(), now);
    if (row.log) machine.add_evidence({kGpu, now, SourceNotice{Source::kKernelLog, std::nullopt}});
    if (row.action) machine.add_evidence({kGpu, now, RecoveryActionReading{0}});
    machine.add_evidence({kGpu, now, row.report});
    const auto state = machine.device_status(kGpu)->state;
    EXPECT_EQ(enum_name(state), enum_name(row.state)) << row.what;
  }
}

}  // namespace
}  // namespace gpulet::health
