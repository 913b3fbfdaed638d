#include "runtime/process_wide.h"

#include <pthread.h>

#include <mutex>
#include <type_traits>

namespace netsum::runtime {

struct ProcessWide::List {
  std::mutex mutex;
  ProcessWide* first = nullptr;

  List() {
    ::pthread_atfork([] { list().mutex.lock(); }, [] { list().mutex.unlock(); },
                     [] {
                       list().first = nullptr;
                       list().mutex.unlock();
                     });
  }

  static List& list() {
    static List list;
    static_assert(std::is_trivially_destructible_v<List>, "communicators may outlive other static objects");
    return list;
  }
};

std::shared_ptr<ProcessWide> ProcessWide::get(const Key& key, const std::function<std::shared_ptr<ProcessWide>()>& make) {
  List& list = List::list();
  const std::lock_guard lock(list.mutex);
  for (ProcessWide* each = list.first; each != nullptr; each = each->next_) {
    if (each->key_ != key) continue;
    if (auto found = each->weak_from_this().lock()) return found;  // else it is about to end
  }
  auto made = make();
  made->next_ = list.first;
  if (made->next_ != nullptr) made->next_->previous_ = made.get();
  list.first = made.get();
  return made;
}

ProcessWide::~ProcessWide() {
  List& list = List::list();
  const std::lock_guard lock(list.mutex);
  if (previous_ == nullptr && list.first != this) return;  // never listed
  (previous_ != nullptr ? previous_->next_ : list.first) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
}

}  // namespace netsum::runtime
