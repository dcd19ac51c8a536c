// Words. No header of a toolkit is needed.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef int i32;
typedef long long i64;

struct alignas(16) Words4 { u32 x, y, z, w; };
struct alignas(16) Words2 { u64 x, y; };
