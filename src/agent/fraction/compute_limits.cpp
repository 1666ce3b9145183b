#include "agent/fraction/compute_limits.h"

#include <algorithm>
#include <utility>

namespace gpulet::agent {
namespace {

constexpr unsigned kWholePercent = 100;
constexpr unsigned kThousandthsOfAPercent = 10;

// Rounded up, so that the least request is not nothing.
unsigned percent_of(unsigned thousandths, unsigned shares) {
  const auto sum = std::uint64_t{thousandths} * shares;
  const auto percent = (sum + kThousandthsOfAPercent - 1) / kThousandthsOfAPercent;
  return static_cast<unsigned>(std::clamp<std::uint64_t>(percent, 1, kWholePercent));
}

mps::NamespaceLimits limits_of_container(const ContainerLimits& container, const mps::HeldNamespace& held,
                                         const mps::DaemonSpec& spec) {
  auto limits = held.limits;
  if (container.compute_thousandths != 0)
    limits.threads = percent_of(container.compute_thousandths, held.shares);
  std::uint64_t requested = 0;
  for (const auto& device : spec.devices) {
    const auto limit = container.limits.find(device.uuid);
    if (limit != container.limits.end()) requested = std::max(requested, limit->second.mebibytes());
  }
  if (requested != 0 && limits.mebibytes != 0) limits.mebibytes = std::min(limits.mebibytes, requested);
  return limits;
}

}  // namespace

Result<std::vector<NamespaceSetting>> plan_compute(const ContainerLimits& container,
                                                   const std::vector<mps::DaemonSpec>& specs) {
  std::vector<NamespaceSetting> settings;
  for (const auto& [resource, ids] : container.held) {
    bool has_namespaces = false, is_found = false;
    for (const auto& spec : specs) {
      if (spec.namespaces.empty() || std::ranges::find(spec.resources, resource) == spec.resources.end())
        continue;
      has_namespaces = true;
      const auto held = mps::find_namespace(spec, ids);
      if (!held) continue;
      is_found = true;
      settings.push_back(
          {spec.devices.front().uuid, held->name, limits_of_container(container, *held, spec)});
    }
    if (has_namespaces && !container.held_problem.empty())
      return fail(Code::kFailedPrecondition, container.held_problem);
    if (has_namespaces && !is_found)
      return fail(Code::kFailedPrecondition, "its share is no longer offered", resource.str());
  }
  return settings;
}

void ComputeLimits::hold_compute(const ContainerLimits& container, Duration within, Done done) {
  const auto specs = ports_.specs();
  if (std::ranges::all_of(specs, [](const auto& spec) { return spec.namespaces.empty(); })) return done({});
  if (container.is_init) {
    const bool has_share = std::ranges::any_of(specs, [&](const mps::DaemonSpec& spec) {
      return !spec.namespaces.empty() && std::ranges::any_of(spec.resources, [&](const auto& resource) {
        return container.held.contains(resource);
      });
    });
    if (!has_share || container.compute_thousandths == 0) return done({});
    return done(
        fail(Code::kFailedPrecondition, "the kubelet does not say which GPUs an init container holds"));
  }
  auto settings = plan_compute(container, specs);
  if (!settings) return done(fail(settings.error()));
  if (settings->empty()) return done({});
  const auto id = next_++;
  auto& waiting = waiting_[id];
  waiting.settings = std::move(*settings);
  waiting.done = std::move(done);
  waiting.deadline = ports_.loop.after(within, [this, id] {
    finish_waiting(id, fail(Code::kDeadlineExceeded, "the MPS control daemon has not set the limit in time"));
  });
  set_next(id, 0);
}

void ComputeLimits::set_next(std::uint64_t id, std::size_t index) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return;
  if (index == found->second.settings.size()) return finish_waiting(id, {});
  const auto setting = found->second.settings[index];
  ports_.set_namespace(setting,
                       [this, id, index, name = setting.name, alive = lifetime_.watch()](const Status& set) {
                         if (!alive) return;
                         if (set) return set_next(id, index + 1);
                         finish_waiting(id, fail(set.error().with_context("MPS namespace " + name)));
                       });
}

void ComputeLimits::finish_waiting(std::uint64_t id, const Status& status) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return;
  const auto result = status;
  const auto waiting = std::move(found->second);
  waiting_.erase(found);
  waiting.done(result);
}

}  // namespace gpulet::agent
