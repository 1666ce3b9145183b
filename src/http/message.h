// Requests and responses of a server: texts with a compressed form, content negotiation, subscribers of
// event streams, and the interface of whoever handles requests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/loop.h"

namespace gpulet::http {

using SharedText = std::shared_ptr<const std::string>;

// Compresses to RFC 1952 with zlib; empty when out of memory.
std::string gzip(std::string_view text);
// The inverse; empty for incomplete or invalid data, and for a text larger than `limit`.
std::string gunzip(std::string_view packed, std::size_t limit);

// Compresses a text that comes in pieces, each while it is made: what one piece costs grows with its size
// alone. At zlib's fastest level, some 100 MB/s. One thread.
class GzipWriter {
 public:
  GzipWriter();
  ~GzipWriter();
  GzipWriter(GzipWriter&&) noexcept;
  GzipWriter& operator=(GzipWriter&&) noexcept;

  void append_piece(std::string_view text);
  // All pieces as RFC 1952; empty when memory ran out. The object is then spent.
  std::string finish_text();

 private:
  struct Stream;
  void deflate_piece(std::string_view text, int flush);

  std::unique_ptr<Stream> stream_;  // null: out of memory
  std::string packed_;
};

// A text shared by the connections that send it, and its compressed form, made on first use. One thread.
class Document {
 public:
  Document() : Document(std::string()) {}
  explicit Document(std::string text) : plain_(std::make_shared<const std::string>(std::move(text))) {}

  const SharedText& plain_text() const { return plain_; }
  // Null if it would not be smaller.
  const SharedText& gzipped() const;

 private:
  SharedText plain_;
  mutable SharedText gzipped_;
  mutable bool tried_ = false;
};

// What a client would take, by its Accept and Accept-Encoding fields (RFC 9110, sections 12.4.2 and 12.5).
// Pure.

// Whether OpenMetrics 1.0 is preferred to Prometheus' text format 0.0.4: it is asked for by name, in
// that version or in none, and text/plain is not wanted more.
bool prefers_open_metrics(std::string_view accept);

// Whether the response may be compressed with gzip.
bool accepts_gzip(std::string_view accept_encoding);

// The connections that receive each event as it comes. Their number is bounded; each connection bounds its
// own queue (server.h). One thread.
class Subscribers {
 public:
  using EventCallback = std::function<void(const SharedText&)>;

  // Calls `callback` with each text from now on, until the Subscription is gone, also when that happens
  // inside a call. Empty where there are `most` already. This object must live longer. `is_authenticated`:
  // see Request.
  Subscription subscribe(EventCallback callback, bool is_authenticated, std::size_t most);
  // `text` goes to the authenticated ones, `public_text` to all others.
  void publish_event(const SharedText& text, const SharedText& public_text);
  std::size_t subscriber_count() const { return subscribers_.size(); }

  // Called after the number changed; set before the first joins.
  std::function<void()> on_count_changed;

 private:
  struct Subscriber {
    EventCallback callback;
    bool is_authenticated;
  };

  std::uint64_t next_ = 0;
  std::map<std::uint64_t, Subscriber> subscribers_;
};

using Field = std::pair<std::string_view, std::string_view>;

// A request; missing fields are empty.
struct Request {
  std::string_view method, target;
  std::string_view accept = {}, accept_encoding = {};
  // The last common name of the certificate that the client showed and that was verified; empty without
  // one.
  std::string_view client = {};
  // Whether the server knows the client: by a password, by a certificate of a trusted authority, or by the
  // mode of a Unix socket's file, through which it connects.
  bool is_authenticated = false;
  std::vector<Field> fields = {};  // all, in order, names as sent
  std::string_view body = {};      // complete; empty where the server accepts none (server.h)
};

struct Response {
  int status = 200;
  std::string_view content_type = "text/plain; charset=utf-8";
  SharedText body;                 // shared: slow connections do not copy a page
  bool gzipped = false;            // the body is
  bool varies_by_accept = false;   // by the request's Accept fields
  bool is_event_stream = false;    // the body is the first of the events that follow
  bool requests_password = false;  // a browser prompts its user
  std::string etag{};              // with its quotes; empty: none. A response 304 has one and an empty body
};

// Called at most once, on the loop. It is no error if the client is gone by then.
using ResponseCallback = std::function<void(Response)>;

// Loop's thread only.
class RequestHandler {
 public:
  virtual ~RequestHandler() = default;
  // Answers by `reply`, from inside this call or later; one that comes too late (server.h) finds the
  // connection closed. What `request` views is gone after either.
  virtual void handle_request(const Request& request, Time now, const ResponseCallback& reply) = 0;
  // Sends further events after a response with `events`; null where no response has them.
  virtual Subscribers* event_subscribers() { return nullptr; }
};

using Headers = std::vector<std::pair<std::string, std::string>>;
// The head of a response, to the empty line; `keep_alive` says whether the connection stays open after it.
// `headers` come in place of ours of the same name.
std::string response_head(const Response& answer, bool keep_alive, const Headers& headers = {});

}  // namespace gpulet::http
