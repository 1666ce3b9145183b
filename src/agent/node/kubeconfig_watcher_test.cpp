#include <stdlib.h>

#include <filesystem>

#include <gtest/gtest.h>

#include "agent/node/kubeconfig_watcher.h"
#include "base/file.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;

class KubeconfigWatcherTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "kubeconfig_watcher.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  void TearDown() override {
    watcher_.reset();
    std::filesystem::remove_all(directory_);
  }
  void write_config(const std::string& name, const std::string& server) {
    std::filesystem::create_directories(directory_ + "/kubernetes");
    ASSERT_TRUE(write_file_atomic(directory_ + "/kubernetes/" + name,
                                  "current-context: c\ncontexts: [{name: c, context: {cluster: k}}]\n"
                                  "clusters: [{name: k, cluster: {server: '" +
                                      server + "'}}]\n"));
  }
  void watch(bool is_connected) {
    const std::string base = directory_ + "/kubernetes/";
    watcher_.emplace(
        loop_,
        KubeconfigWatcher::Environment{{"KUBECONFIG", base + "one:" + base + "two"}, {"NODE_NAME", "n"}},
        is_connected, [this] {
          ++restarts_;
          loop_.stop_loop();
        });
  }
  // Whether the agent is to be restarted for what the files are.
  bool wait_for_restart() {
    const auto limit = loop_.after(10s, [this] { loop_.stop_loop(); });
    loop_.run_loop();
    return restarts_ == 1;
  }
  // Makes a change, and runs the loop until a later watch on the same file has reported it.
  void change_and_wait(const std::function<void()>& change) {
    const auto later =
        FileWatcher::watch_path(loop_, directory_ + "/kubernetes/one", [this] { loop_.stop_loop(); });
    ASSERT_TRUE(later) << later.error().full_message();
    change();
    loop_.run_loop();
  }

  std::string directory_;
  EpollLoop loop_;
  int restarts_ = 0;
  std::optional<KubeconfigWatcher> watcher_;
};

TEST_F(KubeconfigWatcherTest, RestartsWhenTheNodeJoinsItsCluster) {
  watch(false);
  EXPECT_EQ(restarts_, 0);
  write_config("two", "https://10.0.0.1");
  EXPECT_TRUE(wait_for_restart()) << "neither the file nor its directory existed";
}

TEST_F(KubeconfigWatcherTest, RestartsForAnotherCluster) {
  write_config("one", "https://10.0.0.1");
  watch(true);
  write_config("one", "https://10.0.0.2");
  EXPECT_TRUE(wait_for_restart());
}

TEST_F(KubeconfigWatcherTest, KeepsItsClusterWithoutAUsableFile) {
  write_config("one", "https://10.0.0.1");
  watch(true);
  change_and_wait([this] { write_config("one", "nonsense"); });
  change_and_wait([this] { std::filesystem::remove(directory_ + "/kubernetes/one"); });
  change_and_wait([this] { write_config("one", "https://10.0.0.1"); });
  EXPECT_EQ(restarts_, 0) << "the file is as it was at the start";
}

TEST_F(KubeconfigWatcherTest, RestartsForAFileThatCameBetween) {
  write_config("one", "https://10.0.0.1");
  watch(false);
  EXPECT_EQ(restarts_, 1) << "after the agent looked for it and before it was watched";
}

}  // namespace
}  // namespace gpulet::agent
