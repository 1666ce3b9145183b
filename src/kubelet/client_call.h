// One call to the kubelet over a connected socket. For this room's .cpp files.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/file.h"
#include "kubelet/rpc_core.h"

namespace gpulet::kubelet {

// Owns an open call; destroying it cancels the call. The callback comes once all the same, through the mailbox.
class [[nodiscard]] ClientCall {
 public:
  ClientCall() = default;
  explicit ClientCall(std::function<void()> cancel) : cancel_(std::move(cancel)) {}
  ClientCall(ClientCall&& other) noexcept : cancel_(std::exchange(other.cancel_, nullptr)) {}
  ClientCall& operator=(ClientCall&& other) noexcept {
    if (this != &other) {
      cancel();
      cancel_ = std::exchange(other.cancel_, nullptr);
    }
    return *this;
  }
  ~ClientCall() { cancel(); }
  void cancel() {
    if (auto cancel = std::exchange(cancel_, nullptr)) cancel();
  }
  bool open() const { return static_cast<bool>(cancel_); }

 private:
  std::function<void()> cancel_;
};

struct Registration {
  std::string endpoint;
  std::string resource;
};
// Register of the kubelet at the other end of `socket`.
ClientCall call_register(Rpc& rpc, std::shared_ptr<Mailbox> mailbox, FileDescriptor socket,
                         const Registration& registration, std::function<void(Status)> done);

}  // namespace gpulet::kubelet
