// The MPS control daemons of claims, run by the node's MpsController.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "agent/node/node.h"
#include "agent/resources/mps_controller.h"
#include "base/result.h"
#include "base/types.h"
#include "dra/claim_controller.h"
#include "mps/plan.h"

namespace gpulet::agent {

// Daemons are started from the first begin_daemons() on: the plan of resources comes first.
class NodeClaimDaemons final : public dra::ClaimDaemons {
 public:
  NodeClaimDaemons(Node& node, MpsController& mps) : node_(node), mps_(mps) {}

  void begin_daemons() {
    has_begun_ = true;
    mps_.apply_claim_daemons(node_.config);
  }
  void set_daemons(std::vector<mps::DaemonSpec> daemons) override {
    mps_.set_claim_daemons(std::move(daemons));
    if (has_begun_) mps_.apply_claim_daemons(node_.config);
  }
  Status check_daemon(const std::string& name) const override { return mps_.check_claim_daemon(name); }
  std::string find_holder(const DeviceUuid& device) const override { return mps_.find_holder(device); }
  std::string mps_root() const override { return node_.config.flags.mps_root; }

 private:
  Node& node_;
  MpsController& mps_;
  bool has_begun_ = false;
};

}  // namespace gpulet::agent
