#include <map>
#include <memory>
#include <utility>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "agent/dra/device_facts.h"
#include "agent/dra/offer_readings.h"
#include "agent/driver/nvml_driver.h"
#include "base/dns_name.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/commands/commands.h"
#include "cli/commands/mig.h"
#include "cli/main/command_line.h"
#include "config/yaml.h"
#include "dra/claim_record.h"
#include "dra/device_pool.h"
#include "dra/gpu_groups.h"
#include "dra/manifest_check.h"
#include "dra/resource_slice.h"
#include "health/report/health_report.h"
#include "partition/offer_switch.h"
#include "partition/rules.h"

namespace gpulet::cli {
namespace {

using Json = nlohmann::ordered_json;

struct CheckedFile {
  dra::ManifestReport report;
  std::vector<std::string> errors;  // one line each
};

CheckedFile check_file(const std::string& file, const std::string& feature_gates) {
  const auto check = [&]() -> Result<dra::ManifestReport> {
    const auto gates = dra::parse_feature_gates(feature_gates);
    if (!gates) return fail(gates.error().code(), gates.error().message(), "--feature-gates");
    GPULET_TRY_ASSIGN(const auto text, read_file(file, config::yaml::kMaxTextBytes));
    return dra::check_manifests(text, file, dra::kDriverName, *gates);
  };
  auto report = check();
  if (!report) return {{}, {report.error().full_message()}};
  CheckedFile checked{std::move(*report), {}};
  for (const auto& problem : checked.report.problems) {
    checked.errors.push_back(config::yaml::position_text(file, {problem.line, problem.column}) +
                             ": document " + std::to_string(problem.document) + ", " + problem.object + ": " +
                             (problem.field.empty() ? "" : problem.field + ": ") + problem.message);
  }
  return checked;
}

std::string manifest_json(const std::string& file, const CheckedFile& checked) {
  return document_text(Json{{"file", file},
                            {"valid", checked.errors.empty()},
                            {"objects", checked.report.objects},
                            {"configs", checked.report.configs},
                            {"errors", checked.errors}});
}

// What the agent would know of this node, from one reading.
class PoolReader {
 public:
  PoolReader(const DraSlicesOptions& options, config::Config config)
      : options_(options), config_(std::move(config)) {
    config_.flags.container_driver_root = options_.driver_root;
  }

  Result<dra::DevicePool> read_pool() {
    GPULET_TRY_ASSIGN(auto snapshot, agent::read_snapshot_once({.driver_root = options_.driver_root}));
    partition::mark_excluded_gpus(snapshot, config_, no_labels_);
    const auto shown = std::make_shared<const inventory::Snapshot>(std::move(snapshot));
    dra::RecordStore::Loaded known;
    if (const dra::RecordStore store(config_.gpulet.dra.record_dir); store.has_records()) {
      GPULET_TRY_ASSIGN(known, store.load_records());
    }
    GPULET_TRY_ASSIGN(auto dynamic, read_dynamic_gpus(*shown, known.records));
    auto all =
        dra::make_device_pool({.snapshot = shown,
                               .taints = read_taints(),
                               .withdrawn = agent::with_display_adapters({}, *shown),
                               .pcie_roots = agent::read_pcie_roots(*shown, config_),
                               .dynamic = std::move(dynamic),
                               .shares = agent::shared_gpus(*shown, config_, no_labels_, known.records)});
    const auto sides = partition::wanted_sides(*shown, config_, no_labels_);
    auto pool = dra::select_devices(all, [&](const DeviceUuid& gpu) {
      const auto side = sides.find(gpu);
      return side != sides.end() && side->second == config::OfferSide::kClaims;
    });
    pool.notes = std::move(all.notes);
    dra::DeviceArranger().arrange_devices(*shown, pool);
    return pool;
  }

 private:
  Result<std::map<DeviceUuid, dra::DynamicGpu>> read_dynamic_gpus(
      const inventory::Snapshot& snapshot, const std::map<std::string, dra::ClaimRecord>& records) const {
    auto dynamic = agent::dynamic_gpus(snapshot, config_, no_labels_, records);
    if (dynamic.empty()) return dynamic;
    MigDevices devices(options_.driver_root, "");
    GPULET_TRY(devices.open_mig_driver());
    for (const auto& gpu : snapshot.gpus) {
      const auto found = dynamic.find(gpu.uuid);
      if (found == dynamic.end()) continue;
      GPULET_TRY_ASSIGN(auto state, devices.read_mig_state(gpu.index));
      found->second.profiles = std::move(state.profiles);
    }
    return dynamic;
  }

  // None without a report: no agent has judged the GPUs.
  std::map<DeviceUuid, std::vector<dra::DeviceTaint>> read_taints() const {
    const auto report = health::read_report(config_.gpulet.health_file);
    return agent::taints_of(report ? std::make_shared<const health::HealthView>(*report) : nullptr);
  }

  const DraSlicesOptions& options_;
  config::Config config_;
  const std::map<std::string, std::string> no_labels_;
};

std::string devices_table(const dra::DevicePool& pool, const TableStyle& style) {
  TableRows rows;
  for (const auto& [device, type, uuid, gpu, partition] : pool.devices) {
    std::vector<std::string> taints;
    for (const auto& taint : device.taints) {
      taints.push_back(taint.key + (taint.value.empty() ? "" : "=" + taint.value) + ":" +
                       std::string(dra::enum_name(taint.effect)));
    }
    rows.push_back({device.name, uuid_cell((uuid.empty() ? gpu : uuid).str(), style),
                    device.allows_multiple ? "shared"
                    : partition            ? "on demand"
                                           : "",
                    text::join(taints, ",")});
  }
  return draw_table({{"DEVICE"}, {"UUID"}, {"USE"}, {"TAINTS", ColumnUse::kText}}, rows, style);
}

std::string slices_document(const dra::DevicePool& pool, const std::string& node) {
  std::vector<dra::Device> devices;
  for (const auto& offered : pool.devices) devices.push_back(offered.device);
  const auto plan =
      dra::plan_slices({std::string(dra::kDriverName), node, node}, devices, {}, pool.counter_sets);
  Json items = Json::array();
  for (const auto& slice : plan.creates) items.push_back(Json::parse(dra::slice_json(slice, {node, ""})));
  return document_text(Json{{"apiVersion", "v1"}, {"kind", "List"}, {"items", std::move(items)}});
}

}  // namespace

CommandOutput dra_slices_output(const DraSlicesOptions& options) {
  static constexpr const char* kProgram = "gpulet dra slices";
  const std::string node = options.node.empty() ? default_node_name() : options.node;
  if (!is_dns_subdomain(node)) {
    return error_output(kProgram, "--node '" + node + "': expected the name of a Node", kWrongCommand);
  }
  const auto read = [&]() -> Result<dra::DevicePool> {
    config::Sources sources = options.sources;
    sources.flags["dra"] = {"true"};
    GPULET_TRY(config::read_config_file(sources));
    GPULET_TRY_ASSIGN(auto loaded, config::load(sources));
    return PoolReader(options, std::move(loaded.config)).read_pool();
  };
  const auto pool = read();
  if (!pool) return error_output(kProgram, pool.error().full_message(), error_exit_code(pool.error()));
  std::string notes;
  for (const auto& note : pool->notes) notes += note + "\n";
  return {.exit_code = 0,
          .out = render_output(
              options.output, [&] { return slices_document(*pool, node); },
              [&](const TableStyle& style) { return devices_table(*pool, style); }),
          .err = std::move(notes)};
}

CommandOutput dra_check_output(const DraCheckOptions& options) {
  const auto checked = check_file(options.file, options.feature_gates);
  const bool valid = checked.errors.empty();
  const auto counts_line = [&](const TableStyle&) {
    if (!valid) return std::string();
    return options.file + ": ok, " + text::count_text(checked.report.objects, "object") + ", " +
           text::count_text(checked.report.configs, "config") + " for " + std::string(dra::kDriverName) +
           "\n";
  };
  std::string lines;
  for (const auto& error : checked.errors) lines += error + "\n";
  return {.exit_code = valid ? 0 : kFailed,
          .out = render_output(
              options.output, [&] { return manifest_json(options.file, checked); }, counts_line),
          .err = options.output.is_document() ? std::string() : lines};
}

namespace {

void add_slices(CLI::App& dra, Run& run) {
  auto& command = add_command(
      dra, {.name = "slices",
            .summary = "Print the ResourceSlices that the agent would publish on this node",
            .details = "Reads the driver, as with gpulet.dra.enabled. No cluster is needed: rules for node\n"
                       "labels select nothing. Taints are those that a running agent has reported.\n"
                       "What is not offered, and why, is on standard error.",
            .examples = "  gpulet dra slices\n"
                        "  gpulet dra slices --config-file config.yaml -o table"});
  const auto options = std::make_shared<DraSlicesOptions>();
  command.add_option("--node", options->node, "name of the node (default: the host's)")->envname("NODE_NAME");
  add_output_options(command, options->output, {.default_format = "yaml"});
  add_driver_root_option(command, options->driver_root);
  add_resource_options(command, options->sources);
  command.callback(
      [options, &run] { run = [options] { return print_output(dra_slices_output(*options)); }; });
}

}  // namespace

void add_dra(CLI::App& app, Run& run) {
  auto& command = add_command(app, {.name = "dra",
                                    .summary = "Check manifests of claims, and show what claims can get",
                                    .examples = "  gpulet dra check claims.yaml\n"
                                                "  gpulet dra slices --config-file config.yaml",
                                    .group = kPlanGroup});
  command.require_subcommand(1);
  auto& check = add_command(
      command,
      {.name = "check",
       .summary = "Check the configs of claims, claim templates and device classes",
       .details = "Reads YAML or JSON with any number of objects. Each config for gpu.nvidia.com is read\n"
                  "as the agent does when it prepares a claim; others are passed over. A constraint on an\n"
                  "unknown attribute of gpulet.io is a mistake too. Each mistake is one line of standard\n"
                  "error: file:line:column: document, object: field: what is wrong.\n"
                  "Exits with 1 if there is one.",
       .examples = "  gpulet dra check claims.yaml"});
  const auto options = std::make_shared<DraCheckOptions>();
  check.add_option("FILE", options->file, "file of manifests")->required();
  check.add_option("--feature-gates", options->feature_gates,
                   "gates of gpulet.dra.featureGates: MPSSupport=true,TimeSlicingSettings=true");
  add_output_options(check, options->output);
  check.callback([options, &run] { run = [options] { return print_output(dra_check_output(*options)); }; });
  add_slices(command, run);
}

}  // namespace gpulet::cli
