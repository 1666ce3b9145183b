#include "runtimes/host.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "runtimes/configure.h"
#include "runtimes/test_root.h"

namespace gpulet::runtimes {
namespace {

Host host_of(const TestRoot& root, bool inside = true) {
  return Host::open({.root = root.path(), .inside = inside}).value();
}

TEST(Host, AFileKeepsItsModeAndOwner) {
  const TestRoot root;
  root.write("/etc/x", "old", 0640);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(root.at("/etc/x").c_str(), 12, 34), 0);
  }
  ASSERT_TRUE(host_of(root).apply({{"/etc/x", "new"}}));
  EXPECT_EQ(root.read("/etc/x"), "new");
  struct stat status{};
  ASSERT_EQ(::stat(root.at("/etc/x").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0640u);
  if (::geteuid() == 0) {
    EXPECT_EQ(status.st_uid, 12u);
    EXPECT_EQ(status.st_gid, 34u);
  }
}

TEST(Host, ANewFileGetsItsFoldersAndLeavesNothingElse) {
  const TestRoot root;
  ASSERT_TRUE(host_of(root).apply({{"/etc/a/b/c.toml", "x"}}));
  EXPECT_EQ(root.read("/etc/a/b/c.toml"), "x");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(root.at("/etc/a/b")), {}), 1);
  ASSERT_TRUE(host_of(root).apply({{"/etc/a/b/c.toml", std::nullopt}}));
  EXPECT_FALSE(root.has("/etc/a/b/c.toml"));
}

TEST(Host, ALinkIsFollowedInsideTheRootOnly) {
  const TestRoot root;
  root.write("/opt/config.toml", "old");
  root.link("/opt/config.toml", "/etc/c.toml");  // absolute: the root's /opt, not ours
  ASSERT_TRUE(host_of(root).apply({{"/etc/c.toml", "new"}}));
  EXPECT_EQ(root.read("/opt/config.toml"), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(root.at("/etc/c.toml")));
  root.link("../../../../../../../../opt/config.toml", "/etc/up.toml");
  EXPECT_EQ(host_of(root).read("/etc/up.toml")->value(), "new");
  ASSERT_TRUE(host_of(root).apply({{"/etc/c.toml", std::nullopt}}));
  EXPECT_FALSE(root.has("/etc/c.toml"));
  EXPECT_FALSE(root.has("/opt/config.toml"));
}

TEST(Host, WhatIsNoFileIsRefused) {
  const TestRoot root;
  root.link("/nowhere", "/etc/dangling");
  root.folder("/etc/folder");
  ASSERT_EQ(::mkfifo(root.at("/etc/fifo").c_str(), 0644), 0);
  const Host host = host_of(root);
  EXPECT_EQ(host.read("/etc/dangling").error().text(), "/etc/dangling: a link that leads to nothing");
  EXPECT_EQ(host.read("/etc/folder").error().text(), "/etc/folder: no regular file");
  EXPECT_EQ(host.read("/etc/fifo").error().text(), "/etc/fifo: no regular file");
  EXPECT_EQ(host.read("/etc/none").value(), std::nullopt);
}

TEST(Host, AChangeThatFailsTakesTheOthersBack) {
  const TestRoot root;
  root.write("/etc/a", "old");
  root.write("/etc/plain", "a file");
  const auto done = host_of(root).apply({{"/etc/a", "new"}, {"/etc/b", "new"}, {"/etc/plain/c", "x"}});
  EXPECT_FALSE(done);
  EXPECT_EQ(root.read("/etc/a"), "old");
  EXPECT_FALSE(root.has("/etc/b"));
}

TEST(Host, PatternsAreLookedUpInTheRoot) {
  const TestRoot root;
  for (const char* name : {"/d/b.toml", "/d/a.toml", "/d/c.conf", "/e/x/1.toml", "/e/y/2.toml"})
    root.write(name, "");
  const Host host = host_of(root);
  EXPECT_EQ(host.glob("/d/*.toml"), (std::vector<std::string>{"/d/a.toml", "/d/b.toml"}));
  EXPECT_EQ(host.glob("/e/*/?.toml"), (std::vector<std::string>{"/e/x/1.toml", "/e/y/2.toml"}));
  EXPECT_TRUE(host.glob("/none/*").empty());
}

TEST(Host, AProgramIsAskedForItsVersion) {
  const TestRoot root;
  root.program("/usr/bin/containerd", "[ \"$1\" = --version ] && echo containerd x v1.7.27 abc\n");
  root.program("/usr/local/bin/crio", "exit 3\n");
  root.write("/usr/bin/dockerd", "no program");
  const Host host = host_of(root);
  EXPECT_EQ(host.program("containerd"), "/usr/bin/containerd");
  EXPECT_EQ(host.version("/usr/bin/containerd")->str(), "1.7.27");
  EXPECT_FALSE(host.version("/usr/local/bin/crio"));
  EXPECT_EQ(host.program("dockerd"), std::nullopt);
}

TEST(Host, InAnotherRootAProgramRunsInThatRoot) {
  if (::geteuid() != 0) GTEST_SKIP() << "chroot needs root";
  // The C library's ldconfig is linked statically: it runs where nothing else is.
  const char* program = "/sbin/ldconfig";
  if (!std::filesystem::exists(program)) GTEST_SKIP() << "no " << program << " to run in a bare root";
  const TestRoot root;
  root.folder("/usr/bin");
  std::filesystem::copy_file(program, root.at("/usr/bin/podman"));
  const auto version = host_of(root, false).version("/usr/bin/podman");
  ASSERT_TRUE(version) << version.error().text();
  EXPECT_GE(*version, (Version{2, 0, 0}));
}

TEST(Host, SystemdIsAskedToRestart) {
  const TestRoot root;
  root.folder("/run/systemd/system");
  root.program("/usr/bin/systemctl",
               "echo \"$@\" >> " + root.at("/asked") +
                   "\n[ \"$2\" = bad.service ] && { echo no such unit; exit 5; }\nexit 0\n");
  const Host host = host_of(root);
  EXPECT_TRUE(host.restart("containerd.service"));
  EXPECT_EQ(root.read("/asked"), "restart containerd.service\n");
  EXPECT_EQ(host.restart("bad.service").error().text(),
            "bad.service: `systemctl restart bad.service` failed: no such unit");
}

TEST(Host, WhereSystemdIsOutOfReachTheCommandIsTold) {
  const TestRoot root;
  EXPECT_EQ(host_of(root).restart("crio.service").error().code(), Code::kFailedPrecondition);
  const auto from_a_pod = host_of(root, false).restart("crio.service");
  EXPECT_NE(from_a_pod.error().text().find("nsenter --target 1 --mount -- systemctl restart crio.service"),
            std::string::npos);
}

TEST(Configure, OnFilesWithTheEnginesVersion) {
  const TestRoot root;
  root.program("/usr/bin/containerd", "echo containerd x v1.7.27 abc\n");
  const std::string main = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"p\"\n";
  root.write("/etc/containerd/config.toml", main, 0600);
  const Host host = host_of(root);
  const auto dry = configure(host, {.engine = Engine::kContainerd, .dry_run = true});
  ASSERT_TRUE(dry) << dry.error().text();
  EXPECT_EQ(dry->changes.size(), 2u);
  EXPECT_EQ(root.read("/etc/containerd/config.toml"), main);
  const auto done = configure(host, {.engine = Engine::kContainerd});
  ASSERT_TRUE(done) << done.error().text();
  EXPECT_TRUE(done->restart_needed);
  EXPECT_EQ(done->changes, dry->changes);
  EXPECT_NE(root.read("/etc/containerd/conf.d/99-gpulet.toml").find("sandbox_image"), std::string::npos);
  EXPECT_FALSE(configure(host, {.engine = Engine::kContainerd})->restart_needed);
  ASSERT_TRUE(configure(host, {.engine = Engine::kContainerd, .remove = true}));
  EXPECT_EQ(root.read("/etc/containerd/config.toml"), main);
  EXPECT_FALSE(root.has("/etc/containerd/conf.d/99-gpulet.toml"));
}

TEST(Configure, AMalformedFileIsNamedAndNothingTouched) {
  const TestRoot root;
  root.write("/etc/containerd/config.toml", "version = 3\nimports = [\n");
  const auto done = configure(host_of(root), {.engine = Engine::kContainerd});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().text(), "/etc/containerd/config.toml:3: `]` is missing");
  EXPECT_FALSE(root.has("/etc/containerd/conf.d"));
}

TEST(Configure, AnotherPlaceForTheDropIn) {
  const TestRoot root;
  root.write(
      "/k3s/config.toml",
      "version = 3\nimports = "
      "[\"/k3s/config-v3.toml.d/*.toml\"]\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n");
  const auto before = root.read("/k3s/config.toml");
  const Request request{.engine = Engine::kContainerd,
                        .config = "/k3s/config.toml",
                        .drop_in = "/k3s/config-v3.toml.d/99-gpulet.toml"};
  ASSERT_TRUE(configure(host_of(root), request));
  EXPECT_EQ(root.read("/k3s/config.toml"), before);
  EXPECT_TRUE(root.has("/k3s/config-v3.toml.d/99-gpulet.toml"));
  EXPECT_EQ(configure(host_of(root), {.engine = Engine::kDocker, .drop_in = "/x"}).error().code(),
            Code::kInvalidArgument);
  EXPECT_FALSE(configure(host_of(root), {.engine = Engine::kContainerd, .drop_in = "relative.toml"}));
  EXPECT_FALSE(configure(host_of(root), {.engine = Engine::kContainerd, .drop_in = "/x/*.toml"}));
}

TEST(Check, EachEngineThatIsThere) {
  const TestRoot root;
  EXPECT_TRUE(check(host_of(root)).empty());
  root.program("/usr/bin/containerd", "echo containerd x v2.3.6\n");
  root.program("/usr/bin/dockerd", "echo Docker version 25.0.3, build x\n");
  root.write("/etc/crio/crio.conf", "[crio\n");
  root.write("/etc/containers/containers.conf", "");  // of some other program
  const auto reports = check(host_of(root));
  ASSERT_EQ(reports.size(), 3u);
  EXPECT_EQ(reports[0].engine, Engine::kContainerd);
  EXPECT_TRUE(reports[0].fit());
  EXPECT_EQ(reports[1].engine, Engine::kCrio);
  EXPECT_FALSE(reports[1].fit());
  EXPECT_EQ(reports[1].findings.at(0).say, "/etc/crio/crio.conf:1: `]` is missing");
  EXPECT_EQ(reports[2].version->str(), "25.0.3");
  EXPECT_FALSE(reports[2].fit());
  EXPECT_EQ(reports[2].findings.at(1).remedy, "gpulet runtime configure --runtime docker");
}

TEST(Check, AContainerdThatComesWithADistribution) {
  const TestRoot root;
  const std::string off = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n";
  root.write("/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
             "imports = ['/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/*.toml']\n" + off);
  root.write("/run/k3s/containerd/containerd.sock", "");
  root.program("/var/lib/rancher/k3s/data/current/bin/containerd", "echo containerd x v2.0.2-k3s1\n");
  root.write("/var/snap/microk8s/current/args/containerd.toml", "version = 3\n");
  const auto reports = check(host_of(root));
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].distribution, "k3s");
  EXPECT_EQ(reports[0].socket, "/run/k3s/containerd/containerd.sock");
  EXPECT_EQ(reports[0].version->str(), "2.0.2");
  EXPECT_FALSE(reports[0].fit());
  EXPECT_EQ(reports[0].findings.at(1).remedy,
            "gpulet runtime configure --runtime containerd --config "
            "/var/lib/rancher/k3s/agent/etc/containerd/config.toml --drop-in-config "
            "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/99-gpulet.toml, and restart k3s");
  EXPECT_EQ(reports[1].distribution, "MicroK8s");
  EXPECT_TRUE(reports[1].fit());
}

}  // namespace
}  // namespace gpulet::runtimes
