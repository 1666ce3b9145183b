#include <CLI/CLI.hpp>
#include <memory>

#include "cli/cdi_command.h"
#include "cli/registrations.h"
#include "config/load.h"

namespace gpulet::cli {
namespace {

void add_generate(CLI::App& command, Run& run) {
  const auto options = std::make_shared<CdiGenerateOptions>();
  auto& o = *options;
  const auto list = [&](const char* names, std::vector<std::string>& values, const char* help) {
    command.add_option(names, values, help)->delimiter(',')->allow_extra_args(false);
  };
  command.add_option("--output", o.output, "the file (standard output)");
  command.add_option("--format", o.format, "yaml or json (by the file's name, else yaml)");
  command.add_option("--mode,--discovery-mode", o.mode,
                     "auto, nvml, gds, mofed, gdrcopy, nvswitch, imex, management or wsl (auto)");
  command.add_option("--driver-root", o.driver_root, "where the driver's files are (/)");
  command.add_option("--dev-root", o.dev_root, "where dev/ is (the driver root)");
  list("--device-name-strategy", o.device_name_strategies, "index, uuid or type-index (index and uuid)");
  list("--config-search-path", o.config_search_paths, "folders of config files");
  list("--library-search-path", o.library_search_paths, "folders of libraries");
  command.add_option("--nvidia-cdi-hook-path,--nvidia-ctk-path", o.hook_path,
                     "the hook's program (gpulet-hook)");
  command.add_option("--ldconfig-path", o.ldconfig_path, "the host's ldconfig");
  command.add_option("--vendor,--cdi-vendor", o.vendor, "the kind's vendor (nvidia.com)");
  command.add_option("--class,--cdi-class", o.device_class, "the kind's class (gpu)");
  list("--disable-hook,--disable-hooks", o.disabled_hooks, "hooks to leave out; all: every one");
  list("--enable-hook,--enable-hooks", o.enabled_hooks, "hooks to keep all the same");
  list("--feature-flag,--feature-flags", o.feature_flags, "docs/cdi.md lists them");
  list("--device-id,--device-ids,--device,--devices", o.device_ids, "only these devices (all)");
  command.add_flag("--no-all-device", o.no_all_device, "without the device `all`");
  command.callback([options, &run] {
    run = [options] {
      options->environment = config::process_environment();
      return cdi_generate(*options);
    };
  });
}

void add_transform(CLI::App& command, Run& run) {
  command.require_subcommand(1);
  auto* root = command.add_subcommand("root", "for files that are below another folder");
  const auto options = std::make_shared<CdiTransformOptions>();
  auto& o = *options;
  root->add_option("--input", o.input, "a spec (-: standard input)");
  root->add_option("--output", o.output, "a file (standard output)");
  root->add_option("--from", o.from, "the folder in the spec's paths (/)");
  root->add_option("--to", o.to, "the folder in its place (/)");
  root->add_option("--relative-to", o.relative_to, "whose paths change: host (default) or container");
  root->callback([options, &run] { run = [options] { return cdi_transform(*options); }; });
}

void add_list(CLI::App& command, Run& run) {
  const auto options = std::make_shared<CdiListOptions>();
  command.add_option("--spec-dir", options->spec_dirs, "folders of specs (/etc/cdi, /var/run/cdi)")
      ->delimiter(',');
  command.callback([options, &run] {
    run = [options] {
      options->environment = config::process_environment();
      return cdi_list(*options);
    };
  });
}

void add_validate(CLI::App& command, Run& run) {
  const auto options = std::make_shared<CdiValidateOptions>();
  command.add_option("file", options->files, "specs (those of the folders)");
  command.add_option("--spec-dir", options->spec_dirs, "folders of specs (/etc/cdi, /var/run/cdi)")
      ->delimiter(',');
  command.callback([options, &run] {
    run = [options] {
      options->environment = config::process_environment();
      return cdi_validate(*options);
    };
  });
}

}  // namespace

// The flags are nvidia-ctk's.
void add_cdi(CLI::App& app, Run& run) {
  auto* command = app.add_subcommand("cdi", "CDI specs: generate, list, validate, transform");
  command->require_subcommand(1);
  add_generate(*command->add_subcommand("generate", "a spec of this node's GPUs"), run);
  add_list(*command->add_subcommand("list", "the devices that a container engine knows"), run);
  add_validate(*command->add_subcommand("validate", "whether specs are right: every mistake, one a line"),
               run);
  add_transform(*command->add_subcommand("transform", "change a spec"), run);
}

}  // namespace gpulet::cli
