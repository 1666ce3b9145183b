#include "scheduler/model/controller.h"

#include <gtest/gtest.h>

namespace gpulet::scheduler {
namespace {

TEST(Controller, IsToldByThePodsName) {
  const std::pair<const char*, const char*> kCases[] = {
      {"team/web-6d4cf56db6-x2x9k", "team/web"},        // Deployment
      {"team/web-7-6d4cf56db6-x2x9k", "team/web-7"},    // whose name has a number
      {"team/web-x2x9k", "team/web"},                   // ReplicaSet, DaemonSet, Job
      {"team/web-0", "team/web"},                       // StatefulSet
      {"team/web-12", "team/web"},                      //
      {"team/train-3-x2x9k", "team/train"},             // indexed Job
      {"team/nightly-29394720-x2x9k", "team/nightly"},  // CronJob
      {"team/notebook", "team/notebook"},               // nobody's
      {"team/my-notebook", "team/my-notebook"},         // a word is no suffix: it has vowels
      {"team/x2x9k", "team/x2x9k"},                     //
      {"team/-0", "team/-0"},                           //
      {"web-6d4cf56db6-x2x9k", "web"},                  // without a namespace
      {"", ""},
      {"team/", "team/"},
  };
  for (const auto& [pod, controller] : kCases) EXPECT_EQ(controller_of_pod(pod), controller) << pod;
}

TEST(Controller, TheLongerKnownLoadIsBetterThenTheLater) {
  const ControllerLoad day{.controller = "a/b", .curve = {}, .hours = 24, .last_hour = 500};
  const ControllerLoad week{.controller = "a/b", .curve = {}, .hours = 168, .last_hour = 400};
  const ControllerLoad later{.controller = "a/b", .curve = {}, .hours = 24, .last_hour = 501};
  EXPECT_TRUE(week.is_better_than(day));
  EXPECT_FALSE(day.is_better_than(week));
  EXPECT_TRUE(later.is_better_than(day));
  EXPECT_FALSE(day.is_better_than(day));
}

}  // namespace
}  // namespace gpulet::scheduler
