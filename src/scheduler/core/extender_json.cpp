#include "scheduler/core/extender_json.h"

#include <algorithm>
#include <deque>
#include <utility>

#include <nlohmann/json.hpp>
#include <rapidjson/document.h>

#include "base/quantity.h"
#include "base/text.h"
#include "scheduler/model/limit_demand.h"

namespace gpulet::scheduler {
namespace {

using rapidjson::Value;
using Kind = ContainerRequest::Kind;

constexpr std::size_t kMaxAnnotations = 512;    // that are read
constexpr std::size_t kMaxDeviceRequests = 32;  // per container
constexpr unsigned kMaxCount = 65'536;

const Value& find_member(const Value& object, const char* name) {
  static const Value kNull;
  if (!object.IsObject()) return kNull;
  const auto found = object.FindMember(name);
  return found == object.MemberEnd() ? kNull : found->value;
}

std::string_view string_view_of(const Value& value) {
  return value.IsString() ? std::string_view(value.GetString(), value.GetStringLength()) : std::string_view();
}
std::string string_of(const Value& value) { return std::string(string_view_of(value)); }

// Kubernetes' own resources have no domain, or one of kubernetes.io; all others are extended resources.
bool is_extended_resource(std::string_view name) {
  const auto slash = name.find('/');
  return slash != std::string_view::npos && !name.substr(0, slash).ends_with("kubernetes.io") &&
         name.size() <= 253;
}

// Extended resources are whole numbers.
unsigned parse_device_count(const Value& value) {
  if (value.IsUint()) return std::min(value.GetUint(), kMaxCount);
  const auto number = text::parse_unsigned(string_view_of(value));
  return static_cast<unsigned>(std::min<std::uint64_t>(number.value_or(0), kMaxCount));
}

std::vector<DeviceRequest> read_device_requests(const Value& container) {
  std::vector<DeviceRequest> requests;
  const auto& resources = find_member(container, "resources");
  // For an extended resource the API server requires limits to equal requests, and requests may be omitted.
  const auto& limits = find_member(resources, "limits");
  if (!limits.IsObject()) return requests;
  for (const auto& [name, value] : limits.GetObject()) {
    const bool is_device =
        is_extended_resource(string_view_of(name)) && !fraction::is_fraction_resource(string_view_of(name));
    const unsigned count = is_device ? parse_device_count(value) : 0;
    if (count != 0 && requests.size() < kMaxDeviceRequests)
      requests.push_back({ResourceName(string_of(name)), count});
  }
  std::ranges::sort(requests, {}, &DeviceRequest::resource);
  return requests;
}

void add_containers(const Value& list, bool init, PodRequest& request) {
  if (!list.IsArray()) return;
  for (const auto& container : list.GetArray()) {
    auto requests = read_device_requests(container);
    if (requests.empty() || request.containers.size() >= kMaxContainers) continue;
    const bool sidecar = init && string_view_of(find_member(container, "restartPolicy")) == "Always";
    request.containers.push_back({.name = string_of(find_member(container, "name")),
                                  .kind = sidecar ? Kind::kSidecar : (init ? Kind::kInit : Kind::kMain),
                                  .devices = std::move(requests)});
  }
}

// The fields of a Pod that request memory and compute of its GPUs. Views of it, and of `numbers`.
class FractionFields {
 public:
  explicit FractionFields(const Value& pod) {
    const auto& spec = find_member(pod, "spec");
    add_containers(find_member(spec, "initContainers"), true);
    add_containers(find_member(spec, "containers"), false);
    const auto& annotations = find_member(find_member(pod, "metadata"), "annotations");
    if (!annotations.IsObject()) return;
    std::size_t looked_at = 0;
    for (const auto& [key, value] : annotations.GetObject()) {
      if (++looked_at > kMaxAnnotations) break;
      if (fraction::is_fraction_annotation(string_view_of(key)))
        fields_.annotations.push_back({string_view_of(key), string_view_of(value)});
    }
  }

  bool has_limits() const { return has_limits_; }
  bool has_any() const { return has_limits_ || !fields_.annotations.empty(); }
  const fraction::PodFields& fields() const { return fields_; }

 private:
  void add_containers(const Value& list, bool init) {
    if (!list.IsArray()) return;
    for (const auto& container : list.GetArray()) {
      if (fields_.containers.size() >= fraction::kMaxRequestContainers) return;
      auto& added = fields_.containers.emplace_back();
      added.name = string_view_of(find_member(container, "name"));
      added.is_init = init;
      add_limits(find_member(find_member(container, "resources"), "limits"), added);
    }
  }

  void add_limits(const Value& limits, fraction::PodContainer& container) {
    if (!limits.IsObject()) return;
    for (const auto& [name, value] : limits.GetObject()) {
      const auto key = string_view_of(name);
      if (!is_extended_resource(key) || container.limits.size() >= kMaxDeviceRequests) continue;
      has_limits_ |= fraction::is_fraction_resource(key);
      container.limits.push_back({key, value.IsInt64()
                                           ? numbers_.emplace_back(std::to_string(value.GetInt64()))
                                           : string_view_of(value)});
    }
  }

  std::deque<std::string> numbers_;
  fraction::PodFields fields_;
  bool has_limits_ = false;
};

void read_fraction_requests(const fraction::PodFields& fields, PodRequest& request) {
  auto read = fraction::parse_fraction_requests(fields);
  if (!read) {
    request.request_error = read.error().message();
    return;
  }
  const std::string own = "annotation " + std::string(fraction::kMemoryAnnotation);
  for (auto& one : *read) {
    request.requests_compute |= one.compute_thousandths != 0;
    const auto container = std::ranges::find(request.containers, one.container, &ContainerRequest::name);
    // apply_annotation() reads the constraint on the whole Pod.
    if (container == request.containers.end() || one.memory_source == own) continue;
    container->memory = one.memory;
    container->memory_source = std::move(one.memory_source);
  }
}

std::string read_bound_time(const Value& status) {
  const auto& conditions = find_member(status, "conditions");
  if (!conditions.IsArray()) return {};
  for (const auto& condition : conditions.GetArray()) {
    if (string_view_of(find_member(condition, "type")) == "PodScheduled" &&
        string_view_of(find_member(condition, "status")) == "True") {
      return string_of(find_member(condition, "lastTransitionTime"));
    }
  }
  return {};
}

bool is_nonempty_list(const Value& list) { return list.IsArray() && !list.Empty(); }

// Source: k8s.io/api/core/v1, PodSpec. Required constraints are left to kube-scheduler's filters, which run
// first.
bool has_node_preferences(const Value& spec) {
  const auto& affinity = find_member(spec, "affinity");
  for (const char* const kind : {"nodeAffinity", "podAffinity", "podAntiAffinity"}) {
    if (is_nonempty_list(
            find_member(find_member(affinity, kind), "preferredDuringSchedulingIgnoredDuringExecution")))
      return true;
  }
  const auto& spread = find_member(spec, "topologySpreadConstraints");
  if (!spread.IsArray()) return false;
  return std::ranges::any_of(spread.GetArray(), [](const Value& constraint) {
    return string_view_of(find_member(constraint, "whenUnsatisfiable")) == "ScheduleAnyway";
  });
}

// Of one container, or of a Pod's overhead or Pod-level resources: an object of quantities.
struct NativeRequests {
  std::uint64_t cpu_milli = 0, memory_milli_bytes = 0;
  bool has_cpu = false, has_memory = false, has_others = false;

  NativeRequests& operator+=(const NativeRequests& other) {
    cpu_milli += other.cpu_milli;
    memory_milli_bytes += other.memory_milli_bytes;
    has_others |= other.has_others;
    return *this;
  }
  void raise_to(const NativeRequests& other) {
    cpu_milli = std::max(cpu_milli, other.cpu_milli);
    memory_milli_bytes = std::max(memory_milli_bytes, other.memory_milli_bytes);
    has_others |= other.has_others;
  }
};

NativeRequests read_native_requests(const Value& requests) {
  NativeRequests read;
  if (!requests.IsObject()) return read;
  for (const auto& [name, value] : requests.GetObject()) {
    const auto key = string_view_of(name);
    if (is_extended_resource(key)) continue;
    const auto amount = value.IsNumber() ? parse_quantity_milli(std::to_string(value.GetDouble()))
                                         : parse_quantity_milli(string_view_of(value));
    if (key == "cpu") {
      read.cpu_milli = amount.value_or(0);
      read.has_cpu = true;
    } else if (key == "memory") {
      read.memory_milli_bytes = amount.value_or(0);
      read.has_memory = true;
    } else {
      read.has_others = true;
    }
  }
  return read;
}

// As kube-scheduler counts: what runs at once at most, init containers being one at a time beside the
// sidecars that started before; resources of the Pod as a whole take precedence; the overhead comes on top.
// Source: k8s.io/component-helpers/resource, PodRequests.
NativeRequests read_pod_requests(const Value& spec) {
  NativeRequests running, most;
  const auto add = [&](const Value& list, bool init) {
    if (!list.IsArray()) return;
    for (const auto& container : list.GetArray()) {
      auto requests = read_native_requests(find_member(find_member(container, "resources"), "requests"));
      if (init && string_view_of(find_member(container, "restartPolicy")) != "Always") {
        requests += running;
        most.raise_to(requests);
      } else {
        running += requests;
      }
    }
  };
  add(find_member(spec, "initContainers"), true);
  add(find_member(spec, "containers"), false);
  most.raise_to(running);
  const auto whole = read_native_requests(find_member(find_member(spec, "resources"), "requests"));
  if (whole.has_cpu) most.cpu_milli = whole.cpu_milli;
  if (whole.has_memory) most.memory_milli_bytes = whole.memory_milli_bytes;
  most.has_others |= whole.has_others;
  most += read_native_requests(find_member(spec, "overhead"));
  return most;
}

bool has_host_ports(const Value& spec) {
  const auto& containers = find_member(spec, "containers");
  if (!containers.IsArray()) return false;
  return std::ranges::any_of(containers.GetArray(), [](const Value& container) {
    const auto& ports = find_member(container, "ports");
    return ports.IsArray() && std::ranges::any_of(ports.GetArray(), [](const Value& port) {
             const auto& number = find_member(port, "hostPort");
             return number.IsInt() && number.GetInt() != 0;
           });
  });
}

// Volumes that a node can refuse: those that are attached, or used by one Pod only.
bool has_node_volumes(const Value& spec) {
  constexpr std::string_view kPlain[] = {"configMap",   "secret", "emptyDir", "hostPath", "projected",
                                         "downwardAPI", "nfs",    "image",    "gitRepo"};
  const auto& volumes = find_member(spec, "volumes");
  if (!volumes.IsArray()) return false;
  return std::ranges::any_of(volumes.GetArray(), [&](const Value& volume) {
    if (!volume.IsObject()) return false;
    return std::ranges::any_of(volume.GetObject(), [&](const auto& member) {
      const auto name = string_view_of(member.name);
      return name != "name" && std::ranges::find(kPlain, name) == std::end(kPlain);
    });
  });
}

bool has_required_spread(const Value& spec) {
  const auto& spread = find_member(spec, "topologySpreadConstraints");
  return spread.IsArray() && std::ranges::any_of(spread.GetArray(), [](const Value& constraint) {
           return string_view_of(find_member(constraint, "whenUnsatisfiable")) != "ScheduleAnyway";
         });
}

NodeNeeds read_node_needs(const Value& spec) {
  constexpr const char* kRequired = "requiredDuringSchedulingIgnoredDuringExecution";
  const auto& affinity = find_member(spec, "affinity");
  const auto requests = read_pod_requests(spec);
  NodeNeeds needs{.cpu_milli = requests.cpu_milli, .memory_milli_bytes = requests.memory_milli_bytes};
  needs.needs_pods = is_nonempty_list(find_member(find_member(affinity, "podAffinity"), kRequired));
  needs.repels_pods = is_nonempty_list(find_member(find_member(affinity, "podAntiAffinity"), kRequired));
  needs.has_other_needs = requests.has_others || needs.repels_pods || has_host_ports(spec) ||
                          has_node_volumes(spec) || has_required_spread(spec) ||
                          is_nonempty_list(find_member(spec, "resourceClaims"));
  return needs;
}

std::string read_labels(const Value& labels) {
  std::string text;
  if (!labels.IsObject()) return text;
  for (const auto& [key, value] : labels.GetObject())
    text.append(string_view_of(key)).append("=").append(string_view_of(value)).append("\n");
  return text;
}

Result<PodRequest> parse_pod_object(const Value& pod) {
  const auto& metadata = find_member(pod, "metadata");
  const auto& spec = find_member(pod, "spec");
  const auto& status = find_member(pod, "status");
  PodRequest request;
  request.name_space = string_of(find_member(metadata, "namespace"));
  request.name = string_of(find_member(metadata, "name"));
  request.uid = string_of(find_member(metadata, "uid"));
  if (request.name.empty()) return fail(Code::kInvalidArgument, "not a Pod: metadata.name is missing");
  request.scheduler = string_of(find_member(spec, "schedulerName"));
  request.node = string_of(find_member(spec, "nodeName"));
  const auto phase = string_view_of(find_member(status, "phase"));
  request.finished = phase == "Succeeded" || phase == "Failed";
  request.bound_at = read_bound_time(status);
  request.prefers_nodes = has_node_preferences(spec);
  add_containers(find_member(spec, "initContainers"), true, request);
  add_containers(find_member(spec, "containers"), false, request);
  request.has_claims = is_nonempty_list(find_member(spec, "resourceClaims"));
  const FractionFields fraction_fields(pod);
  const bool has_devices = !request.containers.empty() || request.has_claims;
  if (!has_devices && !fraction_fields.has_limits()) return request;
  if (fraction_fields.has_any()) read_fraction_requests(fraction_fields.fields(), request);
  request.nominated_node = string_of(find_member(status, "nominatedNodeName"));
  request.leaving = !find_member(metadata, "deletionTimestamp").IsNull();
  const auto& priority = find_member(spec, "priority");
  request.priority = priority.IsInt() ? priority.GetInt() : 0;
  request.labels = read_labels(find_member(metadata, "labels"));
  request.needs = read_node_needs(spec);
  if (const auto& annotations = find_member(metadata, "annotations"); annotations.IsObject()) {
    std::size_t looked_at = 0;
    for (const auto& [key, value] : annotations.GetObject()) {
      if (++looked_at > kMaxAnnotations) break;
      apply_annotation(string_view_of(key), string_view_of(value), request);
    }
  }
  return request;
}

}  // namespace

Result<PodRequest> parse_pod(std::string_view json) {
  if (json.size() > kMaxPodBytes) return fail(Code::kInvalidArgument, "not a Pod: larger than 4 MiB");
  if (exceeds_nesting(json)) return fail(Code::kInvalidArgument, "not a Pod: nested too deep");
  rapidjson::Document document;
  document.Parse<rapidjson::kParseIterativeFlag>(json.data(), json.size());
  if (document.HasParseError()) return fail(Code::kInvalidArgument, "not a Pod: invalid JSON");
  auto request = parse_pod_object(document);
  const auto& demand = find_member(find_member(find_member(document, "metadata"), "annotations"),
                                   fraction::kMinGradeAnnotation.data());
  if (request && !request->containers.empty() && !demand.IsNull())
    read_limit_demand(string_view_of(demand), parse_json(json), FractionFields(document).fields(), *request);
  return request;
}

namespace {

Error invalid_names() { return {Code::kInvalidArgument, "NodeNames is not a list of at most 100000 names"}; }
Error invalid_nodes() {
  return {Code::kInvalidArgument, "Nodes.items is not a list of at most 100000 Nodes"};
}

}  // namespace

// Of a string; empty for any other value.
std::string_view ExtenderArgs::text_of(std::string_view value) {
  if (value.size() < 2 || value.front() != '"') return {};
  if (value.find('\\') == std::string_view::npos) return value.substr(1, value.size() - 2);
  return unescaped_.emplace_back(unescape_json_string(value));
}

Status ExtenderArgs::read_names(JsonReader& reader) {
  if (!reader.enter_array()) return fail(invalid_names());
  while (reader.next_item()) {
    if (nodes_.size() == kMaxCandidateNodes) return fail(invalid_names());
    nodes_.push_back(text_of(reader.skip_value()));
  }
  return {};
}

// metadata.name of the Node that comes next.
std::string_view ExtenderArgs::read_node_name(JsonReader& reader) {
  std::string_view name;
  if (!reader.enter_object()) {
    reader.skip_value();
    return name;
  }
  for (std::string_view key, field; reader.next_member(key);) {
    if (!is_go_field(key, "metadata") || !reader.enter_object()) {
      reader.skip_value();
      continue;
    }
    while (reader.next_member(field)) {
      const auto value = reader.skip_value();
      if (name.empty() && is_go_field(field, "name")) name = text_of(value);
    }
  }
  return name;
}

Status ExtenderArgs::read_nodes(JsonReader& reader, std::string_view body) {
  if (!reader.enter_object()) return fail(invalid_nodes());
  for (std::string_view key; reader.next_member(key);) {
    if (reader.skip_null()) continue;
    if (!is_go_field(key, "items")) {
      reader.skip_value();
      continue;
    }
    if (!reader.enter_array()) return fail(invalid_nodes());
    while (reader.next_item()) {
      if (nodes_.size() == kMaxCandidateNodes) return fail(invalid_nodes());
      const auto begin = reader.position();
      nodes_.push_back(read_node_name(reader));
      objects_.push_back(body.substr(begin, reader.position() - begin));
    }
  }
  return {};
}

Result<ExtenderArgs> ExtenderArgs::parse_body(std::string_view body) {
  ExtenderArgs args;
  std::string_view pod;
  bool has_names = false;
  JsonReader reader(body);
  const bool object = reader.enter_object();
  if (!object) reader.skip_value();
  for (std::string_view key; object && reader.next_member(key);) {
    if (reader.skip_null()) continue;
    if (is_go_field(key, "pod") && pod.empty()) {
      pod = reader.skip_value();
    } else if (is_go_field(key, "nodenames") && !has_names) {
      has_names = true;
      args.nodes_.clear();  // names win over Nodes
      GPULET_TRY(args.read_names(reader));
    } else if (is_go_field(key, "nodes") && !has_names && !args.node_objects_) {
      args.node_objects_ = true;
      GPULET_TRY(args.read_nodes(reader, body));
    } else {
      reader.skip_value();
    }
  }
  if (const auto whole = reader.finish(); !whole)
    return fail(Code::kInvalidArgument, "the body is " + whole.error().message());
  if (pod.empty()) return fail(Code::kInvalidArgument, "the body has no Pod");
  GPULET_TRY_ASSIGN(args.pod_, parse_pod(pod));
  if (!has_names && !args.node_objects_)
    return fail(Code::kInvalidArgument, "the body has neither NodeNames nor Nodes");
  if (has_names) args.node_objects_ = false;
  return args;
}

std::string ExtenderArgs::filter_result_json(std::span<const std::size_t> passed,
                                             std::span<const FailedNode> failed) const {
  // Allocated at once: as large as the body where whole Nodes were sent.
  constexpr std::size_t kFrame = 128, kSeparators = 8;
  std::size_t size = kFrame;
  for (const auto node : passed) size += (node_objects_ ? objects_[node] : nodes_[node]).size() + kSeparators;
  for (const auto& one : failed) size += nodes_[one.node].size() + one.reason.size() + kSeparators;
  std::string out;
  out.reserve(size);
  out += node_objects_ ? R"({"Nodes":{"metadata":{},"items":[)" : R"({"NodeNames":[)";
  bool first = true;
  const auto separate = [&] {
    if (!std::exchange(first, false)) out += ',';
  };
  for (const auto node : passed) {
    separate();
    if (node_objects_) {
      out += objects_[node];
    } else {
      append_json_string(out, nodes_[node]);
    }
  }
  out += node_objects_ ? "]}" : "]";
  for (const bool resolvable : {true, false}) {
    out += resolvable ? R"(,"FailedNodes":{)" : R"(,"FailedAndUnresolvableNodes":{)";
    first = true;
    for (const auto& one : failed) {
      if (one.resolvable != resolvable) continue;
      separate();
      append_json_string(out, nodes_[one.node]);
      out += ':';
      append_json_string(out, one.reason);
    }
    out += '}';
  }
  out += R"(,"Error":""})";
  return out;  // not the result of +=, which would be copied
}

std::string ExtenderArgs::priorities_json(std::span<const int> scores) const {
  std::string out = "[";
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    out += i == 0 ? R"({"Host":)" : R"(,{"Host":)";
    append_json_string(out, nodes_[i]);
    out.append(R"(,"Score":)").append(std::to_string(scores[i])) += '}';
  }
  out += ']';
  return out;
}

}  // namespace gpulet::scheduler
