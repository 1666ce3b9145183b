// An update that starts the new agent before the old one ends, on a node that serves claims: two processes
// with one state directory, a kubelet of gRPC calls, and an API server.
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "agent/health/operator_interface.h"
#include "base/file.h"
#include "base/text.h"
#include "tests/sim/claim_fixture.h"

namespace gpulet::tests {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOld = kClaimPod;
constexpr const char* kNew = "bbbbbbbb-0000-4000-8000-000000000000";
constexpr unsigned kClaimGpus = 8;

class SimClaimUpdate : public ClaimNodeTest {
 protected:
  void start_old() {
    ASSERT_NO_FATAL_FAILURE(start_agent(claim_options(kOld)));
    ASSERT_NO_FATAL_FAILURE(register_driver(kOld));
    ASSERT_TRUE(becomes_true([this] { return slice_devices() == kClaimGpus; }));
  }
  void start_standby() {
    ASSERT_NO_FATAL_FAILURE(start_next_agent(claim_options(kNew)));
    ASSERT_TRUE(becomes_true([this] { return is_standby_ready(); }));
  }
  // The other agent may log that it listens, too.
  bool is_standby_ready() const {
    const std::string log = agent_log();
    const auto standby = log.find("on standby");
    if (standby == std::string::npos) return false;
    const auto listening = log.find("\"listening\"", standby);
    const auto port = listening == std::string::npos ? listening : log.find("\"port\":", listening);
    if (port == std::string::npos) return false;
    const auto digits = log.find_first_of("0123456789", port);
    const auto end = log.find_first_not_of("0123456789", digits);
    const auto number = text::parse_unsigned(log.substr(digits, end - digits));
    return number && http_get(static_cast<int>(*number), "/readyz").status == 200;
  }
  std::size_t slice_devices() {
    const std::string shown = slices_.devices();
    std::size_t devices = 0;
    for (std::size_t at = 0; (at = shown.find("gpu-", at)) != std::string::npos; ++at) ++devices;
    return devices;
  }

  // The files that an agent writes, with their content and their times.
  std::map<std::string, std::string> written_files() const {
    std::map<std::string, std::string> files;
    for (const char* part : {"/cdi", "/claims", "/kubelet", "/state", "/health.json", "/agent.sock"}) {
      const std::string root = sim_directory() + part;
      if (!fs::exists(root)) continue;
      if (!fs::is_directory(root)) {
        files[part] = stamp(root);
        continue;
      }
      for (const auto& entry : fs::recursive_directory_iterator(root)) {
        const auto path = entry.path().string();
        if (path.ends_with(".lock") || entry.is_directory()) continue;
        files[path.substr(sim_directory().size())] = stamp(path);
      }
    }
    return files;
  }
  static std::string stamp(const std::string& path) {
    std::error_code error;
    const auto time = fs::last_write_time(path, error).time_since_epoch().count();
    return fs::is_regular_file(path) ? read_file(path).value_or("") + "@" + std::to_string(time)
                                     : std::to_string(time);
  }
};

TEST_F(SimClaimUpdate, AStandbyWritesNothing) {
  ASSERT_NO_FATAL_FAILURE(start_old());
  ASSERT_EQ(prepare(kOld, "gpu-0-first"), "");
  sim_node().signal_agent(SIGSTOP);  // whatever is written from here on, the standby writes
  const auto before = written_files();
  const auto count_writes = [this] {
    return api_->request_bodies("PATCH").size() + api_->request_bodies("POST").size() +
           api_->request_bodies("PUT").size() + api_->request_bodies("DELETE").size();
  };
  const auto writes = count_writes();
  ASSERT_NO_FATAL_FAILURE(start_standby());
  EXPECT_EQ(written_files(), before);
  EXPECT_EQ(count_writes(), writes);
  EXPECT_FALSE(fs::exists(registration(kNew)));
  ASSERT_TRUE(sim_node().stop_agent());
  EXPECT_EQ(written_files(), before);
  EXPECT_EQ(count_writes(), writes);
  sim_node().previous_agent().send_signal(SIGCONT);
  EXPECT_EQ(prepare(kOld, "gpu-1-second"), "") << "the end of a standby changes nothing";
  allow_agent_exit();
}

TEST_F(SimClaimUpdate, TheNextAgentTakesOverWithoutAGap) {
  ASSERT_NO_FATAL_FAILURE(start_old());
  ASSERT_EQ(prepare(kOld, "gpu-0-first"), "");
  ASSERT_NO_FATAL_FAILURE(start_standby());
  const auto writes = slices_.writes();
  sim_node().previous_agent().send_signal(SIGTERM);
  ASSERT_TRUE(becomes_true([this] { return fs::exists(registration(kNew)); }));
  EXPECT_EQ(prepare(kOld, "gpu-1-late"), "") << "the old agent serves until the new one is registered";
  // A call that reaches the new agent before it owns the records waits.
  std::string early = "not answered";
  std::thread kubelet([&] { early = prepare(kNew, "gpu-2-early"); });
  register_driver(kNew);
  const auto ended = sim_node().previous_agent().wait_for_exit(kTestTimeout);
  kubelet.join();
  ASSERT_TRUE(ended);
  EXPECT_TRUE(ended->succeeded()) << ended->exit_text();
  EXPECT_EQ(early, "");
  EXPECT_FALSE(fs::exists(service(kOld)));
  EXPECT_FALSE(fs::exists(registration(kOld)));
  EXPECT_TRUE(fs::exists(registration(kNew)));
  EXPECT_EQ(prepare(kNew, "gpu-0-first"), "") << "the records of the old agent are known";
  EXPECT_EQ(record_count(), 3);
  EXPECT_EQ(slices_.writes(), writes);
  EXPECT_TRUE(becomes_true([this] {
    return ProcessLock::is_locked(agent::presence_path(sim_node().state_dir())).value_or(false);
  }));
}

TEST_F(SimClaimUpdate, AKilledAgentIsReplacedAtOnce) {
  ASSERT_NO_FATAL_FAILURE(start_old());
  ASSERT_EQ(prepare(kOld, "gpu-0-first"), "");
  ASSERT_NO_FATAL_FAILURE(start_standby());
  const auto writes = slices_.writes();
  sim_node().kill_previous_agent();
  ASSERT_NO_FATAL_FAILURE(register_driver(kNew));
  EXPECT_EQ(prepare(kNew, "gpu-0-first"), "");
  EXPECT_EQ(record_count(), 1);
  EXPECT_FALSE(fs::exists(registration(kOld))) << "the socket of the dead agent is removed";
  EXPECT_EQ(slices_.writes(), writes);
}

TEST_F(SimClaimUpdate, UpdatesUnderLoadFailNoPrepare) {
  ASSERT_NO_FATAL_FAILURE(start_old());
  std::atomic<bool> ended{false};
  std::atomic<const char*> newest{kOld};
  std::vector<std::string> errors;
  int prepares = 0;
  std::thread kubelet([&] {
    for (; !ended; ++prepares) {
      const std::string name = "gpu-" + std::to_string(prepares % kClaimGpus) + "-same";
      const auto error = prepare(newest, name);
      if (!error.empty()) errors.push_back(name + ": " + error);
    }
  });
  const auto writes = slices_.writes();
  constexpr int kUpdates = 6;
  for (int update = 0; update < kUpdates; ++update) {
    const char* next = update % 2 == 0 ? kNew : kOld;
    start_next_agent(claim_options(next));
    EXPECT_TRUE(becomes_true([this] { return is_standby_ready(); }));
    sim_node().previous_agent().send_signal(SIGTERM);
    register_driver(next);
    newest = next;
    const auto exit = sim_node().previous_agent().wait_for_exit(kTestTimeout);
    EXPECT_TRUE(exit && exit->succeeded());
  }
  ended = true;
  kubelet.join();
  EXPECT_EQ(errors, std::vector<std::string>());
  EXPECT_GT(prepares, kUpdates);
  EXPECT_EQ(slices_.writes(), writes);
  RecordProperty("prepares", prepares);
}

}  // namespace
}  // namespace gpulet::tests
