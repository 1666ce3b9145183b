#include "extender/ask.h"

#include <optional>

#include "base/text.h"
#include "cluster/objects.h"
#include "extender/service.h"

namespace gpulet::extender {
namespace {

class Asking {
 public:
  Asking(const Question& question, const cluster::Access& access)
      : question_(question), access_(access), client_(loop_, access, question.limit) {}

  Result<std::string> run() {
    limit_ = loop_.after(question_.limit, [this] {
      std::string waiting = "the API server did not answer in time";
      if (feed_) {
        for (const auto& line : feed_->trouble()) waiting += "; " + line;
      }
      finish(fail(Code::kDeadlineExceeded, waiting));
    });
    if (question_.service.empty()) {
      look();
    } else {
      ask_service();
    }
    loop_.run();
    return answer_;
  }

 private:
  void finish(Result<std::string> answer) {
    answer_ = std::move(answer);
    loop_.stop();
  }

  std::string target() const {
    return "/explain?namespace=" + question_.name_space + "&pod=" + question_.pod +
           (question_.json ? "&format=json" : "");
  }

  void ask_service() {
    const auto slash = question_.service.find('/');
    const std::string name_space = question_.service.substr(0, slash);
    const std::string service = slash == std::string::npos ? "" : question_.service.substr(slash + 1);
    const auto name = service.substr(0, service.find(':'));
    if (!cluster::is_name(name_space) || !cluster::is_name(name)) {
      // On the loop, as every other answer.
      later_ = loop_.after(Duration::zero(), [this] {
        finish(fail(Code::kInvalidArgument, "is no Service, as gpulet/gpulet-scheduler:9410 is one",
                    question_.service));
      });
      return;
    }
    client_.request(
        {.method = "GET",
         .path = "/api/v1/namespaces/" + name_space + "/services/" + service + "/proxy" + target(),
         .accept = "*/*"},
        [this](const Result<cluster::ApiResponse>& response) { on_service(response); });
  }

  void on_service(const Result<cluster::ApiResponse>& response) {
    if (!response) return finish(fail(response.error()));
    if (response->status == 200) return finish(response->body);
    // What the extender itself says is a line; what the API server says of the Service is an object.
    const bool of_extender = !response->body.starts_with('{');
    if (of_extender && response->status == 404) {
      return finish(fail(Code::kNotFound, std::string(text::trim(response->body))));
    }
    if (of_extender && response->status == 400) {
      return finish(fail(Code::kInvalidArgument, std::string(text::trim(response->body))));
    }
    look();
  }

  void look() {
    feed_.emplace(loop_, access_, view_, cluster::CollectionTiming{}, [this] { on_listed(); });
    service_.emplace(ServicePorts{.loop = loop_, .view = view_, .feed = *feed_, .event = nullptr},
                     question_.policy);
  }

  void on_listed() {
    const std::string target = this->target();
    service_->serve({.method = "GET", .target = target}, loop_.now(), [this](const web::Answer& answer) {
      if (answer.status == 200) return finish(*answer.body);
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
  Result<std::string> answer_ = fail(Code::kInternal, "nothing was answered");
  Subscription limit_, later_;
};

}  // namespace

Result<std::string> ask(const Question& question, const cluster::Access& access) {
  if (!cluster::is_name(question.name_space) || !cluster::is_name(question.pod)) {
    return fail(Code::kInvalidArgument, "is no name of a Pod", question.name_space + "/" + question.pod);
  }
  return Asking(question, access).run();
}

}  // namespace gpulet::extender
