#include "metrics/host_engine.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/text.h"

namespace gpulet::metrics {
namespace {

constexpr unsigned kFirstProfilingId = 1001, kLastProfilingId = 1016;
constexpr std::size_t kEntityWords = 2, kFirstValue = 3;  // "GPU 0 00000000:1B:00.0 0.571 …"

std::optional<double> parse_number(std::string_view word) {
  double number = 0;
  const auto* end = word.data() + word.size();
  const auto parsed = std::from_chars(word.data(), end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end || !std::isfinite(number) || number < 0)
    return std::nullopt;
  return number;
}

}  // namespace

std::vector<Field> host_engine_fields(const std::set<Field>& wanted) {
  std::vector<Field> found;
  for (const auto& info : fields()) {
    if (info.id >= kFirstProfilingId && info.id <= kLastProfilingId && wanted.contains(info.field))
      found.push_back(info.field);
  }
  std::ranges::sort(found, {}, [](Field field) { return field_info(field).id; });
  return found;
}

std::string dmon_field_ids(const std::vector<Field>& fields) {
  auto ids = std::to_string(field_info(Field::kPciBusId).id);
  for (const auto field : fields) ids += "," + std::to_string(field_info(field).id);
  return ids;
}

std::optional<DmonRow> parse_dmon_row(std::string_view line, const std::vector<Field>& fields) {
  auto words = text::split(line, ' ');
  std::erase(words, "");
  if (words.size() != kFirstValue + fields.size() || words[0] != "GPU") return std::nullopt;
  const auto pci = inventory::PciAddress::from_text(words[kEntityWords]);
  if (!pci) return std::nullopt;
  DmonRow row{.pci = *pci, .values = {}};
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (const auto value = parse_number(words[kFirstValue + i])) row.values[fields[i]] = *value;
  }
  return row;
}

bool is_dmon_header(std::string_view line) {
  const auto text = text::trim(line);
  return text.empty() || text.starts_with('#') || text == "ID" || text.starts_with("ID ");
}

}  // namespace gpulet::metrics
