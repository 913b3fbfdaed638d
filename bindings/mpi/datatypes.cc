#include "datatypes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace netsum::mpi {
namespace {

// ---- MPI's side

struct Named {
  MPI_Datatype datatype;
  Numbers numbers;
};

// Of datatypes whose width the compiler knows.
template <class T>
constexpr Numbers as(Kind kind) {
  return {kind, static_cast<std::uint32_t>(sizeof(T))};
}
// Of Fortran's, whose width its compiler decides.
Numbers sized(MPI_Datatype datatype, Kind kind) {
  int bytes = 0;
  PMPI_Type_size(datatype, &bytes);
  const auto width = static_cast<std::uint32_t>(bytes);
  return {kind, kind == Kind::complex ? width / 2 : width};
}

// The most frequent ones are first.
std::vector<Named> all_named() {
  using enum Kind;
  std::vector<Named> all = {
      {MPI_DOUBLE, as<double>(floating)},
      {MPI_INT, as<int>(signed_integer)},
      {MPI_FLOAT, as<float>(floating)},
      {MPI_LONG, as<long>(signed_integer)},
      {MPI_BYTE, {bytes, 1}},
      {MPI_CHAR, {text, 1}},
      {MPI_UNSIGNED_LONG, as<unsigned long>(unsigned_integer)},
      {MPI_LONG_LONG, as<long long>(signed_integer)},
      {MPI_UNSIGNED_LONG_LONG, as<unsigned long long>(unsigned_integer)},
      {MPI_UNSIGNED, as<unsigned>(unsigned_integer)},
      {MPI_SHORT, as<short>(signed_integer)},
      {MPI_UNSIGNED_SHORT, as<unsigned short>(unsigned_integer)},
      {MPI_SIGNED_CHAR, as<signed char>(signed_integer)},
      {MPI_UNSIGNED_CHAR, as<unsigned char>(unsigned_integer)},
      {MPI_INT8_T, {signed_integer, 1}},
      {MPI_INT16_T, {signed_integer, 2}},
      {MPI_INT32_T, {signed_integer, 4}},
      {MPI_INT64_T, {signed_integer, 8}},
      {MPI_UINT8_T, {unsigned_integer, 1}},
      {MPI_UINT16_T, {unsigned_integer, 2}},
      {MPI_UINT32_T, {unsigned_integer, 4}},
      {MPI_UINT64_T, {unsigned_integer, 8}},
      {MPI_AINT, as<MPI_Aint>(signed_integer)},
      {MPI_OFFSET, as<MPI_Offset>(signed_integer)},
      {MPI_COUNT, as<MPI_Count>(signed_integer)},
      {MPI_C_BOOL, as<bool>(logical)},
      {MPI_CXX_BOOL, as<bool>(logical)},
      {MPI_C_FLOAT_COMPLEX, as<float>(complex)},
      {MPI_C_DOUBLE_COMPLEX, as<double>(complex)},
      {MPI_CXX_FLOAT_COMPLEX, as<float>(complex)},
      {MPI_CXX_DOUBLE_COMPLEX, as<double>(complex)},
  };
  // Null where MPI was built without Fortran, or the compiler lacks them.
  const auto fortran = [&](Kind kind, std::initializer_list<MPI_Datatype> datatypes) {
    for (const MPI_Datatype datatype : datatypes) {
      if (datatype != MPI_DATATYPE_NULL) all.push_back({datatype, sized(datatype, kind)});
    }
  };
  fortran(floating, {MPI_DOUBLE_PRECISION, MPI_REAL, MPI_REAL4, MPI_REAL8});
  fortran(signed_integer, {MPI_INTEGER, MPI_INTEGER1, MPI_INTEGER2, MPI_INTEGER4, MPI_INTEGER8});
  fortran(logical, {MPI_LOGICAL});
  fortran(complex, {MPI_DOUBLE_COMPLEX, MPI_COMPLEX, MPI_COMPLEX8, MPI_COMPLEX16});
  fortran(text, {MPI_CHARACTER});
  return all;
}

std::optional<Numbers> named(MPI_Datatype datatype) {
  static const std::vector<Named> all = all_named();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Named& each) { return each.datatype == datatype; });
  if (found == all.end()) return std::nullopt;
  return found->numbers;
}

enum class Action : std::uint8_t { number, bits, truth };

struct Operation {
  MPI_Op op;
  ReduceOp reduce;
  Action action;
};

// ---- netsum's side

std::optional<DType> dtype_of(Kind kind, std::uint32_t width) {
  const bool real = kind == Kind::floating || kind == Kind::complex;
  switch (width) {
    case 1:
      return kind == Kind::unsigned_integer || kind == Kind::bytes ? DType::uint8 : DType::int8;
    case 2:
      return real ? std::nullopt : std::optional(DType::int16);
    case 4:
      return real ? DType::float32 : DType::int32;
    case 8:
      return real ? DType::float64 : DType::int64;
    default:
      return std::nullopt;
  }
}

const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = {
      {MPI_SUM, ReduceOp::sum, Action::number},    {MPI_MAX, ReduceOp::max, Action::number},
      {MPI_MIN, ReduceOp::min, Action::number},    {MPI_PROD, ReduceOp::product, Action::number},
      {MPI_BAND, ReduceOp::bit_and, Action::bits}, {MPI_BOR, ReduceOp::bit_or, Action::bits},
      {MPI_BXOR, ReduceOp::bit_xor, Action::bits}, {MPI_LAND, ReduceOp::bit_and, Action::truth},
      {MPI_LOR, ReduceOp::bit_or, Action::truth},  {MPI_LXOR, ReduceOp::bit_xor, Action::truth},
  };
  return all;
}

// ---- what MPI allows (MPI 4.0, 6.9.2)

bool allows(Action action, Kind kind, ReduceOp op) {
  switch (action) {
    case Action::number:
      if (kind == Kind::complex) return op == ReduceOp::sum;  // by parts; a product is not
      return kind == Kind::signed_integer || kind == Kind::unsigned_integer || kind == Kind::floating;
    case Action::bits:
      return kind == Kind::signed_integer || kind == Kind::unsigned_integer || kind == Kind::bytes;
    case Action::truth:
      return kind == Kind::signed_integer || kind == Kind::unsigned_integer || kind == Kind::logical;
  }
  return false;
}

template <class T>
void make_truth(std::byte* data, std::size_t numbers) {
  for (std::size_t i = 0; i < numbers; ++i) {
    T value;
    std::memcpy(&value, data + i * sizeof(T), sizeof(T));
    value = value != 0 ? 1 : 0;
    std::memcpy(data + i * sizeof(T), &value, sizeof(T));
  }
}

void flip_top(std::uint32_t width, std::byte* data, std::size_t numbers) {
  for (std::size_t i = 0; i < numbers; ++i) data[(i + 1) * width - 1] ^= std::byte{0x80};
}

}  // namespace

std::optional<Numbers> numbers_of(MPI_Datatype datatype) {
  if (const auto numbers = named(datatype)) return numbers;
  int integers = 0, addresses = 0, datatypes = 0, combiner = MPI_COMBINER_NAMED;
  if (PMPI_Type_get_envelope(datatype, &integers, &addresses, &datatypes, &combiner) != MPI_SUCCESS) return std::nullopt;
  if (combiner != MPI_COMBINER_DUP) return std::nullopt;
  MPI_Datatype original = MPI_DATATYPE_NULL;
  PMPI_Type_get_contents(datatype, 0, 0, 1, nullptr, nullptr, &original);
  const auto numbers = numbers_of(original);
  // A duplicate is this call's own.
  PMPI_Type_get_envelope(original, &integers, &addresses, &datatypes, &combiner);
  if (combiner != MPI_COMBINER_NAMED) PMPI_Type_free(&original);
  return numbers;
}

std::variant<Reduction, Path> reduction_of(Numbers numbers, MPI_Op op) {
  const auto& all = operations();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Operation& each) { return each.op == op; });
  if (found == all.end()) return Path::operation;
  if (!allows(found->action, numbers.kind, found->reduce)) return Path::pair;
  const auto dtype = dtype_of(numbers.kind, numbers.width);
  if (!dtype) return Path::datatype;
  Reduction reduction{*dtype, found->reduce};
  const bool orders = found->reduce == ReduceOp::min || found->reduce == ReduceOp::max;
  if (found->action == Action::truth) {
    reduction.preparation = Preparation::truth;
  } else if (orders && numbers.kind == Kind::unsigned_integer && *dtype != DType::uint8) {
    reduction.preparation = Preparation::flip_top;
  }
  return reduction;
}

void prepare(Preparation preparation, std::uint32_t width, std::byte* data, std::size_t numbers) {
  switch (preparation) {
    case Preparation::none:
      return;
    case Preparation::flip_top:
      return flip_top(width, data, numbers);
    case Preparation::truth:
      switch (width) {
        case 1:
          return make_truth<std::uint8_t>(data, numbers);
        case 2:
          return make_truth<std::uint16_t>(data, numbers);
        case 4:
          return make_truth<std::uint32_t>(data, numbers);
        default:
          return make_truth<std::uint64_t>(data, numbers);
      }
  }
}

void restore(Preparation preparation, std::uint32_t width, std::byte* data, std::size_t numbers) {
  if (preparation == Preparation::flip_top) flip_top(width, data, numbers);
}

}  // namespace netsum::mpi
