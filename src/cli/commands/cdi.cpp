#include "cli/commands/cdi.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "agent/driver/gpu_presence.h"
#include "agent/driver/nvml_driver.h"
#include "base/file.h"
#include "base/text.h"
#include "cdi/generate.h"
#include "cdi/spec.h"
#include "cdi/spec_files.h"
#include "cli/commands/commands.h"
#include "cli/main/command_line.h"
#include "config/load.h"
#include "config/values.h"

namespace gpulet::cli {
namespace {

using Json = nlohmann::ordered_json;
using cdi::Mode;

constexpr const char* kCommandPrefix = "gpulet cdi generate: ";
constexpr const char* kTransform = "transform root";

std::string environment_value(const CdiEnvironment& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

// A flag's value, else the variable's, else the default.
void apply_default(std::string& value, const CdiEnvironment& environment, const char* name,
                   const char* otherwise) {
  if (value.empty()) value = environment_value(environment, name);
  if (value.empty()) value = otherwise;
}
void apply_default(std::vector<std::string>& values, const CdiEnvironment& environment, const char* name,
                   std::vector<std::string> otherwise = {}) {
  if (values.empty()) {
    for (const auto& value : text::split(environment_value(environment, name), ',')) {
      if (!text::trim(value).empty()) values.emplace_back(text::trim(value));
    }
  }
  if (values.empty()) values = std::move(otherwise);
}

std::string lower_extension(const std::string& path) {
  return text::lower(std::filesystem::path(path).extension().string());
}

// As nvidia-ctk: flag, variable, file name, yaml.
std::string chosen_format(const CdiGenerateOptions& options) {
  const std::string given =
      options.format.empty() ? environment_value(options.environment, "NVIDIA_CTK_CDI_GENERATE_OUTPUT_FORMAT")
                             : options.format;
  if (!given.empty()) return text::lower(given);
  return lower_extension(options.output) == ".json" ? "json" : "yaml";
}

// "/x/nvidia" gets ".yaml", "/x/nvidia.yml" becomes ".yaml": container engines read no other names.
std::string output_path(const std::string& output, const std::string& format) {
  const auto ending = lower_extension(output);
  if (ending == ".yaml" || ending == ".json") return output;
  if (ending == ".yml") return output.substr(0, output.size() - 4) + ".yaml";
  return output + "." + format;
}

std::string program_directory() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path().string();
}

std::string find_program(const std::string& name, const CdiEnvironment& environment) {
  if (name.find('/') != std::string::npos) return name;
  std::vector<std::string> directories;
  if (name == "gpulet-hook") directories.push_back(program_directory());
  for (const auto& directory : text::split(environment_value(environment, "PATH"), ':'))
    directories.push_back(directory);
  for (const auto& directory : directories) {
    const std::string path = directory + "/" + name;
    if (directory.starts_with('/') && ::access(path.c_str(), X_OK) == 0) return path;
  }
  return "/usr/bin/" + name;
}

CdiGenerateOptions with_defaults(CdiGenerateOptions options) {
  const auto& environment = options.environment;
  apply_default(options.output, environment, "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", "");
  options.format = chosen_format(options);
  apply_default(options.mode, environment, "NVIDIA_CTK_CDI_GENERATE_MODE", "auto");
  apply_default(options.driver_root, environment, "NVIDIA_CTK_DRIVER_ROOT", "");
  apply_default(options.driver_root, environment, "DRIVER_ROOT_CTR_PATH", "/");
  apply_default(options.dev_root, environment, "NVIDIA_CTK_DEV_ROOT", "");
  apply_default(options.device_name_strategies, environment, "NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES",
                {"index", "uuid"});
  apply_default(options.config_search_paths, environment, "NVIDIA_CTK_CDI_GENERATE_CONFIG_SEARCH_PATHS");
  apply_default(options.library_search_paths, environment, "NVIDIA_CTK_CDI_GENERATE_LIBRARY_SEARCH_PATHS");
  apply_default(options.hook_path, environment, "NVIDIA_CTK_CDI_HOOK_PATH", "gpulet-hook");
  apply_default(options.ldconfig_path, environment, "NVIDIA_CTK_CDI_GENERATE_LDCONFIG_PATH", "");
  apply_default(options.vendor, environment, "NVIDIA_CTK_CDI_GENERATE_VENDOR", "nvidia.com");
  apply_default(options.device_class, environment, "NVIDIA_CTK_CDI_GENERATE_CLASS", "gpu");
  apply_default(options.disabled_hooks, environment, "NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS");
  apply_default(options.enabled_hooks, environment, "NVIDIA_CTK_CDI_GENERATE_ENABLED_HOOKS");
  apply_default(options.feature_flags, environment, "NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS");
  apply_default(options.device_ids, environment, "NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS", {"all"});
  const auto no_all = environment_value(environment, "NVIDIA_CTK_CDI_GENERATE_NO_ALL_DEVICE");
  if (!no_all.empty())
    options.no_all_device = options.no_all_device || config::parse_go_bool(no_all).value_or(false);
  return options;
}

struct GenerateRequest {
  bool auto_mode = false;
  cdi::GenerateOptions generate;
  cdi::DriverFileOptions driver;
};

// Validates the options. Errors: kInvalidArgument, kUnsupported.
Result<GenerateRequest> parse_generate_request(const CdiGenerateOptions& options) {
  GenerateRequest made;
  auto& generate = made.generate;
  if (options.format != "json" && options.format != "yaml") {
    return fail(Code::kInvalidArgument, "unknown format '" + options.format + "'; expected json or yaml");
  }
  const auto mode = text::lower(options.mode);
  made.auto_mode = mode == "auto";
  if (!made.auto_mode) {
    GPULET_TRY_ASSIGN(generate.mode, cdi::parse_mode(mode));
  }
  generate.names.clear();
  for (const auto& strategy : options.device_name_strategies) {
    GPULET_TRY_ASSIGN(generate.names.emplace_back(), cdi::parse_name_strategy(strategy));
  }
  GPULET_TRY(cdi::check_vendor(options.vendor));
  GPULET_TRY(cdi::check_class(options.device_class));
  for (const auto& hook : options.disabled_hooks) GPULET_TRY(cdi::check_hook_name(hook, true));
  for (const auto& hook : options.enabled_hooks) GPULET_TRY(cdi::check_hook_name(hook, false));
  for (const auto& flag : options.feature_flags) {
    GPULET_TRY(cdi::apply_feature_flag(flag, made.driver, generate.additional_gids));
  }
  generate.vendor = options.vendor;
  generate.device_class = options.device_class;
  generate.device_ids = options.device_ids;
  generate.all_device = !options.no_all_device;
  generate.hooks.path = find_program(options.hook_path, options.environment);
  generate.hooks.ldconfig_path = options.ldconfig_path;
  generate.hooks.disabled.insert(options.disabled_hooks.begin(), options.disabled_hooks.end());
  generate.hooks.enabled.insert(options.enabled_hooks.begin(), options.enabled_hooks.end());
  made.driver.config_search_paths = options.config_search_paths;
  made.driver.library_search_paths = options.library_search_paths;
  return made;
}

// Returns the spec. `notes` gets one line for each part that is missing from it.
Result<cdi::Spec> make_spec(const CdiGenerateOptions& options, GenerateRequest request,
                            const SnapshotReader& read, std::vector<std::string>& notes) {
  GPULET_TRY_ASSIGN(const auto roots, cdi::open_roots({.driver = options.driver_root,
                                                       .dev = options.dev_root,
                                                       .proc = options.proc,
                                                       .sys = options.sys}));
  auto files = cdi::DeviceFiles::scan_dev_root(roots);
  auto& mode = request.generate.mode;
  if (request.auto_mode) mode = roots.dev.exists("/dev/dxg") ? Mode::kWsl : Mode::kNvml;

  inventory::Snapshot snapshot;
  if (mode == Mode::kNvml || mode == Mode::kManagement) {
    auto answer = read(options.driver_root, options.library_search_paths);
    // Management mode lists device nodes and does not need a working driver.
    if (!answer && mode == Mode::kNvml)
      return fail(agent::explain_driver_error(answer.error(), {options.driver_root}));
    if (answer) snapshot = std::move(*answer);
    mark_reported_excluded(options.health_file, snapshot);
  }
  cdi::DriverFiles driver;
  if (mode == Mode::kWsl) {
    GPULET_TRY_ASSIGN(driver, cdi::find_wsl_files(roots));
  } else if (mode == Mode::kNvml || mode == Mode::kManagement) {
    GPULET_TRY_ASSIGN(driver, cdi::find_driver_files(roots, snapshot.driver.version, request.driver));
  }
  const auto found = cdi::collect_node_files(mode, roots, files, snapshot);
  GPULET_TRY_ASSIGN(auto made, cdi::generate(snapshot, driver, found, request.generate));
  const auto note = [&](const std::vector<std::string>& lines) {
    notes.insert(notes.end(), lines.begin(), lines.end());
  };
  note(driver.warnings);
  note(files.warnings());
  note(made.warnings);
  return std::move(made.spec);
}

CommandOutput failed_output(int code, const Error& error, std::string_view verb = "generate") {
  return error_output("gpulet cdi " + std::string(verb), error.full_message(), code);
}

// Writes the spec to a file, unless the file has that content, or to standard output.
CommandOutput write_spec(const cdi::Spec& spec, const std::string& output, const std::string& format,
                         CommandOutput answer, std::string_view verb = "generate") {
  const std::string text = format == "json" ? cdi::to_json(spec) : cdi::to_yaml(spec);
  if (output.empty()) {
    answer.out = text;
    return answer;
  }
  const auto path = output_path(output, format);
  if (const auto there = read_file(path); there && *there == text) return answer;
  if (const auto done = write_file_atomic(path, text); !done) return failed_output(1, done.error(), verb);
  return answer;
}

std::string problem_lines(const std::vector<cdi::SpecProblem>& problems) {
  std::string text;
  for (const auto& problem : problems) text += problem.problem_text() + "\n";
  return text;
}

std::vector<std::string> problem_list(const std::vector<cdi::SpecProblem>& problems) {
  std::vector<std::string> list;
  for (const auto& problem : problems) list.push_back(problem.problem_text());
  return list;
}

std::vector<std::string> spec_directories(std::vector<std::string> given, const CdiEnvironment& environment) {
  apply_default(given, environment, "NVIDIA_CTK_CDI_SPEC_DIRS", cdi::kSpecDirs);
  return given;
}

}  // namespace

CommandOutput cdi_generate_output(const CdiGenerateOptions& given, const SnapshotReader& read) {
  const auto options = with_defaults(given);
  const auto asked = parse_generate_request(options);
  if (!asked) return failed_output(kWrongCommand, asked.error());
  std::vector<std::string> notes;
  const auto spec = make_spec(options, *asked, read, notes);
  if (!spec) return failed_output(1, spec.error());
  CommandOutput answer;
  for (const auto& note : notes) answer.err += kCommandPrefix + note + "\n";
  return write_spec(*spec, options.output, options.format, std::move(answer));
}

CommandOutput cdi_list_output(const CdiListOptions& options) {
  const auto read = cdi::read_spec_dirs(spec_directories(options.spec_dirs, options.environment));
  CommandOutput answer;
  if (!options.output.is_document()) answer.err = problem_lines(read.problems);
  answer.out = render_output(
      options.output,
      [&] { return document_text({{"devices", read.devices}, {"problems", problem_list(read.problems)}}); },
      [&](const TableStyle&) {
        std::string text;
        for (const auto& device : read.devices) text += device + "\n";
        return text;
      });
  return answer;
}

CommandOutput cdi_validate_output(const CdiValidateOptions& options) {
  std::vector<cdi::SpecProblem> problems;
  auto files = options.files;
  for (const auto& file : options.files) {
    const auto read = cdi::read_spec_file(file);
    problems.insert(problems.end(), read.problems.begin(), read.problems.end());
  }
  if (options.files.empty()) {
    auto read = cdi::read_spec_dirs(spec_directories(options.spec_dirs, options.environment));
    problems = std::move(read.problems);
    files = std::move(read.files);
  }
  const bool valid = problems.empty();
  CommandOutput answer{.exit_code = valid ? 0 : kFailed, .out = {}, .err = {}};
  answer.out = render_output(
      options.output,
      [&] {
        return document_text({{"valid", valid}, {"files", files}, {"problems", problem_list(problems)}});
      },
      [&](const TableStyle&) {
        if (!valid) return problem_lines(problems);
        return std::to_string(files.size()) + (files.size() == 1 ? " file is valid\n" : " files are valid\n");
      });
  return answer;
}

CommandOutput cdi_transform_output(const CdiTransformOptions& options) {
  const auto side = cdi::parse_path_side(options.relative_to);
  if (!side) return failed_output(kWrongCommand, side.error(), kTransform);
  const bool piped = options.input == "-";
  const auto text = piped ? read_all(STDIN_FILENO, "standard input", config::yaml::kMaxTextBytes)
                          : read_file(options.input, config::yaml::kMaxTextBytes);
  if (!text) return failed_output(1, text.error(), kTransform);
  auto read = cdi::read_spec(*text, piped ? "standard input" : options.input);
  if (!read.spec) return {1, "", problem_lines(read.problems)};
  const auto root = [](const std::string& given) { return given.empty() ? "/" : given; };
  const auto done = cdi::transform_root(*read.spec, root(options.from), root(options.to), *side);
  if (!done) return failed_output(kWrongCommand, done.error(), kTransform);
  return write_spec(*read.spec, options.output, lower_extension(options.output) == ".json" ? "json" : "yaml",
                    {}, kTransform);
}

int run_cdi_generate(const CdiGenerateOptions& options) {
  return print_output(cdi_generate_output(
      options, [](const std::string& driver_root, const std::vector<std::string>& library_directories) {
        return agent::read_snapshot_once(
            {.driver_root = driver_root, .library_directories = library_directories});
      }));
}

int run_cdi_list(const CdiListOptions& options) { return print_output(cdi_list_output(options)); }

int run_cdi_validate(const CdiValidateOptions& options) { return print_output(cdi_validate_output(options)); }

int run_cdi_transform(const CdiTransformOptions& options) {
  return print_output(cdi_transform_output(options));
}

namespace {

void add_cdi_generate(CLI::App& parent, Run& run) {
  auto& command = add_command(parent, {.name = "generate",
                                       .summary = "Generate a CDI spec for this node's GPUs",
                                       .examples = "  gpulet cdi generate --output /etc/cdi/nvidia.yaml\n"
                                                   "  gpulet cdi generate --mode management --format json"});
  const auto options = std::make_shared<CdiGenerateOptions>();
  auto& o = *options;
  const auto list = [&](const char* names, std::vector<std::string>& values, const char* help) {
    return command.add_option(names, values, help)->delimiter(',')->allow_extra_args(false);
  };
  constexpr const char* kSpecGroup = "What the spec has";
  command.add_option("--output", o.output, "file to write (default: standard output)");
  command.add_option("--format", o.format, "yaml or json (default: by the file's name, else yaml)");
  command.add_option("--mode,--discovery-mode", o.mode,
                     "auto, nvml, gds, mofed, gdrcopy, nvswitch, imex, management or wsl (default auto)");
  command
      .add_option("--driver-root", o.driver_root,
                  "root directory of the driver's files (default: $NVIDIA_CTK_DRIVER_ROOT, "
                  "$DRIVER_ROOT_CTR_PATH, or /)")
      ->group(kNodeGroup);
  command.add_option("--dev-root", o.dev_root, "directory that contains dev/ (default: the driver root)")
      ->group(kNodeGroup);
  list("--device-name-strategy", o.device_name_strategies, "index, uuid or type-index (default index,uuid)")
      ->group(kSpecGroup);
  list("--config-search-path", o.config_search_paths, "directories to search for config files")
      ->group(kNodeGroup);
  list("--library-search-path", o.library_search_paths, "directories to search for libraries")
      ->group(kNodeGroup);
  command
      .add_option("--nvidia-cdi-hook-path,--nvidia-ctk-path", o.hook_path,
                  "hook program (default gpulet-hook)")
      ->group(kSpecGroup);
  command.add_option("--ldconfig-path", o.ldconfig_path, "the host's ldconfig")->group(kSpecGroup);
  command.add_option("--vendor,--cdi-vendor", o.vendor, "vendor of the CDI kind (default nvidia.com)")
      ->group(kSpecGroup);
  command.add_option("--class,--cdi-class", o.device_class, "class of the CDI kind (default gpu)")
      ->group(kSpecGroup);
  list("--disable-hook,--disable-hooks", o.disabled_hooks, "hooks to leave out, or all")->group(kSpecGroup);
  list("--enable-hook,--enable-hooks", o.enabled_hooks, "hooks to keep despite --disable-hook")
      ->group(kSpecGroup);
  list("--feature-flag,--feature-flags", o.feature_flags, "feature flags, listed in docs/cdi.md")
      ->group(kSpecGroup);
  list("--device-id,--device-ids,--device,--devices", o.device_ids, "devices to include (default all)")
      ->group(kSpecGroup);
  command.add_flag("--no-all-device", o.no_all_device, "leave out the device `all`")->group(kSpecGroup);
  command.callback([options, &run] {
    run = [options] {
      options->environment = config::process_environment();
      return run_cdi_generate(*options);
    };
  });
}

void add_cdi_transform(CLI::App& parent, Run& run) {
  auto& command = add_command(
      parent, {.name = "transform",
               .summary = "Rewrite a CDI spec",
               .examples = "  gpulet cdi transform root --from /driver-root --to / --input spec.yaml"});
  command.require_subcommand(1);
  auto& root = add_command(
      command, {.name = "root",
                .summary = "Rewrite host paths in a spec for a different root",
                .examples = "  gpulet cdi transform root --from /driver-root --to / --input spec.yaml"});
  const auto options = std::make_shared<CdiTransformOptions>();
  auto& o = *options;
  root.add_option("--input", o.input, "spec to read, - for standard input (default -)");
  root.add_option("--output", o.output, "file to write (default: standard output)");
  root.add_option("--from", o.from, "root directory of the spec's paths (default /)");
  root.add_option("--to", o.to, "root directory that replaces it (default /)");
  root.add_option("--relative-to", o.relative_to, "which paths to rewrite: host or container (default host)");
  root.callback([options, &run] { run = [options] { return run_cdi_transform(*options); }; });
}

void add_cdi_list(CLI::App& parent, Run& run) {
  auto& command = add_command(parent, {.name = "list",
                                       .summary = "List the CDI devices that a container engine finds",
                                       .examples = "  gpulet cdi list\n  gpulet cdi list -o json"});
  const auto options = std::make_shared<CdiListOptions>();
  command
      .add_option("--spec-dir", options->spec_dirs, "directories of specs (default /etc/cdi,/var/run/cdi)")
      ->delimiter(',');
  add_output_options(command, options->output);
  command.callback([options, &run] {
    run = [options] {
      options->environment = config::process_environment();
      return run_cdi_list(*options);
    };
  });
}

void add_cdi_validate(CLI::App& parent, Run& run) {
  auto& command = add_command(parent, {.name = "validate",
                                       .summary = "Validate CDI specs and report every mistake",
                                       .examples = "  gpulet cdi validate /etc/cdi/nvidia.yaml"});
  const auto options = std::make_shared<CdiValidateOptions>();
  command.add_option("FILE", options->files, "specs to validate (default: all of the spec directories)");
  command
      .add_option("--spec-dir", options->spec_dirs, "directories of specs (default /etc/cdi,/var/run/cdi)")
      ->delimiter(',');
  add_output_options(command, options->output);
  command.callback([options, &run] {
    run = [options] {
      options->environment = config::process_environment();
      return run_cdi_validate(*options);
    };
  });
}

}  // namespace

// The flags are those of nvidia-ctk.
void add_cdi(CLI::App& app, Run& run) {
  auto& command =
      add_command(app, {.name = "cdi",
                        .summary = "Generate, list, validate or transform CDI specs",
                        .examples = "  gpulet cdi generate --output /etc/cdi/nvidia.yaml\n  gpulet cdi list",
                        .group = kChangeGroup});
  command.require_subcommand(1);
  add_cdi_generate(command, run);
  add_cdi_list(command, run);
  add_cdi_validate(command, run);
  add_cdi_transform(command, run);
}

}  // namespace gpulet::cli
