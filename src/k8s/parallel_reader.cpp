#include "k8s/parallel_reader.h"

#include <deque>
#include <utility>
#include <vector>

#include "k8s/api_client.h"
#include "k8s/objects.h"

namespace gpulet::k8s {
namespace {

constexpr int kStatusOk = 200, kStatusForbidden = 403, kStatusNotFound = 404, kStatusTooMany = 429;
constexpr int kFirstServerError = 500;

using ReadDone = std::function<void(Result<std::optional<std::string>>)>;

Result<std::optional<std::string>> judge_response(const Result<http::ClientResponse>& response,
                                                  const std::string& permission) {
  if (!response) return fail(response.error());
  if (response->status == kStatusOk) return response->body;
  if (response->status == kStatusNotFound) return std::nullopt;
  Code code = Code::kInternal;
  if (response->status == kStatusForbidden) code = Code::kPermissionDenied;
  if (response->status == kStatusTooMany || response->status >= kFirstServerError) code = Code::kUnavailable;
  return fail(code, describe_response(*response),
              response->status == kStatusForbidden ? permission : std::string());
}

class PooledReader final : public ParallelReader {
 public:
  PooledReader(Loop& loop, const ClientConfig& access, ParallelTiming timing) : loop_(loop), timing_(timing) {
    for (std::size_t i = 0; i < timing.connections; ++i) {
      connections_.push_back(std::make_unique<Connection>(loop, access, timing.request_limit));
    }
  }

  void read_object(const std::string& path, const std::string& permission, ReadDone done) override {
    if (reads_.size() >= kMaxParallelReads) {
      loop_.post([done = std::move(done), alive = lifetime_.watch()] {
        if (alive) done(fail(Code::kUnavailable, "too many requests wait for the API server"));
      });
      return;
    }
    reads_.push_back({path, permission, std::move(done)});
    send_reads();
  }

 private:
  struct QueuedRead {
    std::string path, permission;
    ReadDone done;
  };
  struct Connection {
    Connection(Loop& loop, const ClientConfig& access, Duration limit) : client(loop, access, limit) {}
    ApiClient client;
    bool busy = false;
    Subscription idle;
  };

  void send_reads() {
    for (const auto& connection : connections_) {
      if (reads_.empty()) return;
      if (!connection->busy) send_read(*connection);
    }
  }

  void send_read(Connection& connection) {
    QueuedRead read = std::move(reads_.front());
    reads_.pop_front();
    connection.busy = true;
    connection.idle.reset();
    connection.client.send_request(
        {.method = "GET", .path = read.path},
        [this, &connection, permission = read.permission,
         done = std::move(read.done)](const Result<http::ClientResponse>& response) {
          connection.busy = false;
          connection.idle =
              loop_.after(timing_.idle_close, [&connection] { connection.client.close_connection(); });
          // In a turn of its own, and the callback last: it may destroy this object.
          loop_.post([this, done, result = judge_response(response, permission), alive = lifetime_.watch()] {
            if (!alive) return;
            send_reads();
            done(result);
          });
        });
  }

  Loop& loop_;
  const ParallelTiming timing_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::deque<QueuedRead> reads_;
  Lifetime lifetime_;
};

}  // namespace

std::unique_ptr<ParallelReader> ParallelReader::start_reader(Loop& loop, const ClientConfig& access,
                                                             ParallelTiming timing) {
  return std::make_unique<PooledReader>(loop, access, timing);
}

}  // namespace gpulet::k8s
