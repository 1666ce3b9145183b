// What a command shows, in the formats of -o: a command makes one JSON document and one table of the same
// facts. YAML is made from the JSON. Every command of every program that shows something has -o, --output and
// --no-headers from here, with the same meaning; `gpulet top` has an -o of its own.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

#include "base/text.h"

namespace CLI {
class App;
}

namespace gpulet::arguments {

struct OutputOptions {
  OutputOptions(std::string as = "table") : format(std::move(as)) {}
  OutputOptions(const char* as) : format(as) {}

  std::string format;  // "table", "wide", "json" or "yaml"; of some commands also "name"
  bool headers = true;

  bool is_document() const { return format == "json" || format == "yaml"; }
};

// How a table is drawn.
struct TableStyle {
  bool wide = false;        // all columns, with their whole text; else what fits kOutputColumns
  bool headers = true;      // false, for scripts: rows alone, each on one line with its whole text
  std::size_t columns = 0;  // of the terminal, for wrap_lines (arguments.h); 0: not shown on one, or wide
};

// The width of a table that is not wide.
inline constexpr std::size_t kOutputColumns = 80;

enum class ColumnUse {
  kAlways,
  kWide,  // in a wide table only
  kText,  // the last column, whose text continues on the next line
};
struct Column {
  const char* title;
  ColumnUse use = ColumnUse::kAlways;
};

// The width of the terminal that standard output is; 0 without one.
std::size_t terminal_columns();

// `rows` have a cell for each of `columns`. In a table that is not wide, cells of the widest column are cut
// until it fits. Pure.
std::string draw_table(const std::vector<Column>& columns, const TableRows& rows, const TableStyle& style);

// "GPU-5a1b2c3d" of a UUID: enough to name a GPU of a node. A wide table has the whole UUID.
std::string uuid_cell(const std::string& uuid, const TableStyle& style);
// "H100 80GB HBM3" of "NVIDIA H100 80GB HBM3". A wide table has the whole name.
std::string model_cell(const std::string& model, const TableStyle& style);

// The group of these options in the help.
inline constexpr const char* kOutputGroup = "Output";

// Adds -o, --output and --no-headers. `default_format` is what an empty options.format stands for.
struct OutputFlag {
  const char* names = "-o,--output";
  const char* default_format = "table";
  bool has_names = false;  // also "name", which the command prints itself
};
void add_output_options(CLI::App& command, OutputOptions& options, const OutputFlag& flag = {});

// The text that the command prints. Only one of the two is called. `json` ends in a newline. A document that
// is not JSON is returned as it is.
std::string render_output(const OutputOptions& options, const std::function<std::string()>& json,
                          const std::function<std::string(const TableStyle&)>& table);

// The text of a document, indented, with a newline. Invalid UTF-8, which a file or a driver may have, is
// replaced.
std::string document_text(const nlohmann::ordered_json& document);

// The same document as YAML, its members in their order; `json` itself where it is not a JSON object.
std::string yaml_of_json(const std::string& json);

}  // namespace gpulet::arguments
