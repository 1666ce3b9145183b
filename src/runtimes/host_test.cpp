#include "runtimes/host.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "runtimes/configure.h"
#include "runtimes/test_root.h"

namespace gpulet::runtimes {
namespace {

Host open_test_host(const TestRoot& root, bool inside = true) {
  return Host::open_host({.root = root.host_root(), .is_own_root = inside}).value();
}

TEST(Host, KeepsModeAndOwner) {
  const TestRoot root;
  root.add_file("/etc/x", "old", 0640);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(root.at("/etc/x").c_str(), 12, 34), 0);
  }
  ASSERT_TRUE(open_test_host(root).apply_changes({{"/etc/x", "new"}}));
  EXPECT_EQ(root.read_text("/etc/x"), "new");
  struct stat status{};
  ASSERT_EQ(::stat(root.at("/etc/x").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0640u);
  if (::geteuid() == 0) {
    EXPECT_EQ(status.st_uid, 12u);
    EXPECT_EQ(status.st_gid, 34u);
  }
}

TEST(Host, CreatesDirectoriesForANewFile) {
  const TestRoot root;
  ASSERT_TRUE(open_test_host(root).apply_changes({{"/etc/a/b/c.toml", "x"}}));
  EXPECT_EQ(root.read_text("/etc/a/b/c.toml"), "x");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(root.at("/etc/a/b")), {}), 1);
  ASSERT_TRUE(open_test_host(root).apply_changes({{"/etc/a/b/c.toml", std::nullopt}}));
  EXPECT_FALSE(root.has_file("/etc/a/b/c.toml"));
}

TEST(Host, FollowsLinksInsideTheRootOnly) {
  const TestRoot root;
  root.add_file("/opt/config.toml", "old");
  root.make_symlink("/opt/config.toml", "/etc/c.toml");  // absolute: resolves in the root
  ASSERT_TRUE(open_test_host(root).apply_changes({{"/etc/c.toml", "new"}}));
  EXPECT_EQ(root.read_text("/opt/config.toml"), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(root.at("/etc/c.toml")));
  root.make_symlink("../../../../../../../../opt/config.toml", "/etc/up.toml");
  EXPECT_EQ(open_test_host(root).read_settings("/etc/up.toml")->value(), "new");
  ASSERT_TRUE(open_test_host(root).apply_changes({{"/etc/c.toml", std::nullopt}}));
  EXPECT_FALSE(root.has_file("/etc/c.toml"));
  EXPECT_FALSE(root.has_file("/opt/config.toml"));
}

TEST(Host, RefusesOtherFileTypes) {
  const TestRoot root;
  root.make_symlink("/nowhere", "/etc/dangling");
  root.make_directory("/etc/directory");
  ASSERT_EQ(::mkfifo(root.at("/etc/fifo").c_str(), 0644), 0);
  const Host host = open_test_host(root);
  EXPECT_EQ(host.read_settings("/etc/dangling").error().full_message(), "/etc/dangling: dangling link");
  EXPECT_EQ(host.read_settings("/etc/directory").error().full_message(),
            "/etc/directory: not a regular file");
  EXPECT_EQ(host.read_settings("/etc/fifo").error().full_message(), "/etc/fifo: not a regular file");
  EXPECT_EQ(host.read_settings("/etc/none").value(), std::nullopt);
}

TEST(Host, UndoesAllChangesOnAFailure) {
  const TestRoot root;
  root.add_file("/etc/a", "old");
  root.add_file("/etc/plain", "a file");
  const auto done =
      open_test_host(root).apply_changes({{"/etc/a", "new"}, {"/etc/b", "new"}, {"/etc/plain/c", "x"}});
  EXPECT_FALSE(done);
  EXPECT_EQ(root.read_text("/etc/a"), "old");
  EXPECT_FALSE(root.has_file("/etc/b"));
}

TEST(Host, ExpandsPatternsInTheRoot) {
  const TestRoot root;
  for (const char* name : {"/d/b.toml", "/d/a.toml", "/d/c.conf", "/e/x/1.toml", "/e/y/2.toml"})
    root.add_file(name, "");
  const Host host = open_test_host(root);
  EXPECT_EQ(host.glob("/d/*.toml"), (std::vector<std::string>{"/d/a.toml", "/d/b.toml"}));
  EXPECT_EQ(host.glob("/e/*/?.toml"), (std::vector<std::string>{"/e/x/1.toml", "/e/y/2.toml"}));
  EXPECT_TRUE(host.glob("/none/*").empty());
}

TEST(Host, ReadsTheVersionOfAProgram) {
  const TestRoot root;
  root.write_program("/usr/bin/containerd", "[ \"$1\" = --version ] && echo containerd x v1.7.27 abc\n");
  root.write_program("/usr/local/bin/crio", "exit 3\n");
  root.add_file("/usr/bin/dockerd", "no program");
  const Host host = open_test_host(root);
  EXPECT_EQ(host.find_program("containerd"), "/usr/bin/containerd");
  EXPECT_EQ(host.program_version("/usr/bin/containerd")->str(), "1.7.27");
  EXPECT_FALSE(host.program_version("/usr/local/bin/crio"));
  EXPECT_EQ(host.find_program("dockerd"), std::nullopt);
}

TEST(Host, RunsProgramsInAnotherRoot) {
  if (::geteuid() != 0) GTEST_SKIP() << "chroot needs root";
  // The C library's ldconfig is static: it runs in a bare root.
  const char* program = "/sbin/ldconfig";
  if (!std::filesystem::exists(program)) GTEST_SKIP() << "no " << program << " to run in a bare root";
  const TestRoot root;
  root.make_directory("/usr/bin");
  std::filesystem::copy_file(program, root.at("/usr/bin/podman"));
  const auto version = open_test_host(root, false).program_version("/usr/bin/podman");
  ASSERT_TRUE(version) << version.error().full_message();
  EXPECT_GE(*version, (EngineVersion{2, 0, 0}));
}

TEST(Host, RestartsAUnitBySystemctl) {
  const TestRoot root;
  root.make_directory("/run/systemd/system");
  root.write_program("/usr/bin/systemctl",
                     "echo \"$@\" >> " + root.at("/asked") +
                         "\n[ \"$2\" = bad.service ] && { echo no such unit; exit 5; }\nexit 0\n");
  const Host host = open_test_host(root);
  EXPECT_TRUE(host.restart_unit("containerd.service"));
  EXPECT_EQ(root.read_text("/asked"), "restart containerd.service\n");
  EXPECT_EQ(host.restart_unit("bad.service").error().full_message(),
            "bad.service: `systemctl restart bad.service` failed: no such unit");
}

TEST(Host, PrintsTheCommandWithoutSystemd) {
  const TestRoot root;
  EXPECT_EQ(open_test_host(root).restart_unit("crio.service").error().code(), Code::kFailedPrecondition);
  const auto from_a_pod = open_test_host(root, false).restart_unit("crio.service");
  EXPECT_NE(
      from_a_pod.error().full_message().find("nsenter --target 1 --mount -- systemctl restart crio.service"),
      std::string::npos);
}

TEST(Configure, AppliesAndRemovesTheDropIn) {
  const TestRoot root;
  root.write_program("/usr/bin/containerd", "echo containerd x v1.7.27 abc\n");
  const std::string main = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"p\"\n";
  root.add_file("/etc/containerd/config.toml", main, 0600);
  const Host host = open_test_host(root);
  const auto dry = configure_engine(host, {.engine = Engine::kContainerd, .dry_run = true});
  ASSERT_TRUE(dry) << dry.error().full_message();
  EXPECT_EQ(dry->changes.size(), 2u);
  EXPECT_EQ(root.read_text("/etc/containerd/config.toml"), main);
  const auto done = configure_engine(host, {.engine = Engine::kContainerd});
  ASSERT_TRUE(done) << done.error().full_message();
  EXPECT_TRUE(done->restart_needed);
  EXPECT_EQ(done->changes, dry->changes);
  EXPECT_NE(root.read_text("/etc/containerd/conf.d/99-gpulet.toml").find("sandbox_image"), std::string::npos);
  EXPECT_FALSE(configure_engine(host, {.engine = Engine::kContainerd})->restart_needed);
  ASSERT_TRUE(configure_engine(host, {.engine = Engine::kContainerd, .remove = true}));
  EXPECT_EQ(root.read_text("/etc/containerd/config.toml"), main);
  EXPECT_FALSE(root.has_file("/etc/containerd/conf.d/99-gpulet.toml"));
}

TEST(Configure, NamesAMalformedFileAndChangesNothing) {
  const TestRoot root;
  root.add_file("/etc/containerd/config.toml", "version = 3\nimports = [\n");
  const auto done = configure_engine(open_test_host(root), {.engine = Engine::kContainerd});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().full_message(), "/etc/containerd/config.toml:3: expected `]`");
  EXPECT_FALSE(root.has_file("/etc/containerd/conf.d"));
}

TEST(Configure, AcceptsAnotherDropInPath) {
  const TestRoot root;
  root.add_file(
      "/k3s/config.toml",
      "version = 3\nimports = "
      "[\"/k3s/config-v3.toml.d/*.toml\"]\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n");
  const auto before = root.read_text("/k3s/config.toml");
  const ConfigureRequest request{.engine = Engine::kContainerd,
                                 .config = "/k3s/config.toml",
                                 .drop_in = "/k3s/config-v3.toml.d/99-gpulet.toml"};
  ASSERT_TRUE(configure_engine(open_test_host(root), request));
  EXPECT_EQ(root.read_text("/k3s/config.toml"), before);
  EXPECT_TRUE(root.has_file("/k3s/config-v3.toml.d/99-gpulet.toml"));
  EXPECT_EQ(
      configure_engine(open_test_host(root), {.engine = Engine::kDocker, .drop_in = "/x"}).error().code(),
      Code::kInvalidArgument);
  EXPECT_FALSE(
      configure_engine(open_test_host(root), {.engine = Engine::kContainerd, .drop_in = "relative.toml"}));
  EXPECT_FALSE(
      configure_engine(open_test_host(root), {.engine = Engine::kContainerd, .drop_in = "/x/*.toml"}));
}

TEST(Check, FindsEachInstalledEngine) {
  const TestRoot root;
  EXPECT_TRUE(check_engines(open_test_host(root)).empty());
  root.write_program("/usr/bin/containerd", "echo containerd x v2.3.6\n");
  root.write_program("/usr/bin/dockerd", "echo Docker version 25.0.3, build x\n");
  root.add_file("/etc/crio/crio.conf", "[crio\n");
  root.add_file("/etc/containers/containers.conf", "");  // of some other program
  const auto reports = check_engines(open_test_host(root));
  ASSERT_EQ(reports.size(), 3u);
  EXPECT_EQ(reports[0].engine, Engine::kContainerd);
  EXPECT_TRUE(reports[0].is_ready());
  EXPECT_EQ(reports[1].engine, Engine::kCrio);
  EXPECT_FALSE(reports[1].is_ready());
  EXPECT_EQ(reports[1].findings.at(0).detail, "/etc/crio/crio.conf:1: expected `]`");
  EXPECT_EQ(reports[2].version->str(), "25.0.3");
  EXPECT_FALSE(reports[2].is_ready());
  EXPECT_EQ(reports[2].findings.at(1).advice, "gpulet runtime configure --runtime docker");
}

TEST(Check, FindsADistributionsContainerd) {
  const TestRoot root;
  const std::string off = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n";
  root.add_file("/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
                "imports = ['/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/*.toml']\n" + off);
  root.add_file("/run/k3s/containerd/containerd.sock", "");
  root.write_program("/var/lib/rancher/k3s/data/current/bin/containerd", "echo containerd x v2.0.2-k3s1\n");
  root.add_file("/var/snap/microk8s/current/args/containerd.toml", "version = 3\n");
  const auto reports = check_engines(open_test_host(root));
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].distribution, "k3s");
  EXPECT_EQ(reports[0].socket, "/run/k3s/containerd/containerd.sock");
  EXPECT_EQ(reports[0].version->str(), "2.0.2");
  EXPECT_FALSE(reports[0].is_ready());
  EXPECT_EQ(reports[0].findings.at(1).advice,
            "gpulet runtime configure --runtime containerd --config "
            "/var/lib/rancher/k3s/agent/etc/containerd/config.toml --drop-in-config "
            "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/99-gpulet.toml, and restart k3s");
  EXPECT_EQ(reports[1].distribution, "MicroK8s");
  EXPECT_TRUE(reports[1].is_ready());
}

}  // namespace
}  // namespace gpulet::runtimes
