// An agent while another one serves the node (node/succession.h): it writes nothing there or in the cluster,
// and registers nothing with the kubelet. It reads the driver once, and is ready for what comes when that
// works, so that a new version that cannot use the node does not replace one that can. It keeps no session of
// the driver open: that would be in the way of a driver release and of MIG changes.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "agent/driver/nvml_driver.h"
#include "agent/node/node.h"
#include "agent/observe/node_pages.h"
#include "base/loop.h"
#include "web/listener.h"

namespace gpulet::agent {

// Pages are confirmed well within web::kPagesMaxAge.
inline constexpr Duration kStandbyHeartbeat = web::kPagesMaxAge / 3;

// Its end closes the pages; what register_claims() has opened stays in the Node. Loop's thread only.
class Standby {
 public:
  explicit Standby(Node& node);
  Standby(const Standby&) = delete;

  // Whether there is anything that register_claims() registers.
  bool registers_claims() const;
  // The kubelet may call this agent from here on; the calls wait until it serves. `done`: the kubelet has
  // registered it, or it cannot.
  void register_claims(std::function<void()> done);

 private:
  void read_driver();
  void on_driver(const Status& status);
  void open_pages();
  void publish_pages();
  void confirm_pages();

  Node& node_;
  std::unique_ptr<NvmlDriver> driver_;
  std::string driver_error_ = "not read yet";  // empty: nothing keeps this agent from serving
  Backoff backoff_;
  Subscription retry_, heartbeat_;
  std::unique_ptr<WebConfigWatcher> access_;
  std::unique_ptr<web::Listener> listener_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent
