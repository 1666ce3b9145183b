#include "nvml/nvlinks.h"

#include <gtest/gtest.h>

#include "nvml/test_on_driver.h"

namespace gpulet::nvml {
namespace {

using enum LinkCounter;

const std::set<LinkCounter> kEveryCounter = [] {
  std::set<LinkCounter> all;
  for (int i = 0; i <= static_cast<int>(kSymbolErrors); ++i) all.insert(static_cast<LinkCounter>(i));
  return all;
}();

class NvLinksTest : public DriverTest {
 protected:
  NvLinksTest() : DriverTest(2u) {}
  NvLinks links() const { return {*session_, gpu_}; }
  sim::NvLink& link(unsigned index) { return root_.edit_machine()->gpus[0].links[index]; }
};

TEST_F(NvLinksTest, StatesOfConnectedAndOtherLinks) {
  link(2).active = 0;
  link(5) = {};
  const auto states = links().read_states();
  ASSERT_TRUE(states) << states.error().full_message();
  ASSERT_EQ(states->size(), 17u);
  EXPECT_EQ(states->at(2), (NvLinkState{2, false}));
  EXPECT_EQ(states->at(5), (NvLinkState{6, true})) << "a gap does not end the list";
}

TEST_F(NvLinksTest, CountersUpToNvLink4) {
  link(3).transmitted_kib = 70;
  link(3).received_kib = 30;
  link(3).replay_errors = 1;
  link(3).recovery_errors = 2;
  link(3).crc_flit_errors = 3;
  link(3).crc_data_errors = 4;
  link(17).crc_data_errors = 5;
  link(17).active = 0;
  const auto values = links().read_values({3, 17}, kEveryCounter);
  ASSERT_TRUE(values) << values.error().full_message();
  ASSERT_EQ(values->size(), 2u);
  EXPECT_TRUE(values->at(3).up);
  EXPECT_EQ(values->at(3).counters, (std::map<LinkCounter, std::uint64_t>{{kTransmitted, 70},
                                                                          {kReceived, 30},
                                                                          {kReplayErrors, 1},
                                                                          {kRecoveryErrors, 2},
                                                                          {kCrcErrors, 7},
                                                                          {kCrcFlitErrors, 3},
                                                                          {kCrcDataErrors, 4}}));
  EXPECT_FALSE(values->at(17).up);
  EXPECT_EQ(values->at(17).counters.at(kCrcDataErrors), 5u) << "by the older call: no field has this link";
  EXPECT_EQ(links().read_values({3}, {kReceived})->at(3).counters,
            (std::map<LinkCounter, std::uint64_t>{{kReceived, 30}}));
  EXPECT_TRUE(links().read_values({}, kEveryCounter)->empty());
  EXPECT_TRUE(links().read_values({18}, kEveryCounter)->empty()) << "the GPU has no such link";
}

TEST_F(NvLinksTest, CountersOfNvLink5) {
  for (auto& one : root_.edit_machine()->gpus[0].links) one.version = 7;
  link(1).transmitted_kib = 2;
  link(1).received_kib = 3;
  link(1).replay_errors = 100;
  link(1).recovery_errors = 4;
  link(1).crc_data_errors = 5;
  auto wanted = kEveryCounter;
  wanted.erase(kCrcFlitErrors);
  wanted.erase(kCrcDataErrors);
  const auto values = links().read_values({1}, wanted);
  ASSERT_TRUE(values) << values.error().full_message();
  const auto& counters = values->at(1).counters;
  for (const auto& [counter, value] : std::map<LinkCounter, std::uint64_t>{{kTransmitted, 2},
                                                                           {kTransmittedBytes, 2048},
                                                                           {kReceivedBytes, 3072},
                                                                           {kReceivedPackets, 12},
                                                                           {kReceiveErrors, 5},
                                                                           {kRecoveries, 4},
                                                                           {kRecoveriesFailed, 0}})
    EXPECT_EQ(counters.at(counter), value) << static_cast<int>(counter);
  for (const LinkCounter counter : {kReplayErrors, kRecoveryErrors, kCrcErrors})
    EXPECT_FALSE(counters.contains(counter)) << static_cast<int>(counter);
}

TEST_F(NvLinksTest, ErrorsAndGpusWithoutLinks) {
  for (auto& one : root_.edit_machine()->gpus[0].links) one = {};
  expect_unsupported(links().read_states(), "nvmlDeviceGetNvLinkState");
  root_.edit_machine()->gpus[0].faults.lost = 1;
  EXPECT_EQ(links().read_states().error().code(), Code::kDeviceLost);
  EXPECT_EQ(links().read_values({0}, {kReceived}).error().code(), Code::kDeviceLost);
  gpu_.generation = 0;
  EXPECT_EQ(links().read_values({0}, {kReceived}).error().code(), Code::kUnavailable);
}

TEST(NvLinksOfBareDriver, AreUnsupported) {
  const SimRoot root(*sim::small_machine(1), GPULET_BARE_DRIVER);
  const auto session = Session::open_session(root.sim_root());
  ASSERT_TRUE(session) << session.error().full_message();
  const NvLinks links(**session, *(*session)->device(0));
  expect_unsupported(links.read_states(), "nvmlDeviceGetNvLinkState");
  EXPECT_TRUE(links.read_values({0}, {kReceived})->empty());
}

// See fake/odd_driver.cpp: GPU 1 has none of these fields.
TEST(NvLinksOfOddDriver, UseTheCallsOfAnOldDriver) {
  const SimRoot root(*sim::small_machine(1), GPULET_ODD_DRIVER);
  const auto session = Session::open_session(root.sim_root());
  ASSERT_TRUE(session) << session.error().full_message();
  const NvLinks links(**session, *(*session)->device(1));
  const auto values = links.read_values({0, 1}, {kReceived, kCrcFlitErrors, kCrcDataErrors});
  ASSERT_TRUE(values) << values.error().full_message();
  ASSERT_EQ(values->size(), 2u);
  EXPECT_TRUE(values->at(0).up);
  EXPECT_EQ(values->at(0).counters,
            (std::map<LinkCounter, std::uint64_t>{{kCrcFlitErrors, 3}, {kCrcDataErrors, 4}}));
  EXPECT_FALSE(values->at(1).up);
  EXPECT_TRUE(values->at(1).counters.empty()) << "an odd answer removes one value";
}

}  // namespace
}  // namespace gpulet::nvml
