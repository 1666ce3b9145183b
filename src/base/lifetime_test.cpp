#include "base/lifetime.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>

namespace gpulet {
namespace {

TEST(Lifetime, WatchIsTrueUntilTheObjectIsDestroyed) {
  std::optional<Lifetime> lifetime(std::in_place);
  const auto alive = lifetime->watch();
  const auto copy = alive;
  EXPECT_TRUE(alive);
  lifetime.reset();
  EXPECT_FALSE(alive);
  EXPECT_FALSE(copy);
}

TEST(Lifetime, CallbackOfADestroyedObjectDoesNothing) {
  struct Owner {
    int calls = 0;
    std::function<void()> make_callback() {
      return [this, alive = lifetime.watch()] {
        if (alive) ++calls;
      };
    }
    Lifetime lifetime;
  };
  auto owner = std::make_optional<Owner>();
  const auto callback = owner->make_callback();
  callback();
  EXPECT_EQ(owner->calls, 1);
  owner.reset();
  callback();
}

TEST(Lifetime, WatchesAreIndependentPerObject) {
  std::optional<Lifetime> first(std::in_place);
  const Lifetime second;
  const auto alive = second.watch();
  first.reset();
  EXPECT_TRUE(alive);
}

}  // namespace
}  // namespace gpulet
