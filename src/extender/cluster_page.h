// The cluster page of `gpulet scheduler`: its files, which are src/web/page/ compiled into this program, and
// its document (cluster_document.h), for users whom the API server knows and permits.
//
//   /  /cluster    the page, with its files; for everybody
//   /healthz       200
//   /api/cluster   the document; ETag and If-None-Match: 304 where it is the one that the client has
//   /api/explain?namespace=&pod=   text, as `gpulet explain`
//
// Both APIs need a bearer token, and its user the right to get the non-resource URL /cluster, as the custom
// metrics API asks the API server (metrics_api/authentication.h): 401 and 403 without.
//
// A request makes a new document when the last one is older than kDocumentLifetime, one piece per turn of the
// loop, so that requests of kube-scheduler wait for one piece at most. Without readers it costs nothing.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"
#include "extender/cluster_document.h"
#include "http/message.h"
#include "metrics_api/authentication.h"

namespace gpulet::extender {

inline constexpr Duration kDocumentLifetime = std::chrono::seconds(5);
// Requests that wait for a document in the making; further ones get 503.
inline constexpr std::size_t kMaxWaitingReaders = 64;
// What a user needs the right to get.
inline constexpr const char* kPagePath = "/cluster";

struct ClusterPageDependencies {
  Loop& loop;
  DocumentInputs document;
  // Why there is no document yet, one line each; empty once there can be one.
  std::function<std::vector<std::string>()> problems;
  metrics_api::AccessReviewer* reviewer = nullptr;  // null: everybody may read
  http::RequestHandler& extender;                   // answers /explain
};

// Loop thread only.
class ClusterPage final : public http::RequestHandler {
 public:
  explicit ClusterPage(ClusterPageDependencies dependencies) : dependencies_(std::move(dependencies)) {}

  void handle_request(const http::Request& request, Time now, const http::ResponseCallback& reply) override;

  std::uint64_t document_count() const { return documents_; }  // that have been made

 private:
  struct Reader {
    bool gzip = false;
    std::string known_etag;
    http::ResponseCallback reply;
  };
  struct Making {
    explicit Making(DocumentInputs inputs) : document(std::move(inputs)) {}
    void append_piece(const std::string& piece);

    ClusterDocument document;
    http::GzipWriter compressor;
    std::string text;
    std::uint64_t hash = 0;
  };
  void authorize_reader(const http::Request& request, const http::ResponseCallback& denied,
                        std::function<void()> permitted);
  void send_document(Reader reader);
  void make_next_piece();
  void answer_reader(const Reader& reader) const;

  ClusterPageDependencies dependencies_;
  http::SharedText text_, gzipped_;  // null: none yet
  std::string etag_;
  Time made_at_{};
  std::uint64_t documents_ = 0;

  std::optional<Making> making_;
  std::vector<Reader> readers_;  // of the document in the making
  Subscription next_piece_;
};

}  // namespace gpulet::extender
