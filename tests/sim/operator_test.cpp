// An operator at the node: `gpulet health`, `cordon` and `uncordon` as processes, beside an agent that runs,
// is away, and comes back.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/process.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

namespace control = sim::control;

// A gpulet command under way, and what it has printed.
class Command {
 public:
  Command(std::vector<std::string> arguments, std::vector<std::string> environment) {
    int out[2];
    if (::pipe2(out, O_CLOEXEC) != 0) return;
    out_ = FileDescriptor(out[0]);
    const FileDescriptor write_end(out[1]);
    ProcessOptions options{.program = std::string(GPULET_PROGRAMS) + "/gpulet",
                           .arguments = {"gpulet"},
                           .environment = std::move(environment)};
    options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
    options.descriptors = {{write_end.get(), STDOUT_FILENO}, {write_end.get(), STDERR_FILENO}};
    auto process = Process::start(options);
    EXPECT_TRUE(process) << process.error().text();
    if (process) process_ = std::move(*process);
  }

  // Reads on until it holds. False when it has ended before, or nothing more comes within kPatience.
  bool prints(const std::function<bool(const std::string&)>& holds) {
    char buffer[4096];
    while (!holds(text_)) {
      pollfd ready{out_.get(), POLLIN, 0};
      if (::poll(&ready, 1, static_cast<int>(kPatience.count())) <= 0) return false;
      const ssize_t got = ::read(out_.get(), buffer, sizeof buffer);
      if (got <= 0) return holds(text_);
      text_.append(buffer, static_cast<std::size_t>(got));
    }
    return true;
  }
  // To its end.
  int code() {
    prints([](const std::string&) { return false; });
    const auto exit = process_->wait(kPatience);
    EXPECT_TRUE(exit) << exit.error().text();
    return exit ? exit->code : -1;
  }
  const std::string& text() const { return text_; }
  void forget() { text_.clear(); }

 private:
  FileDescriptor out_;
  std::unique_ptr<Process> process_;
  std::string text_;
};

class SimOperator : public NodeTest {
 protected:
  Command command(std::vector<std::string> arguments) {
    std::vector<std::string> environment{"GPULET_STATE_DIR=" + node().state_dir(),
                                         "GPULET_HEALTH_FILE=" + node().health_file(),
                                         "DRIVER_ROOT_CTR_PATH=" + node().root()};
    environment.emplace_back(kNoLeaks);
    return {std::move(arguments), std::move(environment)};
  }
  // What it prints until it ends, which must be with that exit code.
  std::string run(int code, std::vector<std::string> arguments) {
    auto running = command(std::move(arguments));
    EXPECT_EQ(running.code(), code) << running.text();
    return running.text();
  }
  // `gpulet health GPU` once it ends so: the report is written behind the kubelet's news.
  std::string health_with(int code, const std::string& gpu) {
    std::string text;
    EXPECT_TRUE(eventually([&] {
      auto running = command({"health", gpu});
      const bool so = running.code() == code;
      text = running.text();
      return so;
    })) << text;
    return text;
  }
};

TEST_F(SimOperator, ACordonHoldsOverARestartUntilItIsTakenBack) {
  serve();
  const auto grant = admit("trainer", 1);
  const std::string held = ids_of(grant).at(0);
  const std::string index = std::to_string(index_of(held));
  EXPECT_EQ(run(0, {"cordon", index, "--reason", "new riser"}),
            "GPU " + index + " (" + held + ") is cordoned: new riser\n");
  ASSERT_TRUE(unhealthy({held}));
  const auto told = health_with(3, index);
  EXPECT_NE(told.find("cordoned: new riser"), std::string::npos) << told;
  EXPECT_NE(told.find("gpulet uncordon " + index), std::string::npos) << told;
  EXPECT_NE(run(0, {"cordon", held.substr(0, 20)}).find("is cordoned already"), std::string::npos);
  admit("neighbour", 7);

  node().kill_agent();
  EXPECT_NE(health_with(1, index).find("no agent runs on this node"), std::string::npos);
  start_agent();
  ASSERT_TRUE(unhealthy({held}));
  health_with(3, index);

  EXPECT_EQ(run(0, {"uncordon", held}), "GPU " + index + " (" + held + ") is cordoned no longer\n");
  ASSERT_TRUE(offered(8));
  const auto well = health_with(0, index);
  EXPECT_EQ(well.find("next"), std::string::npos) << well;
}

TEST_F(SimOperator, WhatIsSaidWhileTheAgentIsAwayCountsOnceItIsBack) {
  serve();
  node().kill_agent();
  EXPECT_EQ(run(0, {"cordon", "2"}), "GPU 2 (" + uuid(2) +
                                         ") is cordoned\nno agent runs on this node: it counts once one "
                                         "does\n");
  start_agent();
  ASSERT_TRUE(unhealthy({uuid(2)}));
  node().kill_agent();
  run(0, {"uncordon", uuid(2)});
  start_agent();
  ASSERT_TRUE(offered(8));
}

TEST_F(SimOperator, HealthShowsStateEvidenceAndWhatIsNext) {
  serve();
  EXPECT_EQ(run(0, {"health"}).find("quarantined"), std::string::npos);
  ASSERT_TRUE(control::xid(machine(), 5, 95));
  ASSERT_TRUE(unhealthy({uuid(5)}));
  const auto details = health_with(3, "5");
  for (const std::string part :
       {"quarantined, not offered", "XID 95", "xid-reset", "nvidia-smi --gpu-reset -i 5"}) {
    EXPECT_NE(details.find(part), std::string::npos) << part << "\n" << details;
  }
  const auto table = run(3, {"health"});
  EXPECT_NE(table.find("GPU 5 (" + uuid(5) + "): End what runs on it"), std::string::npos) << table;
  const auto json = nlohmann::json::parse(run(3, {"health", "5", "-o", "json"}));
  EXPECT_EQ(json["devices"][0]["state"], "quarantined");
  EXPECT_EQ(json["devices"][0]["faults"][0]["code"], 95);
  EXPECT_NE(run(1, {"health", "9"}).find("there is no device '9'"), std::string::npos);
  EXPECT_NE(run(2, {"health", "--output", "xml"}), "");
}

TEST_F(SimOperator, WatchingHealthFollowsTheNode) {
  serve();
  auto watch = command({"health", "-w"});
  const auto shows = [&](const std::string& part) {
    const bool shown = watch.prints([&](const auto& text) { return text.find(part) != std::string::npos; });
    const auto text = watch.text();
    watch.forget();
    return testing::AssertionResult(shown) << text;
  };
  ASSERT_TRUE(shows(uuid(7)));
  run(0, {"cordon", "3", "--reason", "moved"});
  ASSERT_TRUE(shows("GPU 3 (" + uuid(3) + "): gpulet uncordon 3"));
  ASSERT_TRUE(control::lost(machine(), 4));
  ASSERT_TRUE(control::xid(machine(), 4, kFallenOffTheBus));
  ASSERT_TRUE(shows("lost"));
  node().kill_agent();
  ASSERT_TRUE(shows("no agent runs on this node"));
  start_agent();
  ASSERT_TRUE(shows(uuid(7)));
}

TEST_F(SimOperator, AMigDeviceIsCordonedAlone) {
  up();
  const auto instances = cut_up(0, {"1g.10gb", "1g.10gb"});
  start_agent({.arguments = {"--mig-strategy=mixed"}});
  ASSERT_TRUE(offered(2, "nvidia.com/mig-1g.10gb"));
  ASSERT_TRUE(offered(7));
  run(0, {"cordon", instances[1]});
  ASSERT_TRUE(unhealthy({instances[1]}, "nvidia.com/mig-1g.10gb"));
  EXPECT_TRUE(offered(7));
  run(0, {"uncordon", "0"});
  EXPECT_TRUE(offered(2, "nvidia.com/mig-1g.10gb"));
}

}  // namespace
}  // namespace gpulet::tests
