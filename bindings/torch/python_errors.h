// Errors as Python sees them: netsum.torch.Error, with the attributes of docs/errors.md, wherever PyTorch raises them.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>

#include "netsum/error.h"

namespace netsum::torch_backend {

// Makes the exception's class, `Error` in `module`, and has it raised for Error in all bindings.
void register_errors(pybind11::module_& module);

// For a future: PyTorch raises what C++ threw in autograd's threads as a plain RuntimeError, but for an exception of
// Python's. What is not an Error stays as it is. Takes the interpreter's lock.
[[nodiscard]] std::exception_ptr for_python(const std::exception_ptr& error);

// The code of an Error, also of one for Python; `none` for all others.
[[nodiscard]] ErrorCode code_of(const std::exception_ptr& error, ErrorCode none);

}  // namespace netsum::torch_backend
