#include <algorithm>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "runtimes/containerd.h"
#include "runtimes/engine.h"
#include "runtimes/imports.h"
#include "runtimes/test_root.h"
#include "runtimes/toml.h"

namespace gpulet::runtimes {
namespace {

constexpr const char* kOurs = "/etc/containerd/conf.d/99-gpulet*.toml";

std::string add_import(const std::string& text) {
  const auto document = toml::parse_toml(text, "f");
  EXPECT_TRUE(document) << text;
  return with_import(text, *document, kOurs);
}
std::string remove_import(const std::string& text) {
  const auto document = toml::parse_toml(text, "f");
  EXPECT_TRUE(document) << document.error().full_message() << "\n" << text;
  return without_import(text, *document, kOurs);
}
std::vector<std::string> parsed_imports(const std::string& text) {
  const auto document = toml::parse_toml(text, "/etc/containerd/config.toml");
  EXPECT_TRUE(document) << document.error().full_message() << "\n" << text;
  return read_imports(*document, "/etc/containerd/config.toml").value();
}

TEST(Imports, AddsALineAfterTheVersion) {
  EXPECT_EQ(
      add_import("# v\nversion = 2 # two\n[a]\n"),
      "# v\nversion = 2 # two\nimports = [\"/etc/containerd/conf.d/99-gpulet*.toml\"]  # by `gpulet runtime "
      "configure`\n[a]\n");
  EXPECT_EQ(add_import("version = 2\r\n").substr(11, 9), "\r\nimports");
  EXPECT_TRUE(add_import("version = 2").ends_with("\nversion = 2"));
  EXPECT_TRUE(add_import("[a]\n").ends_with("\n[a]\n"));
}

TEST(Imports, AppendsInTheListsStyle) {
  const std::string q = std::string("\"") + kOurs + "\"";
  EXPECT_EQ(add_import("imports = []\n"), "imports = [" + q + "]\n");
  EXPECT_EQ(add_import("imports = ['a' ]\n"), "imports = ['a', " + q + " ]\n");
  EXPECT_EQ(add_import("imports = ['a',]\n"), "imports = ['a', " + q + ",]\n");
  EXPECT_EQ(add_import("imports = [\n  'a',\n]\n"), "imports = [\n  'a',\n  " + q + ",\n]\n");
  EXPECT_EQ(add_import("imports = [\r\n\t'a'\r\n]\r\n"), "imports = [\r\n\t'a',\r\n\t" + q + "\r\n]\r\n");
  EXPECT_EQ(add_import("imports = [\n  'a', # why\n]\n"), "imports = [\n  'a', " + q + ", # why\n]\n");
  EXPECT_EQ(add_import("imports = [ # none\n]\n"), "imports = [" + q + " # none\n]\n");
}

TEST(Imports, KeepsLaterEntries) {
  const std::string q = std::string("\"") + kOurs + "\"";
  EXPECT_EQ(remove_import("imports = [" + q + ", 'b']\n"), "imports = ['b']\n");
  EXPECT_EQ(remove_import("imports = [" + q + ",]\n"), "imports = []\n");
  EXPECT_EQ(remove_import("imports = ['a', # x\n " + q + ", 'b']\n"), "imports = ['a', # x\n 'b']\n");
  EXPECT_EQ(parsed_imports(remove_import("imports = ['a', # x\n " + q + " # y\n, 'b']\n")),
            (std::vector<std::string>{"/etc/containerd/a", "/etc/containerd/b"}));
  EXPECT_EQ(remove_import("imports = [" + q + ", " + q + "]\n"), "imports = []\n");
  EXPECT_EQ(remove_import("imports = [" + q + ", 'b']  # by `gpulet runtime configure`\n"),
            "imports = ['b']  # by `gpulet runtime configure`\n");
  EXPECT_EQ(remove_import("imports = ['b']\n"), "imports = ['b']\n");
}

TEST(Imports, CleansPathsAsContainerdDoes) {
  EXPECT_EQ(parsed_imports("imports = ['conf.d/../x/*.toml', '/a//b/./c']\n"),
            (std::vector<std::string>{"/etc/containerd/x/*.toml", "/a/b/c"}));
  EXPECT_TRUE(import_matches("/etc/containerd/conf.d/*.toml", "/etc/containerd/conf.d/99-gpulet.toml"));
  EXPECT_FALSE(import_matches("/etc/*.toml", "/etc/containerd/config.toml"));
  EXPECT_TRUE(import_matches(import_pattern("/x/a.toml"), "/x/a.toml"));
  EXPECT_TRUE(import_matches(import_pattern("/x/a.part"), "/x/a.part"));
  EXPECT_FALSE(read_imports(*toml::parse_toml("imports = 'a'\n", "f"), "/f"));
}

// Whitespace, comments, line ends and lists in usual styles.
rc::Gen<std::string> any_document() {
  const auto blank = rc::gen::element<std::string>("", " ", "\t", "\n", "\n  ", " # c, \"]\n", "\r\n");
  const auto item =
      rc::gen::element<std::string>("'a'", "\"b\\\"]\"", "\"\"\"c\n\"\"\"", "'''d'''", "\"/e/*.toml\"");
  const auto list = rc::gen::exec([=] {
    std::string text = "imports =" + *rc::gen::element<std::string>(" ", "") + "[" + *blank;
    const int count = *rc::gen::inRange(0, 4);
    for (int i = 0; i < count; ++i) {
      text += *item + *blank;
      if (i + 1 < count || *rc::gen::arbitrary<bool>()) text += "," + *blank;
    }
    return text + "]" + *rc::gen::element<std::string>("", " # z") + "\n";
  });
  return rc::gen::exec([=] {
    const std::string newline = *rc::gen::element<std::string>("\n", "\r\n");
    std::string text = *rc::gen::element<std::string>("", "# head" + newline, newline, "\xef\xbb\xbf");
    const std::string version = "version = " + *rc::gen::element<std::string>("2", "3", "2 # x") + newline;
    const bool first = *rc::gen::arbitrary<bool>();
    if (first) text += version;
    if (*rc::gen::arbitrary<bool>()) text += *list;
    if (!first && *rc::gen::arbitrary<bool>()) text += version;
    text +=
        *rc::gen::element<std::string>("", "[plugins]" + newline, "root = '/x'" + newline + "[a.b]" + newline,
                                       "[[s]]" + newline + "imports = [1]" + newline);
    if (*rc::gen::arbitrary<bool>() && text.ends_with(newline)) text.resize(text.size() - newline.size());
    return text;
  });
}

RC_GTEST_PROP(ImportsProperty, RemovingRestoresTheText, ()) {
  const std::string text = *any_document();
  const auto document = toml::parse_toml(text, "f");
  RC_ASSERT(document.has_value());
  const std::string with = with_import(text, *document, kOurs);
  const auto edited = toml::parse_toml(with, "f");
  RC_ASSERT(edited.has_value());
  // All imports remain, gpulet's is the last, and no other value changes.
  auto before = read_imports(*document, "/f").value();
  before.push_back(kOurs);
  RC_ASSERT(read_imports(*edited, "/f").value() == before);
  for (const auto& entry : document->entries) {
    if (entry.path == toml::Path{"imports"}) continue;
    const auto* same = edited->find(entry.path);
    RC_ASSERT(same != nullptr);
    RC_ASSERT(with.substr(same->value.begin, same->value.end - same->value.begin) ==
              text.substr(entry.value.begin, entry.value.end - entry.value.begin));
  }
  // All earlier bytes remain in order: one piece was inserted.
  std::size_t prefix = 0, suffix = 0;
  while (prefix < text.size() && text[prefix] == with[prefix]) ++prefix;
  while (suffix < text.size() - prefix && text[text.size() - 1 - suffix] == with[with.size() - 1 - suffix])
    ++suffix;
  RC_ASSERT(prefix + suffix == text.size());
  RC_ASSERT(without_import(with, *edited, kOurs) == text);
}

}  // namespace

namespace {

constexpr const char* kMain = "/etc/containerd/config.toml";
constexpr const char* kOwn = "/etc/containerd/conf.d/99-gpulet.toml";
constexpr EngineVersion k17{1, 7, 27}, k2{2, 3, 6};

Target containerd_target(std::optional<EngineVersion> version) {
  return {.version = version, .config = kMain, .drop_in = kOwn};
}

std::string setup_error(const TestFiles& host, std::optional<EngineVersion> version) {
  const auto plan = containerd::plan_setup(containerd_target(version), host.make_reader());
  EXPECT_FALSE(plan);
  return plan ? "" : plan.error().full_message();
}

void set_up_containerd(TestFiles& host, std::optional<EngineVersion> version) {
  const auto plan = containerd::plan_setup(containerd_target(version), host.make_reader());
  ASSERT_TRUE(plan) << plan.error().full_message();
  host.apply_plan(*plan);
}
void remove_containerd(TestFiles& host, std::optional<EngineVersion> version) {
  const auto plan = containerd::plan_removal(containerd_target(version), host.make_reader());
  ASSERT_TRUE(plan) << plan.error().full_message();
  host.apply_plan(*plan);
}
bool is_containerd_ready(const TestFiles& host, std::optional<EngineVersion> version) {
  const auto findings = containerd::collect_findings(containerd_target(version), host.make_reader());
  EXPECT_TRUE(findings) << findings.error().full_message();
  return std::ranges::all_of(*findings, &Finding::is_met);
}

const std::string kOff3 = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n  enable_cdi = false\n";
const std::string kKubeadm17 =
    "version = 2\n\n[plugins]\n  [plugins.\"io.containerd.grpc.v1.cri\"] # ours\n"
    "    enable_cdi = false # later\n    sandbox_image = \"pause:3.9\"\n    cdi_spec_dirs = [\n      "
    "\"/etc/cdi\",\n    ]\n"
    "    [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n      SystemdCgroup = "
    "true\n"
    "[plugins.\"io.containerd.other\"]\n  x = 1\n";

TEST(Containerd, Version2HasCdiOnByDefault) {
  TestFiles host{{{kMain, "version = 3\n"}}};
  const auto plan = containerd::plan_setup(containerd_target(k2), host.make_reader());
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->changes.empty());
  EXPECT_EQ(plan->message, "CDI is on and reads both spec directories");
  EXPECT_TRUE(is_containerd_ready(host, k2));
  EXPECT_TRUE(is_containerd_ready(TestFiles{}, k2));
}

TEST(Containerd, TheDropInTurnsVersion2On) {
  TestFiles host{{{kMain, kOff3}}};
  EXPECT_FALSE(is_containerd_ready(host, k2));
  set_up_containerd(host, k2);
  EXPECT_EQ(host.files[kOwn],
            std::string(kFileHeader) +
                "version = 3\n\n[plugins.\"io.containerd.cri.v1.runtime\"]\n  enable_cdi = true\n"
                "  cdi_spec_dirs = [\"/etc/cdi\", \"/var/run/cdi\"]\n");
  EXPECT_EQ(host.files[kMain],
            "version = 3\nimports = [\"/etc/containerd/conf.d/99-gpulet*.toml\"]  # by `gpulet runtime "
            "configure`\n" +
                kOff3.substr(12));
  EXPECT_TRUE(is_containerd_ready(host, k2));
  remove_containerd(host, k2);
  EXPECT_EQ(host.files, (std::map<std::string, std::string>{{kMain, kOff3}}));
}

TEST(Containerd, KeepsConfiguredDirectories) {
  TestFiles host{
      {{kMain,
        "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\ncdi_spec_dirs = ['/var/cdi/static']\n"}}};
  set_up_containerd(host, k2);
  EXPECT_NE(host.files[kOwn].find("[\"/var/cdi/static\", \"/etc/cdi\", \"/var/run/cdi\"]"),
            std::string::npos);
  EXPECT_TRUE(is_containerd_ready(host, k2));
  // /run equals /var/run, and a trailing slash is ignored.
  EXPECT_TRUE(is_containerd_ready(
      TestFiles{{{kMain,
                  "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\ncdi_spec_dirs = ['/run/cdi/', "
                  "'/etc/cdi']\n"}}},
      k2));
}

TEST(Containerd, Version17RepeatsThePluginsTables) {
  TestFiles host{{{kMain, kKubeadm17}}};
  set_up_containerd(host, k17);
  const std::string& own = host.files[kOwn];
  EXPECT_TRUE(
      own.ends_with("version = 2\n\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  enable_cdi = true\n"
                    "  cdi_spec_dirs = [\"/etc/cdi\", \"/var/run/cdi\"]\n"
                    "    sandbox_image = \"pause:3.9\"\n"
                    "    [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n"
                    "      SystemdCgroup = true\n"))
      << own;
  EXPECT_TRUE(toml::parse_toml(own, "own"));
  EXPECT_TRUE(is_containerd_ready(host, k17));
  EXPECT_EQ(host.files[kMain].substr(host.files[kMain].find("\n\n")), kKubeadm17.substr(11));
  // A change of the main file makes the copy outdated: check reports it, configure renews it.
  const auto with_import = host.files[kMain];
  host.files[kMain].replace(host.files[kMain].find("3.9"), 3, "3.10");
  EXPECT_FALSE(is_containerd_ready(host, k17));
  set_up_containerd(host, k17);
  EXPECT_TRUE(is_containerd_ready(host, k17));
  EXPECT_NE(host.files[kOwn].find("pause:3.10"), std::string::npos);
  host.files[kMain] = with_import;
  remove_containerd(host, k17);
  EXPECT_EQ(host.files[kMain], kKubeadm17);
  EXPECT_FALSE(host.files.contains(kOwn));
}

TEST(Containerd, Version17RepeatsDottedKeysAndInlineTables) {
  const std::string wanted =
      "version = 2\n\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  enable_cdi = true\n"
      "  cdi_spec_dirs = [\"/etc/cdi\", \"/var/run/cdi\"]\n\"sandbox_image\" = \"pause:3.9\"\n"
      "\"containerd\".\"runtimes\".\"runc\".\"options\".\"SystemdCgroup\" = true\n\"registry\" = {}\n";
  for (const std::string text :
       {"version = 2\nplugins.\"io.containerd.grpc.v1.cri\".enable_cdi = false\n"
        "plugins.\"io.containerd.grpc.v1.cri\".sandbox_image = \"pause:3.9\"\n"
        "plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options.SystemdCgroup = true\n"
        "plugins.\"io.containerd.grpc.v1.cri\".registry = {}\n",
        "version = 2\n[plugins]\n\"io.containerd.grpc.v1.cri\" = { enable_cdi = false, sandbox_image = "
        "\"pause:3.9\", containerd = { runtimes = { runc = { options = { SystemdCgroup = true } } } }, "
        "registry "
        "= {} }\n"}) {
    TestFiles host{{{kMain, text}}};
    EXPECT_FALSE(is_containerd_ready(host, k17));
    set_up_containerd(host, k17);
    EXPECT_TRUE(host.files[kOwn].ends_with(wanted)) << host.files[kOwn];
    EXPECT_TRUE(toml::parse_toml(host.files[kOwn], "own"));
    EXPECT_TRUE(is_containerd_ready(host, k17));
    remove_containerd(host, k17);
    EXPECT_EQ(host.files[kMain], text);
  }
}

TEST(Containerd, AConfigWithoutAVersionHasTheEnginesNames) {
  const std::string off = "[plugins.'io.containerd.cri.v1.runtime']\n  enable_cdi = false\n";
  TestFiles host{{{kMain, off}}};
  EXPECT_FALSE(is_containerd_ready(host, k2));
  set_up_containerd(host, k2);
  EXPECT_NE(host.files[kOwn].find("version = 3\n\n[plugins.\"io.containerd.cri.v1.runtime\"]"),
            std::string::npos);
  EXPECT_TRUE(is_containerd_ready(host, k2));
  remove_containerd(host, k2);
  EXPECT_EQ(host.files[kMain], off);
  EXPECT_NE(setup_error(TestFiles{{{kMain, "[plugins.cri]\nsandbox_image = 'x'\n"}}}, k17)
                .find("version 1 is not supported"),
            std::string::npos);
}

TEST(Containerd, AByteOrderMarkStaysFirst) {
  const std::string text = "\xef\xbb\xbf[grpc]\naddress = '/run/x.sock'\n";
  TestFiles host{{{kMain, text}}};
  set_up_containerd(host, k17);
  EXPECT_TRUE(host.files[kMain].starts_with("\xef\xbb\xbfimports = ")) << host.files[kMain];
  remove_containerd(host, k17);
  EXPECT_EQ(host.files[kMain], text);
  EXPECT_EQ(setup_error(host, k2),
            "/etc/containerd/config.toml:1: containerd 2 reads no file with a byte order mark: remove it");
}

TEST(Containerd, Version17RepeatsTheEffectiveFile) {
  TestFiles host{{{kMain,
                   "version = 2\nimports = ['/etc/containerd/conf.d/*.toml']\n"
                   "[plugins.'io.containerd.grpc.v1.cri']\nsandbox_image = 'forgotten'\n"},
                  {"/etc/containerd/conf.d/10-x.toml",
                   "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nsandbox_image = 'counts'\n"}}};
  const auto main = host.files[kMain];
  set_up_containerd(host, k17);
  EXPECT_EQ(host.files[kMain], main);  // the directory is imported already
  EXPECT_NE(host.files[kOwn].find("counts"), std::string::npos);
  EXPECT_EQ(host.files[kOwn].find("forgotten"), std::string::npos);
  EXPECT_TRUE(is_containerd_ready(host, k17));
}

TEST(Containerd, CreatesAndRemovesAMissingMainFile) {
  TestFiles host;
  set_up_containerd(host, k17);
  EXPECT_EQ(host.files.size(), 2u);
  EXPECT_TRUE(is_containerd_ready(host, k17));
  remove_containerd(host, k17);
  EXPECT_TRUE(host.files.empty());
}

TEST(Containerd, DropsTheCopyAfterAnUpgrade) {
  TestFiles host{{{kMain, kKubeadm17}}};
  set_up_containerd(host, k17);
  EXPECT_FALSE(is_containerd_ready(host, k2));  // a copy that 2.x does not need would hide later changes
  set_up_containerd(host, k2);
  EXPECT_TRUE(is_containerd_ready(host, k2));
  EXPECT_EQ(host.files[kOwn].find("sandbox_image"), std::string::npos);
}

TEST(Containerd, RefusesUnsupportedConfigs) {
  EXPECT_EQ(setup_error({}, EngineVersion{1, 6, 33}),
            "containerd: 1.6.33 does not support CDI; 1.7.0 or later is required");
  EXPECT_EQ(setup_error({{{kMain, "version = 3\n[a\n"}}}, k2), std::string(kMain) + ":2: expected `]`");
  EXPECT_EQ(setup_error({{{kMain, "version = 9\n"}}}, k2),
            std::string(kMain) + ":1: unknown config version: expected 2, 3 or 4");
  EXPECT_NE(setup_error({{{kMain, "version = 3\n"}}}, k17).find("reads none newer than 2"),
            std::string::npos);
  EXPECT_NE(setup_error({{{kMain, "[plugins.cri]\nx = 1\n"}}}, k17).find("containerd config migrate"),
            std::string::npos);
  EXPECT_NE(setup_error({{{kMain, "disabled_plugins = ['cri']\n"}}}, k17).find("the CRI plugin is disabled"),
            std::string::npos);
  EXPECT_NE(
      setup_error({{{kMain, kOff3}, {kOwn, "version = 3\n"}}}, k2).find("a file that gpulet did not write"),
      std::string::npos);
  EXPECT_EQ(setup_error({{{kMain, "version = 3\nimports = ['/not/there']\n"}}}, k2),
            std::string(kMain) + ": imports /not/there, which does not exist");
}

TEST(Containerd, NamesALaterFileThatTurnsItOff) {
  EXPECT_EQ(setup_error({{{kMain, "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n"},
                          {"/etc/containerd/conf.d/zz.toml", kOff3}}},
                        k2),
            "/etc/containerd/conf.d/zz.toml:3: read after gpulet's drop-in and turns CDI off: remove "
            "enable_cdi from it");
}

TEST(Containerd, AcceptsADisabledCriPlugin) {
  const TestFiles host{{{kMain, "disabled_plugins = [\"cri\"]\n"}}};
  EXPECT_TRUE(is_containerd_ready(host, k17));  // Docker's package ships this
}

TEST(Containerd, BoundsImportLoops) {
  const TestFiles host{{{kMain, "version = 3\nimports = ['/etc/containerd/*.toml']\n"}}};
  EXPECT_TRUE(is_containerd_ready(host, k2));
}

TEST(Containerd, RemoveWithoutConfigureChangesNothing) {
  const TestFiles host{{{kMain, kKubeadm17}}};
  EXPECT_TRUE(containerd::plan_removal(containerd_target(k17), host.make_reader())->changes.empty());
  EXPECT_TRUE(containerd::plan_removal(containerd_target(k17), TestFiles{}.make_reader())->changes.empty());
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

RC_GTEST_PROP(ContainerdProperty, ConfigureIsIdempotentAndRemoveRestores, ()) {
  const TestFiles before{{{kMain, *any_main()}}};
  const bool old_config = before.files.at(kMain).find("version = 2") != std::string::npos;
  const auto version = *rc::gen::element<std::optional<EngineVersion>>(k2, std::nullopt, k17);
  if (!old_config && version == k17) return;  // no such containerd
  TestFiles host = before;
  const auto plan = containerd::plan_setup(containerd_target(version), host.make_reader());
  RC_ASSERT(plan.has_value());
  host.apply_plan(*plan);
  const auto findings = containerd::collect_findings(containerd_target(version), host.make_reader());
  RC_ASSERT(findings.has_value());
  RC_ASSERT(std::ranges::all_of(*findings, &Finding::is_met));
  const auto again = containerd::plan_setup(containerd_target(version), host.make_reader());
  RC_ASSERT(again.has_value());
  RC_ASSERT(again->changes.empty());
  const auto back = containerd::plan_removal(containerd_target(version), host.make_reader());
  RC_ASSERT(back.has_value());
  host.apply_plan(*back);
  RC_ASSERT(host.files == before.files);
}

}  // namespace
}  // namespace gpulet::runtimes
