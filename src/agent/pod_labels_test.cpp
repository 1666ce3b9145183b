#include "agent/pod_labels.h"

#include <gtest/gtest.h>

#include "agent/test_faults.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;

class PodLabelsTest : public testing::Test {
 protected:
  void SetUp() override {
    reader_.add("train");
    reader_.pods["default/train"].labels = {{"app", "bert"}};
    reader_.add("bare");
  }
  void see(const std::vector<kubelet::ContainerDevices>& containers) {
    labels_.on_containers(containers);
    loop_.run_ready();
  }
  PodLabels::Labels last() const { return told_.empty() ? PodLabels::Labels() : told_.back(); }

  ManualLoop loop_;
  FakeReader reader_{loop_};
  std::vector<PodLabels::Labels> told_;
  PodLabels labels_{loop_, reader_, [this](const auto& labels) { told_.push_back(labels); }};
  const std::vector<kubelet::ContainerDevices> both_ = {container("train", {"GPU-0"}),
                                                        container("bare", {"GPU-1"})};
};

TEST_F(PodLabelsTest, EachPodIsAskedForOnce) {
  for (int i = 0; i < 3; ++i) see(both_);
  EXPECT_EQ(reader_.asked, (std::vector<std::string>{"default/bare", "default/train"}));
  EXPECT_EQ(told_.size(), 1u);
  EXPECT_EQ(last(), (PodLabels::Labels{{{"default", "train"}, {{"app", "bert"}}}}));
}

TEST_F(PodLabelsTest, AgainWhenWhatIsKnownIsOld) {
  see(both_);
  reader_.pods["default/train"].labels["app"] = "gpt";
  loop_.advance(kPodLabelsFresh);
  see(both_);
  EXPECT_EQ(reader_.asked.size(), 4u);
  EXPECT_EQ(last().at({"default", "train"}).at("app"), "gpt");
}

TEST_F(PodLabelsTest, APodThatIsGoneIsForgotten) {
  see(both_);
  see({});
  EXPECT_TRUE(last().empty());
  see(both_);
  EXPECT_EQ(reader_.asked.size(), 4u) << "it may be another by that name";
}

TEST_F(PodLabelsTest, WhatCouldNotBeHadIsAskedForAgain) {
  reader_.trouble = Error(Code::kUnavailable, "the API server is away");
  see(both_);
  EXPECT_TRUE(told_.empty());
  reader_.trouble.reset();
  see(both_);
  EXPECT_EQ(last().size(), 1u);
}

TEST_F(PodLabelsTest, AnAnswerAboutAPodThatHasGoneIsPassedOver) {
  labels_.on_containers(both_);
  labels_.on_containers({});
  loop_.run_ready();
  EXPECT_TRUE(told_.empty());
}

}  // namespace
}  // namespace gpulet::agent
