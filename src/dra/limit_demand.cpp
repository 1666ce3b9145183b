#include "dra/limit_demand.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/json.h"
#include "dra/claim_controller.h"
#include "dra/claim_memory.h"
#include "fraction/container_rules.h"
#include "fraction/fraction_request.h"

namespace gpulet::dra {
namespace {

using fraction::LimitGrade;

// The answers of one claim's Pods; `done` gets them when the last has come.
struct PodReads {
  std::size_t open = 1;  // one more, so that it is not done before all have begun
  Result<std::vector<k8s::PodMetadata>> pods = std::vector<k8s::PodMetadata>();
  std::function<void(Result<std::vector<k8s::PodMetadata>>)> done;

  void add_pod(const PodRef& pod, const std::string& node, const Result<std::optional<std::string>>& text) {
    if (!text) return fail_reads(pod, text.error());
    if (!*text) return;
    auto facts = k8s::parse_pod_metadata(parse_json(**text), node);
    if (!facts) return fail_reads(pod, {Code::kInvalidArgument, facts.error().message()});
    if (pods && *facts && (*facts)->pod.uid == pod.uid) pods->push_back(std::move(**facts));
  }
  void fail_reads(const PodRef& pod, const Error& why) {
    if (pods) pods = fail(why.with_context("cannot read Pod " + pod.name_space + "/" + pod.name));
  }
  void end_one() {
    if (--open == 0) done(std::move(pods));
  }
};

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

Bytes least_limit(Bytes claimed, const std::vector<fraction::FractionRequest>& requests,
                  const std::string& container) {
  const auto found = std::ranges::find(requests, container, &fraction::FractionRequest::container);
  if (found == requests.end() || found->memory_limit.mib == 0) return claimed;
  const auto requested = mebibytes(found->memory_limit.mib);
  return claimed == Bytes{} ? requested : std::min(claimed, requested);
}

struct PodDemand {
  const ClaimRecord& record;
  const k8s::PodMetadata& pod;
  LimitGrade least;
  bool is_of_several_pods;
  const std::map<DeviceUuid, fraction::LimitMeans>& means;
  std::vector<fraction::FractionRequest> requests;

  bool is_shared(const DeviceUuid& device) const {
    return is_of_several_pods || std::ranges::any_of(record.devices, [&](const RecordedDevice& one) {
             return one.uuid == device && (one.admin_access || one.is_share());
           });
  }

  Status check_device(const std::string& container, const DeviceUuid& device, const ClaimedMemory& memory,
                      bool is_common) const {
    const auto found = means.find(device);
    auto of_device = found != means.end()
                         ? found->second
                         : fraction::LimitMeans{.no_driver_limit = "the driver has no limits for MIG devices",
                                                .no_audit = "MIG devices are not audited"};
    of_device.mps_process_mib = memory.mps_process_mib;
    const auto access = std::ranges::find(pod.access, container, &fraction::ContainerAccess::name);
    // What was not read breaks every rule.
    const auto known =
        access != pod.access.end() ? *access : fraction::ContainerAccess{.is_privileged = true};
    auto caps = fraction::check_container_rules(known, memory.has_mps);
    if (is_common) caps.push_back({LimitGrade::kNone, common_share_text(memory.claim)});
    const auto limit = least_limit(memory.limit, requests, container);
    const auto grade = fraction::grade_of_container(limit.mebibytes(), of_device, caps);
    if (grade.grade >= least) return {};
    const auto reason = std::ranges::find_if(
        grade.reasons, [&](const fraction::GradeCap& cap) { return cap.highest < least; });
    return fail(Code::kFailedPrecondition, demand_text(pod, least) + "; this node gives container " +
                                               container + " " + grade_text(grade.grade) + " on " +
                                               device.str() +
                                               (reason == grade.reasons.end() ? "" : ": " + reason->reason));
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
        const bool is_common = std::ranges::any_of(memory.shares, [&](const std::string& share) {
          return is_of_several_pods || uses.at(share) > 1;
        });
        GPULET_TRY(check_device(users[i].name, device, memory, is_common));
      }
    }
    return has_shared ? check_rules(pod, least) : Status{};
  }
};

}  // namespace

bool shares_devices(const ResourceClaim& claim) {
  return claim.reserved_for.size() > 1 ||
         std::ranges::any_of(claim.results, [](const AllocationResult& result) {
           return result.admin_access || !result.share_id.empty();
         });
}

void read_reserved_pods(ClaimSource& source, const ResourceClaim& claim, const std::string& node,
                        std::function<void(Result<std::vector<k8s::PodMetadata>>)> done) {
  const auto reads = std::make_shared<PodReads>();
  reads->done = std::move(done);
  for (const auto& reserved : claim.reserved_for) {
    ++reads->open;
    source.read_pod(reserved, [reads, pod = reserved, node](const Result<std::optional<std::string>>& text) {
      reads->add_pod(pod, node, text);
      reads->end_one();
    });
  }
  reads->end_one();
}

Status check_limit_demands(const ClaimRecord& record, std::span<const k8s::PodMetadata> pods,
                           const std::map<DeviceUuid, fraction::LimitMeans>& means) {
  for (const auto& pod : pods) {
    const auto value = pod.annotations.find(std::string(fraction::kMinGradeAnnotation));
    if (value == pod.annotations.end()) continue;
    const auto refuse = [&](const Error& why) {
      return fail(why.code(), why.message(), "claim " + claim_text(record));
    };
    const auto least = fraction::parse_min_grade(value->second);
    if (!least)
      return refuse({Code::kInvalidArgument,
                     "Pod " + pod.pod.name_space + "/" + pod.pod.name + ": " + least.error().message()});
    const PodDemand demand{record,
                           pod,
                           *least,
                           pods.size() > 1,
                           means,
                           fraction::parse_fraction_requests(k8s::fraction_fields(pod))
                               .value_or(std::vector<fraction::FractionRequest>())};
    if (const auto checked = demand.check(); !checked) return refuse(checked.error());
  }
  return {};
}

}  // namespace gpulet::dra
