// Strong types for names and quantities, so that a UUID cannot be passed as a resource name; a deleter for C
// types.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace gpulet {

// A string of one kind of name. Ordered and hashable; `str()` is its text.
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

// "GPU-…" or "MIG-…" from the driver: identifies a physical GPU or a MIG device for its lifetime.
using DeviceUuid = StrongString<struct DeviceUuidTag>;
// A unit of allocation for the kubelet: a DeviceUuid, or "<uuid>::<n>" for one share of it.
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

namespace gpulet {

struct PodName {
  std::string name_space, name;
  friend auto operator<=>(const PodName&, const PodName&) = default;
};

// Of "namespace/name".
inline PodName parse_pod_name(const std::string& key) {
  const auto slash = key.find('/');
  return {key.substr(0, slash), key.substr(slash + 1)};
}

// One Pod. The uid differs from that of another Pod of the same name.
struct PodRef {
  std::string name_space, name, uid;
  friend auto operator<=>(const PodRef&, const PodRef&) = default;
};

// What one container holds, as the kubelet's PodResources API reports it.
struct ContainerDevices {
  PodName pod;
  std::string container;
  std::map<ResourceName, std::vector<DeviceId>> devices;
  friend bool operator==(const ContainerDevices&, const ContainerDevices&) = default;
};

// Deleter of a unique_ptr for a C type, by the function that frees it:
//   std::unique_ptr<BIO, Deleter<::BIO_free>>

template <auto Free>
struct Deleter {
  template <class Object>
  void operator()(Object* object) const {
    Free(object);
  }
};

}  // namespace gpulet
