#include "dra/claim.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/dns_name.h"
#include "base/json.h"
#include "base/quantity.h"
#include "dra/json_object.h"

namespace gpulet::dra {
namespace {

constexpr std::uint64_t kThousand = 1000;  // parts of a quantity

// Names of the driver's domain without it.
Result<std::map<std::string, std::uint64_t>> read_quantities(const JsonObject& result, const char* name,
                                                             std::string_view driver) {
  std::map<std::string, std::uint64_t> all;
  GPULET_TRY_ASSIGN(const auto object, result.optional_object(name));
  if (!object) return all;
  if (object->value().size() > kMaxConsumedCapacities) {
    return fail(Code::kInvalidArgument, result.field_path(name) + ": expected at most " +
                                            std::to_string(kMaxConsumedCapacities) + " entries, found " +
                                            std::to_string(object->value().size()));
  }
  for (const auto& item : object->value().items()) {
    const auto text = item.value().is_string()   ? item.value().get<std::string>()
                      : item.value().is_number() ? item.value().dump()
                                                 : std::string();
    const auto milli = parse_quantity_milli(text);
    if (!milli) return fail(wrong_type(object->field_path(item.key()), "a quantity", item.value()));
    std::string_view capacity = item.key();
    if (capacity.starts_with(std::string(driver) + "/")) capacity.remove_prefix(driver.size() + 1);
    all[std::string(capacity)] = *milli / kThousand + (*milli % kThousand != 0 ? 1 : 0);
  }
  return all;
}

Result<std::optional<AllocationResult>> read_result(const JsonObject& object, std::string_view driver) {
  GPULET_TRY_ASSIGN(const std::string owner, object.required_text("driver"));
  if (owner != driver) return std::nullopt;
  AllocationResult result;
  GPULET_TRY_ASSIGN(result.request, object.required_text("request"));
  GPULET_TRY_ASSIGN(result.pool, object.required_text("pool"));
  GPULET_TRY_ASSIGN(result.device, object.required_text("device"));
  GPULET_TRY_ASSIGN(const auto admin_access, object.optional_bool("adminAccess"));
  result.admin_access = admin_access.value_or(false);
  GPULET_TRY_ASSIGN(result.share_id, read_share_id(object, "shareID"));
  GPULET_TRY_ASSIGN(result.consumed_capacity, read_quantities(object, "consumedCapacity", driver));
  return result;
}

Result<std::optional<ConfigEntry>> read_config(const JsonObject& object, std::string_view driver) {
  ConfigEntry config;
  config.path = object.path();
  GPULET_TRY_ASSIGN(const std::string source, object.required_text("source"));
  if (source != "FromClass" && source != "FromClaim") {
    return fail(Code::kInvalidArgument,
                object.field_path("source") + ": expected FromClass or FromClaim, found \"" + source + "\"");
  }
  config.source = source == "FromClass" ? ConfigSource::kClass : ConfigSource::kClaim;
  GPULET_TRY_ASSIGN(config.requests, object.texts("requests", kMaxRequests));
  GPULET_TRY_ASSIGN(const auto opaque, object.optional_object("opaque"));
  if (!opaque) return config;
  GPULET_TRY_ASSIGN(const std::string owner, opaque->required_text("driver"));
  if (owner != driver) return std::nullopt;
  const auto* parameters = opaque->member("parameters");
  if (parameters == nullptr) {
    return fail(Code::kInvalidArgument, opaque->field_path("parameters") + ": required, not set");
  }
  config.parameters = parameters->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (config.parameters->size() > kMaxParameterBytes) {
    return fail(Code::kInvalidArgument, opaque->field_path("parameters") + ": expected at most " +
                                            std::to_string(kMaxParameterBytes) + " bytes, found " +
                                            std::to_string(config.parameters->size()));
  }
  return config;
}

Status read_allocation(const JsonObject& allocation, std::string_view driver, ResourceClaim& claim) {
  claim.allocated = true;
  GPULET_TRY_ASSIGN(const auto devices, allocation.optional_object("devices"));
  if (!devices) return {};
  GPULET_TRY_ASSIGN(const auto results, devices->objects("results", kMaxResults));
  for (const auto& object : results) {
    GPULET_TRY_ASSIGN(auto result, read_result(object, driver));
    if (result) claim.results.push_back(std::move(*result));
  }
  GPULET_TRY_ASSIGN(const auto configs, devices->objects("config", kMaxConfigs));
  for (const auto& object : configs) {
    GPULET_TRY_ASSIGN(auto config, read_config(object, driver));
    if (config) claim.configs.push_back(std::move(*config));
  }
  return {};
}

// As the kubelet decides whether a claim is for a Pod: by its controller. What is not an owner owns nothing.
std::string read_owner_pod(const JsonObject& metadata) {
  const auto* owners = metadata.member("ownerReferences");
  if (owners == nullptr || !owners->is_array()) return {};
  const auto found = std::ranges::find_if(*owners, [](const nlohmann::json& owner) {
    return json_member(owner, "controller") == nlohmann::json(true);
  });
  if (found == owners->end() || json_text(json_member(*found, "kind")) != "Pod") return {};
  return json_text(json_member(*found, "uid"));
}

Status read_reservations(const JsonObject& status, ResourceClaim& claim) {
  GPULET_TRY_ASSIGN(const auto users, status.objects("reservedFor", kMaxReservations));
  for (const auto& user : users) {
    GPULET_TRY_ASSIGN(const std::string resource, user.required_text("resource"));
    if (resource != "pods") {
      claim.has_other_consumers = true;
      continue;
    }
    PodRef pod{claim.name_space, {}, {}};
    GPULET_TRY_ASSIGN(pod.name, user.required_text("name"));
    GPULET_TRY_ASSIGN(pod.uid, user.required_text("uid"));
    claim.reserved_for.push_back(std::move(pod));
  }
  return {};
}

}  // namespace

Result<std::string> read_share_id(const JsonObject& object, const char* name) {
  GPULET_TRY_ASSIGN(const auto text, object.optional_text(name));
  if (!text || text->empty() || is_dns_label(*text)) return text.value_or("");
  return fail(
      wrong_type(object.field_path(name), "lower case letters, digits and '-'", *object.member(name)));
}

Result<ResourceClaim> parse_claim(std::string_view json, std::string_view driver) {
  if (json.size() > kMaxClaimBytes) {
    return fail(Code::kInvalidArgument, "the claim has " + std::to_string(json.size()) +
                                            " bytes, expected at most " + std::to_string(kMaxClaimBytes));
  }
  const auto root = parse_json(json);
  if (root.is_discarded()) return fail(Code::kInvalidArgument, "the claim is not valid JSON");
  GPULET_TRY_ASSIGN(const JsonObject object, JsonObject::from_value(root, ""));
  ResourceClaim claim;
  GPULET_TRY_ASSIGN(const auto metadata, object.optional_object("metadata"));
  if (!metadata) return fail(Code::kInvalidArgument, "metadata: required, not set");
  GPULET_TRY_ASSIGN(claim.name_space, metadata->required_text("namespace"));
  GPULET_TRY_ASSIGN(claim.name, metadata->required_text("name"));
  GPULET_TRY_ASSIGN(claim.uid, metadata->required_text("uid"));
  claim.owner_pod = read_owner_pod(*metadata);
  GPULET_TRY_ASSIGN(const auto status, object.optional_object("status"));
  if (!status) return claim;
  GPULET_TRY(read_reservations(*status, claim));
  GPULET_TRY_ASSIGN(const auto allocation, status->optional_object("allocation"));
  if (allocation) GPULET_TRY(read_allocation(*allocation, driver, claim));
  return claim;
}

}  // namespace gpulet::dra
