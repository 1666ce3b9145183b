#include "mig/hooks_file.h"

#include <gtest/gtest.h>

namespace gpulet::mig {
namespace {

// As mig-parted's own, deployments/systemd/hooks-default.yaml.
constexpr const char* kHooksFile = R"(version: v1
hooks:
    apply-start:
    - workdir: "/etc/nvidia-mig-manager"
      command: "/bin/bash"
      args: ["-x", "-c", "source hooks.sh; persist-config ${MIG_PARTED_SELECTED_CONFIG}"]
    pre-apply-mode:
    - command: /bin/one
      envs: {LEVEL: 2, EMPTY: , NAME: "a=b"}
    - command: /bin/two
    apply-exit: []
)";

std::string error_of(const std::string& text) {
  const auto file = parse_hooks_file(text, "hooks.yaml");
  return file ? "" : file.error().text();
}

TEST(HooksFile, OfMigPartedIsRead) {
  const auto file = parse_hooks_file(kHooksFile, "hooks.yaml");
  ASSERT_TRUE(file) << file.error().text();
  EXPECT_EQ(file->path, "hooks.yaml");
  ASSERT_EQ(file->at(HookPoint::kApplyStart).size(), 1u);
  const auto& start = file->at(HookPoint::kApplyStart)[0];
  EXPECT_EQ(start.command, "/bin/bash");
  EXPECT_EQ(start.args, (std::vector<std::string>{
                            "-x", "-c", "source hooks.sh; persist-config ${MIG_PARTED_SELECTED_CONFIG}"}));
  EXPECT_EQ(start.workdir, "/etc/nvidia-mig-manager");
  EXPECT_EQ(start.place, "hooks.yaml:4:7");
  const auto& mode = file->at(HookPoint::kPreApplyMode);
  ASSERT_EQ(mode.size(), 2u);
  EXPECT_EQ(mode[0].envs,
            (std::map<std::string, std::string>{{"LEVEL", "2"}, {"EMPTY", ""}, {"NAME", "a=b"}}));
  EXPECT_EQ(mode[1].command, "/bin/two");
  EXPECT_EQ(mode[1].workdir, "/");
  EXPECT_TRUE(file->at(HookPoint::kPreApplyConfig).empty());
  EXPECT_TRUE(file->at(HookPoint::kApplyExit).empty());
}

TEST(HooksFile, WithoutHooksThereAreNone) {
  for (const char* text :
       {"version: v1\n", "version: v1\nhooks:\n", "version: v1\nhooks: {apply-exit: }\n"}) {
    const auto file = parse_hooks_file(text, "hooks.yaml");
    ASSERT_TRUE(file) << text << file.error().text();
    for (const auto& hooks : file->hooks) EXPECT_TRUE(hooks.empty());
  }
}

TEST(HooksFile, PointsHaveTheirNames) {
  EXPECT_EQ(name(HookPoint::kApplyStart), "apply-start");
  EXPECT_EQ(name(HookPoint::kPreApplyMode), "pre-apply-mode");
  EXPECT_EQ(name(HookPoint::kPreApplyConfig), "pre-apply-config");
  EXPECT_EQ(name(HookPoint::kApplyExit), "apply-exit");
}

TEST(HooksFile, WhatIsWrongIsNamedWithItsPlaceAndWhatWouldDo) {
  const std::string head = "version: v1\nhooks:\n  apply-start:\n";
  const std::vector<std::pair<std::string, std::string>> table = {
      {"", "hooks.yaml:1:1: expected a mapping with version and hooks, found nothing"},
      {"hooks: {}\n", "hooks.yaml:1:1: version is missing; version: v1 would do"},
      {"version: v2\n", "hooks.yaml:1:10: version: expected v1, found 'v2'"},
      {"version: v1\nhook: {}\n", "hooks.yaml:2:1: unknown key 'hook'; did you mean hooks?"},
      {"version: v1\nhooks: []\n",
       "hooks.yaml:2:8: hooks: expected a mapping of lists of commands, found a list"},
      {"version: v1\nhooks:\n  pre-aply-mode: []\n",
       "hooks.yaml:3:3: hooks: unknown key 'pre-aply-mode'; did you mean pre-apply-mode?"},
      {"version: v1\nhooks:\n  apply-exit: /bin/true\n",
       "hooks.yaml:3:15: hooks.apply-exit: expected a list of commands, found '/bin/true'"},
      {head + "    - /bin/true\n",
       "hooks.yaml:4:7: hooks.apply-start[0]: expected a mapping with a command, found '/bin/true'"},
      {head + "    - args: [a]\n",
       "hooks.yaml:4:7: hooks.apply-start[0]: command is missing; the absolute path of a program would do"},
      {head + "    - command: systemctl\n",
       "hooks.yaml:4:16: hooks.apply-start[0].command: expected an absolute path, found 'systemctl'"},
      {head + "    - command: /bin/sh\n      arg: [a]\n",
       "hooks.yaml:5:7: hooks.apply-start[0]: unknown key 'arg'; did you mean args?"},
      {head + "    - command: /bin/sh\n      args: -c\n",
       "hooks.yaml:5:13: hooks.apply-start[0].args: expected a list of texts, found '-c'"},
      {head + "    - command: /bin/sh\n      args: [[a]]\n",
       "hooks.yaml:5:14: hooks.apply-start[0].args: expected a text, found a list"},
      {head + "    - command: /bin/sh\n      args: [\"a\\0b\"]\n",
       "hooks.yaml:5:14: hooks.apply-start[0].args: holds a NUL character, which no program can be given"},
      {head + "    - command: /bin/sh\n      envs: [A=1]\n",
       "hooks.yaml:5:13: hooks.apply-start[0].envs: expected a mapping of names and values, found a list"},
      {head + "    - command: /bin/sh\n      envs: {A=B: 1}\n",
       "hooks.yaml:5:14: hooks.apply-start[0].envs: expected a variable's name, found 'A=B'"},
      {head + "    - command: /bin/sh\n      workdir: here\n",
       "hooks.yaml:5:16: hooks.apply-start[0].workdir: expected an absolute path, found 'here'"},
      {head + "    - command: /bin/sh\n      workdir: {}\n",
       "hooks.yaml:5:16: hooks.apply-start[0].workdir: expected a text, found a mapping"},
      {"version: v1\nhooks: {}\nhooks: {}\n",
       "hooks.yaml:3:1: hooks: is given twice, first at hooks.yaml:2:1"},
      {"version: v1\n---\nversion: v1\n", "hooks.yaml:2:1: a second document; one would do"},
  };
  for (const auto& [text, expected] : table) EXPECT_EQ(error_of(text), expected) << text;
}

TEST(HooksFile, OneThatIsNotThereIsSaid) {
  const auto file = load_hooks_file("/nonexistent/hooks.yaml");
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code(), Code::kNotFound);
  EXPECT_EQ(file.error().about(), "/nonexistent/hooks.yaml");
}

}  // namespace
}  // namespace gpulet::mig
