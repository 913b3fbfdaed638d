#include "python_errors.h"

#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>

#include <utility>

namespace py = pybind11;

namespace netsum::torch_backend {
namespace {

// Never freed: futures may outlive the module.
PyObject* error_class = nullptr;

// An exception of Python's that still knows the Error that it was made of.
struct PythonError : python_error {
  explicit PythonError(ErrorCode of) : code(of) {}
  ErrorCode code;
};

py::object python_object(const Error& error) {
  py::object raised = py::handle(error_class)(error.what());
  raised.attr("code") = to_string(error.code());
  const ErrorDetails& details = error.details();
  raised.attr("ranks") = details.ranks;  // global ones
  raised.attr("operation") = details.operation;
  raised.attr("aggregator") = details.aggregator;
  py::dict calls;
  for (const RankCall& each : details.calls) calls[py::int_(each.rank)] = each.call;
  raised.attr("calls") = std::move(calls);
  return raised;
}

// What PyTorch's own backends raise (2.x), which is a RuntimeError as well.
py::object base_class() {
  const py::module_ distributed = py::module_::import("torch.distributed");
  if (py::hasattr(distributed, "DistBackendError")) return distributed.attr("DistBackendError");
  return py::reinterpret_borrow<py::object>(PyExc_RuntimeError);
}

}  // namespace

void register_errors(py::module_& module) {
  error_class = py::exception<Error>(module, "Error", base_class()).release().ptr();
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& error) {
      PyErr_SetObject(error_class, python_object(error).ptr());
    } catch (PythonError& error) {
      error.restore();
    }
  });
}

std::exception_ptr for_python(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& thrown) {
    if (Py_IsInitialized() == 0) return error;
    const py::gil_scoped_acquire lock;
    PythonError raised(thrown.code());
    PyErr_SetObject(error_class, python_object(thrown).ptr());
    raised.persist();
    return std::make_exception_ptr(std::move(raised));
  } catch (...) {
    return error;
  }
}

ErrorCode code_of(const std::exception_ptr& error, ErrorCode none) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const Error& thrown) {
    return thrown.code();
  } catch (const PythonError& thrown) {
    return thrown.code;
  } catch (...) {
  }
  return none;
}

}  // namespace netsum::torch_backend
