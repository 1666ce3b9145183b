// The data of `gpulet top`: the agent's documents in, sorted and filtered rows out, and the last 15 minutes
// of each GPU. Pure; one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/top/documents.h"

namespace gpulet::cli {

enum class TopTab { kGpus, kPods, kProcesses };
inline constexpr TopTab kTopTabs[] = {TopTab::kGpus, TopTab::kPods, TopTab::kProcesses};

// Sort keys. A row without the value comes last in either order.
enum class TopColumn {
  kGpu,  // the index; of a Pod or process that of its first device
  kName,
  kState,
  kUtil,
  kSm,
  kMemory,
  kTemperature,
  kPower,
  kClock,
  kPcie,    // both directions
  kNvLink,  // both directions
  kEcc,     // uncorrected errors, then corrected ones
  kPod,
  kContainer,
  kPid,
};
// Of a tab; the first is the default.
const std::vector<TopColumn>& sort_columns(TopTab tab);
const char* column_name(TopColumn column);  // "memory": for --sort
// nullopt if the tab has no such column.
std::optional<TopColumn> find_column(TopTab tab, std::string_view name);
// Whether the default order starts with the largest value, as for all measured values.
bool sorts_descending(TopColumn column);

struct TopPodRow {
  std::string pod, containers, devices;  // "namespace/pod", "main,side", "0,3:1"
  std::size_t shares = 0;                // of shared devices
  TopConsumption used;                   // of all its devices: bytes, percent of one device
};
struct TopProcessRow {
  std::uint64_t pid = 0;
  std::string name, device, pod;  // program, "3:1", "namespace/pod"; empty: unknown
  TopConsumption used;
};

// A GPU at one time; `at` in milliseconds since 1970, both percent.
struct TopPoint {
  std::int64_t at = 0;
  std::optional<double> util, memory;
};
inline constexpr std::int64_t kTopHistoryMs = 15 * 60 * 1000;

struct TopQuery {
  TopColumn sort = TopColumn::kGpu;
  bool descending = false;
  std::string filter;  // text that a row contains, ignoring case; empty: all rows
};
// The default of a tab.
TopQuery default_query(TopTab tab);

class TopModel {
 public:
  // Errors: those of the parsers, which change nothing.
  Status apply_node_document(std::string_view document);
  Status apply_sample_document(std::string_view document);
  Status apply_usage_document(std::string_view document);
  // Adds earlier points; known ones are kept.
  Status apply_history_document(std::string_view document);

  // nullptr before the first document.
  const TopNode* node_document() const { return node_ ? &*node_ : nullptr; }
  // Time of the last sample, in milliseconds since 1970.
  std::optional<std::int64_t> sampled_at() const {
    return sample_ ? std::optional(sample_->at) : std::nullopt;
  }

  // MIG devices follow their GPU, by index. A filter that matches a GPU keeps all its MIG devices; one that
  // matches some of them keeps the GPU with those.
  std::vector<TopGpu> gpu_rows(const TopQuery& query) const;
  std::vector<TopPodRow> pod_rows(const TopQuery& query) const;
  std::vector<TopProcessRow> process_rows(const TopQuery& query) const;
  // What the Pod "namespace/name" uses of one device.
  TopConsumption pod_consumption(const std::string& uuid, const std::string& pod) const;
  // Oldest first, 15 minutes up to the newest; empty for an unknown GPU.
  const std::deque<TopPoint>& gpu_history(const std::string& uuid) const;

 private:
  std::string device_index(const std::string& uuid) const;
  void record_history(const TopSample& sample);

  std::optional<TopNode> node_;
  std::optional<TopSample> sample_;
  TopUsage usage_;
  std::map<std::string, std::string> indices_;  // by UUID
  std::map<std::string, std::deque<TopPoint>> history_;
};

}  // namespace gpulet::cli
