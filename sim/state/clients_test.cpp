#include "sim/state/clients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "sim/state/test_machine.h"

namespace gpulet::sim {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

class ClientsTest : public testing::Test {
 protected:
  void SetUp() override {
    char directory[] = "/tmp/gpulet-sim-XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
    auto made = StateFile::create_state(directory_ + "/state", *small_machine(2));
    ASSERT_TRUE(made) << made.error().full_message();
    state_ = std::move(*made);
    auto own = ClientEntry::add_client(state_, *state_.lock_for_edit(), 0);
    ASSERT_TRUE(own) << own.error().full_message();
    observer_.emplace(std::move(*own));
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  ClientEntry add_client(std::uint64_t gpus) {
    auto added = ClientEntry::add_client(state_, *state_.lock_for_edit(), gpus);
    EXPECT_TRUE(added) << added.error().full_message();
    return std::move(*added);
  }
  // As the first client sees them.
  std::vector<std::string> holders(std::optional<std::uint32_t> gpu = std::nullopt) {
    return holders_of(*state_.lock_for_read(), observer_->descriptor(), gpu);
  }
  static std::string own_name() { return std::to_string(getpid()) + " sim_state_test"; }

  std::string directory_;
  StateFile state_;
  std::optional<ClientEntry> observer_;
};

TEST_F(ClientsTest, AClientHoldsItsGpusUntilItsEntryEnds) {
  EXPECT_THAT(holders(), IsEmpty()) << "the caller's own entry does not count";
  {
    const auto second_gpu = add_client(0b10);
    EXPECT_THAT(holders(), ElementsAre(own_name()));
    EXPECT_THAT(holders(0), IsEmpty());
    EXPECT_THAT(holders(1), SizeIs(1));
    const auto refused = check_unused(*state_.lock_for_read(), observer_->descriptor(), 1);
    EXPECT_EQ(refused.error().code(), Code::kFailedPrecondition);
    EXPECT_EQ(refused.error().message(), "in use by: " + own_name());
  }
  EXPECT_THAT(holders(), IsEmpty());
  EXPECT_TRUE(check_unused(*state_.lock_for_read(), observer_->descriptor(), 1));
}

TEST_F(ClientsTest, AKilledProcessHoldsNothing) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto kept = ClientEntry::add_client(state_, *state_.lock_for_edit(), kAllGpus);
    char done = kept ? 1 : 0;
    if (write(ready[1], &done, 1) != 1) _exit(1);
    while (true) pause();
  }
  char added = 0;
  ASSERT_EQ(read(ready[0], &added, 1), 1);
  ASSERT_EQ(added, 1);
  EXPECT_THAT(holders(0), ElementsAre(std::to_string(child) + " sim_state_test"));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_THAT(holders(0), IsEmpty());
  close(ready[0]);
  close(ready[1]);
}

TEST_F(ClientsTest, AClientOfTheDriverBeforeAReloadHoldsNothing) {
  const auto before = add_client(kAllGpus);
  {
    const auto machine = state_.lock_for_edit();
    unload_driver(*machine);
    load_driver(*machine);
  }
  EXPECT_THAT(holders(), IsEmpty());
  const auto after = add_client(kAllGpus);
  EXPECT_THAT(holders(), SizeIs(1));
}

TEST_F(ClientsTest, AProcessWithALoadHoldsItsGpu) {
  Process process{};
  process.pid = 4'000'001;
  process.gpu_instance = process.compute_instance = kNoInstance;
  set_text(process.name, "trainer");
  ASSERT_TRUE(add_process(state_.lock_for_edit()->gpus[1], process));
  EXPECT_THAT(holders(0), IsEmpty());
  EXPECT_THAT(holders(1), ElementsAre("4000001 trainer"));
  EXPECT_THAT(holders(), ElementsAre("4000001 trainer"));
}

TEST_F(ClientsTest, TheTableIsBoundedAndEntriesAreReused) {
  std::vector<ClientEntry> all;
  while (all.size() + 1 < kMaxClients) all.push_back(add_client(kAllGpus));
  EXPECT_EQ(ClientEntry::add_client(state_, *state_.lock_for_edit(), kAllGpus).error().code(),
            Code::kFailedPrecondition);
  EXPECT_THAT(holders(), SizeIs(kMaxClients - 1));
  all.pop_back();
  all.push_back(add_client(kAllGpus));
  EXPECT_THAT(holders(), SizeIs(kMaxClients - 1));
}

}  // namespace
}  // namespace gpulet::sim
