// A directory of its own under $TMPDIR (else /tmp), removed with all that is in it.
#pragma once

#include <string>
#include <string_view>

namespace weightfs {

class TempDir {
 public:
  TempDir();  // aborts when it cannot be made
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

}  // namespace weightfs
