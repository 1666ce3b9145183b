#include "scheduler/core/extender_json.h"

#include <algorithm>

#include <rapidjson/document.h>
#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>

#include "base/text.h"

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
    const unsigned count = is_extended_resource(string_view_of(name)) ? parse_device_count(value) : 0;
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

Result<PodRequest> parse_pod_object(const Value& pod) {
  const auto& metadata = find_member(pod, "metadata");
  const auto& spec = find_member(pod, "spec");
  const auto& status = find_member(pod, "status");
  PodRequest request;
  request.name_space = string_of(find_member(metadata, "namespace"));
  request.name = string_of(find_member(metadata, "name"));
  request.uid = string_of(find_member(metadata, "uid"));
  if (request.name.empty()) return fail(Code::kInvalidArgument, "not a Pod: metadata.name is missing");
  request.node = string_of(find_member(spec, "nodeName"));
  const auto phase = string_view_of(find_member(status, "phase"));
  request.finished = phase == "Succeeded" || phase == "Failed";
  request.bound_at = read_bound_time(status);
  request.prefers_nodes = has_node_preferences(spec);
  add_containers(find_member(spec, "initContainers"), true, request);
  add_containers(find_member(spec, "containers"), false, request);
  if (request.containers.empty()) return request;
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
  rapidjson::Document document;
  document.Parse<rapidjson::kParseIterativeFlag>(json.data(), json.size());
  if (document.HasParseError()) return fail(Code::kInvalidArgument, "not a Pod: invalid JSON");
  return parse_pod_object(document);
}

namespace {

using rapidjson::Document;
using rapidjson::Value;
using Writer = rapidjson::Writer<rapidjson::StringBuffer>;

// Case-insensitive, as Go's JSON decoder.
const Value* find_field(const Value& object, std::string_view name) {
  if (!object.IsObject()) return nullptr;
  for (const auto& [key, value] : object.GetObject()) {
    const std::string_view found(key.GetString(), key.GetStringLength());
    if (found.size() == name.size() && text::lower(found) == name && !value.IsNull()) return &value;
  }
  return nullptr;
}

std::string_view string_or_empty(const Value* value) {
  if (value == nullptr || !value->IsString()) return {};
  return {value->GetString(), value->GetStringLength()};
}

void write_string(Writer& writer, std::string_view text) {
  writer.String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
}
void write_key(Writer& writer, std::string_view text) {
  writer.Key(text.data(), static_cast<rapidjson::SizeType>(text.size()));
}

}  // namespace

struct ExtenderArgs::Parsed {
  std::string body;  // parsed in place: the document points into it
  Document document;
  const Value* items = nullptr;  // Node objects
};

ExtenderArgs::ExtenderArgs() : parsed_(std::make_unique<Parsed>()) {}
ExtenderArgs::ExtenderArgs(ExtenderArgs&&) noexcept = default;
ExtenderArgs& ExtenderArgs::operator=(ExtenderArgs&&) noexcept = default;
ExtenderArgs::~ExtenderArgs() = default;

Result<ExtenderArgs> ExtenderArgs::parse_body(std::string body) {
  ExtenderArgs args;
  auto& parsed = *args.parsed_;
  parsed.body = std::move(body);
  // Iterative parsing: deep nesting does not grow the stack.
  parsed.document.ParseInsitu<rapidjson::kParseIterativeFlag>(parsed.body.data());
  if (parsed.document.HasParseError()) return fail(Code::kInvalidArgument, "the body is not valid JSON");
  const auto* const pod = find_field(parsed.document, "pod");
  if (pod == nullptr) return fail(Code::kInvalidArgument, "the body has no Pod");
  GPULET_TRY_ASSIGN(args.pod_, parse_pod_object(*pod));
  if (const auto* const names = find_field(parsed.document, "nodenames"); names != nullptr) {
    if (!names->IsArray() || names->Size() > kMaxCandidateNodes) {
      return fail(Code::kInvalidArgument, "NodeNames is not a list of at most 100000 names");
    }
    args.nodes_.reserve(names->Size());
    for (const auto& name : names->GetArray()) args.nodes_.push_back(string_or_empty(&name));
    return args;
  }
  const auto* const nodes = find_field(parsed.document, "nodes");
  const auto* const items = nodes == nullptr ? nullptr : find_field(*nodes, "items");
  if (nodes == nullptr) return fail(Code::kInvalidArgument, "the body has neither NodeNames nor Nodes");
  args.node_objects_ = true;
  if (items == nullptr) return args;
  if (!items->IsArray() || items->Size() > kMaxCandidateNodes) {
    return fail(Code::kInvalidArgument, "Nodes.items is not a list of at most 100000 Nodes");
  }
  parsed.items = items;
  for (const auto& node : items->GetArray()) {
    const auto* const metadata = find_field(node, "metadata");
    args.nodes_.push_back(metadata == nullptr ? std::string_view()
                                              : string_or_empty(find_field(*metadata, "name")));
  }
  return args;
}

std::string ExtenderArgs::filter_result_json(std::span<const std::size_t> passed,
                                             std::span<const FailedNode> failed) const {
  rapidjson::StringBuffer buffer;
  Writer writer(buffer);
  writer.StartObject();
  if (node_objects_) {
    write_key(writer, "Nodes");
    writer.StartObject();
    write_key(writer, "metadata");
    writer.StartObject();
    writer.EndObject();
    write_key(writer, "items");
    writer.StartArray();
    for (const auto node : passed) (*parsed_->items)[static_cast<rapidjson::SizeType>(node)].Accept(writer);
    writer.EndArray();
    writer.EndObject();
  } else {
    write_key(writer, "NodeNames");
    writer.StartArray();
    for (const auto node : passed) write_string(writer, nodes_[node]);
    writer.EndArray();
  }
  for (const bool resolvable : {true, false}) {
    write_key(writer, resolvable ? "FailedNodes" : "FailedAndUnresolvableNodes");
    writer.StartObject();
    for (const auto& one : failed) {
      if (one.resolvable != resolvable) continue;
      write_key(writer, nodes_[one.node]);
      write_string(writer, one.reason);
    }
    writer.EndObject();
  }
  write_key(writer, "Error");
  write_string(writer, "");
  writer.EndObject();
  return {buffer.GetString(), buffer.GetSize()};
}

std::string ExtenderArgs::priorities_json(std::span<const int> scores) const {
  rapidjson::StringBuffer buffer;
  Writer writer(buffer);
  writer.StartArray();
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    writer.StartObject();
    write_key(writer, "Host");
    write_string(writer, nodes_[i]);
    write_key(writer, "Score");
    writer.Int(scores[i]);
    writer.EndObject();
  }
  writer.EndArray();
  return {buffer.GetString(), buffer.GetSize()};
}

}  // namespace gpulet::scheduler
