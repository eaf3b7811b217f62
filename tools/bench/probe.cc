// Reads files in the ways that loaders do, and prints one line of JSON with what it took.
//
//   weightfs_bench_probe read FILE...            read() of 1 MiB in order
//   weightfs_bench_probe direct FILE...          the same with O_DIRECT
//   weightfs_bench_probe map THREADS FILE...     every page of a mapping, in order; each thread a part of each file
//   weightfs_bench_probe fault COUNT FILE        COUNT pages of a mapping at random, MADV_RANDOM
//   weightfs_bench_probe readers COUNT FILE      COUNT threads that each read() the whole file
//   weightfs_bench_probe piece OFFSET LENGTH FILE   one pread
//   weightfs_bench_probe stat DIR                stat of every name in DIR, after listing it
//   weightfs_bench_probe drop FILE...            the kernel forgets the files' pages
//   weightfs_bench_probe touch BYTES             memory that the machine's host may have taken away is here again
//
// "sum" is of the first eight bytes of each page that was looked at: the same for equal files.
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kPiece = 1 << 20, kPage = 4096;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Outcome {
  std::uint64_t bytes = 0, sum = 0;
  std::vector<double> each;
};

[[noreturn]] void fail(const std::string& what) {
  std::perror(what.c_str());
  std::exit(1);
}

int open_file(const std::string& path, int more = 0) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | more);
  if (fd < 0) fail(path);
  return fd;
}

std::uint64_t size_of(int fd) {
  struct stat st;
  if (::fstat(fd, &st) != 0) fail("fstat");
  return static_cast<std::uint64_t>(st.st_size);
}

std::uint64_t word_at(const void* at) {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

void add_pages(Outcome& out, const char* bytes, std::size_t size) {
  out.bytes += size;
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= size; at += kPage) out.sum += word_at(bytes + at);
}

void read_file(Outcome& out, const std::string& path, int more) {
  int fd = open_file(path, more);
  auto* buffer = static_cast<char*>(std::aligned_alloc(kPage, kPiece));
  ssize_t got;
  while ((got = ::read(fd, buffer, kPiece)) > 0) add_pages(out, buffer, static_cast<std::size_t>(got));
  if (got < 0) fail(path);
  std::free(buffer);
  ::close(fd);
}

const char* map_file(int fd, std::uint64_t size) {
  void* at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (at == MAP_FAILED) fail("mmap");
  return static_cast<const char*>(at);
}

void map_all(Outcome& out, const std::string& path, std::size_t threads) {
  int fd = open_file(path);
  auto size = size_of(fd);
  const char* at = map_file(fd, size);
  std::vector<Outcome> parts(threads);
  std::vector<std::thread> running;
  for (std::size_t i = 0; i < threads; i++) {
    running.emplace_back([&, i] {
      auto from = size * i / threads / kPage * kPage,
           to = i + 1 == threads ? size : size * (i + 1) / threads / kPage * kPage;
      add_pages(parts[i], at + from, to - from);
    });
  }
  for (auto& thread : running) thread.join();
  for (const auto& part : parts) out.bytes += part.bytes, out.sum += part.sum;
  ::munmap(const_cast<char*>(at), size);
  ::close(fd);
}

void fault_pages(Outcome& out, const std::string& path, std::size_t count) {
  int fd = open_file(path);
  auto size = size_of(fd);
  const char* at = map_file(fd, size);
  ::madvise(const_cast<char*>(at), size, MADV_RANDOM);
  std::mt19937_64 random(20261201);
  for (std::size_t i = 0; i < count; i++) {
    auto page = random() % (size / kPage) * kPage;
    auto begin = now();
    out.sum += word_at(at + page);
    out.each.push_back(now() - begin);
    out.bytes += kPage;
  }
  ::munmap(const_cast<char*>(at), size);
  ::close(fd);
}

void stat_all(Outcome& out, const std::string& path) {
  DIR* dir = ::opendir(path.c_str());
  if (dir == nullptr) fail(path);
  std::vector<std::string> names;
  while (auto* entry = ::readdir(dir)) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  ::closedir(dir);
  for (const auto& name : names) {
    struct stat st;
    if (::stat((path + "/" + name).c_str(), &st) != 0) fail(name);
    out.bytes += static_cast<std::uint64_t>(st.st_size);
    out.sum++;
  }
}

void print(const Outcome& out, double seconds) {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  double cpu = static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
               static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
  std::printf("{\"seconds\": %.6f, \"cpu\": %.3f, \"bytes\": %llu, \"sum\": %llu", seconds, cpu,
              static_cast<unsigned long long>(out.bytes), static_cast<unsigned long long>(out.sum));
  if (!out.each.empty()) {
    auto sorted = out.each;
    std::sort(sorted.begin(), sorted.end());
    std::printf(", \"p50\": %.9f, \"p99\": %.9f", sorted[sorted.size() / 2], sorted[sorted.size() * 99 / 100]);
  }
  std::printf("}\n");
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() < 2) {
    std::fprintf(stderr, "usage: weightfs_bench_probe read|direct|map|fault|readers|piece|stat|drop|touch ...\n");
    return 2;
  }
  auto number = [&](std::size_t at) { return std::strtoull(words.at(at).c_str(), nullptr, 10); };
  const auto& how = words[0];
  std::size_t first = how == "map" || how == "fault" || how == "readers" ? 2 : how == "piece" ? 3 : 1;
  if (words.size() <= first) return 2;
  Outcome out;
  auto begin = now();
  for (std::size_t i = first; i < words.size(); i++) {
    const auto& path = words[i];
    if (how == "read") read_file(out, path, 0);
    if (how == "direct") read_file(out, path, O_DIRECT);
    if (how == "map") map_all(out, path, number(1));
    if (how == "fault") fault_pages(out, path, number(1));
    if (how == "stat") stat_all(out, path);
    if (how == "piece") {
      int fd = open_file(path);
      std::vector<char> buffer(number(2));
      auto got = ::pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(number(1)));
      if (got != static_cast<ssize_t>(buffer.size())) fail(path);
      add_pages(out, buffer.data(), buffer.size());
      ::close(fd);
    }
    if (how == "readers") {
      std::vector<Outcome> parts(number(1));
      std::vector<std::thread> running;
      for (auto& part : parts) running.emplace_back([&] { read_file(part, path, 0); });
      for (auto& thread : running) thread.join();
      for (const auto& part : parts) {
        if (part.sum != parts[0].sum) {
          std::fprintf(stderr, "%s: readers saw different bytes\n", path.c_str());
          return 1;
        }
      }
      out = parts[0];
    }
    if (how == "touch") {
      out.bytes = number(i);
      void* at = ::mmap(nullptr, out.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
      if (at == MAP_FAILED) fail("mmap");
    }
    if (how == "drop") {
      int fd = open_file(path);
      ::fdatasync(fd);
      ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      ::close(fd);
    }
  }
  print(out, now() - begin);
  return 0;
}
