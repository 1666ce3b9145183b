#include "scheduler/core/preemption_json.h"

#include "base/json.h"
#include "base/text.h"
#include "scheduler/core/extender_json.h"

namespace gpulet::scheduler {
namespace {

std::string string_of(std::string_view value) {
  return value.size() >= 2 && value.front() == '"' ? unescape_json_string(value) : std::string();
}

// Of a MetaPod, or in `metadata` of a Pod.
std::string read_uid(JsonReader& reader) {
  std::string uid;
  if (!reader.enter_object()) {
    reader.skip_value();
    return uid;
  }
  for (std::string_view key; reader.next_member(key);) {
    if (is_go_field(key, "metadata")) {
      uid = read_uid(reader);
      continue;
    }
    const auto value = reader.skip_value();
    if (is_go_field(key, "uid")) uid = string_of(value);
  }
  return uid;
}

Status read_pods(JsonReader& reader, NodeVictims& victims, std::size_t& count) {
  if (!reader.enter_array())
    return fail(Code::kInvalidArgument, "Pods of " + victims.node + " is not a list");
  while (reader.next_item()) {
    if (++count > kMaxVictims)
      return fail(Code::kInvalidArgument, "more than " + std::to_string(kMaxVictims) + " victims");
    auto uid = read_uid(reader);
    if (!uid.empty()) victims.uids.push_back(std::move(uid));
  }
  return {};
}

Status read_nodes(JsonReader& reader, std::vector<NodeVictims>& nodes) {
  if (!reader.enter_object()) return fail(Code::kInvalidArgument, "the victims are not an object by node");
  std::size_t count = 0;
  for (std::string_view node, key; reader.next_member(node);) {
    if (reader.skip_null()) continue;
    auto& victims = nodes.emplace_back();
    victims.node = string_of('"' + std::string(node) + '"');
    if (nodes.size() > kMaxCandidateNodes || !reader.enter_object())
      return fail(Code::kInvalidArgument, "the victims are not an object of at most 100000 nodes");
    while (reader.next_member(key)) {
      if (reader.skip_null()) continue;
      if (is_go_field(key, "pods")) {
        GPULET_TRY(read_pods(reader, victims, count));
        continue;
      }
      const auto value = reader.skip_value();
      if (is_go_field(key, "numpdbviolations"))
        victims.budget_violations = static_cast<std::int64_t>(text::parse_unsigned(value).value_or(0));
    }
  }
  return {};
}

}  // namespace

Result<PreemptionArgs> parse_preemption_args(std::string_view body) {
  PreemptionArgs args;
  std::string_view pod;
  bool has_victims = false;
  JsonReader reader(body);
  const bool object = reader.enter_object();
  if (!object) reader.skip_value();
  for (std::string_view key; object && reader.next_member(key);) {
    if (reader.skip_null()) continue;
    const bool names_victims =
        is_go_field(key, "nodenametometavictims") || is_go_field(key, "nodenametovictims");
    if (is_go_field(key, "pod") && pod.empty()) {
      pod = reader.skip_value();
    } else if (names_victims && !has_victims) {
      has_victims = true;
      GPULET_TRY(read_nodes(reader, args.proposed));
    } else {
      reader.skip_value();
    }
  }
  if (const auto whole = reader.finish(); !whole)
    return fail(Code::kInvalidArgument, "the body is " + whole.error().message());
  if (pod.empty()) return fail(Code::kInvalidArgument, "the body has no Pod");
  if (!has_victims)
    return fail(Code::kInvalidArgument, "the body has neither NodeNameToMetaVictims nor NodeNameToVictims");
  GPULET_TRY_ASSIGN(args.pod, parse_pod(pod));
  return args;
}

std::string preemption_result_json(std::span<const NodeVictims> chosen) {
  std::string out = R"({"NodeNameToMetaVictims":{)";
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (i != 0) out += ',';
    append_json_string(out, chosen[i].node);
    out += R"(:{"Pods":[)";
    for (std::size_t pod = 0; pod < chosen[i].uids.size(); ++pod) {
      out += pod == 0 ? R"({"UID":)" : R"(,{"UID":)";
      append_json_string(out, chosen[i].uids[pod]);
      out += '}';
    }
    out.append(R"(],"NumPDBViolations":)").append(std::to_string(chosen[i].budget_violations)) += '}';
  }
  out += "}}";
  return out;
}

}  // namespace gpulet::scheduler
