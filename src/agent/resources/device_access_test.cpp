#include "agent/resources/device_access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "agent/node/test_reporter.h"
#include "base/file.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(DeviceAccess, FindsDeniedNodesOfAllRoots) {
  std::string pattern = testing::TempDir() + "gpulet-access-XXXXXX";
  const std::string top = ::mkdtemp(pattern.data());
  for (const char* name : {"nvidiactl", "nvidia0", "nvidia10", "nvidia-uvm", "nvidia-caps", "other"})
    ASSERT_TRUE(write_file_atomic(top + "/one/dev/" + name, ""));
  ASSERT_TRUE(write_file_atomic(top + "/two/dev/nvidia0", ""));
  const std::vector<std::string> roots{top + "/one", top + "/two", top + "/missing"};
  EXPECT_THAT(find_denied_nodes(roots, [](const auto&) { return true; }),
              ElementsAre("/dev/nvidia0", "/dev/nvidia10", "/dev/nvidiactl"));
  // The second root gives access to it.
  EXPECT_THAT(find_denied_nodes(roots, [&](const auto& path) { return !path.starts_with(top + "/two"); }),
              ElementsAre("/dev/nvidia10", "/dev/nvidiactl"));
  EXPECT_THAT(find_denied_nodes(roots), IsEmpty());
  std::filesystem::remove_all(top);
}

class DeviceAccessTest : public testing::Test {
 protected:
  ManualLoop loop_;
  RecordingReporter reporter_;
  std::set<std::string> denied_;
  unsigned restarts_ = 0;
  DeviceAccessWatcher watcher_{loop_, reporter_, [this] { return denied_; }, [this] { ++restarts_; }};
};

TEST_F(DeviceAccessTest, AccessThatIsLostRestartsTheAgentOnce) {
  watcher_.check_access();
  loop_.advance(2min);
  watcher_.check_access();
  EXPECT_EQ(restarts_, 0u);
  denied_ = {"/dev/nvidiactl", "/dev/nvidia0"};
  watcher_.check_access();
  watcher_.check_access();
  EXPECT_EQ(restarts_, 1u);
  EXPECT_THAT(reporter_.reported_texts(),
              ElementsAre("DeviceAccessDenied: this container's device cgroup does not permit /dev/nvidia0, "
                          "/dev/nvidiactl: the agent ends, so that its next container gets access"));
}

TEST_F(DeviceAccessTest, WhatIsDeniedAtTheStartIsReportedOnly) {
  denied_ = {"/dev/nvidiactl", "/dev/nvidia0"};
  watcher_.check_access();
  EXPECT_THAT(reporter_.reported_texts(), ElementsAre(HasSubstr("run the agent privileged")));
  loop_.advance(1h);
  watcher_.check_access();
  EXPECT_EQ(restarts_, 0u);
  EXPECT_EQ(reporter_.reported_texts().size(), 1u);
  denied_.insert("/dev/nvidia8");  // a GPU that came later
  watcher_.check_access();
  EXPECT_EQ(restarts_, 1u);
}

TEST_F(DeviceAccessTest, GpusLeftOutOnPurposeAreNotReported) {
  denied_ = {"/dev/nvidia4"};
  watcher_.check_access();
  EXPECT_THAT(reporter_.reported_texts(), IsEmpty());
}

TEST_F(DeviceAccessTest, AYoungAgentWaits) {
  watcher_.check_access();
  denied_ = {"/dev/nvidiactl"};
  watcher_.check_access();
  loop_.advance(kMinimumUptime - 1ms);
  EXPECT_EQ(restarts_, 0u);
  loop_.advance(1ms);
  EXPECT_EQ(restarts_, 1u);
}

TEST_F(DeviceAccessTest, AccessThatReturnsInTimeChangesNothing) {
  watcher_.check_access();
  denied_ = {"/dev/nvidiactl"};
  watcher_.check_access();
  denied_.clear();
  loop_.advance(1h);
  EXPECT_EQ(restarts_, 0u);
  EXPECT_THAT(reporter_.reported_texts(), IsEmpty());
}

TEST_F(DeviceAccessTest, AServiceOfItsHostReportsOnly) {
  DeviceAccessWatcher watcher(loop_, reporter_, [this] { return denied_; }, {});
  watcher.check_access();
  loop_.advance(1h);
  denied_ = {"/dev/nvidiactl"};
  watcher.check_access();
  watcher.check_access();
  EXPECT_THAT(reporter_.reported_texts(), ElementsAre(HasSubstr("restart the agent")));
}

}  // namespace
}  // namespace gpulet::agent
