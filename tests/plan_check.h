// What the programs that check plans have in common: says what is wrong with which shape.
#pragma once

#include <cstdint>
#include <cstdio>

inline int wrong = 0;

inline void expect(bool holds, const char* what, int64_t M, int64_t N, int64_t K, int sms) {
  if (holds) return;
  ++wrong;
  std::printf("wrong: %s at %lld %lld %lld on %d\n", what, static_cast<long long>(M),
              static_cast<long long>(N), static_cast<long long>(K), sms);
}
