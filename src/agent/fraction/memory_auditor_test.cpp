#include "agent/fraction/memory_auditor.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>

#include "agent/fraction/test_memory_auditor.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using config::ExceededAction;
using metrics::PodCgroup;

TEST_F(AuditTest, OthersMayNeedTheLedgerAlone) {
  add_pod("a", "1000Mi", {"GPU-0::0"});
  auditor->use_snapshot(audited_node());
  auditor->apply_action(ExceededAction::kNone);
  EXPECT_EQ(auditor->ledger(), nullptr);
  auditor->apply_action(ExceededAction::kNone, true);
  loop.run_ready();
  loop.advance(5s);
  ASSERT_NE(auditor->ledger(), nullptr);
  EXPECT_TRUE(auditor->ledger()->has_limits());
  EXPECT_TRUE(calls.empty()) << "nothing is measured";
  EXPECT_EQ(auditor->stats().containers.size(), 1u) << "its grade is shown all the same";
  auditor->apply_action(ExceededAction::kWarn, true);
  loop.advance(5s);
  EXPECT_FALSE(calls.empty());
  const auto lists_before = lists;
  auditor->apply_action(ExceededAction::kWarn);
  auditor->apply_action(ExceededAction::kNone, true);
  EXPECT_EQ(lists, lists_before) << "the same ledger";
  auditor->apply_action(ExceededAction::kNone);
  EXPECT_EQ(auditor->ledger(), nullptr);
}

TEST_F(AuditTest, NothingIsReadWithoutALimitOrASetting) {
  add_pod("plain", "", {"GPU-0::0"});
  start(ExceededAction::kNone);
  loop.advance(1min);
  EXPECT_EQ(lists, 0u);
  auditor->apply_action(ExceededAction::kKill);
  loop.advance(10min);
  EXPECT_EQ(lists, 1u) << "the kubelet is asked once, and after each allocation";
  EXPECT_EQ(calls.size(), 0u);
  add_pod("limited", "8Gi", {"GPU-0::1"});
  auditor->on_allocated();
  loop.advance(1s);
  EXPECT_GT(calls.size(), 0u);
  holders.clear();
  loop.advance(kLedgerPollInterval + 1s);
  calls.clear();
  loop.advance(1min);
  EXPECT_EQ(calls.size(), 0u) << "its holder has left";
}

TEST_F(AuditTest, TellsAtOnceAndKillsAtTheSecondReading) {
  add_pod("over", "8Gi", {"GPU-0::0"});
  add_pod("other", "8Gi", {"GPU-0::1"}, kOtherId);
  start(ExceededAction::kKill);
  add_process(10, "over", 5000);
  add_process(11, "over", 3000);
  add_process(12, "other", 8192, kOtherId);
  loop.advance(1s);
  EXPECT_TRUE(events.empty());
  uses[kAuditedGpu].processes[0].memory = mebibytes(6000);
  loop.advance(1s);
  ASSERT_EQ(reasons(), Reasons{kMemoryExceededReason});
  EXPECT_EQ(events[0].pod.uid, "uid-over");
  EXPECT_EQ(events[0].message,
            "container main uses 9000 MiB of GPU-0, its limit is 8192 MiB (annotation gpulet.io/gpu-memory)");
  loop.advance(kConfirmationDelay - 1ms);
  EXPECT_TRUE(killed.empty());
  loop.advance(1ms);
  EXPECT_EQ(killed, (Killed{{10, kId}, {11, kId}}));
  ASSERT_EQ(reasons(), (Reasons{kMemoryExceededReason, kMemoryKilledReason}));
  EXPECT_TRUE(events[1].message.ends_with(": killed 2 processes")) << events[1].message;
  // A fork bomb: those that come after them.
  uses[kAuditedGpu].processes.clear();
  killed.clear();
  add_process(13, "over", 9000);
  loop.advance(kAuditInterval - kConfirmationDelay);
  EXPECT_EQ(killed, (Killed{{13, kId}}));
  uses[kAuditedGpu].processes.clear();
  loop.advance(10s);
  EXPECT_EQ(killed.size(), 1u);
  const auto stats = auditor->stats();
  EXPECT_EQ(stats.counts, (metrics::MemoryAuditCounts{.warned = 1, .killed = 2}));
  ASSERT_EQ(stats.containers.size(), 2u);
  EXPECT_EQ(stats.containers[0].limit, mebibytes(8192));
  EXPECT_EQ(stats.containers[0].used, mebibytes(0));
}

// The driver reports the same use before and after the Pod is known.
TEST_F(AuditTest, ANewLimitIsComparedAtTheNextReading) {
  add_pod("a", "8Gi", {"GPU-0::0"});
  add_process(10, "a", 5000);
  add_process(11, "b", 9000, kOtherId);
  uses[kAuditedGpu].used = mebibytes(14'000);
  start(ExceededAction::kWarn);
  loop.advance(kReadingsPerList * kAuditInterval + 1s);
  EXPECT_TRUE(events.empty());
  add_pod("b", "8Gi", {"GPU-0::1"}, kOtherId);
  auditor->on_allocated();
  loop.advance(2 * kAuditInterval);
  ASSERT_EQ(reasons(), Reasons{kMemoryExceededReason});
  EXPECT_EQ(events[0].pod.uid, "uid-b");
}

TEST_F(AuditTest, ReadsGpusTogetherAndThoseThatFailAlone) {
  const DeviceUuid other("GPU-1");
  add_pod("a", "8Gi", {"GPU-0::0"});
  add_pod("b", "8Gi", {"GPU-1::0"}, kOtherId);
  start(ExceededAction::kKill);
  loop.advance(1s);
  using Calls = std::vector<std::size_t>;
  calls.clear();
  loop.advance(2s);
  EXPECT_EQ(calls, (Calls{2, 2}));
  hanging.insert(other);
  loop.advance(1s);
  calls.clear();
  readings_of.clear();
  loop.advance(2s);
  EXPECT_EQ(calls, (Calls{1, 1, 1, 1})) << "one that hangs does not keep the other from being read";
  EXPECT_EQ(readings_of, (std::map<DeviceUuid, std::size_t>{{kAuditedGpu, 2}}));
  hanging.clear();
  loop.advance(1s);
  calls.clear();
  loop.advance(1s);
  EXPECT_EQ(calls, Calls{2});
}

TEST_F(AuditTest, ListsProcessesWhereTheUseHasChanged) {
  add_pod("a", "8Gi", {"GPU-0::0"});
  add_pod("b", "8Gi", {"GPU-0::1"}, kOtherId);
  add_process(10, "a", 5000);
  add_process(11, "b", 5000, kOtherId);
  auto& use = uses[kAuditedGpu];
  use.used = mebibytes(10'000);
  start(ExceededAction::kWarn);
  loop.advance(1s);
  process_lists = 0;
  calls.clear();
  loop.advance(kReadingsPerList * 4 * kAuditInterval);
  EXPECT_EQ(calls.size(), kReadingsPerList * 4);
  EXPECT_EQ(process_lists, 4u);
  EXPECT_EQ(auditor->stats().containers[0].used, mebibytes(5000)) << "as last listed";
  // What one takes, the other gives back: seen by a regular list, and then at each reading.
  use.processes[0].memory = mebibytes(9000);
  use.processes[1].memory = mebibytes(1000);
  loop.advance(kReadingsPerList * kAuditInterval);
  EXPECT_EQ(reasons(), Reasons{kMemoryExceededReason});
  process_lists = 0;
  loop.advance(3 * kAuditInterval);
  EXPECT_EQ(process_lists, 3u);
  // A change is seen at once.
  use.processes[0].memory = mebibytes(5000);
  use.used = mebibytes(6000);
  loop.advance(kReadingsPerList * kAuditInterval);
  events.clear();
  use.processes[1].memory = mebibytes(9000);
  use.used = mebibytes(14'000);
  loop.advance(kAuditInterval);
  ASSERT_EQ(reasons(), Reasons{kMemoryExceededReason});
  EXPECT_EQ(events[0].pod.uid, "uid-b");
}

TEST_F(AuditTest, AWarningIsOneEventForEachExcess) {
  add_pod("over", "8Gi", {"GPU-0::0"});
  start(ExceededAction::kWarn);
  add_process(10, "over", 9000);
  loop.advance(1min);
  EXPECT_EQ(reasons(), Reasons{kMemoryExceededReason});
  uses[kAuditedGpu].processes[0].memory = mebibytes(10);
  loop.advance(1s);
  uses[kAuditedGpu].processes[0].memory = mebibytes(9000);
  loop.advance(1min);
  EXPECT_EQ(events.size(), 2u);
  EXPECT_TRUE(killed.empty());
}

TEST_F(AuditTest, EvictsThePodOnce) {
  add_pod("over", "8Gi", {"GPU-0::0"});
  start(ExceededAction::kEvict);
  add_process(10, "over", 9000);
  loop.advance(3s);
  ASSERT_TRUE(evictions.is_pending("over"));
  evictions.answer("over", k8s::EvictionUpdate::Kind::kWaiting, "disruption budget");
  evictions.answer("over", k8s::EvictionUpdate::Kind::kWaiting, "disruption budget");
  evictions.answer("over", k8s::EvictionUpdate::Kind::kTerminating);
  loop.advance(30s);
  EXPECT_EQ(reasons(), (Reasons{kMemoryExceededReason, kMemoryEvictionReason, kMemoryEvictionReason}));
  EXPECT_EQ(auditor->stats().counts.evicted, 1u);
  holders.clear();
  loop.advance(kLedgerPollInterval + 1s);
  EXPECT_FALSE(evictions.is_pending("over"));
}

TEST_F(AuditTest, AClientOfAnotherProgramsMpsIsEvictedNotKilled) {
  add_pod("over", "8Gi", {"GPU-0::0"});
  mps_resource = "nvidia.com/gpu";
  start(ExceededAction::kKill);
  add_process(10, "over", 9000);
  loop.advance(3s);
  EXPECT_TRUE(killed.empty());
  EXPECT_TRUE(evictions.is_pending("over"));
}

TEST_F(AuditTest, TheWorkOfAClientOfMpsIsEndedBeforeItIsKilled) {
  add_pod("over", "8Gi", {"GPU-0::0"});
  mps_resource = "nvidia.com/gpu";
  has_own_mps = true;
  start(ExceededAction::kKill);
  add_process(10, "over", 9000);
  loop.advance(kConfirmationDelay - 1ms);
  EXPECT_TRUE(ended.empty());
  loop.advance(1ms);
  EXPECT_EQ(ended, (std::vector<std::vector<unsigned>>{{10}}));
  EXPECT_EQ(killed, (Killed{{10, kId}}));
  EXPECT_TRUE(evictions.pods().empty());
}

TEST_F(AuditTest, AnMpsDaemonThatHangsDelaysAKillAndNoMore) {
  add_pod("over", "8Gi", {"GPU-0::0"});
  mps_resource = "nvidia.com/gpu";
  has_own_mps = is_mps_hanging = true;
  start(ExceededAction::kKill);
  add_process(10, "over", 9000);
  add_process(11, "over", 9000);
  loop.advance(kConfirmationDelay);
  EXPECT_EQ(ended, (std::vector<std::vector<unsigned>>{{10, 11}}));
  cgroups[11] = {{"uid-other", kId}};  // the pid is another container's meanwhile
  loop.advance(kEndClientsLimit - 1ms);
  EXPECT_TRUE(killed.empty());
  loop.advance(1ms);
  EXPECT_EQ(killed, (Killed{{10, kId}}));
}

TEST_F(AuditTest, TheWorkOfAClientOfMpsIsEndedOnceItsEvictionIsAccepted) {
  add_pod("over", "8Gi", {"GPU-0::0"});
  mps_resource = "nvidia.com/gpu";
  has_own_mps = true;
  start(ExceededAction::kEvict);
  add_process(10, "over", 9000);
  loop.advance(3s);
  evictions.answer("over", k8s::EvictionUpdate::Kind::kWaiting, "disruption budget");
  EXPECT_TRUE(ended.empty());
  evictions.answer("over", k8s::EvictionUpdate::Kind::kTerminating);
  EXPECT_EQ(ended, (std::vector<std::vector<unsigned>>{{10}}));
  EXPECT_TRUE(killed.empty());
}

TEST_F(AuditTest, MemoryThatADescriptorKeepsIsEndedByAnEviction) {
  add_pod("keeper", "1Gi", {"GPU-0::0"});
  start(ExceededAction::kKill);
  uses[kAuditedGpu].used = mebibytes(40'000);
  loop.advance(3s);
  EXPECT_TRUE(killed.empty());
  EXPECT_TRUE(evictions.is_pending("keeper"));
}

TEST_F(AuditTest, TheLimitIsOfAllSharesOnTheGpu) {
  add_pod("two", "8Gi", {"GPU-0::0", "GPU-0::3", "GPU-1::0"});
  start(ExceededAction::kWarn);
  const auto stats = auditor->stats();
  ASSERT_EQ(stats.containers.size(), 2u);
  EXPECT_EQ(stats.containers[0].limit, mebibytes(16'384));
  EXPECT_EQ(stats.containers[1].limit, mebibytes(8192));
}

TEST_F(AuditTest, EachLimitHasAGrade) {
  add_pod("plain", "8Gi", {"GPU-0::0"});
  add_pod("strong", "8Gi", {"GPU-0::1"}, kOtherId);
  reader.pods["default/plain"].access = {{.name = "main"}};
  reader.pods["default/strong"].access = {{.name = "main", .is_privileged = true}};
  start(ExceededAction::kKill);
  const auto stats = auditor->stats();
  ASSERT_EQ(stats.containers.size(), 2u);
  EXPECT_EQ(stats.containers[0].grade, "audited");
  EXPECT_EQ(stats.containers[0].reasons, std::vector<std::string>{"no driver"});
  EXPECT_EQ(stats.containers[1].grade, "none");
  EXPECT_EQ(stats.containers[1].reasons,
            (std::vector<std::string>{"container main is privileged", "no driver"}));
  reader.pods["default/plain"].access[0].ephemeral_caps = {{fraction::LimitGrade::kNone, "b"}};
  loop.advance(10min);
  ASSERT_EQ(reasons(), Reasons{kMemoryGradeReason});
  EXPECT_EQ(events[0].message, "the memory limit of container main has now at most the grade none: b");
  EXPECT_EQ(auditor->stats().containers[0].grade, "none");
}

TEST_F(AuditTest, ContainersOfAClaimThatIsSharedByMpsHaveAGrade) {
  mps_resource = "gpu.nvidia.com";
  means.mps_process_mib = 2000;
  claims_of_node["uid-claim"] = {"uid-claim", "default", "claim", {{"gpus", "node-1", "gpu-0", kAuditedGpu}}};
  claims_of_node["uid-claim"].daemons = {{.devices = {kAuditedGpu}, .limits_mib = {{kAuditedGpu, 2000}}}};
  for (const std::string name : {"plain", "root", "strong"}) {
    add_pod(name, "", {"GPU-0"});
    holders.back().devices = {{ResourceName(mps_resource), {DeviceId("GPU-0")}}};
    auto& pod = reader.pods["default/" + name];
    pod.containers[0].limits.clear();
    pod.containers[0].claims = {{"claim", ""}};
    pod.access = {{.name = "main", .is_privileged = name == "strong", .may_be_root = name != "plain"}};
  }
  start(ExceededAction::kKill);
  const auto stats = auditor->stats();
  ASSERT_EQ(stats.containers.size(), 3u);
  EXPECT_EQ(stats.containers[0].pod.name, "plain");
  EXPECT_EQ(stats.containers[0].limit, Bytes{});
  EXPECT_EQ(stats.containers[0].grade, "mps");
  EXPECT_EQ(stats.containers[0].reasons, std::vector<std::string>{"no driver"});
  EXPECT_EQ(stats.containers[1].grade, "none") << "no request of its Pod can be audited";
  EXPECT_EQ(stats.containers[1].reasons[0],
            "container main may run as root beside an MPS control pipe (no runAsNonRoot or runAsUser)");
  EXPECT_EQ(stats.containers[2].grade, "none");
  EXPECT_TRUE(calls.empty()) << "there is nothing to audit";
}

TEST_F(AuditTest, ContainersOfOnePodAreToldApartByTheirIds) {
  add_pod("pair", "8Gi", {"GPU-0::0"});
  holders.push_back(
      {{"default", "pair"}, "side", {{ResourceName("nvidia.com/gpu"), {DeviceId("GPU-0::1")}}}});
  auto& pod = reader.pods["default/pair"];
  pod.containers.push_back({.name = "side", .limits = {{"nvidia.com/gpu", "1"}}, .id = ""});
  start(ExceededAction::kKill);
  add_process(10, "pair", 9000, kOtherId);
  loop.advance(3s);
  EXPECT_TRUE(killed.empty()) << "the id of the second container is not known yet";
  pod.containers[1].id = "containerd://" + kOtherId;
  loop.advance(20s);
  EXPECT_FALSE(killed.empty());
  for (const auto& [pid, id] : killed) EXPECT_EQ(id, kOtherId);
  const auto asked = reader.asked.size();
  add_process(11, "pair", 10, kNewId);
  loop.advance(10min);
  const std::size_t each_minute = 10;
  EXPECT_LE(reader.asked.size(), asked + kUnknownProcessReads + each_minute) << "it never becomes known";
}

TEST_F(AuditTest, ANumberThatAnotherProcessHasNowIsNotKilled) {
  add_pod("over", "8Gi", {"GPU-0::0"});
  start(ExceededAction::kKill);
  add_process(10, "over", 9000);
  loop.advance(kConfirmationDelay - 1ms);
  ASSERT_EQ(events.size(), 1u) << "told, not killed yet";
  cgroups[10] = {{"uid-stranger", kOtherId}};
  loop.advance(10s);
  EXPECT_TRUE(killed.empty());
  EXPECT_EQ(events.size(), 1u);
}

TEST_F(AuditTest, ForeignProcessesAndUnknownMemoryAreNobodys) {
  add_pod("small", "1Gi", {"GPU-0::0"});
  start(ExceededAction::kKill);
  uses[kAuditedGpu].used = mebibytes(60'000);
  uses[kAuditedGpu].processes = {{20, mebibytes(50'000)}, {21, std::nullopt}};
  cgroups[21] = {{"uid-monitor", kOtherId}};
  add_process(22, "small", 600);
  loop.advance(10s);
  EXPECT_TRUE(events.empty());
  EXPECT_TRUE(killed.empty());
}

TEST_F(AuditTest, MemoryOfNoProcessIsTheOnlyHolders) {
  add_pod("managed", "1Gi", {"GPU-0::0"});
  start(ExceededAction::kKill);
  uses[kAuditedGpu].used = mebibytes(40'000);
  add_process(22, "managed", 518);
  loop.advance(3s);
  EXPECT_FALSE(killed.empty());
  killed.clear();
  add_pod("second", "", {"GPU-0::1"}, kOtherId);
  auditor->on_allocated();
  loop.advance(6s);
  killed.clear();
  loop.advance(6s);
  EXPECT_TRUE(killed.empty()) << "it may be the second Pod's";
  EXPECT_GT(auditor->stats().unlisted.at(kAuditedGpu), mebibytes(30'000));
}

TEST_F(AuditTest, ADriverOrKubeletOrServerWithoutAnAnswerHarmsNobody) {
  add_pod("over", "8Gi", {"GPU-0::0"});
  reader.error = Error(Code::kUnavailable, "away");
  start(ExceededAction::kKill);
  add_process(10, "over", 9000);
  loop.advance(1min);
  EXPECT_TRUE(events.empty()) << "its limit is not known";
  reader.error.reset();
  loop.advance(1min);
  EXPECT_FALSE(killed.empty());
  killed.clear();
  kubelet_error = Error(Code::kUnavailable, "away");
  loop.advance(1min);
  EXPECT_FALSE(killed.empty()) << "the last known holders stay";
  driver_error = Error(Code::kDeadlineExceeded, "hangs");
  loop.advance(2s);
  killed.clear();
  loop.advance(1min);
  EXPECT_TRUE(killed.empty());
}

TEST_F(AuditTest, AMissingRightToKillIsTold) {
  add_pod("over", "8Gi", {"GPU-0::0"});
  start(ExceededAction::kKill);
  add_process(10, "over", 9000);
  kill_error = Error(Code::kPermissionDenied, "cannot kill it: Operation not permitted", "process 10");
  loop.advance(10s);
  ASSERT_EQ(reasons(), (Reasons{kMemoryExceededReason, kMemoryKilledReason}));
  EXPECT_NE(events[1].message.find("Operation not permitted"), std::string::npos);
  EXPECT_EQ(auditor->stats().counts.failed, 1u);
}

TEST_F(AuditTest, AnInvalidRequestIsToldAndHasNoLimit) {
  add_pod("bad", "8Gi", {"GPU-0::0"});
  reader.pods["default/bad"].annotations["gpu-fraction"] = "1.5";
  start(ExceededAction::kKill);
  loop.advance(1min);
  ASSERT_EQ(reasons(), Reasons{kMemoryRequestReason});
  EXPECT_TRUE(auditor->stats().containers.empty());
}

TEST_F(AuditTest, AnAnnotationThatChangesLaterRaisesNoLimit) {
  add_pod("over", "8Gi", {"GPU-0::0"});
  start(ExceededAction::kWarn);
  reader.pods["default/over"].annotations["gpulet.io/gpu-memory"] = "70Gi";
  add_process(10, "unknown-makes-a-read", 10, kOtherId);
  loop.advance(1min);
  EXPECT_GT(reader.asked.size(), 1u);
  EXPECT_EQ(auditor->stats().containers.at(0).limit, mebibytes(8192));
  reader.pods["default/over"].pod.uid = "uid-again";
  add_process(11, "again", 10);
  loop.advance(1min);
  EXPECT_EQ(auditor->stats().containers.at(0).limit, mebibytes(70 * 1024)) << "another Pod of that name";
}

TEST_F(AuditTest, GpusInMigModeHoldTheirLimitsThemselves) {
  add_pod("over", "8Gi", {"GPU-0::0"});
  start(ExceededAction::kKill);
  auto snapshot = std::make_shared<inventory::Snapshot>(*audited_node());
  snapshot->gpus[0].mig_enabled = true;
  auditor->use_snapshot(snapshot);
  loop.run_ready();
  calls.clear();
  loop.advance(1min);
  EXPECT_EQ(calls.size(), 0u);
}

}  // namespace
}  // namespace gpulet::agent
