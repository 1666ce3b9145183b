// The document of the cluster page: every node and GPU, the Pods that hold devices, and the Pods that wait
// with the reasons why, as one JSON text that is made piece by piece.
//
//   nodes      {name, agent, cordoned, page, driver, free, fragmented, gpus, faults}
//     agent    "ready", "silent" (no Pod of an agent is ready there) or "unknown" (no agent is a Pod)
//     page     the node page's address
//     free, fragmented   thousandths of a GPU; fragmented is what typical tasks cannot use of `free`
//              (scheduler/core/fragmentation.h)
//     gpus     [model, state, busy %, memory %, held thousandths, shares held, shares, shares not offered],
//              then, with MIG, [[profile, held, shares, not offered], …]; model and state: indices in the
//              lists
//     faults   [[GPU, reason], …]
//   pods       [namespace, name, node, flags, [[resource, devices], …], [GPU, …]]: indices in the lists
//     flags    1 assumed (the kubelet has not reported it yet), 2 being deleted
//   pending    {namespace, name, asks, nominated, fits, rejected, reasons}
//     fits     nodes that it fits on; null where too many different requests wait
//     rejected nodes that it does not fit on
//     reasons  [[reason, nodes, first node], …] of `gpulet explain`, most frequent first
//   states, models [[name, MiB], …], namespaces, resources    the lists
//   leftOut    {nodes, pods, pending}: beyond the limits
//
// Times come with the response, so that an unchanged cluster has an unchanged document. Pure but for the
// caches of the cluster state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "extender/page_watcher.h"
#include "scheduler/core/cluster_state.h"
#include "scheduler/core/decision.h"
#include "scheduler/core/fragmentation.h"

namespace gpulet::extender {

// Limits of the document. 5,000 nodes of eight GPUs, each held by a Pod of its own, make some 4 MB.
inline constexpr std::size_t kMaxShownNodes = 10'000;
inline constexpr std::size_t kMaxShownPods = 60'000;
inline constexpr std::size_t kMaxShownPending = 1'000;
inline constexpr std::size_t kMaxShownModels = 128;  // further ones are "other models"
inline constexpr std::size_t kMaxNodesBytes = 8u << 20;
inline constexpr std::size_t kMaxPodsBytes = 8u << 20;
// Different requests of waiting Pods that are checked against the nodes.
inline constexpr std::size_t kMaxCheckedRequests = 64;
inline constexpr std::size_t kMaxShownReasons = 5;  // of one request
// What one piece costs: some 0.5 ms of nodes with their compression, or some 0.4 ms of checks.
inline constexpr std::size_t kNodesPerPiece = 32;
inline constexpr std::size_t kChecksPerPiece = 128;
inline constexpr std::size_t kPodsBytesPerPiece = 64u << 10;
inline constexpr std::size_t kPendingPerPiece = 64;

struct DocumentInputs {
  scheduler::ClusterState& cluster;
  const PageFacts& facts;
  // Of a node page, with {node}, {ip} and {port}: "http://{ip}:{port}/". Empty: no address.
  std::string node_page;
};

// "http://10.0.0.1:9400/" for a template; empty without an address where {ip} asks for one. An IPv6 address
// gets its brackets.
std::string node_page_address(const std::string& form, const std::string& node, const AgentPod* agent);

// Makes one document. Between two pieces the cluster may change: a node is shown as it is when its piece is
// made, with its Pods; one that has gone by then is left out. Cost in all: O(nodes × GPUs + Pods + nodes ×
// different waiting requests); for 5,000 nodes of eight held GPUs 0.13 s and 15 ms for each different
// request, in pieces of less than a millisecond. The constructor copies and sorts the nodes' names: 1.5 ms
// for 5,000. Loop thread only.
class ClusterDocument {
 public:
  explicit ClusterDocument(DocumentInputs inputs);

  // The next piece of the text, which may be empty; nullopt after the last.
  std::optional<std::string> next_piece();

 private:
  enum class Phase { kNodes, kPods, kRequests, kChecks, kPending, kEnd, kDone };

  // The waiting Pods with one request, and what the nodes said so far.
  struct Request {
    scheduler::PodRequest pod;
    std::size_t checked = 0, fits = 0, rejected = 0;
    std::map<std::string, std::pair<std::size_t, std::string>> reasons;  // number of nodes, and the first
    std::string answer;                                                  // as JSON, once all are checked
  };
  // Numbers texts in order of appearance.
  struct TextList {
    std::vector<std::string> texts;
    std::map<std::string, std::size_t, std::less<>> places;
    std::size_t index_of(const std::string& text);
  };

  std::string nodes_piece();
  std::string pods_piece();
  void collect_requests();
  void check_requests();
  std::string pending_piece();
  std::string end_piece();
  static std::string answer_json(const Request& request);
  void append_node(std::string& out, const scheduler::ClusterNode& node);
  void append_gpus(std::string& out, const scheduler::ClusterNode& node);
  void append_pods(const scheduler::ClusterNode& node, std::size_t place);

  DocumentInputs inputs_;
  scheduler::FragmentationEstimator fragmentation_;
  const std::vector<std::string> names_;  // of nodes, sorted
  Phase phase_ = Phase::kNodes;
  std::size_t next_node_ = 0, shown_nodes_ = 0, node_bytes_ = 0, left_out_nodes_ = 0;
  std::string pods_;
  std::size_t pods_sent_ = 0, shown_pods_ = 0, left_out_pods_ = 0;
  TextList namespaces_, resources_;
  std::vector<std::pair<std::string, std::uint64_t>> models_;
  std::set<std::string> published_;  // resources that a node offers
  std::vector<Request> requests_;
  // Waiting Pods that request GPUs, and the index of their request; none: too many requests.
  std::vector<std::pair<std::string, std::size_t>> waiting_;
  std::string collected_;  // key of the last Pod of them
  std::size_t left_out_pending_ = 0, next_request_ = 0, next_waiting_ = 0, shown_pending_ = 0;
};

}  // namespace gpulet::extender
