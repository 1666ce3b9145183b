#include "cli/kubectl/cluster_doctor.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"
#include "cli/kubectl/kubectl.h"
#include "extender/service_name.h"
#include "k8s/blocking_reader.h"
#include "k8s/objects.h"

namespace gpulet::cli::kubectl {
namespace {

using doctor::CheckResult;
using doctor::fail_result;
using doctor::pass_result;
using doctor::skip_result;
using doctor::unknown_result;
using doctor::warn_result;
using nlohmann::json;

constexpr std::string_view kVendor = "nvidia.com/";
constexpr const char* kPresentLabel = "nvidia.com/gpu.present";  // of GPU feature discovery
constexpr std::size_t kMaxDetails = 20;
constexpr std::size_t kMaxErrorBytes = 300;

std::string waiting_reason(const json& status) {
  const auto& containers = json_member(status, "containerStatuses");
  if (!containers.is_array()) return {};
  for (const auto& container : containers) {
    auto reason = json_text(json_member(json_member(json_member(container, "state"), "waiting"), "reason"));
    if (!reason.empty()) return reason;
  }
  return {};
}

void add_detail(CheckResult& result, std::string line) {
  if (result.details.size() == kMaxDetails) {
    result.details.emplace_back("…");
  } else if (result.details.size() < kMaxDetails) {
    result.details.push_back(std::move(line));
  }
}

CheckResult with_details(CheckResult result, const std::vector<std::string>& lines) {
  for (const auto& line : lines) add_detail(result, line);
  return result;
}

// Nodes that have GPUs, by their Node or by their GpuNode. Precondition: facts.nodes are known.
std::vector<std::string> gpu_node_names(const ClusterDoctorFacts& facts) {
  const auto publishes = [&](const std::string& name) {
    if (!facts.published || !*facts.published) return false;
    const auto found = (*facts.published)->find(name);
    return found != (*facts.published)->end() && !found->second.gpus.empty();
  };
  std::vector<std::string> names;
  for (const auto& [name, node] : *facts.nodes) {
    if (node.has_gpus || publishes(name)) names.push_back(name);
  }
  return names;
}

CheckResult check_agents(const ClusterDoctorFacts& facts) {
  if (!facts.nodes) return unknown_result(facts.nodes.error());
  if (!facts.agents) return unknown_result(facts.agents.error());
  if (facts.agents->empty())
    return skip_result(
        "no agent runs as a Pod of this cluster; agents that are services of their hosts are not seen here");
  std::map<std::string, const ClusterAgentFacts*> agents;
  for (const auto& agent : *facts.agents) {
    auto& known = agents[agent.node];
    if (known == nullptr || (agent.ready && !known->ready)) known = &agent;
  }
  std::vector<std::string> wrong;
  const auto names = gpu_node_names(facts);
  for (const auto& name : names) {
    const auto found = agents.find(name);
    const bool is_ready = facts.nodes->at(name).ready;
    if (found == agents.end()) {
      wrong.push_back(name + ": no agent" + (is_ready ? "" : "; the node is not ready"));
    } else if (!found->second->ready) {
      const auto& agent = *found->second;
      wrong.push_back(name + ": " + agent.name_space + "/" + agent.name + " is not ready" +
                      (agent.waiting.empty() ? "" : " (" + agent.waiting + ")") +
                      (is_ready ? "" : "; the node is not ready"));
    }
  }
  if (wrong.empty())
    return pass_result("an agent is ready on " + text::count_text(names.size(), "node") + " with GPUs");
  return with_details(
      fail_result(std::to_string(wrong.size()) + " of " + text::count_text(names.size(), "node") +
                      " with GPUs have no agent that is ready",
                  "`kubectl describe pod` of the agents; their DaemonSet's node selector and "
                  "tolerations"),
      wrong);
}

// Resources of the GpuNode that the kubelet counts otherwise: "nvidia.com/gpu: GpuNode 8, kubelet 7".
std::vector<std::string> offer_differences(const PublishedNodeFacts& published,
                                           const ClusterNodeFacts& node) {
  std::vector<std::string> lines;
  for (const auto& [resource, count] : published.offered) {
    if (resource == scheduler::kClaimedResource) continue;  // kubelets do not count claims
    const auto kubelet = node.allocatable.find(resource);
    const auto allocatable = kubelet == node.allocatable.end() ? 0 : kubelet->second;
    if (count != allocatable)
      lines.push_back(resource + ": GpuNode " + std::to_string(count) + ", kubelet " +
                      std::to_string(allocatable));
  }
  return lines;
}

CheckResult check_gpu_nodes(const ClusterDoctorFacts& facts) {
  if (!facts.published) return unknown_result(facts.published.error());
  if (!*facts.published)
    return skip_result(
        "the cluster has no kind GpuNode; the scheduler extender and `kubectl gpulet list` need it");
  if (!facts.nodes) return unknown_result(facts.nodes.error());
  const auto& published = **facts.published;
  std::vector<std::string> wrong;
  for (const auto& [name, problem] : facts.undecodable) wrong.push_back(problem);
  for (const auto& [name, node] : *facts.nodes) {
    const auto found = published.find(name);
    if (found == published.end()) {
      if (node.has_gpus && !facts.undecodable.contains(name)) wrong.push_back(name + ": no GpuNode");
    } else if (node.ready) {  // the kubelet's counts of a node that is not ready are old
      for (const auto& line : offer_differences(found->second, node)) wrong.push_back(name + ": " + line);
    }
  }
  for (const auto& [name, node] : published) {
    if (!facts.nodes->contains(name)) wrong.push_back(name + ": a GpuNode without a Node");
  }
  if (wrong.empty())
    return pass_result(text::count_text(published.size(), "GpuNode") + ", as the kubelets count");
  return with_details(
      warn_result(
          text::count_text(wrong.size(), "difference") + " between GpuNodes and Nodes",
          "run this again in a minute; then see the log of the node's agent, and delete the GpuNode of "
          "a node that is gone"),
      wrong);
}

CheckResult check_versions(const ClusterDoctorFacts& facts) {
  if (!facts.agents) return unknown_result(facts.agents.error());
  std::map<std::string, std::vector<std::string>> nodes_by_image;
  for (const auto& agent : *facts.agents) nodes_by_image[agent.image].push_back(agent.node);
  if (nodes_by_image.empty()) return skip_result("no agent runs as a Pod of this cluster");
  if (nodes_by_image.size() == 1) return pass_result("all agents run " + nodes_by_image.begin()->first);
  std::vector<std::string> lines;
  for (const auto& [image, nodes] : nodes_by_image) lines.push_back(image + ": " + text::join_limited(nodes));
  return with_details(warn_result("agents run " + std::to_string(nodes_by_image.size()) + " different images",
                                  "`kubectl rollout status` of their DaemonSet, or restart what is left"),
                      lines);
}

CheckResult check_scheduler(const ClusterDoctorFacts& facts) {
  if (!facts.scheduler) return unknown_result(facts.scheduler.error());
  if (!facts.scheduler->installed) return skip_result("no scheduler extender is installed (--service)");
  if (facts.scheduler->answers) return pass_result("the scheduler extender is ready");
  return fail_result("the scheduler extender does not answer: " + facts.scheduler->error,
                     "`kubectl get pods` and the log of its Deployment");
}

CheckResult check_gpu_health(const ClusterDoctorFacts& facts) {
  if (!facts.published) return unknown_result(facts.published.error());
  if (!*facts.published) return skip_result("the cluster has no kind GpuNode");
  std::size_t count = 0, withdrawn = 0;
  std::vector<std::string> lines;
  for (const auto& [name, node] : **facts.published) {
    for (const auto& gpu : node.gpus) {
      ++count;
      withdrawn += gpu.in_service ? 0 : 1;
      if (gpu.needs_attention())
        lines.push_back(name + ": GPU " + std::to_string(gpu.index) + " is " + gpu.state +
                        (gpu.reasons.empty() ? "" : ": " + text::join(gpu.reasons, "; ")));
    }
  }
  const auto total = text::count_text(count, "GPU");
  if (lines.empty()) return pass_result(total + ", all in service");
  const std::string fix = "`kubectl gpulet health`; `gpulet health` in the agent's Pod shows the next step";
  if (withdrawn == 0)
    return with_details(warn_result(text::count_text(lines.size(), "GPU") + " of " + total + " flagged", fix),
                        lines);
  return with_details(fail_result(std::to_string(withdrawn) + " of " + total + " out of service", fix),
                      lines);
}

void read_nodes(k8s::BlockingReader& reader, ClusterDoctorFacts& facts) {
  std::map<std::string, ClusterNodeFacts> nodes;
  const auto listed = reader.list_objects("/api/v1/nodes", "list on nodes", [&](std::string_view object) {
    nodes[k8s::metadata_string(object, "name")] = parse_cluster_node(object);
  });
  facts.nodes =
      listed ? Result<std::map<std::string, ClusterNodeFacts>>(std::move(nodes)) : fail(listed.error());
}

void read_agents(k8s::BlockingReader& reader, const std::string& selector, ClusterDoctorFacts& facts) {
  std::vector<ClusterAgentFacts> agents;
  const auto listed = reader.list_objects("/api/v1/pods?labelSelector=" + k8s::encode_query_value(selector),
                                          "list on pods", [&](std::string_view object) {
                                            if (auto agent = parse_cluster_agent(object))
                                              agents.push_back(std::move(*agent));
                                          });
  facts.agents = listed ? Result<std::vector<ClusterAgentFacts>>(std::move(agents)) : fail(listed.error());
}

// Shares that may be allocated, by resource.
std::map<std::string, std::uint64_t> offered_counts(const scheduler::GpuNode& node) {
  std::map<std::string, std::uint64_t> offered;
  for (const auto& resource : node.resources) {
    auto& count = offered[resource.name.str()];
    for (const auto& unit : resource.units) count += unit.shares - std::min(unit.shares, unit.unavailable);
  }
  return offered;
}

void read_published(k8s::BlockingReader& reader, ClusterDoctorFacts& facts) {
  std::map<std::string, PublishedNodeFacts> published;
  GpuCollection collection;
  const auto listed = reader.list_objects(scheduler::kGpuNodesPath, "list on gpunodes.gpulet.io",
                                          [&](std::string_view object) { collection.apply_object(object); });
  if (!listed) {
    facts.published = fail(listed.error());
    return;
  }
  for (const auto& name : collection.node_names()) {
    if (const auto* node = collection.find_node(name)) published[name].offered = offered_counts(node->node);
  }
  for (auto& gpu : collection.gpus()) published[gpu.node].gpus.push_back(std::move(gpu));
  facts.undecodable = collection.problems();
  facts.published = *listed ? std::optional(std::move(published)) : std::nullopt;
}

void read_scheduler(k8s::BlockingReader& reader, const std::string& service, ClusterDoctorFacts& facts) {
  const auto named = extender::parse_service_name(service);
  if (!named) return;
  const auto path = "/api/v1/namespaces/" + named->name_space + "/services/";
  auto name = service.substr(named->name_space.size() + 1);
  auto response = reader.get_response(path + name + "/proxy/readyz", "*/*");
  if (response && extender::requires_https(*response) && named->scheme.empty())
    response = reader.get_response(path + "https:" + name + "/proxy/readyz", "*/*");
  if (!response) {
    facts.scheduler = fail(response.error());
  } else if (response->status == 401 || response->status == 403) {
    facts.scheduler = fail(Code::kPermissionDenied,
                           "missing permission: get on services/proxy: " + k8s::describe_response(*response));
  } else {
    const bool is_missing = response->status == 404 && response->body.starts_with('{');
    const bool answers = response->status == 200;
    // One line of the extender, or an object of the API server.
    auto error = response->body.starts_with('{')
                     ? k8s::describe_response(*response)
                     : k8s::sanitize_line(k8s::truncate_utf8(response->body, kMaxErrorBytes));
    if (error.empty()) error = "status " + std::to_string(response->status);
    facts.scheduler =
        SchedulerFacts{.installed = !is_missing, .answers = answers, .error = answers ? "" : error};
  }
}

}  // namespace

ClusterNodeFacts parse_cluster_node(std::string_view object) {
  const json node = parse_json(object);
  const auto& status = json_member(node, "status");
  ClusterNodeFacts facts{
      .ready = extender::has_condition(status, "Ready"), .has_gpus = false, .allocatable = {}};
  facts.has_gpus = k8s::json_text_map(json_member(node, "metadata"), "labels")[kPresentLabel] == "true";
  for (const auto& [resource, quantity] : k8s::json_text_map(status, "capacity"))
    facts.has_gpus =
        facts.has_gpus || (resource.starts_with(kVendor) && text::parse_unsigned(quantity).value_or(0) != 0);
  for (const auto& [resource, quantity] : k8s::json_text_map(status, "allocatable")) {
    const auto count = text::parse_unsigned(quantity);
    if (count) facts.allocatable[resource] = *count;
  }
  return facts;
}

std::optional<ClusterAgentFacts> parse_cluster_agent(std::string_view object) {
  const auto agent = extender::parse_agent_pod(object);
  if (!agent) return std::nullopt;
  const json pod = parse_json(object);
  const auto& containers = json_member(json_member(pod, "spec"), "containers");
  return ClusterAgentFacts{.name_space = k8s::metadata_string(object, "namespace"),
                           .name = k8s::metadata_string(object, "name"),
                           .node = agent->node,
                           .image = containers.is_array() && !containers.empty()
                                        ? json_text(json_member(containers.front(), "image"))
                                        : "",
                           .ready = agent->ready,
                           .waiting = waiting_reason(json_member(pod, "status"))};
}

ClusterDoctorFacts read_cluster_facts(const k8s::ClientConfig& access, const std::string& agent_selector,
                                      const std::string& service) {
  ClusterDoctorFacts facts;
  k8s::BlockingReader reader(access, kRequestLimit);
  read_nodes(reader, facts);
  read_agents(reader, agent_selector, facts);
  read_published(reader, facts);
  read_scheduler(reader, service, facts);
  return facts;
}

std::vector<doctor::Finding> check_cluster(const ClusterDoctorFacts& facts) {
  using doctor::Symptom;
  return {{"agents", Symptom::kNotAllocated, check_agents(facts)},
          {"gpu-nodes", Symptom::kNotAllocated, check_gpu_nodes(facts)},
          {"versions", Symptom::kNotAllocated, check_versions(facts)},
          {"scheduler", Symptom::kNotAllocated, check_scheduler(facts)},
          {"gpu-health", Symptom::kBroken, check_gpu_health(facts)}};
}

CommandOutput cluster_doctor_output(const ClusterDoctorOptions& options, const k8s::ClientConfig& access) {
  constexpr std::string_view kSubject = "this cluster";
  if (!options.service.empty() && !extender::parse_service_name(options.service))
    return error_output("kubectl gpulet doctor",
                        "--service: expected a Service, such as " + std::string(extender::kDefaultService),
                        kWrongCommand);
  const auto findings = check_cluster(read_cluster_facts(access, options.agent_selector, options.service));
  const auto has = [&](std::initializer_list<doctor::Verdict> verdicts) {
    return std::ranges::any_of(findings, [&](const doctor::Finding& finding) {
      return std::ranges::find(verdicts, finding.result.verdict) != verdicts.end();
    });
  };
  using doctor::Verdict;
  const bool is_unreadable =
      has({Verdict::kUnknown}) && !has({Verdict::kPass, Verdict::kWarn, Verdict::kFail});
  return {.exit_code = has({Verdict::kFail}) || is_unreadable ? kFailed : 0,
          .out = render_output(
              options.output, [&] { return doctor::json_report(findings, kSubject); },
              [&](const TableStyle& style) {
                return doctor::text_report(findings, {.color = shows_color(),
                                                      .all_details = style.wide,
                                                      .subject = kSubject,
                                                      .columns = style.columns});
              }),
          .err = {}};
}

}  // namespace gpulet::cli::kubectl
