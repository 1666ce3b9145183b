#include "scheduler/trace.h"

#include <algorithm>
#include <optional>

#include "base/text.h"

namespace gpulet::scheduler {
namespace {

std::string place(std::string_view about, std::size_t row) {
  return std::string(about) + ": row " + std::to_string(row);
}

// A CSV with a header: fields by column name.
class Table {
 public:
  static Result<Table> read(std::string_view text, std::string_view about,
                            const std::vector<std::string>& needed) {
    Table table;
    table.about_ = about;
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
      if (!table.column(name)) {
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
                    place(about, row.number));
      }
    }
    return table;
  }

  const std::vector<CsvRow>& rows() const { return rows_; }

  // Empty where there is no such column.
  std::string text(const CsvRow& row, std::string_view name) const {
    const auto at = column(name);
    return at ? row.fields[*at] : std::string();
  }

  Result<std::int64_t> number(const CsvRow& row, std::string_view name, std::uint64_t most) const {
    const std::string field = text(row, name);
    const auto value = text::parse_unsigned(text::trim(field));
    if (!value || *value > most) {
      return fail(
          Code::kInvalidArgument,
          "found '" + field.substr(0, 64) + "', want a whole number from 0 to " + std::to_string(most),
          place(about_, row.number) + ", " + std::string(name));
    }
    return static_cast<std::int64_t>(*value);
  }

  Error wrong(const CsvRow& row, std::string_view field, const std::string& what) const {
    return Error(Code::kInvalidArgument, what, place(about_, row.number) + ", " + std::string(field));
  }

 private:
  std::optional<std::size_t> column(std::string_view name) const {
    const auto found = std::ranges::find(header_, name);
    if (found == header_.end()) return std::nullopt;
    return static_cast<std::size_t>(found - header_.begin());
  }

  std::string about_;
  std::vector<std::string> header_;
  std::vector<CsvRow> rows_;
};

constexpr std::uint64_t kMostCpuMilli = 10'000'000;
constexpr std::uint64_t kMostMemoryMib = 1'000'000'000;

Status read_nodes(Trace& trace, std::string_view csv, std::string_view about) {
  GPULET_TRY_ASSIGN(const Table table, Table::read(csv, about, {"cpu_milli", "memory_mib", "gpu", "model"}));
  for (const CsvRow& row : table.rows()) {
    NodeState node;
    GPULET_TRY_ASSIGN(node.cpu_milli, table.number(row, "cpu_milli", kMostCpuMilli));
    GPULET_TRY_ASSIGN(node.memory_mib, table.number(row, "memory_mib", kMostMemoryMib));
    GPULET_TRY_ASSIGN(const std::int64_t gpus, table.number(row, "gpu", kMaxGpus));
    node.gpus = static_cast<std::uint8_t>(gpus);
    std::fill_n(node.free.begin(), node.gpus, static_cast<std::uint16_t>(kWhole));
    const auto model = trace.models.id(table.text(row, "model"));
    if (!model) return fail(table.wrong(row, "model", model.error().message()));
    node.model = *model;
    trace.nodes.push_back(std::move(node));
  }
  return {};
}

Status read_tasks(Trace& trace, std::string_view csv, std::string_view about) {
  GPULET_TRY_ASSIGN(const Table table,
                    Table::read(csv, about, {"cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}));
  for (const CsvRow& row : table.rows()) {
    Task task;
    GPULET_TRY_ASSIGN(task.cpu_milli, table.number(row, "cpu_milli", kMostCpuMilli));
    GPULET_TRY_ASSIGN(task.memory_mib, table.number(row, "memory_mib", kMostMemoryMib));
    GPULET_TRY_ASSIGN(const std::int64_t gpus, table.number(row, "num_gpu", kMaxGpus));
    GPULET_TRY_ASSIGN(const std::int64_t milli, table.number(row, "gpu_milli", kWhole));
    if (gpus > 0 && milli == 0) {
      return fail(table.wrong(
          row, "gpu_milli",
          "found '0' for a task with " + std::to_string(gpus) + " GPUs, want 1 to 1000 thousandths of each"));
    }
    task.gpus = static_cast<std::uint16_t>(gpus);
    task.gpu_milli = static_cast<std::uint16_t>(gpus == 0 ? 0 : milli);
    const auto models = trace.models.set(table.text(row, "gpu_spec"));
    if (!models) return fail(table.wrong(row, "gpu_spec", models.error().message()));
    task.models = *models;
    trace.tasks.push_back(task);
  }
  return {};
}

}  // namespace

std::int64_t Trace::gpu_milli() const {
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
    if (quoted) return fail(Code::kInvalidArgument, "a double quote without its end", place(about, number));
    rows.push_back(std::move(row));
  }
  return rows;
}

Result<Trace> read_trace(std::string_view nodes_csv, std::string_view about_nodes, std::string_view pods_csv,
                         std::string_view about_pods) {
  Trace trace;
  GPULET_TRY(read_nodes(trace, nodes_csv, about_nodes));
  GPULET_TRY(read_tasks(trace, pods_csv, about_pods));
  if (trace.gpu_milli() == 0) {
    return fail(Code::kInvalidArgument, "no node has a GPU", std::string(about_nodes));
  }
  return trace;
}

}  // namespace gpulet::scheduler
