#include "transport/system/fork.h"

#include <pthread.h>

#include <mutex>
#include <type_traits>

namespace netsum::transport {

struct NotForChildren::List {
  std::mutex mutex;
  NotForChildren* first = nullptr;

  List() {
    ::pthread_atfork([] { list().mutex.lock(); }, [] { list().mutex.unlock(); },
                     [] {
                       for (NotForChildren* each = list().first; each != nullptr; each = each->next_) each->in_child();
                       list().mutex.unlock();
                     });
  }

  static List& list() {
    static List list;
    static_assert(std::is_trivially_destructible_v<List>, "its entries may outlive other static objects");
    return list;
  }
};

void NotForChildren::enlist() {
  List& list = List::list();
  const std::lock_guard lock(list.mutex);
  next_ = list.first;
  if (next_ != nullptr) next_->previous_ = this;
  list.first = this;
}

void NotForChildren::delist() {
  List& list = List::list();
  const std::lock_guard lock(list.mutex);
  (previous_ != nullptr ? previous_->next_ : list.first) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
}

}  // namespace netsum::transport
