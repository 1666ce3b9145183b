#include "web/listener.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <set>
#include <sstream>
#include <thread>

#include "base/process.h"
#include "http/server.h"
#include "web/test_listener.h"

namespace gpulet::web {
namespace {

using namespace std::chrono_literals;

std::string status_line(pid_t pid, const std::string& key) {
  std::istringstream lines(read_file("/proc/" + std::to_string(pid) + "/status").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(key + ":\t", 0) == 0) return line.substr(key.size() + 2);
  }
  return "(none)";
}

TEST_F(ListenerTest, ServesTheLastPublishedPages) {
  begin();
  EXPECT_EQ(http::status_code(http::get(port_on_loop(), "/healthz")), 503);  // nothing published yet
  publish_on_loop(good_pages());
  ASSERT_TRUE(wait_until([&] { return http::status_code(http::get(port_on_loop(), "/healthz")) == 200; }));
  EXPECT_EQ(http::status_code(http::get(port_on_loop(), "/readyz")), 200);
  EXPECT_EQ(http::response_body(http::get(port_on_loop(), "/metrics")), "gpulet_up 1\n");
  EXPECT_NE(http::response_body(http::get(port_on_loop(), "/")).find("/metrics"), std::string::npos);
  EXPECT_EQ(http::status_code(http::get(port_on_loop(), "/other")), 404);

  publish_on_loop(
      {.healthy = false, .health_text = "the loop is stuck", .ready = false, .ready_text = "no kubelet"});
  ASSERT_TRUE(wait_until([&] { return http::status_code(http::get(port_on_loop(), "/healthz")) == 503; }));
  EXPECT_EQ(http::response_body(http::get(port_on_loop(), "/healthz")), "the loop is stuck\n");
  EXPECT_EQ(http::response_body(http::get(port_on_loop(), "/readyz")), "no kubelet\n");
  EXPECT_EQ(http::response_body(http::get(port_on_loop(), "/metrics")), "");
}

TEST_F(ListenerTest, MetricsAreWrittenWhenAClientAsksForThem) {
  Pages pages = good_pages();
  pages.metrics.clear();
  pages.has_metrics = false;
  std::atomic<int> wanted = 0;
  ListenerOptions options;
  options.on_metrics_wanted = [&] {
    Pages written = good_pages();
    written.metrics = "written " + std::to_string(++wanted) + "\n";
    listener_->publish_pages(written);
  };
  begin("127.0.0.1:0", options);
  publish_on_loop(pages);
  ASSERT_TRUE(wait_until([&] { return http::status_code(http::get(port_on_loop(), "/healthz")) == 200; }));
  EXPECT_EQ(wanted, 0);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(http::response_body(http::get(port_on_loop(), "/metrics")), "written 1\n");
  publish_on_loop(pages);
  std::vector<std::future<std::string>> scrapes;
  for (int i = 0; i < 8; ++i)
    scrapes.push_back(std::async(std::launch::async, [&] { return http::get(port_on_loop(), "/metrics"); }));
  for (auto& scrape : scrapes) EXPECT_EQ(http::response_body(scrape.get()).substr(0, 8), "written ");
  EXPECT_TRUE(wait_until(
      [&] { return http::response_body(http::get(port_on_loop(), "/metrics")) == "written 2\n"; }));
  EXPECT_EQ(wanted, 2);
}

TEST_F(ListenerTest, LargePagesAreServedAndTooLargeOnesAreHarmless) {
  begin();
  Pages pages = good_pages();
  pages.metrics = std::string(8u << 20, 'x') + "\n";
  for (int i = 0; i < 5; ++i) publish_on_loop(pages);
  ASSERT_TRUE(wait_until([&] { return http::status_code(http::get(port_on_loop(), "/metrics")) == 200; }));
  EXPECT_EQ(http::response_body(http::get(port_on_loop(), "/metrics")), pages.metrics);
  pages.metrics = std::string(kMaxPagesBytes + 1, 'x');
  publish_on_loop(pages);
  publish_on_loop(good_pages());
  EXPECT_TRUE(wait_until(
      [&] { return http::response_body(http::get(port_on_loop(), "/metrics")) == "gpulet_up 1\n"; }));
  EXPECT_EQ(listener_->restarts(), 0u);
}

TEST_F(LocalListenerTest, ServesTheSamePagesWithoutTlsAndPasswords) {
  const auto certificate = Certificate::make_certificate("one", nullptr, "127.0.0.1");
  http::AccessRules access;
  access.tls.emplace();
  access.tls->certificate = certificate.pem();
  access.tls->key = certificate.key_pem();
  access.users = {{"alice", http::secret_hash()}};
  begin("127.0.0.1:0", {.access_rules = access, .local = local_});
  publish_on_loop(good_pages());
  ASSERT_TRUE(wait_until([&] { return http::status_code(http::get(socket_path(), "/healthz")) == 200; }));
  EXPECT_EQ(http::response_body(http::get(socket_path(), "/metrics")), "gpulet_up 1\n");
  EXPECT_EQ(http::status_code(http::get(port_on_loop(), "/healthz")), 400);
  const pid_t first = child_on_loop();
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  ASSERT_TRUE(wait_until([&] { return child_on_loop() != first && child_on_loop() != 0; }));
  EXPECT_EQ(http::status_code(http::get(socket_path(), "/healthz")), 200);
}

TEST_F(LocalListenerTest, MayBeTheOnlyListener) {
  call_on_loop([&] {
    auto started = Listener::start_listener(loop_, "", {.local = local_});
    ASSERT_TRUE(started) << started.error().full_message();
    listener_ = std::move(*started);
  });
  EXPECT_EQ(port_on_loop(), 0);
  publish_on_loop(good_pages());
  ASSERT_TRUE(wait_until([&] { return http::status_code(http::get(socket_path(), "/healthz")) == 200; }));
  const pid_t pid = child_on_loop();
  EXPECT_EQ(status_line(pid, "Seccomp"), "2");
  EXPECT_EQ(status_line(pid, "CapEff"), "0000000000000000");
}

TEST_F(LocalListenerTest, NetworkClientsCannotExhaustLocalConnections) {
  begin("127.0.0.1:0", {.local = local_});
  publish_on_loop(good_pages());
  ASSERT_TRUE(wait_until([&] { return http::status_code(http::get(port_on_loop(), "/healthz")) == 200; }));
  constexpr const char* kWatch = "GET /api/events HTTP/1.1\r\n\r\n";
  std::vector<std::unique_ptr<http::TestClient>> clients;
  const auto watch = [&](auto where) {
    clients.push_back(std::make_unique<http::TestClient>(where));
    EXPECT_TRUE(clients.back()->send_bytes(kWatch));
    return !clients.back()->read_until("retry: ").empty();
  };
  for (std::size_t i = 0; i < http::kMaxSubscribers; ++i) ASSERT_TRUE(watch(port_on_loop())) << i;
  EXPECT_EQ(http::response_body(http::get(port_on_loop(), "/api/events")),
            "the maximum number of subscribers is connected: 16\n");
  for (std::size_t i = 0; i < http::kMaxLocalSubscribers; ++i) ASSERT_TRUE(watch(socket_path())) << i;
  EXPECT_EQ(http::response_body(http::get(socket_path(), "/api/events")),
            "the maximum number of subscribers is connected: 20\n");
  for (int i = 0; i < 300; ++i) clients.push_back(std::make_unique<http::TestClient>(port_on_loop()));
  EXPECT_EQ(http::status_code(http::get(socket_path(), "/healthz")), 200);
  EXPECT_EQ(listener_->restarts(), 0u);
}

TEST_F(ListenerTest, SilentAgentIsUnhealthy) {
  begin("127.0.0.1:0", {.max_age = 300ms});
  publish_on_loop(good_pages());
  ASSERT_TRUE(wait_until([&] { return http::status_code(http::get(port_on_loop(), "/healthz")) == 200; }));
  ASSERT_TRUE(wait_until([&] { return http::status_code(http::get(port_on_loop(), "/healthz")) == 503; }));
  EXPECT_NE(http::response_body(http::get(port_on_loop(), "/healthz")).find("no data from the agent for "),
            std::string::npos);
  publish_on_loop(good_pages());
  EXPECT_TRUE(wait_until([&] { return http::status_code(http::get(port_on_loop(), "/healthz")) == 200; }));
}

TEST_F(ListenerTest, ConfirmedPagesAreServedAgain) {
  begin("127.0.0.1:0", {.max_age = 300ms});
  call_on_loop([&] { listener_->confirm_pages(); });  // there is nothing to confirm
  EXPECT_EQ(http::status_code(http::get(port_on_loop(), "/healthz")), 503);
  publish_on_loop(good_pages());
  ASSERT_TRUE(wait_until([&] { return http::status_code(http::get(port_on_loop(), "/healthz")) == 200; }));
  ASSERT_TRUE(wait_until([&] { return http::status_code(http::get(port_on_loop(), "/healthz")) == 503; }));
  call_on_loop([&] { listener_->confirm_pages(); });
  ASSERT_TRUE(wait_until(
      [&] { return http::response_body(http::get(port_on_loop(), "/metrics")) == "gpulet_up 1\n"; }));
}

TEST_F(ListenerTest, KilledChildRestartsWithoutRefusedConnections) {
  begin();
  for (int round = 0; round < 3; ++round) {
    const pid_t first = serving_child();
    ASSERT_EQ(::kill(first, SIGKILL), 0);
    const auto answer =
        http::get(port_on_loop(), "/metrics");  // may still use a connection of the old child, which breaks
    if (!answer.empty()) {
      EXPECT_EQ(http::response_body(answer), "gpulet_up 1\n");
    }
    ASSERT_TRUE(wait_until([&] { return child_on_loop() != first && child_on_loop() != 0; }));
    // The last published pages are served again without a new publish.
    EXPECT_TRUE(wait_until(
        [&] { return http::response_body(http::get(port_on_loop(), "/metrics")) == "gpulet_up 1\n"; }));
  }
  EXPECT_EQ(listener_->restarts(), 3u);
}

TEST_F(ListenerTest, ConnectionWaitsForTheNextChild) {
  begin();
  const pid_t first = serving_child();
  const auto before = std::chrono::steady_clock::now();
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  ASSERT_TRUE(wait_until([&] { return child_on_loop() == 0 || child_on_loop() != first; }));
  EXPECT_EQ(http::status_code(http::get(port_on_loop(), "/readyz")), 200);
  EXPECT_LT(std::chrono::steady_clock::now() - before, 5s);
}

TEST_F(ListenerTest, StoppedChildNeverBlocksTheAgent) {
  begin();
  const pid_t first = serving_child();
  ASSERT_EQ(::kill(first, SIGSTOP), 0);
  Pages pages = good_pages();
  pages.metrics = std::string(1u << 20, 'x');
  const auto before = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) publish_on_loop(pages);
  pages.metrics = "newest 1\n";
  publish_on_loop(pages);
  EXPECT_LT(std::chrono::steady_clock::now() - before, 5s);
  ASSERT_EQ(::kill(first, SIGCONT), 0);
  EXPECT_TRUE(
      wait_until([&] { return http::response_body(http::get(port_on_loop(), "/metrics")) == "newest 1\n"; }));
  EXPECT_EQ(child_on_loop(), first);
}

TEST_F(ListenerTest, ChildIsUnprivileged) {
  begin();
  const pid_t pid = serving_child();
  EXPECT_EQ(status_line(pid, "Name"), kListenerName);
  EXPECT_EQ(status_line(pid, "Seccomp"), "2");
  EXPECT_EQ(status_line(pid, "NoNewPrivs"), "1");
  for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapAmb"})
    EXPECT_EQ(status_line(pid, set), "0000000000000000") << set;
  const std::string proc = "/proc/" + std::to_string(pid);
  if (::geteuid() != 0) {
    // It has the same user as the test, and still only root may inspect it.
    std::error_code error;
    std::filesystem::directory_iterator listing(proc + "/fd", error);
    EXPECT_EQ(error, std::errc::permission_denied);
    return;
  }
  const std::string user = std::to_string(kListenerUser);
  EXPECT_EQ(status_line(pid, "Uid"), user + "\t" + user + "\t" + user + "\t" + user);
  EXPECT_EQ(status_line(pid, "Gid"), user + "\t" + user + "\t" + user + "\t" + user);
  EXPECT_EQ(status_line(pid, "Groups"), " ");
  EXPECT_EQ(status_line(pid, "CapBnd"), "0000000000000000");
  std::multiset<std::string> open;
  for (const auto& entry : std::filesystem::directory_iterator(proc + "/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    open.insert(target.substr(0, target.find(':')));
  }
  EXPECT_EQ(open.count("/dev/null"), 3u);
  EXPECT_EQ(open.count("anon_inode"), 2u);  // epoll and eventfd
  EXPECT_LE(open.count("socket"), 3u);      // listening, pair, and possibly the last request's
  EXPECT_LE(open.size(), 8u);
  // Its own namespace with an empty root.
  EXPECT_TRUE(std::filesystem::is_empty(proc + "/root"));
  EXPECT_EQ(read_file(proc + "/environ"), "");
  const auto limits = read_file(proc + "/limits").value_or("");
  EXPECT_NE(limits.find("Max processes             0                    0"), std::string::npos) << limits;
}

TEST_F(ListenerTest, MemoryIsSmallAfterAThousandSlowConnections) {
  begin();
  const pid_t pid = serving_child();
  std::vector<std::unique_ptr<http::TestClient>> slow;
  for (int i = 0; i < 1000; ++i) {
    slow.push_back(std::make_unique<http::TestClient>(port_on_loop()));
    ASSERT_TRUE(slow.back()->connected()) << i;
    slow.back()->send_bytes("GET /metrics HTTP/1.1\r\nX-Slow: ");
  }
  EXPECT_EQ(http::status_code(http::get(port_on_loop(), "/healthz")), 200);
  EXPECT_EQ(child_on_loop(), pid);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const auto private_kb = std::stoul(status_line(pid, "RssAnon"));
  RecordProperty("listener_private_kb", std::to_string(private_kb));
  EXPECT_LE(private_kb, 3072u);
#endif
}

TEST_F(ListenerTest, ChildEndsWithTheAgent) {
  begin();
  const pid_t pid = serving_child();
  call_on_loop([this] { listener_.reset(); });
  EXPECT_EQ(::kill(pid, 0), -1);
}

TEST_F(ListenerTest, SubscriberCountIsReportedToTheAgent) {
  std::atomic<int> watched = -1;
  begin("127.0.0.1:0", {.on_subscribers = [&](unsigned count) { watched = static_cast<int>(count); }});
  const pid_t first = serving_child();
  std::vector<std::unique_ptr<http::TestClient>> clients;
  for (int i = 1; i <= 3; ++i) {
    clients.push_back(std::make_unique<http::TestClient>(port_on_loop()));
    ASSERT_TRUE(clients.back()->send_bytes("GET /api/events HTTP/1.1\r\n\r\n"));
    EXPECT_TRUE(wait_until([&] { return watched == i; }));
  }
  Pages pages = good_pages();
  for (int i = 0; i < 5; ++i) {
    pages.now = "{\"at\":" + std::to_string(i) + "}";
    publish_on_loop(pages);
    for (auto& client : clients) EXPECT_FALSE(client->read_until("data: " + pages.now + "\n\n").empty());
  }
  EXPECT_NE(http::response_body(http::get(port_on_loop(), "/api/history")).find("{\"at\":0},{\"at\":1}"),
            std::string::npos);
  clients.pop_back();
  EXPECT_TRUE(wait_until([&] { return watched == 2; }));
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  EXPECT_TRUE(wait_until([&] { return watched == 0; }));
  // The next child has the last sample, and reports subscribers that reconnect.
  http::TestClient again(port_on_loop());
  ASSERT_TRUE(again.send_bytes("GET /api/events HTTP/1.1\r\n\r\n"));
  EXPECT_FALSE(again.read_until("data: {\"at\":4}\n\n").empty());
  EXPECT_TRUE(wait_until([&] { return watched == 1; }));
}

TEST_F(ListenerTest, TlsAndPasswordsCanChangeWhileServing) {
  auto access_of = [&](const char* name) {
    const auto certificate = Certificate::make_certificate(name, nullptr, "127.0.0.1");
    http::AccessRules access;
    access.tls.emplace();
    access.tls->certificate = certificate.pem();
    access.tls->key = certificate.key_pem();
    access.tls->key_source = "/tls/tls.key";
    access.users = {{"alice", http::secret_hash()}};
    return access;
  };
  begin("127.0.0.1:0", {.access_rules = access_of("one")});
  publish_on_loop(good_pages());
  auto status = [&](const char* fields, std::string* name = nullptr) {
    http::TestClient client(port_on_loop());
    if (!client.encrypt()) return 0;
    if (name != nullptr) *name = client.server_name();
    client.send_bytes("GET /healthz HTTP/1.1\r\nConnection: close\r\n" + std::string(fields) + "\r\n");
    return http::status_code(client.read_response());
  };
  std::string name;
  const char* alice = "Authorization: Basic YWxpY2U6c2VjcmV0\r\n";
  ASSERT_TRUE(wait_until([&] { return status(alice, &name) == 200; }));
  EXPECT_EQ(name, "one");
  EXPECT_EQ(status(""), 401);
  EXPECT_EQ(http::status_code(http::get(port_on_loop(), "/healthz")), 400);
  const pid_t first = child_on_loop();

  call_on_loop([&] {
    http::AccessRules bad = access_of("bad");
    bad.tls->key = "junk";
    const auto refused = listener_->set_access_rules(bad);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().full_message(),
              "/tls/tls.key: holds no private key in PEM form without a password");
  });
  EXPECT_EQ(status(alice, &name), 200);
  EXPECT_EQ(name, "one");
  call_on_loop([&] { EXPECT_TRUE(listener_->set_access_rules(access_of("two"))); });
  EXPECT_TRUE(wait_until([&] { return status(alice, &name) == 200 && name == "two"; }));
  EXPECT_EQ(child_on_loop(), first);
  // A restarted child never accepts connections under other access rules.
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  ASSERT_TRUE(wait_until([&] { return child_on_loop() != first; }));
  EXPECT_EQ(http::status_code(http::get(port_on_loop(), "/healthz")), 400);
  EXPECT_TRUE(wait_until([&] { return status(alice, &name) == 200 && name == "two"; }));
}

// This program under another name, which makes main() act as a compromised child.
class HijackedChild {
 public:
  explicit HijackedChild(const std::string& how) : directory_(testing::TempDir() + "taken_over_" + how) {
    std::filesystem::create_directories(directory_);
    std::filesystem::copy_file("/proc/self/exe", program_path(how),
                               std::filesystem::copy_options::overwrite_existing);
  }
  ~HijackedChild() { std::filesystem::remove_all(directory_); }
  std::string program_path(const std::string& how) const { return directory_ + "/" + how; }

 private:
  std::string directory_;
};

TEST_F(ListenerTest, FloodingChildIsReadAtALimitedRate) {
  const HijackedChild flood("flood");
  std::atomic<int> heard = 0;
  begin("127.0.0.1:0",
        {.program = flood.program_path("flood"), .on_subscribers = [&](unsigned) { ++heard; }});
  ASSERT_TRUE(wait_until([&] { return heard >= 4; }));
  std::uint64_t turns = 0;
  const auto before = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - before < 1s) {
    call_on_loop([] {});  // the loop is not blocked
    ++turns;
  }
  EXPECT_GT(turns, 200u);
  EXPECT_LE(heard, 4 + 20);
}

TEST_F(ListenerTest, ChildWithInvalidOutputIsKilled) {
  const HijackedChild words("words");
  begin("127.0.0.1:0", {.program = words.program_path("words")});
  EXPECT_TRUE(wait_until([&] {
    std::uint64_t restarts = 0;
    call_on_loop([&] { restarts = listener_->restarts(); });
    return restarts >= 2;
  }));
}

TEST_F(ListenerTest, FailureToStartTheChildIsAnError) {
  call_on_loop([&] {
    const auto started = Listener::start_listener(loop_, "127.0.0.1:0", {.program = "/nonexistent"});
    ASSERT_FALSE(started);
    EXPECT_EQ(started.error().code(), Code::kNotFound);
  });
}

TEST_F(ListenerTest, CrashingChildIsRestartedWithBackoff) {
  begin("127.0.0.1:0", {.program = "/bin/false"});
  const auto before = std::chrono::steady_clock::now();
  EXPECT_TRUE(wait_until([&] {
    std::uint64_t restarts = 0;
    call_on_loop([&] { restarts = listener_->restarts(); });
    return restarts >= 3;
  }));
  EXPECT_GE(std::chrono::steady_clock::now() - before, 50ms + 100ms + 200ms);
  publish_on_loop(good_pages());  // harmless
}

TEST_F(ListenerTest, Addresses) {
  for (const char* good : {"127.0.0.1:0", "localhost:0", ":0", "0.0.0.0:0"}) {
    begin(good);
    publish_on_loop(good_pages());
    EXPECT_TRUE(wait_until([&] { return http::status_code(http::get(port_on_loop(), "/healthz")) == 200; }))
        << good;
  }
  call_on_loop([&] {
    for (const char* bad : {"", "8080", "localhost", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:http",
                            "::1:80", "example.com:80"}) {
      const auto refused = Listener::start_listener(loop_, bad);
      ASSERT_FALSE(refused) << bad;
      EXPECT_EQ(refused.error().code(), Code::kInvalidArgument) << bad;
    }
    const auto taken = Listener::start_listener(loop_, "127.0.0.1:" + std::to_string(port_on_loop()));
    ASSERT_FALSE(taken);
    EXPECT_NE(taken.error().full_message().find("in use"), std::string::npos) << taken.error().full_message();
  });
}

}  // namespace
}  // namespace gpulet::web

// A child that sends valid counts without end, or invalid text.
[[noreturn]] static void run_hijacked_child(const std::string& how) {
  if (how == "words") static_cast<void>(::send(4, "I am \x1b[2Jroot\xff", 13, MSG_NOSIGNAL));
  for (char byte = 0; how == "flood"; byte = static_cast<char>((byte + 1) % 17)) {
    const std::string flood(4096, byte);
    if (::send(4, flood.data(), flood.size(), MSG_NOSIGNAL) < 0) ::_exit(0);
  }
  for (;;) ::pause();
}

// The listener starts this program again as its child.
int main(int argc, char** argv) {
  if (argc > 0 && std::string_view(argv[0]) == gpulet::web::kListenerName) {
    const std::string how = std::filesystem::read_symlink("/proc/self/exe").filename();
    if (how == "flood" || how == "words") run_hijacked_child(how);
    gpulet::web::run_listener_child();
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
