// For this room's tests: a simulated GPU behind the real driver calls, and a Hardware that ends or fails at
// one call.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "mig/apply.h"
#include "mig/plan.h"
#include "mig/read.h"
#include "mig/rollback.h"
#include "mig/test_states.h"
#include "nvml/session.h"
#include "nvml/test_sim_root.h"

namespace gpulet::mig {

// GPU 0 of a machine, MIG on and with nothing on it, unless said otherwise.
class Drive {
 public:
  explicit Drive(const std::string& machine, bool enabled = true) : root_(*states::machine(machine)) {
    states::enable(root_.edit()->gpus[0], enabled);
    auto opened = nvml::Session::open(root_.path());
    EXPECT_TRUE(opened) << opened.error().text();
    session_ = *opened;
    hardware_ = make_hardware(session_, 0, DeviceUuid(root_.edit()->gpus[0].uuid));
  }

  const nvml::Session& session() { return *session_; }
  std::shared_ptr<const nvml::Session> shared_session() { return session_; }
  Hardware& hardware() { return *hardware_; }
  sim::EditGuard edit() { return root_.edit(); }
  // Under the machine's lock.
  template <class Change>
  auto on_gpu(Change change) {
    const auto machine = root_.edit();
    return change(machine->gpus[0]);
  }

  State state() {
    auto made = read(*session_, 0);
    EXPECT_TRUE(made) << made.error().text();
    return made ? std::move(*made) : State{};
  }
  // As if it had always been so.
  void put(const State& from) {
    on_gpu([&](sim::Gpu& gpu) {
      for (auto& instance : gpu.mig.instances) instance = {};
      states::enable(gpu, from.enabled);
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
  void hold(unsigned pid, unsigned instance, unsigned compute) {
    sim::Process process{};
    process.pid = pid;
    process.gpu_instance = instance;
    process.compute_instance = compute;
    on_gpu([&](sim::Gpu& gpu) { EXPECT_TRUE(sim::add_process(gpu, process)); });
  }
  Plan planned(const Layout& layout) {
    auto made = plan(state(), layout);
    EXPECT_TRUE(made) << made.error().text();
    return made ? std::move(*made) : Plan{};
  }
  Report applied(const Layout& layout) { return apply(*hardware_, planned(layout)); }

 private:
  nvml::SimRoot root_;
  std::shared_ptr<const nvml::Session> session_;
  std::unique_ptr<Hardware> hardware_;
};

// What a test does in place of the call of that number, of those that change something, from 0 on.
class Interrupted : public Hardware {
 public:
  struct Killed {};
  enum class How { kDieBefore, kDieAfter, kFail, kFailAfter };
  Interrupted(Hardware& real, std::size_t call, How how, Code code = Code::kFailedPrecondition)
      : real_(real), call_(call), how_(how), code_(code) {}

  std::size_t calls() const { return calls_; }
  // Run before each question for holders, and before each call that changes something.
  std::function<void()> before_holders, before_change;

  Result<State> read() override { return real_.read(); }
  Result<std::vector<std::string>> holders(std::optional<unsigned> instance) override {
    if (before_holders) before_holders();
    return real_.holders(instance);
  }
  Result<bool> set_mode(bool enabled) override {
    return during<Result<bool>>([&] { return real_.set_mode(enabled); });
  }
  Status destroy_compute(unsigned instance, unsigned compute) override {
    return during<Status>([&] { return real_.destroy_compute(instance, compute); });
  }
  Status destroy_instance(unsigned instance) override {
    return during<Status>([&] { return real_.destroy_instance(instance); });
  }
  Result<unsigned> create_instance(unsigned profile, const Placement& placement) override {
    return during<Result<unsigned>>([&] { return real_.create_instance(profile, placement); });
  }
  Result<unsigned> create_compute(unsigned instance, const NewCompute& compute) override {
    return during<Result<unsigned>>([&] { return real_.create_compute(instance, compute); });
  }

 private:
  template <class Answer>
  Answer during(const std::function<Answer()>& act) {
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

// Further than any plan goes.
inline constexpr std::size_t kNever = 1000;

}  // namespace gpulet::mig
