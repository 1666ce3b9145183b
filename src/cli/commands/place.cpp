#include "cli/commands/commands.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <set>

#include <nlohmann/json.hpp>

#include <CLI/CLI.hpp>

#include "agent/observe/node_reading.h"
#include "agent/plugin/offers.h"
#include "base/text.h"
#include "cli/main/command_line.h"
#include "partition/resources.h"
#include "placement/chooser.h"
#include "topology/topology.h"

namespace gpulet::cli {

namespace {

constexpr std::size_t kFactIndent = 8;  // behind "reason  "
constexpr const char* kDefaultResource = "nvidia.com/gpu";
constexpr std::size_t kMaxSize = 4096;  // of placement::Chooser

// "3", or "3:0" for a MIG device.
std::string placed_index_text(const inventory::Snapshot& snapshot, const partition::Device& device) {
  const inventory::Gpu& gpu = snapshot.gpus[device.gpu];
  std::string index = std::to_string(gpu.index);
  if (device.mig) index += ":" + std::to_string(gpu.mig_devices[*device.mig].index);
  return index;
}

bool matches_name(const inventory::Snapshot& snapshot, const partition::Device& device,
                  const std::string& name) {
  const inventory::Gpu& gpu = snapshot.gpus[device.gpu];
  if (name == device.id.str() || name == gpu.uuid.str() || name == std::to_string(gpu.index)) return true;
  return device.mig &&
         (name == gpu.mig_devices[*device.mig].uuid.str() || name == placed_index_text(snapshot, device));
}

// The UUID that starts with `name`, or a name that is complete. Errors: kInvalidArgument if no device of the
// resource has it, or several do.
Result<std::string> complete_name(const inventory::Snapshot& snapshot, const partition::Resource& resource,
                                  const std::string& name) {
  std::set<std::string> uuids;
  for (const partition::Device& device : resource.devices) {
    if (matches_name(snapshot, device, name)) return name;
    const inventory::Gpu& gpu = snapshot.gpus[device.gpu];
    const DeviceUuid& uuid = device.mig ? gpu.mig_devices[*device.mig].uuid : gpu.uuid;
    const bool prefix = name.starts_with("GPU-") || name.starts_with("MIG-");
    if (prefix && uuid.str().starts_with(name)) uuids.insert(uuid.str());
  }
  if (uuids.size() == 1) return *uuids.begin();
  if (uuids.empty()) {
    std::vector<std::string> indices;
    for (const partition::Device& device : resource.devices) {
      const std::string index = placed_index_text(snapshot, device);
      if (indices.empty() || indices.back() != index) indices.push_back(index);
    }
    return fail(Code::kNotFound, resource.name.str() + " has no device '" + name + "'; expected " +
                                     text::join_limited(indices, 16) + ", or a UUID");
  }
  const std::vector<std::string> all(uuids.begin(), uuids.end());
  return fail(Code::kInvalidArgument, "'" + name + "' is ambiguous; it matches " + text::join_limited(all));
}

Result<const partition::Resource*> find_resource(const partition::Plan& plan, const std::string& wanted) {
  if (plan.resources.empty()) {
    const std::string why = plan.notes.empty() ? "" : ": " + plan.notes.front().message;
    return fail(Code::kFailedPrecondition, "no allocatable GPU on this node" + why);
  }
  if (wanted.empty() && plan.resources.size() == 1) return &plan.resources.front();
  std::vector<std::string> names;
  for (const partition::Resource& resource : plan.resources) {
    if (resource.name.str() == (wanted.empty() ? kDefaultResource : wanted)) return &resource;
    names.push_back(resource.name.str());
  }
  return fail(Code::kInvalidArgument, (wanted.empty() ? "name a resource" : "no resource " + wanted) +
                                          "; this node has " + text::join(names, ", "));
}

Result<placement::Rules> parse_rules(const config::Config& config, const std::string& policy) {
  using placement::Policy;
  using placement::SharedPolicy;
  placement::Rules rules = agent::placement_rules(config);
  if (policy.empty()) return rules;
  if (policy == "best-effort" || policy == "tightest") {
    rules.policy = policy == "tightest" ? Policy::kTightest : Policy::kBestEffort;
  } else if (policy == "distributed" || policy == "packed") {
    rules.shared = policy == "packed" ? SharedPolicy::kPacked : SharedPolicy::kDistributed;
  } else {
    return fail(Code::kInvalidArgument,
                "unknown policy \"" + policy + "\"; expected best-effort, tightest, distributed or packed");
  }
  return rules;
}

std::string policy_name(const placement::Rules& rules, placement::Method method) {
  if (method == placement::Method::kShared) {
    return rules.shared == placement::SharedPolicy::kPacked ? "packed" : "distributed";
  }
  return rules.policy == placement::Policy::kTightest ? "tightest" : "best-effort";
}

Result<std::vector<DeviceId>> available_ids(const inventory::Snapshot& snapshot,
                                            const partition::Resource& resource,
                                            const std::vector<std::string>& names) {
  std::vector<bool> taken(resource.devices.size(), false);
  for (std::size_t i = 0; i < taken.size() && names.empty(); ++i)
    taken[i] = resource.devices[i].health.healthy;
  for (const std::string& given : names) {
    GPULET_TRY_ASSIGN(const std::string name, complete_name(snapshot, resource, given));
    for (std::size_t i = 0; i < taken.size(); ++i) {
      if (matches_name(snapshot, resource.devices[i], name)) taken[i] = true;
    }
  }
  std::vector<DeviceId> ids;
  for (std::size_t i = 0; i < taken.size(); ++i) {
    if (taken[i]) ids.push_back(resource.devices[i].id);
  }
  return ids;
}

Result<std::vector<DeviceId>> required_ids(const inventory::Snapshot& snapshot,
                                           const partition::Resource& resource,
                                           const std::vector<std::string>& names,
                                           const std::vector<DeviceId>& available) {
  std::vector<DeviceId> ids;
  for (const std::string& given : names) {
    GPULET_TRY_ASSIGN(const std::string name, complete_name(snapshot, resource, given));
    const DeviceId* best = nullptr;
    for (const partition::Device& device : resource.devices) {
      if (!matches_name(snapshot, device, name)) continue;
      const bool free = std::find(available.begin(), available.end(), device.id) != available.end() &&
                        std::find(ids.begin(), ids.end(), device.id) == ids.end();
      if (best == nullptr || free) best = &device.id;
      if (free) break;
    }
    if (best != nullptr) ids.push_back(*best);
  }
  return ids;
}

struct Row {
  std::string index, id, model;
  std::optional<int> numa_node;
};

std::vector<Row> placed_rows(const inventory::Snapshot& snapshot, const partition::Resource& resource,
                             const placement::Choice& choice) {
  std::vector<Row> rows;
  for (const partition::Device& device : resource.devices) {
    if (std::find(choice.devices.begin(), choice.devices.end(), device.id) == choice.devices.end()) continue;
    rows.push_back({placed_index_text(snapshot, device), device.id.str(), snapshot.gpus[device.gpu].model,
                    device.numa_node});
  }
  return rows;
}

std::string choice_table(const std::vector<Row>& rows, const TableStyle& style) {
  TableRows table;
  for (const Row& row : rows)
    table.push_back({row.index, row.id, row.numa_node ? std::to_string(*row.numa_node) : kDash, row.model});
  return draw_table({{"GPU"}, {"DEVICE"}, {"NUMA"}, {"MODEL"}}, table, style);
}

std::string choice_text(const std::vector<Row>& rows, const placement::Choice& choice,
                        const std::string& heading, const TableStyle& style) {
  if (!style.headers) return choice_table(rows, style);
  const auto facts = render_table({{"score ", std::to_string(choice.score)},
                                   {"method", std::string(placement::method_name(choice.method))},
                                   {"reason", choice.reason}});
  return heading + "\n\n" + choice_table(rows, style) + "\n" + wrap_lines(facts, style.columns, kFactIndent);
}

nlohmann::ordered_json choice_json(const std::vector<Row>& rows, const placement::Choice& choice) {
  nlohmann::ordered_json json;
  json["devices"] = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    nlohmann::ordered_json device{
        {"id", row.id}, {"index", row.index}, {"model", row.model}, {"numaNode", nullptr}};
    if (row.numa_node) device["numaNode"] = *row.numa_node;
    json["devices"].push_back(std::move(device));
  }
  json["score"] = choice.score;
  json["partitionScore"] = choice.partition_score;
  json["method"] = placement::method_name(choice.method);
  json["reason"] = choice.reason;
  return json;
}

}  // namespace

Result<std::string> place_report(const inventory::Snapshot& snapshot, const config::Config& config,
                                 const PlaceOptions& options, const placement::LoadsByGpu& loads) {
  const partition::Plan plan = partition::plan_resources(snapshot, config);
  GPULET_TRY_ASSIGN(const partition::Resource* resource, find_resource(plan, options.resource));
  GPULET_TRY_ASSIGN(placement::Rules rules, parse_rules(config, options.policy));
  rules.shares_on = resource->shares_on;
  GPULET_TRY_ASSIGN(const std::vector<DeviceId> available,
                    available_ids(snapshot, *resource, options.available));
  GPULET_TRY_ASSIGN(const std::vector<DeviceId> required,
                    required_ids(snapshot, *resource, options.require, available));

  std::vector<DeviceUuid> gpus;
  for (const auto& gpu : snapshot.gpus) gpus.push_back(gpu.uuid);
  const auto chooser = placement::Chooser::build_chooser(
      topology::build_topology(snapshot), agent::placement_devices(*resource, snapshot), rules);
  GPULET_TRY_ASSIGN(
      const placement::Choice choice,
      chooser->choose_devices(available, required, options.size, placement::loads_in_order(loads, gpus)));

  const std::vector<Row> rows = placed_rows(snapshot, *resource, choice);
  const std::string policy = policy_name(rules, choice.method);
  return render_output(
      options.output,
      [&] {
        nlohmann::ordered_json json{{"resource", resource->name.str()},
                                    {"policy", policy},
                                    {"size", options.size},
                                    {"available", available.size()}};
        json.update(choice_json(rows, choice));
        return document_text(json);
      },
      [&](const TableStyle& style) {
        return choice_text(rows, choice,
                           std::to_string(options.size) + " of " + std::to_string(available.size()) +
                               " available " + resource->name.str() + ", " + policy,
                           style);
      });
}

namespace {

Result<std::string> make_place_report(const PlaceOptions& options) {
  config::Sources sources = options.sources;
  GPULET_TRY(config::read_config_file(sources));
  GPULET_TRY_ASSIGN(const config::LoadedConfig loaded, config::load(sources));
  agent::NvmlDriverOptions driver;
  driver.driver_root = options.driver_root;
  GPULET_TRY_ASSIGN(const agent::NodeReading node, agent::read_node_once(std::move(driver)));
  return place_report(*node.snapshot, loaded.config, options, node.loads);
}

}  // namespace

int run_place(const PlaceOptions& options) {
  return print_report("gpulet place", make_place_report(options));
}

void add_place(CLI::App& app, Run& run) {
  auto& command = add_command(
      app, {.name = "place",
            .summary = "Show which GPUs a container would get, and why",
            .details =
                "Makes the choice that the agent makes when the kubelet requests a preferred allocation, by "
                "the GPUs' present load.\nThe agent also counts the load that it expects for the next hours.",
            .examples = "  gpulet place --size 2\n"
                        "  gpulet place --size 2 --available 0,1,4,5 --require 4\n"
                        "  gpulet place --size 4 --policy tightest -o json",
            .group = kInspectGroup});
  const auto options = std::make_shared<PlaceOptions>();
  command.add_option("--size", options->size, "number of GPUs")
      ->required()
      ->check(CLI::Range(std::size_t{1}, kMaxSize));
  command
      .add_option("--available", options->available,
                  "GPUs to choose from, by index or UUID (default: all healthy ones)")
      ->delimiter(',');
  command.add_option("--require", options->require, "GPUs that the choice must contain")->delimiter(',');
  command
      .add_option("--policy", options->policy,
                  "best-effort or tightest; for shared GPUs distributed or packed (default: as configured)")
      ->check(CLI::IsMember({"best-effort", "tightest", "distributed", "packed"}));
  command.add_option("--resource", options->resource, "resource name, if the node has several");
  add_output_options(command, options->output);
  add_driver_root_option(command, options->driver_root);
  add_resource_options(command, options->sources);
  command.callback([options, &run] { run = [options] { return run_place(*options); }; });
}

}  // namespace gpulet::cli
