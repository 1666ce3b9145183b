// `gpulet top` with a running agent: its tables, and its screen in a terminal.
#include <signal.h>
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
  std::vector<std::string> top_command(std::vector<std::string> more) {
    more.insert(more.begin(),
                {std::string(GPULET_PROGRAMS) + "/gpulet", "top", "--socket", sim_node().socket()});
    return more;
  }
  std::string run_top(std::vector<std::string> more) {
    auto done = sim::program_output(top_command(std::move(more)), {"LANG=C.UTF-8"});
    EXPECT_TRUE(done) << done.error().full_message();
    return done ? *done : std::string();
  }
  json run_json(std::vector<std::string> more = {}) {
    more.insert(more.end(), {"-b", "-n", "1", "-o", "json"});
    return json::parse(run_top(more), nullptr, false);
  }
  // Returns the error message.
  static std::string failure(std::vector<std::string> command) {
    const auto done = sim::program_output(std::move(command));
    EXPECT_FALSE(done);
    return done ? std::string() : done.error().full_message();
  }
  void set_load(std::uint32_t gpu, std::uint32_t percent, std::uint64_t memory_mib) {
    ASSERT_TRUE(sim::control::set_load(machine_state(), gpu, {.percent = percent, .memory_mib = memory_mib}));
  }
  Terminal open_terminal(const std::string& name, std::vector<std::string> more = {}, int columns = 100) {
    return Terminal(top_command(std::move(more)), {"TERM=" + name, "LANG=C.UTF-8"}, 24, columns);
  }
};

TEST_F(SimTop, TablesHaveTheDriversValues) {
  start_node();
  ASSERT_TRUE(becomes_true([&] { return http_get(sim_node().socket(), "/readyz").status == 200; }));
  set_load(3, 70, 20'480);
  const auto first = run_json();
  ASSERT_EQ(first["gpus"].size(), 8u) << first;
  EXPECT_EQ(first["gpus"][3]["uuid"], gpu_uuid(3));
  EXPECT_EQ(first["gpus"][3]["util"], 70);
  EXPECT_GE(first["gpus"][3]["memory"], 20'480ULL << 20);
  EXPECT_EQ(first["gpus"][3]["state"], "healthy");
  EXPECT_EQ(first["gpus"][4]["util"], 0);
  // Values are current although samples are 15 s apart without a client.
  set_load(3, 0, 0);
  set_load(4, 35, 10'240);
  const auto second = run_json();
  EXPECT_EQ(second["gpus"][3]["util"], 0);
  EXPECT_EQ(second["gpus"][4]["util"], 35);
  EXPECT_GT(second["at"], first["at"]);
  EXPECT_LT(second["gpus"][3]["power"], first["gpus"][3]["power"]);

  const auto table = run_top({"-b", "-n", "1", "-w", "120", "-s", "util"});
  const auto lines = text::split(table, '\n');
  ASSERT_GT(lines.size(), 4u) << table;
  EXPECT_NE(lines[0].find(" 8 GPUs  driver "), std::string::npos) << table;
  EXPECT_TRUE(lines[3].starts_with("4 ")) << table;
  EXPECT_NE(lines[3].find(" 35%"), std::string::npos) << table;
  EXPECT_EQ(table.find('\x1b'), std::string::npos);
}

TEST_F(SimTop, TablesHavePodsAndProcesses) {
  start_node();
  const auto grant = admit_pod("train", 2);
  const auto held = granted_ids(grant);
  const auto gpu = gpu_index(held[0]);
  set_load(gpu, 50, 4096);
  json shown;
  ASSERT_TRUE(becomes_true([&] {
    shown = run_json();
    return shown["pods"].size() == 1;
  })) << shown;
  EXPECT_EQ(shown["pods"][0]["pod"], "default/train");
  EXPECT_EQ(shown["pods"][0]["busy"], 50);
  ASSERT_EQ(shown["processes"].size(), 1u) << shown;
  EXPECT_EQ(shown["processes"][0]["gpu"], std::to_string(gpu));
  EXPECT_EQ(shown["processes"][0]["memory"], 4096ULL << 20);
  EXPECT_EQ(shown["processes"][0]["pod"], "default/train") << "the only one that holds the GPU";
  const auto table = run_top({"-b", "-n", "1", "-w", "100"});
  EXPECT_NE(table.find("\ndefault/train "), std::string::npos) << table;
  EXPECT_NE(table.find("GPU▲"), std::string::npos) << table;
  const auto pods = run_top({"-b", "-n", "1", "-w", "100", "-t", "pods"});
  EXPECT_NE(pods.find("\ndefault/train "), std::string::npos) << pods;
  EXPECT_EQ(pods.find("H100"), std::string::npos) << pods;
  EXPECT_EQ(pods.find("PROGRAM"), std::string::npos) << pods;
  const auto none = run_top({"-b", "-n", "1", "-t", "pods", "-f", "nobody"});
  EXPECT_NE(none.find("\nno match for \"nobody\"\n"), std::string::npos) << none;
}

TEST_F(SimTop, TablesHaveRatesOfTheInterconnectAndEccErrors) {
  start_node();
  set_load(3, 50, 1024);
  ASSERT_TRUE(sim::control::count_ecc_errors(machine_state(), 3, sim::control::Ecc::kCorrected, 5));
  json shown;
  ASSERT_TRUE(becomes_true([&] {
    shown = run_json();
    // The mean of the ends of an interval, of which the first may be before the load.
    if (!shown.contains("gpus") || shown["gpus"].size() < 4) return false;
    const auto& gpu = shown["gpus"][3];
    return gpu.value("pcie_rx", 0.0) == 2.5e9 && gpu.value("nvlink_rx", 0.0) > 0;
  })) << shown;
  EXPECT_EQ(shown["gpus"][3]["pcie_tx"], 1'000'000'000);
  // A quarter of 18 links of 26.6 GB/s.
  EXPECT_NEAR(shown["gpus"][3]["nvlink_rx"], 119.529e9, 5e9);
  EXPECT_EQ(shown["gpus"][3]["ecc_corrected"], 5);
  EXPECT_EQ(shown["gpus"][3]["ecc_uncorrected"], 0);
  EXPECT_EQ(shown["gpus"][4]["nvlink_rx"], 0);
  const auto table = run_top({"-b", "-n", "1", "-w", "200"});
  EXPECT_NE(table.find(" 2.5G/1G "), std::string::npos) << table;
}

TEST_F(SimTop, SeveralTablesAndOverTheNetwork) {
  start_node();
  const auto two = run_top({"-b", "-n", "2", "-d", "0.2", "-o", "json"});
  EXPECT_EQ(text::split(text::trim(two).data(), '\n').size() - 1, 2u) << two;
  const auto over_network =
      sim::program_output({std::string(GPULET_PROGRAMS) + "/gpulet", "top", "--url",
                           "http://127.0.0.1:" + std::to_string(listener_port()), "-b", "-n", "1"});
  ASSERT_TRUE(over_network) << over_network.error().full_message();
  EXPECT_NE(over_network->find("8 GPUs"), std::string::npos);
}

TEST_F(SimTop, ReportsAFailureInOneLine) {
  bring_up_node();
  const auto program = std::string(GPULET_PROGRAMS) + "/gpulet";
  EXPECT_NE(failure(top_command({"-b"})).find("agent.sock: no such socket; no agent is running on this node"),
            std::string::npos);
  start_agent();
  ASSERT_TRUE(becomes_true([&] { return std::filesystem::is_socket(sim_node().socket()); }));
  allow_agent_exit();
  sim_node().kill_agent();
  EXPECT_NE(failure(top_command({"-b"})).find("the agent has exited or is starting"), std::string::npos);
  EXPECT_NE(failure({program, "top", "--url", "http://127.0.0.1:1", "-b"}).find("127.0.0.1:1: "),
            std::string::npos);
  for (const char* url : {"https://x", "ftp://x", "http://", "http://x:0", "http://x/y", "http://::1"}) {
    EXPECT_NE(failure({program, "top", "--url", url, "-b"}).find("exit code 2"), std::string::npos) << url;
  }
  EXPECT_NE(failure(top_command({"-b", "-s", "colour"})).find("expected one of gpu, util, memory"),
            std::string::npos);
}

TEST_F(SimTop, TheSocketModeControlsAccess) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to switch users";
  start_node("hgx-h100", {.environment = {"GPULET_SOCKET_MODE=0660"}});
  ASSERT_TRUE(becomes_true([&] { return http_get(sim_node().socket(), "/readyz").status == 200; }));
  std::filesystem::permissions(sim_node().directory(), std::filesystem::perms(0755));
  const auto as_nobody = [&] {
    auto all = top_command({"-b", "-n", "1"});
    all.insert(all.begin(), {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"});
    return sim::program_output(all);
  };
  const auto refused = as_nobody();
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().full_message().find("permission denied. Run as root, or grant access"),
            std::string::npos)
      << refused.error().full_message();
  std::filesystem::permissions(sim_node().socket(), std::filesystem::perms(0666));
  const auto shown = as_nobody();
  ASSERT_TRUE(shown) << shown.error().full_message();
  EXPECT_NE(shown->find("8 GPUs"), std::string::npos);
}

TEST_F(SimTop, TheScreenFollowsTheNode) {
  start_node();
  set_load(5, 60, 8192);
  auto top = open_terminal("xterm-256color");
  ASSERT_TRUE(top.wait_for_text("[GPUs 8]")) << top.screen();
  ASSERT_TRUE(top.wait_for_text(" 60%")) << top.screen();
  EXPECT_TRUE(top.wait_for_row(0, "gpulet top  ")) << top.screen();
  EXPECT_TRUE(top.wait_for_row(2, "GPU▲")) << top.screen();
  set_load(5, 91, 8192);
  EXPECT_TRUE(top.wait_for_text(" 91%")) << top.screen();
  ASSERT_TRUE(sim::control::post_xid(machine_state(), 1, kFallenOffTheBus));
  EXPECT_TRUE(top.wait_for_text("XID 79")) << top.screen();
  EXPECT_NE(top.written().find("\x1b[3"), std::string::npos);  // in colour

  // Sorted by utilisation, descending, then ascending.
  top.press_keys("s");
  ASSERT_TRUE(top.wait_for_text("UTIL▼")) << top.screen();
  EXPECT_TRUE(top.wait_for_row(3, "5 ")) << top.screen();
  top.press_keys("S");
  ASSERT_TRUE(top.wait_for_text("UTIL▲")) << top.screen();
  EXPECT_TRUE(top.wait_for_row(3, "0 ")) << top.screen();

  top.press_keys("/lost");
  ASSERT_TRUE(top.wait_for_text("[GPUs 1]")) << top.screen();
  EXPECT_TRUE(top.wait_for_row(23, "/lost_")) << top.screen();
  top.press_keys("\r");
  ASSERT_TRUE(top.wait_for_text("filter: lost")) << top.screen();
  top.press_keys("\x1b");
  ASSERT_TRUE(top.wait_for_text("[GPUs 8]")) << top.screen();
  top.press_keys("/nobody\r");
  ASSERT_TRUE(top.wait_for_text("no match for \"nobody\"")) << top.screen();
  top.press_keys("/\x1b");
  ASSERT_TRUE(top.wait_for_text("[GPUs 8]")) << top.screen();

  // Paused, the screen stays; resumed, it is current.
  top.press_keys("p");
  ASSERT_TRUE(top.wait_for_text("PAUSED")) << top.screen();
  set_load(5, 17, 8192);
  ASSERT_TRUE(becomes_true([&] {
    return http_get(sim_node().socket(), "/api/now").body.find("\"util\":17") != std::string::npos;
  }));
  top.start_watching(300ms);
  EXPECT_NE(top.screen().find(" 91%"), std::string::npos) << top.screen();
  top.press_keys("p");
  ASSERT_TRUE(top.wait_for_text(" 17%")) << top.screen();
  EXPECT_TRUE(top.wait_for_absence("PAUSED"));

  top.press_keys("h");
  ASSERT_TRUE(top.wait_for_text("15 min ago")) << top.screen();
  EXPECT_TRUE(top.wait_for_text("▇")) << top.screen();
  top.press_keys("\t");
  ASSERT_TRUE(top.wait_for_text("[Pods 0]")) << top.screen();
  top.press_keys("\x1b[Z");
  top.press_keys("?");
  ASSERT_TRUE(top.wait_for_text("any key closes it")) << top.screen();
  top.press_keys("x");
  ASSERT_TRUE(top.wait_for_text("UTIL▲")) << top.screen();
  top.press_keys("q");
  EXPECT_EQ(top.wait_for_exit(), 0) << top.screen();
}

TEST_F(SimTop, TheScreenIsAsLargeAsTheTerminal) {
  start_node();
  auto top = open_terminal("xterm-256color", {}, 80);
  ASSERT_TRUE(top.wait_for_text("[GPUs 8]")) << top.screen();
  EXPECT_EQ(top.screen().find("SM/MEM MHz"), std::string::npos);
  top.resize(9, 130);
  ASSERT_TRUE(top.wait_for_text("SM/MEM MHz")) << top.screen();
  ASSERT_TRUE(top.wait_for_row(8, "q quit")) << top.screen();
  EXPECT_EQ(top.screen().find("\n7 "), std::string::npos) << top.screen();
  top.press_keys("\x1bOF");  // End
  ASSERT_TRUE(top.wait_for_text("\n7 ")) << top.screen();
  top.press_mouse(4, 5, 5);  // the wheel, up
  ASSERT_TRUE(top.wait_for_absence("\n7 ")) << top.screen();
  top.press_keys("\x03");
  EXPECT_EQ(top.wait_for_exit(), 0);
  EXPECT_FALSE(top.is_mouse_on());
}

TEST_F(SimTop, AWideScreenShowsOneGpuBesideTheTable) {
  start_node();
  const auto gpu = gpu_index(granted_ids(admit_pod("train", 1))[0]);
  set_load(gpu, 50, 4096);
  auto top = open_terminal("xterm-256color", {}, 180);
  ASSERT_TRUE(top.wait_for_text("│ GPU 0  NVIDIA H100")) << top.screen();
  ASSERT_TRUE(top.wait_for_text("15 min ago")) << top.screen();
  ASSERT_TRUE(top.wait_for_row(1, "[GPUs 8]")) << top.screen();  // below the warnings of a new agent
  const int row = 3 + static_cast<int>(gpu);
  top.press_mouse(1, row, 10);
  ASSERT_TRUE(top.wait_for_text("│ GPU " + std::to_string(gpu) + "  NVIDIA H100")) << top.screen();
  EXPECT_TRUE(top.wait_for_text("  50%   4.0 GiB default/train")) << top.screen();
  EXPECT_TRUE(top.wait_for_text("PCIe rx 2.5 GB/s")) << top.screen();
  EXPECT_TRUE(top.wait_for_text("NVLink rx 1")) << top.screen();
  EXPECT_TRUE(top.wait_for_text("⣀")) << top.screen();  // braille
  // A click on a title sorts, a second one reverses.
  const auto column = static_cast<int>(display_width(top.row(2).substr(0, top.row(2).find("STATE"))));
  top.press_mouse(1, 2, column);
  EXPECT_TRUE(top.wait_for_text("STATE▲")) << top.screen();
  top.press_mouse(1, 2, column);
  EXPECT_TRUE(top.wait_for_text("STATE▼")) << top.screen();
  top.press_mouse(1, 1, 11);
  EXPECT_TRUE(top.wait_for_text("[Pods 1]")) << top.screen();
  top.resize(24, 100);
  EXPECT_TRUE(top.wait_for_absence("15 min ago")) << top.screen();
  top.press_keys("q");
  EXPECT_EQ(top.wait_for_exit(), 0);
}

// Under a shell with job control, as a user runs it.
TEST_F(SimTop, GivesTheTerminalBack) {
  start_node();
  Terminal shell({"/bin/bash", "--norc", "--noprofile", "--noediting", "-i"},
                 {"TERM=xterm-256color", "LANG=C.UTF-8", "PS1=ready>", "HISTFILE="}, 24, 100);
  ASSERT_TRUE(shell.wait_for_text("ready>")) << shell.screen();
  const auto command = text::join(top_command({}), " ");
  const auto start = [&] {
    shell.press_keys(command + "; echo status $?\r");
    return shell.wait_for_text("[GPUs 8]") && shell.is_mouse_on() && shell.is_alternate_screen() &&
           !shell.is_line_mode();
  };
  // Stopped and resumed, in another size.
  ASSERT_TRUE(start()) << shell.screen();
  shell.press_keys("\x1a");
  ASSERT_TRUE(shell.wait_for_text("Stopped")) << shell.screen();
  EXPECT_TRUE(shell.wait_for_restored()) << shell.screen();
  shell.resize(24, 120);
  shell.press_keys("fg\r");
  ASSERT_TRUE(shell.wait_for_text("PCIE RX/TX")) << shell.screen();
  EXPECT_TRUE(shell.is_mouse_on());
  EXPECT_TRUE(shell.is_alternate_screen());
  ASSERT_TRUE(shell.wait_for_row(1, "[GPUs 8]")) << shell.screen();  // below the warnings of a new agent
  shell.press_mouse(1, 1, 11);
  EXPECT_TRUE(shell.wait_for_text("[Pods 0]")) << shell.screen();
  // Ctrl-C, Ctrl-\ and the signals of `kill` and of a closed window.
  shell.press_keys("\x03");
  EXPECT_TRUE(shell.wait_for_restored()) << shell.screen();
  for (const char* key : {"q", "\x1c", "\x03"}) {
    ASSERT_TRUE(start()) << shell.screen();
    shell.press_keys(key);
    EXPECT_TRUE(shell.wait_for_restored()) << shell.screen();
  }
  shell.press_keys("exit\r");
  EXPECT_EQ(shell.wait_for_exit(), 0) << shell.screen();
}

TEST_F(SimTop, GivesTheTerminalBackAfterASignal) {
  start_node();
  for (const int signal : {SIGTERM, SIGHUP, SIGINT, SIGQUIT}) {
    auto top = open_terminal("xterm-256color");
    ASSERT_TRUE(top.wait_for_text("[GPUs 8]")) << top.screen();
    EXPECT_TRUE(top.is_mouse_on());
    EXPECT_FALSE(top.is_line_mode());
    top.send_signal(signal);
    EXPECT_EQ(top.wait_for_exit(), 0) << signal;
    EXPECT_TRUE(top.wait_for_restored()) << signal;
  }
  // A terminal that reports no mouse is not asked to.
  auto top = open_terminal("vt100");
  ASSERT_TRUE(top.wait_for_text("[GPUs 8]")) << top.screen();
  EXPECT_FALSE(top.is_mouse_on());
  top.press_keys("q");
  EXPECT_EQ(top.wait_for_exit(), 0);
}

TEST_F(SimTop, TheScreenShowsALostAgentAndRecovers) {
  start_node();
  auto top = open_terminal("xterm-256color");
  ASSERT_TRUE(top.wait_for_text("[GPUs 8]")) << top.screen();
  allow_agent_exit();
  sim_node().kill_agent();
  ASSERT_TRUE(top.wait_for_text("agent unreachable since ")) << top.screen();
  EXPECT_NE(top.screen().find("\n7 "), std::string::npos) << top.screen();  // the last values
  start_agent();
  EXPECT_TRUE(top.wait_for_absence("agent unreachable since ")) << top.screen();
  set_load(2, 44, 1024);
  EXPECT_TRUE(top.wait_for_text(" 44%")) << top.screen();
  top.press_keys("q");
  EXPECT_EQ(top.wait_for_exit(), 0);
}

TEST_F(SimTop, AdaptsToTheTerminal) {
  start_node();
  // An unknown terminal counts as an xterm.
  for (const char* name : {"linux", "screen-256color", "a-terminal-of-tomorrow"}) {
    auto top = open_terminal(name);
    EXPECT_TRUE(top.wait_for_text("[GPUs 8]")) << name << "\n" << top.screen();
    EXPECT_TRUE(top.wait_for_row(2, "GPU▲")) << name << "\n" << top.screen();
    top.press_keys("q");
    EXPECT_EQ(top.wait_for_exit(), 0) << name;
  }
  // A terminal without cursor addressing, or none: tables one after the other.
  for (const char* name : {"dumb", ""}) {
    auto top = open_terminal(name, {"-d", "0.2"});
    EXPECT_TRUE(top.wait_for_text("GPU▲")) << name << "\n" << top.screen();
    EXPECT_EQ(top.written().find('\x1b'), std::string::npos) << name;
    top.press_keys("\x03");
    EXPECT_EQ(top.wait_for_exit(), 0) << name;
  }
  Terminal plain(top_command({}), {"TERM=xterm-256color", "LC_ALL=C", "NO_COLOR=1"}, 24, 100);
  EXPECT_TRUE(plain.wait_for_text("GPU^")) << plain.screen();
  EXPECT_TRUE(plain.wait_for_text("0%")) << plain.screen();
  for (const char* colour : {"\x1b[31", "\x1b[32", "\x1b[33"})
    EXPECT_EQ(plain.written().find(colour), std::string::npos);
  for (const char byte : plain.written()) ASSERT_GT(byte, 0) << plain.screen();
  plain.press_keys("q");
  EXPECT_EQ(plain.wait_for_exit(), 0);
  // Without an agent, the terminal is not changed.
  allow_agent_exit();
  sim_node().kill_agent();
  std::filesystem::remove(sim_node().socket());
  auto none = open_terminal("xterm-256color");
  EXPECT_EQ(none.wait_for_exit(), 1);
  EXPECT_EQ(none.written().find('\x1b'), std::string::npos);
  EXPECT_NE(none.written().find("no such socket"), std::string::npos) << none.written();
}

}  // namespace
}  // namespace gpulet::tests
