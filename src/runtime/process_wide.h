// Threads that serve several owners (communicators) of a process: one of each key, which begins with its first owner and
// ends with its last. A child of fork() has none of its parent's, and makes its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/cpus.h"

namespace netsum::runtime {

class ProcessWide : public std::enable_shared_from_this<ProcessWide> {
 public:
  enum class Kind : std::uint8_t { monitor, packets, memory, messages };
  struct Key {
    Kind kind{};
    std::uint32_t set = 0;    // owners with different ones share no thread
    std::uint32_t index = 0;  // within the set
    int cpu = any_cpu;        // as of pin_thread()
    bool operator==(const Key&) const = default;
  };

  template <class Thread>
  [[nodiscard]] static std::shared_ptr<Thread> get(const Key& key) {
    return std::static_pointer_cast<Thread>(get(key, [&] { return std::make_shared<Thread>(key); }));
  }

  virtual ~ProcessWide();
  ProcessWide(const ProcessWide&) = delete;
  ProcessWide& operator=(const ProcessWide&) = delete;

 protected:
  explicit ProcessWide(const Key& key) : key_(key) {}
  [[nodiscard]] const Key& key() const { return key_; }

 private:
  struct List;
  [[nodiscard]] static std::shared_ptr<ProcessWide> get(const Key& key,
                                                        const std::function<std::shared_ptr<ProcessWide>()>& make);

  const Key key_;
  ProcessWide *next_ = nullptr, *previous_ = nullptr;
};

}  // namespace netsum::runtime
