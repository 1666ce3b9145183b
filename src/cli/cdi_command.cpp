#include "cli/cdi_command.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "agent/nvml_driver.h"
#include "base/file.h"
#include "base/text.h"
#include "cdi/node_specs.h"
#include "cdi/spec_dirs.h"
#include "cdi/transform_root.h"
#include "config/values.h"

namespace gpulet::cli {
namespace {

using cdi::Mode;

constexpr const char* kSelf = "gpulet cdi: ";
constexpr int kUsage = 2;

std::string variable(const CdiEnvironment& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

// A flag's value, else the variable's, else the default.
void settle(std::string& value, const CdiEnvironment& environment, const char* name, const char* otherwise) {
  if (value.empty()) value = variable(environment, name);
  if (value.empty()) value = otherwise;
}
void settle(std::vector<std::string>& values, const CdiEnvironment& environment, const char* name,
            std::vector<std::string> otherwise = {}) {
  if (values.empty()) {
    for (const auto& value : text::split(variable(environment, name), ',')) {
      if (!text::trim(value).empty()) values.emplace_back(text::trim(value));
    }
  }
  if (values.empty()) values = std::move(otherwise);
}

std::string extension(const std::string& path) {
  return text::lower(std::filesystem::path(path).extension().string());
}

// As nvidia-ctk: by flag, by variable, by the file's name, yaml.
std::string chosen_format(const CdiGenerateOptions& options) {
  const std::string given = options.format.empty()
                                ? variable(options.environment, "NVIDIA_CTK_CDI_GENERATE_OUTPUT_FORMAT")
                                : options.format;
  if (!given.empty()) return text::lower(given);
  return extension(options.output) == ".json" ? "json" : "yaml";
}

// "/x/nvidia" gets ".yaml", "/x/nvidia.yml" becomes ".yaml": engines read no other names.
std::string output_path(const std::string& output, const std::string& format) {
  const auto ending = extension(output);
  if (ending == ".yaml" || ending == ".json") return output;
  if (ending == ".yml") return output.substr(0, output.size() - 4) + ".yaml";
  return output + "." + format;
}

std::string program_folder() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path().string();
}

std::string found_program(const std::string& name, const CdiEnvironment& environment) {
  if (name.find('/') != std::string::npos) return name;
  std::vector<std::string> folders;
  if (name == "gpulet-hook") folders.push_back(program_folder());
  for (const auto& folder : text::split(variable(environment, "PATH"), ':')) folders.push_back(folder);
  for (const auto& folder : folders) {
    const std::string path = folder + "/" + name;
    if (folder.starts_with('/') && ::access(path.c_str(), X_OK) == 0) return path;
  }
  return "/usr/bin/" + name;
}

CdiGenerateOptions settled(CdiGenerateOptions options) {
  const auto& environment = options.environment;
  settle(options.output, environment, "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", "");
  options.format = chosen_format(options);
  settle(options.mode, environment, "NVIDIA_CTK_CDI_GENERATE_MODE", "auto");
  settle(options.driver_root, environment, "NVIDIA_CTK_DRIVER_ROOT", "/");
  settle(options.dev_root, environment, "NVIDIA_CTK_DEV_ROOT", "");
  settle(options.device_name_strategies, environment, "NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES",
         {"index", "uuid"});
  settle(options.config_search_paths, environment, "NVIDIA_CTK_CDI_GENERATE_CONFIG_SEARCH_PATHS");
  settle(options.library_search_paths, environment, "NVIDIA_CTK_CDI_GENERATE_LIBRARY_SEARCH_PATHS");
  settle(options.hook_path, environment, "NVIDIA_CTK_CDI_HOOK_PATH", "gpulet-hook");
  settle(options.ldconfig_path, environment, "NVIDIA_CTK_CDI_GENERATE_LDCONFIG_PATH", "");
  settle(options.vendor, environment, "NVIDIA_CTK_CDI_GENERATE_VENDOR", "nvidia.com");
  settle(options.device_class, environment, "NVIDIA_CTK_CDI_GENERATE_CLASS", "gpu");
  settle(options.disabled_hooks, environment, "NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS");
  settle(options.enabled_hooks, environment, "NVIDIA_CTK_CDI_GENERATE_ENABLED_HOOKS");
  settle(options.feature_flags, environment, "NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS");
  settle(options.device_ids, environment, "NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS", {"all"});
  const auto no_all = variable(environment, "NVIDIA_CTK_CDI_GENERATE_NO_ALL_DEVICE");
  if (!no_all.empty())
    options.no_all_device = options.no_all_device || config::parse_go_bool(no_all).value_or(false);
  return options;
}

struct Request {
  bool auto_mode = false;
  cdi::GenerateOptions generate;
  cdi::DriverFileOptions driver;
};

// What the options ask for. Errors: kInvalidArgument, kUnsupported.
Result<Request> request(const CdiGenerateOptions& options) {
  Request made;
  auto& generate = made.generate;
  if (options.format != "json" && options.format != "yaml") {
    return fail(Code::kInvalidArgument, "there is no format '" + options.format + "': json or yaml");
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
  generate.hooks.path = found_program(options.hook_path, options.environment);
  generate.hooks.ldconfig_path = options.ldconfig_path;
  generate.hooks.disabled.insert(options.disabled_hooks.begin(), options.disabled_hooks.end());
  generate.hooks.enabled.insert(options.enabled_hooks.begin(), options.enabled_hooks.end());
  made.driver.config_search_paths = options.config_search_paths;
  made.driver.library_search_paths = options.library_search_paths;
  return made;
}

// The document, with what could not be had of it as lines in `notes`.
Result<cdi::Spec> make_spec(const CdiGenerateOptions& options, Request request, const ReadSnapshot& read,
                            std::vector<std::string>& notes) {
  GPULET_TRY_ASSIGN(const auto roots, cdi::open_roots({.driver = options.driver_root,
                                                       .dev = options.dev_root,
                                                       .proc = options.proc,
                                                       .sys = options.sys}));
  auto files = cdi::DeviceFiles::read(roots);
  auto& mode = request.generate.mode;
  if (request.auto_mode) mode = roots.dev.exists("/dev/dxg") ? Mode::kWsl : Mode::kNvml;

  inventory::Snapshot snapshot;
  if (mode == Mode::kNvml || mode == Mode::kManagement) {
    auto answer = read(options.driver_root);
    // Who manages GPUs gets their nodes whether or not the driver answers.
    if (!answer && mode == Mode::kNvml) return fail(answer.error());
    if (answer) snapshot = std::move(*answer);
  }
  cdi::DriverFiles driver;
  if (mode == Mode::kWsl) {
    GPULET_TRY_ASSIGN(driver, cdi::find_wsl_files(roots));
  } else if (mode == Mode::kNvml || mode == Mode::kManagement) {
    GPULET_TRY_ASSIGN(driver, cdi::find_driver_files(roots, snapshot.driver.version, request.driver));
  }
  const auto found = cdi::collect(mode, roots, files, snapshot);
  GPULET_TRY_ASSIGN(auto made, cdi::generate(snapshot, driver, found, request.generate));
  const auto note = [&](const std::vector<std::string>& lines) {
    notes.insert(notes.end(), lines.begin(), lines.end());
  };
  note(driver.warnings);
  note(files.warnings());
  note(made.warnings);
  return std::move(made.spec);
}

CdiAnswer failed(int code, const Error& error) { return {code, "", kSelf + error.text() + "\n"}; }

// The document to a file, unless it is there already, or to standard output.
CdiAnswer put_out(const cdi::Spec& spec, const std::string& output, const std::string& format,
                  CdiAnswer answer) {
  const std::string text = format == "json" ? cdi::to_json(spec) : cdi::to_yaml(spec);
  if (output.empty()) {
    answer.out = text;
    return answer;
  }
  const auto path = output_path(output, format);
  if (const auto there = read_file(path); there && *there == text) return answer;
  if (const auto done = write_file_atomic(path, text); !done) return failed(1, done.error());
  return answer;
}

std::string lines_of(const std::vector<cdi::SpecProblem>& problems) {
  std::string text;
  for (const auto& problem : problems) text += problem.text() + "\n";
  return text;
}

int printed(const CdiAnswer& answer) {
  std::cerr << answer.err;
  std::cout << answer.out << std::flush;
  return answer.exit_code;
}

std::vector<std::string> spec_dirs(std::vector<std::string> given, const CdiEnvironment& environment) {
  settle(given, environment, "NVIDIA_CTK_CDI_SPEC_DIRS", cdi::kSpecDirs);
  return given;
}

}  // namespace

CdiAnswer cdi_generate_answer(const CdiGenerateOptions& given, const ReadSnapshot& read) {
  const auto options = settled(given);
  const auto asked = request(options);
  if (!asked) return failed(kUsage, asked.error());
  std::vector<std::string> notes;
  const auto spec = make_spec(options, *asked, read, notes);
  if (!spec) return failed(1, spec.error());
  CdiAnswer answer;
  for (const auto& note : notes) answer.err += kSelf + note + "\n";
  return put_out(*spec, options.output, options.format, std::move(answer));
}

CdiAnswer cdi_list_answer(const CdiListOptions& options) {
  const auto read = cdi::read_spec_dirs(spec_dirs(options.spec_dirs, options.environment));
  CdiAnswer answer;
  answer.err = lines_of(read.problems);
  for (const auto& device : read.devices) answer.out += device + "\n";
  return answer;
}

CdiAnswer cdi_validate_answer(const CdiValidateOptions& options) {
  std::vector<cdi::SpecProblem> problems;
  std::size_t files = options.files.size();
  for (const auto& file : options.files) {
    const auto read = cdi::read_spec_file(file);
    problems.insert(problems.end(), read.problems.begin(), read.problems.end());
  }
  if (options.files.empty()) {
    auto read = cdi::read_spec_dirs(spec_dirs(options.spec_dirs, options.environment));
    problems = std::move(read.problems);
    files = read.files.size();
  }
  if (!problems.empty()) return {1, lines_of(problems), ""};
  return {0, std::to_string(files) + (files == 1 ? " file is right\n" : " files are right\n"), ""};
}

CdiAnswer cdi_transform_answer(const CdiTransformOptions& options) {
  const auto side = cdi::parse_path_side(options.relative_to);
  if (!side) return failed(kUsage, side.error());
  const bool piped = options.input == "-";
  const auto text = piped ? read_all(STDIN_FILENO, "standard input", config::yaml::kMaxTextBytes)
                          : read_file(options.input, config::yaml::kMaxTextBytes);
  if (!text) return failed(1, text.error());
  auto read = cdi::read_spec(*text, piped ? "standard input" : options.input);
  if (!read.spec) return {1, "", lines_of(read.problems)};
  const auto root = [](const std::string& given) { return given.empty() ? "/" : given; };
  const auto done = cdi::transform_root(*read.spec, root(options.from), root(options.to), *side);
  if (!done) return failed(kUsage, done.error());
  return put_out(*read.spec, options.output, extension(options.output) == ".json" ? "json" : "yaml", {});
}

int cdi_generate(const CdiGenerateOptions& options) {
  return printed(cdi_generate_answer(options, [](const std::string& driver_root) {
    return agent::read_snapshot({.driver_root = driver_root});
  }));
}

int cdi_list(const CdiListOptions& options) { return printed(cdi_list_answer(options)); }

int cdi_validate(const CdiValidateOptions& options) { return printed(cdi_validate_answer(options)); }

int cdi_transform(const CdiTransformOptions& options) { return printed(cdi_transform_answer(options)); }

}  // namespace gpulet::cli
