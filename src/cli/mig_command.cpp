#include "cli/mig_command.h"

#include <algorithm>
#include <iostream>
#include <set>

#include "base/text.h"
#include "cli/mig_node.h"
#include "cli/mig_report.h"
#include "config/values.h"
#include "config/yaml.h"
#include "mig/derive.h"
#include "mig/export.h"
#include "mig/named.h"

namespace gpulet::cli {
namespace {

constexpr const char* kStandardInput = "standard input";

std::string_view name(MigVerb verb) {
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

// What no flag says, from the environment; then the defaults.
Result<MigOptions> settled(MigVerb verb, MigOptions options) {
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
    if (!read) return fail(Code::kInvalidArgument, "'" + given + "' is neither true nor false", from);
    value = *read;
    return {};
  };
  text(options.kubelet_dir, "GPULET_KUBELET_DIR", "/var/lib/kubelet");
  if (verb == MigVerb::kExport) {
    text(options.config_label, "MIG_PARTED_CONFIG_LABEL", "current");
    text(options.output, "MIG_PARTED_OUTPUT_FORMAT", "yaml");
  } else {
    text(options.config_file, "MIG_PARTED_CONFIG_FILE", "");
    text(options.selected_config, "MIG_PARTED_SELECTED_CONFIG", "");
    if (options.output.empty()) options.output = "text";
    GPULET_TRY(flag(options.mode_only, "MIG_PARTED_MODE_CHANGE_ONLY"));
  }
  if (verb == MigVerb::kAssert) GPULET_TRY(flag(options.valid_config, "MIG_PARTED_VALID_CONFIG"));
  const std::string other = verb == MigVerb::kExport ? "yaml" : "text";
  if (options.output != "json" && options.output != other) {
    return fail(Code::kInvalidArgument,
                "there is no output '" + options.output + "'; " + other + " or json would do");
  }
  return options;
}

// nullopt: the hardware's own layouts.
Result<std::optional<mig::LayoutFile>> read_file(const std::string& path) {
  if (path.empty()) return std::nullopt;
  if (path != "-") return mig::load_layout_file(path);
  std::string text(config::yaml::kMaxTextBytes + 1, '\0');
  std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::cin.gcount()));
  return mig::parse_layout_file(text, kStandardInput);
}

// Errors: no name is given where there are several.
Result<std::string> select(const std::string& name, const std::optional<mig::LayoutFile>& file,
                           const std::vector<MigGpu>& gpus) {
  if (!name.empty()) return name;
  if (file && file->configs.size() == 1) return file->configs.front().name;
  std::vector<std::string> names;
  if (file) {
    for (const auto& config : file->configs) names.push_back(config.name);
  } else {
    std::set<std::string> all;
    for (const auto& gpu : gpus) {
      for (auto& layout : mig::derive(gpu.state)) all.insert(std::move(layout.name));
    }
    names.assign(all.begin(), all.end());
  }
  return fail(Code::kInvalidArgument,
              "no layout is chosen; -c with one of " + text::join(names, ", ") + " would do",
              file ? file->path : "");
}

// The GPUs that `wanted` names, by index; one that cannot be read is only known by its index.
Result<std::vector<MigGpu>> read_gpus(MigNode& node, const std::vector<std::string>& wanted) {
  GPULET_TRY_ASSIGN(const unsigned count, node.open());
  if (count == 0) return fail(Code::kNotFound, "this node has no GPU");
  const bool by_index = !wanted.empty() && std::ranges::all_of(wanted, [](const auto& one) {
    return text::parse_unsigned(one).has_value();
  });
  std::vector<MigGpu> gpus;
  std::vector<bool> found(wanted.size());
  for (unsigned index = 0; index < count; ++index) {
    MigGpu gpu;
    gpu.index = index;
    const auto selects = [&](const std::string& one) {
      return one == std::to_string(index) || (!one.empty() && one == gpu.state.uuid.str());
    };
    if (by_index && std::ranges::none_of(wanted, selects)) continue;
    auto state = node.read(index);
    if (state) {
      gpu.state = std::move(*state);
    } else {
      gpu.unreadable = state.error();
    }
    bool selected = wanted.empty();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (!selects(wanted[i])) continue;
      selected = found[i] = true;
    }
    if (selected) gpus.push_back(std::move(gpu));
  }
  const auto missing = std::ranges::find(found, false);
  if (missing == found.end()) return gpus;
  const auto& no = wanted[static_cast<std::size_t>(missing - found.begin())];
  return fail(Code::kNotFound,
              "no GPU '" + no + "'; an index from 0 to " + std::to_string(count - 1) + " or a UUID would do");
}

class Command {
 public:
  Command(MigVerb verb, MigOptions options)
      : verb_(verb),
        options_(std::move(options)),
        node_(options_.driver_root, options_.kubelet_dir + "/pod-resources/kubelet.sock") {}

  Result<MigAnswer> run() {
    if (verb_ == MigVerb::kExport) return run_export();
    GPULET_TRY_ASSIGN(const auto file, read_file(options_.config_file));
    view_.file = file ? file->path : "";
    view_.mode_only = options_.mode_only;
    GPULET_TRY_ASSIGN(view_.gpus, read_gpus(node_, options_.gpus));
    GPULET_TRY_ASSIGN(view_.config, select(options_.selected_config, file, view_.gpus));
    GPULET_TRY(ask_kubelet());
    GPULET_TRY(choose_layouts(file ? &*file : nullptr));
    const auto planned = plan_all();
    if (verb_ == MigVerb::kAssert) return run_assert(planned);
    if (!planned) return fail(planned.error());
    const bool to_do = std::ranges::find(view_.gpus, "to-do", outcome) != view_.gpus.end();
    if (no_kubelet_ && to_do) {
      note("no kubelet below " + options_.kubelet_dir + ": only processes are known to hold a GPU");
    }
    if (verb_ == MigVerb::kPlan || options_.dry_run) return say(mig_plan_text(view_), exit_code());
    if (!pods_error_) return run_apply();
    return fail(
        pods_error_->with("who holds the GPUs' devices is not known, so nothing was changed (--ignore-pods "
                          "goes by processes alone)"));
  }

 private:
  MigAnswer say(std::string text, int code) {
    return {code, options_.output == "json" ? mig_json(view_) : std::move(text), std::move(notes_)};
  }

  void note(const std::string& line) {
    notes_ += "gpulet mig " + std::string(name(verb_)) + ": " + line + "\n";
  }

  // Not to know the Pods is an error only for who changes something.
  Status ask_kubelet() {
    if (options_.ignore_pods || verb_ == MigVerb::kAssert) return {};
    const auto pods = node_.pods();
    if (!pods) {
      pods_error_ = pods.error();
      note("who holds the GPUs' devices is not known: " + pods_error_->text());
      return {};
    }
    if (!*pods) {
      no_kubelet_ = true;
      return {};
    }
    view_.pods_known = true;
    for (auto& gpu : view_.gpus) mig::add_pods(gpu.state, **pods);
    return {};
  }

  Status choose_layouts(const mig::LayoutFile* file) {
    std::vector<mig::State> states;
    std::vector<MigGpu*> of;
    for (auto& gpu : view_.gpus) {
      if (gpu.unreadable) continue;
      states.push_back(gpu.state);
      of.push_back(&gpu);
    }
    if (states.empty()) return {};
    GPULET_TRY_ASSIGN(auto layouts, mig::named_layouts(file, view_.config, states));
    for (std::size_t i = 0; i < of.size(); ++i) of[i]->wanted = std::move(layouts[i]);
    return {};
  }

  Result<mig::Plan> plan(const mig::State& state, const mig::LayoutAt& wanted) const {
    auto made =
        options_.mode_only ? mig::plan_mode(state, wanted.layout.enabled) : mig::plan(state, wanted.layout);
    if (made || wanted.place.empty()) return made;
    return fail(made.error().code(), made.error().text(), wanted.place);
  }

  // Errors: the first GPU that cannot have its layout.
  Status plan_all() {
    std::optional<Error> first;
    std::size_t more = 0;
    for (auto& gpu : view_.gpus) {
      if (!gpu.wanted) continue;
      auto made = plan(gpu.state, *gpu.wanted);
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
      message +=
          "; " + std::to_string(more) + (more == 1 ? " more GPU refuses" : " more GPUs refuse") + " theirs";
    }
    if (verb_ == MigVerb::kApply) message += "; nothing was changed";
    return fail(first->code(), message, first->about());
  }

  int exit_code() const {
    int code = 0;
    for (const auto& gpu : view_.gpus) {
      const auto is = outcome(gpu);
      if (is == "unreadable" || is == "failed" || is == "as-before" || is == "in-between") return 1;
      if (is == "blocked" || is == "needs-reset") code = 2;
    }
    return code;
  }

  Result<MigAnswer> run_assert(const Status& planned) {
    if (!planned) return fail(planned.error());
    const bool readable = exit_code() != 1;
    if (options_.valid_config) {
      return say(readable ? "every GPU can have " + view_.config + "\n" : mig_plan_text(view_),
                 readable ? 0 : 1);
    }
    const bool as_it_says = std::ranges::all_of(view_.gpus, [](const MigGpu& gpu) {
      return outcome(gpu) == "nothing-to-do" || outcome(gpu) == "not-in-config";
    });
    return say(mig_assert_text(view_), as_it_says ? 0 : 1);
  }

  Result<MigAnswer> run_apply() {
    for (auto& gpu : view_.gpus) {
      if (!gpu.plan || gpu.plan->blocked() || gpu.plan->nothing_to_do()) continue;
      const auto planner = [this, wanted = *gpu.wanted](const mig::State& state) {
        return plan(state, wanted);
      };
      auto attempt = node_.carry_out(gpu.index, gpu.state.uuid, planner, view_.pods_known);
      if (attempt) {
        gpu.plan = std::move(attempt->plan);
        gpu.report = std::move(attempt->report);
      } else {
        gpu.failed = attempt.error();
      }
      auto state = node_.read(gpu.index);
      if (state) {
        gpu.state = std::move(*state);
      } else if (!gpu.failed) {
        gpu.failed = state.error();
      }
    }
    return say(mig_apply_text(view_), exit_code());
  }

  Result<MigAnswer> run_export() {
    GPULET_TRY_ASSIGN(auto gpus, read_gpus(node_, options_.gpus));
    std::vector<mig::State> states;
    MigAnswer answer;
    for (auto& gpu : gpus) {
      if (!gpu.unreadable) {
        states.push_back(std::move(gpu.state));
        continue;
      }
      note("GPU " + std::to_string(gpu.index) + " is left out: " + gpu.unreadable->text());
      answer.exit_code = 1;
    }
    answer.err = notes_;
    if (states.empty()) return answer;
    const bool whole = options_.gpus.empty() && answer.exit_code == 0;
    GPULET_TRY_ASSIGN(const auto file, mig::export_layouts(options_.config_label, states, whole));
    answer.out = options_.output == "json" ? mig_export_json(file) : mig::to_yaml(file);
    return answer;
  }

  MigVerb verb_;
  MigOptions options_;
  MigNode node_;
  MigView view_;
  std::string notes_;
  bool no_kubelet_ = false;
  std::optional<Error> pods_error_;
};

}  // namespace

MigAnswer mig_answer(MigVerb verb, const MigOptions& given) {
  const auto refused = [&](const Error& error, int code) {
    return MigAnswer{code, {}, "gpulet mig " + std::string(name(verb)) + ": " + error.text() + "\n"};
  };
  auto options = settled(verb, given);
  if (!options) return refused(options.error(), 2);
  auto answer = Command(verb, std::move(*options)).run();
  return answer ? std::move(*answer) : refused(answer.error(), 1);
}

int mig(MigVerb verb, const MigOptions& options) {
  const auto answer = mig_answer(verb, options);
  std::cerr << answer.err << std::flush;
  std::cout << answer.out << std::flush;
  return answer.exit_code;
}

}  // namespace gpulet::cli
