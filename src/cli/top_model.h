// What `gpulet top` shows, as values: the agent's documents in, rows out, sorted and filtered; and the lines
// of the last 15 minutes. Pure; one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/top_documents.h"

namespace gpulet::cli {

enum class TopTab { kGpus, kPods, kProcesses };
inline constexpr TopTab kTopTabs[] = {TopTab::kGpus, TopTab::kPods, TopTab::kProcesses};

// What rows can be sorted by. A row without the value comes last, however it is sorted.
enum class TopColumn {
  kGpu,  // the index; of Pods and processes that of their first device
  kName,
  kState,
  kUtil,
  kSm,
  kMemory,
  kTemperature,
  kPower,
  kClock,
  kPod,
  kContainer,
  kPid,
};
// Of a tab; the first is how it is sorted unless told.
const std::vector<TopColumn>& columns_of(TopTab tab);
const char* name_of(TopColumn column);  // "memory": for --sort
// nullopt when the tab has none of that name.
std::optional<TopColumn> column_of(TopTab tab, std::string_view name);
// Whether the largest comes first unless told: so of what is measured.
bool largest_first(TopColumn column);

struct TopPodRow {
  std::string pod, containers, devices;  // "namespace/pod", "main,side", "0,3:1"
  std::size_t shares = 0;                // that it holds of shared devices
  TopUsed used;                          // of all its devices: bytes, percent of one device
};
struct TopProcessRow {
  std::uint64_t pid = 0;
  std::string name, device, pod;  // the program, "3:1", "namespace/pod"; empty: not known
  TopUsed used;
};

// A GPU at a time; `at` in milliseconds since 1970, both percent.
struct TopPoint {
  std::int64_t at = 0;
  std::optional<double> util, memory;
};
inline constexpr std::int64_t kTopHistoryMs = 15 * 60 * 1000;

struct TopQuery {
  TopColumn sort = TopColumn::kGpu;
  bool descending = false;
  std::string filter;  // rows with this in one of their texts, in whatever case; empty: all
};
// A tab's unless told.
TopQuery default_query(TopTab tab);

class TopModel {
 public:
  // Errors: of the parsers; what was known before stays.
  Status take_node(std::string_view document);
  Status take_now(std::string_view document);
  Status take_use(std::string_view document);
  // Of the time before; what is known already stays.
  Status take_history(std::string_view document);

  // nullptr before the first.
  const TopNode* node() const { return node_ ? &*node_ : nullptr; }
  // When the last sample was taken, in milliseconds since 1970.
  std::optional<std::int64_t> at() const { return now_ ? std::optional(now_->at) : std::nullopt; }

  // MIG devices stay below their GPU, in order. A filter that takes a GPU takes its MIG devices, one that
  // takes some of them shows the GPU with those.
  std::vector<TopGpu> gpus(const TopQuery& query) const;
  std::vector<TopPodRow> pods(const TopQuery& query) const;
  std::vector<TopProcessRow> processes(const TopQuery& query) const;
  // Oldest first, of the 15 minutes before the newest; empty for a GPU that is not known.
  const std::deque<TopPoint>& history(const std::string& uuid) const;

 private:
  std::string index_of(const std::string& uuid) const;
  void remember(const TopNow& now);

  std::optional<TopNode> node_;
  std::optional<TopNow> now_;
  TopUse use_;
  std::map<std::string, std::string> indices_;  // by UUID
  std::map<std::string, std::deque<TopPoint>> history_;
};

}  // namespace gpulet::cli
