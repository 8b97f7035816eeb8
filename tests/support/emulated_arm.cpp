// Calls functions of a library of the CPU kernels for 64-bit Arm, under an emulator, as emulated_arm.py asks on the standard
// input: a request has the recorded arguments of a function (cpu/replay.h) and the memory to which they point.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

constexpr int kWords = 17;
constexpr uint64_t kPage = 4096;

struct Request {
  char name[64];
  uint64_t words[kWords];  // arguments; an argument that points to memory is an offset in a buffer
  uint64_t buffer[kWords];  // 1 + the number of an argument's buffer, 0 for an argument that does not point to memory
  uint64_t count, sizes[kWords];  // of the buffers, whose bytes follow, and are the reply
};

[[noreturn]] void fail(const char *what) {
  std::fprintf(stderr, "emulated Arm: %s\n", what);
  std::exit(1);
}

// Memory that ends where no access is possible, so that the kernels' accesses beyond it end the process.
struct Buffer {
  explicit Buffer(uint64_t size) : size(size), mapped((size + kPage - 1) / kPage * kPage + kPage) {
    base = static_cast<char *>(mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base == MAP_FAILED || mprotect(base + mapped - kPage, kPage, PROT_NONE)) fail("no memory");
    bytes = base + mapped - kPage - size;
  }
  void release() { munmap(base, mapped); }

  uint64_t size, mapped;
  char *base, *bytes;
};

// Returns false at the end of the input.
bool receive(void *to, uint64_t size) {
  char *place = static_cast<char *>(to);
  while (size) {
    const ssize_t count = read(STDIN_FILENO, place, size);
    if (count <= 0) return false;
    place += count;
    size -= count;
  }
  return true;
}

void send(const char *from, uint64_t size) {
  while (size) {
    const ssize_t count = write(STDOUT_FILENO, from, size);
    if (count <= 0) fail("the reply cannot be written");
    from += count;
    size -= count;
  }
}

// The all-reduce of `ranks` threads; arguments: x [ranks, count], count, shared memory, ranks, bytes of a rank's buffer.
void all_reduce(void *function, const uint64_t *words, uint64_t element) {
  using AllReduce = int64_t (*)(char *, int64_t, char *, int64_t, int64_t, int64_t, int64_t, double);
  const int64_t count = words[1], ranks = words[3];
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    char *x = reinterpret_cast<char *>(words[0]) + rank * count * element;
    threads.emplace_back([=] {
      const int64_t round = reinterpret_cast<AllReduce>(function)(x, count, reinterpret_cast<char *>(words[2]), rank,
                                                                 ranks, words[4], 0, 60);
      if (round < 0) fail("a rank of the all-reduce is lost");
    });
  }
  for (std::thread &thread : threads) thread.join();
}

int main(int, char **arguments) {
  void *library = dlopen(arguments[1], RTLD_NOW);
  if (!library) fail(dlerror());
  Request request;
  while (receive(&request, sizeof(request))) {
    void *function = dlsym(library, request.name);
    if (!function) fail(request.name);
    std::vector<Buffer> buffers;
    for (uint64_t index = 0; index < request.count; ++index) {
      buffers.emplace_back(request.sizes[index]);
      if (!receive(buffers[index].bytes, buffers[index].size)) fail("a request ends early");
    }
    for (int word = 0; word < kWords; ++word) {
      if (!request.buffer[word]) continue;
      request.words[word] += reinterpret_cast<uint64_t>(buffers[request.buffer[word] - 1].bytes);
    }
    if (!std::strncmp(request.name, "orca_all_reduce_", 16)) {
      all_reduce(function, request.words, std::strcmp(request.name + 16, "float32") ? 2 : 4);
    } else {
      reinterpret_cast<void (*)(const uint64_t *)>(function)(request.words);
    }
    for (Buffer &buffer : buffers) {
      send(buffer.bytes, buffer.size);
      buffer.release();
    }
  }
}
