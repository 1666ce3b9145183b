// `nvidia-mig-manager`: follows the node label nvidia.com/mig.config as the GPU operator's MIG manager does,
// with its environment: the operator's Pods are stopped, the MIG manager of the agent
// (agent/mig/mig_manager.h) plans and applies the layout, and the Pods return (agent/mig/operand_pause.h).
// Between changes it holds no handle of the driver.
//
// It reboots no node, and stops no service of the host: a change that needs either fails with one line that
// names what holds the GPU. It listens nowhere and registers nothing.
// Source: mig-parted v0.15.0, cmd/nvidia-mig-manager; the GPU operator's state-mig-manager.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/mig/mig_ports.h"
#include "agent/node/ports.h"
#include "base/loop.h"
#include "base/result.h"
#include "inventory/snapshot.h"
#include "k8s/client_config.h"
#include "mig/layout.h"

namespace gpulet::cli {

struct MigManagerOptions {          // flag and environment variable:
  std::string kubeconfig;           // --kubeconfig KUBECONFIG
  std::string node_name;            // --node-name NODE_NAME
  std::string config_file;          // --config-file CONFIG_FILE
  std::string default_config_file;  // --default-config-file DEFAULT_CONFIG_FILE
  std::string gpu_clients_namespace =
      "default";             // --default-gpu-clients-namespace DEFAULT_GPU_CLIENTS_NAMESPACE
  bool with_reboot = false;  // --with-reboot WITH_REBOOT
  bool with_shutdown_host_gpu_clients =
      false;                 // --with-shutdown-host-gpu-clients WITH_SHUTDOWN_HOST_GPU_CLIENTS
  bool cdi_enabled = false;  // --cdi-enabled CDI_ENABLED
  std::string driver_root = "/run/nvidia/driver";           // --nvidia-driver-root NVIDIA_DRIVER_ROOT
  std::string driver_root_ctr_path = "/run/nvidia/driver";  // --driver-root-ctr-path DRIVER_ROOT_CTR_PATH
  std::string dev_root;           // --dev-root NVIDIA_DEV_ROOT; empty: the driver root
  std::string dev_root_ctr_path;  // --dev-root-ctr-path DEV_ROOT_CTR_PATH
  std::string cdi_hook_path = "/usr/local/nvidia/toolkit/nvidia-cdi-hook";  // --nvidia-cdi-hook-path
  // Not of NVIDIA's: where the spec goes.
  std::string cdi_file = "/var/run/cdi/management.nvidia.com-gpu.yaml";
};

// The layouts of the name: of CONFIG_FILE if set, else of the hardware and, for a name that it does not give,
// of DEFAULT_CONFIG_FILE. Read on each call. Errors: as mig::named_layouts.
Result<std::vector<std::optional<mig::Layout>>> operator_layouts(const MigManagerOptions& options,
                                                                 const std::string& name,
                                                                 std::span<const mig::State> gpus);

// Writes the CDI document of kind management.nvidia.com/gpu, with the device "all", in YAML, unless the file
// has that content. Paths of nodes and files are the host's. Errors: those of cdi/generate.h and of writing.
Status write_management_spec(const MigManagerOptions& options, const inventory::Snapshot& snapshot);

// Runs until SIGTERM, SIGINT or SIGQUIT; labels that it has paused stay so, and the next start puts them
// back. Exit code: 0; 1 after one line on standard error if it cannot start.
int run_mig_manager(const MigManagerOptions& options);

// Parses flags and environment, and runs it.
int mig_manager_main(int argc, char** argv);

}  // namespace gpulet::cli
