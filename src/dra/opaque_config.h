// The opaque parameters of a claim or a DeviceClass: `resource.nvidia.com/v1beta1`, kinds GpuConfig,
// MigDeviceConfig, VfioDeviceConfig, ComputeDomainChannelConfig and ComputeDomainDaemonConfig; and which of
// a claim's configs applies to which of its devices.
//
// Source: NVIDIA's DRA driver (kubernetes-sigs/dra-driver-nvidia-gpu), api/nvidia.com/resource/v1beta1; the
// kinds, fields, defaults and precedence are its, so that manifests written for it work unchanged.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "dra/claim.h"

namespace gpulet::dra {

inline constexpr std::string_view kConfigApiVersion = "resource.nvidia.com/v1beta1";

// NVIDIA's feature gates that decide which configs are accepted; off as in NVIDIA's driver.
struct FeatureGates {
  bool time_slicing_settings = false;
  bool mps_support = false;
};

// "MPSSupport=true,TimeSlicingSettings=false", as NVIDIA's --feature-gates; one that is not named is off.
// Errors: kInvalidArgument for another gate or value. Pure.
Result<FeatureGates> parse_feature_gates(std::string_view text);

enum class TimeSliceInterval { kDefault, kShort, kMedium, kLong };
std::string_view enum_name(TimeSliceInterval interval);  // "Default"

struct TimeSlicing {
  TimeSliceInterval interval = TimeSliceInterval::kDefault;
  friend bool operator==(const TimeSlicing&, const TimeSlicing&) = default;
};

struct MpsSettings {
  std::optional<unsigned> active_thread_percentage;  // 0 to 100
  std::optional<Bytes> pinned_memory_limit;          // at least 1 MiB
  // By index in the claim or by UUID; overrides the limit above.
  std::map<std::string, Bytes> device_pinned_memory_limits;
  bool multi_user = false;
  friend bool operator==(const MpsSettings&, const MpsSettings&) = default;
};

// How the containers of a claim share its devices; none: the settings of the devices stay as they are.
using Sharing = std::variant<std::monostate, TimeSlicing, MpsSettings>;

struct GpuConfig {
  Sharing sharing;
  friend bool operator==(const GpuConfig&, const GpuConfig&) = default;
};
struct MigDeviceConfig {
  Sharing sharing;  // TimeSlicing is accepted and has no effect
  friend bool operator==(const MigDeviceConfig&, const MigDeviceConfig&) = default;
};
struct VfioDeviceConfig {
  bool prefer_iommufd = false;
  bool enable_api_device = false;
  friend bool operator==(const VfioDeviceConfig&, const VfioDeviceConfig&) = default;
};
struct ComputeDomainConfig {
  bool daemon = false;  // ComputeDomainDaemonConfig, else ComputeDomainChannelConfig
  std::string domain_id;
  bool all_channels = false;
  friend bool operator==(const ComputeDomainConfig&, const ComputeDomainConfig&) = default;
};
using DeviceConfig = std::variant<GpuConfig, MigDeviceConfig, VfioDeviceConfig, ComputeDomainConfig>;
std::string_view kind_name(const DeviceConfig& config);  // "GpuConfig"
// Of a GpuConfig or MigDeviceConfig; nullptr of the others.
const Sharing* sharing_of(const DeviceConfig& config);
// Why no device of gpulet takes a config of this kind; empty for GpuConfig and MigDeviceConfig.
std::string_view unsupported_reason(const DeviceConfig& config);

// Reads opaque parameters: at most kMaxParameterBytes of JSON, nested at most kMaxNesting levels. Defaults
// are filled in: an absent sharing is time-slicing with interval Default where its gate is on, and none
// where no gate is. Errors: kInvalidArgument for an unknown API version, kind or field, a value out of its
// range and a member of the strategy that is not chosen; kUnsupported, with strategy and gate, for a
// strategy whose gate is off. Pure.
Result<DeviceConfig> parse_device_config(std::string_view json, const FeatureGates& gates);

// Whether the settings can be applied. Errors: kUnsupported for a time-slice interval other than Default,
// which only the driver's own nvidia-smi can set, and for a thread percentage of 0, with which no client
// runs. Pure.
Status check_sharing(const Sharing& sharing);

enum class DeviceType { kGpu, kMig };
std::string_view enum_name(DeviceType type);  // "gpu", the device's attribute `type`

struct ResolvedConfig {
  DeviceConfig config;
  const ConfigEntry* entry = nullptr;  // of the claim; nullptr: the default
};
// The config that applies to each result; `types` are those of the results' devices, in the same order.
// Of the configs that name the result's request, or no request, the last one applies; those of the claim
// come after those of its classes, and those after the defaults. A config without requests is passed over
// where it is for another type, unless no device takes its kind and the request has no alternatives
// (firstAvailable). Errors: kInvalidArgument for a config that does not parse, is not opaque, or is for a
// device of another type (with device, type and request).
Result<std::vector<ResolvedConfig>> resolve_configs(const ResourceClaim& claim,
                                                    std::span<const DeviceType> types,
                                                    const FeatureGates& gates);

// The limit of each device of an MPS daemon by UUID, those of devices without a limit left out. `devices`:
// UUIDs in the claim's order. Errors: kInvalidArgument for a key that is neither one of them nor an index.
Result<std::map<DeviceUuid, Bytes>> pinned_memory_limits(const MpsSettings& settings,
                                                         std::span<const DeviceUuid> devices);

}  // namespace gpulet::dra
