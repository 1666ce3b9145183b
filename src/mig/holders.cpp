#include "mig/holders.h"

#include <algorithm>

namespace gpulet::mig {
namespace {

void add_once(std::vector<std::string>& holders, const std::string& who) {
  if (std::ranges::find(holders, who) == holders.end()) holders.push_back(who);
}

class WithPods final : public Hardware {
 public:
  WithPods(Hardware& hardware, std::function<Result<Pods>()> pods)
      : hardware_(hardware), pods_(std::move(pods)) {}

  Result<State> read() override {
    GPULET_TRY_ASSIGN(auto state, hardware_.read());
    last_ = state;
    GPULET_TRY_ASSIGN(const auto pods, pods_());
    add_pods(state, pods);
    return state;
  }
  Result<std::vector<std::string>> holders(std::optional<unsigned> instance) override {
    GPULET_TRY_ASSIGN(auto holders, hardware_.holders(instance));
    GPULET_TRY_ASSIGN(const auto pods, pods_());
    State now = last_;
    now.holders.clear();
    for (auto& one : now.instances) one.holders.clear();
    add_pods(now, pods);
    if (!instance) {
      for (const auto& who : now.holders) add_once(holders, who);
    }
    // One that was made after the last reading is in no Pod's hands: the kubelet has not heard of it.
    for (const auto& one : now.instances) {
      if (one.id != instance) continue;
      for (const auto& who : one.holders) add_once(holders, who);
    }
    return holders;
  }
  Result<bool> set_mode(bool enabled) override { return hardware_.set_mode(enabled); }
  Status destroy_compute(unsigned instance, unsigned compute) override {
    return hardware_.destroy_compute(instance, compute);
  }
  Status destroy_instance(unsigned instance) override { return hardware_.destroy_instance(instance); }
  Result<unsigned> create_instance(unsigned profile, const Placement& placement) override {
    return hardware_.create_instance(profile, placement);
  }
  Result<unsigned> create_compute(unsigned instance, const NewCompute& compute) override {
    return hardware_.create_compute(instance, compute);
  }

 private:
  Hardware& hardware_;
  std::function<Result<Pods>()> pods_;
  State last_;  // which device is which instance
};

}  // namespace

void add_pods(State& state, const Pods& pods) {
  for (const auto& [id, pod] : pods) {
    const std::string uuid = id.str().substr(0, id.str().find("::"));
    const std::string who = "Pod " + pod;
    const bool whole = uuid == state.uuid.str();
    if (whole) add_once(state.holders, who);
    for (auto& instance : state.instances) {
      const bool held = whole || std::ranges::any_of(instance.compute, [&](const auto& compute) {
                          return compute.uuid.str() == uuid;
                        });
      if (held) add_once(instance.holders, who);
    }
  }
}

std::unique_ptr<Hardware> with_pods(Hardware& hardware, std::function<Result<Pods>()> pods) {
  return std::make_unique<WithPods>(hardware, std::move(pods));
}

}  // namespace gpulet::mig
