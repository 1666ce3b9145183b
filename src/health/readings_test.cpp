// What each source's readings do, and how that is left again.
#include <gtest/gtest.h>

#include "health/test_feed.h"

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
  std::vector<Body> said;  // a minute and a half apart
  State state;
  const char* reason;
  std::vector<Body> over;  // said every ten seconds, it ends
  seconds within;          // and after so long; 0: never in an hour
};

PcieReading pcie(std::uint64_t replays, unsigned width = 16) { return {replays, width, 16}; }
ViolationReading violation(seconds thermal, seconds power = seconds(0)) { return {thermal, power}; }

const Row kRows[] = {
    {"lost",
     {HandleReading{Answer::kLost, "GPU is lost"}},
     State::kLost,
     "cannot be read: GPU is lost",
     {HandleReading{}},
     seconds(40)},
    {"silent",
     {HandleReading{Answer::kSilent, "no answer"}},
     State::kQuarantined,
     "cannot be read: no answer",
     {HandleReading{}},
     seconds(40)},
    {"reset required",
     {HandleReading{Answer::kResetRequired, ""}},
     State::kQuarantined,
     "the driver refuses it until it is reset",
     {HandleReading{}},
     seconds(40)},
    {"action: reset",
     {RecoveryActionReading{1}},
     State::kQuarantined,
     "the driver asks to reset the GPU",
     {RecoveryActionReading{0}},
     seconds(40)},
    {"action: reboot",
     {RecoveryActionReading{2}},
     State::kQuarantined,
     "the driver asks to reboot the node",
     {RecoveryActionReading{0}},
     seconds(40)},
    {"action: drain",
     {RecoveryActionReading{4}},
     State::kDraining,
     "the driver asks to drain and reset the GPU",
     {RecoveryActionReading{0}},
     seconds(40)},
    {"action: new",
     {RecoveryActionReading{99}},
     State::kQuarantined,
     "the driver asks to an action that is not known",
     {RecoveryActionReading{0}},
     seconds(40)},
    {"action: stays",
     {RecoveryActionReading{1}},
     State::kQuarantined,
     "the driver asks to reset the GPU",
     {RecoveryActionReading{1}},
     seconds(0)},
    {"remap pending",
     {RowRemapReading{true, false, 0, 1}},
     State::kDegraded,
     "a row is remapped at the next reset",
     {RowRemapReading{false, false, 0, 1}},
     seconds(40)},
    {"remap failed",
     {RowRemapReading{false, true, 0, 1}},
     State::kQuarantined,
     "a row could not be remapped",
     {RowRemapReading{false, false, 0, 1}},
     seconds(40)},
    {"remapped", {RowRemapReading{false, false, 0, 1}}, State::kHealthy, "", {}, seconds(0)},
    {"retired pages",
     {RetiredPagesReading{false, 40, 20}},
     State::kDegraded,
     "memory pages are retired, or due to be: 60",
     {RetiredPagesReading{false, 40, 20}},
     seconds(0)},
    {"few retired pages", {RetiredPagesReading{false, 40, 19}}, State::kHealthy, "", {}, seconds(0)},
    {"page pending",
     {RetiredPagesReading{true, 1, 0}},
     State::kDegraded,
     "memory pages are retired, or due to be: 1, and more at the next reset",
     {RetiredPagesReading{false, 1, 0}},
     seconds(40)},
    {"ecc errors",
     {ecc(1), ecc(2)},
     State::kDegraded,
     "new uncorrected memory errors: dram",
     {ecc(2)},
     seconds(610)},
    {"ecc errors at two places",
     {ecc(3, 4)},
     State::kDegraded,
     "new uncorrected memory errors: dram, sram",
     {ecc(3, 4)},
     seconds(610)},
    {"ecc counters cleared", {ecc(0)}, State::kHealthy, "", {}, seconds(0)},
    {"sram threshold", {ecc(0, 0, true)}, State::kQuarantined, "too many SRAM errors", {ecc(0)}, seconds(40)},
    {"a storm of corrected errors",
     {DriverNotice{Notice::kSingleBitStorm}},
     State::kDegraded,
     "a storm of corrected memory errors",
     {HandleReading{}},
     seconds(600)},
    {"link down",
     {Feed::links(false)},
     State::kDegraded,
     "a link is down: 1",
     {Feed::links(true)},
     seconds(40)},
    {"link gone",
     {NvLinkReading{{{1, true, 0}}}},
     State::kDegraded,
     "a link is down: 0",
     {Feed::links(true)},
     seconds(40)},
    {"link errors",
     {Feed::links(true, 160)},
     State::kDegraded,
     "many errors on a link: 0",
     {Feed::links(true, 160)},
     seconds(610)},
    {"few link errors",
     {Feed::links(true, 100), Feed::links(true, 200)},
     State::kHealthy,
     "",
     {},
     seconds(0)},
    {"a link that never was up",
     {NvLinkReading{{{0, true, 0}, {1, true, 0}, {2, false, 0}}}},
     State::kHealthy,
     "",
     {},
     seconds(0)},
    {"replays", {pcie(0), pcie(91)}, State::kDegraded, "many PCIe replays", {pcie(91)}, seconds(610)},
    {"few replays", {pcie(50), pcie(130)}, State::kHealthy, "", {}, seconds(0)},
    {"lanes", {pcie(0, 8)}, State::kDegraded, "PCIe lanes are missing: 8 of 16", {pcie(0)}, seconds(40)},
    {"hot",
     {violation(seconds(0)), violation(seconds(50))},
     State::kDegraded,
     "held back by its temperature",
     {violation(seconds(50))},
     seconds(670)},
    {"warm", {violation(seconds(0)), violation(seconds(40))}, State::kHealthy, "", {}, seconds(0)},
    {"at its power limit",
     {violation(seconds(0)), violation(seconds(0), seconds(89))},
     State::kHealthy,
     "",
     {},
     seconds(0)},
    {"fabric: joining",
     {FabricReading{FabricState::kJoining}},
     State::kQuarantined,
     "not in its NVLink fabric: it is registering",
     {FabricReading{FabricState::kHealthy}},
     seconds(40)},
    {"fabric: failed",
     {FabricReading{FabricState::kFailed}},
     State::kQuarantined,
     "not in its NVLink fabric: it failed",
     {FabricReading{FabricState::kHealthy}},
     seconds(40)},
    {"fabric: slow",
     {FabricReading{FabricState::kDegraded}},
     State::kDegraded,
     "its NVLink fabric is degraded",
     {FabricReading{FabricState::kHealthy}},
     seconds(40)},
    {"inforom",
     {InforomReading{false}},
     State::kDegraded,
     "its InfoROM is corrupted",
     {InforomReading{true}},
     seconds(40)},
    {"probe",
     {ProbeReading{false, "wrong sum"}},
     State::kQuarantined,
     "a test program failed on it: wrong sum",
     {ProbeReading{true, ""}},
     seconds(40)},
    {"switch",
     {SwitchFault{20034, true}},
     State::kQuarantined,
     "a fatal NVSwitch error: SXid 20034",
     {ResetDone{}},
     seconds(40)},
    {"switch, mildly", {SwitchFault{12028, false}}, State::kHealthy, "", {}, seconds(0)},
    {"DBE",
     {DriverNotice{Notice::kDoubleBitEcc}},
     State::kQuarantined,
     "XID 48: double-bit ECC error",
     {ResetDone{}},
     seconds(40)},
    {"retirement failed",
     {DriverNotice{Notice::kRetirementFailure}},
     State::kQuarantined,
     "XID 64: row remapping or page retirement failed",
     {ResetDone{}},
     seconds(40)},
    {"poison",
     {DriverNotice{Notice::kFatalPoison}},
     State::kQuarantined,
     "XID 95: uncontained memory error",
     {ResetDone{}},
     seconds(40)},
    {"contained poison", {DriverNotice{Notice::kContainedPoison}}, State::kHealthy, "", {}, seconds(0)},
    {"fallen off",
     {FallenOff{}},
     State::kLost,
     "XID 79: GPU has fallen off the bus",
     {RecoveryActionReading{0}},
     seconds(40)},
    {"154 in the log",
     {XidReport{Source::kKernelLog, 154, {}, {}, {}, 2}},
     State::kQuarantined,
     "the driver asks to reboot the node",
     {RecoveryActionReading{0}},
     seconds(40)},
    {"154 back to none",
     {XidReport{Source::kKernelLog, 154, {}, {}, {}, 0}},
     State::kHealthy,
     "",
     {},
     seconds(0)},
    {"what says nothing",
     {DriverNotice{Notice::kSingleBitEcc}, DriverNotice{Notice::kClockChanged},
      DriverNotice{Notice::kMigChanged}},
     State::kHealthy,
     "",
     {},
     seconds(0)},
};

TEST(Readings, Table) {
  for (const auto& row : kRows) {
    Feed feed;
    for (const auto& body : row.said) {
      feed.pass(seconds(90));
      feed.tell(kGpu, body);
    }
    EXPECT_EQ(name(feed.state(kGpu)), name(row.state)) << row.what;
    EXPECT_EQ(feed.reason(kGpu), row.reason) << row.what;
    EXPECT_EQ(feed.state(scope("GPU-1")), State::kHealthy) << row.what;
    if (row.over.empty()) continue;
    const Time start = feed.now;
    while (feed.state(kGpu) != State::kHealthy && feed.now - start < minutes(60)) {
      feed.pass(seconds(10));
      // The check's own source says what the row wants it to.
      std::set<Source> spoken;
      for (const auto& body : row.over) spoken.insert(source_of(body));
      const Body others[] = {HandleReading{}, RecoveryActionReading{}, RowRemapReading{},
                             EccReading{},    Feed::links(),           FabricReading{FabricState::kHealthy}};
      for (const auto& body : others) {
        if (!spoken.contains(source_of(body))) feed.tell(kGpu, body);
      }
      for (const auto& body : row.over) feed.tell(kGpu, body);
    }
    const bool ended = feed.state(kGpu) == State::kHealthy;
    EXPECT_EQ(ended, row.within != seconds(0)) << row.what << ": " << feed.reason(kGpu);
    if (ended) {
      EXPECT_LE(feed.now - start, row.within + seconds(10)) << row.what;
      EXPECT_GE(feed.now - start, row.within - seconds(10)) << row.what;
    }
  }
}

TEST(Readings, OneThatWasOvertakenSaysNothing) {
  Feed feed;
  feed.machine.on_evidence({kGpu, feed.now - seconds(5), RecoveryActionReading{1}});
  EXPECT_EQ(feed.state(kGpu), State::kHealthy);
}

TEST(Readings, PolicyDecidesWhatAClassDoes) {
  Policy policy;
  policy.effects[FaultClass::kNvLinkDown] = Effect::kQuarantine;
  policy.effects[FaultClass::kInforom] = Effect::kIgnore;
  policy.holds[FaultClass::kNvLinkDown] = minutes(5);
  Feed feed(policy);
  feed.tell(kGpu, InforomReading{false});
  EXPECT_EQ(feed.state(kGpu), State::kHealthy);
  feed.tell(kGpu, Feed::links(false));
  EXPECT_EQ(feed.state(kGpu), State::kQuarantined);
  EXPECT_EQ(feed.until_offered(kGpu), minutes(5) + seconds(1));
}

}  // namespace
}  // namespace gpulet::health
