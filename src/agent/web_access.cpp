#include "agent/web_access.h"

#include <algorithm>

#include "base/log.h"
#include "base/text.h"

namespace gpulet::agent {
namespace {

// A certificate and its key are two files, and Kubernetes changes a Secret's one after the other in no time:
// read once both are there.
constexpr Duration kFilesSettle = std::chrono::milliseconds(100);

web::ClientCertificates clients_of(config::ClientAuth auth) {
  switch (auth) {
    case config::ClientAuth::kNoClientCert:
      break;
    case config::ClientAuth::kRequestClientCert:
      return web::ClientCertificates::kRequest;
    case config::ClientAuth::kRequireAnyClientCert:
      return web::ClientCertificates::kRequireAny;
    case config::ClientAuth::kVerifyClientCertIfGiven:
      return web::ClientCertificates::kVerifyIfGiven;
    case config::ClientAuth::kRequireAndVerifyClientCert:
      return web::ClientCertificates::kRequireAndVerify;
  }
  return web::ClientCertificates::kNone;
}

}  // namespace

web::Access access_of(const config::WebConfig& config) {
  web::Access access{.users = config.users, .headers = config.headers};
  if (!config.tls) return access;
  web::Tls& tls = access.tls.emplace();
  tls.certificate = config.tls->certificate.text;
  tls.certificate_about = config.tls->certificate.about;
  tls.key = config.tls->key.text;
  tls.key_about = config.tls->key.about;
  tls.client_authorities = config.tls->client_authorities.text;
  tls.client_authorities_about = config.tls->client_authorities.about;
  tls.clients = clients_of(config.tls->client_auth);
  tls.client_names = config.tls->client_allowed_sans;
  tls.min_version = config.tls->min_version;
  tls.max_version = config.tls->max_version;
  tls.ciphers = text::join(config.tls->ciphers, ":");
  tls.curves = text::join(config.tls->curves, ":");
  tls.prefer_server_ciphers = config.tls->prefer_server_ciphers;
  return access;
}

WebAccess::WebAccess(Loop& loop, std::string file, std::function<Status(const web::Access&)> apply)
    : loop_(loop), file_(std::move(file)), apply_(std::move(apply)) {}

Result<std::unique_ptr<WebAccess>> WebAccess::start(Loop& loop, std::string file,
                                                    std::function<Status(const web::Access&)> apply) {
  std::unique_ptr<WebAccess> started(new WebAccess(loop, std::move(file), std::move(apply)));
  GPULET_TRY_ASSIGN(started->access_, started->read());
  GPULET_TRY(started->follow());
  return started;
}

Result<web::Access> WebAccess::read() {
  auto reading = config::read_web_config(file_);
  files_ = std::move(reading.files);
  if (!reading.config) return fail(std::move(reading.config.error()));
  web::Access access = access_of(*reading.config);
  const auto checked = web::check(access);
  if (checked) return access;
  // About one of the files, or about a field of the first of them.
  const Error& error = checked.error();
  if (std::ranges::find(files_, error.about()) != files_.end()) return fail(error);
  return fail(error.code(), error.text(), file_);
}

Status WebAccess::follow() {
  if (files_ == followed_) return {};
  std::vector<std::unique_ptr<FileWatch>> watches;
  for (const auto& file : files_) {
    GPULET_TRY_ASSIGN(auto watch, FileWatch::start(loop_, file, [this] {
                        if (!reading_) reading_ = loop_.after(kFilesSettle, [this] { on_changed(); });
                      }));
    watches.push_back(std::move(watch));
  }
  watches_ = std::move(watches);
  followed_ = files_;
  return {};
}

void WebAccess::on_changed() {
  reading_.reset();
  auto access = read();
  if (const auto followed = follow(); !followed)
    log::warning("the web config is not followed", followed.error());
  Status result;
  if (!access) {
    result = fail(access.error());
  } else if (*access != access_) {
    result = apply_(*access);
    if (result) {
      access_ = std::move(*access);
      log::info("the web config has changed and is in force", {{"file", file_}});
    }
  }
  const bool told = !result && error_ && error_->text() == result.error().text();
  if (!result && !told) log::error("the web config is bad: the one before stays in force", result.error());
  error_ = result ? std::nullopt : std::optional<Error>(result.error());
}

}  // namespace gpulet::agent
