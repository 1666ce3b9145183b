// Strong types for names and quantities, so that a UUID cannot be passed where a resource name is wanted.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <utility>

namespace gpulet {

// A string that is one kind of name. Ordered and hashable; `str()` gives the text for a wire or a log.
template <class Tag>
class StrongString {
 public:
  StrongString() = default;
  explicit StrongString(std::string value) : value_(std::move(value)) {}
  const std::string& str() const { return value_; }
  bool empty() const { return value_.empty(); }
  friend auto operator<=>(const StrongString&, const StrongString&) = default;
  friend bool operator==(const StrongString&, const StrongString&) = default;
  friend std::ostream& operator<<(std::ostream& out, const StrongString& s) { return out << s.value_; }

 private:
  std::string value_;
};

// "GPU-…" or "MIG-…", as the driver says it: one physical GPU or one MIG device, for life.
using DeviceUuid = StrongString<struct DeviceUuidTag>;
// What the kubelet allocates: a DeviceUuid, or "<uuid>::<n>" for one share of it.
using DeviceId = StrongString<struct DeviceIdTag>;
// "nvidia.com/gpu": prefix, slash, name.
using ResourceName = StrongString<struct ResourceNameTag>;

struct Bytes {
  std::uint64_t value = 0;
  constexpr std::uint64_t mebibytes() const { return value >> 20; }
  friend auto operator<=>(const Bytes&, const Bytes&) = default;
};
constexpr Bytes mebibytes(std::uint64_t count) { return Bytes{count << 20}; }

struct MilliWatts {
  std::uint32_t value = 0;
  friend auto operator<=>(const MilliWatts&, const MilliWatts&) = default;
};

}  // namespace gpulet

template <class Tag>
struct std::hash<gpulet::StrongString<Tag>> {
  std::size_t operator()(const gpulet::StrongString<Tag>& s) const noexcept {
    return std::hash<std::string>{}(s.str());
  }
};
