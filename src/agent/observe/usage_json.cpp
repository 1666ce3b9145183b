#include "agent/observe/usage_json.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <nlohmann/json.hpp>

#include "agent/observe/agent_client.h"
#include "base/json.h"
#include "base/text.h"

namespace gpulet::agent {
namespace {

using nlohmann::json;
using Json = nlohmann::ordered_json;

constexpr double kThousand = 1000;
constexpr const char* kUsagePath = "/api/usage";

double rounded(double value) { return std::round(value * kThousand) / kThousand; }

double rounded_seconds(std::chrono::nanoseconds time) {
  return rounded(std::chrono::duration<double>(time).count());
}

void add_amount(Json& row, const metrics::UsageAmount& amount) {
  row["held"] = rounded_seconds(amount.held);
  row["busy"] = rounded_seconds(amount.busy);
  row["idle"] = rounded_seconds(amount.idle);
  row["joules"] = static_cast<double>(amount.millijoules) / kThousand;
}

double amount_member(const json& row, const char* name) {
  const auto& value = json_member(row, name);
  return value.is_number() ? std::max(0.0, value.get<double>()) : 0;
}

NodeUsage::Amount parse_amount(const json& row) {
  return {.name_space = json_text(json_member(row, "namespace")),
          .pod = json_text(json_member(row, "pod")),
          .gpus = amount_member(row, "gpus"),
          .held = amount_member(row, "held"),
          .busy = amount_member(row, "busy"),
          .idle = amount_member(row, "idle"),
          .joules = amount_member(row, "joules")};
}

}  // namespace

std::string usage_json(const metrics::UsageAccounting& accounting, WallTime since) {
  Json document{{"since", unix_milliseconds(since)}, {"pods", Json::array()}, {"namespaces", Json::array()}};
  for (const auto& [pod, usage] : metrics::usage_by_pod(accounting)) {
    Json row{{"namespace", pod.name_space}, {"pod", pod.name}, {"gpus", rounded(usage.gpus)}};
    add_amount(row, usage.used);
    document["pods"].push_back(std::move(row));
  }
  for (const auto& [name, amount] : accounting.usage_by_namespace()) {
    if (name.empty()) continue;
    Json row{{"namespace", name}};
    add_amount(row, amount);
    document["namespaces"].push_back(std::move(row));
  }
  return document.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

NodeUsage parse_usage(const json& document) {
  NodeUsage usage;
  if (const auto& since = json_member(document, "since"); since.is_number_unsigned()) {
    const auto most = static_cast<std::uint64_t>(unix_milliseconds(kLastWallTime));
    usage.since = WallTime(std::chrono::milliseconds(std::min(since.get<std::uint64_t>(), most)));
  }
  for (const auto& row : json_member(document, "pods")) {
    auto amount = parse_amount(row);
    if (!amount.pod.empty()) usage.pods.push_back(std::move(amount));
  }
  for (const auto& row : json_member(document, "namespaces")) {
    auto amount = parse_amount(row);
    if (!amount.name_space.empty()) usage.namespaces.push_back(std::move(amount));
  }
  return usage;
}

Result<NodeUsage> fetch_usage(const std::string& socket, Duration limit) {
  GPULET_TRY_ASSIGN(const auto document, fetch_agent_json(socket, kUsagePath, limit));
  return parse_usage(document);
}

}  // namespace gpulet::agent
