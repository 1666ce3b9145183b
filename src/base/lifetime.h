// Whether an object is still there, for callbacks that may come after it has gone:
//
//   loop_.post([this, alive = lifetime_.watch()] {
//     if (alive) finish();
//   });
//
// The last member of its class where callbacks use the other members. Copied and dropped by any thread, asked
// by the one that destroys the object.
#pragma once

#include <memory>

namespace gpulet {

class Lifetime {
 public:
  class Watch {
   public:
    explicit operator bool() const { return !token_.expired(); }

   private:
    friend class Lifetime;
    explicit Watch(std::weak_ptr<const void> token) : token_(std::move(token)) {}
    std::weak_ptr<const void> token_;
  };

  Lifetime() = default;
  // A copy would outlive its object.
  Lifetime(const Lifetime&) = delete;
  Lifetime& operator=(const Lifetime&) = delete;

  Watch watch() const { return Watch(token_); }

 private:
  std::shared_ptr<const char> token_ = std::make_shared<const char>('\0');
};

}  // namespace gpulet
