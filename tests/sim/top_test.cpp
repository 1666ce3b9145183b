// `gpulet top` on an agent that runs: its tables, and its screen in a terminal.
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "tests/sim/terminal.h"

namespace gpulet::tests {
namespace {

using nlohmann::json;

class SimTop : public NodeTest {
 protected:
  std::vector<std::string> command(std::vector<std::string> more) {
    more.insert(more.begin(), {std::string(GPULET_PROGRAMS) + "/gpulet", "top", "--socket", node().socket()});
    return more;
  }
  std::string run(std::vector<std::string> more) {
    auto done = cli::output_of(command(std::move(more)), {"LANG=C.UTF-8"});
    EXPECT_TRUE(done) << done.error().text();
    return done ? *done : std::string();
  }
  json run_json(std::vector<std::string> more = {}) {
    more.insert(more.end(), {"-b", "-n", "1", "-o", "json"});
    return json::parse(run(more), nullptr, false);
  }
  // What it says when it fails.
  static std::string failure(std::vector<std::string> command) {
    const auto done = cli::output_of(std::move(command));
    EXPECT_FALSE(done);
    return done ? std::string() : done.error().text();
  }
  void load(std::uint32_t gpu, std::uint32_t percent, std::uint64_t memory_mib) {
    ASSERT_TRUE(sim::control::load(machine(), gpu, {.percent = percent, .memory_mib = memory_mib}));
  }
  Terminal terminal(const std::string& name, std::vector<std::string> more = {}, int columns = 100) {
    return Terminal(command(std::move(more)), {"TERM=" + name, "LANG=C.UTF-8"}, 24, columns);
  }
};

TEST_F(SimTop, TablesHaveWhatTheDriverSays) {
  serve();
  ASSERT_TRUE(eventually([&] { return http_get(node().socket(), "/readyz").status == 200; }));
  load(3, 70, 20'480);
  const auto first = run_json();
  ASSERT_EQ(first["gpus"].size(), 8u) << first;
  EXPECT_EQ(first["gpus"][3]["uuid"], uuid(3));
  EXPECT_EQ(first["gpus"][3]["util"], 70);
  EXPECT_GE(first["gpus"][3]["memory"], 20'480ULL << 20);
  EXPECT_EQ(first["gpus"][3]["state"], "healthy");
  EXPECT_EQ(first["gpus"][4]["util"], 0);
  // Though samples are 15 s apart while nobody watches, what is shown is as it is now.
  load(3, 0, 0);
  load(4, 35, 10'240);
  const auto second = run_json();
  EXPECT_EQ(second["gpus"][3]["util"], 0);
  EXPECT_EQ(second["gpus"][4]["util"], 35);
  EXPECT_GT(second["at"], first["at"]);
  EXPECT_LT(second["gpus"][3]["power"], first["gpus"][3]["power"]);

  const auto table = run({"-b", "-n", "1", "-w", "120", "-s", "util"});
  const auto lines = text::split(table, '\n');
  ASSERT_GT(lines.size(), 4u) << table;
  EXPECT_NE(lines[0].find(" 8 GPUs  driver "), std::string::npos) << table;
  EXPECT_TRUE(lines[3].starts_with("4 ")) << table;
  EXPECT_NE(lines[3].find(" 35%"), std::string::npos) << table;
  EXPECT_EQ(table.find('\x1b'), std::string::npos);
}

TEST_F(SimTop, TablesHavePodsAndProcesses) {
  serve();
  const auto grant = admit("train", 2);
  const auto held = ids_of(grant);
  const auto gpu = index_of(held[0]);
  load(gpu, 50, 4096);
  json shown;
  ASSERT_TRUE(eventually([&] {
    shown = run_json();
    return shown["pods"].size() == 1;
  })) << shown;
  EXPECT_EQ(shown["pods"][0]["pod"], "default/train");
  EXPECT_EQ(shown["pods"][0]["busy"], 50);
  ASSERT_EQ(shown["processes"].size(), 1u) << shown;
  EXPECT_EQ(shown["processes"][0]["gpu"], std::to_string(gpu));
  EXPECT_EQ(shown["processes"][0]["memory"], 4096ULL << 20);
  const auto table = run({"-b", "-n", "1", "-w", "100"});
  EXPECT_NE(table.find("\ndefault/train "), std::string::npos) << table;
}

TEST_F(SimTop, SeveralTablesAndOverTheNetworkToo) {
  serve();
  const auto two = run({"-b", "-n", "2", "-d", "0.2", "-o", "json"});
  EXPECT_EQ(text::split(text::trim(two).data(), '\n').size() - 1, 2u) << two;
  const auto over_network = cli::output_of({std::string(GPULET_PROGRAMS) + "/gpulet", "top", "--url",
                                            "http://127.0.0.1:" + std::to_string(port()), "-b", "-n", "1"});
  ASSERT_TRUE(over_network) << over_network.error().text();
  EXPECT_NE(over_network->find("8 GPUs"), std::string::npos);
}

TEST_F(SimTop, SaysInOneLineWhyThereIsNothing) {
  up();
  const auto program = std::string(GPULET_PROGRAMS) + "/gpulet";
  EXPECT_NE(failure(command({"-b"}))
                .find("agent.sock: no such socket: no agent runs on this node, or it serves "
                      "elsewhere (--socket; gpulet.socket of the agent)"),
            std::string::npos);
  start_agent();
  ASSERT_TRUE(eventually([&] { return std::filesystem::is_socket(node().socket()); }));
  agent_may_end();
  node().kill_agent();
  EXPECT_NE(failure(command({"-b"})).find("the agent has ended, or is being started"), std::string::npos);
  EXPECT_NE(failure({program, "top", "--url", "http://127.0.0.1:1", "-b"}).find("127.0.0.1:1: "),
            std::string::npos);
  for (const char* url : {"https://x", "ftp://x", "http://", "http://x:0", "http://x/y", "http://::1"}) {
    EXPECT_NE(failure({program, "top", "--url", url, "-b"}).find("exit code 2"), std::string::npos) << url;
  }
  EXPECT_NE(failure(command({"-b", "-s", "colour"})).find("there are gpu, util, memory"), std::string::npos);
}

TEST_F(SimTop, ItsModeSaysWhoMayLook) {
  if (::geteuid() != 0) GTEST_SKIP() << "must be root to be another user";
  serve("hgx-h100", {.environment = {"GPULET_SOCKET_MODE=0660"}});
  ASSERT_TRUE(eventually([&] { return http_get(node().socket(), "/readyz").status == 200; }));
  std::filesystem::permissions(node().folder(), std::filesystem::perms(0755));
  const auto as_nobody = [&] {
    auto all = command({"-b", "-n", "1"});
    all.insert(all.begin(), {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"});
    return cli::output_of(all);
  };
  const auto refused = as_nobody();
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().text().find("permission denied: root may, and who else its mode lets in"),
            std::string::npos)
      << refused.error().text();
  std::filesystem::permissions(node().socket(), std::filesystem::perms(0666));
  const auto shown = as_nobody();
  ASSERT_TRUE(shown) << shown.error().text();
  EXPECT_NE(shown->find("8 GPUs"), std::string::npos);
}

TEST_F(SimTop, TheScreenFollowsTheNode) {
  serve();
  load(5, 60, 8192);
  auto top = terminal("xterm-256color");
  ASSERT_TRUE(top.shows("[GPUs 8]")) << top.screen();
  ASSERT_TRUE(top.shows(" 60%")) << top.screen();
  EXPECT_TRUE(top.row_begins(0, "gpulet top  ")) << top.screen();
  EXPECT_TRUE(top.row_begins(2, "GPU▲")) << top.screen();
  load(5, 91, 8192);
  EXPECT_TRUE(top.shows(" 91%")) << top.screen();
  ASSERT_TRUE(sim::control::xid(machine(), 1, kFallenOffTheBus));
  EXPECT_TRUE(top.shows("XID 79")) << top.screen();
  EXPECT_NE(top.written().find("\x1b[3"), std::string::npos);  // in colour

  // Sorted by utilisation, the largest first, and the other way round.
  top.press("s");
  ASSERT_TRUE(top.shows("UTIL▼")) << top.screen();
  EXPECT_TRUE(top.row_begins(3, "5 ")) << top.screen();
  top.press("S");
  ASSERT_TRUE(top.shows("UTIL▲")) << top.screen();
  EXPECT_TRUE(top.row_begins(3, "0 ")) << top.screen();

  top.press("/lost");
  ASSERT_TRUE(top.shows("[GPUs 1]")) << top.screen();
  EXPECT_TRUE(top.row_begins(23, "/lost_")) << top.screen();
  top.press("\r");
  ASSERT_TRUE(top.shows("filter: lost")) << top.screen();
  top.press("/\x1b");
  ASSERT_TRUE(top.shows("[GPUs 8]")) << top.screen();

  // Paused it stays as it was; then it is as it is.
  top.press("p");
  ASSERT_TRUE(top.shows("PAUSED")) << top.screen();
  load(5, 17, 8192);
  ASSERT_TRUE(eventually(
      [&] { return http_get(node().socket(), "/api/now").body.find("\"util\":17") != std::string::npos; }));
  top.watch(300ms);
  EXPECT_NE(top.screen().find(" 91%"), std::string::npos) << top.screen();
  top.press("p");
  ASSERT_TRUE(top.shows(" 17%")) << top.screen();
  EXPECT_TRUE(top.shows_no("PAUSED"));

  top.press("h");
  ASSERT_TRUE(top.shows("15 min ago")) << top.screen();
  EXPECT_TRUE(top.shows("▇")) << top.screen();
  top.press("\t");
  ASSERT_TRUE(top.shows("[Pods 0]")) << top.screen();
  top.press("\x1b[Z");
  top.press("?");
  ASSERT_TRUE(top.shows("any key leaves it")) << top.screen();
  top.press("x");
  ASSERT_TRUE(top.shows("UTIL▲")) << top.screen();
  top.press("q");
  EXPECT_EQ(top.wait(), 0) << top.screen();
}

TEST_F(SimTop, TheScreenIsAsLargeAsTheTerminal) {
  serve();
  auto top = terminal("xterm-256color", {}, 80);
  ASSERT_TRUE(top.shows("[GPUs 8]")) << top.screen();
  EXPECT_EQ(top.screen().find("SM/MEM MHz"), std::string::npos);
  top.resize(9, 130);
  ASSERT_TRUE(top.shows("SM/MEM MHz")) << top.screen();
  ASSERT_TRUE(top.row_begins(8, "q quit")) << top.screen();
  EXPECT_EQ(top.screen().find("\n7 "), std::string::npos) << top.screen();
  top.press("\x1bOF");  // End
  ASSERT_TRUE(top.shows("\n7 ")) << top.screen();
  top.press("\x1bOA");  // one up
  ASSERT_TRUE(top.shows_no("\n7 ")) << top.screen();
  top.press("\x03");
  EXPECT_EQ(top.wait(), 0);
}

TEST_F(SimTop, TheScreenSaysSinceWhenTheAgentIsAwayAndComesBack) {
  serve();
  auto top = terminal("xterm-256color");
  ASSERT_TRUE(top.shows("[GPUs 8]")) << top.screen();
  agent_may_end();
  node().kill_agent();
  ASSERT_TRUE(top.shows("no agent since ")) << top.screen();
  EXPECT_NE(top.screen().find("\n7 "), std::string::npos) << top.screen();  // as it was last
  start_agent();
  EXPECT_TRUE(top.shows_no("no agent since ")) << top.screen();
  load(2, 44, 1024);
  EXPECT_TRUE(top.shows(" 44%")) << top.screen();
  top.press("q");
  EXPECT_EQ(top.wait(), 0);
}

TEST_F(SimTop, EveryTerminalGetsWhatItCanShow) {
  serve();
  // One that no terminfo knows is taken for an xterm.
  for (const char* name : {"linux", "screen-256color", "a-terminal-of-tomorrow"}) {
    auto top = terminal(name);
    EXPECT_TRUE(top.shows("[GPUs 8]")) << name << "\n" << top.screen();
    EXPECT_TRUE(top.row_begins(2, "GPU▲")) << name << "\n" << top.screen();
    top.press("q");
    EXPECT_EQ(top.wait(), 0) << name;
  }
  // One that cannot place its cursor, or none: tables below each other.
  for (const char* name : {"dumb", ""}) {
    auto top = terminal(name, {"-d", "0.2"});
    EXPECT_TRUE(top.shows("GPU▲")) << name << "\n" << top.screen();
    EXPECT_EQ(top.written().find('\x1b'), std::string::npos) << name;
    top.press("\x03");
    EXPECT_EQ(top.wait(), 0) << name;
  }
  Terminal plain(command({}), {"TERM=xterm-256color", "LC_ALL=C", "NO_COLOR=1"}, 24, 100);
  EXPECT_TRUE(plain.shows("GPU^")) << plain.screen();
  EXPECT_TRUE(plain.shows("0%")) << plain.screen();
  for (const char* colour : {"\x1b[31", "\x1b[32", "\x1b[33"})
    EXPECT_EQ(plain.written().find(colour), std::string::npos);
  for (const char byte : plain.written()) ASSERT_GT(byte, 0) << plain.screen();
  plain.press("q");
  EXPECT_EQ(plain.wait(), 0);
  // Where there is no agent, the terminal is left alone.
  agent_may_end();
  node().kill_agent();
  std::filesystem::remove(node().socket());
  auto none = terminal("xterm-256color");
  EXPECT_EQ(none.wait(), 1);
  EXPECT_EQ(none.written().find('\x1b'), std::string::npos);
  EXPECT_NE(none.written().find("no such socket"), std::string::npos) << none.written();
}

}  // namespace
}  // namespace gpulet::tests
