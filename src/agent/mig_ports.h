// What the MIG manager (agent/mig_manager.h) is told to do, and its outside world. The real ports are in
// agent/node.cpp, agent/nvml_mig.h, agent/mig_hooks.h and cluster/eviction.h; its tests put others in their
// place.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/ports.h"
#include "base/loop.h"
#include "cluster/eviction.h"
#include "mig/holders.h"
#include "mig/hooks_file.h"
#include "mig/layout.h"
#include "mig/plan.h"
#include "mig/state.h"

namespace gpulet::agent {

// What one GPU shall be.
struct MigWish {
  DeviceUuid gpu;
  std::string layout;  // a name of the layout file, or a derived one; empty where `exact` says it
  std::optional<mig::Layout> exact;
  std::string source;  // who says so: "the label nvidia.com/mig.config=all-1g.10gb", "node.yaml:7:5"
  bool from_label = false;
  friend bool operator==(const MigWish&, const MigWish&) = default;
};

// What became of a plan.
struct MigApplied {
  bool needs_reset = false;  // the mode is set and only the GPU's next reset brings it into force
};

// The hardware as the manager needs it. No member blocks; `done` comes on the loop, once, and never from
// inside the call.
class MigHardware {
 public:
  virtual ~MigHardware() = default;
  virtual void read(const DeviceUuid& gpu, std::function<void(Result<mig::State>)> done) = 0;
  // Errors: why it failed, in one line that says what stands now; nothing in use was destroyed.
  virtual void apply(const DeviceUuid& gpu, const mig::Plan& plan,
                     std::function<void(Result<MigApplied>)> done) = 0;
};

// An operator's commands around a change.
class MigHooks {
 public:
  // What the commands are told.
  struct About {
    std::vector<DeviceUuid> gpus;  // one, or all that the round is about
    std::string layout;            // by name; empty where a rule says the devices
  };
  virtual ~MigHooks() = default;
  // Whether there may be some: a hooks file is set.
  virtual bool any() const = 0;
  // Runs those of the point. `done` as MigHardware's. An error, in one line, refuses the change.
  virtual void run(mig::HookPoint point, const About& about, std::function<void(Status)> done) = 0;
};

// Values of the label nvidia.com/mig.config.state.
inline constexpr std::string_view kMigPending = "pending", kMigSuccess = "success", kMigFailed = "failed";

struct MigPorts {
  Loop& loop;
  MigHardware& hardware;
  Reporter& reporter;
  // Who holds which device now, from the kubelet. An error: nobody knows, so nothing is touched.
  std::function<void(std::function<void(Result<mig::Pods>)>)> pods;
  // The layouts that `name` stands for on these GPUs; nullopt for one that stays as it is.
  std::function<Result<std::vector<std::optional<mig::Layout>>>(const std::string& name,
                                                                std::span<const mig::State> gpus)>
      layouts;
  // The GPUs that are being changed now, each with why; the plan leaves them out.
  std::function<void(std::map<DeviceUuid, std::string>)> withdraw;
  std::function<void()> read_again;                  // of the agent's snapshot
  std::function<void(std::string_view)> tell_state;  // for wishes from the label
  MigHooks* hooks = nullptr;                         // null: none
  // Whether Pods that are in the way shall be evicted (gpulet.mig.drain); empty: never.
  std::function<bool()> drains{};
  // Asks them to leave (cluster/eviction.h); null where there is no API server.
  std::function<std::unique_ptr<cluster::Eviction>(std::vector<std::string> pods,
                                                   cluster::Eviction::News news)>
      evict{};
};

}  // namespace gpulet::agent
