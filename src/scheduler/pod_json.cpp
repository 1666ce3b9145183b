#include "scheduler/pod_json.h"

#include <rapidjson/document.h>

#include <algorithm>

#include "base/text.h"

namespace gpulet::scheduler {
namespace {

using rapidjson::Value;
using Kind = ContainerRequest::Kind;

constexpr std::size_t kMaxAnnotations = 512;  // that are looked at
constexpr std::size_t kMaxDemands = 32;       // of one container
constexpr unsigned kMaxCount = 65'536;

const Value& member(const Value& object, const char* name) {
  static const Value kNull;
  if (!object.IsObject()) return kNull;
  const auto found = object.FindMember(name);
  return found == object.MemberEnd() ? kNull : found->value;
}

std::string_view view_of(const Value& value) {
  return value.IsString() ? std::string_view(value.GetString(), value.GetStringLength()) : std::string_view();
}
std::string text_of(const Value& value) { return std::string(view_of(value)); }

// Kubernetes' own resources have no domain, or one of kubernetes.io; all others are extended ones.
bool is_extended(std::string_view name) {
  const auto slash = name.find('/');
  return slash != std::string_view::npos && !name.substr(0, slash).ends_with("kubernetes.io") &&
         name.size() <= 253;
}

// Extended resources come in whole numbers.
unsigned count_of(const Value& value) {
  if (value.IsUint()) return std::min(value.GetUint(), kMaxCount);
  const auto number = text::parse_unsigned(view_of(value));
  return static_cast<unsigned>(std::min<std::uint64_t>(number.value_or(0), kMaxCount));
}

std::vector<Demand> demands_of(const Value& container) {
  std::vector<Demand> demands;
  const auto& resources = member(container, "resources");
  // The API server holds limits and requests of an extended resource to be equal, and requests may be left
  // out.
  const auto& limits = member(resources, "limits");
  if (!limits.IsObject()) return demands;
  for (const auto& [name, value] : limits.GetObject()) {
    const unsigned count = is_extended(view_of(name)) ? count_of(value) : 0;
    if (count != 0 && demands.size() < kMaxDemands) demands.push_back({ResourceName(text_of(name)), count});
  }
  std::ranges::sort(demands, {}, &Demand::resource);
  return demands;
}

void add_containers(const Value& list, bool init, PodRequest& request) {
  if (!list.IsArray()) return;
  for (const auto& container : list.GetArray()) {
    auto demands = demands_of(container);
    if (demands.empty() || request.containers.size() >= kMaxContainers) continue;
    const bool sidecar = init && view_of(member(container, "restartPolicy")) == "Always";
    request.containers.push_back({.name = text_of(member(container, "name")),
                                  .kind = sidecar ? Kind::kSidecar : (init ? Kind::kInit : Kind::kMain),
                                  .demands = std::move(demands)});
  }
}

std::string scheduled_at(const Value& status) {
  const auto& conditions = member(status, "conditions");
  if (!conditions.IsArray()) return {};
  for (const auto& condition : conditions.GetArray()) {
    if (view_of(member(condition, "type")) == "PodScheduled" &&
        view_of(member(condition, "status")) == "True") {
      return text_of(member(condition, "lastTransitionTime"));
    }
  }
  return {};
}

bool is_filled(const Value& list) { return list.IsArray() && !list.Empty(); }

// Source: k8s.io/api/core/v1, PodSpec. What is required is a matter of kube-scheduler's filters, which were
// asked first.
bool prefers_nodes(const Value& spec) {
  const auto& affinity = member(spec, "affinity");
  for (const char* const kind : {"nodeAffinity", "podAffinity", "podAntiAffinity"}) {
    if (is_filled(member(member(affinity, kind), "preferredDuringSchedulingIgnoredDuringExecution")))
      return true;
  }
  const auto& spread = member(spec, "topologySpreadConstraints");
  if (!spread.IsArray()) return false;
  return std::ranges::any_of(spread.GetArray(), [](const Value& constraint) {
    return view_of(member(constraint, "whenUnsatisfiable")) == "ScheduleAnyway";
  });
}

}  // namespace

Result<PodRequest> pod_of(const Value& pod) {
  const auto& metadata = member(pod, "metadata");
  const auto& spec = member(pod, "spec");
  const auto& status = member(pod, "status");
  PodRequest request;
  request.name_space = text_of(member(metadata, "namespace"));
  request.name = text_of(member(metadata, "name"));
  request.uid = text_of(member(metadata, "uid"));
  if (request.name.empty()) return fail(Code::kInvalidArgument, "that is no Pod: metadata.name is missing");
  request.node = text_of(member(spec, "nodeName"));
  const auto phase = view_of(member(status, "phase"));
  request.ended = phase == "Succeeded" || phase == "Failed";
  request.scheduled = scheduled_at(status);
  request.prefers_nodes = prefers_nodes(spec);
  add_containers(member(spec, "initContainers"), true, request);
  add_containers(member(spec, "containers"), false, request);
  if (request.containers.empty()) return request;
  if (const auto& annotations = member(metadata, "annotations"); annotations.IsObject()) {
    std::size_t looked_at = 0;
    for (const auto& [key, value] : annotations.GetObject()) {
      if (++looked_at > kMaxAnnotations) break;
      take_annotation(view_of(key), view_of(value), request);
    }
  }
  return request;
}

Result<PodRequest> parse_pod(std::string_view json) {
  rapidjson::Document document;
  document.Parse<rapidjson::kParseIterativeFlag>(json.data(), json.size());
  if (document.HasParseError()) return fail(Code::kInvalidArgument, "that is no Pod: no JSON");
  return pod_of(document);
}

}  // namespace gpulet::scheduler
