#include <CLI/CLI.hpp>
#include <memory>

#include "cli/cleanup_command.h"
#include "cli/registrations.h"

namespace gpulet::cli {

void add_cleanup(CLI::App& app, Run& run) {
  auto* command =
      app.add_subcommand("cleanup", "take away what agents have left on this node, once none runs on it");
  struct Given {
    CleanupOptions options;
    std::string daemon_set;
    bool idle = false;
  };
  const auto given = std::make_shared<Given>();
  auto& o = given->options;
  o.folders.device_plugin_dir.clear();  // below the kubelet's
  command->add_option("--cdi-spec-dir", o.folders.spec_dir, "folder of CDI specs (/var/run/cdi)")
      ->envname("GPULET_CDI_SPEC_DIR");
  command->add_option("--cdi-hook-dir", o.folders.hook_dir, "folder of the hook (/var/lib/gpulet)")
      ->envname("GPULET_CDI_HOOK_DIR");
  command->add_option("--state-dir", o.folders.state_dir, "what outlives the agent (/var/lib/gpulet)")
      ->envname("GPULET_STATE_DIR");
  command->add_option("--run-dir", o.folders.run_dir, "its report and socket (/run/gpulet)");
  command->add_option("--kubelet-dir", o.kubelet_dir, "the kubelet's root folder (/var/lib/kubelet)")
      ->envname("GPULET_KUBELET_DIR");
  command->add_option("--mps-root", o.mps_root, "end the MPS control daemons of it")->envname("MPS_ROOT");
  command->add_option("--driver-root", o.driver_root, "whose programs end them (/driver-root)")
      ->envname("DRIVER_ROOT_CTR_PATH");
  command->add_option("--limit", o.limit, "how long it may take (1m)");
  command->add_option("--await-daemonset", given->daemon_set,
                      "clean nothing: wait until NAMESPACE/NAME is ready on each of its nodes");
  command->add_flag("--idle", given->idle, "clean nothing: wait to be told to end");
  command->callback([given, &run] {
    run = [given] {
      if (given->idle) return idle();
      if (!given->daemon_set.empty()) return await_daemon_set(given->daemon_set, given->options.limit);
      return cleanup(given->options);
    };
  });
}

}  // namespace gpulet::cli
