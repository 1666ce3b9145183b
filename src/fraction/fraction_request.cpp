#include "fraction/fraction_request.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <utility>

#include "base/quantity.h"
#include "base/text.h"

namespace gpulet::fraction {
namespace {

constexpr std::string_view kDevicePrefix = "nvidia.com/";
constexpr std::string_view kFractionAnnotation = "gpu-fraction";
constexpr std::string_view kFractionMemoryAnnotation = "gpu-memory";
constexpr std::string_view kFractionContainerAnnotation = "gpu-fraction-container-name";
constexpr std::string_view kFractionDevicesAnnotation = "gpu-fraction-num-devices";
constexpr std::string_view kContainerPrefix = "nvidia.com/container.";
constexpr std::string_view kRequestSuffix = ".gpu-memory.request";
constexpr std::string_view kLimitSuffix = ".gpu-memory.limit";
constexpr std::size_t kMaxFieldBytes = 300, kMaxFoundBytes = 100;  // in messages
constexpr std::uint64_t kPercent = 100;
constexpr std::uint32_t kMillionthsOfPercent = 10'000;

Error invalid(std::string_view field, std::string_view found, std::string_view expected) {
  return {Code::kInvalidArgument, printable_field(field, kMaxFieldBytes) + " is \"" +
                                      printable_field(found, kMaxFoundBytes) + "\": expected " +
                                      std::string(expected)};
}

std::string annotation_field(std::string_view key) { return "annotation " + std::string(key); }

// The amounts of one container while they are read, and the field that each came from.
struct Reading {
  const PodContainer* container = nullptr;
  std::uint64_t gpus = 0;
  FractionRequest request;
  std::string memory_found;  // the value of request.memory_source
};

// Of a form, for one container. `limit` is compared with that of the other forms too, if it is given.
struct Amount {
  std::string field;
  std::string_view found;
  MemoryAmount memory;
  std::optional<MemoryAmount> limit;
};

std::string limit_field(const Reading& reading, std::string_view resource) {
  return "limit " + std::string(resource) + " of container " + std::string(reading.container->name);
}

Status check_gpus(const Reading& reading, std::string_view field, std::string_view found) {
  if (reading.gpus != 0) return {};
  return fail(invalid(field, found,
                      "a GPU for container " + printable_field(reading.container->name, kMaxFoundBytes) +
                          " beside it, as nvidia.com/gpu: 1"));
}

Status add_memory(Reading& reading, Amount amount) {
  GPULET_TRY(check_gpus(reading, amount.field, amount.found));
  auto& request = reading.request;
  if (request.memory_source.empty()) {
    request.memory = amount.memory;
    request.memory_limit = amount.limit.value_or(amount.memory);
    request.memory_source = std::move(amount.field);
    reading.memory_found = amount.found;
    return {};
  }
  if (request.memory == amount.memory && (!amount.limit || request.memory_limit == *amount.limit)) return {};
  return fail(invalid(amount.field, amount.found,
                      "the same memory as " + printable_field(request.memory_source, kMaxFieldBytes) +
                          ", \"" + printable_field(reading.memory_found, kMaxFoundBytes) +
                          "\", or one of them"));
}

std::optional<std::uint64_t> parse_between(std::string_view text, std::uint64_t most) {
  const auto number = parse_whole_quantity(text);
  return number && *number != 0 && *number <= most ? number : std::nullopt;
}

Status read_limits(Reading& reading) {
  for (const auto& [key, value] : reading.container->limits) {
    if (!is_fraction_resource(key)) continue;
    const auto field = limit_field(reading, key);
    const bool is_memory = key == kMemoryResource;
    const auto number = parse_between(value, is_memory ? kMaxRequestMib : kPercent);
    if (!number)
      return fail(invalid(field, value, is_memory ? "MiB, as 8192" : "a whole percentage from 1 to 100"));
    if (key == kComputeResource) {
      GPULET_TRY(check_gpus(reading, field, value));
      constexpr unsigned kThousandthsOfPercent = 10;
      reading.request.compute_thousandths = static_cast<unsigned>(*number) * kThousandthsOfPercent;
      continue;
    }
    const auto memory =
        is_memory ? MemoryAmount{.mib = *number}
                  : MemoryAmount{.millionths = static_cast<std::uint32_t>(*number) * kMillionthsOfPercent};
    GPULET_TRY(add_memory(reading, {field, value, memory, memory}));
  }
  return {};
}

std::optional<std::uint32_t> parse_fraction(std::string_view text) {
  double number = 0;
  const auto* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (read.ec != std::errc{} || read.ptr != end || !(number > 0 && number <= 1)) return std::nullopt;
  constexpr double kWhole = 1e6;
  const auto millionths = static_cast<std::uint32_t>(std::lround(number * kWhole));
  return millionths == 0 ? std::nullopt : std::optional(millionths);
}

// A quantity of bytes above 0 as MiB, rounded up.
std::optional<std::uint64_t> parse_mebibytes(std::string_view text) {
  constexpr std::uint64_t kMilliMebi = 1000 << 20;
  const auto milli = parse_quantity_milli(text);
  if (!milli || *milli == 0) return std::nullopt;
  return (*milli - 1) / kMilliMebi + 1;
}

Result<Amount> parse_fraction_annotation(std::string_view key, std::string_view value) {
  const auto field = annotation_field(key);
  MemoryAmount memory;
  if (key == kFractionAnnotation) {
    const auto millionths = parse_fraction(value);
    if (!millionths) return fail(invalid(field, value, "a number above 0 and at most 1, as 0.5"));
    memory.millionths = *millionths;
  } else {
    const auto mib = parse_between(value, kMaxRequestMib);
    if (!mib) return fail(invalid(field, value, "MiB, as 8192"));
    memory.mib = *mib;
  }
  return Amount{field, value, memory, memory};
}

using Annotations = std::map<std::string_view, std::string_view>;

// The container that gpu-fraction and gpu-memory are for.
Result<Reading*> find_fraction_container(std::vector<Reading>& readings, const Annotations& annotations,
                                         const Amount& amount) {
  if (const auto named = annotations.find(kFractionContainerAnnotation); named != annotations.end()) {
    for (auto& reading : readings) {
      if (reading.container->name == named->second) return &reading;
    }
    return fail(invalid(annotation_field(named->first), named->second, "the name of a container of the Pod"));
  }
  for (auto& reading : readings) {
    if (!reading.container->is_init && reading.gpus != 0) return &reading;
  }
  return fail(invalid(amount.field, amount.found, "a container with a GPU, as nvidia.com/gpu: 1"));
}

// gpu-fraction and gpu-memory, and what goes with them.
Status read_fraction_annotations(std::vector<Reading>& readings, const Annotations& annotations) {
  Reading* reading = nullptr;
  for (const auto key : {kFractionAnnotation, kFractionMemoryAnnotation}) {
    const auto found = annotations.find(key);
    if (found == annotations.end()) continue;
    GPULET_TRY_ASSIGN(auto amount, parse_fraction_annotation(key, found->second));
    GPULET_TRY_ASSIGN(reading, find_fraction_container(readings, annotations, amount));
    GPULET_TRY(add_memory(*reading, std::move(amount)));
  }
  const auto devices = annotations.find(kFractionDevicesAnnotation);
  if (devices == annotations.end()) return {};
  const auto field = annotation_field(devices->first);
  if (reading == nullptr)
    return fail(invalid(field, devices->second, "annotation gpu-fraction or gpu-memory beside it"));
  if (parse_whole_quantity(devices->second) == reading->gpus) return {};
  return fail(invalid(field, devices->second,
                      std::to_string(reading->gpus) + ", the GPUs of container " +
                          printable_field(reading->container->name, kMaxFoundBytes)));
}

// "nvidia.com/container.main.gpu-memory.limit" → "main"; empty for any other key.
std::string_view container_of(std::string_view key) {
  if (!key.starts_with(kContainerPrefix)) return {};
  key.remove_prefix(kContainerPrefix.size());
  for (const auto suffix : {kRequestSuffix, kLimitSuffix}) {
    if (key.ends_with(suffix)) return key.substr(0, key.size() - suffix.size());
  }
  return {};
}

// nvidia.com/container.NAME.gpu-memory.request and .limit: the one that is missing equals the other, but a
// request alone sets no limit, as for the resources of Kubernetes.
Status read_container_annotations(Reading& reading, const Annotations& annotations) {
  const std::string prefix = std::string(kContainerPrefix) + std::string(reading.container->name);
  std::optional<Amount> amount;
  for (const auto suffix : {kLimitSuffix, kRequestSuffix}) {
    const auto found = annotations.find(prefix + std::string(suffix));
    if (found == annotations.end()) continue;
    const auto field = annotation_field(found->first);
    const auto mib = parse_mebibytes(found->second);
    if (!mib) return fail(invalid(field, found->second, "a quantity above 0, as 8Gi"));
    if (amount && *mib > amount->memory.mib) {
      return fail(invalid(field, found->second,
                          "at most the limit, \"" + printable_field(amount->found, kMaxFoundBytes) + "\""));
    }
    const auto limit =
        suffix == kLimitSuffix ? MemoryAmount{.mib = *mib} : (amount ? *amount->limit : MemoryAmount{});
    amount = Amount{field, found->second, {.mib = *mib}, limit};
  }
  return amount ? add_memory(reading, std::move(*amount)) : Status{};
}

Status check_container_names(const std::vector<Reading>& readings, const Annotations& annotations) {
  for (const auto& [key, value] : annotations) {
    const auto name = container_of(key);
    if (!name.empty() && std::ranges::none_of(readings, [&](const Reading& reading) {
          return reading.container->name == name;
        })) {
      return fail(invalid(annotation_field(key), value, "the name of a container of the Pod in it"));
    }
  }
  return {};
}

std::uint64_t count_gpus(const PodContainer& container) {
  std::uint64_t gpus = 0;
  for (const auto& [key, value] : container.limits) {
    if (key.starts_with(kDevicePrefix) && !is_fraction_resource(key))
      gpus += parse_whole_quantity(value).value_or(0);
  }
  return gpus;
}

}  // namespace

std::string printable_field(std::string_view text, std::size_t limit) {
  std::string out(text.substr(0, limit));
  std::ranges::replace_if(out, [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
  return out;
}

bool is_fraction_resource(std::string_view resource) {
  return std::ranges::find(kFractionResources, resource) != std::end(kFractionResources);
}

bool is_fraction_annotation(std::string_view key) {
  return key == kFractionAnnotation || key == kFractionMemoryAnnotation ||
         key == kFractionContainerAnnotation || key == kFractionDevicesAnnotation ||
         key == kMemoryAnnotation || !container_of(key).empty();
}

std::optional<std::uint64_t> parse_whole_quantity(std::string_view text) {
  constexpr std::uint64_t kMilli = 1000;
  // A fraction, which parse_quantity_milli() would round up, is none of those forms.
  const auto milli = text.find('.') == text.npos ? parse_quantity_milli(text) : std::nullopt;
  if (!milli || *milli % kMilli != 0 || *milli / kMilli > kMaxRequestMib) return std::nullopt;
  return *milli / kMilli;
}

std::optional<std::uint64_t> parse_whole_mebibytes(std::string_view text) {
  static const std::map<std::string_view, std::uint64_t> kUnits = {{"", 1},
                                                                   {"k", 1'000},
                                                                   {"M", 1'000'000},
                                                                   {"G", 1'000'000'000},
                                                                   {"T", 1'000'000'000'000},
                                                                   {"Ki", 1u << 10},
                                                                   {"Mi", 1u << 20},
                                                                   {"Gi", 1u << 30},
                                                                   {"Ti", std::uint64_t{1} << 40}};
  std::uint64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc{}) return std::nullopt;
  const auto unit = kUnits.find(text.substr(static_cast<std::size_t>(read.ptr - text.data())));
  if (unit == kUnits.end() || number == 0 || number > (std::uint64_t{1} << 60) / unit->second)
    return std::nullopt;
  return (number * unit->second + (1u << 20) - 1) >> 20;
}

Result<std::vector<FractionRequest>> parse_fraction_requests(const PodFields& pod) {
  Annotations annotations;
  for (std::size_t i = 0; i < std::min(pod.annotations.size(), kMaxRequestAnnotations); ++i) {
    if (is_fraction_annotation(pod.annotations[i].key))
      annotations.emplace(pod.annotations[i].key, pod.annotations[i].value);
  }
  std::vector<Reading> readings;
  for (std::size_t i = 0; i < std::min(pod.containers.size(), kMaxRequestContainers); ++i) {
    const auto& container = pod.containers[i];
    auto& reading = readings.emplace_back();
    reading.container = &container;
    reading.gpus = count_gpus(container);
    reading.request.container = container.name;
    GPULET_TRY(read_limits(reading));
  }
  GPULET_TRY(read_fraction_annotations(readings, annotations));
  GPULET_TRY(check_container_names(readings, annotations));
  const auto own = annotations.find(kMemoryAnnotation);
  const auto expected = own == annotations.end() ? std::nullopt : parse_whole_mebibytes(own->second);
  std::vector<FractionRequest> requests;
  for (auto& reading : readings) {
    GPULET_TRY(read_container_annotations(reading, annotations));
    if (expected && reading.gpus != 0) {
      GPULET_TRY(add_memory(
          reading, {annotation_field(kMemoryAnnotation), own->second, {.mib = *expected}, std::nullopt}));
    }
    const auto& request = reading.request;
    if (!request.memory_source.empty() || request.compute_thousandths != 0)
      requests.push_back(std::move(reading.request));
  }
  return requests;
}

}  // namespace gpulet::fraction
