// Whether the MPS control daemons of prepared claims serve: for the health that Pods show of their devices,
// and for events about those Pods. The GPU itself is well, so this is never a taint.
//
// A device is unhealthy until its daemon serves again. Then it works, but not for a container that ran
// meanwhile: its CUDA context ended with the daemon. Messages and events say so.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "base/types.h"
#include "dra/claim_controller.h"
#include "dra/claim_record.h"
#include "k8s/client_config.h"
#include "k8s/event_recorder.h"

namespace gpulet::agent {

// A daemon that has not served in this process may be one that an earlier agent has started and that is not
// known to run yet.
inline constexpr Duration kDaemonStartLimit = std::chrono::seconds(20);

struct DaemonNotice {
  std::string name_space, name, uid;  // of the claim
  bool is_warning = false;            // it has stopped serving; else it serves again
  std::string message;
  friend bool operator==(const DaemonNotice&, const DaemonNotice&) = default;
};

// Loop's thread only.
class ClaimDaemonHealth {
 public:
  struct Ports {
    // As dra::ClaimDaemons::check_daemon().
    std::function<Status(const std::string&)> check_daemon;
    // Whether no container of the claim has started yet: its daemon is expected to be starting.
    std::function<bool(const std::string& uid)> is_being_prepared;
  };
  explicit ClaimDaemonHealth(Ports ports) : ports_(std::move(ports)) {}

  // Checks the daemons of these claims, and returns what is new: the stop of one that has served, and its
  // return.
  std::vector<DaemonNotice> check_claims(const std::map<std::string, dra::ClaimRecord>& records, Time now);
  // By device, why its daemon does not serve.
  const std::map<DeviceUuid, std::string>& unserved_devices() const { return unserved_; }

 private:
  struct Known {
    bool has_served = false, is_noticed = false;
    Time since{};  // first seen
  };

  Ports ports_;
  std::map<std::string, Known> known_;  // by the daemon's name
  std::map<DeviceUuid, std::string> unserved_;
};

// Logs notices, and sends them as events to the Pods that use the claim, as the API server has them. Loop's
// thread only; both ports must outlive it.
class DaemonNotifier {
 public:
  DaemonNotifier(Loop& loop, dra::ClaimSource& source, const k8s::ClientConfig& access)
      : loop_(loop), source_(source), access_(access) {}

  void notify_pods(const DaemonNotice& notice, bool sends_events);

 private:
  Loop& loop_;
  dra::ClaimSource& source_;
  const k8s::ClientConfig& access_;
  std::unique_ptr<k8s::EventRecorder> events_;  // null until the first
  Lifetime lifetime_;
};

// The Pods that a claim (JSON) is reserved for; none where the text is no claim or has another uid. Pure.
std::vector<PodRef> reserved_pods(std::string_view claim, const std::string& uid);

}  // namespace gpulet::agent
