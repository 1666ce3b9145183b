#include "scheduler/request.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <map>

#include "base/text.h"
#include "scheduler/policy.h"

namespace gpulet::scheduler {
namespace {

using inventory::PcieDistance;

constexpr std::string_view kPrefix = "gpulet.io/";
constexpr std::size_t kMaxFoundBytes = 100;  // of what was written, in what is said about it
constexpr std::size_t kMaxModelNames = 64;

// "40Gi" → MiB, rounded up. The suffixes of Kubernetes' quantities, whole numbers only.
std::optional<std::uint64_t> mebibytes_of(std::string_view text) {
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

bool is_version(std::string_view text) {
  if (text.empty() || text.size() > 32) return false;
  for (const auto& part : text::split(text, '.')) {
    if (part.size() > 9 || !text::parse_unsigned(part)) return false;
  }
  return true;
}

std::optional<LinkWish> link_wish_of(std::string_view text) {
  static const std::map<std::string_view, PcieDistance> kDistances = {{"PIX", PcieDistance::kSingle},
                                                                      {"PXB", PcieDistance::kMultiple},
                                                                      {"PHB", PcieDistance::kHostBridge},
                                                                      {"NODE", PcieDistance::kNode}};
  if (const auto found = kDistances.find(text); found != kDistances.end()) {
    return LinkWish{.pcie = found->second, .nvlinks = 0, .text = std::string(text)};
  }
  if (!text.starts_with("NV")) return std::nullopt;
  const auto count =
      text.size() == 2 ? std::optional<std::uint64_t>(1) : text::parse_unsigned(text.substr(2));
  if (!count || *count == 0 || *count > 64) return std::nullopt;
  return LinkWish{.nvlinks = static_cast<unsigned>(*count), .text = std::string(text)};
}

std::optional<std::vector<std::string>> models_of(std::string_view text) {
  std::vector<std::string> models;
  for (const auto& part : text::split(text, '|')) {
    models.emplace_back(text::trim(part));
    if (models.back().empty()) return std::nullopt;
  }
  if (models.empty() || models.size() > kMaxModelNames) return std::nullopt;
  return models;
}

// Each takes a value into the request, or says what it would accept.
using Take = std::optional<std::string> (*)(std::string_view, PodRequest&);

std::optional<std::string> take_version(std::string_view value, std::string& into, const char* example) {
  if (!is_version(value)) return std::string("a version is accepted, as ") + example;
  into = value;
  return std::nullopt;
}

const std::map<std::string_view, Take>& takers() {
  static const std::map<std::string_view, Take> kTakers = {
      {"gpu-model",
       [](std::string_view value, PodRequest& request) -> std::optional<std::string> {
         auto models = models_of(value);
         if (!models) return "words of a model's name are accepted, several parted by |, as A100|H100";
         request.wishes.models = std::move(*models);
         return std::nullopt;
       }},
      {"gpu-memory",
       [](std::string_view value, PodRequest& request) -> std::optional<std::string> {
         const auto memory = mebibytes_of(value);
         if (!memory) return "a quantity in whole numbers is accepted, as 40Gi";
         request.wishes.memory_mib = *memory;
         return std::nullopt;
       }},
      {"gpu-compute",
       [](std::string_view value, PodRequest& request) -> std::optional<std::string> {
         std::string text;
         if (auto refused = take_version(value, text, "8.0")) return refused;
         const auto parts = text::split(text, '.');
         request.wishes.compute = {
             static_cast<unsigned>(*text::parse_unsigned(parts[0])),
             parts.size() > 1 ? static_cast<unsigned>(*text::parse_unsigned(parts[1])) : 0};
         return std::nullopt;
       }},
      {"gpu-driver",
       [](std::string_view value, PodRequest& request) {
         return take_version(value, request.wishes.driver, "550.54");
       }},
      {"gpu-cuda", [](std::string_view value,
                      PodRequest& request) { return take_version(value, request.wishes.cuda, "12.4"); }},
      {"gpu-links",
       [](std::string_view value, PodRequest& request) -> std::optional<std::string> {
         auto wish = link_wish_of(value);
         if (!wish) return "NV, NV with a number of links, PIX, PXB, PHB and NODE are accepted";
         request.wishes.links = std::move(wish);
         return std::nullopt;
       }},
      {"gpu-selector",
       [](std::string_view value, PodRequest& request) -> std::optional<std::string> {
         auto selector = parse_selector(value);
         if (!selector) return selector.error().message() + " (NFD's match expressions are accepted)";
         request.wishes.selector = std::move(*selector);
         return std::nullopt;
       }},
      {"policy",
       [](std::string_view value, PodRequest& request) -> std::optional<std::string> {
         auto policy = parse_policy(value);
         if (!policy) return policy.error().message();
         request.policy = std::move(*policy);
         return std::nullopt;
       }},
  };
  return kTakers;
}

}  // namespace

bool satisfies(const topology::Pair& pair, const LinkWish& wish) {
  if (wish.pcie == PcieDistance::kUnknown) return pair.nvlinks() >= wish.nvlinks;
  // NVLink is better than any PCIe path.
  return pair.nvlinks() != 0 || pair.pcie >= wish.pcie;
}

std::string Malformed::text() const {
  return "annotation " + annotation + " is \"" + found + "\": " + accepted + "; it is taken as absent";
}

Result<std::string> parse_policy(std::string_view value) {
  const auto names = policy_names();
  if (std::ranges::find(names, value) != names.end()) return std::string(value);
  std::string accepted = "accepted are " + text::join(names, ", ");
  if (const auto nearest = text::nearest(value, names)) accepted += " (did you mean " + *nearest + "?)";
  return fail(Code::kInvalidArgument, accepted);
}

void take_annotation(std::string_view key, std::string_view value, PodRequest& request) {
  if (!key.starts_with(kPrefix)) return;
  const auto taker = takers().find(key.substr(kPrefix.size()));
  if (taker == takers().end()) return;
  const auto accepted = taker->second(value, request);
  if (!accepted || request.malformed.size() >= kMaxMalformed) return;
  std::string found(value.substr(0, kMaxFoundBytes));
  std::ranges::replace_if(found, [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
  request.malformed.push_back({std::string(key), std::move(found), *accepted});
}

}  // namespace gpulet::scheduler
