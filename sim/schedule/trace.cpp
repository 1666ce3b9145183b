#include "sim/schedule/trace.h"

#include <algorithm>
#include <optional>

#include "base/text.h"

namespace gpulet::scheduler {
namespace {

std::string row_location(std::string_view about, std::size_t row) {
  return std::string(about) + ": row " + std::to_string(row);
}

// A CSV table with a header: fields by column name.
class CsvTable {
 public:
  static Result<CsvTable> read_table(std::string_view text, std::string_view about,
                                     const std::vector<std::string>& needed) {
    CsvTable table;
    table.source_ = about;
    GPULET_TRY_ASSIGN(table.rows_, parse_csv(text, about));
    if (table.rows_.size() < 2) {
      return fail(Code::kInvalidArgument,
                  "it has " + std::string(table.rows_.empty() ? "nothing in it" : "a header only") +
                      "; a header and at least one row are needed",
                  std::string(about));
    }
    table.header_ = table.rows_.front().fields;
    table.rows_.erase(table.rows_.begin());
    for (const std::string& name : needed) {
      if (!table.find_column(name)) {
        return fail(Code::kInvalidArgument,
                    "no column '" + name + "' in the header; found " + text::join(table.header_, ", "),
                    std::string(about));
      }
    }
    for (const CsvRow& row : table.rows_) {
      if (row.fields.size() != table.header_.size()) {
        return fail(Code::kInvalidArgument,
                    std::to_string(row.fields.size()) + " fields, the header has " +
                        std::to_string(table.header_.size()),
                    row_location(about, row.number));
      }
    }
    return table;
  }

  const std::vector<CsvRow>& rows() const { return rows_; }

  // Empty if there is no such column.
  std::string field_text(const CsvRow& row, std::string_view name) const {
    const auto at = find_column(name);
    return at ? row.fields[*at] : std::string();
  }

  Result<std::int64_t> field_number(const CsvRow& row, std::string_view name, std::uint64_t most) const {
    const std::string field = field_text(row, name);
    const auto value = text::parse_unsigned(text::trim(field));
    if (!value || *value > most) {
      return fail(
          Code::kInvalidArgument,
          "found '" + field.substr(0, 64) + "', expected a whole number from 0 to " + std::to_string(most),
          row_location(source_, row.number) + ", " + std::string(name));
    }
    return static_cast<std::int64_t>(*value);
  }

  Error field_error(const CsvRow& row, std::string_view field, const std::string& what) const {
    return Error(Code::kInvalidArgument, what, row_location(source_, row.number) + ", " + std::string(field));
  }

 private:
  std::optional<std::size_t> find_column(std::string_view name) const {
    const auto found = std::ranges::find(header_, name);
    if (found == header_.end()) return std::nullopt;
    return static_cast<std::size_t>(found - header_.begin());
  }

  std::string source_;
  std::vector<std::string> header_;
  std::vector<CsvRow> rows_;
};

constexpr std::uint64_t kMaxCpuMilli = 10'000'000;
constexpr std::uint64_t kMaxMemoryMib = 1'000'000'000;

Status read_nodes(ClusterTrace& trace, std::string_view csv, std::string_view about) {
  GPULET_TRY_ASSIGN(const CsvTable table,
                    CsvTable::read_table(csv, about, {"cpu_milli", "memory_mib", "gpu", "model"}));
  for (const CsvRow& row : table.rows()) {
    NodeState node;
    GPULET_TRY_ASSIGN(node.cpu_milli, table.field_number(row, "cpu_milli", kMaxCpuMilli));
    GPULET_TRY_ASSIGN(node.memory_mib, table.field_number(row, "memory_mib", kMaxMemoryMib));
    GPULET_TRY_ASSIGN(const std::int64_t gpus, table.field_number(row, "gpu", kMaxGpus));
    node.gpus = static_cast<std::uint8_t>(gpus);
    std::fill_n(node.free.begin(), node.gpus, static_cast<std::uint16_t>(kWhole));
    const auto model = trace.models.model_id(table.field_text(row, "model"));
    if (!model) return fail(table.field_error(row, "model", model.error().message()));
    node.model = *model;
    trace.nodes.push_back(std::move(node));
  }
  return {};
}

Status read_tasks(ClusterTrace& trace, std::string_view csv, std::string_view about) {
  GPULET_TRY_ASSIGN(const CsvTable table,
                    CsvTable::read_table(csv, about, {"cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}));
  for (const CsvRow& row : table.rows()) {
    Task task;
    GPULET_TRY_ASSIGN(task.cpu_milli, table.field_number(row, "cpu_milli", kMaxCpuMilli));
    GPULET_TRY_ASSIGN(task.memory_mib, table.field_number(row, "memory_mib", kMaxMemoryMib));
    GPULET_TRY_ASSIGN(const std::int64_t gpus, table.field_number(row, "num_gpu", kMaxGpus));
    GPULET_TRY_ASSIGN(const std::int64_t milli, table.field_number(row, "gpu_milli", kWhole));
    if (gpus > 0 && milli == 0) {
      return fail(table.field_error(row, "gpu_milli",
                                    "found '0' for a task with " + std::to_string(gpus) +
                                        " GPUs, expected 1 to 1000 thousandths of each"));
    }
    task.gpus = static_cast<std::uint16_t>(gpus);
    task.gpu_milli = static_cast<std::uint16_t>(gpus == 0 ? 0 : milli);
    const auto models = trace.models.parse_model_set(table.field_text(row, "gpu_spec"));
    if (!models) return fail(table.field_error(row, "gpu_spec", models.error().message()));
    task.models = *models;
    trace.tasks.push_back(task);
  }
  return {};
}

}  // namespace

std::int64_t ClusterTrace::total_gpu_milli() const {
  std::int64_t sum = 0;
  for (const NodeState& node : nodes) sum += std::int64_t{node.gpus} * kWhole;
  return sum;
}

Result<std::vector<CsvRow>> parse_csv(std::string_view text, std::string_view about) {
  std::vector<CsvRow> rows;
  std::size_t number = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    CsvRow row{number, {std::string()}};
    bool quoted = false;
    for (std::size_t at = 0; at < line.size(); ++at) {
      if (quoted && line[at] == '"' && at + 1 < line.size() && line[at + 1] == '"') {
        row.fields.back() += line[at++];
      } else if (line[at] == '"') {
        quoted = !quoted;
      } else if (line[at] == ',' && !quoted) {
        row.fields.emplace_back();
      } else {
        row.fields.back() += line[at];
      }
    }
    if (quoted)
      return fail(Code::kInvalidArgument, "a double quote without its end", row_location(about, number));
    rows.push_back(std::move(row));
  }
  return rows;
}

Result<ClusterTrace> read_trace(std::string_view nodes_csv, std::string_view about_nodes,
                                std::string_view pods_csv, std::string_view about_pods) {
  ClusterTrace trace;
  GPULET_TRY(read_nodes(trace, nodes_csv, about_nodes));
  GPULET_TRY(read_tasks(trace, pods_csv, about_pods));
  if (trace.total_gpu_milli() == 0) {
    return fail(Code::kInvalidArgument, "no node has a GPU", std::string(about_nodes));
  }
  return trace;
}

}  // namespace gpulet::scheduler
