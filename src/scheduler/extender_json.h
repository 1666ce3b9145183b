// What kube-scheduler asks of an extender and what it is answered, as JSON. Pure.
// Source: k8s.io/kube-scheduler/extender/v1, ExtenderArgs, ExtenderFilterResult, HostPriorityList; Go's JSON,
// which takes a field's name in any case.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "scheduler/request.h"

namespace gpulet::scheduler {

inline constexpr std::size_t kMaxAskedNodes = 100'000;

// One question. The names are views into what it holds.
class ExtenderArgs {
 public:
  // Takes the body. With nodeCacheCapable there are names alone, else whole Nodes, which are handed back as
  // they came. Cost: 5,000 names in about 1 ms. Errors: kInvalidArgument for what is no such question.
  static Result<ExtenderArgs> parse(std::string body);
  ExtenderArgs(ExtenderArgs&&) noexcept;
  ExtenderArgs& operator=(ExtenderArgs&&) noexcept;
  ~ExtenderArgs();

  const PodRequest& pod() const { return pod_; }
  std::span<const std::string_view> nodes() const { return nodes_; }
  bool whole_nodes() const { return whole_; }

  // ExtenderFilterResult: the nodes at these places of nodes() pass, the others failed. `resolvable` of a
  // failed one: other Pods leaving could change it.
  struct Failed {
    std::size_t node = 0;
    bool resolvable = true;
    std::string reason;
  };
  std::string filter_result(std::span<const std::size_t> passed, std::span<const Failed> failed) const;
  // HostPriorityList: a score for each of nodes().
  std::string priorities(std::span<const int> scores) const;

 private:
  struct Parsed;
  ExtenderArgs();
  std::unique_ptr<Parsed> parsed_;
  PodRequest pod_;
  std::vector<std::string_view> nodes_;
  bool whole_ = false;
};

}  // namespace gpulet::scheduler
