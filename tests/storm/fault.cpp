#include "tests/storm/fault.h"

#include <array>
#include <cerrno>

namespace gpulet::storm {
namespace {

constexpr std::array<std::string_view, kFaults> kNames = {
    "kill-agent", "kill-listener", "restart-kubelet", "reset-kubelet",  "kill-mps",       "disk-full",
    "read-only",  "io-error",      "clock-forward",   "clock-backward", "no-descriptors", "no-memory"};

}  // namespace

std::string_view fault_name(Fault fault) { return kNames[static_cast<std::size_t>(fault)]; }

FaultPlan plan_fault(Fault fault, std::size_t step, std::mt19937_64& random) {
  const auto up_to = [&](std::uint64_t most) { return milliseconds(random() % (most + 1)); };
  // Many steps take a few milliseconds.
  const auto delay = random() % 2 == 0 ? up_to(5) : up_to(150);
  const bool kubelet = fault == Fault::kRestartKubelet || fault == Fault::kResetKubelet;
  return {.fault = fault,
          .step = step,
          .delay = delay,
          .length = kubelet ? up_to(100) : up_to(600),
          .restart = up_to(60),
          .spare = static_cast<unsigned>(random() % 3),
          .stays = random() % 2 == 0};
}

void FaultInjector::set_plan(std::vector<FaultPlan> plan) {
  planned_.clear();
  for (const auto& one : plan) planned_.push_back({.plan = one, .at = {}, .end = {}});
}

void FaultInjector::begin_step(std::size_t step) {
  for (auto& planned : planned_) {
    if (planned.plan.step == step) planned.at = Clock::now() + planned.plan.delay;
  }
  update();
}

void FaultInjector::update() {
  const auto now = Clock::now();
  for (auto& planned : planned_) {
    if (!planned.injected && planned.at && *planned.at <= now) inject(planned);
    if (planned.end && *planned.end <= now) remove(planned);
  }
}

void FaultInjector::finish_step() {
  for (auto& planned : planned_) {
    if (!planned.injected && planned.at) inject(planned);
  }
}

void FaultInjector::remove_faults() {
  for (auto& planned : planned_) {
    if (planned.end) remove(planned);
  }
}

std::vector<FaultPlan> FaultInjector::injected() const {
  std::vector<FaultPlan> plans;
  for (const auto& planned : planned_) {
    if (planned.injected) plans.push_back(planned.plan);
  }
  return plans;
}

void FaultInjector::inject(Planned& planned) {
  const auto& plan = planned.plan;
  planned.injected = true;
  planned.end = Clock::now() + plan.length;
  switch (plan.fault) {
    case Fault::kKillAgent:
      return node_.kill_agent(plan.restart);
    case Fault::kKillListener:
      return node_.kill_listener();
    case Fault::kRestartKubelet:
      return node_.stop_kubelet();
    case Fault::kResetKubelet:
      node_.stop_kubelet();
      return node_.lose_checkpoint();
    case Fault::kKillMps:
      return node_.kill_mps_daemon();
    case Fault::kDiskFull:
      return node_.fill_volume();
    case Fault::kReadOnly:
      return node_.set_file_error(EROFS);
    case Fault::kIoError:
      return node_.set_file_error(EIO);
    case Fault::kClockForward:
      return node_.set_clock_shift(kDayS);
    case Fault::kClockBackward:
      return node_.set_clock_shift(-kDayS);
    case Fault::kNoDescriptors:
      return node_.limit_descriptors(plan.spare);
    case Fault::kNoMemory:
      return node_.limit_listener_memory(plan.spare);
  }
}

void FaultInjector::remove(Planned& planned) {
  planned.end.reset();
  switch (planned.plan.fault) {
    case Fault::kKillAgent:
    case Fault::kKillListener:
    case Fault::kKillMps:
      return;
    case Fault::kRestartKubelet:
    case Fault::kResetKubelet:
      return node_.resume_kubelet();
    case Fault::kDiskFull:
      return node_.free_volume();
    case Fault::kReadOnly:
    case Fault::kIoError:
      return node_.set_file_error(0);
    case Fault::kClockForward:
    case Fault::kClockBackward:
      if (!planned.plan.stays) node_.set_clock_shift(0);
      return;
    case Fault::kNoDescriptors:
    case Fault::kNoMemory:
      return node_.remove_limits();
  }
}

}  // namespace gpulet::storm
