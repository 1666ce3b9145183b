#include "metrics/counters.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "base/text.h"

namespace gpulet::metrics {
namespace {

constexpr unsigned kMostNumber = 4095;

std::optional<unsigned> parse_index(std::string_view text) {
  const auto value = text::parse_unsigned(text);
  if (!value || *value > kMostNumber) return std::nullopt;
  return static_cast<unsigned>(*value);
}

std::optional<std::pair<unsigned, unsigned>> range(std::string_view text) {
  const auto ends = text::split(text, '-');
  if (ends.empty() || ends.size() > 2) return std::nullopt;
  const auto first = parse_index(ends.front());
  const auto last = parse_index(ends.back());
  if (!first || !last || *first > *last) return std::nullopt;
  return std::pair(*first, *last);
}

}  // namespace

Result<DeviceFilter> DeviceFilter::parse_filter(std::string_view text, const std::string& about) {
  const auto wrong = [&] {
    return fail(Code::kInvalidArgument,
                "'" + std::string(text.substr(0, 64)) +
                    "' is not a device filter; expected f, g or i, or with numbers g:0,2-4 or i:1,3-5",
                about);
  };
  DeviceFilter shown;
  if (text.empty()) return wrong();
  switch (text.front()) {
    case 'f':
      break;
    case 'g':
      shown.scope_ = Scope::kGpus;
      break;
    case 'i':
      shown.scope_ = Scope::kInstances;
      break;
    default:
      return wrong();
  }
  if (text.size() == 1) return shown;
  if (text[1] != ':' || shown.scope_ == Scope::kFlexible) return wrong();
  const auto items = text::split(text.substr(2), ',');
  if (items.empty()) return wrong();
  for (const auto& item : items) {
    const auto one = range(item);
    if (!one) return wrong();
    shown.ranges_.push_back(*one);
  }
  return shown;
}

bool DeviceFilter::in_ranges(unsigned number) const {
  return ranges_.empty() || std::ranges::any_of(ranges_, [&](const auto& range) {
           return range.first <= number && number <= range.second;
         });
}

bool DeviceFilter::includes_gpu(unsigned index, bool mig) const {
  return (scope_ == Scope::kFlexible && !mig) || (scope_ == Scope::kGpus && in_ranges(index));
}

bool DeviceFilter::includes_instance(unsigned id) const {
  return scope_ == Scope::kFlexible || (scope_ == Scope::kInstances && in_ranges(id));
}

namespace {

constexpr std::size_t kColumns = 3;
constexpr std::size_t kMostShown = 80;  // of an invalid value, in the error

std::string quoted_excerpt(std::string_view text) {
  std::string result = "\"";
  for (const char c : text.substr(0, kMostShown)) result += c >= ' ' && c != '\x7f' ? c : '?';
  return result + (text.size() > kMostShown ? "…\"" : "\"");
}

// The columns of a row; nullopt if a quote is not closed.
std::optional<std::vector<std::string>> columns_of(std::string_view row) {
  std::vector<std::string> columns;
  while (true) {
    std::string column;
    const std::size_t begin = std::min(row.find_first_not_of(" \t"), row.size());
    if (begin < row.size() && row[begin] == '"') {
      std::size_t at = begin + 1;
      for (; at < row.size(); ++at) {
        if (row[at] != '"') {
          column += row[at];
        } else if (at + 1 < row.size() && row[at + 1] == '"') {
          column += row[at++];
        } else {
          break;
        }
      }
      if (at >= row.size()) return std::nullopt;
      const std::size_t end = std::min(row.find(',', at), row.size());
      column += row.substr(at + 1, end - at - 1);
      row.remove_prefix(end);
    } else {
      const std::size_t end = std::min(row.find(','), row.size());
      column = row.substr(0, end);
      row.remove_prefix(end);
    }
    columns.emplace_back(text::trim(column));
    if (row.empty()) return columns;
    row.remove_prefix(1);
  }
}

std::string nearest_name(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& field : fields()) {
    names.emplace_back(field.name);
    for (const auto other : other_names(field.field)) names.emplace_back(other);
  }
  const auto near = text::nearest(name, names);
  return near ? ": did you mean " + *near + "?" : "";
}

std::optional<Type> type_of(std::string_view text) {
  for (const Type type : {Type::kGauge, Type::kCounter, Type::kLabel}) {
    if (type_name(type) == text) return type;
  }
  return std::nullopt;
}

// Returns the error of a row with the expected value. If there is none, `counters` has the row or the reason
// why it is left out.
std::string read_row(std::string_view row, std::size_t line, Counters& counters) {
  const auto columns = columns_of(row);
  if (!columns) return "a quote is not closed";
  if (columns->size() != kColumns) {
    return std::to_string(columns->size()) + " columns, expected 3: FIELD, TYPE, HELP" +
           (columns->size() > kColumns ? " (a help text with a comma goes in double quotes)" : "");
  }
  const std::string &name = columns->at(0), &type_text = columns->at(1), &help = columns->at(2);
  const auto left_out = [&](std::string_view why) {
    counters.unserved.push_back("line " + std::to_string(line) + ": " + name + ": " + std::string(why));
  };
  const FieldInfo* field = find_field(name);
  const auto link_field = find_link_field(name);
  if (field == nullptr && !link_field) {
    if (const auto reason = unserved_reason(name)) {
      left_out("not served: " + std::string(*reason));
      return "";
    }
    const auto near = nearest_name(name);
    if (!near.empty() || !(name.starts_with("DCGM_FI_") || name.starts_with("DCGM_EXP_")))
      return quoted_excerpt(name) + " is not a DCGM field" + near;
    left_out("not served: NVML does not have it, or gpulet does not know it");
    return "";
  }
  const auto type = type_of(type_text);
  if (!type) return quoted_excerpt(type_text) + " is not a type; expected gauge, counter or label";
  if (field != nullptr && field->type == Type::kLabel && *type != Type::kLabel)
    return name + " is a text; expected type label";
  const bool twice = std::any_of(counters.all.begin(), counters.all.end(),
                                 [&](const Counter& other) { return other.name == name; });
  if (twice) {
    left_out("it is already there, the first row counts");
  } else {
    Counter counter{link_field ? link_field->field : field->field, *type, name, help};
    if (link_field) counter.link = link_field->link;
    counters.all.push_back(std::move(counter));
  }
  return "";
}

}  // namespace

Counters default_counters() {
  Counters counters;
  for (const auto& field : fields()) {
    if (field.by_default)
      counters.all.push_back({field.field, field.type, std::string(field.name), std::string(field.help)});
  }
  return counters;
}

std::optional<Counters> builtin_counters(std::string_view path) {
  if (path == "/etc/dcgm-exporter/dcp-metrics-included.csv") return default_counters();
  if (path != "/etc/dcgm-exporter/default-counters.csv") return std::nullopt;
  auto counters = default_counters();
  std::erase_if(counters.all,
                [](const Counter& counter) { return counter.name.starts_with("DCGM_FI_PROF_"); });
  return counters;
}

Result<Counters> parse_counters(std::string_view text, const std::string& about) {
  if (text.size() > kMaxCountersBytes) {
    return fail(Code::kInvalidArgument,
                "more than " + std::to_string(kMaxCountersBytes >> 20) + " MiB: no list of counters", about);
  }
  Counters counters;
  std::size_t line = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const auto row = text::trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line;
    if (row.empty() || row.front() == '#') continue;
    const auto wrong = read_row(row, line, counters);
    if (!wrong.empty())
      return fail(Code::kInvalidArgument, "line " + std::to_string(line) + ": " + wrong, about);
  }
  if (counters.all.empty() && counters.unserved.empty()) {
    return fail(Code::kInvalidArgument,
                "no counters; expected rows such as \"DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).\"",
                about);
  }
  std::sort(counters.all.begin(), counters.all.end(), [](const Counter& a, const Counter& b) {
    return std::tie(a.field, a.link, a.name) < std::tie(b.field, b.link, b.name);
  });
  return counters;
}

}  // namespace gpulet::metrics
