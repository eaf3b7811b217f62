// Warnings about damage that a test made are no news.
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

namespace {
class Quiet : public ::testing::Environment {
  void SetUp() override { spdlog::set_level(spdlog::level::off); }
};
const auto* const kQuiet = ::testing::AddGlobalTestEnvironment(new Quiet);
}  // namespace
