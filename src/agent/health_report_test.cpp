#include "agent/health_report.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "agent/test_reporter.h"
#include "base/file.h"
#include "base/manual_loop.h"
#include "health/report.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;

class HealthReportTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "health_report.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = path;
    path_ = folder_ + "/run/health.json";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static health::ViewPtr view(const std::string& model) {
    health::View view;
    view.at.wall = WallTime(1s);
    health::DeviceView device;
    device.uuid = device.scope.gpu = DeviceUuid("GPU-0");
    device.model = model;
    view.devices.push_back(device);
    return std::make_shared<const health::View>(std::move(view));
  }
  std::string written() const {
    const auto report = health::read_report(path_);
    return report ? report->devices.at(0).model : "";
  }

  ManualLoop loop_;
  Told told_;
  std::string folder_, path_;
};

TEST_F(HealthReportTest, IsWrittenAtOnceAndInAStormTheNewestOnce) {
  HealthReport report(loop_, told_, path_, 1);
  report.on_health(view("a"));
  loop_.advance(0s);
  EXPECT_EQ(written(), "a");
  report.on_health(view("b"));
  report.on_health(view("c"));
  loop_.advance(kReportPause / 2);
  EXPECT_EQ(written(), "a");
  loop_.advance(kReportPause / 2);
  EXPECT_EQ(written(), "c");
  loop_.advance(1h);
  EXPECT_EQ(loop_.pending_timers(), 0u) << "nothing changes, nothing wakes it";
  report.on_health(view("d"));
  loop_.advance(0s);
  EXPECT_EQ(written(), "d");
}

TEST_F(HealthReportTest, WhatCannotBeWrittenIsSaidOnceAndTriedAgain) {
  std::ofstream(folder_ + "/run").flush();  // a file where the folder should be
  HealthReport report(loop_, told_, path_, 1);
  report.on_health(view("a"));
  loop_.advance(10min);
  report.on_health(view("b"));
  loop_.advance(10min);
  EXPECT_EQ(told_.reasons(), std::vector<std::string>{"HealthReportNotWritten"});
  std::filesystem::remove(folder_ + "/run");
  loop_.advance(kReportBackoff.longest);
  EXPECT_EQ(written(), "b");
  EXPECT_EQ(told_.reasons().size(), 2u);
  EXPECT_EQ(told_.reasons().back(), "HealthReportWritten");
}

TEST_F(HealthReportTest, TheLastWordIsWrittenAtTheEnd) {
  {
    HealthReport report(loop_, told_, path_, 1);
    report.on_health(view("a"));
    loop_.advance(0s);
    report.on_health(view("b"));
  }
  EXPECT_EQ(written(), "b");
}

TEST_F(HealthReportTest, NoPathNoFile) {
  HealthReport report(loop_, told_, "", 1);
  report.on_health(view("a"));
  loop_.advance(1h);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

}  // namespace
}  // namespace gpulet::agent
