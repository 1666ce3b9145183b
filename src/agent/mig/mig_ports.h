// The targets of the MIG manager (agent/mig/mig_manager.h) and its interfaces to the outside: hardware,
// hooks, kubelet, API server. Tests replace them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/node/ports.h"
#include "base/loop.h"
#include "k8s/pods.h"
#include "mig/hardware.h"
#include "mig/hooks.h"
#include "mig/layout.h"
#include "mig/plan.h"

namespace gpulet::agent {

// The requested MIG layout of one GPU.
struct MigTarget {
  DeviceUuid gpu;
  std::string layout;  // name in the layout file, or of a derived layout; empty if `exact` is set
  std::optional<mig::Layout> exact;
  std::string source;  // for messages: "the label nvidia.com/mig.config=all-1g.10gb", "node.yaml:7:5"
  bool from_label = false;
  bool on_demand = false;  // cut for waiting Pods too (demand_controller.h): no Pod is evicted for it
  friend bool operator==(const MigTarget&, const MigTarget&) = default;
};

struct MigApplied {
  bool needs_reset = false;  // the mode is set and pending
  // With needs_reset: the driver resets the GPU when the mode is set again and nobody holds it (mig::Report).
  bool in_use = false;
  std::vector<mig::DeviceHolder> holders{};
};

// Nothing here blocks; `done` is called once, from the loop, never from inside the call.
class MigHardware {
 public:
  virtual ~MigHardware() = default;
  virtual void read_mig_state(const DeviceUuid& gpu, std::function<void(Result<mig::State>)> done) = 0;
  // Errors: one line with the reason and the resulting state; nothing in use was destroyed.
  virtual void apply_mig_plan(const DeviceUuid& gpu, const mig::Plan& plan,
                              std::function<void(Result<MigApplied>)> done) = 0;
};

// The operator's commands around a change.
class MigHooks {
 public:
  // Passed to the commands.
  struct HookSubject {
    std::vector<DeviceUuid> gpus;  // one, or all of the round
    std::string layout;            // by name; empty if a rule lists devices
  };
  virtual ~MigHooks() = default;
  // Whether a hooks file is configured.
  virtual bool are_configured() const = 0;
  // Runs the hooks of the point. An error, in one line, refuses the change.
  virtual void run_hooks(mig::HookPoint point, const HookSubject& about,
                         std::function<void(Status)> done) = 0;
};

// Values of the label nvidia.com/mig.config.state.
inline constexpr std::string_view kMigPending = "pending", kMigSuccess = "success", kMigFailed = "failed";

struct MigPorts {
  Loop& loop;
  MigHardware& hardware;
  Reporter& reporter;
  // The Pods that hold devices, from the kubelet. An error: unknown, so nothing is touched.
  std::function<void(std::function<void(Result<mig::PodsByDevice>)>)> pods;
  // The layouts that `name` stands for on these GPUs; nullopt for a GPU that stays as it is.
  std::function<Result<std::vector<std::optional<mig::Layout>>>(const std::string& name,
                                                                std::span<const mig::State> gpus)>
      layouts;
  // The GPUs that are being changed, with the reason; they are withdrawn.
  std::function<void(std::map<DeviceUuid, std::string>)> withdraw;
  std::function<void()> request_snapshot;               // a new reading
  std::function<void(std::string_view)> publish_state;  // for targets from the label
  MigHooks* hooks = nullptr;                            // null: none
  // Whether blocking Pods are evicted (gpulet.mig.drain); empty: never.
  std::function<bool()> is_drain_enabled{};
  // Starts their eviction; null without an API server.
  std::function<std::unique_ptr<k8s::Eviction>(std::vector<std::string> pods,
                                               k8s::Eviction::UpdateCallback on_update)>
      evict{};
  // Calls back once, from the loop, when the process has ended. Returns an empty Subscription if it cannot be
  // watched.
  std::function<Subscription(unsigned pid, std::function<void()> ended)> watch_exit{};
  // As Devices::shows_allocations(): until then no GPU on demand is changed. Empty: always.
  std::function<bool()> shows_allocations{};
  // A round has ended; `failed`: the GPUs whose change failed. May be empty.
  std::function<void(const std::vector<DeviceUuid>& failed)> round_ended{};
};

}  // namespace gpulet::agent
