// A thousand nodes that serve claims, each under a storm of what may happen to it, by a seed: claims of whole
// GPUs, of MIG devices that are there and that are made, of shares, of an admin; prepared and unprepared
// again and in any order; faults, moves between the device plugin and claims, an API server that is away,
// deleted slices, MIG instances and processes of others, damaged records, files that cannot be written, and
// `kill` between any two steps. After every step the invariants of tests/seeded/claim_world.cpp hold.
//
// Some seeds by default; `make claim-storm` runs 1,000. A failing seed is named; run it alone with SEED=N in
// the environment.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

#include "base/log.h"
#include "tests/seeded/claim_world.h"

namespace gpulet::seeded {
namespace {

constexpr std::uint64_t kClaimSeeds = 5;
constexpr int kClaimSteps = 80;

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr && *text != '\0' ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST(ClaimStorm, HoldsItsInvariants) {
  log::configure_logging(log::Level::kError, log::Format::kText);
  const bool is_one = std::getenv("SEED") != nullptr && std::getenv("SEEDS") == nullptr;
  const std::uint64_t first = number_of("SEED", 0),
                      end = first + number_of("SEEDS", is_one ? 1 : kClaimSeeds);
  mig::SimHardware gpu("hgx-h100");
  std::map<std::string, std::size_t> counts;
  for (std::uint64_t seed = first; seed < end; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ClaimWorld world(seed, gpu);
    for (int step = 0; step < kClaimSteps && !HasFailure(); ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      world.random_step();
      world.expect_invariants();
    }
    ASSERT_FALSE(HasFailure());
    world.end_everything();
    world.expect_nothing_left();
    for (const auto& [what, count] : world.counts) counts[what] += count;
    ASSERT_FALSE(HasFailure());
  }
  std::cout << end - first << " seeds:";
  for (const auto& [what, count] : counts) std::cout << " " << count << " " << what << ",";
  std::cout << " " << (end - first) * kClaimSteps << " steps\n";
}

}  // namespace
}  // namespace gpulet::seeded
