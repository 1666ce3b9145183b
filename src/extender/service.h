// The extender as HTTP, for kube-scheduler and for people:
//
//   POST /filter, /prioritize   extender v1 (scheduler/extender_json.h)
//   GET  /explain?namespace=&pod=[&format=json]
//   GET  /metrics, /healthz, /readyz
//
// Every answer is made of the cache alone, at once; only /explain of a Pod that is not bound asks the API
// server for it.
#pragma once

#include <functional>
#include <string>

#include "base/loop.h"
#include "cluster/events.h"
#include "extender/feed.h"
#include "extender/numbers.h"
#include "extender/pod_events.h"
#include "scheduler/explain.h"
#include "scheduler/extender_json.h"
#include "scheduler/score.h"
#include "web/service.h"

namespace gpulet::extender {

// Whole Nodes of 5,000 nodes are some 100 MB, and nobody asks so who may ask by names; bodies of names are
// below 1 MiB.
inline constexpr std::size_t kMaxBodyBytes = 64u << 20;

struct ServicePorts {
  Loop& loop;
  scheduler::ClusterView& view;
  Feed& feed;
  std::function<void(cluster::Event)> event;  // about a Pod; may be empty
};

// Loop's thread only.
class ExtenderService final : public web::Service {
 public:
  // `policy`: of Pods that name none, nor their namespace. `nodes_to_score`: of more nodes that pass, so many
  // of the best pass, and kube-scheduler weighs those alone: most of what an extender costs is its reading
  // and writing of nodes' names. 0: all pass; so they do for a Pod that prefers nodes itself.
  ExtenderService(ServicePorts ports, std::string policy,
                  std::size_t nodes_to_score = scheduler::kNodesToScore);

  void serve(const web::Request& request, Time now, const web::Reply& reply) override;
  // From now on it says that it is not ready: told to end.
  void leave() { leaving_ = true; }

  const Numbers& numbers() const { return numbers_; }

 private:
  web::Answer filter(const web::Request& request);
  web::Answer prioritize(const web::Request& request);
  void explain(const web::Request& request, const web::Reply& reply);
  web::Answer explained(const scheduler::PodRequest& pod, bool json);
  web::Answer ready() const;
  web::Answer metrics();

  // Those of `passed` that kube-scheduler weighs.
  std::vector<std::size_t> worth_scoring(const scheduler::ExtenderArgs& args,
                                         const scheduler::PodRequest& pod, std::string_view policy,
                                         std::vector<std::size_t> passed);

  // The Pod's, its namespace's, or the default; one that is malformed is added to the Pod's.
  scheduler::ChosenPolicy policy_of(scheduler::PodRequest& pod) const;

  ServicePorts ports_;
  const std::string policy_;
  const std::size_t nodes_to_score_;
  scheduler::Scorer scorer_;
  PodEvents events_;
  Numbers numbers_;
  bool leaving_ = false;
};

}  // namespace gpulet::extender
