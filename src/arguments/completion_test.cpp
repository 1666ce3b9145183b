#include "arguments/completion.h"

#include <gtest/gtest.h>

namespace gpulet::arguments {
namespace {

CommandDoc program() {
  CommandDoc list{.path = "tool list", .summary = "List things"};
  list.options = {
      {.names = {"-o", "--output"}, .value = "FORMAT", .help = "output format", .choices = {"json", "yaml"}},
      {.names = {"--root"}, .value = "DIRECTORY"},
      {.names = {"--count"}, .value = "N"},
      {.names = {"-w"}, .help = "wait"}};
  list.arguments = {{.names = {"FILE"}, .repeats = true}};
  CommandDoc plan{.path = "tool mig plan", .summary = "Plan"};
  CommandDoc mig{.path = "tool mig", .summary = "MIG", .commands = {plan}};
  CommandDoc completion{.path = "tool completion", .summary = "Complete"};
  completion.arguments = {{.names = {"SHELL"}, .choices = {"bash", "zsh"}}};
  return {.path = "tool", .commands = {list, mig, completion}};
}

std::string lines(const std::vector<std::string>& words) {
  return completion_lines(complete_words(program(), words));
}

TEST(Completion, CommandsAndTheirArguments) {
  EXPECT_EQ(lines({""}), "list\tList things\nmig\tMIG\ncompletion\tComplete\n");
  EXPECT_EQ(lines({"mi"}), "mig\tMIG\n");
  EXPECT_EQ(lines({"mig", ""}), "plan\tPlan\n");
  EXPECT_EQ(lines({"mig", "plan", ""}), "");
  EXPECT_EQ(lines({"completion", "z"}), "zsh\t\n");
  EXPECT_EQ(lines({"completion", "zsh", ""}), "") << "one argument only";
  EXPECT_EQ(lines({"list", "a", "b", ""}), ":files\n") << "any number of them";
  EXPECT_EQ(lines({"nothing", ""}), "");
  EXPECT_EQ(lines({}), lines({""}));
}

TEST(Completion, Options) {
  EXPECT_EQ(lines({"list", "-"}), "--output\toutput format\n--root\t\n--count\t\n-w\twait\n")
      << "the long name of each";
  EXPECT_EQ(lines({"list", "--ro"}), "--root\t\n");
  EXPECT_EQ(lines({"list", "--root", ""}), ":directories\n");
  EXPECT_EQ(lines({"list", "--root=/"}), ":directories\n");
  EXPECT_EQ(lines({"list", "--count", ""}), "");
  EXPECT_EQ(lines({"list", "-w", "x", ""}), ":files\n") << "a flag takes no value";
  EXPECT_EQ(lines({"list", "--", "-"}), ":files\n");
  EXPECT_EQ(lines({"list", "--unknown=", "-"}), lines({"list", "-"}));
}

TEST(Completion, ValuesInTheFormsOfTheShells) {
  EXPECT_EQ(lines({"list", "-o", ""}), "json\t\nyaml\t\n");
  EXPECT_EQ(lines({"list", "--output=y"}), "--output=yaml\t\n") << "zsh, fish";
  EXPECT_EQ(lines({"list", "--output", "=", "y"}), "yaml\t\n") << "bash";
  EXPECT_EQ(lines({"list", "--output", "="}), "json\t\nyaml\t\n") << "bash";
  EXPECT_EQ(lines({"list", "--output", "=", "json", "--ro"}), "--root\t\n");
}

TEST(Completion, ScriptsNameTheProgram) {
  for (const char* shell : kShells) {
    const auto script = completion_script(shell, "tool");
    ASSERT_TRUE(script) << shell;
    EXPECT_EQ(script->find("PROGRAM"), std::string::npos) << shell;
    EXPECT_NE(script->find("__complete"), std::string::npos) << shell;
  }
  EXPECT_FALSE(completion_script("csh", "tool"));
}

}  // namespace
}  // namespace gpulet::arguments
