#include "extender/cluster_document.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "base/json.h"
#include "extender/gpu_use.h"
#include "scheduler/core/explain.h"
#include "scheduler/model/node_state.h"

namespace gpulet::extender {
namespace {

using scheduler::ClusterNode;
using scheduler::PodRequest;

constexpr std::size_t kUnchecked = std::numeric_limits<std::size_t>::max();
// Reasons of one request that are counted apart.
constexpr std::size_t kMaxCountedReasons = 1'000;
constexpr std::string_view kVendor = "nvidia.com/";
constexpr std::size_t kCordonedState = std::size(health::kDeviceStates);

void append_number(std::string& out, std::uint64_t value) { out += std::to_string(value); }

void append_field(std::string& out, std::string_view name, std::uint64_t value) {
  out.append(",\"").append(name).append("\":").append(std::to_string(value));
}

void append_text_field(std::string& out, std::string_view name, std::string_view value) {
  out.append(",\"").append(name).append("\":");
  append_json_string(out, value);
}

std::size_t state_index(const scheduler::NodeGpu& gpu) {
  if (is_cordoned(gpu)) return kCordonedState;
  return static_cast<std::size_t>(std::ranges::find(health::kDeviceStates, gpu.state) -
                                  std::begin(health::kDeviceStates));
}

// Whether a node's answer to both is the same.
bool is_same_request(const PodRequest& a, const PodRequest& b) {
  return a.nominated_node.empty() && b.nominated_node.empty() && a.priority == b.priority &&
         a.constraints == b.constraints && a.request_error == b.request_error &&
         a.limit_demand == b.limit_demand &&
         std::ranges::equal(a.containers, b.containers, [](const auto& one, const auto& other) {
           return one.kind == other.kind && one.devices == other.devices && one.memory == other.memory;
         });
}

void append_mig_units(std::string& out, const ClusterNode& node, std::size_t gpu) {
  bool is_first = true;
  for (std::size_t resource = 0; resource < node.node.resources.size(); ++resource) {
    const auto& units = node.node.resources[resource].units;
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      if (units[unit].gpu != gpu || units[unit].profile.empty()) continue;
      out += is_first ? ",[[" : ",[";
      is_first = false;
      append_json_string(out, units[unit].profile);
      out += "," + std::to_string(node.held[resource][unit]) + "," + std::to_string(units[unit].shares) +
             "," + std::to_string(units[unit].unavailable) + "]";
    }
  }
  if (!is_first) out += "]";
}

// The reasons of GPUs and of MIG devices that are not offered though their GPU is.
void append_faults(std::string& out, const scheduler::GpuNode& node) {
  std::string faults;
  const auto add = [&](std::size_t gpu, const std::string& reason) {
    faults += faults.empty() ? "[" : ",[";
    append_number(faults, gpu);
    faults += ",";
    append_json_string(faults, reason);
    faults += "]";
  };
  for (const auto& [gpu, reason] : gpu_faults(node)) add(gpu, reason);
  if (!faults.empty()) out += ",\"faults\":[" + faults + "]";
}

void replace_field(std::string& text, std::string_view field, const std::string& value) {
  for (auto at = text.find(field); at != std::string::npos; at = text.find(field, at + value.size()))
    text.replace(at, field.size(), value);
}

}  // namespace

std::string node_page_address(const std::string& form, const std::string& node, const AgentPod* agent) {
  std::string address = form;
  if (form.find("{ip}") != std::string::npos) {
    if (agent == nullptr || agent->address.empty()) return {};
    const bool is_v6 = agent->address.find(':') != std::string::npos;
    replace_field(address, "{ip}", is_v6 ? "[" + agent->address + "]" : agent->address);
  }
  replace_field(address, "{port}", std::to_string(agent != nullptr ? agent->port : kAgentPort));
  replace_field(address, "{node}", node);
  return address;
}

std::size_t ClusterDocument::TextList::index_of(const std::string& text) {
  const auto [found, is_new] = places.try_emplace(text, texts.size());
  if (is_new) texts.push_back(text);
  return found->second;
}

ClusterDocument::ClusterDocument(DocumentInputs inputs)
    : inputs_(std::move(inputs)),
      fragmentation_(scheduler::Workload::typical()),
      names_(inputs_.cluster.node_names()) {}

std::optional<std::string> ClusterDocument::next_piece() {
  switch (phase_) {
    case Phase::kNodes:
      return nodes_piece();
    case Phase::kPods:
      return pods_piece();
    case Phase::kRequests:
      collect_requests();
      return "";
    case Phase::kChecks:
      check_requests();
      return "";
    case Phase::kPending:
      return pending_piece();
    case Phase::kEnd:
      return end_piece();
    case Phase::kDone:
      return std::nullopt;
  }
  return std::nullopt;
}

std::string ClusterDocument::nodes_piece() {
  std::string out = next_node_ == 0 ? "{\"nodes\":[" : "";
  for (std::size_t i = 0; i < kNodesPerPiece && next_node_ < names_.size(); ++i) {
    const auto* const node = inputs_.cluster.find_node(names_[next_node_++]);
    if (node == nullptr) continue;
    for (const auto& resource : node->node.resources) published_.insert(resource.name.str());
    if (shown_nodes_ >= kMaxShownNodes || node_bytes_ + out.size() > kMaxNodesBytes) {
      ++left_out_nodes_;
      left_out_pods_ += node->claims.size();
      continue;
    }
    if (shown_nodes_ != 0) out += ",";
    append_node(out, *node);
    append_pods(*node, shown_nodes_++);
  }
  node_bytes_ += out.size();
  if (next_node_ < names_.size()) return out;
  phase_ = Phase::kPods;
  return out + "],\"pods\":[";
}

void ClusterDocument::append_node(std::string& out, const ClusterNode& node) {
  const auto* const agent = inputs_.facts.find_agent(node.name);
  out += "{\"name\":";
  append_json_string(out, node.name);
  append_text_field(out, "agent",
                    !inputs_.facts.has_agents()        ? "unknown"
                    : agent != nullptr && agent->ready ? "ready"
                                                       : "silent");
  if (inputs_.facts.cordoned().contains(node.name)) out += ",\"cordoned\":true";
  const auto page = node_page_address(inputs_.node_page, node.name, agent);
  if (!page.empty()) append_text_field(out, "page", page);
  append_text_field(out, "driver", node.node.driver);
  const auto& state = inputs_.cluster.node_table().state_of(node.table_node);
  append_field(out, "free", state.free_milli());
  append_field(out, "fragmented",
               static_cast<std::uint64_t>(fragmentation_.estimate(state).fragmented + 0.5));
  append_gpus(out, node);
  append_faults(out, node.node);
  out += "}";
}

void ClusterDocument::append_gpus(std::string& out, const ClusterNode& node) {
  const auto uses = gpu_uses(node);
  out += ",\"gpus\":[";
  for (std::size_t gpu = 0; gpu < uses.size(); ++gpu) {
    const auto& one = node.node.gpus[gpu];
    const auto& model = node.node.models[one.model];
    std::pair key(model.name, model.memory_mib);
    auto known = std::ranges::find(models_, key);
    if (known == models_.end() && models_.size() + 1 >= kMaxShownModels) {
      key = {"other models", 0};
      known = std::ranges::find(models_, key);
    }
    if (known == models_.end()) known = models_.insert(models_.end(), key);
    const auto& use = uses[gpu];
    out += gpu == 0 ? "[" : ",[";
    bool is_first = true;
    for (const std::uint64_t value :
         {static_cast<std::uint64_t>(known - models_.begin()), static_cast<std::uint64_t>(state_index(one)),
          std::uint64_t{one.now.busy_percent}, std::uint64_t{one.now.memory_percent},
          std::uint64_t{std::min(use.milli, scheduler::kWhole)}, std::uint64_t{use.held},
          std::uint64_t{use.shares}, std::uint64_t{use.unavailable}}) {
      if (!is_first) out += ",";
      is_first = false;
      append_number(out, value);
    }
    if (use.has_mig) append_mig_units(out, node, gpu);
    out += "]";
  }
  out += "]";
}

void ClusterDocument::append_pods(const ClusterNode& node, std::size_t place) {
  for (const auto& claim : node.claims) {
    if (shown_pods_ >= kMaxShownPods || pods_.size() >= kMaxPodsBytes) {
      ++left_out_pods_;
      continue;
    }
    std::map<std::size_t, unsigned> counts;
    std::set<std::size_t> gpus;
    for (const auto& part : claim.parts) {
      const auto& resource = node.node.resources[part.resource];
      counts[resources_.index_of(resource.name.str())] += part.shares;
      gpus.insert(resource.units[part.unit].gpu);
    }
    const auto slash = claim.pod.find('/');
    pods_ += shown_pods_++ == 0 ? "[" : ",[";
    append_number(pods_, namespaces_.index_of(claim.pod.substr(0, slash)));
    pods_ += ",";
    append_json_string(pods_, slash == std::string::npos ? claim.pod : claim.pod.substr(slash + 1));
    pods_ += ",";
    append_number(pods_, place);
    pods_ += ",";
    append_number(pods_, (claim.assumed ? 1U : 0U) | (claim.leaving ? 2U : 0U));
    std::string held, on;
    for (const auto& [resource, count] : counts)
      held += (held.empty() ? "[" : ",[") + std::to_string(resource) + "," + std::to_string(count) + "]";
    for (const auto gpu : gpus) on += (on.empty() ? "" : ",") + std::to_string(gpu);
    pods_ += ",[" + held + "],[" + on + "]]";
  }
}

std::string ClusterDocument::pods_piece() {
  std::string piece = pods_.substr(pods_sent_, kPodsBytesPerPiece);
  pods_sent_ += piece.size();
  if (pods_sent_ < pods_.size()) return piece;
  pods_ = {};
  left_out_pending_ = inputs_.facts.pending_left_out();
  phase_ = Phase::kRequests;
  return piece + "]";
}

void ClusterDocument::collect_requests() {
  const auto& pending = inputs_.facts.pending();
  auto next = pending.upper_bound(collected_);
  for (std::size_t i = 0; i < kPendingPerPiece && next != pending.end(); ++i, ++next) {
    const auto& [key, pod] = *next;
    collected_ = key;
    const bool requests_gpus = std::ranges::any_of(pod.containers, [this](const auto& container) {
      return std::ranges::any_of(container.devices, [this](const auto& device) {
        return device.resource.str().starts_with(kVendor) || published_.contains(device.resource.str());
      });
    });
    if (!requests_gpus) continue;
    if (waiting_.size() >= kMaxShownPending) {
      ++left_out_pending_;
      continue;
    }
    auto same = std::ranges::find_if(requests_,
                                     [&](const auto& request) { return is_same_request(request.pod, pod); });
    std::size_t place = static_cast<std::size_t>(same - requests_.begin());
    if (same == requests_.end()) {
      if (requests_.size() < kMaxCheckedRequests) {
        requests_.push_back({.pod = pod, .reasons = {}, .answer = {}});
      } else {
        place = kUnchecked;
      }
    }
    waiting_.emplace_back(key, place);
  }
  if (next == pending.end()) phase_ = Phase::kChecks;
}

// A node that publishes nothing that the Pod requests counts neither way: it would hide the reasons of those
// that do.
void ClusterDocument::check_requests() {
  std::size_t checks = 0;
  while (checks < kChecksPerPiece && next_request_ < requests_.size()) {
    auto& request = requests_[next_request_];
    const scheduler::Filter filter(request.pod);
    for (; checks < kChecksPerPiece && request.checked < names_.size(); ++checks) {
      const auto& name = names_[request.checked++];
      const auto* const node = inputs_.cluster.find_node(name);
      if (node == nullptr || !filter.is_published(*node)) continue;
      auto result = filter.check_node(*node);
      if (result.fits()) {
        ++request.fits;
        continue;
      }
      ++request.rejected;
      if (request.reasons.size() >= kMaxCountedReasons && !request.reasons.contains(result.reason)) continue;
      auto& [count, first] = request.reasons[std::move(result.reason)];
      if (count++ == 0) first = name;
    }
    if (request.checked < names_.size()) return;
    request.answer = answer_json(request);
    request.reasons = {};
    ++next_request_;
  }
  if (next_request_ >= requests_.size()) phase_ = Phase::kPending;
}

std::string ClusterDocument::answer_json(const Request& request) {
  std::string out;
  append_field(out, "fits", request.fits);
  append_field(out, "rejected", request.rejected);
  std::vector<std::pair<std::string_view, std::pair<std::size_t, std::string_view>>> reasons(
      request.reasons.begin(), request.reasons.end());
  std::ranges::stable_sort(reasons,
                           [](const auto& a, const auto& b) { return a.second.first > b.second.first; });
  out += ",\"reasons\":[";
  for (std::size_t i = 0; i < std::min(reasons.size(), kMaxShownReasons); ++i) {
    out += i == 0 ? "[" : ",[";
    append_json_string(out, reasons[i].first);
    out += "," + std::to_string(reasons[i].second.first) + ",";
    append_json_string(out, reasons[i].second.second);
    out += "]";
  }
  return out + "]";
}

std::string ClusterDocument::pending_piece() {
  std::string out = next_waiting_ == 0 ? ",\"pending\":[" : "";
  for (std::size_t i = 0; i < kPendingPerPiece && next_waiting_ < waiting_.size(); ++i) {
    const auto& [key, place] = waiting_[next_waiting_++];
    const auto found = inputs_.facts.pending().find(key);
    if (found == inputs_.facts.pending().end()) continue;  // bound since
    const auto& pod = found->second;
    out += shown_pending_++ == 0 ? "{\"namespace\":" : ",{\"namespace\":";
    append_json_string(out, pod.name_space);
    append_text_field(out, "name", pod.name);
    append_text_field(out, "asks", scheduler::describe_request(pod));
    if (!pod.nominated_node.empty()) append_text_field(out, "nominated", pod.nominated_node);
    out += (place == kUnchecked ? ",\"fits\":null" : requests_[place].answer) + "}";
  }
  if (next_waiting_ < waiting_.size()) return out;
  phase_ = Phase::kEnd;
  return out;
}

std::string ClusterDocument::end_piece() {
  phase_ = Phase::kDone;
  std::string out = "],\"states\":[";
  for (const auto state : health::kDeviceStates) {
    append_json_string(out, enum_name(state));
    out += ",";
  }
  append_json_string(out, kCordonedName);
  out += "],\"models\":[";
  for (std::size_t i = 0; i < models_.size(); ++i) {
    out += i == 0 ? "[" : ",[";
    append_json_string(out, models_[i].first);
    out += "," + std::to_string(models_[i].second) + "]";
  }
  for (const auto& [name, list] : {std::pair("namespaces", &namespaces_), {"resources", &resources_}}) {
    out.append("],\"").append(name).append("\":[");
    for (std::size_t i = 0; i < list->texts.size(); ++i) {
      if (i != 0) out += ",";
      append_json_string(out, list->texts[i]);
    }
  }
  out += "],\"leftOut\":{\"nodes\":" + std::to_string(left_out_nodes_);
  append_field(out, "pods", left_out_pods_);
  append_field(out, "pending", left_out_pending_);
  return out + "}}\n";
}

}  // namespace gpulet::extender
