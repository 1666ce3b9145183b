#include "cli/main/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

namespace gpulet::cli {
namespace {

// What a person reads on standard error.
std::string error_of(std::vector<std::string> arguments) {
  CLI::App app{"test", "gpulet"};
  app.require_subcommand(1);
  OutputOptions output;
  auto& list = add_command(app, {.name = "list", .summary = "", .details = "", .examples = ""});
  add_output_options(list, output);
  auto& mig = add_command(app, {.name = "mig", .summary = "", .details = "", .examples = ""});
  add_command(mig, {.name = "plan", .summary = "", .details = "", .examples = ""});
  arguments.insert(arguments.begin(), "gpulet");
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  testing::internal::CaptureStderr();
  EXPECT_EQ(parse_arguments(app, static_cast<int>(argv.size()), argv.data(), false), kWrongCommand);
  return testing::internal::GetCapturedStderr();
}

TEST(Command, UnknownArgumentsAreNamedInTheirOrder) {
  EXPECT_EQ(error_of({"list", "--ouput", "json"}),
            "gpulet list: unknown option --ouput; did you mean --output? (see gpulet list --help)\n");
  EXPECT_EQ(error_of({"list", "--ouput=json", "more"}),
            "gpulet list: unknown option --ouput; did you mean --output? (see gpulet list --help)\n");
  EXPECT_EQ(error_of({"list", "extra", "--wide"}),
            "gpulet list: unexpected argument 'extra' (see gpulet list --help)\n");
  EXPECT_EQ(error_of({"mig", "plan", "--for", "3"}),
            "gpulet mig plan: unknown option --for (see gpulet mig plan --help)\n");
  EXPECT_EQ(error_of({"list", "--", "-"}), "gpulet list: unknown option - (see gpulet list --help)\n");
}

TEST(Command, NamesOfOtherProgramsLeadToTheSetting) {
  EXPECT_EQ(error_of({"list", "--resource-names", "nvidia.com/gpu"}),
            "gpulet list: unknown option --resource-names; set resources.gpus in the config file (see gpulet "
            "list --help)\n");
}

}  // namespace
}  // namespace gpulet::cli
