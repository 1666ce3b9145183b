// A daemon of MPS protocol 3: the real process of the simulated one, on a real loop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>
#include <array>
#include <atomic>
#include <filesystem>
#include <thread>

#include "mps/daemon.h"
#include "mps/manager.h"
#include "mps/test_mps_node.h"

namespace gpulet::mps {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

class NamespaceNode : public TestMpsNode {
 public:
  NamespaceNode() {
    root.use_driver("615.71.09");
    protocol = kProtocolWithNamespaces;
  }

  // Two shares of each of the first `gpus` GPUs.
  DaemonSpec make_shares(unsigned gpus = 1) const {
    auto made = make_spec(gpus);
    made.visible_devices.clear();
    made.memory_limits.clear();
    made.protocol = kProtocolWithNamespaces;
    for (const auto& device : made.devices) {
      for (const char* replica : {"0", "1"})
        made.namespaces.push_back(
            {"gpu" + std::to_string(device.gpu) + "_" + replica, device.uuid, {50, 20389}});
    }
    return made;
  }
  std::string ask(std::vector<std::string> arguments) const {
    const auto answer = sim::mps::send_arguments(pipes(), arguments);
    if (!answer) return "gone";
    return (answer->code == 0 ? "" : "refused: ") + answer->text;
  }
  std::string threads(const std::string& name) const {
    return ask({"namespace", "get", name, "gpulet", "active-thread-percentage"});
  }
  // What a client of the namespace gets that asks for everything.
  std::string client_limits(const std::string& name) const {
    const auto client = sim::mps::attach_client(pipes() + "/gpulet/" + name, "100", "");
    return client ? client->limits_text : client.error().full_message();
  }
  bool starts(Daemon& daemon) {
    daemon.start_daemon();
    return wait_until([&] { return daemon.daemon_health().healthy; });
  }
  std::string set(Daemon& daemon, const std::string& name, const NamespaceLimits& limits) {
    std::optional<std::string> result;
    daemon.set_namespace(name, limits,
                         [&](const Status& done) { result = done ? "" : done.error().full_message(); });
    EXPECT_TRUE(wait_until([&] { return result.has_value(); }));
    return result.value_or("none");
  }
  void stop(Daemon& daemon) {
    bool stopped = false;
    daemon.stop_daemon([&] { stopped = true; });
    EXPECT_TRUE(wait_until([&] { return stopped; }));
  }
};

// The program ends by a signal where it is asked for help.
void break_help(const NamespaceNode& node) {
  const auto program = node.root.control_program();
  const auto moved = node.root.driver_root() + "/usr/real/nvidia-cuda-mps-control";
  std::filesystem::create_directories(node.root.driver_root() + "/usr/real");
  std::filesystem::rename(program, moved);
  ASSERT_TRUE(write_file_atomic(
      program, "#!/bin/sh\ncase \"$*\" in *--help*) kill -9 $$ ;; esac\nexec '" + moved + "' \"$@\"\n",
      0755));
}

// What a client reads until its connection ends.
std::string words_until_the_end(const sim::mps::AttachedClient& client) {
  const timeval limit{10, 0};
  EXPECT_EQ(::setsockopt(client.connection.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  std::string text;
  char byte = 0;
  while (::recv(client.connection.get(), &byte, 1, 0) == 1 && byte != '\n') text += byte;
  return text + "\n";
}

TEST(MpsNamespaceDaemon, GivesEachShareItsLimits) {
  NamespaceNode node;
  auto daemon = node.make_daemon(node.make_shares(2));
  ASSERT_TRUE(node.starts(*daemon)) << daemon->daemon_health().reason;
  EXPECT_EQ(node.client_limits("gpu0_0"), "threads 50.0 memory 0=20389M memory 1=20389M");
  const auto stray = sim::mps::attach_client(node.pipes() + "/gpulet", "100", "");
  ASSERT_TRUE(stray);
  EXPECT_EQ(stray->limits_text, "threads 1.0 memory 0=1M memory 1=1M") << "without a namespace";
  EXPECT_THAT(node.ask({"server", "get", "gpulet", "allowed-devices"}),
              node.make_spec(2).devices[0].uuid.str() + "," + node.make_spec(2).devices[1].uuid.str() + "\n");
  EXPECT_EQ(node.modes(), (std::vector<unsigned>{3, 3, 0, 0}));
  node.stop(*daemon);
  EXPECT_EQ(node.ask({"server", "list"}), "gone");
  EXPECT_EQ(node.modes(), (std::vector<unsigned>{0, 0, 0, 0}));
}

TEST(MpsNamespaceDaemon, HoldsAPodsLimitsThroughACrashAndAStop) {
  NamespaceNode node;
  auto daemon = node.make_daemon(node.make_shares());
  ASSERT_TRUE(node.starts(*daemon)) << daemon->daemon_health().reason;
  EXPECT_EQ(node.set(*daemon, "gpu0_1", {30, 4096}), "");
  EXPECT_EQ(node.client_limits("gpu0_1"), "threads 30.0 memory 0=4096M");
  EXPECT_EQ(node.client_limits("gpu0_0"), "threads 50.0 memory 0=20389M");
  node.history.clear();
  ASSERT_TRUE(sim::mps::crash_daemon(node.pipes()));
  ASSERT_TRUE(node.wait_until([&] { return node.history.size() >= 2 && daemon->daemon_health().healthy; }));
  EXPECT_EQ(node.threads("gpu0_1"), "30.00\n");
  node.stop(*daemon);
  daemon = node.make_daemon(node.make_shares());  // of the next agent
  ASSERT_TRUE(node.starts(*daemon));
  EXPECT_EQ(node.threads("gpu0_1"), "30.00\n");
  EXPECT_EQ(node.set(*daemon, "gpu0_1", {50, 20389}), "");
  EXPECT_EQ(node.threads("gpu0_1"), "50.00\n");
  EXPECT_EQ(read_file(node.root.mps_root() + "/nvidia.com/gpu/.namespaces").value_or("none"), "");
  EXPECT_THAT(node.set(*daemon, "other", {50, 0}), HasSubstr("has no namespace other"));
  node.stop(*daemon);
  EXPECT_THAT(node.set(*daemon, "gpu0_1", {30, 0}), HasSubstr("the MPS control daemon"));
}

TEST(MpsNamespaceDaemon, FailsWhereAGpuIsAbsent) {
  NamespaceNode node;
  auto spec = node.make_shares();
  spec.devices.push_back({DeviceUuid("GPU-absent"), 7, true, mebibytes(81559)});
  auto daemon = node.make_daemon(spec);
  daemon->start_daemon();
  ASSERT_TRUE(node.wait_until([&] {
    return daemon->daemon_health().reason.find("one whose GPU is absent ends silently") != std::string::npos;
  })) << daemon->daemon_health().reason;
}

TEST(MpsNamespaceDaemon, NoticesAServerThatHasEnded) {
  NamespaceNode node;
  node.options.check_interval = 20ms;
  auto daemon = node.make_daemon(node.make_shares());
  ASSERT_TRUE(node.starts(*daemon)) << daemon->daemon_health().reason;
  node.history.clear();
  EXPECT_EQ(node.ask({"server", "delete", "gpulet", "--force"}), "");
  ASSERT_TRUE(node.wait_until([&] { return !node.history.empty() && daemon->daemon_health().healthy; }));
  EXPECT_THAT(node.history.front().reason, HasSubstr("does not respond"));
  EXPECT_EQ(node.client_limits("gpu0_0"), "threads 50.0 memory 0=20389M");
}

TEST(MpsNamespaceDaemon, IsAdoptedWithWhatPodsHold) {
  NamespaceNode node;
  std::array<int, 2> ends;
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const pid_t agent = ::fork();
  if (agent == 0) {
    auto daemon = node.make_daemon(node.make_shares());
    const bool is_set = node.starts(*daemon) && node.set(*daemon, "gpu0_1", {30, 4096}).empty();
    static_cast<void>(::write(ends[1], is_set ? "+" : "-", 1) < 0);
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ends[0], &byte, 1), 1);
  ASSERT_EQ(byte, '+');
  ::kill(agent, SIGKILL);
  ASSERT_EQ(::waitpid(agent, nullptr, 0), agent);
  const FileDescriptor read_end(ends[0]), write_end(ends[1]);
  const auto first = node.pid();
  auto same = node.make_daemon(node.make_shares());
  ASSERT_TRUE(node.starts(*same)) << same->daemon_health().reason;
  EXPECT_EQ(node.pid(), first);
  EXPECT_EQ(node.threads("gpu0_1"), "30.00\n");
  same.reset();
  auto other = node.make_shares();
  for (auto& space : other.namespaces) space.limits.threads = 40;
  auto changed = node.make_daemon(other);
  ASSERT_TRUE(node.starts(*changed)) << changed->daemon_health().reason;
  EXPECT_EQ(node.pid(), first);
  EXPECT_EQ(node.threads("gpu0_0"), "40.00\n");
  EXPECT_EQ(node.threads("gpu0_1"), "30.00\n");
  changed.reset();
}

TEST(MpsNamespaceDaemon, EachProtocolHasItsOwnDirectory) {
  NamespaceNode node;
  node.protocol = 2;
  auto of_two = node.make_daemon(node.make_spec(1));
  ASSERT_TRUE(node.starts(*of_two)) << of_two->daemon_health().reason;
  const auto client = sim::mps::attach_client(node.pipes(), "", "");
  ASSERT_TRUE(client) << client.error().full_message();
  of_two.reset();
  for (const unsigned protocol : {3u, 2u, 3u}) {
    const auto former_pipes = node.pipes();
    node.protocol = protocol;
    auto daemon = node.make_daemon(protocol == 2 ? node.make_spec(1) : node.make_shares());
    ASSERT_TRUE(node.starts(*daemon)) << daemon->daemon_health().reason;
    EXPECT_NE(node.pid(), 0);
    EXPECT_FALSE(std::filesystem::exists(former_pipes));
    EXPECT_EQ(
        protocol == 2 ? node.send_command("get_default_active_thread_percentage") : node.threads("gpu0_0"),
        protocol == 2 ? "25.0\n" : "50.00\n");
  }
  auto never_started = node.make_daemon(node.make_spec(1));
  node.stop(*never_started);
  EXPECT_EQ(node.pid(), 0);
}

TEST(MpsNamespaceDaemon, ADaemonBeforeItIsStoppedInItsOwnWords) {
  NamespaceNode node;
  for (const unsigned protocol : {2u, 3u}) {
    node.protocol = protocol;
    auto before = node.make_daemon(protocol == 2 ? node.make_spec(1) : node.make_shares());
    ASSERT_TRUE(node.starts(*before)) << before->daemon_health().reason;
    before.reset();
    const auto client =
        sim::mps::attach_client(node.pipes() + (protocol == 2 ? "" : "/gpulet/gpu0_0"), "", "");
    ASSERT_TRUE(client) << client.error().full_message();
    auto next = node.make_daemon(protocol == 2 ? node.make_shares() : node.make_spec(1));
    node.stop(*next);
    EXPECT_EQ(words_until_the_end(*client), sim::mps::kClientTerminated);
    EXPECT_EQ(node.pid(), 0);
  }
}

TEST(MpsNamespaceDaemon, SaysThatAPathIsTooLong) {
  NamespaceNode node;
  auto spec = node.make_shares();
  spec.namespaces[1].name = std::string(90, 'a');
  auto daemon = node.make_daemon(spec);
  daemon->start_daemon();
  EXPECT_THAT(daemon->daemon_health().reason, HasSubstr("at most 107 are possible: "));
  EXPECT_EQ(node.mode_calls, 0u);
  node.stop(*daemon);
}

TEST(MpsNamespaceDaemon, NoAnswerAboutProtocol3EndsNoDaemon) {
  NamespaceNode node;
  std::string missing;
  node.options.protocol_missing = [&](const std::string& why) { missing = why; };
  const auto record = [&] {
    return read_file(started_file(node.options.root, "nvidia.com/gpu")).value_or("none");
  };
  node.protocol = 2;
  auto of_two = node.make_daemon(node.make_spec(1));
  ASSERT_TRUE(node.starts(*of_two)) << of_two->daemon_health().reason;
  of_two.reset();
  const auto pid = node.pid();
  const auto before = record();
  break_help(node);
  auto daemon = node.make_daemon(node.make_shares());
  daemon->start_daemon();
  ASSERT_TRUE(node.wait_until([&] {
    return daemon->daemon_health().reason.find("has no MPS protocol 3: signal 9") != std::string::npos;
  })) << daemon->daemon_health().reason;
  EXPECT_EQ(missing, "");
  EXPECT_EQ(record(), before);
  EXPECT_EQ(node.pid(), pid);
  node.stop(*daemon);
}

TEST(MpsNamespaceDaemon, OneThatRunsShowsThatTheProgramHasProtocol3) {
  NamespaceNode node;
  auto daemon = node.make_daemon(node.make_shares());
  ASSERT_TRUE(node.starts(*daemon)) << daemon->daemon_health().reason;
  const auto pid = node.pid();
  break_help(node);
  daemon = node.make_daemon(node.make_shares());
  ASSERT_TRUE(node.starts(*daemon)) << daemon->daemon_health().reason;
  EXPECT_EQ(node.pid(), pid);
  node.stop(*daemon);
}

TEST(MpsNamespaceDaemon, DoesNotServeWithoutWhatPodsHold) {
  NamespaceNode node;
  const auto file = node.options.root + "/nvidia.com/gpu/.namespaces";
  std::filesystem::create_directories(file);
  auto daemon = node.make_daemon(node.make_shares());
  daemon->start_daemon();
  ASSERT_TRUE(node.wait_until([&] {
    return daemon->daemon_health().reason.find(".namespaces") != std::string::npos;
  })) << daemon->daemon_health().reason;
  EXPECT_THAT(node.set(*daemon, "gpu0_0", {30, 4096}), HasSubstr(".namespaces"));
  std::filesystem::remove(file);
  ASSERT_TRUE(write_file_atomic(file, "removed 20 4096\ngpu0_1 30 4096\n"));
  ASSERT_TRUE(node.wait_until([&] { return daemon->daemon_health().healthy; }));
  EXPECT_EQ(node.threads("gpu0_1"), "30.00\n");
  EXPECT_EQ(node.set(*daemon, "gpu0_0", {10, 4096}), "");
  EXPECT_EQ(read_file(file).value_or("none"), "gpu0_0 10 4096\ngpu0_1 30 4096\n");
  node.stop(*daemon);
}

TEST(MpsNamespaceDaemon, SaysWhereTheProgramHasNoProtocol3) {
  NamespaceNode node;
  node.root.use_driver("595.91.07");
  std::string missing;
  node.options.protocol_missing = [&](const std::string& why) { missing = why; };
  auto daemon = node.make_daemon(node.make_shares());
  daemon->start_daemon();
  ASSERT_TRUE(node.wait_until([&] { return !missing.empty(); }));
  EXPECT_THAT(missing, HasSubstr("nvidia-cuda-mps-control has no MPS protocol 3"));
  EXPECT_EQ(node.mode_calls, 0u);
  node.stop(*daemon);
}

TEST(MpsNamespaceDaemon, EndsTheWorkOfClientsOfEitherProtocol) {
  for (const bool has_namespaces : {false, true}) {
    NamespaceNode node;
    node.protocol = has_namespaces ? 3 : 2;
    auto daemon = node.make_daemon(has_namespaces ? node.make_shares() : node.make_spec(1));
    ASSERT_TRUE(node.starts(*daemon)) << daemon->daemon_health().reason;
    const auto directory = node.pipes() + (has_namespaces ? "/gpulet/gpu0_0" : "");
    const auto client = sim::mps::attach_client(directory, "", "");
    ASSERT_TRUE(client) << client.error().full_message();
    bool ended = false;
    daemon->end_clients({1, static_cast<unsigned>(::getpid())}, [&] { ended = true; });
    ASSERT_TRUE(node.wait_until([&] { return ended; }));
    EXPECT_EQ(words_until_the_end(*client), sim::mps::kClientTerminated);
    const auto at_stop = sim::mps::attach_client(directory, "", "");
    node.stop(*daemon);
    EXPECT_EQ(words_until_the_end(*at_stop), sim::mps::kClientTerminated);
  }
}

TEST(MpsNamespaceDaemon, ANamespaceThatFailsEndsNoWork) {
  NamespaceNode node;
  node.options.check_interval = 20ms;
  auto daemon = node.make_daemon(node.make_shares());
  ASSERT_TRUE(node.starts(*daemon)) << daemon->daemon_health().reason;
  const auto pid = node.pid();
  auto bad = node.make_shares();
  bad.namespaces.push_back({"Refused", bad.devices[0].uuid, {10, 4096}});
  node.history.clear();
  daemon->update_spec(bad);
  ASSERT_TRUE(node.wait_until([&] { return !daemon->daemon_health().healthy; }));
  EXPECT_THAT(daemon->daemon_health().reason, HasSubstr("no namespace 'Refused'"));
  EXPECT_THAT(node.set(*daemon, "Refused", {20, 4096}), HasSubstr("no namespace 'Refused'"));
  EXPECT_EQ(node.set(*daemon, "gpu0_0", {20, 4096}), "") << "of another caller";
  // Several checks later.
  for (const unsigned threads : {30u, 40u, 50u}) EXPECT_EQ(node.set(*daemon, "gpu0_1", {threads, 20389}), "");
  EXPECT_EQ(node.history.size(), 1u) << "it does not seem healthy in between";
  daemon->update_spec(node.make_shares());
  ASSERT_TRUE(node.wait_until([&] { return daemon->daemon_health().healthy; }));
  EXPECT_EQ(node.pid(), pid);
  node.stop(*daemon);
}

TEST(MpsNamespaceDaemon, EndsClientsThatConnectedBeforeTheirLimits) {
  NamespaceNode node;
  auto daemon = node.make_daemon(node.make_shares());
  std::optional<sim::mps::AttachedClient> client;
  std::atomic<bool> is_over = false;
  std::thread container([&, directory = node.pipes() + "/gpulet/gpu0_0"] {
    while (!client && !is_over) {
      if (auto attached = sim::mps::attach_client(directory, "100", "")) client = std::move(*attached);
      std::this_thread::yield();
    }
  });
  const bool has_started = node.starts(*daemon);
  is_over = true;
  container.join();
  ASSERT_TRUE(has_started) << daemon->daemon_health().reason;
  ASSERT_TRUE(client);
  EXPECT_EQ(client->limits_text, "threads 100.0") << "before `namespace set`";
  EXPECT_EQ(words_until_the_end(*client), sim::mps::kClientTerminated);
  node.stop(*daemon);
}

TEST(MpsNamespaceDaemon, LimitsWaitForTheEndOfAStart) {
  NamespaceNode node;
  node.mode_error = Error(Code::kIo, "no mode");
  auto daemon = node.make_daemon(node.make_shares());
  daemon->start_daemon();
  std::vector<std::string> results;
  const auto note = [&](const Status& done) { results.push_back(done ? "" : done.error().message()); };
  daemon->set_namespace("gpu0_0", {10, 4096}, note);
  ASSERT_TRUE(
      node.wait_until([&] { return daemon->daemon_health().reason.find("no mode") != std::string::npos; }));
  daemon->set_namespace("gpu0_1", {20, 4096}, note);
  node.mode_error.reset();
  ASSERT_TRUE(node.wait_until([&] { return results.size() == 2; }));
  EXPECT_EQ(results, (std::vector<std::string>{"", ""}));
  EXPECT_EQ(node.threads("gpu0_0") + node.threads("gpu0_1"), "10.00\n20.00\n");
  node.stop(*daemon);
  daemon = node.make_daemon(node.make_shares());
  daemon->start_daemon();
  daemon->set_namespace("gpu0_0", {30, 4096}, note);
  node.stop(*daemon);
  ASSERT_TRUE(node.wait_until([&] { return results.size() == 3; }));
  EXPECT_EQ(results[2], "the MPS control daemon stops");
}

TEST(MpsNamespaceDaemon, CallersTakeTurns) {
  NamespaceNode node;
  auto daemon = node.make_daemon(node.make_shares());
  ASSERT_TRUE(node.starts(*daemon)) << daemon->daemon_health().reason;
  std::vector<std::string> order;
  daemon->set_namespace("gpu0_0", {10, 4096}, [&](const Status&) { order.push_back("three commands"); });
  daemon->end_clients({1}, [&] { order.push_back("one command"); });
  ASSERT_TRUE(node.wait_until([&] { return order.size() == 2; }));
  EXPECT_EQ(order, (std::vector<std::string>{"one command", "three commands"}));
  node.stop(*daemon);
}

TEST(MpsNamespaceDaemon, EndsNoMoreClientsOfADaemonThatDoesNotAnswer) {
  NamespaceNode node;
  node.options.response_limit = 300ms;
  node.options.check_interval = 1h;
  auto daemon = node.make_daemon(node.make_shares());
  ASSERT_TRUE(node.starts(*daemon)) << daemon->daemon_health().reason;
  ASSERT_TRUE(sim::mps::hang_daemon(node.pipes()));
  constexpr unsigned kClients = 40;
  bool ended = false;
  const Time begin = node.loop.now();
  daemon->end_clients(std::vector<unsigned>(kClients, 1), [&] { ended = true; });
  ASSERT_TRUE(node.wait_until([&] { return ended; }));
  EXPECT_LT(node.loop.now() - begin, node.options.response_limit * kClients / 2);
  ASSERT_TRUE(sim::mps::crash_daemon(node.pipes()));
}

TEST(MpsNamespaceDaemon, CommandsOfCallersWaitAndEndWithTheDaemon) {
  NamespaceNode node;
  node.options.response_limit = 300ms;
  auto daemon = node.make_daemon(node.make_shares());
  ASSERT_TRUE(node.starts(*daemon)) << daemon->daemon_health().reason;
  std::vector<std::string> results;
  const auto note = [&](const Status& done) { results.push_back(done ? "" : done.error().message()); };
  daemon->set_namespace("gpu0_0", {10, 4096}, note);
  daemon->set_namespace("gpu0_1", {20, 4096}, note);
  ASSERT_TRUE(node.wait_until([&] { return results.size() == 2; }));
  EXPECT_EQ(results, (std::vector<std::string>{"", ""}));
  EXPECT_EQ(node.threads("gpu0_0") + node.threads("gpu0_1"), "10.00\n20.00\n");
  ASSERT_TRUE(sim::mps::hang_daemon(node.pipes()));
  daemon->set_namespace("gpu0_0", {30, 4096}, note);
  daemon->set_namespace("gpu0_1", {30, 4096}, note);
  ASSERT_TRUE(sim::mps::crash_daemon(node.pipes()));
  ASSERT_TRUE(node.wait_until([&] { return results.size() == 4; }));
  EXPECT_NE(results[2], "");
  EXPECT_NE(results[3], "");
}

}  // namespace
}  // namespace gpulet::mps
