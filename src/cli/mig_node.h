// MIG of this machine's GPUs for a command, without the agent: the driver by its own thread, so that a GPU
// that hangs is named instead of waited for, and the kubelet for the Pods that hold devices.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/loop.h"
#include "base/result.h"
#include "kubelet/pod_resources.h"
#include "mig/apply.h"
#include "mig/holders.h"
#include "mig/plan.h"
#include "mig/state.h"
#include "nvml/session.h"
#include "nvml/worker.h"

namespace gpulet::cli {

// What became of one GPU: without a report its plan was blocked, or there was nothing to do.
struct MigAttempt {
  mig::Plan plan;
  std::optional<mig::Report> report;
};

// One thread. Each call blocks, for at most its limit.
class MigNode {
 public:
  // `kubelet_socket`: of PodResources.
  MigNode(std::string driver_root, std::string kubelet_socket);

  // How many GPUs there are. Errors: as nvml::Session::open. Before all others, once.
  Result<unsigned> open();

  // Processes are among the holders, Pods are not. Errors: as mig::read, and kDeadlineExceeded.
  Result<mig::State> read(unsigned index);

  // nullopt where no kubelet has made its socket. Errors: as kubelet::PodResources.
  Result<std::optional<mig::Pods>> pods();

  // Plans anew from what is there now and carries it out. `ask_pods`: who is given a device meanwhile is left
  // alone. Errors: of reading and planning, which leave all as it was; kDeadlineExceeded, and then a plan
  // made anew goes on from what stands.
  using Planner = std::function<Result<mig::Plan>(const mig::State&)>;
  Result<MigAttempt> carry_out(unsigned index, const DeviceUuid& gpu, Planner plan, bool ask_pods);

 private:
  template <class T>
  Result<T> wait(nvml::Call call, std::function<Result<T>()> work);
  kubelet::PodResources& pod_resources();

  std::string driver_root_, kubelet_socket_;
  std::shared_ptr<EpollLoop> loop_ = std::make_shared<EpollLoop>();
  std::shared_ptr<const nvml::Session> session_;
  std::unique_ptr<kubelet::PodResources> pod_resources_;
  nvml::Worker worker_{*loop_};
};

}  // namespace gpulet::cli
