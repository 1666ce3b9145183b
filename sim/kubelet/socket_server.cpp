#include "sim/kubelet/socket_server.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "base/unix_socket.h"

namespace gpulet::sim {

struct SocketServer::Impl {
  std::string path;
  FileDescriptor listener, stop;
  std::unique_ptr<grpc::Server> server;
  std::thread thread;

  bool stopped_within(std::chrono::milliseconds timeout) const {
    pollfd waits{stop.get(), POLLIN, 0};
    return ::poll(&waits, 1, static_cast<int>(timeout.count())) > 0;
  }

  void run(std::chrono::milliseconds listen_delay) {
    if (stopped_within(listen_delay) || !start_listening(listener, path)) return;
    for (;;) {
      pollfd waits[] = {{stop.get(), POLLIN, 0}, {listener.get(), POLLIN, 0}};
      if (::poll(waits, 2, -1) < 0 && errno != EINTR) return;
      if ((waits[0].revents & POLLIN) != 0) return;
      FileDescriptor socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.valid()) grpc::AddInsecureChannelFromFd(server.get(), socket.release());
    }
  }
};

SocketServer::SocketServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<SocketServer>> SocketServer::start(const std::string& path, grpc::Service& service,
                                                          std::chrono::milliseconds listen_delay) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  impl->stop = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  grpc::ServerBuilder builder;
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  builder.RegisterService(&service);
  impl->server = builder.BuildAndStart();
  GPULET_TRY_ASSIGN(impl->listener, bind_unix(path));
  // Nobody can have missed the time between the two: a delay of zero listens here and not on the thread.
  if (listen_delay.count() == 0) GPULET_TRY(start_listening(impl->listener, path));
  impl->thread = std::thread([raw = impl.get(), listen_delay] { raw->run(listen_delay); });
  return std::unique_ptr<SocketServer>(new SocketServer(std::move(impl)));
}

SocketServer::~SocketServer() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto rung = ::write(impl_->stop.get(), &one, sizeof one);
  impl_->thread.join();
  impl_->listener.reset();
  impl_->server->Shutdown(std::chrono::system_clock::now());
}

}  // namespace gpulet::sim
