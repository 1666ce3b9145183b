#include "health/cordons.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "base/file.h"
#include "base/text.h"
#include "health/test_feed.h"

namespace gpulet::health {
namespace {

const DeviceUuid kUuid("GPU-0");

OperatorWord word(Wish wish, std::int64_t at_ms, std::string words = {}) {
  return {wish, WallTime(milliseconds(at_ms)), std::move(words)};
}

TEST(Cordons, AreALineADevice) {
  const Cordons cordons{{DeviceUuid("GPU-a"), word(Wish::kCordon, 12, "new riser")},
                        {DeviceUuid("MIG-b"), word(Wish::kUncordon, 1763712000123)},
                        {DeviceUuid("GPU-c"), word(Wish::kCordon, 0)}};
  const std::string text =
      "gpulet-cordons 1\n"
      "cordoned GPU-a 12 new riser\n"
      "cordoned GPU-c 0\n"
      "uncordoned MIG-b 1763712000123\n";
  EXPECT_EQ(format_cordons(cordons), text);
  const auto back = parse_cordons(text);
  ASSERT_TRUE(back) << back.error().text();
  EXPECT_EQ(*back, cordons);
  EXPECT_TRUE(parse_cordons("gpulet-cordons 1\n"));
}

TEST(Cordons, WhatIsNoneIsRefusedByItsLine) {
  const auto refused = [](const std::string& text) {
    const auto cordons = parse_cordons(text);
    return cordons ? "read" : cordons.error().message();
  };
  EXPECT_EQ(refused(""), "line 1 is not 'gpulet-cordons 1'");
  EXPECT_EQ(refused("gpulet-cordons 2\n"), "line 1 is not 'gpulet-cordons 1'");
  EXPECT_EQ(refused("gpulet-cordons 1"), "line 1 is cut off");
  const std::string head = "gpulet-cordons 1\ncordoned GPU-a 1\n";
  EXPECT_EQ(refused(head + "cordoned GPU-b 1"), "line 3 is cut off");
  for (const auto* line :
       {"", "cordoned", "cordoned GPU-b", "cordoned GPU-b -1", "cordoned GPU-b x why", "cordon GPU-b 1",
        "cordoned  1", "cordoned GPU-b 99999999999999", "cordoned GPU-a 2", "cordoned GPU-b 1  why",
        "cordoned GPU-b 1 why\t", "cordoned GPU-\xff 1"}) {
    EXPECT_EQ(refused(head + line + "\n"), "line 3 is no operator's word about a device") << line;
  }
  std::string many = "gpulet-cordons 1\n";
  for (std::size_t i = 0; i <= kMaxCordons; ++i) many += "cordoned GPU-" + std::to_string(i) + " 1\n";
  EXPECT_EQ(refused(many), "line 1026 is one too many");
}

TEST(Cordons, WordsAreOneShortLine) {
  EXPECT_EQ(cordon_words("  new\nriser\x1b[2J "), "new riser [2J");
  EXPECT_EQ(cordon_words(std::string(400, 'x')).size(), kMaxCordonWords);
  const auto cut = cordon_words(std::string(kMaxCordonWords - 1, 'x') + "ä");
  EXPECT_EQ(cut.size(), kMaxCordonWords - 1) << "no half character";
}

class CordonsFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "cordons.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = path;
    path_ = folder_ + "/state/cordons";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_, path_;
};

TEST_F(CordonsFile, IsChangedAndReadBack) {
  const WallTime now{milliseconds(5000)};
  EXPECT_TRUE(read_cordons(path_)->empty()) << "there is none yet";
  ASSERT_TRUE(
      change_cordons(path_, now, [](Cordons& all) { all[kUuid] = word(Wish::kCordon, 5000, "why"); }));
  EXPECT_EQ(read_cordons(path_)->at(kUuid).words, "why");
  const auto written = std::filesystem::last_write_time(path_);
  ASSERT_TRUE(change_cordons(path_, now, [](Cordons&) {}));
  EXPECT_EQ(std::filesystem::last_write_time(path_), written) << "nothing differs";
  ASSERT_TRUE(change_cordons(path_, now, [](Cordons& all) { all[kUuid] = word(Wish::kUncordon, 5000); }));
  const auto much_later = now + std::chrono::duration_cast<WallTime::duration>(kUncordonedKept) + seconds(1);
  ASSERT_TRUE(change_cordons(path_, much_later,
                             [](Cordons& all) { all[DeviceUuid("GPU-b")] = word(Wish::kCordon, 6000); }));
  EXPECT_EQ(read_cordons(path_)->size(), 1u) << "an old word of the end is forgotten";
}

TEST_F(CordonsFile, ADamagedOneIsLeftAsItIs) {
  ASSERT_TRUE(write_file_atomic(path_, "gpulet-cordons 1\nx\n"));
  const auto status = change_cordons(path_, {}, [](Cordons& all) { all.clear(); });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().text(), path_ + ": line 2 is no operator's word about a device");
  EXPECT_EQ(*read_file(path_), "gpulet-cordons 1\nx\n");
}

TEST_F(CordonsFile, ChangesAtTheSameTimeAreAllKept) {
  constexpr unsigned kThreads = 4, kEach = 20;
  std::atomic<unsigned> failed = 0;
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (unsigned i = 0; i < kEach; ++i) {
        const DeviceUuid uuid("GPU-" + std::to_string(thread) + "-" + std::to_string(i));
        const auto status =
            change_cordons(path_, {}, [&](Cordons& all) { all[uuid] = word(Wish::kCordon, 1); });
        if (!status) ++failed;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failed, 0u);
  EXPECT_EQ(read_cordons(path_)->size(), kThreads * kEach);
}

// The machine, told what the words ask for until they ask for nothing more.
class Wishes : public testing::Test {
 protected:
  Clock clock() const { return {feed_.now, WallTime(seconds(1'763'712'000)) + feed_.now.time_since_epoch()}; }
  WallTime wall() const { return std::chrono::floor<milliseconds>(clock().wall); }
  View view() const { return view_of(feed_.machine, feed_.there, clock()); }
  // How many wishes there were.
  std::size_t settle() {
    const auto wishes = wishes_of(view(), cordons_, clock());
    for (const auto& wish : wishes) feed_.machine.on_evidence(wish);
    feed_.machine.advance(feed_.now);
    EXPECT_TRUE(wishes_of(view(), cordons_, clock()).empty()) << "said once";
    return wishes.size();
  }
  void restart() {
    const auto saved = feed_.machine.save(clock(), "boot");
    feed_.machine = Machine({}, XidFilter("", ""));
    feed_.pass(minutes(5));
    feed_.machine.restore(saved, "boot", clock());
    feed_.machine.on_snapshot(feed_.there, feed_.now);
    feed_.good(kGpu);
    feed_.tell(kGpu, SourceNotice{Source::kDriverEvents, std::nullopt});
  }

  Feed feed_;
  Cordons cordons_;
};

TEST_F(Wishes, ACordonStandsUntilItIsOver) {
  EXPECT_EQ(settle(), 0u);
  cordons_[kUuid] = {Wish::kCordon, wall(), "new riser"};
  EXPECT_EQ(settle(), 1u);
  EXPECT_EQ(feed_.state(kGpu), State::kDraining);
  EXPECT_EQ(feed_.reason(kGpu), "cordoned: new riser");
  EXPECT_EQ(feed_.picture(), "d....");
  feed_.pass(minutes(1));
  EXPECT_EQ(settle(), 0u);
  cordons_[kUuid] = {Wish::kCordon, wall(), "new fan"};
  EXPECT_EQ(settle(), 1u);
  EXPECT_EQ(feed_.reason(kGpu), "cordoned: new fan");
  feed_.pass(minutes(1));
  cordons_[kUuid] = {Wish::kUncordon, wall(), {}};
  EXPECT_EQ(settle(), 1u);
  EXPECT_EQ(feed_.state(kGpu), State::kHealthy);
  feed_.pass(minutes(1));
  EXPECT_EQ(settle(), 0u);
}

TEST_F(Wishes, OutliveARestart) {
  cordons_[kUuid] = {Wish::kCordon, wall(), "new riser"};
  settle();
  restart();
  EXPECT_EQ(feed_.state(kGpu), State::kDraining);
  EXPECT_EQ(settle(), 0u) << "the state file has it";
  cordons_[kUuid] = {Wish::kUncordon, wall(), {}};
  restart();
  EXPECT_EQ(settle(), 1u) << "said while no agent ran";
  EXPECT_EQ(feed_.state(kGpu), State::kHealthy);
}

TEST_F(Wishes, OfALineThatIsGoneAreOver) {
  cordons_[kUuid] = {Wish::kCordon, wall(), {}};
  settle();
  feed_.pass(seconds(1));
  feed_.xid(kGpu, 95);
  feed_.pass(seconds(1));
  cordons_.clear();
  EXPECT_EQ(settle(), 1u);
  EXPECT_EQ(feed_.reason(kGpu).substr(0, 6), "XID 95") << "a line that is gone vouches for nothing";
  EXPECT_EQ(feed_.state(kGpu), State::kQuarantined);
}

TEST_F(Wishes, AnUncordonVouchesForWhatCameBeforeItAlone) {
  feed_.xid(kGpu, 95);
  feed_.pass(seconds(2));
  cordons_[kUuid] = {Wish::kUncordon, wall(), {}};
  EXPECT_EQ(settle(), 1u);
  EXPECT_EQ(feed_.state(kGpu), State::kRecovering);
  feed_.pass(seconds(2));
  feed_.xid(kGpu, 95);
  EXPECT_EQ(settle(), 0u);
  EXPECT_EQ(feed_.state(kGpu), State::kQuarantined);
  restart();
  EXPECT_EQ(settle(), 0u) << "an old word says nothing of a new fault";
}

TEST_F(Wishes, OfOneMigDeviceAreItsAlone) {
  for (auto& mig : feed_.there.gpus[1].mig_devices) mig.uuid = DeviceUuid("MIG-" + std::to_string(mig.index));
  cordons_[DeviceUuid("MIG-1")] = {Wish::kCordon, wall(), {}};
  EXPECT_EQ(settle(), 1u);
  EXPECT_EQ(feed_.picture(), "...d.");
  cordons_[DeviceUuid("GPU-1")] = {Wish::kCordon, wall(), {}};
  settle();
  EXPECT_EQ(feed_.picture(), ".dddd");
  feed_.pass(seconds(1));
  cordons_.erase(DeviceUuid("MIG-1"));
  cordons_[DeviceUuid("GPU-1")] = {Wish::kUncordon, wall(), {}};
  settle();
  EXPECT_EQ(feed_.picture(), ".....");
}

TEST_F(Wishes, AWordAboutWhatIsNotThereWaits) {
  cordons_[DeviceUuid("GPU-9")] = {Wish::kCordon, wall(), {}};
  EXPECT_EQ(settle(), 0u);
  auto late = feed_.there.gpus[0];
  late.uuid = DeviceUuid("GPU-9");
  late.pci.bus = 0x20;
  feed_.there.gpus.insert(feed_.there.gpus.begin(), late);
  feed_.machine.on_snapshot(feed_.there, feed_.now);
  EXPECT_EQ(settle(), 1u);
  EXPECT_EQ(feed_.state(scope("GPU-9")), State::kDraining);
}

TEST_F(Wishes, AWordOfTheFutureIsOfNow) {
  cordons_[kUuid] = {Wish::kCordon, wall() + std::chrono::hours(9), {}};
  EXPECT_EQ(settle(), 1u);
  EXPECT_EQ(feed_.state(kGpu), State::kDraining);
  feed_.pass(seconds(1));
  cordons_[kUuid] = {Wish::kUncordon, wall() + std::chrono::hours(9), {}};
  EXPECT_EQ(settle(), 1u);
  EXPECT_EQ(feed_.state(kGpu), State::kHealthy);
}

}  // namespace
}  // namespace gpulet::health
