// For tests: an agent's listener with a given page, on a loop in its own thread.
#pragma once

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "http/access_gate.h"
#include "http/server.h"
#include "http/socket.h"

namespace gpulet::metrics_api {

class TestAgent final : public http::RequestHandler {
 public:
  // `address`: "127.0.0.1:0".
  explicit TestAgent(const std::string& address, http::AccessRules access = {}) {
    const auto set = access_gate_.set_rules(std::move(access));
    EXPECT_TRUE(set) << set.error().full_message();
    auto listening = http::listen_tcp(address);
    EXPECT_TRUE(listening) << listening.error().full_message();
    listener_ = std::move(*listening);
    server_ = std::make_unique<http::Server>(loop_, listener_.get(), *this, access_gate_);
    thread_ = std::thread([this] { loop_.run_loop(); });
  }
  ~TestAgent() override {
    loop_.stop_loop();
    thread_.join();
  }
  std::uint16_t agent_port() const { return http::socket_port(listener_.get()); }

  void set_page(int status, std::string page) {
    const std::lock_guard lock(mutex_);
    status_ = status;
    page_ = std::make_shared<const std::string>(std::move(page));
  }
  // From now on requests get no response.
  void stop_answering() {
    const std::lock_guard lock(mutex_);
    page_.reset();
  }
  int request_count() {
    const std::lock_guard lock(mutex_);
    return request_count_;
  }

  void handle_request(const http::Request& request, Time, const http::ResponseCallback& reply) override {
    const std::lock_guard lock(mutex_);
    ++request_count_;
    EXPECT_EQ(request.target, "/metrics");
    if (page_) reply({.status = status_, .body = page_});
  }

 private:
  EpollLoop loop_;
  http::AccessGate access_gate_;
  FileDescriptor listener_;
  std::unique_ptr<http::Server> server_;
  std::mutex mutex_;
  int status_ = 200, request_count_ = 0;
  http::SharedText page_ = std::make_shared<const std::string>();
  std::thread thread_;
};

}  // namespace gpulet::metrics_api
