#include "agent/node/ports.h"

#include <gtest/gtest.h>

#include <vector>

namespace gpulet::agent {
namespace {

class RecordingSender final : public k8s::EventRecorder {
 public:
  explicit RecordingSender(std::vector<k8s::Event>& events) : events_(events) {}
  void record_event(k8s::Event event) override { events_.push_back(std::move(event)); }
  std::uint64_t sent() const override { return events_.size(); }
  std::uint64_t dropped() const override { return 0; }
  std::size_t queued() const override { return 0; }
  std::size_t remembered_count() const override { return 0; }

 private:
  std::vector<k8s::Event>& events_;
};

TEST(NodeReporter, OneCallIsACountAndAKubernetesEvent) {
  std::vector<k8s::Event> events;
  NodeReporter reporter(std::make_unique<RecordingSender>(events));
  reporter.report_event(Reporter::Severity::kWarning, "GPUUnhealthy", "GPU 3 is withdrawn");
  reporter.report_event(Reporter::Severity::kNormal, "GPUHealthy", "GPU 3 is back");
  reporter.report_event(Reporter::Severity::kWarning, "GPUUnhealthy", "GPU 4 is withdrawn");
  ASSERT_EQ(events.size(), 3u);
  EXPECT_TRUE(events[0].warning);
  EXPECT_EQ(events[0].reason, "GPUUnhealthy");
  EXPECT_EQ(events[0].message, "GPU 3 is withdrawn");
  EXPECT_FALSE(events[1].warning);
  EXPECT_EQ(reporter.event_counts(),
            (std::map<std::string, std::uint64_t>{{"GPUHealthy", 1}, {"GPUUnhealthy", 2}}));
}

TEST(NodeReporter, CountsOutsideACluster) {
  NodeReporter reporter;
  reporter.report_event(Reporter::Severity::kNormal, "ConfigReloaded", "x");
  EXPECT_EQ(reporter.event_counts().at("ConfigReloaded"), 1u);
  EXPECT_EQ(reporter.sender(), nullptr);
}

TEST(NodeReporter, SendsOnlyInACluster) {
  EpollLoop loop;
  EXPECT_EQ(make_reporter(loop, {})->sender(), nullptr);
  // In a cluster, but the manifest does not set the node's name: it works without events.
  EXPECT_EQ(make_reporter(loop, {{"KUBERNETES_SERVICE_HOST", "127.0.0.1"}})->sender(), nullptr);
}

}  // namespace
}  // namespace gpulet::agent
