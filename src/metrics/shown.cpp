#include "metrics/shown.h"

#include <algorithm>
#include <optional>

#include "base/text.h"

namespace gpulet::metrics {
namespace {

constexpr unsigned kMostNumber = 4095;

std::optional<unsigned> number(std::string_view text) {
  const auto value = text::parse_unsigned(text);
  if (!value || *value > kMostNumber) return std::nullopt;
  return static_cast<unsigned>(*value);
}

std::optional<std::pair<unsigned, unsigned>> range(std::string_view text) {
  const auto ends = text::split(text, '-');
  if (ends.empty() || ends.size() > 2) return std::nullopt;
  const auto first = number(ends.front());
  const auto last = number(ends.back());
  if (!first || !last || *first > *last) return std::nullopt;
  return std::pair(*first, *last);
}

}  // namespace

Result<Shown> Shown::parse(std::string_view text, const std::string& about) {
  const auto wrong = [&] {
    return fail(Code::kInvalidArgument,
                "'" + std::string(text.substr(0, 64)) +
                    "' names no devices: f, g or i, or with numbers g:0,2-4 or i:1,3-5 would do",
                about);
  };
  Shown shown;
  if (text.empty()) return wrong();
  switch (text.front()) {
    case 'f':
      break;
    case 'g':
      shown.what_ = What::kGpus;
      break;
    case 'i':
      shown.what_ = What::kInstances;
      break;
    default:
      return wrong();
  }
  if (text.size() == 1) return shown;
  if (text[1] != ':' || shown.what_ == What::kFlexible) return wrong();
  const auto items = text::split(text.substr(2), ',');
  if (items.empty()) return wrong();
  for (const auto& item : items) {
    const auto one = range(item);
    if (!one) return wrong();
    shown.ranges_.push_back(*one);
  }
  return shown;
}

bool Shown::in_ranges(unsigned number) const {
  return ranges_.empty() || std::ranges::any_of(ranges_, [&](const auto& range) {
           return range.first <= number && number <= range.second;
         });
}

bool Shown::gpu(unsigned index, bool mig) const {
  return (what_ == What::kFlexible && !mig) || (what_ == What::kGpus && in_ranges(index));
}

bool Shown::instance(unsigned id) const {
  return what_ == What::kFlexible || (what_ == What::kInstances && in_ranges(id));
}

}  // namespace gpulet::metrics
