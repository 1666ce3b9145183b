#include "agent/reporter.h"

#include <gtest/gtest.h>

#include <vector>

namespace gpulet::agent {
namespace {

class RecordingSender final : public cluster::EventSender {
 public:
  explicit RecordingSender(std::vector<cluster::Event>& events) : events_(events) {}
  void send(cluster::Event event) override { events_.push_back(std::move(event)); }
  std::uint64_t sent() const override { return events_.size(); }
  std::uint64_t dropped() const override { return 0; }
  std::size_t waiting() const override { return 0; }
  std::size_t remembered() const override { return 0; }

 private:
  std::vector<cluster::Event>& events_;
};

TEST(NodeReporter, OneCallIsACountAndAKubernetesEvent) {
  std::vector<cluster::Event> events;
  NodeReporter reporter(std::make_unique<RecordingSender>(events));
  reporter.event(Reporter::Severity::kWarning, "GPUUnhealthy", "GPU 3 is withdrawn");
  reporter.event(Reporter::Severity::kNormal, "GPUHealthy", "GPU 3 is back");
  reporter.event(Reporter::Severity::kWarning, "GPUUnhealthy", "GPU 4 is withdrawn");
  ASSERT_EQ(events.size(), 3u);
  EXPECT_TRUE(events[0].warning);
  EXPECT_EQ(events[0].reason, "GPUUnhealthy");
  EXPECT_EQ(events[0].message, "GPU 3 is withdrawn");
  EXPECT_FALSE(events[1].warning);
  EXPECT_EQ(reporter.counts(), (std::map<std::string, std::uint64_t>{{"GPUHealthy", 1}, {"GPUUnhealthy", 2}}));
}

TEST(NodeReporter, OutsideAClusterItCountsAllTheSame) {
  NodeReporter reporter;
  reporter.event(Reporter::Severity::kNormal, "ConfigReloaded", "x");
  EXPECT_EQ(reporter.counts().at("ConfigReloaded"), 1u);
  EXPECT_EQ(reporter.sender(), nullptr);
}

TEST(NodeReporter, SendsOnlyWhereThereIsAClusterToTell) {
  EpollLoop loop;
  EXPECT_EQ(make_reporter(loop, {})->sender(), nullptr);
  // Inside, but its manifest forgot the node's name: it works without events.
  EXPECT_EQ(make_reporter(loop, {{"KUBERNETES_SERVICE_HOST", "127.0.0.1"}})->sender(), nullptr);
}

}  // namespace
}  // namespace gpulet::agent
