#include "scheduler/model/mig_demand.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/dns_name.h"
#include "base/json.h"
#include "scheduler/model/truncated_text.h"

namespace gpulet::scheduler {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxWhyBytes = 512, kMaxNameBytes = 317, kMaxRenewedBytes = 64;

template <typename List, typename Member>
bool is_known(const List& list, Member member, const std::string& name) {
  return std::ranges::find(list, ResourceName(name), member) != list.end();
}

// "nvidia.com/mig-1g.10gb.me"
bool is_resource(const std::string& name) {
  const auto slash = name.find('/');
  return name.size() <= kMaxNameBytes && slash != std::string::npos &&
         is_dns_subdomain(name.substr(0, slash)) && slash + 1 < name.size() &&
         std::all_of(name.begin() + static_cast<std::ptrdiff_t>(slash) + 1, name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                  c == '-' || c == '_';
         });
}

bool is_pod(const std::string& pod) {
  const auto slash = pod.find('/');
  return slash != std::string::npos && is_dns_label(pod.substr(0, slash)) &&
         is_dns_subdomain(pod.substr(slash + 1));
}

std::optional<unsigned> count_in(const json& object) {
  const auto& value = json_member(object, "count");
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMaxDemandedDevices) return std::nullopt;
  return value.get<unsigned>();
}

// The elements of a list of at most `most`; null where it is none.
const json* bounded_list(const json& object, const char* name, std::size_t most) {
  const auto& list = json_member(object, name);
  return list.is_array() && list.size() <= most ? &list : nullptr;
}

}  // namespace

const MigOffer::Resource* MigOffer::find(const ResourceName& name) const {
  const auto found = std::ranges::find(resources, name, &Resource::name);
  return found == resources.end() ? nullptr : &*found;
}

json encode_mig_offer(const MigOffer& offer) {
  json list = json::array();
  for (const auto& resource : offer.resources) {
    if (list.size() == kMaxMigResources) break;
    json one = {{"name", resource.name.str()}, {"count", std::min(resource.count, kMaxDemandedDevices)}};
    if (!resource.why.empty()) one["why"] = truncated_text(resource.why, kMaxWhyBytes);
    list.push_back(std::move(one));
  }
  return {{"resources", std::move(list)}};
}

json encode_mig_demand(const MigDemand& demand) {
  json list = json::array();
  for (const auto& request : demand.requests) {
    if (list.size() == kMaxMigResources) break;
    json pods = json::array();
    for (const auto& pod : request.pods) {
      if (pods.size() < kMaxDemandPods) pods.push_back(pod);
    }
    list.push_back({{"resource", request.resource.str()},
                    {"count", std::min(request.count, kMaxDemandedDevices)},
                    {"pods", std::move(pods)}});
  }
  return {{"renewed", demand.renewed}, {"requests", std::move(list)}};
}

MigOffer decode_mig_offer(const json& value) {
  MigOffer offer;
  const auto* list = bounded_list(value, "resources", kMaxMigResources);
  if (list == nullptr) return {};
  for (const auto& one : *list) {
    const auto name = json_text(json_member(one, "name"));
    const auto count = count_in(one);
    auto why = json_text(json_member(one, "why"));
    if (!is_resource(name) || !count) return {};
    if (why.size() > kMaxWhyBytes) why.clear();
    offer.resources.push_back({ResourceName(name), *count, why});
  }
  return offer;
}

MigDemand decode_mig_demand(const json& value) {
  MigDemand demand;
  const auto* list = bounded_list(value, "requests", kMaxMigResources);
  demand.renewed = json_text(json_member(value, "renewed"));
  if (list == nullptr || demand.renewed.size() > kMaxRenewedBytes) return {};
  for (const auto& one : *list) {
    const auto name = json_text(json_member(one, "resource"));
    const auto count = count_in(one);
    const auto* pods = bounded_list(one, "pods", kMaxDemandPods);
    if (!is_resource(name) || !count || *count == 0 || pods == nullptr) return {};
    if (is_known(demand.requests, &MigDemand::Request::resource, name)) return {};
    MigDemand::Request request{ResourceName(name), *count, {}};
    for (const auto& pod : *pods) {
      request.pods.push_back(json_text(pod));
      if (!is_pod(request.pods.back())) return {};
    }
    demand.requests.push_back(std::move(request));
  }
  return demand;
}

}  // namespace gpulet::scheduler
