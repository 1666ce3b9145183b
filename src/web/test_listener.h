// A listener whose agent runs on a loop of its own, with or without a Unix socket, for tests whose clients
// block.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/test_loop.h"
#include "http/test_client.h"
#include "web/listener.h"

namespace gpulet::web {

using namespace std::chrono_literals;

inline Pages good_pages() { return {.healthy = true, .ready = true, .metrics = "gpulet_up 1\n"}; }

// The agent's side runs on a loop in its own thread; clients block in the test's thread.
class ListenerTest : public testing::Test {
 protected:
  void SetUp() override {
    thread_ = std::thread([this] { loop_.run_loop(); });
  }
  void TearDown() override {
    call_on_loop([this] { listener_.reset(); });
    loop_.stop_loop();
    thread_.join();
  }
  void begin(const std::string& address = "127.0.0.1:0", ListenerOptions options = {}) {
    call_on_loop([&] {
      auto started = Listener::start_listener(loop_, address, options);
      ASSERT_TRUE(started) << started.error().full_message();
      listener_ = std::move(*started);
      ASSERT_NE(listener_->listening_port(), 0);
    });
  }
  // Runs `task` on the loop and waits until it is done.
  void call_on_loop(const std::function<void()>& task) { test::call_on_loop(loop_, task); }
  template <class Condition>
  bool wait_until(Condition condition) {
    return test::becomes_true(std::move(condition));
  }
  void publish_on_loop(const Pages& pages) {
    call_on_loop([&] { listener_->publish_pages(pages); });
  }
  pid_t child_on_loop() {
    pid_t id = 0;
    call_on_loop([&] { id = listener_->child_pid(); });
    return id;
  }
  std::uint16_t port_on_loop() const { return listener_->listening_port(); }
  // The child is in its sandbox once it responds.
  pid_t serving_child() {
    publish_on_loop(good_pages());
    EXPECT_TRUE(wait_until([&] { return http::status_code(http::get(port_on_loop(), "/healthz")) == 200; }));
    return child_on_loop();
  }

  EpollLoop loop_;
  std::unique_ptr<Listener> listener_;
  std::thread thread_;
};

class LocalListenerTest : public ListenerTest {
 protected:
  void SetUp() override {
    ListenerTest::SetUp();
    std::string pattern = testing::TempDir() + "listener_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    auto made = http::LocalSocket::listen_unix(socket_path(), 0600);
    ASSERT_TRUE(made) << made.error().full_message();
    local_ = std::move(*made);
  }
  void TearDown() override {
    ListenerTest::TearDown();
    local_.reset();
    std::filesystem::remove_all(directory_);
  }
  std::string socket_path() const { return directory_ + "/agent.sock"; }

  std::string directory_;
  std::shared_ptr<const http::LocalSocket> local_;
};

}  // namespace gpulet::web
