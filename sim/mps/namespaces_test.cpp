#include "sim/mps/namespaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"

namespace gpulet::sim::mps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct NamespaceFixture {
  pid_t next = 100;
  std::vector<pid_t> ended;
  NamespaceControl control{{{"GPU-a", true}, {"GPU-b", true}},
                           "/pipe",
                           true,
                           {.start = [this](uid_t) -> Result<pid_t> { return next++; },
                            .end = [this](pid_t pid) { ended.push_back(pid); }}};
  // "" for success without output; "refused: …".
  std::string run(const std::string& words) {
    const auto answer = control.execute_command(0, text::split(words, ' '));
    return answer.code == 0 ? answer.text : "refused: " + answer.text;
  }
  std::string threads_in(const std::string& directory, pid_t pid, Limits own = {}) {
    const auto allowed = control.add_client(directory, 1000, {.pid = pid, .limits = std::move(own)});
    return allowed ? percentage_text(allowed->threads) : allowed.error().message();
  }
};

TEST(SimNamespaces, ANamespaceHasItsLimitsWhateverTheClientAsksFor) {
  NamespaceFixture f;
  EXPECT_EQ(f.run("server create s --uid=0 --allowed-devices=GPU-a,GPU-b"), "");
  EXPECT_EQ(f.run("namespace create a --server=s"), "");
  EXPECT_EQ(f.threads_in("s/a", 1), "100.0") << "without limits it has everything";
  EXPECT_EQ(f.run("server set s --active-thread-percentage=1"), "");
  EXPECT_EQ(f.run("namespace set a --server=s --active-thread-percentage=30 --pinned-memory-limit=4096M"),
            "");
  EXPECT_EQ(f.run("namespace get a s active-thread-percentage"), "30.00\n");
  EXPECT_EQ(f.run("namespace get a s pinned-memory-limit"), "4G\n");
  for (const double own : {100.0, 5.0})
    EXPECT_EQ(f.threads_in("s/a", 2, {.threads = own}), "30.0") << "the percentage overrides";
  EXPECT_EQ(f.threads_in("s", 3), "1.0");
  EXPECT_EQ(f.threads_in("", 4), "1.0") << "without a namespace: the default one";
  const auto lower = f.control.add_client("s/a", 0, {.pid = 5, .limits = {.memory_mib = {{"1", 100}}}});
  ASSERT_TRUE(lower);
  EXPECT_EQ(lower->memory_mib, (std::map<std::string, std::uint64_t>{{"0", 4096}, {"1", 100}}));
}

TEST(SimNamespaces, RefusesWhatTheRealOneRefuses) {
  NamespaceFixture f;
  ASSERT_EQ(f.run("server create s --uid=0"), "");
  ASSERT_EQ(f.run("namespace create a --server=s"), "");
  for (const char* command :
       {"server create S", "server create s", "server create t --uid=7", "namespace create a-b --server=s",
        "namespace create a --server=s", "namespace create b --server=t", "namespace create b",
        "namespace set a --server=s", "namespace set a --server=s --active-thread-percentage=0",
        "namespace set a --server=s --active-thread-percentage=101", "namespace set a --server=s --threads=5",
        "namespace set a --server=s --pinned-memory-limit=4", "namespace get a s threads", "namespace get a",
        "namespace delete default --server=s", "client terminate 7", "dance list", "namespace dance",
        "namespace create b --server"})
    EXPECT_THAT(f.run(command), HasSubstr("refused: ")) << command;
  EXPECT_THAT(f.run("namespace create " + std::string(64, 'a') + " --server=s"), "");
  EXPECT_THAT(f.run("namespace create " + std::string(65, 'a') + " --server=s"), HasSubstr("invalid name"));
}

TEST(SimNamespaces, AServerOfAnAbsentGpuVanishes) {
  NamespaceFixture f;
  EXPECT_EQ(f.run("server create s --uid=0 --allowed-devices=GPU-a,GPU-c"), "");
  EXPECT_EQ(f.run("server list --format=csv,noheader"), "");
  EXPECT_THAT(f.run("server get s status"), HasSubstr("no server"));
  EXPECT_EQ(f.run("server create s --uid=0 --allowed-devices=GPU-a,GPU-b"), "");
  EXPECT_EQ(f.run("server list s --format=csv,noheader"), "s,0,100,Ready,/pipe/s,GPU-a,GPU-b\n");
  EXPECT_EQ(f.run("server get s status"), "Ready\n");
}

TEST(SimNamespaces, EndsClientsAndKeepsNamespacesThatHaveSome) {
  NamespaceFixture f;
  f.run("server create s --uid=0");
  f.run("namespace create a --server=s");
  f.run("namespace create b --server=s");
  f.threads_in("s/a", 7);
  f.threads_in("s/b", 8);
  EXPECT_THAT(f.control.client_directories(), ElementsAre("s", "s/a", "s/b"));
  EXPECT_THAT(f.run("client list --server=s --format=csv,noheader"), HasSubstr("7,s,0,a,"));
  EXPECT_THAT(f.run("namespace delete a --server=s"), HasSubstr("clients"));
  EXPECT_EQ(f.run("client terminate 7"), "");
  EXPECT_THAT(f.control.take_terminated(), ElementsAre(7));
  EXPECT_EQ(f.run("namespace delete a --server=s"), "");
  EXPECT_EQ(f.run("namespace delete b --server=s --force"), "");
  EXPECT_THAT(f.control.take_terminated(), ElementsAre(8));
  f.control.quit();
  EXPECT_THAT(f.ended, ElementsAre(100));
  EXPECT_TRUE(f.control.is_quitting());
}

}  // namespace
}  // namespace gpulet::sim::mps
