#include "tests/support/temp_dir.h"

#include <cstdio>
#include <cstdlib>

#include "store/base/posix.h"

namespace weightfs {

TempDir::TempDir() {
  const char* base = std::getenv("TMPDIR");
  path_ = std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/weightfs-test-XXXXXX";
  WFS_CHECK(::mkdtemp(path_.data()) != nullptr);
}

TempDir::~TempDir() {
  auto status = posix::remove_tree(path_);
  if (!status.is_ok()) std::fprintf(stderr, "left behind: %s: %s\n", path_.c_str(), status.message().c_str());
}

}  // namespace weightfs
