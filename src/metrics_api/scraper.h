// Asks agents for their pages, many at once, over plain HTTP or TLS. A page is read as it comes
// (agent_page.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/loop.h"
#include "base/result.h"
#include "metrics_api/agent_page.h"

namespace gpulet::metrics_api {

struct ScrapeOptions {
  bool https = false;
  std::uint16_t port = 9400;
  std::string ca_file{};                     // with https; empty: whom the system trusts
  std::string server_name{};                 // whom an agent's certificate must be for; empty: its address
  std::string token_file{};                  // sent as a bearer token; read for each page, as the three are
  std::string basic_auth_file{};             // "name:password"; instead of a token
  Duration limit = std::chrono::seconds(2);  // for one page, from connecting to its last byte
};

inline constexpr std::size_t kScrapesAtOnce = 64;
inline constexpr std::size_t kMaxScrapesWaiting = 16384;

// Loop's thread only.
class Scraper {
 public:
  using Done = std::function<void(Result<AgentPage>)>;

  Scraper(Loop& loop, ScrapeOptions options);
  ~Scraper();
  Scraper(const Scraper&) = delete;

  // The page of the agent at a numeric address. `done` is called from the loop, once, never from inside this
  // call; never when this object is gone before. Errors: kUnavailable, also for an answer that is no page;
  // kDeadlineExceeded; kPermissionDenied for a certificate that is not trusted and for 401 and 403; kIo for a
  // page that is too large; those of reading the files.
  void scrape(const std::string& address, Done done);

 private:
  class Scrape;
  void pump();

  Loop& loop_;
  const ScrapeOptions options_;
  std::uint64_t next_id_ = 0;
  std::map<std::uint64_t, std::unique_ptr<Scrape>> running_;
  std::deque<std::pair<std::string, Done>> waiting_;
  Subscription pumping_;
};

}  // namespace gpulet::metrics_api
