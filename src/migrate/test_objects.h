// Workloads as created by NVIDIA's manifests, charts and operator, reduced to their shapes, as JSON of the
// API server.
#pragma once

#include <nlohmann/json.hpp>  // tidy: heavy-header because objects are made with it
#include <string>

namespace gpulet::migrate::test {

using nlohmann::json;

inline json workload_object(const std::string& name_space, const std::string& name, const json& pod) {
  return {{"metadata", {{"namespace", name_space}, {"name", name}}},
          {"spec", {{"template", {{"spec", pod}}}}}};
}

inline json env_variable(const std::string& name, const std::string& value) {
  return {{"name", name}, {"value", value}};
}

// deployments/static/nvidia-device-plugin.yml: no command, one variable.
inline json static_plugin() {
  return workload_object(
      "kube-system", "nvidia-device-plugin-daemonset",
      {{"containers",
        {{{"name", "nvidia-device-plugin-ctr"},
          {"image", "registry.example/nvidia/k8s-device-plugin:v0.17.1"},
          {"env", {env_variable("FAIL_ON_INIT_ERROR", "false")}},
          {"volumeMounts",
           {{{"name", "kubelet-device-plugins-dir"}, {"mountPath", "/var/lib/kubelet/device-plugins"}}}}}}},
       {"volumes",
        {{{"name", "kubelet-device-plugins-dir"},
          {"hostPath", {{"path", "/var/lib/kubelet/device-plugins"}}}}}}});
}

inline json config_manager_container(const std::string& name, const std::string& process, bool once) {
  return {{"name", name},
          {"image", "mirror.example/nvidia/k8s-device-plugin:v0.17.1@sha256:0a"},
          {"command", {"config-manager"}},
          {"env",
           {env_variable("ONESHOT", once ? "true" : "false"),
            env_variable("KUBECONFIG", ""),
            {{"name", "NODE_NAME"}, {"valueFrom", {{"fieldRef", {{"fieldPath", "spec.nodeName"}}}}}},
            env_variable("NODE_LABEL", "nvidia.com/device-plugin.config"),
            env_variable("CONFIG_FILE_SRCDIR", "/available-configs"),
            env_variable("CONFIG_FILE_DST", "/config/config.yaml"),
            env_variable("DEFAULT_CONFIG", "default"),
            env_variable("FALLBACK_STRATEGIES", "named,single"),
            env_variable("SEND_SIGNAL", once ? "false" : "true"),
            env_variable("SIGNAL", once ? "" : "1"),
            env_variable("PROCESS_TO_SIGNAL", process)}},
          {"volumeMounts",
           {{{"name", "available-configs"}, {"mountPath", "/available-configs"}},
            {{"name", "config"}, {"mountPath", "/config"}}}}};
}

inline json of_release(json object) {
  object["metadata"]["annotations"] = {{"meta.helm.sh/release-name", "nvdp"},
                                       {"meta.helm.sh/release-namespace", "gpu"}};
  object["metadata"]["labels"] = {{"helm.sh/chart", "nvidia-device-plugin-0.17.1"}};
  return object;
}

// The chart's DaemonSet of the plugin, with configs.
inline json chart_plugin() {
  return of_release(workload_object(
      "gpu", "nvdp-nvidia-device-plugin",
      {{"initContainers", {config_manager_container("nvidia-device-plugin-init", "", true)}},
       {"containers",
        {config_manager_container("nvidia-device-plugin-sidecar", "nvidia-device-plugin", false),
         {{"name", "nvidia-device-plugin-ctr"},
          {"image", "mirror.example/nvidia/k8s-device-plugin:v0.17.1@sha256:0a"},
          {"command", {"nvidia-device-plugin"}},
          {"env",
           {env_variable("MPS_ROOT", "/run/nvidia/mps"), env_variable("MIG_STRATEGY", "mixed"),
            env_variable("FAIL_ON_INIT_ERROR", "true"), env_variable("PASS_DEVICE_SPECS", "false"),
            env_variable("DEVICE_LIST_STRATEGY", "cdi-cri"), env_variable("DEVICE_ID_STRATEGY", "uuid"),
            env_variable("NVIDIA_DRIVER_ROOT", "/"), env_variable("CONFIG_FILE", "/config/config.yaml"),
            env_variable("NVIDIA_MIG_MONITOR_DEVICES", "all"), env_variable("NVIDIA_VISIBLE_DEVICES", "all"),
            env_variable("NVIDIA_DRIVER_CAPABILITIES", "compute,utility")}},
          {"volumeMounts",
           {{{"name", "available-configs"}, {"mountPath", "/available-configs"}},
            {{"name", "config"}, {"mountPath", "/config"}}}}}}},
       {"volumes",
        {{{"name", "available-configs"}, {"configMap", {{"name", "nvdp-configs"}}}},
         {{"name", "config"}, {"emptyDir", json::object()}}}}}));
}

inline json chart_discovery() {
  return of_release(workload_object(
      "gpu", "nvdp-gpu-feature-discovery",
      {{"containers",
        {{{"name", "gpu-feature-discovery-ctr"},
          {"image", "mirror.example/nvidia/k8s-device-plugin:v0.17.1"},
          {"command", {"gpu-feature-discovery"}},
          {"env", {env_variable("MIG_STRATEGY", "mixed"), env_variable("GFD_SLEEP_INTERVAL", "30s")}}}}}}));
}

inline json chart_mps() {
  return of_release(workload_object("gpu", "nvdp-mps-control-daemon",
                                    {{"initContainers",
                                      {{{"name", "mps-control-daemon-mounts"},
                                        {"image", "mirror.example/nvidia/k8s-device-plugin:v0.17.1"},
                                        {"command", {"mps-control-daemon", "mount-shm"}}}}},
                                     {"containers",
                                      {{{"name", "mps-control-daemon-ctr"},
                                        {"image", "mirror.example/nvidia/k8s-device-plugin:v0.17.1"},
                                        {"command", {"mps-control-daemon"}},
                                        {"env", {env_variable("CONFIG_FILE", "/config/config.yaml")}}}}}}));
}

// What the operator creates from its ClusterPolicy.
inline json operator_plugin() {
  json object = workload_object(
      "gpu-operator", "nvidia-device-plugin-daemonset",
      {{"initContainers",
        {{{"name", "toolkit-validation"},
          {"image", "registry.example/nvidia/k8s-device-plugin:v0.17.1"},
          {"command", {"sh", "-c"}},
          {"args", {"until [ -f /run/nvidia/validations/toolkit-ready ]; do sleep 5; done"}}}}},
       {"containers",
        {{{"name", "nvidia-device-plugin"},
          {"image", "registry.example/nvidia/k8s-device-plugin:v0.17.1"},
          {"command", {"/bin/sh", "-c"}},
          {"args", {"/bin/entrypoint.sh"}},
          {"env",
           {env_variable("PASS_DEVICE_SPECS", "true"), env_variable("DEVICE_LIST_STRATEGY", "envvar"),
            env_variable("MIG_STRATEGY", "single")}}}}}});
  object["metadata"]["ownerReferences"] = {{{"kind", "ClusterPolicy"}, {"name", "cluster-policy"}}};
  return object;
}

inline json cluster_policy() {
  return {{"metadata", {{"name", "cluster-policy"}}},
          {"spec",
           {{"driver", {{"enabled", true}}},
            {"toolkit", {{"enabled", true}}},
            {"devicePlugin", {{"enabled", true}, {"config", {{"name", ""}}}}},
            {"gfd", {{"enabled", true}}},
            {"dcgmExporter", {{"enabled", false}}},
            {"migManager", {{"enabled", true}, {"config", {{"name", "default-mig-parted-config"}}}}},
            {"mig", {{"strategy", "single"}}}}}};
}

inline json exporter() {
  return workload_object(
      "monitoring", "dcgm-exporter",
      {{"containers",
        {{{"name", "exporter"},
          {"image", "registry.example/nvidia/k8s/dcgm-exporter:4.5.2-4.8.1-ubuntu22.04"},
          {"args", {"-f", "/etc/dcgm-exporter/counters/mine.csv", "-c", "10000", "--switch-devices=f"}},
          {"env",
           {env_variable("DCGM_EXPORTER_KUBERNETES", "true"),
            env_variable("DCGM_EXPORTER_LISTEN", ":9400"),
            env_variable("KUBERNETES_VIRTUAL_GPUS", "true"),
            env_variable("DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE", "7"),
            env_variable("EXTRA_PASSWORD", "hunter2"),
            {{"name", "DCGM_EXPORTER_WEB_CONFIG_FILE"},
             {"valueFrom", {{"secretKeyRef", {{"name", "web"}, {"key", "file"}}}}}}}},
          {"volumeMounts", {{{"name", "counters"}, {"mountPath", "/etc/dcgm-exporter/counters"}}}}}}},
       {"volumes", {{{"name", "counters"}, {"configMap", {{"name", "my-counters"}}}}}}});
}

}  // namespace gpulet::migrate::test
