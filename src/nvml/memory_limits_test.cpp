#include "nvml/memory_limits.h"

#include <linux/capability.h>

#include "base/test_capabilities.h"
#include "nvml/test_on_driver.h"
#include "nvml/usage.h"

namespace gpulet::nvml {
namespace {

class MemoryLimiterTest : public DriverTest, public testing::WithParamInterface<sim::MemoryBackend> {
 protected:
  MemoryLimiterTest() : DriverTest(*sim::machine_with_memory_limits(GetParam())) {
    std::filesystem::create_directories(cgroup());
  }
  std::string cgroup() const { return root_.sim_root() + "/cgroup/pod"; }
  MemoryLimiter limiter() const { return {*session_, gpu_}; }
};

TEST_P(MemoryLimiterTest, SetsReadsAndClears) {
  EXPECT_TRUE(MemoryLimiter::has_functions(*session_));
  const MemoryLimits limits{mebibytes(2000), mebibytes(3000), {}};
  const auto set = limiter().set_limits(cgroup(), limits);
  ASSERT_TRUE(set) << set.error().full_message();
  EXPECT_EQ(limiter().read_limits(cgroup()).value(), limits);
  EXPECT_FALSE(MemoryLimiter(*session_, *session_->device(1))
                   .read_limits(cgroup())
                   .value_or(MemoryLimits{})
                   .is_limited())
      << "of another GPU";
  ASSERT_TRUE(limiter().set_limits(cgroup(), {}));
  EXPECT_FALSE(limiter().read_limits(cgroup()).value_or(MemoryLimits{}).is_limited());
}

TEST_P(MemoryLimiterTest, ErrorsNameTheCgroup) {
  const auto missing = limiter().set_limits(cgroup() + "/gone", {{}, mebibytes(1)});
  EXPECT_EQ(missing.error().code(), Code::kIo);
  EXPECT_EQ(missing.error().subject(), cgroup() + "/gone");
  EXPECT_TRUE(missing.error().message().starts_with("nvmlDeviceSetMemoryLimits_v1: "));
  EXPECT_EQ(limiter().set_limits(cgroup(), {mebibytes(2), mebibytes(1)}).error().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(limiter().set_limits(cgroup(), {{}, mebibytes(90'000)}).error().code(), Code::kInvalidArgument);
}

TEST_P(MemoryLimiterTest, SettingNeedsARightAndReadingDoesNot) {
  ASSERT_TRUE(limiter().set_limits(cgroup(), {{}, mebibytes(3000)}));
  run_without_capability(CAP_SYS_ADMIN, [this] {
    const auto refused = limiter().set_limits(cgroup(), {});
    EXPECT_EQ(refused.error().code(), Code::kPermissionDenied);
    EXPECT_NE(refused.error().message().find("CAP_SYS_ADMIN"), std::string::npos);
    EXPECT_EQ(limiter().read_limits(cgroup()).value().hard, mebibytes(3000));
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, MemoryLimiterTest,
                         testing::Values(sim::MemoryBackend::kMisc, sim::MemoryBackend::kDmem),
                         [](const auto& backend) {
                           return backend.param == sim::MemoryBackend::kMisc ? "Misc" : "Dmem";
                         });

TEST(MemoryLimiterOfOldDriver, IsUnsupported) {
  const SimRoot root(1);
  const auto session = Session::open_session(root.sim_root()).value();
  const MemoryLimiter limiter(*session, *session->device(0));
  expect_unsupported(limiter.set_limits("/sys/fs/cgroup", {{}, mebibytes(1)}),
                     "nvmlDeviceSetMemoryLimits_v1");
  expect_unsupported(limiter.read_limits("/sys/fs/cgroup"), "nvmlDeviceGetMemoryLimits_v1");
}

TEST(MemoryLimiterOfBareDriver, IsUnsupported) {
  const SimRoot root(*sim::small_machine(1), GPULET_BARE_DRIVER);
  const auto session = Session::open_session(root.sim_root()).value();
  const MemoryLimiter limiter(*session, *session->device(0));
  EXPECT_FALSE(MemoryLimiter::has_functions(*session));
  expect_unsupported(limiter.set_limits("/sys/fs/cgroup", {{}, mebibytes(1)}),
                     "nvmlDeviceSetMemoryLimits_v1");
  expect_unsupported(limiter.read_limits("/sys/fs/cgroup"), "nvmlDeviceGetMemoryLimits_v1");
}

}  // namespace
}  // namespace gpulet::nvml
