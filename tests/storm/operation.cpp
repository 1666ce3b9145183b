#include "tests/storm/operation.h"

#include <unistd.h>

#include <algorithm>
#include <future>

#include "agent/driver/driver_release.h"
#include "agent/health/operator_interface.h"
#include "health/state/cordons.h"
#include "sim/control/control.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::storm {

namespace control = sim::control;

struct Admission::Attempt {
  std::future<Result<sim::PodGrant>> grant;
};

Admission::Admission(StormNode& node, std::string pod, std::map<std::string, unsigned> resources)
    : node_(node), pod_(std::move(pod)), resources_(std::move(resources)) {
  start_attempt();
}

Admission::~Admission() = default;  // waits for the attempt

void Admission::start_attempt() {
  attempt_ = std::make_unique<Attempt>(
      Attempt{std::async(std::launch::async, [this] { return node_.admit_pod(pod_, resources_); })});
}

bool Admission::update() {
  if (admitted_) return true;
  if (attempt_->grant.wait_for(milliseconds(0)) != std::future_status::ready) return false;
  auto grant = attempt_->grant.get();
  const bool is_lost =
      grant && !node_.kubelet().wait_for([this](const auto& state) { return state.grants.contains(pod_); },
                                         milliseconds(0));
  if (is_lost) {  // the kubelet has lost its checkpoint since
    start_attempt();
    return false;
  }
  if (grant) {
    node_.add_pod(pod_, std::move(*grant));
    admitted_ = true;
    return true;
  }
  refusal_ = grant.error().full_message();
  if (refusal_.empty() || refusal_.ends_with("due to , which is unexpected"))
    node_.add_violation("the Pod " + pod_ + " was refused without a reason");
  start_attempt();
  return false;
}

namespace {

constexpr std::uint64_t kFallenOffTheBus = 79;
constexpr const char* kPauseLabel = "nvidia.com/gpu.deploy.device-plugin";

std::uint64_t registrations(StormNode& node) {
  const auto state = node.kubelet().kubelet_state();
  const auto* resource = tests::find_resource(state, kGpus);
  return resource == nullptr ? 0 : resource->registrations;
}

bool is_listed(StormNode& node, const std::string& id, bool healthy) {
  return node.kubelet().wait_for(
      [&](const auto& state) {
        const auto* resource = tests::find_resource(state, kGpus);
        if (resource == nullptr || !resource->connected) return false;
        const auto device = resource->devices.find(id);
        return device != resource->devices.end() && device->second.healthy == healthy;
      },
      milliseconds(0));
}

class RegistrationOperation final : public Operation {
 public:
  RegistrationOperation(StormNode& node, std::uint64_t) : node_(node) {}
  std::vector<Step> steps() override {
    const auto is_registered = [this] { return registrations(node_) > before_ && node_.is_settled(); };
    return {{"start",
             [this] {
               before_ = registrations(node_);
               node_.stop_agent(milliseconds(0));
             },
             is_registered},
            // The kubelet refuses until the next step.
            {"refused",
             [this] {
               before_ = node_.kubelet().kubelet_state().refused_registrations;
               node_.kubelet().set_register_behavior(sim::RegisterBehavior::kRefuse);
               remove_socket();
             },
             [this] { return node_.kubelet().kubelet_state().refused_registrations > before_; }},
            {"accepted",
             [this] {
               before_ = registrations(node_);
               node_.kubelet().set_register_behavior(sim::RegisterBehavior::kAccept);
             },
             is_registered},
            {"socket-lost",
             [this] {
               before_ = registrations(node_);
               remove_socket();
             },
             is_registered}};
  }
  void clean_up() override { node_.kubelet().set_register_behavior(sim::RegisterBehavior::kAccept); }

 private:
  void remove_socket() { ::unlink((node_.kubelet().plugin_dir() + "/nvidia-gpu.sock").c_str()); }
  StormNode& node_;
  std::uint64_t before_ = 0;
};

class AllocationOperation final : public Operation {
 public:
  AllocationOperation(StormNode& node, std::uint64_t number)
      : node_(node), first_("first-" + std::to_string(number)), rest_("rest-" + std::to_string(number)) {}
  std::vector<Step> steps() override {
    const auto is_admitted = [this] { return admission_->update(); };
    return {{"admit",
             [this] {
               admission_.emplace(node_, first_, std::map<std::string, unsigned>{{kGpus, 2}, {kShares, 1}});
             },
             is_admitted},
            {"run", [this] { remember_grant(); }, [this] { return keeps_grant(); }},
            // What is left, next to the first Pod.
            {"fill",
             [this] {
               admission_.emplace(node_, rest_, std::map<std::string, unsigned>{{kGpus, 4}, {kShares, 3}});
             },
             is_admitted},
            {"delete", [this] { node_.remove_pod(first_); }, [] { return true; }},
            {"reuse",
             [this] {
               admission_.emplace(node_, first_, std::map<std::string, unsigned>{{kGpus, 2}, {kShares, 1}});
             },
             is_admitted}};
  }
  void clean_up() override {
    admission_.reset();
    for (const auto& pod : {first_, rest_}) node_.remove_pod(pod);
  }

 private:
  void remember_grant() {
    if (const auto pod = node_.pods().find(first_); pod != node_.pods().end())
      held_ = tests::granted_ids(pod->second, kGpus);
  }
  // A Pod keeps its devices, unless the kubelet has lost it.
  bool keeps_grant() {
    if (!node_.pods().contains(first_)) return true;
    return node_.kubelet().wait_for(
        [this](const auto& state) {
          const auto grant = state.grants.find(first_);
          return state.running && grant != state.grants.end() &&
                 tests::granted_ids(grant->second, kGpus) == held_;
        },
        milliseconds(0));
  }
  StormNode& node_;
  const std::string first_, rest_;
  std::optional<Admission> admission_;
  std::vector<std::string> held_;
};

class MigOperation final : public Operation {
 public:
  MigOperation(StormNode& node, std::uint64_t) : node_(node) {}
  std::vector<Step> steps() override {
    const auto slice = [this] { request_layout(true); };
    const auto join = [this] { request_layout(false); };
    return {{"mode", slice,
             [this, slice] {
               slice();
               return mig().current == 1;
             }},
            {"create", [] {}, [this] { return instances() > 0; }},
            {"offer", [] {}, [this] { return node_.is_settled(); }},
            {"destroy", join,
             [this, join] {
               join();
               return instances() == 0;
             }},
            {"mode-off", [] {}, [this] { return mig().current == 0 && node_.is_settled(); }}};
  }
  void clean_up() override { request_layout(false); }

 private:
  // A full disk refuses a new config too: it is repeated until it is written.
  void request_layout(bool sliced) {
    if (sliced_ != sliced && node_.set_mig_layout(sliced)) sliced_ = sliced;
  }
  sim::Mig mig() const { return node_.machine().lock_for_read()->gpus[kMigGpu].mig; }
  std::ptrdiff_t instances() const {
    const auto mig_of_gpu = mig();
    return std::ranges::count_if(mig_of_gpu.instances,
                                 [](const auto& instance) { return instance.used != 0; });
  }
  StormNode& node_;
  bool sliced_ = false;
};

class EvictionOperation final : public Operation {
 public:
  EvictionOperation(StormNode& node, std::uint64_t number)
      : node_(node), pod_("victim-" + std::to_string(number)) {}
  bool prepare() override {
    if (!admission_) admission_.emplace(node_, pod_, std::map<std::string, unsigned>{{kGpus, 1}});
    if (!admission_->update()) return false;
    device_ = tests::granted_ids(node_.pods().at(pod_), kGpus).at(0);
    gpu_ = *node_.gpu_of_device(device_);
    return true;
  }
  std::vector<Step> steps() override {
    return {
        {"fault", [this] { static_cast<void>(control::post_xid(node_.machine(), gpu_, kFallenOffTheBus)); },
         [this] { return is_gone() || is_listed(node_, device_, false); }},
        {"evict", [] {}, [this] { return is_gone(); }},
        {"leave", [this] { node_.remove_pod(pod_); }, [] { return true; }},
        {"recover", [this] { static_cast<void>(control::heal_faults(node_.machine(), gpu_)); },
         [this] { return node_.is_settled(); }}};
  }
  void clean_up() override {
    admission_.reset();
    node_.remove_pod(pod_);
    static_cast<void>(control::heal_faults(node_.machine(), gpu_));
  }

 private:
  bool is_gone() { return node_.api().is_evicted(pod_) || !node_.pods().contains(pod_); }
  StormNode& node_;
  const std::string pod_;
  std::optional<Admission> admission_;
  std::string device_;
  std::uint32_t gpu_ = 0;
};

// By a node label, as the GPU operator does, or by the file of `gpulet driver release`.
class ReleaseOperation final : public Operation {
 public:
  ReleaseOperation(StormNode& node, std::uint64_t number) : node_(node), by_file_(number % 2 == 1) {}
  std::vector<Step> steps() override {
    return {{"release", [this] { request_release(); },
             [this] {
               request_release();
               return !node_.is_driver_held();
             }},
            {"reload", [] {}, [this] { return reload_driver(); }},
            {"acquire", [this] { request_acquire(); },
             [this] {
               request_acquire();
               return node_.is_settled();
             }}};
  }
  void clean_up() override { request_acquire(); }

 private:
  std::string path() const { return agent::release_path(node_.state_dir()); }
  // A full disk refuses the command too: it is repeated.
  void request_release() {
    if (!by_file_) {
      if (!std::exchange(requested_, true))
        node_.api().set_node_label(kPauseLabel, "paused-for-driver-upgrade");
      return;
    }
    if (!requested_) requested_ = agent::write_release(path(), {WallTime(), "storm"}).has_value();
  }
  void request_acquire() {
    if (!std::exchange(requested_, false)) return;
    if (by_file_) {
      static_cast<void>(agent::remove_release(path()));
    } else {
      node_.api().set_node_label(kPauseLabel, "true");
    }
  }
  // An agent that starts holds the driver until it has read its Node.
  bool reload_driver() {
    if (!control::unload_driver(node_.machine(), control::Clients::kRefuse)) return false;
    return control::load_driver(node_.machine()).has_value();
  }
  StormNode& node_;
  const bool by_file_;
  bool requested_ = false;
};

class CordonOperation final : public Operation {
 public:
  CordonOperation(StormNode& node, std::uint64_t) : node_(node), device_(node.gpu_uuid(kCordonedGpu)) {}
  std::vector<Step> steps() override {
    const auto is_cordoned = [this] { return is_listed(node_, device_, false); };
    return {{"cordon", [this] { write_action(health::OperatorAction::kCordon); },
             [this, is_cordoned] {
               write_action(health::OperatorAction::kCordon);
               return is_cordoned();
             }},
            {"restart",
             [this] {
               before_ = registrations(node_);
               node_.stop_agent(milliseconds(0));
             },
             [this, is_cordoned] { return registrations(node_) > before_ && is_cordoned(); }},
            {"uncordon", [this] { write_action(health::OperatorAction::kUncordon); },
             [this] {
               write_action(health::OperatorAction::kUncordon);
               return node_.is_settled();
             }}};
  }
  void clean_up() override { write_action(health::OperatorAction::kUncordon); }

 private:
  static constexpr std::uint32_t kCordonedGpu = 3;
  // A full disk refuses the command too: it is repeated until it is written.
  void write_action(health::OperatorAction action) {
    if (written_ == action) return;
    const auto now = std::chrono::floor<milliseconds>(std::chrono::system_clock::now());
    const auto status = health::update_cordons(
        agent::cordons_path(node_.state_dir()), now,
        [&](health::Cordons& cordons) { cordons[DeviceUuid(device_)] = {action, now, "storm"}; });
    if (status) written_ = action;
  }
  StormNode& node_;
  const std::string device_;
  std::optional<health::OperatorAction> written_ = health::OperatorAction::kUncordon;
  std::uint64_t before_ = 0;
};

template <class Kind>
std::unique_ptr<Operation> make_operation(StormNode& node, std::uint64_t number) {
  return std::make_unique<Kind>(node, number);
}

}  // namespace

const std::vector<OperationKind>& operation_kinds() {
  static const std::vector<OperationKind> kinds = {
      {"registration",
       {"start", "refused", "accepted", "socket-lost"},
       make_operation<RegistrationOperation>},
      {"allocation", {"admit", "run", "fill", "delete", "reuse"}, make_operation<AllocationOperation>},
      {"mig", {"mode", "create", "offer", "destroy", "mode-off"}, make_operation<MigOperation>},
      {"eviction", {"fault", "evict", "leave", "recover"}, make_operation<EvictionOperation>},
      {"release", {"release", "reload", "acquire"}, make_operation<ReleaseOperation>},
      {"cordon", {"cordon", "restart", "uncordon"}, make_operation<CordonOperation>}};
  return kinds;
}

}  // namespace gpulet::storm
