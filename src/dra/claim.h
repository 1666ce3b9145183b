// A ResourceClaim of the API server, as far as a driver on a node needs it: what the scheduler allocated
// from this driver, and the configs that apply.
//
// Source: resource.k8s.io/v1, ResourceClaim (Kubernetes 1.36, staging/src/k8s.io/api/resource/v1/types.go);
// the limits are those of its validation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace gpulet::dra {

// The API server stores no object that is larger (etcd's limit).
inline constexpr std::size_t kMaxClaimBytes = 3u << 20;
inline constexpr std::size_t kMaxResults = 32;
inline constexpr std::size_t kMaxConfigs = 64;  // of class and claim
inline constexpr std::size_t kMaxRequests = 32;
inline constexpr std::size_t kMaxParameterBytes = 10u << 10;
inline constexpr std::size_t kMaxConsumedCapacities = 32;  // of one result
inline constexpr std::size_t kMaxReservations = 256;

// One device that was allocated to one request.
struct AllocationResult {
  std::string request;  // "gpus", or "gpus/large" for an alternative of a prioritized list
  std::string pool, device;
  bool admin_access = false;
  std::string share_id = {};  // empty: the device is the claim's alone
  // By capacity of the device, in whole units, rounded up; with a share only.
  std::map<std::string, std::uint64_t> consumed_capacity = {};

  // The request without its alternative: "gpus". The kubelet and its API know requests by this name.
  std::string_view main_request() const { return std::string_view(request).substr(0, request.find('/')); }
  friend bool operator==(const AllocationResult&, const AllocationResult&) = default;
};

enum class ConfigSource { kClass, kClaim };

// A config entry of a DeviceClass or of the claim.
struct ConfigEntry {
  ConfigSource source = ConfigSource::kClaim;
  std::string path = {};                   // of the field: "status.allocation.devices.config[1]"
  std::vector<std::string> requests = {};  // empty: all
  // The opaque parameters as JSON; nullopt: the entry is of another kind.
  std::optional<std::string> parameters = {};
  friend bool operator==(const ConfigEntry&, const ConfigEntry&) = default;
};

struct ResourceClaim {
  std::string name_space, name, uid;
  bool allocated = false;  // by the scheduler; else there are no results
  // Of this driver only, in the claim's order.
  std::vector<AllocationResult> results;
  std::vector<ConfigEntry> configs;
  std::vector<PodRef> reserved_for = {};  // Pods that may use it
  // Others may use it too, which are not named: those of a PodGroup.
  bool has_other_consumers = false;
  // The UID of the Pod that it was made for, by a template or an extended resource; empty: any Pod of the
  // namespace can name it.
  std::string owner_pod = {};
  friend bool operator==(const ResourceClaim&, const ResourceClaim&) = default;
};

// Reads the JSON of a claim; results and configs of other drivers are left out, and fields that are not
// needed are passed over. Errors: kInvalidArgument for what is not JSON, a size or list above its limit, a
// name or uid that is missing, a share's id or quantity of another form, and a field of the wrong type, with
// the field's path. Cost: linear. Pure.
Result<ResourceClaim> parse_claim(std::string_view json, std::string_view driver);

class JsonObject;
// The id of a share; empty where the member is absent. Errors: kInvalidArgument for one that is not at most
// 63 lower case letters, digits and '-', of which names of CDI devices are made.
Result<std::string> read_share_id(const JsonObject& object, const char* name);

}  // namespace gpulet::dra
