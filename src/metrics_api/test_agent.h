// For tests: an agent's listener with a page that the test chooses, on a loop in a thread of its own.
#pragma once

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "web/door.h"
#include "web/listening.h"
#include "web/server.h"

namespace gpulet::metrics_api {

class TestAgent final : public web::Service {
 public:
  // `address`: "127.0.0.1:0".
  explicit TestAgent(const std::string& address, web::Access access = {}) {
    const auto set = door_.set(std::move(access));
    EXPECT_TRUE(set) << set.error().text();
    auto listening = web::listen_on(address);
    EXPECT_TRUE(listening) << listening.error().text();
    listening_ = std::move(*listening);
    server_ = std::make_unique<web::Server>(loop_, listening_.get(), *this, door_);
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~TestAgent() override {
    loop_.stop();
    thread_.join();
  }
  std::uint16_t port() const { return web::port_of(listening_.get()); }

  void say(int status, std::string page) {
    const std::lock_guard lock(mutex_);
    status_ = status;
    page_ = std::make_shared<const std::string>(std::move(page));
  }
  // From now on nothing is answered.
  void hang() {
    const std::lock_guard lock(mutex_);
    page_.reset();
  }
  int asked() {
    const std::lock_guard lock(mutex_);
    return asked_;
  }

  void serve(const web::Request& request, Time, const web::Reply& reply) override {
    const std::lock_guard lock(mutex_);
    ++asked_;
    EXPECT_EQ(request.target, "/metrics");
    if (page_) reply({.status = status_, .body = page_});
  }

 private:
  EpollLoop loop_;
  web::Door door_;
  FileDescriptor listening_;
  std::unique_ptr<web::Server> server_;
  std::mutex mutex_;
  int status_ = 200, asked_ = 0;
  web::SharedText page_ = std::make_shared<const std::string>();
  std::thread thread_;
};

}  // namespace gpulet::metrics_api
