// Claims for tests, as JSON and as values.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>  // tidy: heavy-header because the tests build claims from it

#include "dra/claim.h"

namespace gpulet::dra::test {

inline constexpr const char* kDriver = "gpu.nvidia.com";
inline constexpr const char* kUid = "6d7f3c1e-0000-4000-8000-000000000001";

inline nlohmann::json result_json(const std::string& device, const std::string& request = "gpus",
                                  const std::string& driver = kDriver) {
  return {{"request", request}, {"driver", driver}, {"pool", "node-1"}, {"device", device}};
}

inline nlohmann::json config_json(const nlohmann::json& parameters,
                                  const std::vector<std::string>& requests = {},
                                  const std::string& source = "FromClaim",
                                  const std::string& driver = kDriver) {
  nlohmann::json config = {{"source", source}, {"opaque", {{"driver", driver}, {"parameters", parameters}}}};
  if (!requests.empty()) config["requests"] = requests;
  return config;
}

// As vectors: a JSON value in braces is that value, and no list of one.
inline nlohmann::json claim_json(const std::vector<nlohmann::json>& results,
                                 const std::vector<nlohmann::json>& configs = {},
                                 const std::string& uid = kUid, const std::string& name = "claim-1") {
  return {{"apiVersion", "resource.k8s.io/v1"},
          {"kind", "ResourceClaim"},
          {"metadata", {{"namespace", "team"}, {"name", name}, {"uid", uid}}},
          {"spec", {{"devices", {{"requests", {{{"name", "gpus"}}}}}}}},
          {"status", {{"allocation", {{"devices", {{"results", results}, {"config", configs}}}}}}}};
}

inline nlohmann::json gpu_config(const nlohmann::json& sharing = nullptr, const char* kind = "GpuConfig") {
  nlohmann::json config = {{"apiVersion", "resource.nvidia.com/v1beta1"}, {"kind", kind}};
  if (!sharing.is_null()) config["sharing"] = sharing;
  return config;
}

inline ResourceClaim parsed(const nlohmann::json& claim) { return *parse_claim(claim.dump(), kDriver); }

}  // namespace gpulet::dra::test
