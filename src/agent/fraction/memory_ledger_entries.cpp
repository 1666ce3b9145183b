// What each container of the ledger may use of each of its GPUs: its Pod's requests joined with its claims.
#include <algorithm>
#include <utility>

#include "agent/fraction/memory_ledger.h"

namespace gpulet::agent {
namespace {

// Whether several containers use a share of a claim.
bool is_common(const std::map<std::string, unsigned>& share_uses, const std::string& share) {
  const auto found = share_uses.find(share);
  return found != share_uses.end() && found->second > 1;
}

}  // namespace

Result<MemoryLedger::Claimed> MemoryLedger::find_claimed(const HeldPod& pod,
                                                         const std::string& container) const {
  if (!ports_.claimed_memory || !pod.facts) return Claimed();
  const auto spec = std::ranges::find(pod.facts->containers, container, &k8s::PodContainer::name);
  if (spec == pod.facts->containers.end()) return Claimed();
  const auto held = pod.containers.find(container);
  // Others than init containers have a device of claims only where the kubelet lists it.
  const bool has_claim = held == pod.containers.end() ? spec->is_init : held->second.has_claim;
  if (!has_claim || (held == pod.containers.end() && spec->claims.empty())) return Claimed();
  const auto& name_space = pod.facts->pod.name_space;
  auto memory = ports_.claimed_memory(name_space, spec->claims);
  if (!memory && memory.error().code() == Code::kUnsupported) return Claimed();
  if (!memory) return fail(memory.error());
  Claimed claimed{.memory = *std::move(memory)};
  if (held == pod.containers.end()) return claimed;
  auto whole = spec->claims;
  for (auto& claim : whole) claim.request.clear();
  std::optional<ClaimedMemory> of_all;
  for (const auto& uuid : held->second.claimed) {
    if (claimed.memory.contains(uuid)) continue;
    if (!of_all) of_all = ports_.claimed_memory(name_space, whole).value_or(ClaimedMemory());
    if (!of_all->contains(uuid))
      return fail(Code::kUnavailable, "the claim that gave it " + uuid.str() + " is not known");
    claimed.of_other_requests.insert(uuid);
  }
  return claimed;
}

bool MemoryLedger::has_other_user(const HeldPod& pod, const std::vector<k8s::ContainerClaim>& claims) const {
  const auto names_one = [&](const k8s::PodContainer& container) {
    return std::ranges::any_of(container.claims, [&](const auto& one) {
      return std::ranges::count(claims, one.claim, &k8s::ContainerClaim::claim) != 0;
    });
  };
  const auto& own = pod.facts->pod;
  const auto is_user = [&](const auto& named) {
    const auto& facts = named.second.facts;
    return facts && facts->pod.uid != own.uid && facts->pod.name_space == own.name_space &&
           std::ranges::any_of(facts->containers, names_one);
  };
  return std::ranges::any_of(pods_, is_user) || std::ranges::any_of(unlisted_, is_user);
}

Status MemoryLedger::check_joined_claims(const HeldPod& pod, const std::string& container,
                                         const ClaimedMemory& memory) const {
  if (!pod.facts) return {};
  const auto demand = pod.facts->annotations.find(std::string(fraction::kMinGradeAnnotation));
  const auto spec = std::ranges::find(pod.facts->containers, container, &k8s::PodContainer::name);
  if (demand == pod.facts->annotations.end() || spec == pod.facts->containers.end() ||
      !has_other_user(pod, spec->claims))
    return {};
  GPULET_TRY_ASSIGN(const auto least, fraction::parse_min_grade(demand->second));
  const auto found = std::ranges::find(pod.facts->access, container, &fraction::ContainerAccess::name);
  const auto access =
      found != pod.facts->access.end() ? *found : fraction::ContainerAccess{.is_privileged = true};
  for (const auto& [uuid, of_device] : memory) {
    auto caps = fraction::check_container_rules(access, of_device.has_mps);
    if (!of_device.shares.empty())
      caps.push_back({fraction::LimitGrade::kNone, dra::common_share_text(of_device.claim)});
    const auto grade = fraction::grade_of_container(of_device.limit.mebibytes(),
                                                    {.mps_process_mib = of_device.mps_process_mib}, caps);
    if (grade.grade >= least) continue;
    return fail(Code::kFailedPrecondition,
                "its Pod demands memory limits of grade " + std::string(fraction::limit_grade_name(least)) +
                    " (annotation " + std::string(fraction::kMinGradeAnnotation) +
                    "), and other Pods use the claim " + of_device.claim + " too: the grade on " +
                    uuid.str() + " is " + std::string(fraction::limit_grade_name(grade.grade)));
  }
  return {};
}

MemoryLedger::Limit MemoryLedger::limit_on(const inventory::Gpu& gpu, const HeldPod& pod,
                                           const std::string& container, unsigned shares,
                                           const ClaimedMemory& claimed) {
  Limit limit;
  const auto request = pod.requests.find(container);
  if (request != pod.requests.end())
    limit = {dra::requested_limit(request->second, gpu.memory, shares), request->second.memory_source};
  const auto found = claimed.find(gpu.uuid);
  if (found == claimed.end() || found->second.limit == Bytes{}) return limit;
  if (limit.amount != found->second.limit &&
      dra::least_limit(limit.amount, found->second.limit) == limit.amount)
    return limit;
  return {found->second.limit, "claim " + found->second.claim};
}

std::set<DeviceUuid> MemoryLedger::unlimited_gpus(const HeldPod& pod) const {
  std::set<DeviceUuid> gpus;
  for (const auto& [name, held] : pod.containers) {
    const auto claimed = find_claimed(pod, name);
    for (const auto& [uuid, shares] : held.shares) {
      const auto* gpu = snapshot_->find(uuid);
      if (!claimed) {
        const auto* last = find_entry(entries_, uuid, pod, name);
        if (last == nullptr || last->limit == Bytes{}) gpus.insert(uuid);
      } else if (!claimed->of_other_requests.contains(uuid) &&
                 (gpu == nullptr || limit_on(*gpu, pod, name, shares, claimed->memory).amount == Bytes{})) {
        gpus.insert(uuid);
      }
    }
  }
  return gpus;
}

std::map<std::string, unsigned> MemoryLedger::count_share_uses() const {
  std::map<std::string, unsigned> uses;
  for (const auto& [name, pod] : pods_) {
    if (!pod.facts || !ports_.claimed_memory) continue;
    // Also of init containers, which may stay as sidecars.
    for (const auto& container : pod.facts->containers) {
      if (container.claims.empty()) continue;
      const auto claimed = ports_.claimed_memory(name.name_space, container.claims);
      if (!claimed) continue;
      for (const auto& [uuid, memory] : *claimed) {
        for (const auto& share : memory.shares) ++uses[share];
      }
    }
  }
  return uses;
}

const LedgerEntry* MemoryLedger::find_entry(const Entries& entries, const DeviceUuid& gpu, const HeldPod& pod,
                                            const std::string& container) {
  const auto of_gpu = entries.find(gpu);
  if (of_gpu == entries.end() || !pod.facts) return nullptr;
  const auto found = std::ranges::find_if(of_gpu->second, [&](const LedgerEntry& one) {
    return one.pod.uid == pod.facts->pod.uid && one.container == container;
  });
  return found == of_gpu->second.end() ? nullptr : &*found;
}

void MemoryLedger::add_entries(const PodName& name, HeldPod& pod,
                               const std::map<std::string, unsigned>& share_uses, const Entries& before) {
  const bool had_claimed_limit = std::exchange(pod.has_claimed_limit, false);
  for (const auto& [container, held] : pod.containers) {
    LedgerEntry entry{.pod = {name.name_space, name.name, pod.facts ? pod.facts->pod.uid : ""},
                      .container = container,
                      .container_id = {},
                      .resource = {},
                      .limit = {},
                      .source = {}};
    if (pod.facts) {
      const auto spec = std::ranges::find(pod.facts->containers, container, &k8s::PodContainer::name);
      if (spec != pod.facts->containers.end()) entry.container_id = spec->engine_id();
      const auto access = std::ranges::find(pod.facts->access, container, &fraction::ContainerAccess::name);
      if (access != pod.facts->access.end()) entry.access = *access;
    }
    const auto found = find_claimed(pod, container);
    if (!found) {
      pod.has_claimed_limit |= had_claimed_limit;
      if (claim_problem_.empty())
        claim_problem_ = "container " + container + " of Pod " + name.name_space + "/" + name.name + ": " +
                         found.error().message();
    }
    const auto claimed = found.value_or(Claimed());
    for (const auto& [uuid, shares] : held.shares) {
      const auto* gpu = snapshot_ ? snapshot_->find(uuid) : nullptr;
      if (gpu == nullptr || gpu->mig_enabled || claimed.of_other_requests.contains(uuid)) continue;
      entry.resource = held.resources.at(uuid);
      auto limit = limit_on(*gpu, pod, container, shares, claimed.memory);
      entry.limit = limit.amount;
      entry.source = std::move(limit.source);
      entry.caps.clear();
      entry.mps_process_mib = 0;
      const auto* last = found ? nullptr : find_entry(before, uuid, pod, container);
      if (last != nullptr && last->is_limited()) {
        entry.limit = last->limit;
        entry.source = last->source;
        entry.caps = last->caps;
        entry.mps_process_mib = last->mps_process_mib;
      }
      const auto memory = claimed.memory.find(uuid);
      if (memory != claimed.memory.end() && memory->second.mps_process_mib != 0) {
        pod.has_claimed_limit = true;
        entry.mps_process_mib = memory->second.mps_process_mib;
      }
      if (memory != claimed.memory.end() && memory->second.limit != Bytes{}) {
        pod.has_claimed_limit = true;
        if (std::ranges::any_of(memory->second.shares,
                                [&](const auto& share) { return is_common(share_uses, share); }))
          entry.caps = {{fraction::LimitGrade::kNone, dra::common_share_text(memory->second.claim)}};
      }
      entries_[uuid].push_back(entry);
    }
  }
}

}  // namespace gpulet::agent
