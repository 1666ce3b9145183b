#include "cli/commands/mig.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <set>

#include <CLI/CLI.hpp>

#include "base/text.h"
#include "cli/commands/agent_driver.h"
#include "cli/commands/commands.h"
#include "cli/commands/health.h"
#include "cli/main/command_line.h"
#include "config/load.h"
#include "config/values.h"
#include "config/yaml.h"
#include "mig/layout.h"
#include "mig/layout_file.h"

namespace gpulet::cli {
namespace {

constexpr const char* kStandardInput = "standard input";
constexpr std::size_t kMigIndent = 7;  // behind "GPU 0: "

std::string_view verb_name(MigVerb verb) {
  switch (verb) {
    case MigVerb::kPlan:
      return "plan";
    case MigVerb::kApply:
      return "apply";
    case MigVerb::kAssert:
      return "assert";
    case MigVerb::kExport:
      return "export";
  }
  return "";
}

// Fills empty options from the environment, then with defaults.
Result<MigOptions> apply_environment(MigVerb verb, MigOptions options) {
  const auto variable = [&](const char* which) {
    const auto found = options.environment.find(which);
    return found == options.environment.end() ? std::string() : found->second;
  };
  const auto text = [&](std::string& value, const char* from, const char* otherwise) {
    if (value.empty()) value = variable(from);
    if (value.empty()) value = otherwise;
  };
  const auto flag = [&](bool& value, const char* from) -> Status {
    const std::string given = variable(from);
    if (value || given.empty()) return {};
    const auto read = config::parse_go_bool(given);
    if (!read) return fail(Code::kInvalidArgument, "expected true or false, found '" + given + "'", from);
    value = *read;
    return {};
  };
  text(options.kubelet_dir, "GPULET_KUBELET_DIR", "/var/lib/kubelet");
  if (verb == MigVerb::kExport) {
    text(options.config_label, "MIG_PARTED_CONFIG_LABEL", "current");
    text(options.output.format, "MIG_PARTED_OUTPUT_FORMAT", "yaml");
  } else {
    text(options.config_file, "MIG_PARTED_CONFIG_FILE", "");
    text(options.selected_config, "MIG_PARTED_SELECTED_CONFIG", "");
    text(options.output.format, "", "table");
    GPULET_TRY(flag(options.mode_only, "MIG_PARTED_MODE_CHANGE_ONLY"));
  }
  if (verb == MigVerb::kAssert) GPULET_TRY(flag(options.valid_config, "MIG_PARTED_VALID_CONFIG"));
  const auto& format = options.output.format;  // of the environment too
  if (format != "table" && format != "wide" && !options.output.is_document()) {
    return fail(Code::kInvalidArgument,
                "unknown output format '" + format + "'; expected table, wide, json or yaml");
  }
  return options;
}

// nullopt: use the layouts of the hardware.
Result<std::optional<mig::LayoutFile>> read_layout_file(const std::string& path) {
  if (path.empty()) return std::nullopt;
  if (path != "-") return mig::load_layout_file(path);
  std::string text(config::yaml::kMaxTextBytes + 1, '\0');
  std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::cin.gcount()));
  return mig::parse_layout_file(text, kStandardInput);
}

// Errors: kInvalidArgument if there are several layouts and no name.
Result<std::string> select_layout(const std::string& name, const std::optional<mig::LayoutFile>& file,
                                  const std::vector<MigGpu>& gpus) {
  if (!name.empty()) return name;
  if (file && file->configs.size() == 1) return file->configs.front().name;
  std::vector<std::string> names;
  if (file) {
    for (const auto& config : file->configs) names.push_back(config.name);
  } else {
    std::set<std::string> all;
    for (const auto& gpu : gpus) {
      for (auto& layout : mig::derive_layouts(gpu.state)) all.insert(std::move(layout.name));
    }
    names.assign(all.begin(), all.end());
  }
  return fail(Code::kInvalidArgument, "no layout selected; choose one with -c: " + text::join(names, ", "),
              file ? file->path : "");
}

// The GPUs that `wanted` names, in order of index. An unreadable GPU has only its index.
Result<std::vector<MigGpu>> read_mig_gpus(MigDevices& node, const std::vector<std::string>& wanted) {
  GPULET_TRY_ASSIGN(const unsigned count, node.open_mig_driver());
  if (count == 0) return fail(Code::kNotFound, "this node has no GPU");
  const bool by_index = !wanted.empty() && std::ranges::all_of(wanted, [](const auto& one) {
    return text::parse_unsigned(one).has_value();
  });
  std::vector<MigGpu> gpus;
  std::vector<std::vector<std::string>> found(wanted.size());  // the UUIDs that each name matches
  for (unsigned index = 0; index < count; ++index) {
    MigGpu gpu;
    gpu.index = index;
    const auto selects = [&](const std::string& one) {
      return one == std::to_string(index) ||
             (one.starts_with("GPU-") && gpu.state.uuid.str().starts_with(one));
    };
    if (by_index && std::ranges::none_of(wanted, selects)) continue;
    auto state = node.read_mig_state(index);
    if (state) {
      gpu.state = std::move(*state);
    } else {
      gpu.unreadable = state.error();
    }
    bool selected = wanted.empty();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (!selects(wanted[i])) continue;
      selected = true;
      found[i].push_back(gpu.state.uuid.str());
    }
    if (selected) gpus.push_back(std::move(gpu));
  }
  const auto several = std::ranges::find_if(found, [](const auto& uuids) { return uuids.size() > 1; });
  if (several != found.end()) {
    return fail(Code::kInvalidArgument, "GPU '" + wanted[static_cast<std::size_t>(several - found.begin())] +
                                            "' is ambiguous; it matches " + text::join_limited(*several));
  }
  const auto missing = std::ranges::find_if(found, &std::vector<std::string>::empty);
  if (missing == found.end()) return gpus;
  const auto& no = wanted[static_cast<std::size_t>(missing - found.begin())];
  return fail(Code::kNotFound,
              "no GPU '" + no + "'; expected an index from 0 to " + std::to_string(count - 1) + " or a UUID");
}

class MigCommandRunner {
 public:
  MigCommandRunner(MigVerb verb, MigOptions options)
      : verb_(verb),
        options_(std::move(options)),
        devices_(options_.driver_root, options_.kubelet_dir + "/pod-resources/kubelet.sock") {}

  Result<CommandOutput> run_verb() {
    if (verb_ == MigVerb::kExport) return run_export();
    GPULET_TRY_ASSIGN(const auto file, read_layout_file(options_.config_file));
    report_.file = file ? file->path : "";
    report_.mode_only = options_.mode_only;
    GPULET_TRY_ASSIGN(report_.gpus, read_mig_gpus(devices_, options_.gpus));
    GPULET_TRY_ASSIGN(report_.config, select_layout(options_.selected_config, file, report_.gpus));
    GPULET_TRY(query_kubelet());
    GPULET_TRY(resolve_layouts(file ? &*file : nullptr));
    const auto planned = plan_gpus();
    if (verb_ == MigVerb::kAssert) return run_assert(planned);
    if (!planned) return fail(planned.error());
    const bool to_do = std::ranges::find(report_.gpus, "to-do", outcome) != report_.gpus.end();
    if (no_kubelet_ && to_do) {
      add_note("no kubelet below " + options_.kubelet_dir + ": only processes count as users of a GPU");
    }
    if (verb_ == MigVerb::kPlan || options_.dry_run) return make_output(mig_plan_text(report_), exit_code());
    if (!pods_error_) return run_apply();
    return fail(pods_error_->with_context(
        "cannot tell which Pods use the GPUs, so nothing was changed (--ignore-pods "
        "checks processes only)"));
  }

 private:
  CommandOutput make_output(const std::string& text, int code) {
    return {code,
            render_output(
                options_.output, [&] { return mig_json(report_); },
                [&](const TableStyle& style) { return wrap_lines(text, style.columns, kMigIndent); }),
            std::move(notes_)};
  }

  void add_note(const std::string& line) {
    notes_ += "gpulet mig " + std::string(verb_name(verb_)) + ": " + line + "\n";
  }

  // Unknown Pods are an error only for apply.
  Status query_kubelet() {
    if (options_.ignore_pods || verb_ == MigVerb::kAssert) return {};
    const auto pods = devices_.list_device_pods();
    if (!pods) {
      pods_error_ = pods.error();
      add_note("cannot tell which Pods use the GPUs: " + pods_error_->full_message());
      return {};
    }
    if (!*pods) {
      no_kubelet_ = true;
      return {};
    }
    report_.pods_known = true;
    for (auto& gpu : report_.gpus) mig::add_pod_holders(gpu.state, **pods);
    return {};
  }

  Status resolve_layouts(const mig::LayoutFile* file) {
    std::vector<mig::State> states;
    std::vector<MigGpu*> of;
    for (auto& gpu : report_.gpus) {
      if (gpu.unreadable) continue;
      states.push_back(gpu.state);
      of.push_back(&gpu);
    }
    if (states.empty()) return {};
    GPULET_TRY_ASSIGN(auto layouts, mig::named_layouts(file, report_.config, states));
    for (std::size_t i = 0; i < of.size(); ++i) of[i]->target = std::move(layouts[i]);
    const bool shows_only = verb_ == MigVerb::kPlan || options_.dry_run;
    if (shows_only || std::ranges::any_of(of, [](const MigGpu* gpu) { return gpu->target.has_value(); }))
      return {};
    return fail(Code::kNotFound, "no entry of " + report_.config + " matches " + describe_gpus(states),
                report_.file);
  }

  // By what an entry selects GPUs: "GPU 0, 1 (NVIDIA H100 80GB HBM3, 0x233010de)".
  static std::string describe_gpus(const std::vector<mig::State>& states) {
    std::map<std::string, std::vector<std::string>> indices;
    for (const auto& state : states) {
      indices[state.model + ", 0x" + hex_text(state.pci_device_id, 8)].push_back(std::to_string(state.index));
    }
    std::vector<std::string> kinds;
    for (const auto& [kind, of] : indices) kinds.push_back("GPU " + text::join(of, ", ") + " (" + kind + ")");
    return text::join(kinds, "; ");
  }

  Result<mig::Plan> plan_gpu(const mig::State& state, const mig::LocatedLayout& wanted) const {
    auto made = options_.mode_only ? mig::plan_mode(state, wanted.layout.enabled)
                                   : mig::make_plan(state, wanted.layout);
    if (made || wanted.location.empty()) return made;
    return fail(made.error().code(), made.error().full_message(), wanted.location);
  }

  // Errors: that of the first GPU that does not support its layout.
  Status plan_gpus() {
    std::optional<Error> first;
    std::size_t more = 0;
    for (auto& gpu : report_.gpus) {
      if (!gpu.target) continue;
      auto made = plan_gpu(gpu.state, *gpu.target);
      if (made) {
        gpu.plan = std::move(*made);
      } else if (first) {
        ++more;
      } else {
        first = made.error();
      }
    }
    if (!first) return {};
    std::string message = first->message();
    if (more != 0) {
      message += "; " + std::to_string(more) + (more == 1 ? " more GPU does" : " more GPUs do") +
                 " not support theirs";
    }
    if (verb_ == MigVerb::kApply) message += "; nothing was changed";
    return fail(first->code(), message, first->subject());
  }

  int exit_code() const {
    int code = 0;
    for (const auto& gpu : report_.gpus) {
      const auto is = outcome(gpu);
      if (is == "unreadable" || is == "failed" || is == "as-before" || is == "in-between") return 1;
      if (is == "blocked" || is == "needs-reset") code = kNeedsAction;
    }
    return code;
  }

  Result<CommandOutput> run_assert(const Status& planned) {
    if (!planned) return fail(planned.error());
    const bool readable = exit_code() != 1;
    if (options_.valid_config) {
      return make_output(readable ? "every GPU supports " + report_.config + "\n" : mig_plan_text(report_),
                         readable ? 0 : 1);
    }
    const bool as_it_says = std::ranges::all_of(report_.gpus, [](const MigGpu& gpu) {
      return outcome(gpu) == "nothing-to-do" || outcome(gpu) == "not-in-config";
    });
    return make_output(mig_assert_text(report_), as_it_says ? 0 : 1);
  }

  bool changes_a_mode() const {
    return std::ranges::any_of(report_.gpus, [](const MigGpu& gpu) {
      return gpu.plan && !gpu.plan->is_blocked() && (gpu.plan->set_mode || gpu.plan->needs_reset);
    });
  }

  // A mode changes only on a GPU that no other client holds, which the agent is.
  Result<CommandOutput> run_apply() {
    std::optional<DriverLease> lease;
    if (changes_a_mode() && !options_.state_dir.empty()) {
      auto acquired =
          DriverLease::acquire_lease({options_.health_file, options_.state_dir}, options_.agent_timeout);
      if (!acquired) {
        return fail(acquired.error().with_context(
            "the agent of this node does not release the driver, so nothing was changed"));
      }
      lease = std::move(*acquired);
    }
    apply_plans();
    if (lease) {
      const auto ended = lease->end_lease(options_.agent_timeout);
      if (!ended) add_note("waiting for the agent to open the driver again: " + ended.error().full_message());
    }
    return make_output(mig_apply_text(report_), exit_code());
  }

  void apply_plans() {
    for (auto& gpu : report_.gpus) {
      if (!gpu.plan || gpu.plan->is_blocked() || gpu.plan->is_noop()) continue;
      const auto planner = [this, wanted = *gpu.target](const mig::State& state) {
        return plan_gpu(state, wanted);
      };
      auto attempt = devices_.plan_and_apply(gpu.index, gpu.state.uuid, planner, report_.pods_known);
      if (attempt) {
        gpu.plan = std::move(attempt->plan);
        gpu.report = std::move(attempt->report);
      } else {
        gpu.failed = attempt.error();
      }
      auto state = devices_.read_mig_state(gpu.index);
      if (state) {
        gpu.state = std::move(*state);
      } else if (!gpu.failed) {
        gpu.failed = state.error();
      }
    }
  }

  Result<CommandOutput> run_export() {
    GPULET_TRY_ASSIGN(auto gpus, read_mig_gpus(devices_, options_.gpus));
    std::vector<mig::State> states;
    CommandOutput answer;
    for (auto& gpu : gpus) {
      if (!gpu.unreadable) {
        states.push_back(std::move(gpu.state));
        continue;
      }
      add_note("GPU " + std::to_string(gpu.index) + " is skipped: " + gpu.unreadable->full_message());
      answer.exit_code = 1;
    }
    answer.err = notes_;
    if (states.empty()) return answer;
    const bool whole = options_.gpus.empty() && answer.exit_code == 0;
    GPULET_TRY_ASSIGN(const auto file, mig::export_layouts(options_.config_label, states, whole));
    if (options_.output.format == "yaml") {
      answer.out = mig::to_yaml(file);  // in the form of mig-parted's own files
    } else {
      answer.out = render_output(
          options_.output, [&] { return mig_export_json(file); },
          [&](const TableStyle& style) { return mig_export_table(file, style); });
    }
    return answer;
  }

  MigVerb verb_;
  MigOptions options_;
  MigDevices devices_;
  MigReport report_;
  std::string notes_;
  bool no_kubelet_ = false;
  std::optional<Error> pods_error_;
};

}  // namespace

CommandOutput mig_output(MigVerb verb, const MigOptions& given) {
  const auto refused = [&](const Error& error, int code) {
    return CommandOutput{
        code, {}, "gpulet mig " + std::string(verb_name(verb)) + ": " + error.full_message() + "\n"};
  };
  auto options = apply_environment(verb, given);
  if (!options) return refused(options.error(), kWrongCommand);
  auto answer = MigCommandRunner(verb, std::move(*options)).run_verb();
  return answer ? std::move(*answer) : refused(answer.error(), 1);
}

int run_mig(MigVerb verb, const MigOptions& options) { return print_output(mig_output(verb, options)); }

// The flags are those of nvidia-mig-parted, and a few more.
void add_mig(CLI::App& app, Run& run) {
  auto& command = add_command(app, {.name = "mig",
                                    .summary = "Plan, apply, check or export MIG layouts",
                                    .examples = "  gpulet mig plan -c all-1g.10gb\n"
                                                "  gpulet mig apply -c all-balanced --gpu 0,1\n"
                                                "  gpulet mig export > layouts.yaml",
                                    .group = kChangeGroup});
  command.require_subcommand(1);
  const auto options = std::make_shared<MigOptions>();
  const auto add = [&](const CommandHelp& help, MigVerb verb) {
    auto& made = add_command(command, help);
    made.add_option("--gpu", options->gpus, "act on these GPUs, by index or UUID (default: all)")
        ->delimiter(',');
    add_driver_root_option(made, options->driver_root);
    made.callback([options, &run, verb] {
      run = [options, verb] {
        options->environment = config::process_environment();
        return run_mig(verb, *options);
      };
    });
    return &made;
  };
  const auto add_layout = [&](CLI::App& made) {
    made.add_option(
        "-f,--config-file", options->config_file,
        "mig-parted layout file, - for standard input (default: the layouts that the hardware supports)");
    made.add_option("-c,--selected-config", options->selected_config, "name of the layout");
    made.add_flag("-m,--mode-only", options->mode_only, "switch MIG mode only and leave instances alone");
    add_output_options(made, options->output);
  };
  const auto add_pods = [&](CLI::App& made) {
    made.add_option("--kubelet-dir", options->kubelet_dir,
                    "root directory of the kubelet (default /var/lib/kubelet)")
        ->group(kNodeGroup);
    made.add_flag("--ignore-pods", options->ignore_pods,
                  "do not query the kubelet for the Pods that use a device");
  };
  auto* plan = add({.name = "plan",
                    .summary = "Show the steps to a MIG layout and what blocks them",
                    .details = "Changes nothing. Exits with 3 if a process or Pod uses an instance that "
                               "would be deleted. Without "
                               "--selected-config it lists the layouts.",
                    .examples = "  gpulet mig plan\n"
                                "  gpulet mig plan -c all-1g.10gb --gpu 0,1"},
                   MigVerb::kPlan);
  auto* apply =
      add({.name = "apply",
           .summary = "Apply a MIG layout. Instances in use are not touched",
           .details = "Each GPU is changed on its own. Exits with 3 if a GPU is blocked or needs a reset.\n"
                      "If a MIG mode changes, the agent of this node releases the driver meanwhile.",
           .examples = "  gpulet mig apply -c all-balanced --gpu 0,1\n"
                       "  gpulet mig apply -f layouts.yaml -c mine --dry-run"},
          MigVerb::kApply);
  auto* check = add({.name = "assert",
                     .summary = "Check that the GPUs match a layout (exit 1 if not)",
                     .examples = "  gpulet mig assert -c all-balanced"},
                    MigVerb::kAssert);
  auto* write = add({.name = "export",
                     .summary = "Write the current layout of the GPUs as a mig-parted file",
                     .examples = "  gpulet mig export > layouts.yaml\n  gpulet mig export -o table"},
                    MigVerb::kExport);
  for (auto* made : {plan, apply, check}) add_layout(*made);
  for (auto* made : {plan, apply}) add_pods(*made);
  options->health_file = DriverOptions().health_file;
  options->state_dir = DriverOptions().state_dir;
  add_agent_path_options(*apply, options->health_file, options->state_dir);
  apply->add_flag("--dry-run", options->dry_run, "show the steps and change nothing");
  check->add_flag("-a,--valid-config", options->valid_config, "check only that the GPUs support the layout");
  add_output_options(*write, options->output,
                     {.names = "-o,--output,--output-format", .default_format = "yaml"});
  write->add_option("-l,--config-label", options->config_label,
                    "name of the exported layout (default current)");
}

}  // namespace gpulet::cli
