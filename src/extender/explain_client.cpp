#include "extender/explain_client.h"

#include <algorithm>
#include <optional>

#include "base/dns_name.h"
#include "base/file.h"
#include "base/text.h"
#include "extender/server.h"
#include "extender/service_name.h"
#include "http/access_gate.h"
#include "http/client.h"
#include "http/socket.h"
#include "http/transport.h"
#include "k8s/objects.h"
#include "scheduler/model/gpu_node.h"

namespace gpulet::extender {
namespace {

constexpr const char* kPeer = "the extender";
constexpr std::size_t kMaxCaBytes = 1u << 20;

class ExplainClient {
 public:
  ExplainClient(const ExplainQuery& query, const k8s::ClientConfig& access)
      : query_(query), access_(access), client_(loop_, access, query.timeout / 2) {}

  Result<ExplainAnswer> run_query() {
    limit_ = loop_.after(query_.timeout, [this] {
      std::string waiting = "the API server did not respond in time";
      if (watcher_) {
        for (const auto& line : watcher_->current_problems()) waiting += "; " + line;
      }
      finish_query(fail(Code::kDeadlineExceeded, waiting));
    });
    if (!query_.url.empty()) {
      request_url();
    } else if (query_.service.empty()) {
      check_gpu_nodes();
    } else {
      request_service();
    }
    loop_.run_loop();
    return result_;
  }

 private:
  void finish_query(Result<ExplainAnswer> result) {
    result_ = std::move(result);
    loop_.stop_loop();
  }

  std::string explain_path() const {
    return "/explain?namespace=" + query_.name_space + "&pod=" + query_.pod +
           (query_.json ? "&format=json" : "");
  }

  Status append_body(std::string_view piece) {
    if (body_.size() + piece.size() > kMaxExplanationBytes) {
      return fail(Code::kIo, "the extender's response is larger than 32 MiB");
    }
    body_ += piece;
    return {};
  }

  void fail_later(Error error) {
    // Asynchronously, as every other result.
    later_ = loop_.after(Duration::zero(), [this, error = std::move(error)] { finish_query(fail(error)); });
  }

  void request_url() {
    std::string_view place = query_.url;
    const bool encrypted = place.starts_with("https://");
    place.remove_prefix(std::min(place.size(), std::string_view(encrypted ? "https://" : "http://").size()));
    place = place.substr(0, place.find('/'));
    const auto colon = place.rfind(':');
    const auto port =
        colon == std::string_view::npos ? std::nullopt : text::parse_unsigned(place.substr(colon + 1));
    const bool scheme = encrypted || query_.url.starts_with("http://");
    if (!scheme || !port || *port == 0 || *port > 65'535 || colon == 0) {
      return fail_later(
          {Code::kInvalidArgument, "expected http://host:port or https://host:port", query_.url});
    }
    std::string host(place.substr(0, colon));
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    const auto transport =
        encrypted ? make_tls_transport(host) : Result<http::TransportFactory>(http::plain_client());
    if (!transport) return fail_later(transport.error());
    resolver_.emplace(loop_, host, static_cast<std::uint16_t>(*port));
    resolver_->resolve([this, transport = *transport,
                        place = std::string(place)](const Result<http::SocketAddresses>& addresses) {
      if (!addresses) return fail_later(addresses.error());
      auto opened = http::ClientConnection::open_connection(
          loop_, transport, addresses->front(), kPeer,
          [this](const Result<http::ClientResponse>& response) { on_extender_response(response); });
      if (!opened) return fail_later(opened.error());
      connection_ = std::move(*opened);
      connection_->start_request(
          {.path = explain_path(), .host = place},
          {.on_head = nullptr, .on_piece = [this](std::string_view piece) { return append_body(piece); }});
    });
  }

  Result<http::TransportFactory> make_tls_transport(const std::string& host) const {
    http::TlsClientOptions options;
    options.server = host;
    options.authorities_source = query_.ca_file;
    options.certificate_source = query_.certificate_file;
    options.key_source = query_.key_file;
    options.peer = kPeer;
    for (const auto& [text, file] : {std::pair{&options.authorities, query_.ca_file},
                                     std::pair{&options.certificate, query_.certificate_file},
                                     std::pair{&options.key, query_.key_file}}) {
      if (file.empty()) continue;
      GPULET_TRY_ASSIGN(*text, read_file(file, kMaxCaBytes));
      if (text->empty()) return fail(Code::kInvalidArgument, "is empty", file);
    }
    return http::tls_client(options);
  }

  // The extender reports errors as one line of text.
  void on_extender_response(const Result<http::ClientResponse>& response) {
    if (!response) return finish_query(fail(response.error()));
    if (response->status == 200) return finish_query(ExplainAnswer{std::move(body_), true});
    const Code code = response->status == 404   ? Code::kNotFound
                      : response->status == 400 ? Code::kInvalidArgument
                                                : Code::kUnavailable;
    finish_query(fail(code, std::string(text::trim(response->body))));
  }

  void request_service() {
    const auto named = parse_service_name(query_.service);
    if (!named) {
      return fail_later({Code::kInvalidArgument,
                         "expected a Service such as " + std::string(kDefaultService) + " is one",
                         query_.service});
    }
    request_proxy("/api/v1/namespaces/" + named->name_space + "/services/",
                  query_.service.substr(named->name_space.size() + 1));
  }

  void request_proxy(const std::string& services, const std::string& service) {
    client_.stream_response(
        {.method = "GET", .path = services + service + "/proxy" + explain_path(), .accept = "*/*"},
        query_.timeout / 2, [this](std::string_view piece) { return append_body(piece); },
        [this, services, service](const Result<http::ClientResponse>& response) {
          // A proxy request that times out counts as no extender.
          if (!response && response.error().code() == Code::kDeadlineExceeded) return check_gpu_nodes();
          // A JSON object is a response of the API server about the Service: there is no extender.
          const bool of_extender = !response || !response->body.starts_with('{');
          const bool answered = !response || response->status < 500;
          if (!of_extender || !answered) return check_gpu_nodes();
          if (response && requires_https(*response) && !has_scheme(service))
            return request_proxy(services, "https:" + service);
          on_extender_response(response);
        });
  }

  static bool has_scheme(const std::string& service) {
    return service.starts_with("https:") || service.starts_with("http:");
  }

  // Without the CRD a list of GpuNodes would fail forever.
  void check_gpu_nodes() {
    client_.send_request(
        {.method = "GET", .path = std::string(scheduler::kGpuNodesPath) + "?limit=1"},
        [this](const Result<http::ClientResponse>& response) {
          if (!response) return finish_query(fail(response.error()));
          if (response->status == 401 || response->status == 403)
            return finish_query(fail(Code::kPermissionDenied,
                                     "no extender responds, and " + k8s::describe_response(*response)));
          if (response->status != 404) return explain_locally();
          finish_query(fail(Code::kFailedPrecondition,
                            "no extender responds, and nodes publish no GPUs: install gpulet scheduler or "
                            "enable publishGpuNode (docs/scheduling.md)"));
        });
  }

  void explain_locally() {
    watcher_.emplace(loop_, access_, cluster_, k8s::CollectionTiming{}, [this] { on_synced(); });
    service_.emplace(
        ServiceDependencies{.loop = loop_, .cluster = cluster_, .watcher = *watcher_, .send_event = nullptr},
        query_.policy);
  }

  void on_synced() {
    const std::string target = this->explain_path();
    service_->handle_request({.method = "GET", .target = target}, loop_.now(),
                             [this](const http::Response& result) {
                               if (result.status == 200)
                                 return finish_query(ExplainAnswer{*result.body, false});
                               const Code code = result.status == 404   ? Code::kNotFound
                                                 : result.status == 400 ? Code::kInvalidArgument
                                                                        : Code::kUnavailable;
                               finish_query(fail(code, std::string(text::trim(*result.body))));
                             });
  }

  const ExplainQuery& query_;
  const k8s::ClientConfig access_;
  EpollLoop loop_;
  k8s::ApiClient client_;
  scheduler::ClusterState cluster_;
  std::optional<ClusterWatcher> watcher_;
  std::optional<ExtenderService> service_;
  Result<ExplainAnswer> result_ = fail(Code::kInternal, "no response");
  std::string body_;  // received so far from the extender
  std::optional<http::Resolver> resolver_;
  std::unique_ptr<http::ClientConnection> connection_;
  Subscription limit_, later_;
};

}  // namespace

Result<ExplainAnswer> fetch_explanation(const ExplainQuery& query, const k8s::ClientConfig& access) {
  if (!is_dns_label(query.name_space) || !is_dns_subdomain(query.pod)) {
    return fail(Code::kInvalidArgument, "is not a valid Pod name", query.name_space + "/" + query.pod);
  }
  return ExplainClient(query, access).run_query();
}

}  // namespace gpulet::extender
