#include "arguments/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "arguments/arguments.h"
#include "base/json.h"
#include "base/yaml_writer.h"

namespace gpulet::arguments {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kColumnGap = 2;
constexpr std::size_t kLeastColumns = 40;  // of prose on a narrow terminal
constexpr std::size_t kLeastCell = 8;      // what is left of a cell that is cut
constexpr std::size_t kLeastText = 24;     // a column of text that would be narrower is cut instead

YamlNode yaml_node(const Json& json) {
  if (json.is_object()) {
    YamlNode node;
    for (const auto& [key, value] : json.items()) node.add(key, yaml_node(value));
    return node;
  }
  if (json.is_array()) {
    auto node = YamlNode::list();
    for (const auto& value : json) node.items.push_back(yaml_node(value));
    return node;
  }
  auto text = json.dump();
  // YAML 1.1 reads "1e-05" as a text.
  if (json.is_number_float() && text.find('.') == std::string::npos && text.find('e') != std::string::npos)
    text.insert(text.find('e'), ".0");
  const bool ascii = std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  return json.is_string() && ascii ? YamlNode::text(json.get<std::string>()) : YamlNode::bare(text);
}

// The first `width` characters of UTF-8 text, the last of them "…" where something is cut.
std::string cut_text(const std::string& text, std::size_t width) {
  if (display_width(text) <= width) return text;
  std::string cut;
  std::size_t count = 0;
  for (const char c : text) {
    const bool starts = (static_cast<unsigned char>(c) & 0xc0u) != 0x80u;
    if (starts && ++count == width) break;
    cut += c;
  }
  return cut + "…";
}

std::vector<std::size_t> column_widths(const TableRows& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
  }
  return widths;
}

std::size_t table_width(const std::vector<std::size_t>& widths) {
  std::size_t total = 0;
  for (const auto width : widths) total += width + kColumnGap;
  return total == 0 ? 0 : total - kColumnGap;
}

// Continues the last column on further lines, where that leaves it kLeastText.
TableRows wrap_last_column(const TableRows& rows) {
  const auto widths = column_widths(rows);
  const auto total = table_width(widths);
  if (total <= kOutputColumns || widths.empty()) return rows;
  const auto others = total - widths.back();
  if (others + kLeastText > kOutputColumns) return rows;
  TableRows wrapped;
  for (const auto& row : rows) {
    const auto lines = wrap_text(row.back(), kOutputColumns - others);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      auto& made = wrapped.emplace_back(i == 0 ? row : std::vector<std::string>(row.size()));
      made.back() = lines[i];
    }
  }
  return wrapped;
}

void cut_widest_column(TableRows& rows) {
  for (auto widths = column_widths(rows); table_width(widths) > kOutputColumns;
       widths = column_widths(rows)) {
    const auto widest = std::ranges::max_element(widths);
    const auto excess = table_width(widths) - kOutputColumns;
    const auto width = std::max(kLeastCell, *widest - std::min(*widest, excess));
    if (width >= *widest) return;
    const auto at = static_cast<std::size_t>(widest - widths.begin());
    for (auto& row : rows) {
      if (at < row.size()) row[at] = cut_text(row[at], width);
    }
  }
}

}  // namespace

std::size_t terminal_columns() {
  if (::isatty(STDOUT_FILENO) == 0) return 0;
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? std::max(kLeastColumns, std::size_t{size.ws_col}) : kOutputColumns;
}

std::string draw_table(const std::vector<Column>& columns, const TableRows& rows, const TableStyle& style) {
  TableRows shown;
  const auto add = [&](const auto& cell_of) {
    auto& row = shown.emplace_back();
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (style.wide || columns[i].use != ColumnUse::kWide) row.push_back(cell_of(i));
    }
  };
  if (style.headers) add([&](std::size_t i) { return std::string(columns[i].title); });
  for (const auto& row : rows) add([&](std::size_t i) { return i < row.size() ? row[i] : std::string(); });
  if (!style.wide && style.headers) {
    if (columns.back().use == ColumnUse::kText) shown = wrap_last_column(shown);
    cut_widest_column(shown);
  }
  return render_table(shown);
}

std::string uuid_cell(const std::string& uuid, const TableStyle& style) {
  constexpr std::size_t kShort = 12, kFull = 40;
  return style.wide || uuid.size() != kFull ? dash_if_empty(uuid) : uuid.substr(0, kShort);
}

std::string model_cell(const std::string& model, const TableStyle& style) {
  constexpr std::string_view kMaker = "NVIDIA ";
  return dash_if_empty(!style.wide && model.starts_with(kMaker) ? model.substr(kMaker.size()) : model);
}

void add_output_options(CLI::App& command, OutputOptions& options, const OutputFlag& flag) {
  std::vector<std::string> formats{"table", "wide", "json", "yaml"};
  if (flag.has_names) formats.emplace_back("name");
  command
      .add_option(flag.names, options.format,
                  "output format: " + list_choices(formats) + " (default " + flag.default_format + ")")
      ->check(CLI::IsMember(formats))
      ->group(kOutputGroup);
  command
      .add_flag_callback(
          "--no-headers", [&options] { options.headers = false; },
          "print a table without its headings, each row on one line")
      ->group(kOutputGroup);
}

std::string render_output(const OutputOptions& options, const std::function<std::string()>& json,
                          const std::function<std::string(const TableStyle&)>& table) {
  if (options.format == "json") return json();
  if (options.format == "yaml") return yaml_of_json(json());
  const bool wide = options.format == "wide";
  return table({.wide = wide,
                .headers = options.headers,
                .columns = wide || !options.headers ? 0 : terminal_columns()});
}

std::string document_text(const Json& document) {
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string yaml_of_json(const std::string& json) {
  const auto document = parse_json<Json>(json);
  return document.is_object() ? write_yaml(yaml_node(document)) : json;
}

}  // namespace gpulet::arguments
