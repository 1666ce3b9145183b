#include <CLI/CLI.hpp>
#include <memory>

#include "cli/migrate_command.h"
#include "cli/registrations.h"

namespace gpulet::cli {

void add_migrate(CLI::App& app, Run& run) {
  auto* command = app.add_subcommand("migrate", "from NVIDIA's programs to gpulet, and back");
  command->require_subcommand(1);
  auto* check = command->add_subcommand(
      "check", "what of NVIDIA's runs, which settings carry over, what will differ, what to do");
  const auto options = std::make_shared<MigrateCheckOptions>();
  auto* cluster =
      check->add_flag("--cluster", options->cluster, "a cluster by its API server, in place of this node");
  check->add_option("--root", options->root, "where the node's / is seen (/)")->excludes(cluster);
  check
      ->add_option("--kubeconfig", options->kubeconfig,
                   "where the API server is (KUBECONFIG, ~/.kube/config)")
      ->needs(cluster);
  check->add_option("-o,--output", options->output, "text or json")->check(CLI::IsMember({"text", "json"}));
  check->add_flag_callback("--json", [options] { options->output = "json"; }, "as JSON");
  check->callback([options, &run] { run = [options] { return migrate_check(*options); }; });
}

}  // namespace gpulet::cli
