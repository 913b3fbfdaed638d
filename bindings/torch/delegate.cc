#include "delegate.h"

#include <ATen/ops/view_as_real.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace netsum::torch_backend {

bool gloo_knows(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

at::Tensor as_movable(const at::Tensor& tensor) {
  if (!is_dense(tensor)) return as_movable(dense(tensor));
  if (gloo_knows(tensor.scalar_type()) || tensor.layout() != at::kStrided) return tensor;
  if (tensor.is_complex()) return as_movable(at::view_as_real(tensor.detach()));
  switch (tensor.element_size()) {
    case 1:
      return tensor.detach().view(at::kByte);
    case 2:
      return tensor.detach().view(at::kHalf);
    case 4:
      return tensor.detach().view(at::kInt);
    case 8:
      return tensor.detach().view(at::kLong);
    default:
      throw std::invalid_argument(std::string("netsum: Gloo cannot move tensors of dtype ") +
                                  c10::toString(tensor.scalar_type()));
  }
}

std::vector<at::Tensor> as_movable(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> movable;
  for (const at::Tensor& tensor : tensors) movable.push_back(as_movable(tensor));
  return movable;
}

std::vector<std::vector<at::Tensor>> as_movable(const std::vector<std::vector<at::Tensor>>& lists) {
  std::vector<std::vector<at::Tensor>> movable;
  for (const auto& list : lists) movable.push_back(as_movable(list));
  return movable;
}

namespace {

// Gloo's threads change tensors in place, and are not in inference mode: the tensor itself, or a copy that they may change.
at::Tensor changeable(const at::Tensor& tensor) {
  if (!tensor.is_inference()) return tensor;
  const c10::InferenceMode outside(false);
  return tensor.clone();
}

}  // namespace

at::Tensor Outputs::dense(const at::Tensor& tensor) {
  at::Tensor values = changeable(torch_backend::dense(tensor));
  if (!values.is_same(tensor)) copies_.emplace_back(tensor, values);
  return values;
}

std::vector<at::Tensor> Outputs::movable(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> movable;
  for (const at::Tensor& tensor : tensors) movable.push_back(this->movable(tensor));
  return movable;
}

std::vector<std::vector<at::Tensor>> Outputs::movable(const std::vector<std::vector<at::Tensor>>& lists) {
  std::vector<std::vector<at::Tensor>> movable;
  for (const auto& list : lists) movable.push_back(this->movable(list));
  return movable;
}

std::vector<at::Tensor> Outputs::parts(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : tensors) {
    parts.push_back(tensor.is_complex() ? at::view_as_real(dense(tensor).detach()) : tensor);
  }
  return parts;
}

void Outputs::write() const {
  for (const auto& [to, values] : copies_) torch_backend::write(to, values);
}

namespace {

bool compares_floats(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  return tensor.is_floating_point() && (op == c10d::ReduceOp::MIN || op == c10d::ReduceOp::MAX);
}

std::int64_t all_but_sign(bool wide) {
  return wide ? std::numeric_limits<std::int64_t>::max() : std::numeric_limits<std::int32_t>::max();
}

// Turns the bits of negative floats around, or back.
at::Tensor turned(const at::Tensor& integers) {
  const bool wide = integers.scalar_type() == at::kLong;
  return integers.bitwise_xor(integers.bitwise_right_shift(wide ? 63 : 31).bitwise_and(all_but_sign(wide)));
}

at::Tensor as_summable(const at::Tensor& tensor) {
  if (gloo_knows(tensor.scalar_type())) return dense(tensor);
  switch (tensor.scalar_type()) {
    case at::kBFloat16:
      return dense(tensor).detach().to(at::kFloat);
    case at::kBool:  // as elsewhere in PyTorch, a sum of booleans says whether any is set
    case at::kShort:
      return dense(tensor).detach().to(at::kInt);
    default:
      throw std::invalid_argument(std::string("netsum: neither the switch nor Gloo reduces tensors of dtype ") +
                                  c10::toString(tensor.scalar_type()));
  }
}

}  // namespace

at::Tensor as_reducible(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (!compares_floats(tensor, op)) return changeable(as_summable(tensor));
  const bool wide = tensor.scalar_type() == at::kDouble;
  const at::Tensor floats = dense(tensor).detach().to(wide ? at::kDouble : at::kFloat);
  const at::Tensor integers = turned(floats.view(wide ? at::kLong : at::kInt));
  const std::int64_t greatest = all_but_sign(wide);
  integers.masked_fill_(floats.isnan(), op == c10d::ReduceOp::MAX ? greatest : -greatest - 1);
  return changeable(integers);
}

void take_reduced(const at::Tensor& tensor, at::Tensor reduced, const c10d::ReduceOp& op, int ranks) {
  if (op == c10d::ReduceOp::AVG) {
    const bool whole = at::isIntegralType(reduced.scalar_type(), /*includeBool=*/true);
    whole ? reduced.div_(ranks, "trunc") : reduced.div_(ranks);  // toward zero, as on the switch
  }
  if (compares_floats(tensor, op)) {
    const at::Tensor floats = turned(reduced).view(reduced.scalar_type() == at::kLong ? at::kDouble : at::kFloat);
    reduced = floats.masked_fill(floats.isnan(), std::numeric_limits<double>::quiet_NaN());
  }
  if (!reduced.is_same(tensor)) write(tensor, reduced);
}

bool sums_complex(const std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op) {
  const auto complex =
      std::find_if(tensors.begin(), tensors.end(), [](const at::Tensor& each) { return each.is_complex(); });
  if (complex == tensors.end()) return false;
  if (op != c10d::ReduceOp::SUM && op != c10d::ReduceOp::AVG && op != c10d::ReduceOp::PREMUL_SUM) {
    throw std::invalid_argument(std::string("netsum: tensors of dtype ") + c10::toString(complex->scalar_type()) +
                                " have sums and averages only");
  }
  return true;
}

namespace {

// 1.x has a tensor for each device of a rank.
template <class Supplement>
double number_in(const Supplement& by) {
  if constexpr (requires { by.tensor_factor; }) {
    if (by.tensor_factor.defined()) return by.tensor_factor.item().toDouble();
  } else {
    if (!by.tensor_factors.empty()) return by.tensor_factors.front().item().toDouble();
  }
  return by.double_factor;
}

}  // namespace

std::optional<double> factor_of(const c10d::ReduceOp& op, const std::vector<at::Tensor>& tensors) {
  if (op != c10d::ReduceOp::PREMUL_SUM) return std::nullopt;
  const auto* const by = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (by == nullptr) throw std::invalid_argument("netsum: PREMUL_SUM without a factor");
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_floating_point()) {
      throw std::invalid_argument(std::string("netsum: PREMUL_SUM of tensors of dtype ") +
                                  c10::toString(tensor.scalar_type()) + ", which has no fractions");
    }
  }
  return number_in(*by);
}

void multiply(const std::vector<at::Tensor>& tensors, double by) {
  for (const at::Tensor& tensor : tensors) write(tensor, tensor.detach().to(at::kDouble).mul_(by));
}

namespace {

// The works that one work waits for.
struct Awaited {
  std::atomic<std::size_t> left;
  std::mutex mutex;
  std::exception_ptr error;  // the first; guarded by the mutex
};

}  // namespace

c10::intrusive_ptr<c10d::Work> after(CallbackThreads& threads, const std::vector<c10::intrusive_ptr<c10d::Work>>& inner,
                                     int rank, c10d::OpType type, std::string what, std::vector<at::Tensor> outputs,
                                     std::function<void()> then, std::function<void()> finally) {
  auto work = c10::make_intrusive<GroupWork>(rank, type, std::move(what), std::move(outputs));
  auto end = [work, then = std::move(then), finally = std::move(finally)](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
      if (then) then();
    } catch (...) {
      error = std::current_exception();
    }
    if (finally) finally();
    if (error) {
      work->fail(error);
    } else {
      work->complete();
    }
  };
  const auto awaited = std::make_shared<Awaited>();
  awaited->left = inner.size();
  for (const auto& each : inner) {
    each->getFuture()->addCallback([&threads, awaited, end](c10::ivalue::Future& ended) {
      if (ended.hasError()) {
        const std::lock_guard lock(awaited->mutex);
        if (!awaited->error) awaited->error = ended.exception_ptr();
      }
      if (--awaited->left == 0) threads.post([end, error = awaited->error] { end(error); });
    });
  }
  return work;
}

namespace {

class WrittenMessage final : public c10d::Work {
 public:
  WrittenMessage(c10::intrusive_ptr<c10d::Work> message, Outputs outputs)
      : message_(std::move(message)), outputs_(std::move(outputs)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    const bool here = message_->wait(timeout);
    std::call_once(written_, [this] {
      outputs_.write();
      finish();
    });
    return here;
  }
  [[nodiscard]] int sourceRank() const override { return message_->sourceRank(); }

 private:
  const c10::intrusive_ptr<c10d::Work> message_;
  const Outputs outputs_;
  std::once_flag written_;
};

}  // namespace

c10::intrusive_ptr<c10d::Work> written(c10::intrusive_ptr<c10d::Work> message, Outputs outputs) {
  if (!outputs.any()) return message;
  return c10::make_intrusive<WrittenMessage>(std::move(message), std::move(outputs));
}

}  // namespace netsum::torch_backend
