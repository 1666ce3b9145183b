#include "runtimes/containerd.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <algorithm>

#include "runtimes/ours.h"
#include "runtimes/test_files.h"
#include "runtimes/toml.h"

namespace gpulet::runtimes {
namespace {

constexpr const char* kMain = "/etc/containerd/config.toml";
constexpr const char* kOwn = "/etc/containerd/conf.d/99-gpulet.toml";
constexpr Version k17{1, 7, 27}, k2{2, 3, 6};

Target target(std::optional<Version> version) {
  return {.version = version, .config = kMain, .drop_in = kOwn};
}

std::string error_of(const TestFiles& host, std::optional<Version> version) {
  const auto plan = containerd::configure(target(version), host.reader());
  EXPECT_FALSE(plan);
  return plan ? "" : plan.error().text();
}

void configure(TestFiles& host, std::optional<Version> version) {
  const auto plan = containerd::configure(target(version), host.reader());
  ASSERT_TRUE(plan) << plan.error().text();
  host.apply(*plan);
}
void remove(TestFiles& host, std::optional<Version> version) {
  const auto plan = containerd::remove(target(version), host.reader());
  ASSERT_TRUE(plan) << plan.error().text();
  host.apply(*plan);
}
bool fit(const TestFiles& host, std::optional<Version> version) {
  const auto findings = containerd::judge(target(version), host.reader());
  EXPECT_TRUE(findings) << findings.error().text();
  return std::ranges::all_of(*findings, &Finding::fit);
}

const std::string kOff3 = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n  enable_cdi = false\n";
const std::string kKubeadm17 =
    "version = 2\n\n[plugins]\n  [plugins.\"io.containerd.grpc.v1.cri\"] # ours\n"
    "    enable_cdi = false # later\n    sandbox_image = \"pause:3.9\"\n    cdi_spec_dirs = [\n      "
    "\"/etc/cdi\",\n    ]\n"
    "    [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n      SystemdCgroup = "
    "true\n"
    "[plugins.\"io.containerd.other\"]\n  x = 1\n";

TEST(Containerd, Version2IsOnByItself) {
  TestFiles host{{{kMain, "version = 3\n"}}};
  const auto plan = containerd::configure(target(k2), host.reader());
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->changes.empty());
  EXPECT_EQ(plan->say, "CDI is on and reads both folders of specs");
  EXPECT_TRUE(fit(host, k2));
  EXPECT_TRUE(fit(TestFiles{}, k2));
}

TEST(Containerd, WhereVersion2WasTurnedOffTheDropInTurnsItOn) {
  TestFiles host{{{kMain, kOff3}}};
  EXPECT_FALSE(fit(host, k2));
  configure(host, k2);
  EXPECT_EQ(host.files[kOwn],
            std::string(kOurHeader) +
                "version = 3\n\n[plugins.\"io.containerd.cri.v1.runtime\"]\n  enable_cdi = true\n"
                "  cdi_spec_dirs = [\"/etc/cdi\", \"/var/run/cdi\"]\n");
  EXPECT_EQ(host.files[kMain],
            "version = 3\nimports = [\"/etc/containerd/conf.d/99-gpulet*.toml\"]  # by `gpulet runtime "
            "configure`\n" +
                kOff3.substr(12));
  EXPECT_TRUE(fit(host, k2));
  remove(host, k2);
  EXPECT_EQ(host.files, (std::map<std::string, std::string>{{kMain, kOff3}}));
}

TEST(Containerd, FoldersThatArePartOfTheSettingStay) {
  TestFiles host{
      {{kMain,
        "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\ncdi_spec_dirs = ['/var/cdi/static']\n"}}};
  configure(host, k2);
  EXPECT_NE(host.files[kOwn].find("[\"/var/cdi/static\", \"/etc/cdi\", \"/var/run/cdi\"]"),
            std::string::npos);
  EXPECT_TRUE(fit(host, k2));
  // /run is /var/run, and a slash more is nothing.
  EXPECT_TRUE(
      fit(TestFiles{{{kMain,
                      "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\ncdi_spec_dirs = ['/run/cdi/', "
                      "'/etc/cdi']\n"}}},
          k2));
}

TEST(Containerd, Version17RepeatsThePluginsTables) {
  TestFiles host{{{kMain, kKubeadm17}}};
  configure(host, k17);
  const std::string& own = host.files[kOwn];
  EXPECT_TRUE(
      own.ends_with("version = 2\n\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  enable_cdi = true\n"
                    "  cdi_spec_dirs = [\"/etc/cdi\", \"/var/run/cdi\"]\n"
                    "    sandbox_image = \"pause:3.9\"\n"
                    "    [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n"
                    "      SystemdCgroup = true\n"))
      << own;
  EXPECT_TRUE(toml::parse(own, "own"));
  EXPECT_TRUE(fit(host, k17));
  EXPECT_EQ(host.files[kMain].substr(host.files[kMain].find("\n\n")), kKubeadm17.substr(11));
  // A change of the main file makes the repetition old: check says so, configure renews it.
  const auto with_import = host.files[kMain];
  host.files[kMain].replace(host.files[kMain].find("3.9"), 3, "3.10");
  EXPECT_FALSE(fit(host, k17));
  configure(host, k17);
  EXPECT_TRUE(fit(host, k17));
  EXPECT_NE(host.files[kOwn].find("pause:3.10"), std::string::npos);
  host.files[kMain] = with_import;
  remove(host, k17);
  EXPECT_EQ(host.files[kMain], kKubeadm17);
  EXPECT_FALSE(host.files.contains(kOwn));
}

TEST(Containerd, Version17RepeatsTheFileThatCounts) {
  TestFiles host{{{kMain,
                   "version = 2\nimports = ['/etc/containerd/conf.d/*.toml']\n"
                   "[plugins.'io.containerd.grpc.v1.cri']\nsandbox_image = 'forgotten'\n"},
                  {"/etc/containerd/conf.d/10-x.toml",
                   "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nsandbox_image = 'counts'\n"}}};
  const auto main = host.files[kMain];
  configure(host, k17);
  EXPECT_EQ(host.files[kMain], main);  // the folder is imported already
  EXPECT_NE(host.files[kOwn].find("counts"), std::string::npos);
  EXPECT_EQ(host.files[kOwn].find("forgotten"), std::string::npos);
  EXPECT_TRUE(fit(host, k17));
}

TEST(Containerd, WithoutAMainFileOneIsMadeAndTakenAway) {
  TestFiles host;
  configure(host, k17);
  EXPECT_EQ(host.files.size(), 2u);
  EXPECT_TRUE(fit(host, k17));
  remove(host, k17);
  EXPECT_TRUE(host.files.empty());
}

TEST(Containerd, AfterAnUpgradeTheRepetitionGoes) {
  TestFiles host{{{kMain, kKubeadm17}}};
  configure(host, k17);
  EXPECT_FALSE(fit(host, k2));  // a repetition that 2.x does not need would hide later changes
  configure(host, k2);
  EXPECT_TRUE(fit(host, k2));
  EXPECT_EQ(host.files[kOwn].find("sandbox_image"), std::string::npos);
}

TEST(Containerd, RefusesWhatItCannotDoRight) {
  EXPECT_EQ(error_of({}, Version{1, 6, 33}), "containerd: 1.6.33 has no CDI; 1.7.0 or later would do");
  EXPECT_EQ(error_of({{{kMain, "version = 3\n[a\n"}}}, k2), std::string(kMain) + ":2: `]` is missing");
  EXPECT_EQ(error_of({{{kMain, "version = 9\n"}}}, k2),
            std::string(kMain) + ":1: this config version is not known: 2, 3 or 4 would do");
  EXPECT_NE(error_of({{{kMain, "version = 3\n"}}}, k17).find("reads none above 2"), std::string::npos);
  EXPECT_NE(error_of({{{kMain, "[plugins.cri]\nx = 1\n"}}}, k17).find("containerd config migrate"),
            std::string::npos);
  EXPECT_NE(error_of({{{kMain, "disabled_plugins = ['cri']\n"}}}, k17).find("the CRI plugin is disabled"),
            std::string::npos);
  EXPECT_NE(error_of({{{kMain, kOff3}, {kOwn, "version = 3\n"}}}, k2).find("another's file"),
            std::string::npos);
  EXPECT_NE(
      error_of({{{kMain, "version = 2\n[plugins]\n'io.containerd.grpc.v1.cri' = { sandbox_image = 'x' }\n"}}},
               k17)
          .find(":3: containerd 1.x forgets this"),
      std::string::npos);
  EXPECT_EQ(error_of({{{kMain, "version = 3\nimports = ['/not/there']\n"}}}, k2),
            std::string(kMain) + ": imports /not/there, which is not there");
}

TEST(Containerd, AFileReadLaterThatTurnsItOffIsNamed) {
  EXPECT_EQ(error_of({{{kMain, "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n"},
                       {"/etc/containerd/conf.d/zz.toml", kOff3}}},
                     k2),
            "/etc/containerd/conf.d/zz.toml:3: read after our drop-in, and turns CDI off: take enable_cdi "
            "out of it");
}

TEST(Containerd, ADisabledCriIsNobodysTrouble) {
  const TestFiles host{{{kMain, "disabled_plugins = [\"cri\"]\n"}}};
  EXPECT_TRUE(fit(host, k17));  // Docker's package ships this
}

TEST(Containerd, ImportsInACircleEnd) {
  const TestFiles host{{{kMain, "version = 3\nimports = ['/etc/containerd/*.toml']\n"}}};
  EXPECT_TRUE(fit(host, k2));
}

TEST(Containerd, RemoveWithoutConfigureDoesNothing) {
  const TestFiles host{{{kMain, kKubeadm17}}};
  EXPECT_TRUE(containerd::remove(target(k17), host.reader())->changes.empty());
  EXPECT_TRUE(containerd::remove(target(k17), TestFiles{}.reader())->changes.empty());
}

rc::Gen<std::string> any_main() {
  return rc::gen::exec([] {
    const bool new_names = *rc::gen::arbitrary<bool>();
    const std::string nl = *rc::gen::element<std::string>("\n", "\r\n");
    const std::string plugin = new_names ? "io.containerd.cri.v1.runtime" : "io.containerd.grpc.v1.cri";
    std::string text =
        *rc::gen::element<std::string>("", "# é" + nl) + "version = " + (new_names ? "3" : "2") + nl;
    text += *rc::gen::element<std::string>("", "imports = []" + nl,
                                           "imports = ['/etc/containerd/conf.d/*.toml']" + nl,
                                           "imports = [" + nl + "  \"/none*.toml\", # x" + nl + "]" + nl);
    text += *rc::gen::element<std::string>("", "disabled_plugins = []" + nl, "root = '/r'" + nl);
    if (*rc::gen::arbitrary<bool>()) {
      text += "[plugins.\"" + plugin + "\"]" + nl;
      text += *rc::gen::element<std::string>("", "enable_cdi = true" + nl, "  enable_cdi=false # no" + nl);
      text +=
          *rc::gen::element<std::string>("", "cdi_spec_dirs = ['/run/cdi']" + nl,
                                         "cdi_spec_dirs = [ \"/etc/cdi\"," + nl + "'/var/run/cdi', ]" + nl);
      text += *rc::gen::element<std::string>("", "a.b = \"\"\"" + nl + "enable_cdi = true\"\"\"" + nl);
      text += *rc::gen::element<std::string>(
          "", "[plugins.'" + plugin + "'.x.y]" + nl + "z = [[1], {a = 1}]" + nl);
    }
    text += *rc::gen::element<std::string>("", "[[plugins.other]]" + nl + "enable_cdi = false" + nl);
    if (*rc::gen::arbitrary<bool>()) text.resize(text.size() - nl.size());
    return text;
  });
}

RC_GTEST_PROP(ContainerdProperty, ConfigureTwiceIsOnceAndRemoveIsTheIdentity, ()) {
  const TestFiles before{{{kMain, *any_main()}}};
  const bool old_config = before.files.at(kMain).find("version = 2") != std::string::npos;
  const auto version = *rc::gen::element<std::optional<Version>>(k2, std::nullopt, k17);
  if (!old_config && version == k17) return;  // no such containerd
  TestFiles host = before;
  const auto plan = containerd::configure(target(version), host.reader());
  RC_ASSERT(plan.has_value());
  host.apply(*plan);
  const auto findings = containerd::judge(target(version), host.reader());
  RC_ASSERT(findings.has_value());
  RC_ASSERT(std::ranges::all_of(*findings, &Finding::fit));
  const auto again = containerd::configure(target(version), host.reader());
  RC_ASSERT(again.has_value());
  RC_ASSERT(again->changes.empty());
  const auto back = containerd::remove(target(version), host.reader());
  RC_ASSERT(back.has_value());
  host.apply(*back);
  RC_ASSERT(host.files == before.files);
}

}  // namespace
}  // namespace gpulet::runtimes
