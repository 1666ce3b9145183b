#include <CLI/CLI.hpp>
#include <memory>

#include "cli/doctor_command.h"
#include "cli/registrations.h"

namespace gpulet::cli {

void add_doctor(CLI::App& app, Run& run) {
  auto* command = app.add_subcommand("doctor", "what keeps a Pod from this node's GPUs, and what to do");
  const auto options = std::make_shared<DoctorOptions>();
  command->add_option("-o,--output", options->output, "text or json")->check(CLI::IsMember({"text", "json"}));
  command->add_flag_callback("--json", [options] { options->output = "json"; }, "the same as -o json");
  command->add_option("--bundle", options->bundle,
                      "also write a support archive here (.tar, .tar.gz), without secrets");
  command->add_option("--host-root", options->host_root, "where the host's / is seen (/)");
  command->add_option("--driver-root", options->driver_root, "where the driver's files are (the host's)")
      ->envname("DRIVER_ROOT_CTR_PATH");
  command->add_option("--kubelet-dir", options->kubelet_dir, "the kubelet's root folder (/var/lib/kubelet)")
      ->envname("GPULET_KUBELET_DIR");
  command->add_option("--socket", options->socket, "the agent's socket (/run/gpulet/agent.sock)")
      ->envname("GPULET_SOCKET");
  command->add_option("--url", options->url, "the agent, at http://HOST:PORT");
  command->add_option("--config-file", options->config_file, "the agent's settings, for when it does not run")
      ->envname("CONFIG_FILE");
  command->add_option("--kubeconfig", options->kubeconfig,
                      "where the API server is (KUBECONFIG, ~/.kube/config)");
  command->add_option("--service", options->service,
                      "the extender's Service, asked why Pods wait (gpulet/gpulet-scheduler:9410)");
  command->add_option("--node-name", options->node_name, "this node's name in the cluster (the host's)")
      ->envname("NODE_NAME");
  command->callback([options, &run] { run = [options]() -> int { doctor(*options); }; });
}

}  // namespace gpulet::cli
