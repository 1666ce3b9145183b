// What each source's readings do, and how that is left again.
#include <gtest/gtest.h>

#include "health/state/test_feed.h"

namespace gpulet::health {
namespace {

EccReading ecc(std::uint64_t dram, std::uint64_t sram = 0, bool threshold = false) {
  EccReading reading;
  reading.uncorrected[static_cast<std::size_t>(EccLocation::kDram)] = dram;
  reading.uncorrected[static_cast<std::size_t>(EccLocation::kSram)] = sram;
  reading.sram_threshold_exceeded = threshold;
  return reading;
}

struct Row {
  const char* what;
  std::vector<EvidenceBody> evidence;  // a minute and a half apart
  DeviceState state;
  const char* reason;
  std::vector<EvidenceBody> over;  // reported every ten seconds, it ends
  seconds within;                  // and after so long; 0: never in an hour
};

PcieReading pcie(std::uint64_t replays, unsigned width = 16) { return {replays, width, 16}; }
ViolationReading violation(seconds thermal, seconds power = seconds(0)) { return {thermal, power}; }

const Row kRows[] = {
    {"lost",
     {HandleReading{Reachability::kLost, "GPU is lost"}},
     DeviceState::kLost,
     "cannot be read: GPU is lost",
     {HandleReading{}},
     seconds(40)},
    {"silent",
     {HandleReading{Reachability::kSilent, "no answer"}},
     DeviceState::kQuarantined,
     "cannot be read: no answer",
     {HandleReading{}},
     seconds(40)},
    {"reset required",
     {HandleReading{Reachability::kResetRequired, ""}},
     DeviceState::kQuarantined,
     "the driver requires a reset",
     {HandleReading{}},
     seconds(40)},
    {"action: reset",
     {RecoveryActionReading{1}},
     DeviceState::kQuarantined,
     "the driver asks to reset the GPU",
     {RecoveryActionReading{0}},
     seconds(40)},
    {"action: reboot",
     {RecoveryActionReading{2}},
     DeviceState::kQuarantined,
     "the driver asks to reboot the node",
     {RecoveryActionReading{0}},
     seconds(40)},
    {"action: drain",
     {RecoveryActionReading{4}},
     DeviceState::kDraining,
     "the driver asks to drain and reset the GPU",
     {RecoveryActionReading{0}},
     seconds(40)},
    {"action: new",
     {RecoveryActionReading{99}},
     DeviceState::kQuarantined,
     "the driver asks to an action that is not known",
     {RecoveryActionReading{0}},
     seconds(40)},
    {"action: stays",
     {RecoveryActionReading{1}},
     DeviceState::kQuarantined,
     "the driver asks to reset the GPU",
     {RecoveryActionReading{1}},
     seconds(0)},
    {"remap pending",
     {RowRemapReading{true, false, 0, 1}},
     DeviceState::kDegraded,
     "a row remap is pending until the next reset",
     {RowRemapReading{false, false, 0, 1}},
     seconds(40)},
    {"remap failed",
     {RowRemapReading{false, true, 0, 1}},
     DeviceState::kQuarantined,
     "a row could not be remapped",
     {RowRemapReading{false, false, 0, 1}},
     seconds(40)},
    {"remapped", {RowRemapReading{false, false, 0, 1}}, DeviceState::kHealthy, "", {}, seconds(0)},
    {"retired pages",
     {RetiredPagesReading{false, 40, 20}},
     DeviceState::kDegraded,
     "memory pages are retired or pending retirement: 60",
     {RetiredPagesReading{false, 40, 20}},
     seconds(0)},
    {"few retired pages", {RetiredPagesReading{false, 40, 19}}, DeviceState::kHealthy, "", {}, seconds(0)},
    {"page pending",
     {RetiredPagesReading{true, 1, 0}},
     DeviceState::kDegraded,
     "memory pages are retired or pending retirement: 1, and more at the next reset",
     {RetiredPagesReading{false, 1, 0}},
     seconds(40)},
    {"ecc errors",
     {ecc(1), ecc(2)},
     DeviceState::kDegraded,
     "new uncorrected memory errors: dram",
     {ecc(2)},
     seconds(610)},
    {"ecc errors at two places",
     {ecc(3, 4)},
     DeviceState::kDegraded,
     "new uncorrected memory errors: dram, sram",
     {ecc(3, 4)},
     seconds(610)},
    {"ecc counters cleared", {ecc(0)}, DeviceState::kHealthy, "", {}, seconds(0)},
    {"sram threshold",
     {ecc(0, 0, true)},
     DeviceState::kQuarantined,
     "too many SRAM errors",
     {ecc(0)},
     seconds(40)},
    {"a storm of corrected errors",
     {DriverNotice{Notice::kSingleBitStorm}},
     DeviceState::kDegraded,
     "a storm of corrected memory errors",
     {HandleReading{}},
     seconds(600)},
    {"link down",
     {HealthFeed::good_links(false)},
     DeviceState::kDegraded,
     "a link is down: 1",
     {HealthFeed::good_links(true)},
     seconds(40)},
    {"a link without a state is unknown, not down",
     {NvLinkReading{{{1, true, 0}}}},
     DeviceState::kHealthy,
     "",
     {},
     seconds(0)},
    {"a link without a state is no evidence that it is up again",
     {HealthFeed::good_links(false), NvLinkReading{{{0, true, 0}}}},
     DeviceState::kDegraded,
     "a link is down: 1",
     {HealthFeed::good_links(true)},
     seconds(40)},
    {"errors of a link that come and go are no new errors",
     {HealthFeed::good_links(true, 160), NvLinkReading{{{0, true, std::nullopt}, {1, true, std::nullopt}}}},
     DeviceState::kDegraded,
     "many errors on a link: 0",
     {HealthFeed::good_links(true, 160)},
     seconds(610)},
    {"memory errors without a value are no new errors when they have one again",
     {EccReading{{std::nullopt, 0, 0, 0, 0, 0, 0, 0}}, ecc(0)},
     DeviceState::kHealthy,
     "",
     {},
     seconds(0)},
    {"replays without a value are no reset",
     {PcieReading{std::nullopt, 16, 16}, pcie(0)},
     DeviceState::kHealthy,
     "",
     {},
     seconds(0)},
    {"link errors",
     {HealthFeed::good_links(true, 160)},
     DeviceState::kDegraded,
     "many errors on a link: 0",
     {HealthFeed::good_links(true, 160)},
     seconds(610)},
    {"few link errors",
     {HealthFeed::good_links(true, 100), HealthFeed::good_links(true, 200)},
     DeviceState::kHealthy,
     "",
     {},
     seconds(0)},
    {"a link that never was up",
     {NvLinkReading{{{0, true, 0}, {1, true, 0}, {2, false, 0}}}},
     DeviceState::kHealthy,
     "",
     {},
     seconds(0)},
    {"replays", {pcie(0), pcie(91)}, DeviceState::kDegraded, "many PCIe replays", {pcie(91)}, seconds(610)},
    {"few replays", {pcie(50), pcie(130)}, DeviceState::kHealthy, "", {}, seconds(0)},
    {"lanes",
     {pcie(0, 8)},
     DeviceState::kDegraded,
     "PCIe lanes are missing: 8 of 16",
     {pcie(0)},
     seconds(40)},
    {"hot",
     {violation(seconds(0)), violation(seconds(50))},
     DeviceState::kDegraded,
     "throttled by temperature",
     {violation(seconds(50))},
     seconds(670)},
    {"warm", {violation(seconds(0)), violation(seconds(40))}, DeviceState::kHealthy, "", {}, seconds(0)},
    {"at its power limit",
     {violation(seconds(0)), violation(seconds(0), seconds(89))},
     DeviceState::kHealthy,
     "",
     {},
     seconds(0)},
    {"fabric: joining",
     {FabricReading{FabricState::kJoining}},
     DeviceState::kDegraded,
     "its NVLink fabric is degraded: registration is in progress",
     {FabricReading{FabricState::kHealthy}},
     seconds(40)},
    {"fabric: joining again is no evidence that it has recovered",
     {FabricReading{FabricState::kFailed}, FabricReading{FabricState::kJoining}},
     DeviceState::kQuarantined,
     "not registered with its NVLink fabric: registration failed",
     {FabricReading{FabricState::kHealthy}},
     seconds(40)},
    {"fabric: failed",
     {FabricReading{FabricState::kFailed}},
     DeviceState::kQuarantined,
     "not registered with its NVLink fabric: registration failed",
     {FabricReading{FabricState::kHealthy}},
     seconds(40)},
    {"fabric: slow",
     {FabricReading{FabricState::kDegraded}},
     DeviceState::kDegraded,
     "its NVLink fabric is degraded: less bandwidth, or accesses that time out",
     {FabricReading{FabricState::kHealthy}},
     seconds(40)},
    {"inforom",
     {InforomReading{false}},
     DeviceState::kDegraded,
     "its InfoROM is corrupted",
     {InforomReading{true}},
     seconds(40)},
    {"probe",
     {ProbeReading{false, "wrong sum", ""}},
     DeviceState::kQuarantined,
     "a test program failed on it: wrong sum",
     {ProbeReading{true, "", ""}},
     seconds(40)},
    {"probe: slow copies",
     {ProbeReading{true, "", "9 GB/s"}},
     DeviceState::kQuarantined,
     "its copies are slow: 9 GB/s",
     {ProbeReading{true, "", ""}},
     seconds(40)},
    {"switch",
     {SwitchFault{20034, true}},
     DeviceState::kQuarantined,
     "a fatal NVSwitch error: SXid 20034",
     {ResetDone{}},
     seconds(40)},
    {"switch, mildly", {SwitchFault{12028, false}}, DeviceState::kHealthy, "", {}, seconds(0)},
    {"DBE",
     {DriverNotice{Notice::kDoubleBitEcc}},
     DeviceState::kQuarantined,
     "XID 48: double-bit ECC error",
     {ResetDone{}},
     seconds(40)},
    {"retirement failed",
     {DriverNotice{Notice::kRetirementFailure}},
     DeviceState::kQuarantined,
     "XID 64: row remapping or page retirement failed",
     {ResetDone{}},
     seconds(40)},
    {"poison",
     {DriverNotice{Notice::kFatalPoison}},
     DeviceState::kQuarantined,
     "XID 95: uncontained memory error",
     {ResetDone{}},
     seconds(40)},
    {"contained poison", {DriverNotice{Notice::kContainedPoison}}, DeviceState::kHealthy, "", {}, seconds(0)},
    {"fallen off",
     {FallenOff{}},
     DeviceState::kLost,
     "XID 79: GPU has fallen off the bus",
     {RecoveryActionReading{0}},
     seconds(40)},
    {"154 in the log",
     {XidReport{Source::kKernelLog, 154, {}, {}, {}, 2}},
     DeviceState::kQuarantined,
     "the driver asks to reboot the node",
     {RecoveryActionReading{0}},
     seconds(40)},
    {"154 back to none",
     {XidReport{Source::kKernelLog, 154, {}, {}, {}, 0}},
     DeviceState::kHealthy,
     "",
     {},
     seconds(0)},
    {"what says nothing",
     {DriverNotice{Notice::kSingleBitEcc}, DriverNotice{Notice::kClockChanged},
      DriverNotice{Notice::kMigChanged}},
     DeviceState::kHealthy,
     "",
     {},
     seconds(0)},
};

TEST(EvidenceRules, EverySourceOpensAndEndsItsFaults) {
  for (const auto& row : kRows) {
    HealthFeed feed;
    for (const auto& body : row.evidence) {
      feed.pass_time(seconds(90));
      feed.feed(kGpu, body);
    }
    EXPECT_EQ(enum_name(feed.state_of_device(kGpu)), enum_name(row.state)) << row.what;
    EXPECT_EQ(feed.reason_of_device(kGpu), row.reason) << row.what;
    EXPECT_EQ(feed.state_of_device(make_scope("GPU-1")), DeviceState::kHealthy) << row.what;
    if (row.over.empty()) continue;
    const Time start = feed.now;
    while (feed.state_of_device(kGpu) != DeviceState::kHealthy && feed.now - start < minutes(60)) {
      feed.pass_time(seconds(10));
      // The check's source reports the value of the row.
      std::set<Source> spoken;
      for (const auto& body : row.over) spoken.insert(source_of(body));
      const EvidenceBody others[] = {HandleReading{},          RecoveryActionReading{},
                                     RowRemapReading{},        EccReading{},
                                     HealthFeed::good_links(), FabricReading{FabricState::kHealthy}};
      for (const auto& body : others) {
        if (!spoken.contains(source_of(body))) feed.feed(kGpu, body);
      }
      for (const auto& body : row.over) feed.feed(kGpu, body);
    }
    const bool ended = feed.state_of_device(kGpu) == DeviceState::kHealthy;
    EXPECT_EQ(ended, row.within != seconds(0)) << row.what << ": " << feed.reason_of_device(kGpu);
    if (ended) {
      EXPECT_LE(feed.now - start, row.within + seconds(10)) << row.what;
      EXPECT_GE(feed.now - start, row.within - seconds(10)) << row.what;
    }
  }
}

TEST(EvidenceRules, AnOvertakenReadingIsDropped) {
  HealthFeed feed;
  feed.machine.add_evidence({kGpu, feed.now - seconds(5), RecoveryActionReading{1}});
  EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kHealthy);
}

TEST(EvidenceRules, PolicySetsTheEffectOfAClass) {
  Policy policy;
  policy.class_effects[FaultClass::kNvLinkDown] = Effect::kQuarantine;
  policy.class_effects[FaultClass::kInforom] = Effect::kIgnore;
  policy.class_holds[FaultClass::kNvLinkDown] = minutes(5);
  HealthFeed feed(policy);
  feed.feed(kGpu, InforomReading{false});
  EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kHealthy);
  feed.feed(kGpu, HealthFeed::good_links(false));
  EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kQuarantined);
  EXPECT_EQ(feed.time_until_allocatable(kGpu), minutes(5) + seconds(1));
}

}  // namespace
}  // namespace gpulet::health
