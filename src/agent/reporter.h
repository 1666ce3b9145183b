// The Reporter of ports.h: one call becomes a log line, a count for the metrics page, and a Kubernetes event
// on the node when there is a cluster to tell.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "agent/ports.h"
#include "cluster/events.h"

namespace gpulet::agent {

// Loop's thread only.
class NodeReporter final : public Reporter {
 public:
  // Without a sender (outside a cluster, or where events are off) it logs and counts.
  explicit NodeReporter(std::unique_ptr<cluster::EventSender> sender = nullptr)
      : sender_(std::move(sender)) {}

  void event(Severity severity, std::string_view reason, const std::string& message) override;

  // Who hears of each event too; may be empty.
  using Heard = std::function<void(Severity, std::string_view reason, const std::string& message)>;
  void set_heard(Heard heard) { heard_ = std::move(heard); }

  // How often each reason was told since start.
  const std::map<std::string, std::uint64_t>& counts() const { return counts_; }
  // Null without a cluster.
  const cluster::EventSender* sender() const { return sender_.get(); }

 private:
  std::unique_ptr<cluster::EventSender> sender_;
  std::map<std::string, std::uint64_t> counts_;
  Heard heard_;
};

// With a sender inside a cluster, as `environment` tells (cluster/access.h). One that is there but cannot be
// used is said once in the log: events are no reason not to serve the kubelet.
std::unique_ptr<NodeReporter> make_reporter(
    Loop& loop, const std::map<std::string, std::string, std::less<>>& environment);

}  // namespace gpulet::agent
