#include "runtimes/kubelet_endpoint.h"

#include <gtest/gtest.h>

#include "runtimes/configure.h"
#include "runtimes/distributions.h"
#include "runtimes/test_root.h"

namespace gpulet::runtimes {
namespace {

std::string endpoint(const TestRoot& root, const std::vector<CommandLine>& kubelets = {}) {
  const auto said = kubelet_endpoint(Host::open({.root = root.path()}).value(), kubelets);
  return said ? said->socket + " by " + said->said_by : "nobody says";
}

TEST(KubeletEndpoint, TheKubeletsOwnWordsCount) {
  const TestRoot root;
  root.write("/var/lib/kubelet/kubeadm-flags.env",
             "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/old.sock --x=y\"\n");
  root.write("/run/old.sock", "");
  EXPECT_EQ(
      endpoint(root, {{"/usr/bin/kubelet", "--container-runtime-endpoint=unix:///var/run/crio/crio.sock"}}),
      "/run/crio/crio.sock by the command line of kubelet");
  EXPECT_EQ(endpoint(root, {{"/usr/bin/kubelet", "--container-runtime-endpoint", "/run/a.sock", "--v=2"}}),
            "/run/a.sock by the command line of kubelet");
  // What is no kubelet says nothing, and a kubelet that names none has its default.
  EXPECT_EQ(endpoint(root, {{"crictl", "--container-runtime-endpoint=/run/b.sock"}, {"kubelet", "--v=2"}}),
            "/run/containerd/containerd.sock by kubelet, which names no other");
  root.write("/etc/kubelet.yaml",
             "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: \"unix:///run/c.sock\"\n");
  EXPECT_EQ(endpoint(root, {{"kubelet", "--kubeconfig=/etc/k", "--image-credential-provider-config=/etc/i",
                             "--config=/etc/kubelet.yaml"}}),
            "/run/c.sock by /etc/kubelet.yaml");
}

TEST(KubeletEndpoint, Distributions) {
  const TestRoot root;
  const std::string k3s = "/run/k3s/containerd/containerd.sock";
  EXPECT_EQ(endpoint(root, {{"/usr/local/bin/k3s server"}}), k3s + " by k3s server, which names no other");
  EXPECT_EQ(endpoint(root, {{"/usr/local/bin/k3s", "agent", "--docker"}}),
            "/run/k3s/cri-dockerd/cri-dockerd.sock by k3s, which names no other");
  EXPECT_EQ(endpoint(root, {{"k3s", "agent", "--kubelet-arg=container-runtime-endpoint=unix:///run/d.sock"}}),
            "/run/d.sock by the command line of k3s");
  EXPECT_EQ(endpoint(root, {{"/usr/local/bin/k3s", "kubectl", "get", "pods"}}), "nobody says");
  EXPECT_EQ(endpoint(root, {{"/var/lib/rancher/rke2/data/v1.32/bin/kubelet",
                             "--container-runtime-endpoint=unix://" + k3s}}),
            k3s + " by the command line of kubelet");
  EXPECT_EQ(endpoint(root, {{"/var/lib/k0s/bin/kubelet", "--root-dir=/var/lib/k0s/kubelet",
                             "--container-runtime-endpoint=unix:///run/k0s/containerd.sock"}}),
            "/run/k0s/containerd.sock by the command line of kubelet");
  root.write("/var/snap/microk8s/current/args/kubelet",
             "--kubeconfig=${SNAP_DATA}/credentials/kubelet.config\n"
             "--container-runtime-endpoint=${SNAP_COMMON}/run/containerd.sock\n");
  const std::string micro = "/var/snap/microk8s/common/run/containerd.sock";
  EXPECT_EQ(endpoint(root, {{"/snap/microk8s/8511/kubelite", "--scheduler-args-file=/x",
                             "--kubelet-args-file=/var/snap/microk8s/current/args/kubelet"}}),
            micro + " by /var/snap/microk8s/current/args/kubelet");
  EXPECT_EQ(endpoint(root, {{"/snap/microk8s/8511/kubelite"}}), "nobody says");
}

TEST(KubeletEndpoint, WithoutProcessesAFileCountsWhereItsSocketIsThere) {
  const TestRoot root;
  EXPECT_EQ(endpoint(root), "nobody says");
  root.write("/var/lib/kubelet/kubeadm-flags.env",
             "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/gone.sock\"\n");
  root.write("/var/lib/kubelet/config.yaml",
             "a: b\ncontainerRuntimeEndpoint: unix:///run/here.sock # as it is\n");
  EXPECT_EQ(endpoint(root), "nobody says");
  root.write("/run/here.sock", "");
  EXPECT_EQ(endpoint(root), "/run/here.sock by /var/lib/kubelet/config.yaml");
}

// What a distribution's config imports decides where a file of ours is read.
TEST(Distributions, TheRemedyIsOneThatLasts) {
  const auto& k3s = distributions()[0];
  const std::string folder = "/var/lib/rancher/k3s/agent/etc/containerd/";
  const auto lasting = [&](const std::string& config) { return remedy(k3s, config); };
  const std::string command = "gpulet runtime configure --runtime containerd --config " + folder +
                              "config.toml --drop-in-config " + folder;
  EXPECT_EQ(lasting("version = 3\nimports = ['" + folder + "config-v3.toml.d/*.toml']\n"),
            command + "config-v3.toml.d/99-gpulet.toml, and restart k3s");
  EXPECT_EQ(lasting("version = 2\nimports = ['" + folder + "config.toml.d/*.toml']\n"),
            command + "config.toml.d/99-gpulet.toml, and restart k3s");
  EXPECT_NE(lasting("version = 2\n").find("in " + folder + "config.toml.tmpl and restart k3s, or upgrade"),
            std::string::npos)
      << lasting("version = 2\n");
  EXPECT_NE(lasting("version = 3\n").find("in " + folder + "config-v3.toml.tmpl and restart k3s"),
            std::string::npos)
      << lasting("version = 3\n");
  // k0s merges what lies there by itself.
  EXPECT_NE(remedy(distributions()[2], "version = 2\n")
                .find("/etc/k0s/containerd.d/99-gpulet.toml, and restart k0s"),
            std::string::npos);
}

// Each layout as its documents have it, with CDI turned off.
TEST(Distributions, EachIsFoundWithTheFilesThatItsContainerdReads) {
  const std::string off = "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = false\n";
  for (const auto& distribution : distributions()) {
    const TestRoot root;
    const std::string parts = std::string(distribution.config) + ".more";
    root.write(std::string(distribution.config), "imports = ['" + parts + "']\n" + off);
    root.write(parts, off);
    root.write(std::string(distribution.socket), "");
    const auto reports = check(Host::open({.root = root.path()}).value());
    ASSERT_EQ(reports.size(), 1u) << distribution.name;
    EXPECT_EQ(reports[0].distribution, distribution.name);
    EXPECT_EQ(reports[0].socket, distribution.socket);
    EXPECT_EQ(reports[0].files, (std::vector<std::string>{std::string(distribution.config), parts}));
    EXPECT_FALSE(reports[0].fit()) << distribution.name;
  }
}

}  // namespace
}  // namespace gpulet::runtimes
