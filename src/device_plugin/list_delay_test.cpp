#include "device_plugin/list_delay.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

namespace gpulet::device_plugin {
namespace {

using namespace std::chrono_literals;

class CountedPodResources final : public PodResources {
 public:
  void list_containers(std::function<void(Result<std::vector<ContainerDevices>>)> done) override {
    ++lists;
    held.push_back(std::move(done));
  }
  void list_allocatable(std::function<void(Result<DevicesByResource>)> done) override {
    done(DevicesByResource());
  }
  int lists = 0;
  std::vector<std::function<void(Result<std::vector<ContainerDevices>>)>> held;
};

class ListDelayTest : public testing::Test {
 protected:
  // The Lists that have reached the kubelet `times` after the call.
  std::vector<int> lists_after(ListDelay delay, const std::vector<Duration>& times) {
    open_client(delay);
    list();
    std::vector<int> lists;
    for (Duration passed{}; const auto time : times) {
      loop_.advance(time - passed);
      passed = time;
      lists.push_back(kubelet_.lists);
    }
    return lists;
  }
  void open_client(ListDelay delay) {
    client_ = delay_lists(loop_, kubelet_, delay, [this] { return calls_; });
  }
  void list() {
    client_->list_containers([this](const auto&) { ++answers_; });
  }
  void answer_call() {
    --calls_.open;
    calls_.answered = loop_.now();
  }

  ManualLoop loop_;
  CountedPodResources kubelet_;
  AllocationCalls calls_;
  std::unique_ptr<PodResources> client_;
  int answers_ = 0;
};

using Lists = std::vector<int>;

TEST_F(ListDelayTest, NothingWaitsWithoutACall) {
  EXPECT_EQ(lists_after(ListDelay::kUntilRecorded, {0ms}), Lists{1});
  calls_.answered = loop_.now();
  loop_.advance(kListAfterAllocation);
  list();
  EXPECT_EQ(kubelet_.lists, 2);
  EXPECT_EQ(loop_.pending_timers(), 0u);
}

TEST_F(ListDelayTest, WaitsUntilTheLastAnswerIsRecorded) {
  calls_.answered = loop_.now();
  loop_.advance(4ms);
  EXPECT_EQ(lists_after(ListDelay::kUntilRecorded, {0ms, 5ms, 6ms}), (Lists{0, 0, 1}));
}

TEST_F(ListDelayTest, WaitsWhileACallIsOpen) {
  calls_.open = 2;
  EXPECT_EQ(lists_after(ListDelay::kUntilRecorded, {0ms, 25ms}), (Lists{0, 0}));
  answer_call();
  loop_.advance(40ms);
  EXPECT_EQ(kubelet_.lists, 0) << "one is open yet";
  answer_call();
  const auto answered = loop_.now();
  while (kubelet_.lists == 0 && loop_.now() < answered + 1s) loop_.advance(1ms);
  EXPECT_EQ(loop_.now() - answered, kListAfterAllocation);
}

TEST_F(ListDelayTest, AContainerThatStartsWaitsForOpenCallsAlone) {
  calls_.answered = loop_.now();
  EXPECT_EQ(lists_after(ListDelay::kWhileCallsOpen, {0ms}), Lists{1});
  calls_.open = 1;
  EXPECT_EQ(lists_after(ListDelay::kWhileCallsOpen, {0ms, 50ms}), (Lists{1, 1}));
  answer_call();
  loop_.advance(kListAfterAllocation);
  EXPECT_EQ(kubelet_.lists, 2);
}

TEST_F(ListDelayTest, GoesAnywayAfterAWhile) {
  for (const auto delay : {ListDelay::kUntilRecorded, ListDelay::kWhileCallsOpen}) {
    kubelet_.lists = 0;
    calls_.open = 1;
    EXPECT_EQ(lists_after(delay, {kMaxListDelay - 1ms, kMaxListDelay}), (Lists{0, 1}));
  }
  // Calls without a gap of 10 ms between them.
  calls_.open = 0;
  kubelet_.lists = 0;
  open_client(ListDelay::kUntilRecorded);
  calls_.answered = loop_.now();
  list();
  for (Duration passed{}; passed < kMaxListDelay; passed += 5ms) {
    EXPECT_EQ(kubelet_.lists, 0);
    calls_.answered = loop_.now();
    loop_.advance(5ms);
  }
  EXPECT_EQ(kubelet_.lists, 1);
}

TEST_F(ListDelayTest, EachListIsAnsweredOnceUnlessItsClientIsGone) {
  calls_.open = 1;
  open_client(ListDelay::kUntilRecorded);
  list();
  list();
  calls_.open = 0;
  loop_.advance(kListAfterAllocation);
  ASSERT_EQ(kubelet_.held.size(), 2u);
  kubelet_.held[0](std::vector<ContainerDevices>());
  EXPECT_EQ(answers_, 1);
  calls_.open = 1;
  list();
  client_.reset();
  kubelet_.held[1](std::vector<ContainerDevices>());
  loop_.advance(kMaxListDelay);
  EXPECT_EQ(answers_, 1);
  EXPECT_EQ(kubelet_.lists, 2);
}

TEST_F(ListDelayTest, WhatIsAllocatableIsAskedForAtOnce) {
  calls_.open = 1;
  open_client(ListDelay::kUntilRecorded);
  bool is_answered = false;
  client_->list_allocatable([&](const auto&) { is_answered = true; });
  EXPECT_TRUE(is_answered);
}

}  // namespace
}  // namespace gpulet::device_plugin
