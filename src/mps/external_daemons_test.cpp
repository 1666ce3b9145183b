#include "mps/external_daemons.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mps/test_mps_node.h"

namespace gpulet::mps {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr const char* kName = "nvidia.com/gpu";

// A plugin's view of daemons that mps-control-daemon runs beside it.
class MpsExternalDaemons : public testing::Test {
 protected:
  MpsExternalDaemons() { mps_node_.options.check_interval = 20ms; }

  inventory::Health health() const { return daemons_.daemon_healths().at(kName); }
  bool becomes(bool healthy, const std::string& reason = {}) {
    return mps_node_.wait_until(
        [&] { return health().healthy == healthy && health().reason.find(reason) != std::string::npos; });
  }

  TestMpsNode mps_node_;
  std::vector<inventory::Health> reported_;
  ExternalDaemons daemons_{mps_node_.loop, mps_node_.options,
                           [this](const std::string& name, const inventory::Health& health) {
                             EXPECT_EQ(name, kName);
                             reported_.push_back(health);
                           }};
};

TEST_F(MpsExternalDaemons, ServeOnlyWhileTheyAnswer) {
  daemons_.apply_specs({mps_node_.make_spec(2)});
  EXPECT_EQ(health(),
            (inventory::Health{false, "the MPS control daemon of nvidia.com/gpu has not answered yet"}));
  ASSERT_TRUE(becomes(false, "Cannot find MPS control daemon process"));

  const auto daemon = mps_node_.make_daemon(mps_node_.make_spec(2));
  daemon->start_daemon();
  ASSERT_TRUE(becomes(true));
  daemons_.apply_specs({mps_node_.make_spec(2)});
  EXPECT_TRUE(health().healthy) << "an unchanged daemon stays";

  bool stopped = false;
  daemon->stop_daemon([&] { stopped = true; });
  ASSERT_TRUE(becomes(false, "does not respond"));
  ASSERT_TRUE(mps_node_.wait_until([&] { return stopped; }));
  ASSERT_FALSE(reported_.empty());
  EXPECT_FALSE(reported_.front().healthy);
  EXPECT_EQ(std::ranges::count_if(reported_, [](const auto& one) { return one.healthy; }), 1);
}

TEST_F(MpsExternalDaemons, DoNotServeWithTheLimitsOfAnotherConfig) {
  const auto daemon = mps_node_.make_daemon(mps_node_.make_spec(2));
  daemon->start_daemon();
  daemons_.apply_specs({mps_node_.make_spec(2)});
  ASSERT_TRUE(becomes(true));
  auto halves = mps_node_.make_spec(2);
  halves.thread_percentage = 50;
  daemons_.apply_specs({halves});
  EXPECT_FALSE(health().healthy) << "until the daemon reports the new limit";
  ASSERT_TRUE(becomes(false, "does not limit its clients to 50 % of a GPU's threads"));
  daemon->update_spec(halves);
  ASSERT_TRUE(becomes(true));
}

TEST_F(MpsExternalDaemons, DoNotServeWithoutAProgramToAskWith) {
  std::filesystem::remove(mps_node_.root.control_program());
  daemons_.apply_specs({mps_node_.make_spec(1)});
  EXPECT_THAT(health().reason, HasSubstr("nvidia-cuda-mps-control"));
  daemons_.apply_specs({});
  EXPECT_TRUE(daemons_.daemon_healths().empty());
}

TEST(MpsThreadPercentage, IsTheLastLineOfAnAnswer) {
  EXPECT_TRUE(holds_thread_percentage("50.0\n", 50));
  EXPECT_TRUE(holds_thread_percentage("set to 1G\n\n33.0\n\n", 33));
  EXPECT_FALSE(holds_thread_percentage("100.0\n", 50));
  for (const char* other : {"", "\n", "50.0 %", "fifty", "nan", "50.0\nfailed"})
    EXPECT_FALSE(holds_thread_percentage(other, 50)) << other;
}

}  // namespace
}  // namespace gpulet::mps
