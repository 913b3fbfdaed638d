#include "transport/addresses/attachments.h"

namespace netsum::transport {

std::vector<Attachment> Attachments::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<Attachment> list;
  for (const auto& [name, attachment] : all_) list.push_back(attachment);
  return list;
}

void Attachments::set(const Attachment& now) {
  {
    const std::lock_guard lock(mutex_);
    Attachment& before = all_[now.interface];
    if (before.attached == now.attached && before.state == now.state) return;
    before = now;
  }
  if (say_) say_((now.attached ? "interface " : "warning: interface ") + now.interface + ": " + now.state);
}

}  // namespace netsum::transport
