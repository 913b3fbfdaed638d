// What a child of fork() must not share with its parent: it is made the child's own, or closed there, before fork() returns.
#pragma once

#include <cstddef>

namespace netsum::transport {

// In a list that fork() walks. (posix_spawn, vfork and clone(2) do not: they are for what calls exec at once.)
class NotForChildren {
 public:
  NotForChildren(const NotForChildren&) = delete;
  NotForChildren& operator=(const NotForChildren&) = delete;

 protected:
  NotForChildren() = default;
  ~NotForChildren() = default;
  // The last thing that a constructor does, and the first that a destructor does.
  void enlist();
  void delist();

 private:
  // In the child, which has this thread alone: nothing but system calls.
  virtual void in_child() noexcept = 0;

  struct List;
  NotForChildren *next_ = nullptr, *previous_ = nullptr;
};

}  // namespace netsum::transport
