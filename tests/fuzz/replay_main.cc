// Runs a fuzz target over the files of the directories given, without libFuzzer.
#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "store/base/posix.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  std::size_t count = 0;
  for (int i = 1; i < argc; i++) {
    auto names = weightfs::posix::list_dir(argv[i]);
    if (!names.is_ok()) return std::fprintf(stderr, "%s\n", names.status().to_string().c_str()), 1;
    std::sort(names->begin(), names->end());
    for (const auto& name : *names) {
      auto bytes = weightfs::posix::read_file(std::string(argv[i]) + "/" + name, std::uint64_t{64} << 20);
      if (!bytes.is_ok()) return std::fprintf(stderr, "%s\n", bytes.status().to_string().c_str()), 1;
      std::printf("%s\n", name.c_str());
      std::fflush(stdout);  // the last name is the one that failed
      LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes->data()), bytes->size());
      count++;
    }
  }
  if (count == 0) return std::fprintf(stderr, "no inputs\n"), 1;
  return 0;
}
