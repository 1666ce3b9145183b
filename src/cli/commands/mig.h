// `gpulet mig plan|apply|assert|export`: MIG layouts by hand, with the names, file and flags of
// nvidia-mig-parted (v0.15.0), planned and applied as by the agent (mig/plan.h, mig/apply.h). Needs no agent.
// The GPUs and the reports are in mig_gpus.cpp.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "cli/main/command.h"
#include "device_plugin/pod_resources.h"
#include "inventory/snapshot.h"
#include "inventory/snapshot.h"
#include "mig/apply.h"
#include "mig/hardware.h"
#include "mig/layout.h"
#include "mig/layout_file.h"
#include "mig/plan.h"
#include "nvml/session.h"
#include "nvml/worker.h"

namespace gpulet::cli {

enum class MigVerb { kPlan, kApply, kAssert, kExport };

struct MigOptions {
  std::string config_file;        // mig-parted's; "-": standard input; empty: layouts of the hardware
  std::string selected_config;    // empty: the file's only one
  bool mode_only = false;         // MIG on or off, and no instances
  bool valid_config = false;      // assert: only check that the GPUs support it
  bool dry_run = false;           // apply: as plan
  std::vector<std::string> gpus;  // by index or UUID; empty: all
  OutputOptions output{""};       // empty: table; export: MIG_PARTED_OUTPUT_FORMAT, else yaml
  std::string config_label;       // export: the config's name; empty: "current"
  std::string driver_root = "/";
  std::string kubelet_dir;   // empty: /var/lib/kubelet
  bool ignore_pods = false;  // do not query the kubelet, for a drained node
  // apply: the agent's report and its state directory, and how long to wait for it. Empty: there is no agent.
  std::string health_file, state_dir;
  Duration agent_timeout = std::chrono::seconds(30);
  // MIG_PARTED_CONFIG_FILE, _SELECTED_CONFIG, _MODE_CHANGE_ONLY, _VALID_CONFIG, _OUTPUT_FORMAT, _CONFIG_LABEL
  // and GPULET_KUBELET_DIR, for fields that are not set above.
  std::map<std::string, std::string, std::less<>> environment;
};

// A change of the MIG mode makes a running agent release the driver meanwhile (agent_driver.h).
//
// Exit code:
//   plan    0: not blocked; 1: the layout is invalid, or a GPU cannot be read;
//           3: an instance to delete is in use
//   apply   0: applied; 1: the layout is invalid and nothing was changed, or a step failed;
//           3: a GPU is blocked or needs a reset. Each GPU is changed on its own.
//   assert  0: the GPUs match; 1: they do not
//   export  0; 1: a GPU cannot be read
CommandOutput mig_output(MigVerb verb, const MigOptions& options);

// Prints mig_output().
int run_mig(MigVerb verb, const MigOptions& options);

// The GPUs of this node as `gpulet mig` reads, changes and prints them, without the agent. The driver is
// called on its own thread, so that a GPU that hangs is reported and not waited for; the kubelet lists the
// Pods that use devices.

// The result for one GPU. Without a report its plan was blocked or empty.
struct MigAttempt {
  mig::Plan plan;
  std::optional<mig::Report> report;
};

// One thread. Each call blocks, up to its time limit.
class MigDevices {
 public:
  // `kubelet_socket`: of PodResources.
  MigDevices(std::string driver_root, std::string kubelet_socket);

  // Returns the number of GPUs. Call it once, before the others. Errors: as nvml::Session.
  Result<unsigned> open_mig_driver();

  // Its users include processes, not Pods. Errors: as mig::read_state, and kDeadlineExceeded.
  Result<mig::State> read_mig_state(unsigned index);

  // nullopt if there is no kubelet socket. Errors: as device_plugin::PodResources.
  Result<std::optional<mig::PodsByDevice>> list_device_pods();

  // Plans from the current state and applies the plan. With `query_pods`, devices that a Pod gets meanwhile
  // are kept. Errors: those of reading and planning, without a change; kDeadlineExceeded, after which a new
  // plan continues.
  using Planner = std::function<Result<mig::Plan>(const mig::State&)>;
  Result<MigAttempt> plan_and_apply(unsigned index, const DeviceUuid& gpu, Planner plan, bool query_pods);

 private:
  template <class T>
  Result<T> wait_for_call(nvml::Call call, std::function<Result<T>()> work);
  inventory::SnapshotPtr read_gpus();
  device_plugin::PodResources& pod_resources();

  std::string driver_root_, kubelet_socket_;
  std::shared_ptr<EpollLoop> loop_ = std::make_shared<EpollLoop>();
  std::shared_ptr<const nvml::Session> session_;
  std::unique_ptr<device_plugin::PodResources> pod_resources_;
  nvml::Worker worker_{*loop_};
};

// One GPU and the progress of the command on it.
struct MigGpu {
  unsigned index = 0;
  std::optional<Error> unreadable;
  mig::State state;                          // current; after apply the new one
  std::optional<mig::LocatedLayout> target;  // nullopt: not in the config, so unchanged
  std::optional<mig::Plan> plan;             // from the state before
  std::optional<mig::Report> report;         // of the applied plan
  std::optional<Error> failed;               // apply could not start, or gave up
};

// "unreadable", "not-in-config", "nothing-to-do", "to-do", "blocked"; after apply "failed" and
// mig::outcome_name(Outcome) too.
std::string_view outcome(const MigGpu& gpu);

struct MigReport {
  std::string config;  // its name
  std::string file;    // empty: layouts of the hardware
  bool mode_only = false;
  bool pods_known = false;
  std::vector<MigGpu> gpus;  // by index
};

// Reports as text, lines with their newlines, and as JSON with stable keys and order. Pure.
std::string mig_plan_text(const MigReport& report);
// After an empty line: the current layout of each GPU.
std::string mig_apply_text(const MigReport& report);
// Only the GPUs that differ; one line if none does.
std::string mig_assert_text(const MigReport& report);

// The same for plan, apply and assert.
std::string mig_json(const MigReport& report);

// A mig-parted file as JSON, and as a table.
std::string mig_export_table(const mig::LayoutFile& file, const TableStyle& style);
std::string mig_export_json(const mig::LayoutFile& file);

}  // namespace gpulet::cli
