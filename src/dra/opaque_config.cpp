#include "dra/opaque_config.h"

#include <algorithm>
#include <array>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/quantity.h"
#include "base/text.h"
#include "dra/json_object.h"

namespace gpulet::dra {
namespace {

constexpr std::array<std::pair<TimeSliceInterval, std::string_view>, 4> kIntervals = {
    {{TimeSliceInterval::kDefault, "Default"},
     {TimeSliceInterval::kShort, "Short"},
     {TimeSliceInterval::kMedium, "Medium"},
     {TimeSliceInterval::kLong, "Long"}}};

constexpr std::string_view kTimeSlicingStrategy = "TimeSlicing", kMpsStrategy = "MPS";
constexpr std::string_view kTimeSlicingGate = "TimeSlicingSettings", kMpsGate = "MPSSupport";
constexpr std::size_t kMaxDeviceLimits = kMaxResults;
constexpr Bytes kLeastPinnedMemory = mebibytes(1);
constexpr std::int64_t kMaxPercentage = 100;
constexpr std::uint64_t kMilli = 1000;

Result<TimeSlicing> read_time_slicing(const JsonObject& sharing) {
  GPULET_TRY_ASSIGN(const auto object, sharing.optional_object("timeSlicingConfig"));
  if (!object) return TimeSlicing{};
  GPULET_TRY(object->reject_unknown_fields({"interval"}));
  GPULET_TRY_ASSIGN(const auto text, object->optional_text("interval"));
  if (!text) return TimeSlicing{};
  for (const auto& [interval, name] : kIntervals) {
    if (*text == name) return TimeSlicing{interval};
  }
  return fail(Code::kInvalidArgument, object->field_path("interval") + ": unknown time-slice interval \"" +
                                          *text + "\", expected Default, Short, Medium or Long");
}

Result<Bytes> read_memory_limit(const nlohmann::json& value, const std::string& path) {
  const std::string text = value.is_string()   ? value.get<std::string>()
                           : value.is_number() ? value.dump()
                                               : std::string();
  const auto milli = parse_quantity_milli(text);
  if (!milli) return fail(wrong_type(path, "a quantity such as 10Gi", value));
  const Bytes bytes{*milli / kMilli + (*milli % kMilli != 0 ? 1 : 0)};
  if (bytes < kLeastPinnedMemory) {
    return fail(Code::kInvalidArgument, path + ": value set too low: expected at least 1Mi, found " + text);
  }
  return bytes;
}

Result<std::optional<unsigned>> read_percentage(const JsonObject& object) {
  constexpr const char* kName = "defaultActiveThreadPercentage";
  GPULET_TRY_ASSIGN(const auto percentage, object.optional_integer(kName));
  if (!percentage) return std::nullopt;
  if (*percentage < 0 || *percentage > kMaxPercentage) {
    return fail(Code::kInvalidArgument, object.field_path(kName) + ": active thread percentage must not be " +
                                            (*percentage < 0 ? "negative" : "greater than 100") + ", found " +
                                            std::to_string(*percentage));
  }
  return static_cast<unsigned>(*percentage);
}

Result<MpsSettings> read_mps(const JsonObject& sharing) {
  MpsSettings mps;
  GPULET_TRY_ASSIGN(const auto object, sharing.optional_object("mpsConfig"));
  if (!object) return mps;
  GPULET_TRY(object->reject_unknown_fields({"defaultActiveThreadPercentage", "defaultPinnedDeviceMemoryLimit",
                                            "defaultPerDevicePinnedMemoryLimit", "multiUser"}));
  GPULET_TRY_ASSIGN(mps.active_thread_percentage, read_percentage(*object));
  constexpr const char* kLimit = "defaultPinnedDeviceMemoryLimit";
  if (const auto* limit = object->member(kLimit)) {
    GPULET_TRY_ASSIGN(mps.pinned_memory_limit, read_memory_limit(*limit, object->field_path(kLimit)));
  }
  GPULET_TRY_ASSIGN(const auto limits, object->optional_object("defaultPerDevicePinnedMemoryLimit"));
  if (limits) {
    if (limits->value().size() > kMaxDeviceLimits) {
      return fail(Code::kInvalidArgument, limits->path() + ": expected at most " +
                                              std::to_string(kMaxDeviceLimits) + " devices, found " +
                                              std::to_string(limits->value().size()));
    }
    for (const auto& item : limits->value().items()) {
      GPULET_TRY_ASSIGN(const Bytes limit, read_memory_limit(item.value(), limits->field_path(item.key())));
      mps.device_pinned_memory_limits[item.key()] = limit;
    }
  }
  GPULET_TRY_ASSIGN(const auto multi_user, object->optional_bool("multiUser"));
  mps.multi_user = multi_user.value_or(false);
  return mps;
}

Status require_gate(const JsonObject& sharing, std::string_view strategy, std::string_view gate, bool on) {
  if (on) return {};
  return fail(Code::kUnsupported, sharing.field_path("strategy") + ": strategy " + std::string(strategy) +
                                      " needs the feature gate " + std::string(gate) + ", which is off");
}

Status reject_other_strategy(const JsonObject& sharing, const char* member, std::string_view strategy) {
  if (sharing.member(member) == nullptr) return {};
  return fail(Code::kInvalidArgument,
              sharing.field_path(member) + ": cannot be used with the strategy " + std::string(strategy));
}

Sharing default_sharing(const FeatureGates& gates) {
  if (gates.time_slicing_settings || gates.mps_support) return TimeSlicing{};
  return std::monostate{};
}

Result<Sharing> read_sharing(const JsonObject& config, bool for_mig, const FeatureGates& gates) {
  GPULET_TRY_ASSIGN(const auto sharing, config.optional_object("sharing"));
  if (!sharing) return default_sharing(gates);
  if (for_mig) {
    GPULET_TRY(sharing->reject_unknown_fields({"strategy", "mpsConfig"}));
  } else {
    GPULET_TRY(sharing->reject_unknown_fields({"strategy", "timeSlicingConfig", "mpsConfig"}));
  }
  GPULET_TRY_ASSIGN(const std::string strategy, sharing->required_text("strategy"));
  if (strategy == kTimeSlicingStrategy) {
    GPULET_TRY(require_gate(*sharing, strategy, kTimeSlicingGate, gates.time_slicing_settings));
    GPULET_TRY(reject_other_strategy(*sharing, "mpsConfig", strategy));
    return read_time_slicing(*sharing);
  }
  if (strategy == kMpsStrategy) {
    GPULET_TRY(require_gate(*sharing, strategy, kMpsGate, gates.mps_support));
    GPULET_TRY(reject_other_strategy(*sharing, "timeSlicingConfig", strategy));
    return read_mps(*sharing);
  }
  return fail(Code::kInvalidArgument, sharing->field_path("strategy") + ": unknown GPU sharing strategy \"" +
                                          strategy + "\", expected TimeSlicing or MPS");
}

Result<VfioDeviceConfig> read_vfio(const JsonObject& config) {
  VfioDeviceConfig vfio;
  GPULET_TRY_ASSIGN(const auto iommu, config.optional_object("iommu"));
  if (!iommu) return vfio;
  GPULET_TRY(iommu->reject_unknown_fields({"backendPolicy", "enableAPIDevice"}));
  GPULET_TRY_ASSIGN(const auto policy, iommu->optional_text("backendPolicy"));
  if (policy && *policy != "LegacyOnly" && *policy != "PreferIommuFD") {
    return fail(Code::kInvalidArgument, iommu->field_path("backendPolicy") + ": unknown backend policy \"" +
                                            *policy + "\", expected LegacyOnly or PreferIommuFD");
  }
  vfio.prefer_iommufd = policy == "PreferIommuFD";
  GPULET_TRY_ASSIGN(const auto api_device, iommu->optional_bool("enableAPIDevice"));
  vfio.enable_api_device = api_device.value_or(false);
  return vfio;
}

Result<ComputeDomainConfig> read_compute_domain(const JsonObject& config, bool daemon) {
  ComputeDomainConfig domain;
  domain.daemon = daemon;
  GPULET_TRY_ASSIGN(domain.domain_id, config.required_text("domainID"));
  if (daemon) return domain;
  GPULET_TRY_ASSIGN(const auto mode, config.optional_text("allocationMode"));
  if (mode && !mode->empty() && *mode != "Single" && *mode != "All") {
    return fail(Code::kInvalidArgument, config.field_path("allocationMode") + ": unknown allocation mode \"" +
                                            *mode + "\", expected Single or All");
  }
  domain.all_channels = mode == "All";
  return domain;
}

Result<DeviceConfig> read_kind(const JsonObject& config, const std::string& kind, const FeatureGates& gates) {
  if (kind == "GpuConfig" || kind == "MigDeviceConfig") {
    GPULET_TRY(config.reject_unknown_fields({"apiVersion", "kind", "sharing"}));
    const bool for_mig = kind == "MigDeviceConfig";
    GPULET_TRY_ASSIGN(Sharing sharing, read_sharing(config, for_mig, gates));
    if (for_mig) return MigDeviceConfig{std::move(sharing)};
    return GpuConfig{std::move(sharing)};
  }
  if (kind == "VfioDeviceConfig") {
    GPULET_TRY(config.reject_unknown_fields({"apiVersion", "kind", "iommu"}));
    return read_vfio(config);
  }
  if (kind == "ComputeDomainChannelConfig") {
    GPULET_TRY(config.reject_unknown_fields({"apiVersion", "kind", "domainID", "allocationMode"}));
    return read_compute_domain(config, false);
  }
  if (kind == "ComputeDomainDaemonConfig") {
    GPULET_TRY(config.reject_unknown_fields({"apiVersion", "kind", "domainID"}));
    return read_compute_domain(config, true);
  }
  return fail(Code::kInvalidArgument,
              "kind: unknown kind \"" + kind +
                  "\", expected GpuConfig, MigDeviceConfig, VfioDeviceConfig, ComputeDomainChannelConfig or "
                  "ComputeDomainDaemonConfig");
}

bool is_for_type(const DeviceConfig& config, DeviceType type) {
  return type == DeviceType::kGpu ? std::holds_alternative<GpuConfig>(config)
                                  : std::holds_alternative<MigDeviceConfig>(config);
}

struct ParsedEntry {
  const ConfigEntry* entry;
  DeviceConfig config;
};

// Lowest precedence first.
Result<std::vector<ParsedEntry>> parse_entries(const ResourceClaim& claim, const FeatureGates& gates) {
  std::vector<ParsedEntry> parsed;
  for (const auto source : {ConfigSource::kClass, ConfigSource::kClaim}) {
    for (const auto& entry : claim.configs) {
      if (entry.source != source) continue;
      if (!entry.parameters) {
        return fail(Code::kInvalidArgument,
                    entry.path + ": only opaque parameters are supported by this driver");
      }
      auto config = parse_device_config(*entry.parameters, gates);
      if (!config) return fail(config.error().with_context(entry.path + ".opaque.parameters"));
      parsed.push_back({&entry, std::move(*config)});
    }
  }
  return parsed;
}

Result<ResolvedConfig> resolve_config(const AllocationResult& result, DeviceType type,
                                      const std::vector<ParsedEntry>& parsed, const FeatureGates& gates) {
  for (auto it = parsed.rbegin(); it != parsed.rend(); ++it) {
    const auto& requests = it->entry->requests;
    const bool named = std::ranges::any_of(requests, [&](const std::string& request) {
      return request == result.request || request == result.main_request();
    });
    if (!named && !requests.empty()) continue;
    if (is_for_type(it->config, type)) return ResolvedConfig{it->config, it->entry};
    const std::string reason(unsupported_reason(it->config));
    const bool has_alternatives = result.request != result.main_request();
    if (!named && (reason.empty() || has_alternatives)) continue;
    return fail(Code::kInvalidArgument, it->entry->path + ": a " + std::string(kind_name(it->config)) +
                                            " cannot be applied to the device \"" + result.device +
                                            "\" of type " + std::string(enum_name(type)) +
                                            " of the request \"" + result.request + "\"" +
                                            (reason.empty() ? "" : ": " + reason));
  }
  if (type == DeviceType::kMig) return ResolvedConfig{MigDeviceConfig{default_sharing(gates)}};
  return ResolvedConfig{GpuConfig{default_sharing(gates)}};
}

}  // namespace

Result<FeatureGates> parse_feature_gates(std::string_view text) {
  FeatureGates gates;
  for (const auto& part : text::split(text, ',')) {
    const auto gate = text::trim(part);
    if (gate.empty()) continue;
    const auto equals = gate.find('=');
    const std::string name(gate.substr(0, equals));
    const std::string value(equals == std::string_view::npos ? "" : gate.substr(equals + 1));
    bool* const on = name == kMpsGate           ? &gates.mps_support
                     : name == kTimeSlicingGate ? &gates.time_slicing_settings
                                                : nullptr;
    if (on == nullptr) {
      return fail(Code::kInvalidArgument,
                  "unknown feature gate \"" + name + "\", expected MPSSupport or TimeSlicingSettings");
    }
    if (value != "true" && value != "false") {
      return fail(Code::kInvalidArgument,
                  "feature gate " + name + ": expected true or false, found \"" + value + "\"");
    }
    *on = value == "true";
  }
  return gates;
}

std::string_view enum_name(TimeSliceInterval interval) {
  return kIntervals[static_cast<std::size_t>(interval)].second;
}

std::string_view enum_name(DeviceType type) { return type == DeviceType::kGpu ? "gpu" : "mig"; }

std::string_view kind_name(const DeviceConfig& config) {
  if (std::holds_alternative<GpuConfig>(config)) return "GpuConfig";
  if (std::holds_alternative<MigDeviceConfig>(config)) return "MigDeviceConfig";
  if (std::holds_alternative<VfioDeviceConfig>(config)) return "VfioDeviceConfig";
  return std::get<ComputeDomainConfig>(config).daemon ? "ComputeDomainDaemonConfig"
                                                      : "ComputeDomainChannelConfig";
}

const Sharing* sharing_of(const DeviceConfig& config) {
  if (const auto* gpu = std::get_if<GpuConfig>(&config)) return &gpu->sharing;
  const auto* mig = std::get_if<MigDeviceConfig>(&config);
  return mig == nullptr ? nullptr : &mig->sharing;
}

Status check_sharing(const Sharing& sharing) {
  const auto* slicing = std::get_if<TimeSlicing>(&sharing);
  if (slicing != nullptr && slicing->interval != TimeSliceInterval::kDefault) {
    return fail(Code::kUnsupported, "sharing.timeSlicingConfig.interval: expected Default, found " +
                                        std::string(enum_name(slicing->interval)) +
                                        ": NVML has no call that sets the time slice of a GPU");
  }
  const auto* mps = std::get_if<MpsSettings>(&sharing);
  if (mps != nullptr && mps->active_thread_percentage == 0u) {
    return fail(Code::kUnsupported,
                "sharing.mpsConfig.defaultActiveThreadPercentage: expected 1 to 100, found 0");
  }
  return {};
}

std::string_view unsupported_reason(const DeviceConfig& config) {
  if (std::holds_alternative<VfioDeviceConfig>(config))
    return "gpulet offers no GPU that is passed through to virtual machines; expected GpuConfig or "
           "MigDeviceConfig";
  if (std::holds_alternative<ComputeDomainConfig>(config))
    return "gpulet offers no channel of a ComputeDomain; expected GpuConfig or MigDeviceConfig";
  return {};
}

Result<DeviceConfig> parse_device_config(std::string_view json, const FeatureGates& gates) {
  if (json.size() > kMaxParameterBytes) {
    return fail(Code::kInvalidArgument, "expected at most " + std::to_string(kMaxParameterBytes) +
                                            " bytes, found " + std::to_string(json.size()));
  }
  const auto root = parse_json(json);
  if (root.is_discarded()) return fail(Code::kInvalidArgument, "not valid JSON");
  GPULET_TRY_ASSIGN(const JsonObject config, JsonObject::from_value(root, ""));
  GPULET_TRY_ASSIGN(const std::string version, config.required_text("apiVersion"));
  if (version != kConfigApiVersion) {
    return fail(Code::kInvalidArgument,
                "apiVersion: expected \"" + std::string(kConfigApiVersion) + "\", found \"" + version + "\"");
  }
  GPULET_TRY_ASSIGN(const std::string kind, config.required_text("kind"));
  return read_kind(config, kind, gates);
}

Result<std::vector<ResolvedConfig>> resolve_configs(const ResourceClaim& claim,
                                                    std::span<const DeviceType> types,
                                                    const FeatureGates& gates) {
  GPULET_TRY_ASSIGN(const auto parsed, parse_entries(claim, gates));
  std::vector<ResolvedConfig> resolved;
  for (std::size_t i = 0; i < claim.results.size() && i < types.size(); ++i) {
    GPULET_TRY_ASSIGN(ResolvedConfig config, resolve_config(claim.results[i], types[i], parsed, gates));
    resolved.push_back(std::move(config));
  }
  return resolved;
}

Result<std::map<DeviceUuid, Bytes>> pinned_memory_limits(const MpsSettings& settings,
                                                         std::span<const DeviceUuid> devices) {
  std::map<DeviceUuid, Bytes> limits;
  if (settings.pinned_memory_limit) {
    for (const auto& uuid : devices) limits[uuid] = *settings.pinned_memory_limit;
  }
  for (const auto& [key, limit] : settings.device_pinned_memory_limits) {
    const auto named = std::ranges::find(devices, key, &DeviceUuid::str);
    const auto index = text::parse_unsigned(key);
    if (named != devices.end()) {
      limits[*named] = limit;
    } else if (index && *index < devices.size()) {
      limits[devices[*index]] = limit;
    } else {
      return fail(Code::kInvalidArgument, "defaultPerDevicePinnedMemoryLimit: unknown device \"" + key +
                                              "\", expected a UUID or an index of the claim's " +
                                              text::count_text(devices.size(), "device"));
    }
  }
  return limits;
}

}  // namespace gpulet::dra
