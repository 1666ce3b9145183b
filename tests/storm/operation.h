// What a storm disturbs: registration, allocation, a MIG change, an eviction, a release of the driver and a
// cordon, each as a list of steps.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/storm/storm_node.h"

namespace gpulet::storm {

struct Step {
  std::string_view name;
  std::function<void()> begin;
  std::function<bool()> is_done;  // polled; may act again on what a fault has undone
};

class Operation {
 public:
  virtual ~Operation() = default;
  // Before the first step, without faults; polled until true.
  virtual bool prepare() { return true; }
  virtual std::vector<Step> steps() = 0;
  // Ends what is left of it: Pods, labels, GPU faults.
  virtual void clean_up() {}
};

// The names of an operation's steps, for the plan and the coverage.
struct OperationKind {
  std::string_view name;
  std::vector<std::string_view> steps;
  std::unique_ptr<Operation> (*make)(StormNode& node, std::uint64_t number);  // `number`: unique in the storm
};
const std::vector<OperationKind>& operation_kinds();

// An admission that runs while faults are injected, again until it succeeds.
class Admission {
 public:
  Admission(StormNode& node, std::string pod, std::map<std::string, unsigned> resources);
  ~Admission();
  // Whether the Pod was admitted: it is then in StormNode::pods().
  bool update();
  // The last refusal.
  const std::string& refusal() const { return refusal_; }

 private:
  struct Attempt;
  void start_attempt();

  StormNode& node_;
  const std::string pod_;
  const std::map<std::string, unsigned> resources_;
  std::unique_ptr<Attempt> attempt_;
  std::string refusal_;
  bool admitted_ = false;
};

}  // namespace gpulet::storm
