// How commands end: with an exit code that scripts can rely on.
#include <gtest/gtest.h>

#include "nvml/test_sim_root.h"
#include "tests/sim/running_command.h"

namespace gpulet::tests {
namespace {

using Arguments = std::vector<std::string>;
const std::vector<Arguments> kReports{{"list"},
                                      {"list", "-o", "json"},
                                      {"topo"},
                                      {"place", "--size", "1"},
                                      {"labels"},
                                      {"config", "print"},
                                      {"mig", "export"},
                                      {"version"},
                                      {"version", "--json"},
                                      {"--version"},
                                      {"--help"},
                                      {"list", "--help"}};

// The driver's library stays whole until the process has ended, also where a thread is still shutting it
// down.
TEST(CommandExit, RunsNoExitHandlerOfTheDriver) {
  const nvml::SimRoot root(*sim::small_machine(1), GPULET_BARE_DRIVER);
  const std::vector<std::string> environment{"DRIVER_ROOT_CTR_PATH=" + root.sim_root()};
  for (const auto& arguments : kReports) {
    RunningCommand command(arguments, environment);
    EXPECT_EQ(command.exit_code(), 0) << arguments.front() << ": " << command.output_text();
  }
}

TEST(CommandExit, ReportsOutputThatCannotBeWritten) {
  const nvml::SimRoot root(*sim::small_machine(1), GPULET_BARE_DRIVER);
  const std::vector<std::string> environment{"DRIVER_ROOT_CTR_PATH=" + root.sim_root()};
  for (const auto& arguments : kReports) {
    RunningCommand command(arguments, environment, "/dev/full");
    EXPECT_EQ(command.exit_code(), 1) << arguments.front();
    EXPECT_EQ(command.output_text(), "gpulet: writing to the standard output: No space left on device\n")
        << arguments.front();
  }
}

}  // namespace
}  // namespace gpulet::tests
