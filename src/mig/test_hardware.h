// Test helpers: a simulated GPU behind the real driver calls, and a Hardware that dies or fails at
// one call.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "mig/apply.h"
#include "mig/hardware.h"
#include "mig/plan.h"
#include "mig/test_states.h"
#include "nvml/session.h"
#include "nvml/test_sim_root.h"
#include "sim/state/clients.h"

namespace gpulet::mig {

// GPU 0 of a machine; by default MIG is on and the GPU is empty.
class SimHardware {
 public:
  explicit SimHardware(const std::string& machine, bool enabled = true)
      : root_(*states::test_machine(machine)) {
    states::set_mig_mode(root_.edit_machine()->gpus[0], enabled);
    open_gpu();
  }

  const nvml::Session& session() { return *session_; }
  std::shared_ptr<const nvml::Session> shared_session() { return session_; }
  Hardware& hardware() { return *hardware_; }
  sim::EditGuard edit_machine() { return root_.edit_machine(); }
  // Under the machine's lock.
  template <class Change>
  auto on_gpu(Change change) {
    const auto machine = root_.edit_machine();
    return change(machine->gpus[0]);
  }

  State current_state() {
    auto made = read_mig_state(*session_, 0);
    EXPECT_TRUE(made) << made.error().full_message();
    return made ? std::move(*made) : State{};
  }
  // Sets the GPU's instances directly.
  void set_state(const State& from) {
    on_gpu([&](sim::Gpu& gpu) {
      for (auto& instance : gpu.mig.instances) instance = {};
      states::set_mig_mode(gpu, from.enabled);
      for (const auto& instance : from.instances) {
        sim::GpuInstance* made = nullptr;
        ASSERT_EQ(sim::create_gpu_instance(gpu, instance.profile, instance.placement.start, &made),
                  sim::MigOutcome::kOk);
        for (const auto& compute : instance.compute) {
          sim::ComputeInstance* part = nullptr;
          ASSERT_EQ(sim::create_compute_instance(gpu, *made, compute.profile, compute.placement.start, &part),
                    sim::MigOutcome::kOk);
        }
      }
    });
  }
  void add_holder(unsigned pid, unsigned instance, unsigned compute) {
    sim::Process process{};
    process.pid = pid;
    process.gpu_instance = instance;
    process.compute_instance = compute;
    on_gpu([&](sim::Gpu& gpu) { EXPECT_TRUE(sim::add_process(gpu, process)); });
  }
  // Another process has the driver open, as monitors have: the driver lists no process for it.
  void add_monitor() {
    auto state = sim::StateFile::open_state(root_.sim_root() + "/" + std::string(sim::kStatePathInRoot));
    ASSERT_TRUE(state) << state.error().full_message();
    auto added = sim::ClientEntry::add_client(*state, *root_.edit_machine(), sim::kAllGpus);
    ASSERT_TRUE(added) << added.error().full_message();
    monitor_.emplace(std::move(*added));
  }
  void remove_monitor() { monitor_.reset(); }
  // A power cut and the next start.
  void reboot() {
    monitor_.reset();
    sim::reboot(*root_.edit_machine());
    open_gpu();
  }
  Plan plan_for(const Layout& layout) {
    auto made = make_plan(current_state(), layout);
    EXPECT_TRUE(made) << made.error().full_message();
    return made ? std::move(*made) : Plan{};
  }
  Report plan_and_apply(const Layout& layout) { return apply_plan(*hardware_, plan_for(layout)); }

 private:
  void open_gpu() {
    hardware_.reset();
    session_.reset();
    auto opened = nvml::Session::open_session(root_.sim_root());
    ASSERT_TRUE(opened) << opened.error().full_message();
    session_ = *opened;
    hardware_ = make_hardware(session_, 0, DeviceUuid(root_.edit_machine()->gpus[0].uuid));
  }

  nvml::SimRoot root_;
  std::optional<sim::ClientEntry> monitor_;
  std::shared_ptr<const nvml::Session> session_;
  std::unique_ptr<Hardware> hardware_;
};

// What happens at the changing call of that number, counted from 0.
class FailingHardware : public Hardware {
 public:
  struct Killed {};
  enum class How { kDieBefore, kDieAfter, kFail, kFailAfter };
  FailingHardware(Hardware& real, std::size_t call, How how, Code code = Code::kFailedPrecondition)
      : real_(real), call_(call), how_(how), code_(code) {}

  std::size_t change_calls() const { return calls_; }
  // Called before each holders() and before each changing call.
  std::function<void()> before_holders, before_change;

  Result<State> read_state() override { return real_.read_state(); }
  Result<std::vector<std::string>> holders(std::optional<unsigned> instance) override {
    if (before_holders) before_holders();
    return real_.holders(instance);
  }
  Result<nvml::MigActivation> set_mode(bool enabled) override {
    return run_change<Result<nvml::MigActivation>>([&] { return real_.set_mode(enabled); });
  }
  std::vector<DeviceHolder> device_holders() override { return real_.device_holders(); }
  Status destroy_compute_instance(unsigned instance, unsigned compute) override {
    return run_change<Status>([&] { return real_.destroy_compute_instance(instance, compute); });
  }
  Status destroy_gpu_instance(unsigned instance) override {
    return run_change<Status>([&] { return real_.destroy_gpu_instance(instance); });
  }
  Result<unsigned> create_gpu_instance(unsigned profile, const Placement& placement) override {
    return run_change<Result<unsigned>>([&] { return real_.create_gpu_instance(profile, placement); });
  }
  Result<unsigned> create_compute_instance(unsigned instance, const NewCompute& compute) override {
    return run_change<Result<unsigned>>([&] { return real_.create_compute_instance(instance, compute); });
  }

 private:
  template <class Answer>
  Answer run_change(const std::function<Answer()>& act) {
    if (before_change) before_change();
    if (calls_++ != call_) return act();
    switch (how_) {
      case How::kDieBefore:
        throw Killed{};
      case How::kDieAfter:
        static_cast<void>(act());
        throw Killed{};
      case How::kFailAfter:
        static_cast<void>(act());
        break;
      case How::kFail:
        break;
    }
    return fail(code_, "told to fail");
  }

  Hardware& real_;
  std::size_t call_;
  How how_;
  Code code_;
  std::size_t calls_ = 0;
};

// More calls than any plan makes.
inline constexpr std::size_t kNever = 1000;

}  // namespace gpulet::mig
