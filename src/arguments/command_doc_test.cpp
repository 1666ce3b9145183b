#include "arguments/command_doc.h"

#include <gtest/gtest.h>

namespace gpulet::arguments {
namespace {

CommandDoc plan() {
  CommandDoc doc{.path = "tool mig plan",
                 .summary = "Show the steps",
                 .details = "It changes nothing.\nAt all.",
                 .examples = "  tool mig plan 3"};
  doc.arguments = {{.names = {"GPU"}, .help = "index", .group = "Arguments", .required = true}};
  doc.options = {
      {.names = {"-h", "--help"}, .help = "print this help", .group = "Options"},
      {.names = {"-o", "--output"},
       .value = "FORMAT",
       .help = "a text that is longer than what is left of the line behind the column of the names",
       .group = "Output"},
      {.names = {"--a-long-name-of-an-option"}, .value = "FILE", .help = "its file", .group = "Output"}};
  return doc;
}

TEST(CommandDoc, Help) {
  EXPECT_EQ(help_text(plan()),
            "Show the steps\n"
            "\n"
            "It changes nothing. At all.\n"
            "\n"
            "Examples:\n"
            "  tool mig plan 3\n"
            "\n"
            "Arguments:\n"
            "  GPU                       index\n"
            "\n"
            "Options:\n"
            "  -h, --help                print this help\n"
            "\n"
            "Output:\n"
            "  -o, --output FORMAT       a text that is longer than what is left of the line\n"
            "                            behind the column of the names\n"
            "  --a-long-name-of-an-option FILE\n"
            "                            its file\n"
            "\n"
            "Usage: tool mig plan [options] GPU\n");
}

TEST(CommandDoc, HelpOfAProgramListsCommandsByGroup) {
  CommandDoc program{.path = "tool", .summary = "Do things"};
  program.commands = {{.path = "tool one", .summary = "First", .group = "A"},
                      {.path = "tool two", .summary = "Second", .group = "B"},
                      {.path = "tool three", .summary = "Third", .group = "A"}};
  program.needs_command = true;
  EXPECT_EQ(help_text(program),
            "Do things\n"
            "\n"
            "A:\n"
            "  one                       First\n"
            "  three                     Third\n"
            "\n"
            "B:\n"
            "  two                       Second\n"
            "\n"
            "Usage: tool [options] COMMAND\n"
            "Use `tool COMMAND --help` for the help of a command.\n");
}

TEST(CommandDoc, ManualEscapesWhatRoffWouldRead) {
  CommandDoc doc{.path = "tool", .summary = "Do a\\b"};
  doc.details = ".SH is 'text'";
  doc.examples = "'quoted' --flag";
  const auto page = manual_page(doc, "1.2.3");
  EXPECT_NE(page.find("tool \\- Do a\\eb\n"), std::string::npos) << page;
  EXPECT_NE(page.find(".SH DESCRIPTION\n\\&.SH is \\(aqtext\\(aq\n"), std::string::npos) << page;
  EXPECT_NE(page.find("\n\\&\\(aqquoted\\(aq \\-\\-flag\n"), std::string::npos) << page;
}

TEST(CommandDoc, ManualHasSubcommands) {
  CommandDoc mig{.path = "tool mig", .summary = "MIG", .commands = {plan()}};
  EXPECT_EQ(manual_name(mig), "tool-mig");
  const auto page = manual_page(mig, "1.2.3");
  EXPECT_NE(page.find(".TH \"TOOL\\-MIG\" 1 \"\" \"tool 1.2.3\" \"User Commands\"\n"), std::string::npos)
      << page;
  EXPECT_NE(page.find(".SH COMMANDS\n.SS \"tool mig plan\"\n"), std::string::npos) << page;
  EXPECT_NE(page.find(".TP\n\\fB\\-o\\fR, \\fB\\-\\-output\\fR \\fIFORMAT\\fR\n"), std::string::npos) << page;
  EXPECT_NE(page.find(".TP\n\\fIGPU\\fR\nindex\n"), std::string::npos) << page;
}

}  // namespace
}  // namespace gpulet::arguments
