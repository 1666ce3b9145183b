#include "tests/storm/storm.h"

#include <algorithm>
#include <numeric>

namespace gpulet::storm {
namespace {

// Time for a step and for the recovery. Retries of the agent back off to ten seconds, those of the MIG
// manager to a minute.
constexpr milliseconds kStepLimit{90'000};
constexpr unsigned kSecondFaultOdds = 3;  // one operation in so many has a second fault

class Storm {
 public:
  Storm(StormNode& node, std::uint64_t seed, StormResult& result)
      : node_(node), random_(seed), faults_(node), result_(result) {}

  // Returns false when the node has not recovered: the rest would only repeat that.
  bool run_operation(const Pair& pair) {
    const auto& kind = operation_kinds()[pair.operation];
    auto operation = kind.make(node_, ++operations_);
    subject_ = std::string(kind.name);
    std::vector<FaultPlan> plan = {plan_fault(static_cast<Fault>(pair.fault), pair.step, random_)};
    if (random_() % kSecondFaultOdds == 0) {
      const auto fault = static_cast<Fault>(random_() % kFaults);
      plan.push_back(plan_fault(fault, random_() % kind.steps.size(), random_));
    }
    faults_.set_plan(plan);
    const bool done =
        wait_until("prepare", [&] { return operation->prepare(); }) && run_steps(*operation, kind);
    for (const auto& one : faults_.injected())
      result_.injected.push_back({static_cast<std::size_t>(one.fault), pair.operation, one.step});
    faults_.remove_faults();
    operation->clean_up();
    return done && check_recovery();
  }

 private:
  bool run_steps(Operation& operation, const OperationKind& kind) {
    const auto steps = operation.steps();
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].name != kind.steps[i]) node_.add_violation("the steps of " + subject_ + " are misnamed");
      steps[i].begin();
      faults_.begin_step(i);
      if (!wait_until(steps[i].name, steps[i].is_done)) return false;
      faults_.finish_step();
    }
    return true;
  }

  bool wait_until(std::string_view what, const std::function<bool()>& condition) {
    if (node_.wait_until(condition, kStepLimit, [this] { faults_.update(); })) return true;
    node_.add_violation(subject_ + "/" + std::string(what) + " is not done after " +
                        std::to_string(kStepLimit.count() / 1000) + " s: " + node_.devices_text());
    return false;
  }

  // Without faults: every device is back, and can be allocated at once.
  bool check_recovery() {
    subject_ = "recovery";
    if (!wait_until("devices", [this] { return node_.is_settled(); })) return false;
    if (!wait_until("liveness", [this] { return node_.liveness().is_live(); })) return false;
    for (const auto& pod : node_.api().evicted_pods()) {
      if (!wait_until("event of " + pod, [&] { return !node_.api().event_reasons(pod).empty(); }))
        return false;
    }
    const std::string pod = "all-" + std::to_string(operations_);
    std::map<std::string, unsigned> everything;
    for (const auto& [resource, ids] : node_.expected_devices())
      everything[resource] = static_cast<unsigned>(ids.size());
    // A process that was killed a moment ago may still have counted as healthy.
    Admission admission(node_, pod, everything);
    const bool admitted = wait_until("admission", [&] { return admission.update(); });
    if (!admitted) {
      node_.add_violation("a Pod with all devices is refused after the recovery: " + admission.refusal());
      return false;
    }
    node_.supervise();  // checks the devices
    node_.remove_pod(pod);
    return true;
  }

  StormNode& node_;
  std::mt19937_64 random_;
  FaultInjector faults_;
  StormResult& result_;
  std::uint64_t operations_ = 0;
  std::string subject_;
};

}  // namespace

const std::vector<Pair>& all_pairs() {
  static const std::vector<Pair> pairs = [] {
    std::vector<Pair> all;
    for (std::size_t operation = 0; operation < operation_kinds().size(); ++operation) {
      for (std::size_t step = 0; step < operation_kinds()[operation].steps.size(); ++step) {
        for (std::size_t fault = 0; fault < kFaults; ++fault) all.push_back({fault, operation, step});
      }
    }
    return all;
  }();
  return pairs;
}

Pair first_pair(std::uint64_t seed) {
  const std::size_t count = all_pairs().size();
  std::size_t stride = count * 5 / 13;
  while (std::gcd(stride, count) != 1) ++stride;
  return all_pairs()[seed % count * stride % count];
}

std::string pair_text(const Pair& pair) {
  const auto& kind = operation_kinds()[pair.operation];
  return std::string(fault_name(static_cast<Fault>(pair.fault))) + " " + std::string(kind.name) + "/" +
         std::string(kind.steps[pair.step]);
}

StormResult run_storm(const StormOptions& options) {
  StormResult result;
  auto node = StormNode::start_node(options.programs, options.library);
  if (!node) {
    result.violations.push_back("cannot start the node: " + node.error().full_message());
    return result;
  }
  Storm storm(**node, options.seed, result);
  std::mt19937_64 random(~options.seed);
  bool recovered = (*node)->violations().empty() && storm.run_operation(first_pair(options.seed));
  for (unsigned i = 1; recovered && i < options.operations; ++i)
    recovered = storm.run_operation(all_pairs()[random() % all_pairs().size()]);
  (*node)->end_agent();
  result.violations = (*node)->violations();
  result.agent_log = (*node)->agent_log();
  return result;
}

}  // namespace gpulet::storm
