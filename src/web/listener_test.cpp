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
#include "web/sandbox.h"
#include "web/test_client.h"

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

Pages good_pages() { return {.healthy = true, .ready = true, .metrics = "gpulet_up 1\n"}; }

// The agent's side on a loop in a thread of its own; clients block in the test's.
class ListenerTest : public testing::Test {
 protected:
  void SetUp() override {
    thread_ = std::thread([this] { loop_.run(); });
  }
  void TearDown() override {
    call([this] { listener_.reset(); });
    loop_.stop();
    thread_.join();
  }
  void start(const std::string& address = "127.0.0.1:0", ListenerOptions options = {}) {
    call([&] {
      auto started = Listener::start(loop_, address, options);
      ASSERT_TRUE(started) << started.error().text();
      listener_ = std::move(*started);
      ASSERT_NE(listener_->port(), 0);
    });
  }
  // Runs `task` on the loop and waits for its end.
  void call(const std::function<void()>& task) {
    std::promise<void> done;
    loop_.post([&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }
  template <class Condition>
  bool eventually(Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + 30s;
    while (std::chrono::steady_clock::now() < deadline) {
      if (condition()) return true;
      ::poll(nullptr, 0, 2);
    }
    return false;
  }
  void publish(const Pages& pages) {
    call([&] { listener_->publish(pages); });
  }
  pid_t child() {
    pid_t id = 0;
    call([&] { id = listener_->child(); });
    return id;
  }
  std::uint16_t port() const { return listener_->port(); }
  // The child is in its sandbox once it answers.
  pid_t serving_child() {
    publish(good_pages());
    EXPECT_TRUE(eventually([&] { return status_of(get(port(), "/healthz")) == 200; }));
    return child();
  }

  EpollLoop loop_;
  std::unique_ptr<Listener> listener_;
  std::thread thread_;
};

TEST_F(ListenerTest, ServesWhatWasPublishedLast) {
  start();
  EXPECT_EQ(status_of(get(port(), "/healthz")), 503);  // nothing said yet
  publish(good_pages());
  ASSERT_TRUE(eventually([&] { return status_of(get(port(), "/healthz")) == 200; }));
  EXPECT_EQ(status_of(get(port(), "/readyz")), 200);
  EXPECT_EQ(body_of(get(port(), "/metrics")), "gpulet_up 1\n");
  EXPECT_NE(body_of(get(port(), "/")).find("/metrics"), std::string::npos);
  EXPECT_EQ(status_of(get(port(), "/other")), 404);

  publish({.healthy = false, .health_text = "the loop is stuck", .ready = false, .ready_text = "no kubelet"});
  ASSERT_TRUE(eventually([&] { return status_of(get(port(), "/healthz")) == 503; }));
  EXPECT_EQ(body_of(get(port(), "/healthz")), "the loop is stuck\n");
  EXPECT_EQ(body_of(get(port(), "/readyz")), "no kubelet\n");
  EXPECT_EQ(body_of(get(port(), "/metrics")), "");
}

TEST_F(ListenerTest, LargePagesArriveWholeAndTooLargeOnesDoNotHarm) {
  start();
  Pages pages = good_pages();
  pages.metrics = std::string(8u << 20, 'x') + "\n";
  for (int i = 0; i < 5; ++i) publish(pages);
  ASSERT_TRUE(eventually([&] { return status_of(get(port(), "/metrics")) == 200; }));
  EXPECT_EQ(body_of(get(port(), "/metrics")), pages.metrics);
  pages.metrics = std::string(kMaxPagesBytes + 1, 'x');
  publish(pages);
  publish(good_pages());
  EXPECT_TRUE(eventually([&] { return body_of(get(port(), "/metrics")) == "gpulet_up 1\n"; }));
  EXPECT_EQ(listener_->restarts(), 0u);
}

class LocalListenerTest : public ListenerTest {
 protected:
  void SetUp() override {
    ListenerTest::SetUp();
    std::string pattern = testing::TempDir() + "listener_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    auto made = LocalSocket::listen(path(), 0600);
    ASSERT_TRUE(made) << made.error().text();
    local_ = std::move(*made);
  }
  void TearDown() override {
    ListenerTest::TearDown();
    local_.reset();
    std::filesystem::remove_all(folder_);
  }
  std::string path() const { return folder_ + "/agent.sock"; }

  std::string folder_;
  std::shared_ptr<const LocalSocket> local_;
};

TEST_F(LocalListenerTest, ServesTheSameThereWithoutTlsAndPasswords) {
  const auto certificate = Certificate::make("one", nullptr, "127.0.0.1");
  Access access;
  access.tls.emplace();
  access.tls->certificate = certificate.pem();
  access.tls->key = certificate.key_pem();
  access.users = {{"alice", secret_hash()}};
  start("127.0.0.1:0", {.access = access, .local = local_});
  publish(good_pages());
  ASSERT_TRUE(eventually([&] { return status_of(get(path(), "/healthz")) == 200; }));
  EXPECT_EQ(body_of(get(path(), "/metrics")), "gpulet_up 1\n");
  EXPECT_EQ(status_of(get(port(), "/healthz")), 400);
  // The one that comes after it has the same.
  const pid_t first = child();
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  ASSERT_TRUE(eventually([&] { return child() != first && child() != 0; }));
  EXPECT_EQ(status_of(get(path(), "/healthz")), 200);
}

TEST_F(LocalListenerTest, ItMayBeAllThereIs) {
  call([&] {
    auto started = Listener::start(loop_, "", {.local = local_});
    ASSERT_TRUE(started) << started.error().text();
    listener_ = std::move(*started);
  });
  EXPECT_EQ(port(), 0);
  publish(good_pages());
  ASSERT_TRUE(eventually([&] { return status_of(get(path(), "/healthz")) == 200; }));
  const pid_t pid = child();
  EXPECT_EQ(status_line(pid, "Seccomp"), "2");
  EXPECT_EQ(status_line(pid, "CapEff"), "0000000000000000");
}

TEST_F(LocalListenerTest, TheNetworkCannotKeepItsUsersOut) {
  start("127.0.0.1:0", {.local = local_});
  publish(good_pages());
  ASSERT_TRUE(eventually([&] { return status_of(get(port(), "/healthz")) == 200; }));
  constexpr const char* kWatch = "GET /api/events HTTP/1.1\r\n\r\n";
  std::vector<std::unique_ptr<Client>> clients;
  const auto watch = [&](auto where) {
    clients.push_back(std::make_unique<Client>(where));
    EXPECT_TRUE(clients.back()->send(kWatch));
    return !clients.back()->until("retry: ").empty();
  };
  for (std::size_t i = 0; i < kMaxWatchers; ++i) ASSERT_TRUE(watch(port())) << i;
  EXPECT_EQ(body_of(get(port(), "/api/events")), "as many watch already as may: 16\n");
  for (std::size_t i = 0; i < kMaxLocalWatchers; ++i) ASSERT_TRUE(watch(path())) << i;
  EXPECT_EQ(body_of(get(path(), "/api/events")), "as many watch already as may: 20\n");
  for (int i = 0; i < 300; ++i) clients.push_back(std::make_unique<Client>(port()));
  EXPECT_EQ(status_of(get(path(), "/healthz")), 200);
  EXPECT_EQ(listener_->restarts(), 0u);
}

TEST_F(ListenerTest, AnAgentThatSaysNothingIsNotHealthy) {
  start("127.0.0.1:0", {.stale = 300ms});
  publish(good_pages());
  ASSERT_TRUE(eventually([&] { return status_of(get(port(), "/healthz")) == 200; }));
  ASSERT_TRUE(eventually([&] { return status_of(get(port(), "/healthz")) == 503; }));
  EXPECT_NE(body_of(get(port(), "/healthz")).find("no news from the agent for "), std::string::npos);
  publish(good_pages());
  EXPECT_TRUE(eventually([&] { return status_of(get(port(), "/healthz")) == 200; }));
}

TEST_F(ListenerTest, KilledItIsBackAndNoConnectionIsRefused) {
  start();
  for (int round = 0; round < 3; ++round) {
    const pid_t first = serving_child();
    ASSERT_EQ(::kill(first, SIGKILL), 0);
    const auto answer = get(port(), "/metrics");  // may be the last of the old one's connections, cut off
    if (!answer.empty()) {
      EXPECT_EQ(body_of(answer), "gpulet_up 1\n");
    }
    ASSERT_TRUE(eventually([&] { return child() != first && child() != 0; }));
    // What was published before is served again without a new publish.
    EXPECT_TRUE(eventually([&] { return body_of(get(port(), "/metrics")) == "gpulet_up 1\n"; }));
  }
  EXPECT_EQ(listener_->restarts(), 3u);
}

TEST_F(ListenerTest, AConnectionMadeWhileThereIsNoChildWaitsForTheNext) {
  start();
  const pid_t first = serving_child();
  const auto before = std::chrono::steady_clock::now();
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  ASSERT_TRUE(eventually([&] { return child() == 0 || child() != first; }));
  EXPECT_EQ(status_of(get(port(), "/readyz")), 200);
  EXPECT_LT(std::chrono::steady_clock::now() - before, 5s);
}

TEST_F(ListenerTest, AChildThatIsStoppedNeverBlocksTheAgent) {
  start();
  const pid_t first = serving_child();
  ASSERT_EQ(::kill(first, SIGSTOP), 0);
  Pages pages = good_pages();
  pages.metrics = std::string(1u << 20, 'x');
  const auto before = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) publish(pages);
  pages.metrics = "newest 1\n";
  publish(pages);
  EXPECT_LT(std::chrono::steady_clock::now() - before, 5s);
  ASSERT_EQ(::kill(first, SIGCONT), 0);
  EXPECT_TRUE(eventually([&] { return body_of(get(port(), "/metrics")) == "newest 1\n"; }));
  EXPECT_EQ(child(), first);
}

TEST_F(ListenerTest, TheChildHasNoRights) {
  start();
  const pid_t pid = serving_child();
  EXPECT_EQ(status_line(pid, "Name"), kListenerName);
  EXPECT_EQ(status_line(pid, "Seccomp"), "2");
  EXPECT_EQ(status_line(pid, "NoNewPrivs"), "1");
  for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapAmb"})
    EXPECT_EQ(status_line(pid, set), "0000000000000000") << set;
  const std::string proc = "/proc/" + std::to_string(pid);
  if (::geteuid() != 0) {
    // Its user is ours, and even so nobody but root may look into it.
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
  EXPECT_LE(open.count("socket"), 3u);      // listening, pair, and perhaps the last request's
  EXPECT_LE(open.size(), 8u);
  // A namespace of its own whose root is empty.
  EXPECT_TRUE(std::filesystem::is_empty(proc + "/root"));
  EXPECT_EQ(read_file(proc + "/environ"), "");
  const auto limits = read_file(proc + "/limits").value_or("");
  EXPECT_NE(limits.find("Max processes             0                    0"), std::string::npos) << limits;
}

TEST_F(ListenerTest, ItsMemoryIsSmallAlsoAfterAThousandSlowConnections) {
  start();
  const pid_t pid = serving_child();
  std::vector<std::unique_ptr<Client>> slow;
  for (int i = 0; i < 1000; ++i) {
    slow.push_back(std::make_unique<Client>(port()));
    ASSERT_TRUE(slow.back()->connected()) << i;
    slow.back()->send("GET /metrics HTTP/1.1\r\nX-Slow: ");
  }
  EXPECT_EQ(status_of(get(port(), "/healthz")), 200);
  EXPECT_EQ(child(), pid);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const auto private_kb = std::stoul(status_line(pid, "RssAnon"));
  RecordProperty("listener_private_kb", std::to_string(private_kb));
  EXPECT_LE(private_kb, 3072u);
#endif
}

TEST_F(ListenerTest, ItEndsWithTheAgent) {
  start();
  const pid_t pid = serving_child();
  call([this] { listener_.reset(); });
  EXPECT_EQ(::kill(pid, 0), -1);
}

TEST_F(ListenerTest, TheAgentHearsHowManyWatch) {
  std::atomic<int> watched = -1;
  start("127.0.0.1:0", {.watched = [&](unsigned count) { watched = static_cast<int>(count); }});
  const pid_t first = serving_child();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 1; i <= 3; ++i) {
    clients.push_back(std::make_unique<Client>(port()));
    ASSERT_TRUE(clients.back()->send("GET /api/events HTTP/1.1\r\n\r\n"));
    EXPECT_TRUE(eventually([&] { return watched == i; }));
  }
  Pages pages = good_pages();
  for (int i = 0; i < 5; ++i) {
    pages.now = "{\"at\":" + std::to_string(i) + "}";
    publish(pages);
    for (auto& client : clients) EXPECT_FALSE(client->until("data: " + pages.now + "\n\n").empty());
  }
  EXPECT_NE(body_of(get(port(), "/api/history")).find("{\"at\":0},{\"at\":1}"), std::string::npos);
  clients.pop_back();
  EXPECT_TRUE(eventually([&] { return watched == 2; }));
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  EXPECT_TRUE(eventually([&] { return watched == 0; }));
  // The next child has the last sample, and tells who comes back.
  Client again(port());
  ASSERT_TRUE(again.send("GET /api/events HTTP/1.1\r\n\r\n"));
  EXPECT_FALSE(again.until("data: {\"at\":4}\n\n").empty());
  EXPECT_TRUE(eventually([&] { return watched == 1; }));
}

TEST_F(ListenerTest, TlsAndPasswordsWorkWithoutRightsAndAreChangedWhileItServes) {
  auto access_of = [&](const char* name) {
    const auto certificate = Certificate::make(name, nullptr, "127.0.0.1");
    Access access;
    access.tls.emplace();
    access.tls->certificate = certificate.pem();
    access.tls->key = certificate.key_pem();
    access.tls->key_about = "/tls/tls.key";
    access.users = {{"alice", secret_hash()}};
    return access;
  };
  start("127.0.0.1:0", {.access = access_of("one")});
  publish(good_pages());
  auto status = [&](const char* fields, std::string* name = nullptr) {
    Client client(port());
    if (!client.encrypt()) return 0;
    if (name != nullptr) *name = client.server_name();
    client.send("GET /healthz HTTP/1.1\r\nConnection: close\r\n" + std::string(fields) + "\r\n");
    return status_of(client.answer());
  };
  std::string name;
  const char* alice = "Authorization: Basic YWxpY2U6c2VjcmV0\r\n";
  ASSERT_TRUE(eventually([&] { return status(alice, &name) == 200; }));
  EXPECT_EQ(name, "one");
  EXPECT_EQ(status(""), 401);
  EXPECT_EQ(status_of(get(port(), "/healthz")), 400);
  const pid_t first = child();

  call([&] {
    Access bad = access_of("bad");
    bad.tls->key = "junk";
    const auto refused = listener_->set_access(bad);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().text(), "/tls/tls.key: holds no private key in PEM form without a password");
  });
  EXPECT_EQ(status(alice, &name), 200);
  EXPECT_EQ(name, "one");
  call([&] { EXPECT_TRUE(listener_->set_access(access_of("two"))); });
  EXPECT_TRUE(eventually([&] { return status(alice, &name) == 200 && name == "two"; }));
  EXPECT_EQ(child(), first);
  // A child that is started anew lets nobody in by other terms, not for a moment.
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  ASSERT_TRUE(eventually([&] { return child() != first; }));
  EXPECT_EQ(status_of(get(port(), "/healthz")), 400);
  EXPECT_TRUE(eventually([&] { return status(alice, &name) == 200 && name == "two"; }));
}

// This program under another name, by which it is a child that was taken over (main below).
class TakenOver {
 public:
  explicit TakenOver(const std::string& how) : folder_(testing::TempDir() + "taken_over_" + how) {
    std::filesystem::create_directories(folder_);
    std::filesystem::copy_file("/proc/self/exe", program(how),
                               std::filesystem::copy_options::overwrite_existing);
  }
  ~TakenOver() { std::filesystem::remove_all(folder_); }
  std::string program(const std::string& how) const { return folder_ + "/" + how; }

 private:
  std::string folder_;
};

TEST_F(ListenerTest, AChildThatFloodsTheAgentIsHeardSeldom) {
  const TakenOver flood("flood");
  std::atomic<int> heard = 0;
  start("127.0.0.1:0", {.program = flood.program("flood"), .watched = [&](unsigned) { ++heard; }});
  ASSERT_TRUE(eventually([&] { return heard >= 4; }));
  std::uint64_t turns = 0;
  const auto before = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - before < 1s) {
    call([] {});  // the loop is free for others
    ++turns;
  }
  EXPECT_GT(turns, 200u);
  EXPECT_LE(heard, 4 + 20);
}

TEST_F(ListenerTest, AChildThatSaysAnythingElseIsEnded) {
  const TakenOver words("words");
  start("127.0.0.1:0", {.program = words.program("words")});
  EXPECT_TRUE(eventually([&] {
    std::uint64_t restarts = 0;
    call([&] { restarts = listener_->restarts(); });
    return restarts >= 2;
  }));
}

TEST_F(ListenerTest, AChildThatCannotBeStartedIsAnError) {
  call([&] {
    const auto started = Listener::start(loop_, "127.0.0.1:0", {.program = "/nonexistent"});
    ASSERT_FALSE(started);
    EXPECT_EQ(started.error().code(), Code::kNotFound);
  });
}

TEST_F(ListenerTest, AChildThatDiesAtOnceIsTriedAgainWithBackoff) {
  start("127.0.0.1:0", {.program = "/bin/false"});
  const auto before = std::chrono::steady_clock::now();
  EXPECT_TRUE(eventually([&] {
    std::uint64_t restarts = 0;
    call([&] { restarts = listener_->restarts(); });
    return restarts >= 3;
  }));
  EXPECT_GE(std::chrono::steady_clock::now() - before, 50ms + 100ms + 200ms);
  publish(good_pages());  // harmless
}

TEST_F(ListenerTest, Addresses) {
  for (const char* good : {"127.0.0.1:0", "localhost:0", ":0", "0.0.0.0:0"}) {
    start(good);
    publish(good_pages());
    EXPECT_TRUE(eventually([&] { return status_of(get(port(), "/healthz")) == 200; })) << good;
  }
  call([&] {
    for (const char* bad : {"", "8080", "localhost", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:http",
                            "::1:80", "example.com:80"}) {
      const auto refused = Listener::start(loop_, bad);
      ASSERT_FALSE(refused) << bad;
      EXPECT_EQ(refused.error().code(), Code::kInvalidArgument) << bad;
    }
    const auto taken = Listener::start(loop_, "127.0.0.1:" + std::to_string(port()));
    ASSERT_FALSE(taken);
    EXPECT_NE(taken.error().text().find("in use"), std::string::npos) << taken.error().text();
  });
}

}  // namespace
}  // namespace gpulet::web

namespace {

// Says all that it may, in turn and without an end; or what it may not, and stays.
[[noreturn]] void be_taken_over(const std::string& how) {
  if (how == "words") static_cast<void>(::send(4, "I am \x1b[2Jroot\xff", 13, MSG_NOSIGNAL));
  for (char byte = 0; how == "flood"; byte = static_cast<char>((byte + 1) % 17)) {
    const std::string flood(4096, byte);
    if (::send(4, flood.data(), flood.size(), MSG_NOSIGNAL) < 0) ::_exit(0);
  }
  for (;;) ::pause();
}

}  // namespace

// The listener starts this program anew as its child.
int main(int argc, char** argv) {
  if (argc > 0 && std::string_view(argv[0]) == gpulet::web::kListenerName) {
    const std::string how = std::filesystem::read_symlink("/proc/self/exe").filename();
    if (how == "flood" || how == "words") be_taken_over(how);
    gpulet::web::run_listener_child();
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
