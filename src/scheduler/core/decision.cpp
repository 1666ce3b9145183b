#include "scheduler/core/decision.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/cuda_version.h"
#include "base/text.h"
#include "scheduler/model/limit_demand.h"

namespace gpulet::scheduler {
namespace {

using Kind = ContainerRequest::Kind;

// "XID 79" from "XID 79: GPU has fallen off the bus".
std::string short_reason(const std::string& reason) { return reason.substr(0, reason.find(':')); }

unsigned total_shares(const Shares& shares) { return std::accumulate(shares.begin(), shares.end(), 0U); }

}  // namespace

// As kube-scheduler counts: an init container needs its devices in addition to the sidecars before it.
Filter::Filter(const PodRequest& request)
    : request_(request),
      has_constraints_(request.constraints.has_any() || !request.greatest_memory().is_zero()) {
  std::map<ResourceName, std::pair<unsigned, unsigned>> counts;  // of containers that keep running; the
                                                                 // maximum at once
  for (const auto& container : request.containers) {
    for (const auto& device : container.devices) {
      auto& [staying, most] = counts[device.resource];
      if (container.kind != Kind::kInit) staying += device.count;
      most = std::max(most, container.kind == Kind::kInit ? staying + device.count : staying);
    }
  }
  for (const auto& [resource, count] : counts) needs_.push_back({resource, count.second});
}

bool Filter::is_published(const ClusterNode& node) const {
  return std::ranges::any_of(needs_,
                             [&](const auto& need) { return node.find_resource(need.resource).has_value(); });
}

std::optional<std::string> Filter::check_versions(const GpuNode& node) const {
  const Constraints& constraints = request_.constraints;
  if (!constraints.driver.empty() && compare_versions(node.driver, constraints.driver) < 0)
    return "driver " + node.driver + ", " + constraints.driver + " required";
  if (constraints.cuda.empty()) return std::nullopt;
  const auto cuda = cuda_version_text(node.cuda_version);
  if (compare_versions(cuda, constraints.cuda) >= 0) return std::nullopt;
  return "the driver's CUDA " + cuda + ", " + constraints.cuda + " required";
}

std::optional<Filter::Rejection> Filter::check_devices(const ClusterNode& node) const {
  for (const auto& need : needs_) {
    const auto resource = node.find_resource(need.resource);
    if (resource && node.free_total[*resource] < need.count)
      return Rejection{RejectReason::kTooFew, " of " + std::to_string(need.count) + " requested", *resource};
  }
  if (is_choice_checked(node)) {
    if (auto failed = try_allocate(node, node.free, true)) return failed;
  }
  return node.nominated.empty() ? std::nullopt : check_nominated(node);
}

FilterResult Filter::check_request() const {
  if (request_.request_error.empty()) return {};
  return {RejectReason::kRequest, false, request_.request_error};
}

FilterResult Filter::check_unpublished() const {
  if (auto invalid = check_request(); !invalid.fits()) return invalid;
  const auto least = request_.limit_demand.least;
  if (least == fraction::LimitGrade::kNone || !requests_devices()) return {};
  return {RejectReason::kLimitGrade, false,
          "publishes no grade of its GPU memory limits; the Pod demands " +
              std::string(fraction::limit_grade_name(least))};
}

bool Filter::accepts(const ClusterNode& node) const {
  if (!is_published(node)) return check_unpublished().fits();
  if (!request_.request_error.empty()) return false;
  return !check_versions(node.node) && !find_unmet_demand(request_, node.node) && !check_devices(node);
}

FilterResult Filter::check_node(const ClusterNode& node) const {
  if (auto invalid = check_request(); !invalid.fits()) return invalid;
  if (!is_published(node)) return check_unpublished();
  if (auto unmet = find_unmet_demand(request_, node.node))
    return {RejectReason::kLimitGrade, false, std::move(*unmet)};
  if (auto version = check_versions(node.node)) return {RejectReason::kDriver, false, std::move(*version)};
  auto failed = check_devices(node);
  if (!failed) return {};
  // Checked again without other Pods: what still fails cannot be resolved by preemption.
  auto alone = try_allocate(node, offered_shares(node.node), false);
  if (alone) failed = std::move(alone);
  return {failed->reason, !alone, describe_counts(node, failed->resource) + failed->detail};
}

// With the devices that this Pod would get gone, each nominated Pod must still get what it waits for, out of
// what is free and what is held by Pods that are being deleted.
std::optional<Filter::Rejection> Filter::check_nominated(const ClusterNode& node) const {
  ClusterNode later = node;
  count_without_leaving(later);
  std::vector<Shares>& room = later.free;
  std::vector<Shares> free = node.free;
  const auto given = allocate_devices(node, request_, free);
  if (!given) return std::nullopt;
  std::vector<Shares> left = room;
  for (std::size_t resource = 0; resource < room.size(); ++resource) {
    for (std::size_t unit = 0; unit < room[resource].size(); ++unit) {
      const auto taken = node.free[resource][unit] - free[resource][unit];
      left[resource][unit] = static_cast<std::uint16_t>(std::max(0, left[resource][unit] - taken));
    }
  }
  for (const auto& other : node.nominated) {
    if (other.priority < request_.priority || other.pod_key() == request_.pod_key()) continue;
    const Filter filter(other);
    if (filter.try_allocate(later, room, true)) continue;  // it does not fit anyway
    if (filter.try_allocate(later, left, true)) {
      return Rejection{RejectReason::kNominated, ", kept for the nominated Pod " + other.pod_key(),
                       given->front().empty() ? 0 : given->front().front().first};
    }
    static_cast<void>(allocate_devices(node, other, room));
    static_cast<void>(allocate_devices(node, other, left));
  }
  return std::nullopt;
}

std::optional<Filter::Rejection> Filter::try_allocate(const ClusterNode& node, std::vector<Shares> free,
                                                      bool occupied) const {
  for (const auto& need : needs_) {
    const auto resource = node.find_resource(need.resource);
    if (resource && total_shares(free[*resource]) < need.count) {
      return Rejection{RejectReason::kTooFew, " of " + std::to_string(need.count) + " requested", *resource};
    }
  }
  if (!is_choice_checked(node)) return std::nullopt;
  const auto given = allocate_devices(node, request_, free);
  if (!given) return Rejection{RejectReason::kTooFew, ", too few for all containers", 0};
  for (std::size_t i = 0; i < given->size(); ++i) {
    if (auto failed = check_container(node, request_.containers[i], (*given)[i], occupied)) return failed;
  }
  return std::nullopt;
}

std::optional<Filter::Rejection> Filter::check_container(const ClusterNode& node,
                                                         const ContainerRequest& container,
                                                         const ContainerAllocation& given,
                                                         bool occupied) const {
  const auto memory = request_.memory_of(container);
  for (const auto& [index, shares] : given) {
    const auto& resource = node.node.resources[index];
    for (std::size_t unit = 0; unit < shares.size(); ++unit) {
      if (shares[unit] == 0) continue;
      const auto& one = resource.units[unit];
      const auto share_mib = memory.mib_of(node.node.unit_memory_mib(one));
      if (const auto reject_reason = check_unit(request_, node.node, resource, one, memory);
          reject_reason != RejectReason::kNone) {
        return Rejection{reject_reason,
                         " but GPU " + std::to_string(one.gpu) + " (" + node.node.unit_model(one).name +
                             ") would be allocated, " +
                             describe_constraint(reject_reason, request_, node.node, one, memory) +
                             " required",
                         index};
      }
      if (!occupied) continue;
      if (auto failed = check_load(node, index, unit, shares[unit], share_mib * shares[unit])) return failed;
      if (auto failed = check_unreserved(node, index, unit, share_mib * shares[unit])) return failed;
    }
    if (auto failed = check_shares_on(node, index, shares)) return failed;
  }
  if (request_.constraints.choice.one_numa_node) {
    if (auto failed = check_numa(node, given)) return failed;
  }
  if (!request_.constraints.links) return std::nullopt;
  auto failed = check_links(node, given);
  if (failed && request_.containers.size() > 1) failed->detail += " for container " + container.name;
  return failed;
}

// Whether the shares of a container are on one GPU, or on different ones, as the node and the Pod say.
std::optional<Filter::Rejection> Filter::check_shares_on(const ClusterNode& node, std::size_t index,
                                                         const Shares& shares) const {
  const auto& resource = node.node.resources[index];
  if (resource.sharing == Sharing::kNone) return std::nullopt;
  std::vector<std::size_t> gpus;
  for (std::size_t unit = 0; unit < shares.size(); ++unit)
    gpus.insert(gpus.end(), shares[unit], resource.units[unit].gpu);
  const auto& choice = request_.constraints.choice;
  for (const auto where : {resource.shares_on, choice.shares_on}) {
    if (placement::are_shares_placed(where, gpus)) continue;
    const bool is_of_node = where == resource.shares_on;
    const std::string counted = std::to_string(gpus.size()) + " shares " +
                                (where == placement::SharesOn::kOneGpu ? "on one GPU" : "on different GPUs");
    return Rejection{
        is_of_node ? RejectReason::kTooFew : RejectReason::kChoice,
        " but " + (is_of_node ? "no " + counted : counted + " required, others would be allocated"), index};
  }
  return std::nullopt;
}

// Whether what other Pods requested of a shared device leaves this Pod's memory.
std::optional<Filter::Rejection> Filter::check_unreserved(const ClusterNode& node, std::size_t index,
                                                          std::size_t unit, std::uint64_t memory_mib) const {
  const auto& one = node.node.resources[index].units[unit];
  const auto whole = node.node.unit_memory_mib(one), reserved = node.requested_mib[index][unit];
  if (memory_mib == 0 || one.shares == 1 || reserved + memory_mib <= whole) return std::nullopt;
  return Rejection{RejectReason::kMemory,
                   " but GPU " + std::to_string(one.gpu) + " would be allocated, with " +
                       format_mib(whole - std::min(reserved, whole)) + " unreserved, " +
                       format_mib(memory_mib) + " required",
                   index};
}

// Whether a node's own rule forbids the devices that it would allocate now.
std::optional<Filter::Rejection> Filter::check_load(const ClusterNode& node, std::size_t index,
                                                    std::size_t unit, unsigned shares,
                                                    std::uint64_t memory_mib) const {
  if (node.node.rules.load != placement::LoadPolicy::kStrict) return std::nullopt;
  const auto& resource = node.node.resources[index];
  const auto& one = resource.units[unit];
  const auto& load = node.loads[one.gpu];
  const std::string gpu = " but GPU " + std::to_string(one.gpu) + " would be allocated, ";
  if (resource.sharing == Sharing::kNone && one.profile.empty()) {
    if (!load.held_outside_pods) return std::nullopt;
    return Rejection{RejectReason::kMemory, gpu + "whose memory a process of no Pod holds", index};
  }
  const unsigned usual = unit_share_percent(node.node, resource, one);
  if (usual == 0) return std::nullopt;
  constexpr std::uint64_t kAll = 100;
  const auto whole = std::max<std::uint64_t>(node.node.unit_memory_mib(one), 1);
  const auto asked = memory_mib != 0 ? memory_mib * kAll / whole : std::uint64_t{usual} * shares;
  if (load.memory_percent + asked <= kAll) return std::nullopt;
  return Rejection{RejectReason::kMemory,
                   gpu + "with " + std::to_string(kAll - load.memory_percent) + " % of its memory free, " +
                       std::to_string(asked) + " % required",
                   index};
}

std::optional<Filter::Rejection> Filter::check_numa(const ClusterNode& node,
                                                    const ContainerAllocation& given) const {
  std::optional<int> numa;
  unsigned gpus = 0;
  bool is_one = true;
  for (const auto& [index, shares] : given) {
    for (std::size_t unit = 0; unit < shares.size(); ++unit) {
      if (shares[unit] == 0) continue;
      const auto& of_gpu = node.node.gpus[node.node.resources[index].units[unit].gpu].numa;
      is_one = is_one && of_gpu && (gpus == 0 || numa == of_gpu);
      numa = of_gpu;
      ++gpus;
    }
  }
  if (gpus < 2 || is_one) return std::nullopt;
  return Rejection{RejectReason::kChoice, " but no " + std::to_string(gpus) + " on one NUMA node",
                   given.front().first};
}

std::optional<Filter::Rejection> Filter::check_links(const ClusterNode& node,
                                                     const ContainerAllocation& given) const {
  std::uint64_t gpus = 0;  // one bit per GPU, kMaxNodeGpus of them
  for (const auto& [index, shares] : given) {
    for (std::size_t unit = 0; unit < shares.size(); ++unit) {
      if (shares[unit] != 0) gpus |= std::uint64_t{1} << node.node.resources[index].units[unit].gpu;
    }
  }
  const auto size = node.node.gpus.size();
  for (std::size_t a = 0; a < size; ++a) {
    if ((gpus >> a & 1) == 0) continue;
    for (std::size_t b = a + 1; b < size; ++b) {
      if ((gpus >> b & 1) == 0 || satisfies_links(node.node.pairs[a * size + b], *request_.constraints.links))
        continue;
      return Rejection{
          RejectReason::kLinks,
          " but no " + std::to_string(std::popcount(gpus)) + " linked by " + request_.constraints.links->text,
          given.front().first};
    }
  }
  return std::nullopt;
}

std::string Filter::describe_counts(const ClusterNode& node, std::size_t index) const {
  const auto& resource = node.node.resources[index];
  unsigned total = 0;
  std::map<std::string, unsigned> out;  // by reason
  for (const auto& unit : resource.units) {
    total += unit.shares;
    if (unit.unavailable == 0) continue;
    const auto& gpu = node.node.gpus[unit.gpu];
    const std::string why =
        short_reason(unit.unavailable_reason.empty() ? gpu.reason : unit.unavailable_reason);
    std::string words(health::is_allocatable(gpu.state) ? "unhealthy" : health::enum_name(gpu.state));
    if (!why.empty()) words += " (" + why + ")";
    out[words] += unit.unavailable;
  }
  std::string text = needs_.size() > 1 ? resource.name.str() + ": " : "";
  text += std::to_string(total_shares(node.held[index])) + "/" + std::to_string(total);
  text += resource.sharing == Sharing::kNone ? " held" : " shares held";
  for (const auto& [words, count] : out)
    text.append(", ").append(std::to_string(count)).append(" ").append(words);
  return text + ", " + std::to_string(node.free_total[index]) + " free";
}

namespace {

constexpr const char* kDefaultPolicy = "default";

}  // namespace

std::optional<Task> task_for_node(const ClusterNode& node, const PodRequest& request) {
  Task task;
  unsigned whole = 0, milli = 0;
  bool published = false;
  for (const auto& container : request.containers) {
    if (container.kind == ContainerRequest::Kind::kInit) continue;
    for (const auto& device : container.devices) {
      const auto resource = node.find_resource(device.resource);
      if (!resource || node.node.resources[*resource].units.empty()) continue;
      published = true;
      const auto& unit = node.node.resources[*resource].units.front();
      const unsigned one = unit_milli(node, *resource, 0) / unit.shares;
      if (one >= kWhole) {
        whole += device.count;
      } else {
        milli += one * device.count;
      }
    }
  }
  if (!published) return std::nullopt;
  task.gpus = static_cast<std::uint16_t>(whole != 0 ? std::min<unsigned>(whole, kMaxGpus) : 1);
  task.gpu_milli = static_cast<std::uint16_t>(whole != 0 ? kWhole : std::clamp(milli, 1U, kWhole));
  return task;
}

const std::shared_ptr<Policy>& Scorer::find_policy(std::string_view name) {
  const auto known = policies_.find(name);
  if (known != policies_.end()) return known->second;
  const auto names = policy_names();
  const std::string wanted(std::ranges::find(names, name) != names.end() ? name : kDefaultPolicy);
  auto& slot = policies_[wanted];
  if (!slot) {
    if (auto made = make_policy(wanted, context_)) slot = std::move(*made);
  }
  return slot;
}

std::vector<std::size_t> select_best(std::span<const int> scores, std::size_t most) {
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

std::optional<Choice> Scorer::choose_on_node(ClusterState& view, const PodRequest& request,
                                             std::string_view policy, const ClusterNode& node) {
  auto task = task_for_node(node, request);
  const auto& made = find_policy(policy);
  if (!task || !made) return std::nullopt;
  task->load = view.expected_load_of(request);
  auto& table = view.node_table();
  return table.choose_on_node(table.find_query(made, *task), node.table_node);
}

std::vector<int> Scorer::score_nodes(ClusterState& view, const PodRequest& request, std::string_view policy,
                                     std::span<const std::string_view> nodes) {
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  std::vector<int> scores(nodes.size(), 0);
  const auto& made = find_policy(policy);
  if (!made) return scores;
  auto& table = view.node_table();
  // Nodes with equally partitioned GPUs share one query.
  NodeTable::Query* question = nullptr;
  std::optional<Task> asked;
  std::vector<double> found(nodes.size(), kNothing);
  std::vector<char> published(nodes.size(), 0);
  double best = kNothing, worst = std::numeric_limits<double>::infinity();
  const auto load = view.expected_load_of(request);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto* const node = view.find_node(nodes[i]);
    auto task = node != nullptr ? task_for_node(*node, request) : std::nullopt;
    if (!task) continue;
    task->load = load;
    published[i] = 1;
    if (!asked || !asked->is_same_class(*task)) {
      question = &table.find_query(made, *task);
      asked = task;
    }
    const auto choice = table.choose_on_node(*question, node->table_node);
    if (!choice) continue;
    found[i] = choice->score;
    best = std::max(best, choice->score);
    worst = std::min(worst, choice->score);
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (published[i] == 0) continue;
    // A node that passed the filter but that the policy rejects scores lowest among known nodes.
    scores[i] = 1;
    if (found[i] == kNothing) continue;
    const double part = best > worst ? (found[i] - worst) / (best - worst) : 1;
    scores[i] = 1 + static_cast<int>(std::lround(part * (kMaxScore - 1)));
  }
  return scores;
}

}  // namespace gpulet::scheduler
