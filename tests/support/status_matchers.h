// ASSERT_OK(x), EXPECT_OK(x), ASSERT_STATUS(x, Code::k…), EXPECT_STATUS(x, Code::k…) for a Status or a Result<T>.
#pragma once

#include <gtest/gtest.h>

#include "store/base/status.h"

namespace weightfs {

inline void PrintTo(const Status& status, std::ostream* out) { *out << status.to_string(); }
inline void PrintTo(Code code, std::ostream* out) { *out << to_string(code); }

namespace testing_internal {
inline const Status& status_of(const Status& status) { return status; }
template <typename T>
const Status& status_of(const Result<T>& result) {
  return result.status();
}
template <typename T>
::testing::AssertionResult has_code(const char* text, const char*, const T& value, Code code) {
  const Status& status = status_of(value);
  if (status.code() == code) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << text << "\n  is        " << status.to_string() << "\n  expected  "
                                       << to_string(code);
}
}  // namespace testing_internal

#define EXPECT_STATUS(expression, code) EXPECT_PRED_FORMAT2(::weightfs::testing_internal::has_code, expression, code)
#define ASSERT_STATUS(expression, code) ASSERT_PRED_FORMAT2(::weightfs::testing_internal::has_code, expression, code)
#define EXPECT_OK(expression) EXPECT_STATUS(expression, ::weightfs::Code::kOk)
#define ASSERT_OK(expression) ASSERT_STATUS(expression, ::weightfs::Code::kOk)

}  // namespace weightfs
