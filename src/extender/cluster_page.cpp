#include "extender/cluster_page.h"

#include <utility>

#include "base/text.h"
#include "web/page_files.h"

namespace gpulet::extender {
namespace {

http::Response plain_response(int status, std::string body) {
  return {.status = status, .body = std::make_shared<const std::string>(std::move(body))};
}

std::string request_field(const http::Request& request, std::string_view name) {
  for (const auto& [field, value] : request.fields) {
    if (text::lower(field) == name) return std::string(value);
  }
  return {};
}

}  // namespace

void ClusterPage::handle_request(const http::Request& request, Time, const http::ResponseCallback& reply) {
  if (request.method != "GET" && request.method != "HEAD") return reply(plain_response(405, "use GET\n"));
  const auto path = request.target.substr(0, request.target.find('?'));
  if (path == "/healthz") return reply(plain_response(200, "ok\n"));
  if (auto file = web::cluster_page_file(path == kPagePath ? "/" : path, request)) return reply(*file);
  if (path == "/api/cluster") {
    Reader reader{.gzip = http::accepts_gzip(request.accept_encoding),
                  .known_etag = request_field(request, "if-none-match"),
                  .reply = reply};
    return authorize_reader(request, reply, [this, reader] { send_document(reader); });
  }
  if (path == "/api/explain") {
    const std::string target(request.target.substr(std::string_view("/api").size()));
    return authorize_reader(request, reply, [this, target, reply] {
      dependencies_.extender.handle_request({.method = "GET", .target = target}, dependencies_.loop.now(),
                                            reply);
    });
  }
  reply(plain_response(404, "not found; paths: /cluster, /api/cluster, /api/explain, /healthz\n"));
}

void ClusterPage::authorize_reader(const http::Request& request, const http::ResponseCallback& denied,
                                   std::function<void()> permitted) {
  auto* const reviewer = dependencies_.reviewer;
  if (reviewer == nullptr) return permitted();
  const auto token = metrics_api::bearer_token(request);
  if (!token) return denied(plain_response(401, "a bearer token of the cluster is needed\n"));
  reviewer->authenticate_token(*token, [reviewer, denied, permitted = std::move(permitted)](
                                           const Result<std::optional<metrics_api::User>>& known) {
    if (!known) return denied(plain_response(503, known.error().full_message() + "\n"));
    if (!*known) return denied(plain_response(401, "the bearer token is invalid\n"));
    const auto user = metrics_api::add_authenticated_group(**known);
    reviewer->authorize_action(
        user, {.path = kPagePath, .version = {}, .name_space = {}, .pod = {}, .metric = {}},
        [denied, permitted, name = user.name](const Result<bool>& may) {
          if (!may) return denied(plain_response(503, may.error().full_message() + "\n"));
          if (*may) return permitted();
          denied(plain_response(403, "User \"" + name + "\" may not get the path /cluster\n"));
        });
  });
}

void ClusterPage::send_document(Reader reader) {
  const bool is_current = text_ && dependencies_.loop.now() - made_at_ < kDocumentLifetime;
  if (is_current) return answer_reader(reader);
  if (readers_.size() >= kMaxWaitingReaders)
    return reader.reply(plain_response(503, "too many requests wait for the document\n"));
  if (!making_) {
    std::string reasons;
    for (const auto& line : dependencies_.problems()) reasons += line + "\n";
    if (!reasons.empty()) return reader.reply(plain_response(503, std::move(reasons)));
    making_.emplace(dependencies_.document);
    next_piece_ = dependencies_.loop.after(Duration::zero(), [this] { make_next_piece(); });
  }
  readers_.push_back(std::move(reader));
}

void ClusterPage::Making::append_piece(const std::string& piece) {
  compressor.append_piece(piece);
  hash = (hash ^ std::hash<std::string>()(piece)) * 0x9E3779B97F4A7C15u;
  text += piece;
}

void ClusterPage::make_next_piece() {
  if (const auto piece = making_->document.next_piece()) {
    if (!piece->empty()) making_->append_piece(*piece);
    next_piece_ = dependencies_.loop.after(Duration::zero(), [this] { make_next_piece(); });
    return;
  }
  making_->text.shrink_to_fit();
  text_ = std::make_shared<const std::string>(std::move(making_->text));
  auto packed = making_->compressor.finish_text();
  gzipped_ = packed.empty() ? nullptr : std::make_shared<const std::string>(std::move(packed));
  etag_ = "\"" + std::to_string(making_->hash) + "\"";
  making_.reset();
  made_at_ = dependencies_.loop.now();
  ++documents_;
  for (const auto& reader : std::exchange(readers_, {})) answer_reader(reader);
}

void ClusterPage::answer_reader(const Reader& reader) const {
  static const auto kNothing = std::make_shared<const std::string>();
  http::Response response{
      .content_type = "application/json", .body = text_, .varies_by_accept = true, .etag = etag_};
  if (reader.known_etag == etag_) {
    response.status = 304;
    response.body = kNothing;
  } else if (reader.gzip && gzipped_ != nullptr) {
    response.gzipped = true;
    response.body = gzipped_;
  }
  reader.reply(std::move(response));
}

}  // namespace gpulet::extender
