#include "dra/limit_demand.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "dra/claim_controller.h"
#include "dra/claim_memory.h"
#include "dra/device.h"
#include "fraction/container_rules.h"
#include "fraction/fraction_request.h"

namespace gpulet::dra {
namespace {

using fraction::LimitGrade;

// Without the API server's word for an end, a Pod counts.
bool has_ended(const nlohmann::json& pod) {
  const auto phase = json_text(json_member(json_member(pod, "status"), "phase"));
  return phase == "Succeeded" || phase == "Failed";
}

// nullopt: it uses nothing of this node. One that is not bound yet may come to it.
Result<std::optional<k8s::PodMetadata>> parse_consumer(const std::string& text, const std::string& node) {
  const auto pod = parse_json(text);
  if (has_ended(pod)) return std::nullopt;
  const bool is_bound = !json_text(json_member(json_member(pod, "spec"), "nodeName")).empty();
  return k8s::parse_pod_metadata(pod, is_bound ? node : "");
}

// Reads the Pods of one claim, one after the other: those of other claims are read at the same time.
struct PodReads {
  ClaimSource& source;
  std::string node;
  std::vector<PodRef> open;  // the last is the next
  std::vector<k8s::PodMetadata> pods{};
  std::function<void(Result<std::vector<k8s::PodMetadata>>)> done;

  Status add_pod(const PodRef& pod, const Result<std::optional<std::string>>& text) {
    const auto failed = [&](const Error& why) {
      return fail(why.with_context("cannot read Pod " + pod.name_space + "/" + pod.name));
    };
    if (!text) return failed(text.error());
    if (!*text) return {};
    auto facts = parse_consumer(**text, node);
    if (!facts) return failed({Code::kInvalidArgument, facts.error().message()});
    if (*facts && (*facts)->pod.uid == pod.uid) pods.push_back(std::move(**facts));
    return {};
  }
};

void read_next_pod(const std::shared_ptr<PodReads>& reads) {
  if (reads->open.empty()) return reads->done(std::move(reads->pods));
  auto pod = std::move(reads->open.back());
  reads->open.pop_back();
  reads->source.read_pod(pod, [reads, pod](const Result<std::optional<std::string>>& text) {
    if (auto added = reads->add_pod(pod, text); !added) return reads->done(fail(added.error()));
    read_next_pod(reads);
  });
}

std::string grade_text(LimitGrade grade) { return std::string(fraction::limit_grade_name(grade)); }

std::string demand_text(const k8s::PodMetadata& pod, LimitGrade least) {
  return "Pod " + pod.pod.name_space + "/" + pod.pod.name + " demands memory limits of grade " +
         grade_text(least) + " (annotation " + std::string(fraction::kMinGradeAnnotation) + ")";
}

// Also of a container without the claim: one that can set limits sets those of others.
Status check_rules(const k8s::PodMetadata& pod, LimitGrade least) {
  for (const auto& access : pod.access) {
    for (const auto& cap : fraction::check_container_rules(access, false)) {
      if (cap.highest >= least) continue;
      return fail(Code::kFailedPrecondition,
                  demand_text(pod, least) + "; " + cap.reason + ", which leaves " + grade_text(cap.highest));
    }
  }
  return {};
}

// The containers of a Pod that use the claim; all where none is known to.
std::vector<k8s::PodContainer> users_of(const ClaimRecord& record, const k8s::PodMetadata& pod) {
  std::vector<k8s::PodContainer> users;
  std::ranges::copy_if(pod.containers, std::back_inserter(users), [&](const k8s::PodContainer& one) {
    return std::ranges::count(one.claims, record.name, &k8s::ContainerClaim::claim) != 0;
  });
  if (!users.empty()) return users;
  users = pod.containers;
  for (auto& user : users) user.claims = {{record.name, {}}};
  return users;
}

// A MIG device that is not made yet has no UUID: its name tells it from others.
ClaimRecord judged_record(ClaimRecord record) {
  for (auto& device : record.devices) {
    if (device.partition && device.uuid.empty()) device.uuid = DeviceUuid(device.device);
  }
  return record;
}

struct PodDemand {
  const ClaimRecord& record;
  const k8s::PodMetadata& pod;
  LimitGrade least;
  bool has_others;  // Pods that may use the claim
  const DemandNode& node;
  const std::vector<fraction::FractionRequest>& requests;

  bool is_shared(const DeviceUuid& device) const {
    return has_others || std::ranges::any_of(record.devices, [&](const RecordedDevice& one) {
             return one.uuid == device && (one.admin_access || one.is_share());
           });
  }

  // The request counts for one share: a claim has a device once, in however many shares.
  Bytes limit_of(const std::string& container, const DeviceUuid& device, Bytes claimed) const {
    const auto found = std::ranges::find(requests, container, &fraction::FractionRequest::container);
    if (found == requests.end()) return claimed;
    return least_limit(requested_limit(*found, node.memory_of(device), 1), claimed);
  }

  fraction::LimitMeans means_of(const k8s::PodContainer& container, const DeviceUuid& device) const {
    const auto found = node.means.find(device);
    auto means = found != node.means.end()
                     ? found->second
                     : fraction::LimitMeans{.no_driver_limit = "the driver has no limits for MIG devices",
                                            .no_audit = "MIG devices are not audited"};
    if (container.is_init && !container.is_sidecar && means.ends_excess) {
      means.ends_excess = false;
      means.no_audit = "init containers are not audited: the kubelet does not list what they hold";
    }
    return means;
  }

  std::string common_text(const std::string& claim) const {
    if (!has_others) return common_share_text(claim);
    return "other Pods can use its share of the claim " + claim + " too, and together more than the share";
  }

  Status check_device(const k8s::PodContainer& user, const DeviceUuid& device, const ClaimedMemory& memory,
                      bool is_common) const {
    const auto& container = user.name;
    auto of_device = means_of(user, device);
    of_device.mps_process_mib = memory.mps_process_mib;
    const auto access = std::ranges::find(pod.access, container, &fraction::ContainerAccess::name);
    // What was not read breaks every rule.
    const auto known =
        access != pod.access.end() ? *access : fraction::ContainerAccess{.is_privileged = true};
    auto caps = fraction::check_container_rules(known, memory.has_mps);
    if (is_common) caps.push_back({LimitGrade::kNone, common_text(memory.claim)});
    const auto limit = limit_of(container, device, memory.limit);
    const auto grade = fraction::grade_of_container(limit.mebibytes(), of_device, caps);
    if (grade.grade >= least) return {};
    const auto reason = std::ranges::find_if(
        grade.reasons, [&](const fraction::GradeCap& cap) { return cap.highest < least; });
    return fail(Code::kFailedPrecondition, demand_text(pod, least) + "; this node gives container " +
                                               container + " " + grade_text(grade.grade) + " on " +
                                               device.str() +
                                               (reason == grade.reasons.end() ? "" : ": " + reason->reason) +
                                               (has_others ? "; other Pods can use the claim too" : ""));
  }

  Status check() const {
    const std::map<std::string, ClaimRecord> records = {{record.uid, record}};
    std::map<std::string, unsigned> uses;  // of shares, by containers; one that ends may stay as a sidecar
    std::vector<std::map<DeviceUuid, ClaimedMemory>> claimed;
    const auto users = users_of(record, pod);
    for (const auto& container : users) {
      GPULET_TRY_ASSIGN(auto memory, claimed_memory(records, record.name_space, container.claims));
      for (const auto& [device, of_device] : memory) {
        for (const auto& share : of_device.shares) ++uses[share];
      }
      claimed.push_back(std::move(memory));
    }
    bool has_shared = false;
    for (std::size_t i = 0; i < users.size(); ++i) {
      for (const auto& [device, memory] : claimed[i]) {
        if (!is_shared(device)) continue;
        has_shared = true;
        const bool is_common = std::ranges::any_of(
            memory.shares, [&](const std::string& share) { return has_others || uses.at(share) > 1; });
        GPULET_TRY(check_device(users[i], device, memory, is_common));
      }
    }
    return has_shared ? check_rules(pod, least) : Status{};
  }
};

// `has_others`: other Pods than this one may use the claim.
Status check_demand(const ClaimRecord& record, const k8s::PodMetadata& pod, bool has_others,
                    const std::vector<fraction::FractionRequest>& requests, const DemandNode& node) {
  const auto value = pod.annotations.find(std::string(fraction::kMinGradeAnnotation));
  if (value == pod.annotations.end()) return {};
  const auto check = [&]() -> Status {
    const auto least = fraction::parse_min_grade(value->second);
    if (!least)
      return fail(Code::kInvalidArgument,
                  "Pod " + pod.pod.name_space + "/" + pod.pod.name + ": " + least.error().message());
    const auto judged = judged_record(record);
    return PodDemand{judged, pod, *least, has_others, node, requests}.check();
  };
  const auto checked = check();
  if (checked) return {};
  return fail(checked.error().code(), checked.error().message(), "claim " + claim_text(record));
}

}  // namespace

Bytes memory_of_gpu(const DevicePool& pool, const DeviceUuid& gpu) {
  const auto found = std::ranges::find_if(
      pool.devices, [&](const PoolDevice& one) { return one.type == DeviceType::kGpu && one.uuid == gpu; });
  if (found == pool.devices.end()) return {};
  const auto memory = found->device.capacity.find(kMemoryCapacity);
  return memory == found->device.capacity.end() ? Bytes{} : Bytes{memory->second};
}

bool is_of_several_pods(const ResourceClaim& claim, const std::string& pod_uid) {
  return claim.has_other_consumers || claim.owner_pod != pod_uid || pod_uid.empty();
}

bool shares_devices(const ResourceClaim& claim) {
  const bool has_others = std::ranges::any_of(
      claim.reserved_for, [&](const PodRef& pod) { return is_of_several_pods(claim, pod.uid); });
  return has_others || std::ranges::any_of(claim.results, [](const AllocationResult& result) {
           return result.admin_access || !result.share_id.empty();
         });
}

void read_reserved_pods(ClaimSource& source, const ResourceClaim& claim, const std::string& node,
                        std::function<void(Result<std::vector<k8s::PodMetadata>>)> done) {
  const auto reads =
      std::make_shared<PodReads>(PodReads{.source = source,
                                          .node = node,
                                          .open = {claim.reserved_for.rbegin(), claim.reserved_for.rend()},
                                          .done = std::move(done)});
  read_next_pod(reads);
}

Status check_limit_demands(const ResourceClaim& claim, const ClaimRecord& record,
                           std::span<const k8s::PodMetadata> pods, const DemandNode& node) {
  for (const auto& pod : pods) {
    const auto requests = fraction::parse_fraction_requests(k8s::fraction_fields(pod))
                              .value_or(std::vector<fraction::FractionRequest>());
    GPULET_TRY(
        check_demand(record, pod, pods.size() > 1 || is_of_several_pods(claim, pod.pod.uid), requests, node));
  }
  return {};
}

Status check_named_claims(const std::map<std::string, ClaimRecord>& records, const k8s::PodMetadata& pod,
                          const std::string& container,
                          const std::vector<fraction::FractionRequest>& requests, const DemandNode& node) {
  const auto spec = std::ranges::find(pod.containers, container, &k8s::PodContainer::name);
  if (spec == pod.containers.end()) return {};
  auto judged = pod;
  for (auto& access : judged.access) access.ephemeral_caps.clear();
  for (const auto& [uid, record] : records) {
    const bool is_named = std::ranges::any_of(spec->claims, [&](const k8s::ContainerClaim& one) {
      return one.is_named && one.claim == record.name;
    });
    if (!is_named || record.ending || record.name_space != pod.pod.name_space) continue;
    GPULET_TRY(check_demand(record, judged, true, requests, node));
  }
  return {};
}

}  // namespace gpulet::dra
