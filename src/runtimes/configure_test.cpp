#include "runtimes/configure.h"

#include <gtest/gtest.h>

#include "runtimes/engine.h"
#include "runtimes/test_root.h"

namespace gpulet::runtimes {
namespace {

std::string found_endpoint(const TestRoot& root, const std::vector<CommandLine>& kubelets = {}) {
  const auto endpoint = find_kubelet_endpoint(Host::open_host({.root = root.host_root()}).value(), kubelets);
  return endpoint ? endpoint->socket + " by " + endpoint->source : "unknown";
}

TEST(KubeletEndpoint, UsesTheKubeletsCommandLine) {
  const TestRoot root;
  root.add_file("/var/lib/kubelet/kubeadm-flags.env",
                "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/old.sock --x=y\"\n");
  root.add_file("/run/old.sock", "");
  EXPECT_EQ(found_endpoint(
                root, {{"/usr/bin/kubelet", "--container-runtime-endpoint=unix:///var/run/crio/crio.sock"}}),
            "/run/crio/crio.sock by the command line of kubelet");
  EXPECT_EQ(
      found_endpoint(root, {{"/usr/bin/kubelet", "--container-runtime-endpoint", "/run/a.sock", "--v=2"}}),
      "/run/a.sock by the command line of kubelet");
  // Other processes are ignored, and a kubelet without an endpoint has the default.
  EXPECT_EQ(
      found_endpoint(root, {{"crictl", "--container-runtime-endpoint=/run/b.sock"}, {"kubelet", "--v=2"}}),
      "/run/containerd/containerd.sock by kubelet (default)");
  root.add_file("/etc/kubelet.yaml",
                "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: \"unix:///run/c.sock\"\n");
  EXPECT_EQ(
      found_endpoint(root, {{"kubelet", "--kubeconfig=/etc/k", "--image-credential-provider-config=/etc/i",
                             "--config=/etc/kubelet.yaml"}}),
      "/run/c.sock by /etc/kubelet.yaml");
}

TEST(KubeletEndpoint, SupportsDistributions) {
  const TestRoot root;
  const std::string k3s = "/run/k3s/containerd/containerd.sock";
  EXPECT_EQ(found_endpoint(root, {{"/usr/local/bin/k3s server"}}), k3s + " by k3s server (default)");
  EXPECT_EQ(found_endpoint(root, {{"/usr/local/bin/k3s", "agent", "--docker"}}),
            "/run/k3s/cri-dockerd/cri-dockerd.sock by k3s (default)");
  EXPECT_EQ(
      found_endpoint(root, {{"k3s", "agent", "--kubelet-arg=container-runtime-endpoint=unix:///run/d.sock"}}),
      "/run/d.sock by the command line of k3s");
  EXPECT_EQ(found_endpoint(root, {{"/usr/local/bin/k3s", "kubectl", "get", "pods"}}), "unknown");
  EXPECT_EQ(found_endpoint(root, {{"/var/lib/rancher/rke2/data/v1.32/bin/kubelet",
                                   "--container-runtime-endpoint=unix://" + k3s}}),
            k3s + " by the command line of kubelet");
  EXPECT_EQ(found_endpoint(root, {{"/var/lib/k0s/bin/kubelet", "--root-dir=/var/lib/k0s/kubelet",
                                   "--container-runtime-endpoint=unix:///run/k0s/containerd.sock"}}),
            "/run/k0s/containerd.sock by the command line of kubelet");
  root.add_file("/var/snap/microk8s/current/args/kubelet",
                "--kubeconfig=${SNAP_DATA}/credentials/kubelet.config\n"
                "--container-runtime-endpoint=${SNAP_COMMON}/run/containerd.sock\n");
  const std::string micro = "/var/snap/microk8s/common/run/containerd.sock";
  EXPECT_EQ(found_endpoint(root, {{"/snap/microk8s/8511/kubelite", "--scheduler-args-file=/x",
                                   "--kubelet-args-file=/var/snap/microk8s/current/args/kubelet"}}),
            micro + " by /var/snap/microk8s/current/args/kubelet");
  EXPECT_EQ(found_endpoint(root, {{"/snap/microk8s/8511/kubelite"}}), "unknown");
}

TEST(KubeletEndpoint, WithoutProcessesUsesAFileWhoseSocketExists) {
  const TestRoot root;
  EXPECT_EQ(found_endpoint(root), "unknown");
  root.add_file("/var/lib/kubelet/kubeadm-flags.env",
                "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/gone.sock\"\n");
  root.add_file("/var/lib/kubelet/config.yaml",
                "a: b\ncontainerRuntimeEndpoint: unix:///run/here.sock # as it is\n");
  EXPECT_EQ(found_endpoint(root), "unknown");
  root.add_file("/run/here.sock", "");
  EXPECT_EQ(found_endpoint(root), "/run/here.sock by /var/lib/kubelet/config.yaml");
}

// The imports of a distribution's config decide where a drop-in is read.
TEST(Distributions, AdviseALastingChange) {
  const auto& k3s = distributions()[0];
  const std::string directory = "/var/lib/rancher/k3s/agent/etc/containerd/";
  const auto lasting = [&](const std::string& config) { return cdi_advice(k3s, config); };
  const std::string command = "gpulet runtime configure --runtime containerd --config " + directory +
                              "config.toml --drop-in-config " + directory;
  EXPECT_EQ(lasting("version = 3\nimports = ['" + directory + "config-v3.toml.d/*.toml']\n"),
            command + "config-v3.toml.d/99-gpulet.toml, and restart k3s");
  EXPECT_EQ(lasting("version = 2\nimports = ['" + directory + "config.toml.d/*.toml']\n"),
            command + "config.toml.d/99-gpulet.toml, and restart k3s");
  EXPECT_NE(lasting("version = 2\n").find("in " + directory + "config.toml.tmpl and restart k3s, or upgrade"),
            std::string::npos)
      << lasting("version = 2\n");
  EXPECT_NE(lasting("version = 3\n").find("in " + directory + "config-v3.toml.tmpl and restart k3s"),
            std::string::npos)
      << lasting("version = 3\n");
  // k0s merges that directory by itself.
  EXPECT_NE(cdi_advice(distributions()[2], "version = 2\n")
                .find("/etc/k0s/containerd.d/99-gpulet.toml, and restart k0s"),
            std::string::npos);
}

// Each distribution's documented layout, with CDI off.
TEST(Distributions, AreFoundWithTheFilesOfTheirContainerd) {
  const std::string off = "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = false\n";
  for (const auto& distribution : distributions()) {
    const TestRoot root;
    const std::string parts = std::string(distribution.config) + ".more";
    root.add_file(std::string(distribution.config), "imports = ['" + parts + "']\n" + off);
    root.add_file(parts, off);
    root.add_file(std::string(distribution.socket), "");
    const auto reports = check_engines(Host::open_host({.root = root.host_root()}).value());
    ASSERT_EQ(reports.size(), 1u) << distribution.name;
    EXPECT_EQ(reports[0].distribution, distribution.name);
    EXPECT_EQ(reports[0].socket, distribution.socket);
    EXPECT_EQ(reports[0].files, (std::vector<std::string>{std::string(distribution.config), parts}));
    EXPECT_FALSE(reports[0].is_ready()) << distribution.name;
  }
}

}  // namespace
}  // namespace gpulet::runtimes
