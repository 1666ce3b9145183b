#include "agent/fraction/limit_request.h"

#include <algorithm>
#include <limits>

#include <nlohmann/json.hpp>

#include "base/dns_name.h"
#include "base/json.h"
#include "base/text.h"
#include "dra/json_object.h"

namespace gpulet::agent {
namespace {

constexpr std::int64_t kLimitProtocolVersion = 1;
constexpr std::size_t kContainerIdDigits = 64;

}  // namespace

bool is_container_id(std::string_view text) {
  return text.size() == kContainerIdDigits &&
         std::ranges::all_of(text, [](char c) { return text::is_digit(c) || (c >= 'a' && c <= 'f'); });
}

Result<LimitRequest> parse_limit_request(std::string_view line) {
  if (line.size() > kMaxLimitRequestBytes)
    return fail(Code::kInvalidArgument,
                "expected at most " + std::to_string(kMaxLimitRequestBytes) + " bytes");
  const auto root = parse_json(line);
  if (root.is_discarded()) return fail(Code::kInvalidArgument, "not valid JSON");
  GPULET_TRY_ASSIGN(const auto object, dra::JsonObject::from_value(root, ""));
  GPULET_TRY_ASSIGN(const auto version, object.optional_integer("version"));
  if (version != kLimitProtocolVersion)
    return fail(Code::kInvalidArgument,
                "version: expected 1, found " + (version ? std::to_string(*version) : std::string("none")));
  LimitRequest request;
  GPULET_TRY_ASSIGN(request.container_id, object.required_text("id"));
  if (!is_container_id(request.container_id))
    return fail(Code::kInvalidArgument, "id: expected 64 hexadecimal digits");
  GPULET_TRY_ASSIGN(const auto pid, object.optional_integer("pid"));
  if (!pid || *pid < 1 || *pid > std::numeric_limits<int>::max())
    return fail(Code::kInvalidArgument, "pid: expected that of a process");
  request.pid = static_cast<unsigned>(*pid);
  GPULET_TRY_ASSIGN(request.pod_uid, object.required_text("podUID"));
  GPULET_TRY_ASSIGN(request.container, object.required_text("container"));
  GPULET_TRY_ASSIGN(auto cgroup, object.optional_text("cgroup"));
  request.cgroup = std::move(cgroup).value_or("");
  GPULET_TRY_ASSIGN(auto name_space, object.optional_text("namespace"));
  GPULET_TRY_ASSIGN(auto pod, object.optional_text("pod"));
  if (name_space && pod) {
    if (!is_dns_label(*name_space) || !is_dns_subdomain(*pod))
      return fail(Code::kInvalidArgument, "namespace, pod: expected the name of a Pod");
    request.name_space = *std::move(name_space);
    request.pod = *std::move(pod);
  }
  return request;
}

std::string limit_answer_line(const Status& answer) {
  nlohmann::json object = {{"allowed", answer.has_value()}};
  if (!answer) object["reason"] = answer.error().full_message().substr(0, kMaxLimitReasonBytes);
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace gpulet::agent
