// A fast hash of small values in memory, for tables that are looked up thousands of times a decision.
// Internal to this room.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

namespace gpulet::scheduler {

// Folds 64 bits at a time: a multiplication by an odd constant, the high half mixed into the low. Not for
// hostile keys.
class Hash {
 public:
  void add(std::uint64_t value) {
    state_ = (state_ ^ value) * 0x9E3779B97F4A7C15u;
    state_ ^= state_ >> 32;
  }
  void add_shares(std::span<const std::uint16_t> shares) {
    while (shares.size() >= 4) {
      std::uint64_t word = 0;
      std::memcpy(&word, shares.data(), sizeof word);
      add(word);
      shares = shares.subspan(4);
    }
    for (const std::uint16_t share : shares) add(share);
  }
  std::size_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0x243F6A8885A308D3u;
};

}  // namespace gpulet::scheduler
