// The interfaces where this process takes packets before the kernel's network does: how, or why not. It is said once when it
// changes, and kept for status and metrics.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace netsum::transport {

struct Attachment {
  std::string interface;
  bool attached = false;  // packets pass there
  std::string state;      // in words: how, or why not
};

// Any thread.
class Attachments {
 public:
  // `say` gets lines for the log; it may be empty.
  explicit Attachments(std::function<void(const std::string& line)> say) : say_(std::move(say)) {}

  void attached(const std::string& interface, const std::string& how) { set({interface, true, how}); }
  void detached(const std::string& interface, const std::string& why) { set({interface, false, why}); }
  [[nodiscard]] std::vector<Attachment> all() const;  // by name

 private:
  void set(const Attachment& now);

  const std::function<void(const std::string&)> say_;
  mutable std::mutex mutex_;
  std::map<std::string, Attachment> all_;
};

}  // namespace netsum::transport
