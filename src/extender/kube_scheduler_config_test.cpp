#include "extender/kube_scheduler_config.h"

#include <gtest/gtest.h>

#include "k8s/test_api.h"

namespace gpulet::extender {
namespace {

constexpr const char* kPath = "/etc/kubernetes/gpulet-scheduler.yaml";

KubeSchedulerConfig config_of_kubeadm() {
  return {.url = "http://10.96.0.7:9410",
          .kubeconfig = "/etc/kubernetes/scheduler.conf",
          .resources = {"nvidia.com/gpu", "nvidia.com/mig-1g.10gb"}};
}

TEST(KubeSchedulerConfigTest, HasTheServiceAddressAndEveryResource) {
  EXPECT_EQ(kube_scheduler_config(config_of_kubeadm()), R"(apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: /etc/kubernetes/scheduler.conf
leaderElection:
  leaderElect: true
extenders:
  - urlPrefix: http://10.96.0.7:9410
    filterVerb: filter
    prioritizeVerb: prioritize
    preemptVerb: preempt
    weight: 5
    nodeCacheCapable: true
    ignorable: true
    httpTimeout: 2s
    managedResources:
      - name: nvidia.com/gpu
        ignoredByScheduler: false
      - name: nvidia.com/mig-1g.10gb
        ignoredByScheduler: false
      - name: nvidia.com/gpumem
        ignoredByScheduler: true
      - name: nvidia.com/gpumem-percentage
        ignoredByScheduler: true
      - name: nvidia.com/gpucores
        ignoredByScheduler: true
)");
}

TEST(KubeSchedulerConfigTest, ListsNoResourceTwice) {
  auto config = config_of_kubeadm();
  const auto text = kube_scheduler_config(config);
  config.resources.emplace_back("nvidia.com/gpumem");
  EXPECT_EQ(kube_scheduler_config(config), text);
}

TEST(KubeSchedulerConfigTest, OverTlsItVerifiesTheServicesName) {
  auto config = config_of_kubeadm();
  config.url = "https://10.96.0.7:9410";
  config.ca_file = "/etc/kubernetes/gpulet-ca.crt";
  config.tls_name = "gpulet-scheduler.gpulet.svc";
  const auto text = kube_scheduler_config(config);
  EXPECT_NE(text.find("    enableHTTPS: true\n    tlsConfig:\n      caFile: /etc/kubernetes/gpulet-ca.crt\n"
                      "      serverName: gpulet-scheduler.gpulet.svc\n"),
            std::string::npos)
      << text;
}

// As kubeadm 1.36 writes it, shortened.
constexpr const char* kManifest = R"(apiVersion: v1
kind: Pod
metadata:
  name: kube-scheduler
spec:
  containers:
  - command:
    - kube-scheduler
    - --kubeconfig=/etc/kubernetes/scheduler.conf
    image: kube-scheduler:v1.36.3
    volumeMounts:
    - mountPath: /etc/kubernetes/scheduler.conf
      name: kubeconfig
      readOnly: true
  volumes:
  - hostPath:
      path: /etc/kubernetes/scheduler.conf
      type: FileOrCreate
    name: kubeconfig
)";

TEST(StaticPodTest, GetsTheConfigAndAMountOfIt) {
  const auto changed = add_config_to_static_pod(kManifest, kPath);
  ASSERT_TRUE(changed) << changed.error().full_message();
  EXPECT_EQ(*changed, R"(apiVersion: v1
kind: Pod
metadata:
  name: kube-scheduler
spec:
  containers:
  - command:
    - kube-scheduler
    - --config=/etc/kubernetes/gpulet-scheduler.yaml
    - --kubeconfig=/etc/kubernetes/scheduler.conf
    image: kube-scheduler:v1.36.3
    volumeMounts:
    - mountPath: /etc/kubernetes/gpulet-scheduler.yaml
      name: gpulet-scheduler-config
      readOnly: true
    - mountPath: /etc/kubernetes/scheduler.conf
      name: kubeconfig
      readOnly: true
  volumes:
  - hostPath:
      path: /etc/kubernetes/gpulet-scheduler.yaml
      type: File
    name: gpulet-scheduler-config
  - hostPath:
      path: /etc/kubernetes/scheduler.conf
      type: FileOrCreate
    name: kubeconfig
)");
  const auto again = add_config_to_static_pod(*changed, kPath);
  ASSERT_TRUE(again);
  EXPECT_EQ(*again, *changed);
}

TEST(StaticPodTest, RefusesWhatItDoesNotKnow) {
  for (const char* const manifest : {"", "kind: Pod\n", "spec:\n  volumes:\n    volumeMounts:\n"}) {
    const auto changed = add_config_to_static_pod(manifest, kPath);
    ASSERT_FALSE(changed) << manifest;
    EXPECT_EQ(changed.error().code(), Code::kInvalidArgument);
  }
  const auto other = add_config_to_static_pod("    - --config=/etc/other.yaml\n", kPath);
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message().find("--config=/etc/other.yaml"), std::string::npos);
}

TEST(SecondSchedulerTest, UsesTheUpstreamImageAndItsOwnLease) {
  auto config = config_of_kubeadm();
  config.kubeconfig.clear();
  config.scheduler_name = "gpulet";
  config.lease_namespace = "gpulet";
  for (const char* const version : {"v1.33.4", "v1.33.4-gke.1134000", "v1.33.4+k3s1", "v1.33.4-eks-1a2b3c"}) {
    const auto text = second_scheduler(config, "mirror:5000/kube-scheduler", version);
    ASSERT_TRUE(text) << version;
    EXPECT_NE(text->find("image: mirror:5000/kube-scheduler:v1.33.4\n"), std::string::npos);
    EXPECT_NE(
        text->find(
            "      resourceName: kube-scheduler-gpulet\n      resourceNamespace: gpulet\n    profiles:\n"
            "      - schedulerName: gpulet\n"),
        std::string::npos)
        << *text;
    for (const char* const word : {"NAME", "SPACE", "IMAGE", "CONFIG"})
      EXPECT_EQ(text->find(word), std::string::npos) << word;
  }
  for (const char* const image : {"mirror:5000/kube-scheduler:v1.33.1", "kube-scheduler@sha256:12ab"}) {
    const auto text = second_scheduler(config, image, "v1.33.4");
    ASSERT_TRUE(text);
    EXPECT_NE(text->find("image: " + std::string(image) + "\n"), std::string::npos);
  }
  for (const char* const version : {"", "1.33.4", "v1.33", "v1.x.3"})
    EXPECT_FALSE(second_scheduler(config, "mirror:5000/kube-scheduler", version));
}

class ClusterLookupTest : public k8s::ApiTest {};

TEST_F(ClusterLookupTest, ReadsTheServiceTheVersionAndTheResources) {
  start_server([](const k8s::Received& request) {
    const auto line = request.line();
    if (line == "GET /api/v1/namespaces/gpulet/services/gpulet-scheduler")
      return Reply{200, R"({"spec": {"clusterIP": "10.96.0.7"}})"};
    if (line == "GET /version") return Reply{200, R"({"gitVersion": "v1.36.3"})"};
    if (line.starts_with("GET /apis/gpulet.io/v1alpha1/gpunodes"))
      return Reply{
          200,
          R"({"items": [{"spec": {"resources": [{"name": "nvidia.com/gpu"}, {"name": "gpu.nvidia.com"}]}},
                                  {"spec": {}}]})"};
    return Reply{404, R"({"kind": "Status", "message": "services \"other\" not found"})"};
  });
  const auto found = look_up_cluster(client_config(), "gpulet", "gpulet-scheduler");
  ASSERT_TRUE(found) << found.error().full_message();
  EXPECT_EQ(found->service_ip, "10.96.0.7");
  EXPECT_EQ(found->version, "v1.36.3");
  EXPECT_EQ(found->resources, std::vector<std::string>{"nvidia.com/gpu"});
  const auto none = look_up_cluster(client_config(), "gpulet", "other");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace gpulet::extender
