#include "extender/ask.h"

#include <optional>

#include "base/file.h"
#include "base/text.h"
#include "cluster/channel.h"
#include "cluster/connection.h"
#include "cluster/objects.h"
#include "cluster/resolve.h"
#include "cluster/tls.h"
#include "extender/service.h"
#include "scheduler/gpu_node.h"
#include "web/door.h"

namespace gpulet::extender {
namespace {

constexpr const char* kPeer = "the extender";
constexpr std::size_t kMaxAuthoritiesBytes = 1u << 20;

class Asking {
 public:
  Asking(const Question& question, const cluster::Access& access)
      : question_(question), access_(access), client_(loop_, access, question.limit / 2) {}

  Result<Answer> run() {
    limit_ = loop_.after(question_.limit, [this] {
      std::string waiting = "the API server did not answer in time";
      if (feed_) {
        for (const auto& line : feed_->trouble()) waiting += "; " + line;
      }
      finish(fail(Code::kDeadlineExceeded, waiting));
    });
    if (!question_.url.empty()) {
      ask_url();
    } else if (question_.service.empty()) {
      look();
    } else {
      ask_service();
    }
    loop_.run();
    return answer_;
  }

 private:
  void finish(Result<Answer> answer) {
    answer_ = std::move(answer);
    loop_.stop();
  }

  std::string target() const {
    return "/explain?namespace=" + question_.name_space + "&pod=" + question_.pod +
           (question_.json ? "&format=json" : "");
  }

  Status take(std::string_view piece) {
    if (said_.size() + piece.size() > kMaxExplanationBytes) {
      return fail(Code::kIo, "the extender's answer is larger than 32 MiB");
    }
    said_ += piece;
    return {};
  }

  void refuse(Error error) {
    // On the loop, as every other answer.
    later_ = loop_.after(Duration::zero(), [this, error = std::move(error)] { finish(fail(error)); });
  }

  void ask_url() {
    std::string_view place = question_.url;
    const bool encrypted = place.starts_with("https://");
    place.remove_prefix(std::min(place.size(), std::string_view(encrypted ? "https://" : "http://").size()));
    place = place.substr(0, place.find('/'));
    const auto colon = place.rfind(':');
    const auto port =
        colon == std::string_view::npos ? std::nullopt : text::parse_unsigned(place.substr(colon + 1));
    const bool scheme = encrypted || question_.url.starts_with("http://");
    if (!scheme || !port || *port == 0 || *port > 65'535 || colon == 0) {
      return refuse(
          {Code::kInvalidArgument, "is no http://host:port and no https://host:port", question_.url});
    }
    std::string host(place.substr(0, colon));
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    auto channel = encrypted ? encrypted_channel(host)
                             : Result<std::unique_ptr<cluster::Channel>>(cluster::plain_channel());
    if (!channel) return refuse(channel.error());
    channel_ = std::move(*channel);
    resolver_.emplace(loop_, host, static_cast<std::uint16_t>(*port));
    resolver_->resolve([this, place = std::string(place)](const Result<cluster::Addresses>& addresses) {
      if (!addresses) return refuse(addresses.error());
      auto opened = cluster::Connection::open(
          loop_, std::move(channel_), addresses->front(), kPeer,
          [this](const Result<cluster::ApiResponse>& response) { on_extender(response); });
      if (!opened) return refuse(opened.error());
      connection_ = std::move(*opened);
      connection_->start("GET " + target() + " HTTP/1.1\r\nHost: " + place +
                             "\r\nUser-Agent: gpulet\r\nContent-Length: 0\r\n\r\n",
                         {.begun = nullptr, .piece = [this](std::string_view piece) { return take(piece); }});
    });
  }

  Result<std::unique_ptr<cluster::Channel>> encrypted_channel(const std::string& host) const {
    cluster::TlsOptions options;
    options.server = host;
    options.authorities_about = question_.ca_file;
    options.certificate_about = question_.certificate_file;
    options.key_about = question_.key_file;
    options.peer = kPeer;
    for (const auto& [text, file] : {std::pair{&options.authorities, question_.ca_file},
                                     std::pair{&options.certificate, question_.certificate_file},
                                     std::pair{&options.key, question_.key_file}}) {
      if (file.empty()) continue;
      GPULET_TRY_ASSIGN(*text, read_file(file, kMaxAuthoritiesBytes));
      if (text->empty()) return fail(Code::kInvalidArgument, "is empty", file);
    }
    return cluster::TlsClient::create(options);
  }

  // What the extender itself says of a question that it cannot answer is a line.
  void on_extender(const Result<cluster::ApiResponse>& response) {
    if (!response) return finish(fail(response.error()));
    if (response->status == 200) return finish(Answer{std::move(said_), true});
    const Code code = response->status == 404   ? Code::kNotFound
                      : response->status == 400 ? Code::kInvalidArgument
                                                : Code::kUnavailable;
    finish(fail(code, std::string(text::trim(response->body))));
  }

  void ask_service() {
    const auto slash = question_.service.find('/');
    const std::string name_space = question_.service.substr(0, slash);
    const std::string service = slash == std::string::npos ? "" : question_.service.substr(slash + 1);
    const auto name = service.substr(0, service.find(':'));
    if (!cluster::is_name(name_space) || !cluster::is_name(name)) {
      return refuse({Code::kInvalidArgument, "is no Service, as " + std::string(kService) + " is one",
                     question_.service});
    }
    ask_proxy("/api/v1/namespaces/" + name_space + "/services/", service);
  }

  void ask_proxy(const std::string& services, const std::string& service) {
    client_.stream(
        {.method = "GET", .path = services + service + "/proxy" + target(), .accept = "*/*"},
        question_.limit / 2, [this](std::string_view piece) { return take(piece); },
        [this, services, service](const Result<cluster::ApiResponse>& response) {
          // One that hangs answers no more than one that is not there.
          if (!response && response.error().code() == Code::kDeadlineExceeded) return look();
          // What the API server says of the Service is an object; then there is no extender to ask.
          const bool of_extender = !response || !response->body.starts_with('{');
          const bool answered = !response || response->status < 500;
          if (!of_extender || !answered) return look();
          const bool by_tls = response && response->status == 400 && response->body == web::kSpeaksHttps;
          if (by_tls && !names_scheme(service)) return ask_proxy(services, "https:" + service);
          on_extender(response);
        });
  }

  static bool names_scheme(const std::string& service) {
    return service.starts_with("https:") || service.starts_with("http:");
  }

  // Without the definition of GpuNodes a list of them would only ever be refused.
  void look() {
    client_.request(
        {.method = "GET", .path = std::string(scheduler::kGpuNodesPath) + "?limit=1"},
        [this](const Result<cluster::ApiResponse>& response) {
          if (!response) return finish(fail(response.error()));
          if (response->status == 401 || response->status == 403)
            return finish(fail(Code::kPermissionDenied, "no extender answers, and " + said(*response)));
          if (response->status != 404) return follow();
          finish(fail(Code::kFailedPrecondition,
                      "no extender answers, and nodes publish no GPUs to judge by: gpulet scheduler and "
                      "publishNode are not installed (docs/scheduling.md)"));
        });
  }

  void follow() {
    feed_.emplace(loop_, access_, view_, cluster::CollectionTiming{}, [this] { on_listed(); });
    service_.emplace(ServicePorts{.loop = loop_, .view = view_, .feed = *feed_, .event = nullptr},
                     question_.policy);
  }

  void on_listed() {
    const std::string target = this->target();
    service_->serve({.method = "GET", .target = target}, loop_.now(), [this](const web::Answer& answer) {
      if (answer.status == 200) return finish(Answer{*answer.body, false});
      const Code code = answer.status == 404   ? Code::kNotFound
                        : answer.status == 400 ? Code::kInvalidArgument
                                               : Code::kUnavailable;
      finish(fail(code, std::string(text::trim(*answer.body))));
    });
  }

  const Question& question_;
  const cluster::Access access_;
  EpollLoop loop_;
  cluster::ApiClient client_;
  scheduler::ClusterView view_;
  std::optional<Feed> feed_;
  std::optional<ExtenderService> service_;
  Result<Answer> answer_ = fail(Code::kInternal, "nothing was answered");
  std::string said_;  // by the extender, as far as it has come
  std::optional<cluster::Resolver> resolver_;
  std::unique_ptr<cluster::Channel> channel_;  // until it is connected
  std::unique_ptr<cluster::Connection> connection_;
  Subscription limit_, later_;
};

}  // namespace

Result<Answer> ask(const Question& question, const cluster::Access& access) {
  if (!cluster::is_name(question.name_space) || !cluster::is_name(question.pod)) {
    return fail(Code::kInvalidArgument, "is no name of a Pod", question.name_space + "/" + question.pod);
  }
  return Asking(question, access).run();
}

}  // namespace gpulet::extender
