#include "work.h"

#include <ATen/core/ivalue.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace netsum::torchcomms_backend {
namespace {

torch::comms::TorchWork::WorkStatus status_of(const c10::ivalue::Future& how) {
  using Status = torch::comms::TorchWork::WorkStatus;
  switch (static_cast<c10d::WorkResult>(how.constValue().toInt())) {
    case c10d::WorkResult::SUCCESS:
      return Status::COMPLETED;
    case c10d::WorkResult::TIMEOUT:
      return Status::TIMEDOUT;
    default:
      return Status::ERROR;
  }
}

}  // namespace

Work::Work(Works works, c10::Device device, Milliseconds timeout, Milliseconds patience)
    : works_(std::move(works)), device_(device), timeout_(timeout), patience_(patience) {
  setStatus(WorkStatus::INPROGRESS);
}

c10::intrusive_ptr<Work> Work::of_collective(c10::intrusive_ptr<c10d::Work> work, c10::Device device, Milliseconds timeout) {
  auto made = c10::make_intrusive<Work>(Works{std::move(work)}, device, timeout, kNoTimeout);
  made->how_ = made->works_.front()->getFutureResult();
  made->how_->addCallback([made](c10::ivalue::Future& how) { made->end(status_of(how)); });
  return made;
}

c10::intrusive_ptr<Work> Work::of_messages(Works works, c10::Device device, Milliseconds timeout) {
  return c10::make_intrusive<Work>(std::move(works), device, timeout, timeout);
}

void Work::end(WorkStatus status) {
  const std::lock_guard lock(ending_);
  if (!std::exchange(ended_, true)) setStatus(status);
}

void Work::wait() {
  runWaitPreHooks();
  try {
    for (const auto& each : works_) each->wait(patience_);
  } catch (...) {
    if (!how_) {
      end(WorkStatus::ERROR);
    } else if (works_.front()->isCompleted()) {  // else a signal came
      how_->wait();
      end(status_of(*how_));
    }
    throw;
  }
  end(WorkStatus::COMPLETED);
  runWaitPostHooks();
}

void Work::waitBlocking() {
  wait();
  if (!device_.is_cpu()) c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).synchronize();
}

}  // namespace netsum::torchcomms_backend
