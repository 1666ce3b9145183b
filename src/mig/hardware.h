// One GPU's MIG through the driver: reads its state, with the processes and Pods that hold it, and
// changes its instances.
//
// Reading takes about a hundred blocking driver calls: run it on a thread that may block
// (nvml/worker.h in the agent).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "mig/device_holders.h"
#include "mig/layout.h"
#include "mig/plan.h"
#include "nvml/mig.h"

namespace gpulet::mig {

// The state of the GPU with that NVML index. Holders are the processes on it, by pid, with the name
// from `proc_root`/PID/comm if it can be read ("process 4711 (python3)"); the caller adds Pods. An
// instance that is destroyed meanwhile is left out. With a driver that reports no processes there
// are no holders; the driver still refuses to destroy what is in use. Errors: those of
// nvml::Session. A GPU without MIG is no error: State::capable is false.
Result<State> read_mig_state(const nvml::Session& session, unsigned index,
                             const std::string& proc_root = "/proc");

// Only the holders: of the GPU instance with that id, or of the whole GPU for nullopt.
Result<std::vector<std::string>> read_holders(const nvml::Session& session, unsigned index,
                                              std::optional<unsigned> instance,
                                              const std::string& proc_root = "/proc");

// One GPU to work on. An interface, so that tests can fail any call, and so that a decorator can
// add holders that the driver does not know (Pods). All calls may block as long as the driver does.
class Hardware {
 public:
  virtual ~Hardware() = default;
  virtual Result<State> read_state() = 0;
  // Processes and Pods that hold the GPU instance of that id, or the GPU outside MIG for nullopt;
  // in the form of State.
  virtual Result<std::vector<std::string>> holders(std::optional<unsigned> instance) = 0;
  // As nvml::Mig::set_mig_mode.
  virtual Result<nvml::MigActivation> set_mode(bool enabled) = 0;
  // Of the whole GPU, also those that NVML does not list: why the mode is pending with kInUse.
  virtual std::vector<DeviceHolder> device_holders() = 0;
  virtual Status destroy_compute_instance(unsigned instance, unsigned compute) = 0;
  virtual Status destroy_gpu_instance(unsigned instance) = 0;
  // Return the new ids. A compute instance without a profile id is found by its slices, because the
  // driver reports compute profiles only for an existing instance.
  virtual Result<unsigned> create_gpu_instance(unsigned profile, const Placement& placement) = 0;
  virtual Result<unsigned> create_compute_instance(unsigned instance, const NewCompute& compute) = 0;
};

// The GPU with that NVML index and UUID. Every call returns kFailedPrecondition once another GPU
// has that index. Keeps the session.
std::unique_ptr<Hardware> make_hardware(std::shared_ptr<const nvml::Session> session, unsigned index,
                                        DeviceUuid uuid, const std::string& proc_root = "/proc");

// "namespace/name" by the device that the kubelet allocated, shares of a device ("MIG-…::2")
// included.
using PodsByDevice = std::map<DeviceId, std::string>;

// Adds each Pod as "Pod namespace/name", once, to the holders of its device. A Pod holds its device
// from allocation on, even if it runs no process that the driver sees. A Pod that holds the whole
// GPU holds each of its instances.
void add_pod_holders(State& state, const PodsByDevice& pods);

// Wraps `hardware` and adds the Pods to the holders of its states. `pods` is called each time, so
// that nothing allocated to a Pod since the plan was made is destroyed. It may block; its errors
// become those of read_state() and holders(). Precondition: `hardware` outlives the result.
std::unique_ptr<Hardware> with_pod_holders(Hardware& hardware, std::function<Result<PodsByDevice>()> pods);

}  // namespace gpulet::mig
