// Resources that a child of fork() must not share with its parent: before fork() returns in the child, they are closed or
// replaced by private ones.
#pragma once

#include <cstddef>

namespace netsum::transport {

// An entry of a list that fork() walks. (posix_spawn, vfork and clone(2) do not: their children call exec at once.)
class NotForChildren {
 public:
  NotForChildren(const NotForChildren&) = delete;
  NotForChildren& operator=(const NotForChildren&) = delete;

 protected:
  NotForChildren() = default;
  ~NotForChildren() = default;
  // Call last in a constructor, and first in a destructor.
  void enlist();
  void delist();

 private:
  // Runs in the child, which has only this thread: system calls only.
  virtual void in_child() noexcept = 0;

  struct List;
  NotForChildren *next_ = nullptr, *previous_ = nullptr;
};

}  // namespace netsum::transport
