#include "control/lookup.h"

#include <exception>
#include <mutex>
#include <thread>

#include "netsum/error.h"
#include "transport/addresses/addresses.h"

namespace netsum::control {
namespace {

class Known final : public Lookup {
 public:
  explicit Known(std::vector<Endpoint> endpoints) : endpoints_(std::move(endpoints)) {}
  [[nodiscard]] std::optional<std::vector<Endpoint>> result() override { return endpoints_; }

 private:
  const std::vector<Endpoint> endpoints_;
};

class Asked final : public Lookup {
 public:
  explicit Asked(const std::string& address) {
    std::thread([state = state_, address] {
      std::vector<Endpoint> found;
      std::exception_ptr failure;
      try {
        found = transport::resolve_all(address);
      } catch (...) {
        failure = std::current_exception();
      }
      const std::lock_guard lock(state->mutex);
      state->found = std::move(found);
      state->failure = failure;
      state->done = true;
    }).detach();
  }
  [[nodiscard]] std::optional<std::vector<Endpoint>> result() override {
    const std::lock_guard lock(state_->mutex);
    if (!state_->done) return std::nullopt;
    if (state_->failure) std::rethrow_exception(state_->failure);
    return state_->found;
  }

 private:
  struct State {
    std::mutex mutex;
    bool done = false;
    std::vector<Endpoint> found;
    std::exception_ptr failure;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace

std::unique_ptr<Lookup> look_up(const std::string& address) {
  if (auto numeric = transport::resolve_numeric(address)) {
    return std::make_unique<Known>(std::vector<Endpoint>{*numeric});
  }
  return std::make_unique<Asked>(address);
}

}  // namespace netsum::control
