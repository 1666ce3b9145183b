// The configuration that makes kube-scheduler ask the extender, as `gpulet scheduler config` prints it: the
// KubeSchedulerConfiguration, a static Pod that reads it, and a second scheduler for clusters whose control
// plane is out of reach. Pure, but for look_up_cluster.
//
// Source: kubescheduler.config.k8s.io/v1, KubeSchedulerConfiguration and Extender; kubeadm's manifest of
// kube-scheduler; Kubernetes "Configure Multiple Schedulers"; k3s, cli flag kube-scheduler-arg.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "k8s/client_config.h"

namespace gpulet::extender {

struct KubeSchedulerConfig {
  std::string url;                // "http://10.96.0.7:9410"; with https, `ca_file` too
  std::string ca_file{};          // PEM, where kube-scheduler sees it
  std::string tls_name{};         // expected in the extender's certificate: "gpulet-scheduler.gpulet.svc"
  std::string kubeconfig{};       // kube-scheduler's own; empty: its Pod's service account
  std::string scheduler_name{};   // of Pods; empty: default-scheduler
  std::string lease_namespace{};  // with a scheduler_name: where its leader election's Lease is
  unsigned weight = 5;
  std::vector<std::string> resources;  // that the agents offer
};

// YAML. Precondition: `resources` is not empty.
std::string kube_scheduler_config(const KubeSchedulerConfig& config);

// kubeadm's manifest of kube-scheduler with `--config=PATH` and a mount of that file; everything else stays
// as it is. A manifest that reads a config of that path already is returned unchanged. Errors:
// kInvalidArgument for a manifest of another form, or with another --config.
Result<std::string> add_config_to_static_pod(const std::string& manifest, const std::string& config_path);

// Manifests of a second kube-scheduler in the cluster: service account, roles, config, Deployment. `image`:
// of kube-scheduler, where the cluster can pull it, "REGISTRY/kube-scheduler"; without a tag or digest it
// gets the tag of the upstream release. `version`: the API server's, "v1.33.4-gke.1134000". Precondition: the
// config has a scheduler_name and a lease_namespace. Errors: kInvalidArgument for a version of another form.
Result<std::string> second_scheduler(const KubeSchedulerConfig& config, const std::string& image,
                                     const std::string& version);

struct ClusterLookup {
  std::string service_ip;              // the Service's cluster IP; empty for a headless one
  std::string version;                 // the API server's
  std::vector<std::string> resources;  // of the first 50 GpuNodes; empty without any, or without list
};

// Blocks until the API server has answered. Needs get on the Service; list on gpunodes for the resources.
// Errors: kNotFound without the Service; kPermissionDenied; kUnavailable and others of the connection.
Result<ClusterLookup> look_up_cluster(const k8s::ClientConfig& access, const std::string& name_space,
                                      const std::string& service,
                                      Duration timeout = std::chrono::seconds(10));

}  // namespace gpulet::extender
