#include "cli/mig_node.h"

#include <filesystem>
#include <future>

#include "agent/nvml_mig.h"
#include "mig/read.h"

namespace gpulet::cli {
namespace {

constexpr Duration kDriverLimit = std::chrono::seconds(30);  // of initialising it, and of reading one GPU

nvml::Call about_gpu(const std::string& what, unsigned index, Duration limit) {
  const std::string gpu = "GPU " + std::to_string(index);
  return {what + " MIG of " + gpu, gpu, limit};
}

using PodsAnswer = Result<mig::Pods>;
using Containers = Result<std::vector<kubelet::ContainerDevices>>;

PodsAnswer to_pods(const Containers& containers) {
  if (!containers) return fail(containers.error());
  return kubelet::pods_by_device(*containers);
}

}  // namespace

MigNode::MigNode(std::string driver_root, std::string kubelet_socket)
    : driver_root_(std::move(driver_root)), kubelet_socket_(std::move(kubelet_socket)) {}

template <class T>
Result<T> MigNode::wait(nvml::Call call, std::function<Result<T>()> work) {
  std::optional<Result<T>> answer;
  worker_.run<T>(std::move(call), std::move(work), [&](Result<T> result) {
    answer.emplace(std::move(result));
    loop_->stop();
  });
  loop_->run();
  return std::move(*answer);
}

Result<unsigned> MigNode::open() {
  using Session = std::shared_ptr<const nvml::Session>;
  GPULET_TRY_ASSIGN(session_, wait<Session>({"initialising the driver", "", kDriverLimit},
                                            [root = driver_root_] { return nvml::Session::open(root); }));
  return wait<unsigned>({"counting the GPUs", "", kDriverLimit},
                        [session = session_] { return session->device_count(); });
}

Result<mig::State> MigNode::read(unsigned index) {
  return wait<mig::State>(about_gpu("reading", index, kDriverLimit),
                          [session = session_, index] { return mig::read(*session, index); });
}

kubelet::PodResources& MigNode::pod_resources() {
  if (!pod_resources_) {
    pod_resources_ = kubelet::make_pod_resources(*loop_, kubelet::make_rpc(), kubelet_socket_);
  }
  return *pod_resources_;
}

Result<std::optional<mig::Pods>> MigNode::pods() {
  std::error_code ignored;
  if (!std::filesystem::exists(kubelet_socket_, ignored)) return std::nullopt;
  std::optional<PodsAnswer> answer;
  pod_resources().list([&](const Containers& containers) {
    answer = to_pods(containers);
    loop_->stop();
  });
  loop_->run();
  if (!*answer) return fail(answer->error());
  return std::move(**answer);
}

Result<MigAttempt> MigNode::carry_out(unsigned index, const DeviceUuid& gpu, Planner plan, bool ask_pods) {
  // From the driver's thread, while this one turns the loop.
  const auto ask = [loop = loop_, resources = ask_pods ? &pod_resources() : nullptr]() -> PodsAnswer {
    const auto answer = std::make_shared<std::promise<PodsAnswer>>();
    auto future = answer->get_future();
    loop->post([answer, resources] {
      resources->list([answer](const Containers& containers) { answer->set_value(to_pods(containers)); });
    });
    // Nobody answers once the command has given this GPU up.
    if (future.wait_for(2 * kubelet::kPodResourcesTimeout) != std::future_status::ready) {
      return fail(Code::kDeadlineExceeded, "the kubelet did not say which Pods hold a device");
    }
    return future.get();
  };
  const auto work = [=, session = session_, plan = std::move(plan)]() -> Result<MigAttempt> {
    const auto real = mig::make_hardware(session, index, gpu);
    const auto aware = mig::with_pods(*real, ask);
    mig::Hardware& hardware = ask_pods ? *aware : *real;
    GPULET_TRY_ASSIGN(const auto state, hardware.read());
    MigAttempt attempt;
    GPULET_TRY_ASSIGN(attempt.plan, plan(state));
    if (!attempt.plan.blocked() && !attempt.plan.nothing_to_do()) {
      attempt.report = mig::apply(hardware, attempt.plan);
    }
    return attempt;
  };
  return wait<MigAttempt>(about_gpu("changing", index, agent::kMigLimit), work);
}

}  // namespace gpulet::cli
