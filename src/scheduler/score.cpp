#include "scheduler/score.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace gpulet::scheduler {
namespace {

constexpr const char* kDefault = "default";

}  // namespace

std::optional<Task> task_on(const NodeView& node, const PodRequest& request) {
  Task task;
  unsigned whole = 0, milli = 0;
  bool published = false;
  for (const auto& container : request.containers) {
    if (container.kind == ContainerRequest::Kind::kInit) continue;
    for (const auto& demand : container.demands) {
      const auto resource = node.find(demand.resource);
      if (!resource || node.node.resources[*resource].units.empty()) continue;
      published = true;
      const auto& unit = node.node.resources[*resource].units.front();
      const unsigned one = milli_of(node, *resource, 0) / unit.shares;
      if (one >= kWhole) {
        whole += demand.count;
      } else {
        milli += one * demand.count;
      }
    }
  }
  if (!published) return std::nullopt;
  task.gpus = static_cast<std::uint16_t>(whole != 0 ? std::min<unsigned>(whole, kMaxGpus) : 1);
  task.gpu_milli = static_cast<std::uint16_t>(whole != 0 ? kWhole : std::clamp(milli, 1U, kWhole));
  return task;
}

const std::shared_ptr<Policy>& Scorer::policy_of(std::string_view name) {
  const auto known = policies_.find(name);
  if (known != policies_.end()) return known->second;
  const auto names = policy_names();
  const std::string wanted(std::ranges::find(names, name) != names.end() ? name : kDefault);
  auto& slot = policies_[wanted];
  if (!slot) {
    if (auto made = policy_named(wanted, context_)) slot = std::move(*made);
  }
  return slot;
}

std::vector<std::size_t> best_of(std::span<const int> scores, std::size_t most) {
  std::vector<std::size_t> places(scores.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  if (places.size() <= most) return places;
  std::ranges::nth_element(
      places, places.begin() + static_cast<std::ptrdiff_t>(most),
      [&](std::size_t a, std::size_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
  places.resize(most);
  std::ranges::sort(places);
  return places;
}

std::optional<Choice> Scorer::judge(ClusterView& view, const PodRequest& request, std::string_view policy,
                                    const NodeView& node) {
  const auto task = task_on(node, request);
  const auto& made = policy_of(policy);
  if (!task || !made) return std::nullopt;
  auto& table = view.table();
  return table.choose(table.ask(made, *task), node.place);
}

std::vector<int> Scorer::score(ClusterView& view, const PodRequest& request, std::string_view policy,
                               std::span<const std::string_view> nodes) {
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  std::vector<int> scores(nodes.size(), 0);
  const auto& made = policy_of(policy);
  if (!made) return scores;
  auto& table = view.table();
  // Nodes that cut their GPUs alike ask the same question.
  NodeTable::Question* question = nullptr;
  std::optional<Task> asked;
  std::vector<double> found(nodes.size(), kNothing);
  std::vector<char> published(nodes.size(), 0);
  double best = kNothing, worst = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto* const node = view.find(nodes[i]);
    const auto task = node != nullptr ? task_on(*node, request) : std::nullopt;
    if (!task) continue;
    published[i] = 1;
    if (!asked || !asked->same_class(*task)) {
      question = &table.ask(made, *task);
      asked = task;
    }
    const auto choice = table.choose(*question, node->place);
    if (!choice) continue;
    found[i] = choice->score;
    best = std::max(best, choice->score);
    worst = std::min(worst, choice->score);
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (published[i] == 0) continue;
    // What the policy would not place there, though the filter lets it pass, is the worst of what is known.
    scores[i] = 1;
    if (found[i] == kNothing) continue;
    const double part = best > worst ? (found[i] - worst) / (best - worst) : 1;
    scores[i] = 1 + static_cast<int>(std::lround(part * (kMaxScore - 1)));
  }
  return scores;
}

}  // namespace gpulet::scheduler
