#include "agent/node/component.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gpulet::agent {
namespace {

using Log = std::vector<std::string>;

class LoggedComponent final : public Component {
 public:
  LoggedComponent(std::string name, Log& log, bool stops_later = false)
      : name_(std::move(name)), log_(log), stops_later_(stops_later) {}
  ~LoggedComponent() override { log_.push_back("~" + name_); }

  void start() override { log_.push_back("start " + name_); }
  void apply_config() override { log_.push_back("config " + name_); }
  void stop(std::function<void()> done) override {
    log_.push_back("stop " + name_);
    if (!stops_later_) return done();
    stopped = std::move(done);
  }

  std::function<void()> stopped;

 private:
  const std::string name_;
  Log& log_;
  const bool stops_later_;
};

TEST(ComponentList, StartsInOrderAndDestroysInReverseOrder) {
  Log log;
  {
    ComponentList list;
    list.emplace<LoggedComponent>("driver", log);
    list.add(std::make_unique<LoggedComponent>("labels", log));
    list.start_all();
  }
  EXPECT_EQ(log, Log({"start driver", "start labels", "~labels", "~driver"}));
}

TEST(ComponentList, NotifiesConsumersBeforeTheirSources) {
  Log log;
  ComponentList list;
  list.emplace<LoggedComponent>("driver", log);
  list.emplace<LoggedComponent>("labels", log);
  list.for_each_reversed([](Component& component) { component.apply_config(); });
  EXPECT_EQ(log, Log({"config labels", "config driver"}));
}

TEST(ComponentList, StopsOneAfterTheOther) {
  Log log;
  ComponentList list;
  list.emplace<LoggedComponent>("driver", log);
  auto& daemons = list.emplace<LoggedComponent>("daemons", log, true);
  list.emplace<LoggedComponent>("labels", log);
  list.stop_all([&] { log.push_back("done"); });
  EXPECT_EQ(log, Log({"stop labels", "stop daemons"}));
  daemons.stopped();
  EXPECT_EQ(log, Log({"stop labels", "stop daemons", "stop driver", "done"}));
}

TEST(ComponentList, EmptyListStopsImmediately) {
  ComponentList list;
  bool done = false;
  list.stop_all([&] { done = true; });
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace gpulet::agent
