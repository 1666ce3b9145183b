#include "placement/chooser.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <unordered_map>

#include "placement/bounded_solver.h"
#include "placement/exact_solver.h"
#include "placement/shared_solver.h"

namespace gpulet::placement {

namespace {

// Limit of tables built during a request, from the available devices only, so that it takes at most 1 ms.
constexpr Budget kRequestBudget{std::size_t{1} << 13, std::size_t{1} << 20, 160e3};

class TopologyChooser final : public Chooser {
 public:
  TopologyChooser(const topology::Topology& topology, std::vector<Device> devices, Rules rules)
      : topology_(topology), devices_(std::move(devices)), rules_(rules) {
    std::vector<std::size_t> of_gpu;
    for (std::size_t position = 0; position < devices_.size(); ++position) {
      position_.emplace(devices_[position].id.str(), static_cast<Position>(position));
      of_gpu.push_back(devices_[position].gpu);
    }
    // Two devices on one GPU share it, whatever their names.
    std::sort(of_gpu.begin(), of_gpu.end());
    std::set<std::size_t> doubled;
    for (std::size_t i = 1; i < of_gpu.size(); ++i) {
      if (of_gpu[i] == of_gpu[i - 1]) doubled.insert(of_gpu[i]);
    }
    std::vector<Device> whole;
    for (std::size_t position = 0; position < devices_.size(); ++position) {
      const Device& device = devices_[position];
      const bool shared = device.shared || doubled.contains(device.gpu);
      whole_at_.push_back(shared ? kShared : static_cast<Position>(whole.size()));
      if (shared) continue;
      whole.push_back(device);
      position_of_whole_.push_back(static_cast<Position>(position));
    }
    if (whole.size() < devices_.size()) shared_.emplace(topology_, devices_);
    problem_ = make_problem(topology_, whole);
    tables_ = ExactSolver::build_tables(problem_, Budget{});
  }

  Result<Choice> choose_devices(std::span<const DeviceId> available, std::span<const DeviceId> required,
                                std::size_t size, std::span<const GpuLoad> loads,
                                std::optional<SharesOn> shares_on) const override {
    GPULET_TRY_ASSIGN(Request ask, check_request(available, required, size));
    if (rules_.load != LoadPolicy::kIgnore) ask.loads = loads;
    const bool any_shared = std::any_of(ask.available.begin(), ask.available.end(),
                                        [&](Position position) { return whole_at_[position] == kShared; });
    return any_shared ? choose_shared(ask, shares_on.value_or(rules_.shares_on)) : choose_whole(ask);
  }

 private:
  static constexpr Position kShared = static_cast<Position>(-1);

  Result<std::vector<Position>> positions(std::span<const DeviceId> ids, std::string_view list) const {
    std::vector<Position> found;
    found.reserve(ids.size());
    for (const DeviceId& id : ids) {
      const auto at = position_.find(id.str());
      if (at == position_.end()) return fail(Code::kInvalidArgument, "unknown device: " + id.str());
      found.push_back(at->second);
    }
    if (!std::is_sorted(found.begin(), found.end())) std::sort(found.begin(), found.end());
    if (const auto twice = std::adjacent_find(found.begin(), found.end()); twice != found.end()) {
      return fail(Code::kInvalidArgument,
                  "device named twice as " + std::string(list) + ": " + devices_[*twice].id.str());
    }
    return found;
  }

  Result<Request> check_request(std::span<const DeviceId> available, std::span<const DeviceId> required,
                                std::size_t size) const {
    Request ask;
    ask.size = size;
    ask.policy = rules_.policy;
    if (size == 0) return fail(Code::kInvalidArgument, "0 devices requested; request at least 1");
    GPULET_TRY_ASSIGN(ask.available, positions(available, "available"));
    GPULET_TRY_ASSIGN(ask.required, positions(required, "required"));
    for (const Position position : ask.required) {
      if (!std::binary_search(ask.available.begin(), ask.available.end(), position)) {
        return fail(Code::kInvalidArgument,
                    "required device is not available: " + devices_[position].id.str());
      }
    }
    if (size > ask.available.size()) {
      return fail(Code::kInvalidArgument, std::to_string(size) + " devices requested, " +
                                              std::to_string(ask.available.size()) + " available");
    }
    if (ask.required.size() > size) {
      return fail(Code::kInvalidArgument, std::to_string(ask.required.size()) + " devices required, only " +
                                              std::to_string(size) + " requested");
    }
    return ask;
  }

  Choice choose_shared(const Request& ask, SharesOn where) const {
    const Solution answer = shared_->choose_shares(ask, rules_.shared, where);
    Choice choice;
    choice.devices.reserve(answer.chosen.size());
    for (const Position position : answer.chosen) choice.devices.push_back(devices_[position].id);
    choice.score = answer.score;
    choice.method = Method::kShared;
    choice.reason = explain_shared(shared_->uses(ask, answer.chosen), rules_.shared);
    return choice;
  }

  bool is_held_outside_pods(const Request& ask, Position position) const {
    const std::size_t gpu = devices_[position].gpu;
    return gpu < ask.loads.size() && ask.loads[gpu].held_outside_pods;
  }

  // Leaves GPUs whose memory a process of no Pod holds out of the request where enough others are available,
  // and requires the others where they are too few. Returns how many of them the answer must have, beside
  // required ones.
  std::size_t avoid_held_gpus(Request& ask) const {
    std::vector<Position> others;
    for (const Position position : ask.available) {
      if (!is_held_outside_pods(ask, position) ||
          std::binary_search(ask.required.begin(), ask.required.end(), position))
        others.push_back(position);
    }
    if (others.size() == ask.available.size()) return 0;
    if (others.size() >= ask.size) {
      ask.available = std::move(others);
      return 0;
    }
    ask.required = std::move(others);
    return ask.size - ask.required.size();
  }

  Choice choose_whole(Request ask) const {
    const std::size_t all = ask.available.size();
    const std::size_t held = avoid_held_gpus(ask);
    const std::size_t avoided = all - ask.available.size();
    for (Position& position : ask.available) position = whole_at_[position];
    for (Position& position : ask.required) position = whole_at_[position];
    Choice choice;
    const Solution answer = solve(ask, choice.method);
    std::vector<std::size_t> gpus;
    for (const Position whole : answer.chosen) {
      const Device& device = devices_[position_of_whole_[whole]];
      choice.devices.push_back(device.id);
      gpus.push_back(device.gpu);
    }
    choice.score = answer.score;
    choice.partition_score = answer.partition_score;
    choice.reason = explain_choice(topology_, gpus, ask, answer, choice.method);
    if (avoided > 0)
      choice.reason += "; not among " + std::to_string(avoided) + " whose memory a process of no Pod holds";
    if (held > 0)
      choice.reason += "; the memory of " + std::to_string(held) + " is held by a process of no Pod";
    return choice;
  }

  Solution solve(const Request& ask, Method& method) const {
    const auto exact = [](const ExactSolver& tables) {
      return tables.has_twins() ? Method::kExactByClasses : Method::kExact;
    };
    if (tables_) {
      method = exact(*tables_);
      return tables_->best_set(ask);
    }
    // The available devices alone may be few or similar enough for their own tables.
    if (const auto tables =
            ExactSolver::build_tables(restrict_to(problem_, ask.available), kRequestBudget, ask.size)) {
      method = exact(*tables);
      Solution answer = tables->best_set(renumbered(ask));
      for (Position& position : answer.chosen) position = ask.available[position];
      return answer;
    }
    method = Method::kBounded;
    return solve_bounded(problem_, ask);
  }

  // The same request with positions counted among the available ones.
  static Request renumbered(const Request& ask) {
    Request within = ask;
    for (Position& position : within.required) {
      const auto at = std::lower_bound(ask.available.begin(), ask.available.end(), position);
      position = static_cast<Position>(at - ask.available.begin());
    }
    for (std::size_t i = 0; i < within.available.size(); ++i) within.available[i] = static_cast<Position>(i);
    return within;
  }

  topology::Topology topology_;
  std::vector<Device> devices_;
  Rules rules_;
  std::unordered_map<std::string_view, Position> position_;  // into devices_' own strings
  std::vector<Position> whole_at_;                           // by position: among the whole GPUs, or kShared
  std::vector<Position> position_of_whole_;
  Problem problem_;  // of the whole GPUs
  std::optional<ExactSolver> tables_;
  std::optional<SharedSolver> shared_;  // of all devices, when any is shared
};

}  // namespace

GpuLoad make_gpu_load(double busy_percent, double memory_percent, bool held_outside_pods) {
  constexpr double kBusyStep = 10;
  constexpr double kMemoryStep = 5;
  const auto percent = [](double value) { return value > 0 ? std::min(value, 100.0) : 0.0; };  // NaN: 0
  return {
      .busy_percent = static_cast<std::uint8_t>(std::round(percent(busy_percent) / kBusyStep) * kBusyStep),
      .memory_percent =
          static_cast<std::uint8_t>(std::floor(percent(memory_percent) / kMemoryStep) * kMemoryStep),
      .held_outside_pods = held_outside_pods};
}

std::optional<SharesOn> parse_shares_on(std::string_view text) {
  const auto* const found = std::ranges::find(kSharesOnNames, text);
  if (text.empty() || found == kSharesOnNames.end()) return std::nullopt;
  return static_cast<SharesOn>(found - kSharesOnNames.begin());
}

bool are_shares_placed(SharesOn where, std::span<const std::size_t> gpus) {
  const std::set<std::size_t> distinct(gpus.begin(), gpus.end());
  if (where == SharesOn::kOneGpu) return distinct.size() <= 1;
  return where == SharesOn::kAnyGpu || distinct.size() == gpus.size();
}

std::string_view method_name(Method method) {
  switch (method) {
    case Method::kExact:
      return "exact";
    case Method::kExactByClasses:
      return "exact by classes";
    case Method::kBounded:
      return "bounded";
    case Method::kShared:
      return "shared";
  }
  return "unknown";
}

std::shared_ptr<const Chooser> Chooser::build_chooser(const topology::Topology& topology,
                                                      std::vector<Device> devices, Rules rules) {
  return std::make_shared<const TopologyChooser>(topology, std::move(devices), rules);
}

}  // namespace gpulet::placement
