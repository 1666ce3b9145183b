// The real Reporter: what the agent does becomes a log line, a count for the metrics page and, inside a cluster, a
// Kubernetes event about the node, from one call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "agent/ports.h"
#include "base/loop.h"
#include "cluster/events.h"

namespace gpulet::agent {

class NodeReporter final : public Reporter {
 public:
  // `sender`: null outside a cluster.
  explicit NodeReporter(std::unique_ptr<cluster::EventSender> sender) : sender_(std::move(sender)) {}

  // The log line has the field "reason" and the message as its text.
  void event(Severity severity, std::string_view reason, const std::string& message) override;

  // Events since the start, by reason.
  const std::map<std::string, std::uint64_t>& counts() const { return counts_; }
  // Kubernetes events that the API server took, and that it will never see. 0 outside a cluster.
  std::uint64_t events_sent() const { return sender_ ? sender_->sent() : 0; }
  std::uint64_t events_dropped() const { return sender_ ? sender_->dropped() : 0; }

 private:
  std::unique_ptr<cluster::EventSender> sender_;
  std::map<std::string, std::uint64_t> counts_;
};

// With events when `environment` says that this is a Pod with a service account and NODE_NAME; otherwise without, and a
// log line says what is missing where something is.
std::unique_ptr<NodeReporter> make_reporter(Loop& loop,
                                            const std::map<std::string, std::string, std::less<>>& environment);

}  // namespace gpulet::agent
