// Serves a few pages over HTTP, on one thread. No client delays another.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/endpoint.h"

namespace netsum::telemetry {

struct PageServerLimits {
  std::size_t connections = 64;  // one more closes the oldest of the addresses (/64 of IPv6) that have the most
  std::size_t request_bytes = 8192;
  std::chrono::milliseconds connection{10'000};  // from its beginning to the end of its answer
  std::chrono::milliseconds page{
      100};  // an answer is reused for so long: strangers cannot make the page be computed more often
};

struct Page {
  std::string path, type;  // "/metrics"; of its content
  // Called on the server's thread; may throw (500).
  std::function<std::string(const std::string& viewer)> make;
  // For whom it is made, from the request's header "netsum-proof": each has a page of its own. None: all have the same. In a
  // header, as addresses end in logs and histories.
  std::function<std::string(std::string_view proof)> viewer{};
};

class PageServer {
 public:
  // Answers GET PATH. `listen`: "HOST:PORT", HOST an address or a name of this host; port 0: any free one. Throws Error:
  // bad_argument, refused (address in use).
  PageServer(const std::string& listen, std::vector<Page> pages, PageServerLimits limits = {});
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  [[nodiscard]] std::string address() const;  // with the real port

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::telemetry
