// The calls of the kubelet that wait for what Pods accept, with their time limit. On the loop.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "device_plugin/device_service.h"
#include "device_plugin/plugin_host.h"
#include "device_plugin/rpc_core.h"

namespace gpulet::device_plugin {

// Loop's thread only. `service` and `mailbox` outlive it; no task of the mailbox runs after it.
class DemandRequests {
 public:
  DemandRequests(Loop& loop, DeviceService& service, std::shared_ptr<Mailbox> mailbox)
      : loop_(loop), service_(service), mailbox_(std::move(mailbox)) {}

  // As PluginHost::set_demand_source().
  void set_source(DemandSource source);

 private:
  void ask_source(std::uint64_t call);
  void resume_call(std::uint64_t call, Result<std::vector<PodDemand>> demands);

  Loop& loop_;
  DeviceService& service_;
  std::shared_ptr<Mailbox> mailbox_;
  DemandSource source_;
  std::string logged_error_;
  std::map<std::uint64_t, Subscription> calls_;  // the time limit of each
  Lifetime lifetime_;
};

}  // namespace gpulet::device_plugin
