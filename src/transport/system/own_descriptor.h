// A descriptor that no child of fork() shares: the peer sees its end when this process ends.
#pragma once

#include "transport/system/fork.h"
#include "transport/system/socket.h"

namespace netsum::transport {

class OwnDescriptor final : public Descriptor, NotForChildren {
 public:
  explicit OwnDescriptor(int number) : Descriptor(number) { enlist(); }
  ~OwnDescriptor() { delist(); }
  OwnDescriptor(const OwnDescriptor&) = delete;
  OwnDescriptor& operator=(const OwnDescriptor&) = delete;

 private:
  void in_child() noexcept override { close(); }
};

}  // namespace netsum::transport
